"""The latency table: what is kept, what estimates are worth, and what a real runtime says."""

import json
import time

import numpy as np
import pytest
import torch
from digits_search import accuracy, batches, digits, trained

from lilliput.errors import StateError
from lilliput.search import timing
from lilliput.search.candidate import Maker, target_of
from lilliput.search.costs import Counts
from lilliput.search.journal import Journal
from lilliput.search.latency import LatencyTable, Network, TimedLayer, Times, bordering
from lilliput.search.solve import total
from lilliput.search.space import Space
from lilliput.search.timing import Clock, architecture_of
from lilliput.torch import Search, export_onnx

WIDTHS = (8, 12, 16, 24, 32)


def made_up(outputs, inputs, kind="float"):
    """A layer whose time is known: a constant, its outputs, and the work."""
    time = 0.01 + 0.001 * outputs + 0.0002 * outputs * inputs
    return TimedLayer(shape=[outputs, inputs], kind=kind, share=time)


def network(rng, factor=1.1, overhead=0.0):
    layers = {name: made_up(*map(int, rng.choice(WIDTHS, 2))) for name in "abc"}
    whole = factor * sum(layer.share for layer in layers.values()) + overhead
    return Network(choice=[0], layers=layers, ratio=whole)


def test_estimates_at_shapes_that_were_never_timed_follow_the_work():
    rng = np.random.default_rng(0)
    times = Times([network(rng) for _ in range(12)])
    assert times.factor == pytest.approx(1.1)
    found = times.estimate(dict.fromkeys("abc", ((20, 28), "float")))
    assert found == pytest.approx(3 * 1.1 * made_up(20, 28).share, rel=0.02)
    assert times.error() < 0.02


