import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from lilliput.errors import AlgorithmError, ConfigError, StageError, StateError
from lilliput.frameworks.torch import lab as torch_lab
from lilliput.quantization import calibration
from lilliput.testing.observe import Anatomy
from lilliput.torch import PTQQuantizer, QATQuantizer, QuantType

OBSERVERS = ["minmax", "ema", "percentile", "mse", "kl"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)),
    )


def data(count=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 2, 8, 8, generator=generator) for _ in range(count)]


def quantized(observer="minmax", model=None, **settings):
    model = network() if model is None else model
    quantizer = QATQuantizer(model, [{"observer": observer, **settings}])
    quantizer.compress()
    return model, quantizer


def ranges(quantizer):
    """Return every scale and zero point that is in force, as exact numbers."""
    found = {}
    for wrapper in quantizer.get_modules_wrapper():
        for kind in (QuantType.INPUT, QuantType.OUTPUT):
            if kind.value in wrapper.roles:
                held = quantizer.qparams(wrapper, kind)
                found[wrapper.name, kind.value] = (float(held.scale), float(held.zero_point))
    return found


def known(quantizer):
    return [
        getattr(wrapper, f"{target}_is_known")
        for wrapper in quantizer.get_modules_wrapper()
        for target in ("input", "output")
        if target in wrapper.roles
    ]


# -- what is seen ----------------------------------------------------------------------------------


def test_ranges_are_those_of_the_float_network():
    reference, batches = network().eval(), data()
    model, quantizer = quantized()
    model.eval()
    quantizer.calibrate(batches)
    with torch.no_grad():
        seen = torch.cat([reference[:3](x) for x in batches])  # after norm and ReLU
    first, second, _ = quantizer.get_modules_wrapper()
    assert float(first.output_high) == float(seen.max()) and float(first.output_low) == 0
    assert float(quantizer.qparams(first, QuantType.OUTPUT).zero_point) == 0
    low, high = torch.cat(batches).aminmax()
    assert (first.input_low, first.input_high) == (low, high)
    assert ranges(quantizer)["3", "input"] == ranges(quantizer)["0", "output"], "one tensor"
    assert not second.input_is_known


@pytest.mark.parametrize("observer", OBSERVERS)
def test_calibration_trains_nothing_and_leaves_modes_as_they_were(observer):
    model, quantizer = quantized(observer)
    model.train()
    model[4].eval()
    before = {key: x.clone() for key, x in network().state_dict().items()}
    modes = [module.training for module in model.modules()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    quantizer.calibrate(data())
    assert [module.training for module in model.modules()] == modes
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in before.items())
    assert all(bool((p.grad == 1).all()) for p in model.parameters() if p.grad is not None)
    expected = network().eval()(data()[0])
    error = (model.eval()(data()[0]) - expected).norm() / expected.norm()
    assert 0 < float(error.detach()) < 0.2


def test_calibrating_again_forgets_the_first_time():
    _, quantizer = quantized()
    quantizer.calibrate([x * 100 for x in data()])
    quantizer.calibrate(data())
    _, fresh = quantized()
    fresh.calibrate(data())
    assert ranges(quantizer) == ranges(fresh)


def test_an_observer_for_each_target_and_rule():
    _, quantizer = quantized({"input": "mse", "output": "ema"})
    wrapper = quantizer.get_modules_wrapper()[0]
    assert [quantizer.observer_of(wrapper, t) for t in ("input", "output")] == ["mse", "ema"]
    assert PTQQuantizer.default_observer == "mse"


# -- what batches may look like --------------------------------------------------------------------


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, image, scale=1.0):
        return self.inner(image) * scale