@pytest.mark.parametrize("block", [1, 8, 16])
def test_time_that_rises_in_steps_is_estimated_in_steps(block):
    """Kernels take whole blocks of channels; what was timed tells how large they are."""
    rng = np.random.default_rng(0)

    def stepped(outputs, inputs):
        return made_up(*(-(-n // block) * block for n in (outputs, inputs))).share

    networks = []
    for _ in range(16):
        shapes = {name: [int(n) for n in rng.integers(6, 65, 2)] for name in "abc"}
        layers = {
            name: TimedLayer(
                shape=shape, kind="float", share=stepped(*shape) * rng.normal(1, 0.002)
            )
            for name, shape in shapes.items()
        }
        ratio = sum(layer.share for layer in layers.values())
        networks.append(Network(choice=[0], layers=layers, ratio=ratio))
    times = Times(networks)
    assert times.block("float") == block
    for shape in ((17, 33), (32, 48), (50, 9)):
        found = times.layer("a", shape, "float")
        assert found == pytest.approx(stepped(*shape), rel=0.05)


def test_what_a_call_costs_is_told_from_what_its_kernels_take():
    """A constant that a factor alone would take for work: small networks would seem faster than they are."""
    rng = np.random.default_rng(0)
    networks = [network(rng, 1.05, overhead=0.1) for _ in range(12)]
    disturbed = networks[3].model_copy(update={"ratio": 3 * networks[3].ratio})
    for held in (networks, [*networks[:3], disturbed, *networks[4:]]):
        times = Times(held)
        assert (times.factor, times.overhead) == pytest.approx((1.05, 0.1), rel=0.02)
    small = times.estimate({"a": ((8, 8), "float")})
    assert small == pytest.approx(1.05 * made_up(8, 8).share + 0.1, rel=0.02)
    assert Times(networks).error() < 0.02


def test_without_networks_of_other_sizes_or_with_noise_below_it_there_is_no_constant():
    alike = [network(np.random.default_rng(0)) for _ in range(5)]
    assert Times(alike).overhead == 0 and Times(alike).factor == pytest.approx(1.1)
    below = [network(np.random.default_rng(i), 1.1, overhead=-0.01) for i in range(8)]
    assert Times(below).overhead == 0 and 0.9 < Times(below).factor < 1.1


def test_the_error_is_what_others_say_of_a_network():
    rng = np.random.default_rng(0)
    networks = [network(rng) for _ in range(10)]
    noisy = [
        n.model_copy(update={"ratio": n.ratio * (1.2 if i % 2 else 0.8)})
        for i, n in enumerate(networks)
    ]
    assert Times(networks).error() < 0.05 < 0.15 < Times(noisy).error()
    assert Times([]).error() is None


def test_a_kind_that_a_layer_was_not_timed_in_is_scaled_as_others_were():
    layers = {"a": made_up(8, 8), "b": made_up(16, 16)}
    half = {"a": TimedLayer(shape=[8, 8], kind="int8", share=layers["a"].share / 2)}
    times = Times([Network(choice=[0], layers=x, ratio=1.0) for x in (layers, half)])
    assert times.layer("b", (16, 16), "int8") == pytest.approx(layers["b"].share / 2)


def test_conversions_at_borders_of_precision_are_told_from_the_layers(border=0.05):
    """Layers of two kinds in random order; where the next one has another kind, numbers are converted."""
    rng, names = np.random.default_rng(0), "abcdef"

    def timed(is_told):
        kinds = rng.choice(["float", "int8"], len(names))
        layers = {}
        for i, name in enumerate(names):
            after = kinds[i + 1] if i + 1 < len(names) else kinds[i]
            share = 0.1 * (1 if kinds[i] == "float" else 0.4) + border * (kinds[i] != after)
            kind = bordering(kinds[i], after) if is_told else kinds[i]
            layers[name] = TimedLayer(shape=[8, 8], kind=kind, share=share)
        ratio = sum(layer.share for layer in layers.values())
        return Network(choice=[0], layers=layers, ratio=ratio)

    assert Times([timed(True) for _ in range(16)]).error() < 0.02
    assert Times([timed(False) for _ in range(16)]).error() > 0.05


def test_a_border_that_was_not_timed_is_scaled_as_others_were():
    layers = {
        "a": TimedLayer(shape=[8, 8], kind="int8", share=0.1),
        "b": TimedLayer(shape=[8, 8], kind="int8", share=0.2),
        "c": TimedLayer(shape=[8, 8], kind="float", share=0.9),
    }
    other = {"a": TimedLayer(shape=[8, 8], kind="int8 before float", share=0.15)}
    other["b"] = TimedLayer(shape=[8, 8], kind="float", share=0.7)
    times = Times([Network(choice=[0], layers=x, ratio=1.2) for x in (layers, other)])
    assert times.layer("b", (8, 8), "int8 before float") == pytest.approx(0.3)


def test_a_table_is_one_file_per_runtime_processor_and_threads(tmp_path):
    table = LatencyTable.open(tmp_path, "ONNX Runtime 1.31", "AMD EPYC", 2)
    table.add("model", 1.5, network(np.random.default_rng(0)))
    assert table.path.name == "latency-onnx-runtime-1.31-amd-epyc-2-threads.json"
    again = LatencyTable.open(tmp_path, "ONNX Runtime 1.31", "AMD EPYC", 2)
    assert again.times("model").known == table.times("model").known
    assert not LatencyTable.open(tmp_path, "ONNX Runtime 1.31", "AMD EPYC", 1).document.models


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"format": 1, "runtime": 3})])
def test_a_damaged_table_is_refused(content, tmp_path):
    path = tmp_path / "latency-x.json"
    path.write_text(content)
    with pytest.raises(StateError, match="not a latency table"):
        LatencyTable.read(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"networks": [{"choice": [0], "layers": {}, "ratio": 1.0}]},
        {"milliseconds": 0.0},
        {"milliseconds": float("nan")},
    ],
)
def test_a_table_of_nothing_is_refused(wrong, tmp_path):
    path = tmp_path / "latency.json"
    model = {"milliseconds": 1.0, "networks": [], **wrong}
    held = {"format": 1, "runtime": "a", "cpu": "b", "threads": 1, "models": {"m": model}}
    path.write_text(json.dumps(held))
    with pytest.raises(StateError, match="not a latency table"):
        LatencyTable.read(path)


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clock")
    rules = [
        {"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.5, 0.75]}, "quant_bits": 8}
    ]
    space = Space(trained(), rules, digits()[0][:16])
    maker = Maker(space, batches(1), "none", {}, target_of("onnxruntime", "torch"))
    clock = Clock(maker, Counts(space), maker.write_original(folder, Journal(folder, {})), folder)
    with pytest.MonkeyPatch.context() as patch:  # what is measured does not matter here
        patch.setattr(timing, "_SECONDS", 0.02)
        clock.fill(2)
    return clock


def test_terms_add_up_to_the_estimate(clock):
    terms = clock.terms()
    for choice in ((0, 0, 0, *[0] * 5), (1, 2, 0, *[0] * 5), (2, 2, 2, *[0] * 5)):
        assert total(terms, choice) == pytest.approx(clock.times.estimate(clock.describe(choice)))


def test_terms_add_up_to_the_estimate_where_kinds_are_mixed(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "_SECONDS", 0.02)
    rules = [{"op_types": ["Conv2d", "Linear"], "quant_bits": {"choose": [4, 8, None]}}]
    space = Space(trained(), rules, digits()[0][:16])
    maker = Maker(space, batches(1), "none", {}, target_of("onnxruntime", "torch"))
    mixed = Clock(maker, Counts(space), clock.original, tmp_path)
    mixed.fill(4)
    assert mixed.following == {"stem": "inner", "inner": "outer", "outer": "down", "down": "head"}
    described = mixed.describe((0, 1, 2, 0, 0))
    assert [kind for _, kind in described.values()] == [
        *("float before int8", "int8", "int8 before float", "float", "float")
    ]
    terms = mixed.terms()
    assert {len(term.decisions) for term in terms} == {0, 1, 2}
    for choice in ((0, 0, 0, 0, 0), (0, 1, 2, 0, 0), (2, 0, 1, 0, 2), (1, 1, 1, 1, 1)):
        assert total(terms, choice) == pytest.approx(mixed.times.estimate(mixed.describe(choice)))


def test_every_layer_is_timed_inside_the_network(clock):
    for timed in clock.times.networks:
        assert set(timed.layers) == {"stem", "inner", "outer", "down", "head"}
        assert all(layer.share > 0 and layer.kind == "int8" for layer in timed.layers.values())
    assert clock.times.networks[1].layers["outer"].shape == [4, 4, 3, 3]  # the strongest choice


def test_the_original_is_timed_before_its_latency_is_asked_for(tmp_path, clock):
    fresh = Clock(clock.maker, clock.counts, clock.original, tmp_path)
    assert fresh.milliseconds > 0 and not fresh.times.networks
    again = Clock(clock.maker, clock.counts, clock.original, tmp_path)
    assert again.milliseconds == fresh.milliseconds  # from the table


def test_on_one_thread_other_processes_do_not_count(tmp_path, clock, monkeypatch):
    """CPU time is the latency of a quiet machine; of several threads it would be their sum."""
    given = []

    def noted(calls, runs, seconds, clock):
        given.append(clock)
        return [[2.0], [1.0]]

    monkeypatch.setattr(timing, "time_calls", noted)
    fresh = Clock(clock.maker, clock.counts, clock.original, tmp_path)
    for threads in (1, 2):
        monkeypatch.setattr(fresh.file, "threads", threads)
        assert fresh.compare(clock.original) == (0.5, 2.0)
    assert dict.fromkeys(given) == {time.thread_time: None, time.perf_counter: None}


def test_a_file_that_lies_badly_in_memory_once_does_not_count(tmp_path, clock, monkeypatch):
    """The speed of a file depends on where it was loaded to: it is opened several times."""
    times = iter([[[2.0], [1.0]], [[2.0], [1.2]], [[8.0], [1.0]]])
    monkeypatch.setattr(timing, "time_calls", lambda *args, **kwargs: next(times))
    fresh = Clock(clock.maker, clock.counts, clock.original, tmp_path)
    assert fresh.compare(clock.original) == (0.5, 2.0)


def test_netadapt_takes_a_latency_in_milliseconds(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "_SECONDS", 0.02)
    rules = [{"op_types": ["Conv2d"], "sparsity": {"choose": [0, 0.5]}}]
    search = Search(
        trained(),
        rules,
        budget={"latency": "10 s"},
        evaluate=accuracy,
        data=batches(1),
        example_inputs=digits()[0][:4],
        networks=2,
        trials=1,
        strategy="netadapt",
    )
    best = search.run_strategy(search.start(tmp_path))
    assert best.choice == (0, 0, 0)


def test_a_table_tells_networks_apart_that_differ_in_more_than_shapes(tmp_path):
    def written(name, stride):
        x = torch.randn(2, 4, 16, 16)
        model = torch.nn.Conv2d(4, 4, 3, stride, padding=1)
        return architecture_of(export_onnx(model, tmp_path / f"{name}.onnx", x).path)

    assert written("one", 1) == written("other weights", 1) != written("two", 4)


@pytest.mark.slow
def test_a_budget_of_latency_is_kept_as_measured(tmp_path):
    rules = [{"op_types": ["Conv2d", "Linear"], "sparsity": {"choose": [0, 0.25, 0.5, 0.75]}}]
    search = Search(
        trained(),
        rules,
        budget={"latency": 0.6},
        evaluate=accuracy,
        data=batches(),
        example_inputs=digits()[0][:64],
        networks=6,
        trials=2,
    )
    found = search.run(tmp_path)
    import onnxruntime

    from lilliput.measure.timing import time_calls

    x = digits()[0][:64].numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = [
        onnxruntime.InferenceSession(tmp_path / name, options)
        for name in ("original.onnx", found.path.name)
    ]
    calls = [lambda s=s: s.run(None, {s.get_inputs()[0].name: x}) for s in sessions]
    ratios = []
    for _ in range(3):
        before, after = (np.median(x) for x in time_calls(calls, 100, 4.0))
        ratios.append(after / before)
    if max(ratios) > 1.1 * min(ratios):
        pytest.skip(f"this machine is too busy to tell: the same files gave {np.round(ratios, 2)}")
    assert np.median(ratios) <= 0.6 * 1.1