def test_tuples_dicts_generators_and_an_own_forward():
    expected = None
    images = data()
    loaders = {
        "tensors": (images, None),
        "tuples": ([(x, torch.zeros(4)) for x in images], None),
        "lists": ([[x, torch.zeros(4)] for x in images], None),
        "dicts": ([{"image": x, "scale": 2.0} for x in images], None),
        "generator": ((x for x in images), None),
        "own": ([{"pixels": x} for x in images], lambda model, batch: model(batch["pixels"])),
    }
    for name, (loader, forward) in loaders.items():
        torch.manual_seed(0)
        _, quantizer = quantized(model=Named())
        quantizer.calibrate(loader, forward=forward)
        expected = expected or ranges(quantizer)
        assert ranges(quantizer) == expected, name


@pytest.mark.parametrize("make", [list, lambda: iter([]), lambda: (x for x in [])])
def test_no_batches_are_refused(make):
    _, quantizer = quantized()
    with pytest.raises(ConfigError, match="received no batches"):
        quantizer.calibrate(make())
    assert not any(known(quantizer))


def test_compress_comes_first():
    with pytest.raises(StageError, match="before compress"):
        QATQuantizer(network(), None).calibrate(data())


def test_a_range_that_nobody_knows_is_not_told():
    _, quantizer = quantized()
    with pytest.raises(StageError, match="range of input of layer '0' is not known yet"):
        quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT)


# -- what may go wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("when", [0, 3])
def test_a_batch_with_nan_is_named_and_changes_nothing(observer, bad, when):
    model, quantizer = quantized(observer)
    model.eval()
    batches = data()
    expected = model(batches[0]).detach()
    batches[when] = batches[when].clone()
    batches[when][1, 0, 2, 2] = bad
    with pytest.raises(AlgorithmError, match=rf"batch {when + 1}: the input of layer '0' holds"):
        quantizer.calibrate(batches)
    assert not any(known(quantizer)) and not any(w._markings for w in quantizer.get_wrappers())
    assert not bool((model(batches[1]) != model(batches[1])).any())
    plain = network().eval()(data()[0])
    assert float((expected - plain).detach().abs().max()) < 0.1, "weights only"
    quantizer.calibrate(data())
    assert all(known(quantizer)[i] for i in (0, 1))


def test_nan_from_inside_names_the_layer_where_it_starts():
    model, quantizer = quantized()
    with torch.no_grad():
        model[3]._parameters["weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(AlgorithmError, match="the output of layer '3' holds NaN"):
        quantizer.calibrate(data())


def test_ranges_from_before_survive_a_failure():
    _, quantizer = quantized()
    quantizer.calibrate(data())
    before = ranges(quantizer)
    with pytest.raises(AlgorithmError):
        quantizer.calibrate([*data(seed=7), torch.full((4, 2, 8, 8), float("nan"))])
    assert ranges(quantizer) == before


def test_an_error_in_the_model_leaves_a_working_quantizer():
    model, quantizer = quantized()
    with pytest.raises(RuntimeError):
        quantizer.calibrate([data()[0], torch.zeros(4, 3, 8, 8)])
    assert not any(w._markings for w in quantizer.get_wrappers()) and model.training
    quantizer.calibrate(data())


@pytest.mark.parametrize("observer", OBSERVERS)
def test_a_layer_that_no_batch_reaches_is_named(observer):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.usual, self.rare = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, is_rare=False):
            return self.rare(x) if is_rare else self.usual(x)

    _, quantizer = quantized(observer, Branches())
    with pytest.raises(
        AlgorithmError, match="no data was collected from the input of layer 'rare'"
    ):
        quantizer.calibrate([torch.randn(8, 4)])
    assert not any(known(quantizer))


# -- interruptions ---------------------------------------------------------------------------------


@pytest.fixture
def saves_always(monkeypatch):
    monkeypatch.setattr(calibration, "_SAVE_EVERY", -1.0)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_an_interrupted_calibration_goes_on_to_the_same_bits(observer, tmp_path, saves_always):
    _, whole = quantized(observer)
    whole.calibrate(data())
    path = tmp_path / "seen.json"

    def stops():
        yield from data()[:3]
        raise KeyboardInterrupt

    _, begun = quantized(observer)
    with pytest.raises(KeyboardInterrupt):
        begun.calibrate(stops(), checkpoint=path)
    assert not any(known(begun)) and json.loads(path.read_text())["batches"] == 3
    runs = []

    def forward(model, batch):
        runs.append(1)
        return model(batch)

    _, resumed = quantized(observer)
    resumed.calibrate(data(), forward, checkpoint=path)
    assert ranges(resumed) == ranges(whole)
    assert len(runs) == 2 + 1 + 3, "two batches, a look at how tensors flow, three for the samples"
    for (args, _), (others, _) in zip(resumed.sample_inputs, whole.sample_inputs, strict=True):
        assert torch.equal(args[0], others[0])
    _, again = quantized(observer)
    again.calibrate(data(), checkpoint=path)
    assert ranges(again) == ranges(whole)


def test_a_killed_process_goes_on_to_the_same_bits(tmp_path):
    path = tmp_path / "seen.json"
    script = f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_calibration import calibration, data, quantized
        calibration._SAVE_EVERY = -1.0
        def killed():
            yield from data()[:3]
            os.kill(os.getpid(), signal.SIGKILL)
        quantized("mse")[1].calibrate(killed(), checkpoint={str(path)!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr.decode()
    assert list(tmp_path.iterdir()) == [path] and json.loads(path.read_text())["batches"] == 3
    _, resumed = quantized("mse")
    resumed.calibrate(data(), checkpoint=path)
    _, whole = quantized("mse")
    whole.calibrate(data())
    assert ranges(resumed) == ranges(whole)


def test_nothing_is_written_twice_within_seconds(tmp_path, monkeypatch):
    writes = []
    monkeypatch.setattr(calibration, "write_atomically", lambda *args: writes.append(args))
    quantized()[1].calibrate(data(), checkpoint=tmp_path / "seen.json")
    assert writes == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "nonsense", '{"observers": {}}', '{"batches": 2, "observers": null}']
)
def test_a_file_that_is_no_checkpoint_is_refused(text, tmp_path):
    path = tmp_path / "seen.json"
    path.write_text(text)
    _, quantizer = quantized()
    with pytest.raises(StateError, match="seen.json"):
        quantizer.calibrate(data(), checkpoint=path)
    assert not any(known(quantizer)) and path.read_text() == text


def test_the_checkpoint_of_another_calibration_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "seen.json"
    monkeypatch.setattr(calibration, "_SAVE_EVERY", -1.0)

    def interrupted():
        yield from data()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantized("minmax")[1].calibrate(interrupted(), checkpoint=path)
    changed = network()
    with torch.no_grad():
        next(changed.parameters()).mul_(1.5)
    others = [("ema", network()), ("minmax", nn.Sequential(nn.Linear(4, 4))), ("minmax", changed)]
    for observer, model in others:
        _, quantizer = quantized(observer, model)
        with pytest.raises(StateError, match="started with different layers, weights or"):
            quantizer.calibrate(data(), checkpoint=path)
    _, quantizer = quantized("minmax")
    with pytest.raises(StateError, match="5 batches were processed before, but there are 2 now"):
        quantizer.calibrate(data(2), checkpoint=path)
    assert not any(known(quantizer))


# -- afterwards ------------------------------------------------------------------------------------


def test_ranges_travel_with_state_and_with_the_state_dict(tmp_path):
    model, quantizer = quantized("mse")
    model.eval()
    quantizer.calibrate(data())
    quantizer.state().save(tmp_path / "state")
    expected = model(data()[0]).detach()
    other, second = quantized("mse")
    second.load_state(tmp_path / "state")
    assert ranges(second) == ranges(quantizer)
    assert torch.equal(other.eval()(data()[0]), expected)
    third = QATQuantizer(network(), None, example_inputs=data()[0])
    third.compress().load_state_dict(model.state_dict())
    assert ranges(third) == ranges(quantizer)
    assert torch.equal(third.bound_model.eval()(data()[0]), expected)


def test_strip_undoes_calibration_and_its_places():
    model = network()
    anatomy = Anatomy(torch_lab, model)
    _, quantizer = quantized(model=model)
    quantizer.calibrate(data())
    assert list(model[2]._forward_hooks), "quantized after the ReLU"
    quantizer.strip()
    anatomy.expect_same("after calibrate() and strip()")
    quantizer.compress()
    assert len(model[2]._forward_hooks) == 1 and ranges(quantizer)


# -- faulty rules ----------------------------------------------------------------------------------

FAULTS = {
    "quant_bits": [0, 17, 33, -1, 4.5, "8", {"weight": 0}, {"bias": 8}],
    "quant_scheme": ["symetric", 1, {"weight": "both"}],
    "quant_dtype": ["whole", {"input": "float"}],
    "granularity": ["per_row", {"weight": "per_block"}],
    "observer": ["histogram", {"input": "minmx"}],
    "group_size": [0, -4, 2.5],
    "quant_start_step": [-1, 0.5],
    "quant_types": [["bias"], [], "gradient"],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in FAULTS.items() for value in values]
)
def test_a_faulty_setting_is_named_with_its_place(key, value):
    model = network()
    anatomy = Anatomy(torch_lab, model)
    with pytest.raises(ConfigError, match=f"rule 0 → {key}"):
        QATQuantizer(model, [{key: value}])
    anatomy.expect_same("after a refused rule")


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"granularity": "per_group"}, "'per_group' and 'group_size' belong together"),
        ({"group_size": 32}, "'per_group' and 'group_size' belong together"),
        ({"granularity": {"input": "per_channel"}}, "activations have one scale"),
        ({"quant_bits": 1}, "'quant_bits' of 'weight' is 1"),
        ({"quant_bits": 1, "quant_dtype": "uint"}, "'quant_bits' of 'weight' is 1"),
        (
            {"quant_bits": 1, "quant_types": ["input"], "quant_scheme": "symmetric"},
            "'quant_bits' of 'input' is 1",
        ),
        (
            {"quant_bits": 1, "quant_types": ["output"], "narrow_range": True},
            "'quant_bits' of 'output' is 1",
        ),
        ({"quant_bits": {"weight": 8}, "quant_types": ["input"]}, "no entry for \\['input'\\]"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(rule, text):
    with pytest.raises(ConfigError, match=f"rule 0: .*{text}"):
        QATQuantizer(network(), [rule])


def test_one_bit_activations_from_zero_on_are_fine():
    model, quantizer = quantized(quant_types=["input", "output"], quant_bits=1)
    quantizer.calibrate(data())
    output = model.eval()(data()[0])
    assert bool(output.isfinite().all())


def test_all_faults_are_told_at_once():
    rules = [
        {"op_types": ["conv2d"], "quant_bits": 33, "observer": "best"},
        {"op_names": ["6"], "quant_scheme": "round", "granularity": "per_pixel"},
        {"op_types": ["Linear"], "granularity": "per_group"},
    ]
    with pytest.raises(ConfigError) as caught:
        QATQuantizer(network(), rules)
    places = [str(problem).partition(":")[0] for problem in caught.value.problems]
    assert sorted(places) == sorted(
        [
            *("rule 0 → op_types", "rule 0 → quant_bits", "rule 0 → observer"),
            *("rule 1 → quant_scheme", "rule 1 → granularity", "rule 2"),
        ]
    )
    assert [place[:6] for place in places] == sorted(place[:6] for place in places)


@pytest.mark.parametrize("step", [True, 1.5, "3"])
def test_a_start_step_is_a_count(step):
    with pytest.raises(ConfigError, match="quant_start_step"):
        QATQuantizer(network(), None, quant_start_step=step)


def test_the_checkpoint_goes_when_all_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "_SAVE_EVERY", -1.0)
    quantized("minmax")[1].calibrate(data(), checkpoint=tmp_path / "seen.json")
    assert not list(tmp_path.iterdir())
