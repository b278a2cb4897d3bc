import contextlib
import errno
import json
import os
import pickle
import time
from multiprocessing import get_context

import pytest
import torch
from torch import nn

from lilliput import CompressionState, store
from lilliput.errors import StateError, WriteError
from lilliput.files import STALE_SECONDS
from lilliput.packing import NotPlainError, pack
from lilliput.torch import AGPPruner, LevelPruner, NaiveQuantizer, PTQQuantizer, QATQuantizer

RULES = [{"op_types": ["Linear"], "final_sparsity": 0.8, "end_epoch": 4}]


def make_pruner(seed=0, rules=RULES):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = AGPPruner(model, rules, optimizer)
    pruner.compress()
    return pruner


def train(pruner, epochs):
    data = torch.linspace(-1, 1, 18).reshape(3, 6)
    for epoch in epochs:
        pruner.update_epoch(epoch)
        pruner.optimizer.zero_grad()
        pruner.bound_model(data).square().sum().backward()
        pruner.optimizer.step()


def test_a_run_continues_from_its_saved_state_bit_for_bit(tmp_path):
    whole = make_pruner()
    train(whole, range(6))

    first = make_pruner()
    train(first, range(3))
    first.state().save(tmp_path)
    weights, momentum = first.bound_model.state_dict(), first.optimizer.state_dict()

    second = make_pruner(seed=1)
    second.bound_model.load_state_dict(weights)
    second.optimizer.load_state_dict(momentum)
    second.load_state(CompressionState.load(tmp_path))
    assert second.now_epoch == 2
    train(second, range(3, 6))
    expected = whole.bound_model.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in second.bound_model.state_dict().items())


@pytest.mark.parametrize("received", [None, 3, {}])
def test_what_is_not_a_state_is_refused(received):
    with pytest.raises(StateError, match=f"received {type(received).__name__}, expected a Comp"):
        make_pruner().load_state(received)


def test_a_state_can_be_loaded_before_compress(tmp_path):
    source = make_pruner()
    train(source, range(4))
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    target = AGPPruner(model, RULES)
    target.load_state(source.state())
    target.compress()
    for a, b in zip(source.get_modules_wrapper(), target.get_modules_wrapper(), strict=True):
        assert torch.equal(a.weight_mask, b.weight_mask)
        assert bool((b.weight[b.weight_mask == 0] == 0).all())


def test_the_folder_holds_safetensors_and_readable_json_only(tmp_path):
    make_pruner().state().save(tmp_path)
    document = json.loads((tmp_path / "lilliput.json").read_text())
    assert document["format"] == 1 and document["algorithm"] == "AGPPruner"
    assert document["layers"]["0"]["shape"] == [5, 6]
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}


def test_saving_again_replaces_and_leaves_no_litter(tmp_path):
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    train(pruner, range(4))
    pruner.state().save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert CompressionState.load(tmp_path).progress == {"now_epoch": 3}


def test_equal_states_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        pruner = make_pruner()
        train(pruner, range(3))
        pruner.state().save(tmp_path / name)
    files = [sorted((p.name, p.read_bytes()) for p in (tmp_path / x).iterdir()) for x in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize("interrupted_write", [0, 1])
def test_an_interrupted_save_leaves_the_old_state(tmp_path, monkeypatch, interrupted_write):
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    train(pruner, range(4))
    real, calls = store.write_atomically, []

    def interrupted(path, data):
        calls.append(path)
        if len(calls) > interrupted_write:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr(store, "write_atomically", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pruner.state().save(tmp_path)
    assert CompressionState.load(tmp_path).progress == {"now_epoch": 0}


def damage_json(folder):
    (folder / "lilliput.json").write_text("{")


def damage_tensors(folder):
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


def remove_tensors(folder):
    next(folder.glob("*.safetensors")).unlink()


def from_the_future(folder):
    path = folder / "lilliput.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))


def point_elsewhere(folder):
    path = folder / "lilliput.json"
    document = json.loads(path.read_text())
    document["tensors"]["file"] = "../../secret.safetensors"
    path.write_text(json.dumps(document))


def json_of_another_kind(folder):
    (folder / "lilliput.json").write_text("[1, 2]")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_json, "no readable compression state"),
        (damage_tensors, "checksum"),
        (remove_tensors, "no readable compression state"),
        (from_the_future, "upgrade Lilliput"),
        (point_elsewhere, "no readable compression state"),
        (json_of_another_kind, "no readable compression state"),
    ],
)
def test_a_damaged_state_is_refused(tmp_path, damage, words):
    folder = tmp_path / "state"
    make_pruner().state().save(folder)
    damage(folder)
    with pytest.raises(StateError, match=words):
        CompressionState.load(folder)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(StateError, match="no readable compression state"):
        CompressionState.load(tmp_path / "nowhere")


def test_a_state_of_another_model_or_algorithm_is_refused_and_changes_nothing():
    pruner = make_pruner()
    train(pruner, range(4))
    other = LevelPruner(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1)), [{"sparsity": 0.5}])
    masks = [w.weight_mask.clone() for w in other.get_modules_wrapper()]
    with pytest.raises(StateError) as caught:
        other.load_state(pruner.state())
    text = str(caught.value)
    assert "the state is of AGPPruner, this is a LevelPruner" in text
    assert "0: weight shape [5, 6], the model has [6, 6]" in text
    assert "1: not in the state" in text and "2: not in this model" in text
    assert all(
        torch.equal(w.weight_mask, m)
        for w, m in zip(other.get_modules_wrapper(), masks, strict=True)
    )


def test_algorithm_attributes_and_buffers_travel_with_the_state(tmp_path):
    def make():
        quantizer = NaiveQuantizer(nn.Linear(3, 3), [{"quant_bits": 4}])
        quantizer.set_wrappers_attribute("history", [])
        quantizer.set_wrappers_attribute("range", torch.zeros(2))
        quantizer.compress()
        return quantizer

    source = make()
    source.get_modules_wrapper()[0].history.append(3.5)
    source.get_modules_wrapper()[0].range += 2
    source.state().save(tmp_path)
    target = make()
    target.load_state(CompressionState.load(tmp_path))
    assert target.get_modules_wrapper()[0].history == [3.5]
    assert torch.equal(target.get_modules_wrapper()[0].range, torch.full((2,), 2.0))


def test_lists_tuples_dicts_and_tensors_of_an_algorithm_come_back_as_they_were(tmp_path):
    value = {"seen": [torch.ones(2), torch.zeros(1, 3)], "range": (1, 2.5), "odd": {"a/b::c": None}}
    source, target = make_inventive()[0], make_inventive()[0]
    source.get_modules_wrapper()[0].history = value
    source.get_modules_wrapper()[0]._scratch = object()
    source.state().save(tmp_path)
    target.load_state(CompressionState.load(tmp_path))
    back = target.get_modules_wrapper()[0].history
    assert [torch.equal(a, b) for a, b in zip(back["seen"], value["seen"], strict=True)] == [
        True
    ] * 2
    assert back["range"] == (1, 2.5) and back["odd"] == {"a/b::c": None}


class Inventive(LevelPruner):
    """May set attributes at any time, as authors do."""


def make_inventive(memo=None):
    pruner = Inventive(nn.Linear(2, 2), [{"sparsity": 0.5}])
    pruner.compress()
    (wrapper,) = pruner.get_modules_wrapper()
    wrapper.memo = memo
    return pruner, wrapper


def test_states_write_values_as_checkpoints_of_runs_do(tmp_path):
    tensor = torch.ones(2)
    held = {"a": [1, (2.5, None)], 7: {"b": tensor, "again": tensor}, "c": float("inf")}
    source, wrapper = make_inventive(held)
    state, tensors = source.state(), {}
    assert state.layers[wrapper.name]["values"]["memo"] == pack(
        held, "memo/", tensors, torch.is_tensor
    )
    assert tensors.keys() <= state.tensors[wrapper.name].keys()
    state.save(tmp_path)
    target, wrapper = make_inventive({})
    target.load_state(CompressionState.load(tmp_path))
    assert wrapper.memo["a"] == held["a"] and wrapper.memo["c"] == held["c"]
    assert all(torch.equal(wrapper.memo[7][key], tensor) for key in held[7])


def test_a_number_that_is_infinite_fits_one_that_is_not():
    source, target = make_inventive(float("inf"))[0], make_inventive(0.5)
    target[0].load_state(source.state())
    assert target[1].memo == float("inf")


def test_a_state_in_which_dicts_are_json_objects_is_read():
    """As states were written at first."""
    pruner, wrapper = make_inventive({})
    state = pruner.state()
    state.layers[wrapper.name]["values"]["memo"] = {"dict": {"a": {"tuple": [1, 2]}}}
    pruner.load_state(state)
    assert wrapper.memo == {"a": (1, 2)}


def test_an_attribute_that_cannot_be_saved_is_refused_by_layer_and_name():
    pruner = make_pruner()
    pruner.get_modules_wrapper()[1].helper = object()
    with pytest.raises(StateError, match="layer '2': the attribute 'helper' holds a object"):
        pruner.state()


def test_a_buffer_of_another_shape_is_refused_instead_of_broadcast():
    source, target = make_pruner(), make_pruner()
    source.set_wrappers_attribute("range", torch.zeros(1))
    target.set_wrappers_attribute("range", torch.zeros(4))
    with pytest.raises(StateError, match=r"0 → range: shape \[1\], expected \[4\]"):
        target.load_state(source.state())


@pytest.mark.parametrize("name", ["a::b", "layer/with/slash", "ünïcode", "x.y"])
def test_layer_names_of_any_kind_survive(tmp_path, name):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self._modules[name] = nn.Linear(2, 2)

    def make():
        pruner = LevelPruner(Odd(), [{"op_types": ["Linear"], "sparsity": 0.5}])
        pruner.compress()
        return pruner

    source, target = make(), make()
    source.state().save(tmp_path)
    target.load_state(CompressionState.load(tmp_path))
    a, b = source.get_modules_wrapper()[0], target.get_modules_wrapper()[0]
    assert torch.equal(a.weight_mask, b.weight_mask)


def test_a_state_of_another_rule_is_refused():
    source = make_pruner()
    target = make_pruner(rules=[{"op_types": ["Linear"], "final_sparsity": 0.5, "end_epoch": 4}])
    with pytest.raises(StateError, match=r"made by .*0\.8.*this rule is .*0\.5"):
        target.load_state(source.state())


def test_a_folder_can_be_loaded_directly(tmp_path):
    source, target = make_pruner(), make_pruner()
    train(source, range(3))
    source.state().save(tmp_path)
    target.load_state(tmp_path)
    assert target.now_epoch == 2


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    mine = tmp_path / "state-epoch3.safetensors"
    mine.write_bytes(b"mine")
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    train(pruner, range(3))
    pruner.state().save(tmp_path)
    assert mine.read_bytes() == b"mine" and len(list(tmp_path.iterdir())) == 3


def test_two_algorithms_do_not_share_a_folder(tmp_path):
    make_pruner().state().save(tmp_path)
    quantizer = NaiveQuantizer(nn.Linear(2, 2), [{}])
    quantizer.compress()
    with pytest.raises(StateError, match="contains the state of AGPPruner; choose another folder"):
        quantizer.state().save(tmp_path)


JUNK = [None, True, -1, 3.5, "x", [], {}, [1], {"a": 1}, {"tensor": "x"}, float("nan")]


@pytest.mark.parametrize("junk", JUNK, ids=str)
def test_json_with_junk_anywhere_is_refused_or_harmless(tmp_path, junk):
    source = make_pruner()
    source.state().save(tmp_path)
    path = tmp_path / "lilliput.json"
    document = json.loads(path.read_text())
    layer = document["layers"]["0"]
    for holder in (
        document,
        document["layers"],
        layer,
        layer["config"],
        layer["values"],
        document["progress"],
        document["tensors"],
    ):
        for key in [*holder, "__class__", "config", "_buffers"]:
            kept = holder.get(key, holder)
            holder[key] = junk
            path.write_text(json.dumps(document))
            target = make_pruner()
            with contextlib.suppress(StateError):
                target.load_state(tmp_path)
            assert [type(w).__name__ for w in target.get_modules_wrapper()] == [
                "PrunerModuleWrapper"
            ] * 2
            assert isinstance(target.get_modules_wrapper()[0].config, dict)
            if kept is holder:
                del holder[key]
            else:
                holder[key] = kept


@pytest.mark.parametrize("fault", ["fraction", "missing"])
def test_masks_that_are_none_are_refused(fault):
    source, target = make_pruner(), make_pruner()
    state = source.state()
    if fault == "fraction":
        state.tensors["0"]["weight_mask"].fill_(0.5)
    else:
        del state.tensors["0"]["weight_mask"]
    with pytest.raises(StateError, match="0 → weight_mask: (received values other|missing)"):
        target.load_state(state)


def everything(compressor):
    """Return all that load_state() could change, as comparable values."""
    state, model = compressor.state(), compressor.bound_model
    tensors = {f"{a}/{b}": t for a, held in state.tensors.items() for b, t in held.items()}
    tensors |= model.state_dict()
    plain = [repr(state.layers), repr(state.progress), sorted(tensors)]
    plain += [len(m._forward_hooks) for m in model.modules()]
    return plain, [tensors[key].clone() for key in sorted(tensors)]


def assert_refused(compressor, state, words):
    before = everything(compressor)
    with pytest.raises(StateError, match=words):
        compressor.load_state(state)
    after = everything(compressor)
    assert before[0] == after[0]
    assert all(map(torch.equal, before[1], after[1]))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(16), r"0 → bias_mask: shape \[16\], the bias has \[5\]"),
        (torch.ones(1), r"0 → bias_mask: shape \[1\], the bias has \[5\]"),
        (torch.full((5,), 0.5), "0 → bias_mask: received values other than 0 and 1"),
    ],
)
def test_a_bias_mask_that_does_not_fit_is_refused_and_changes_nothing(mask, words):
    source, target = make_pruner(), make_pruner()
    train(source, range(4))
    state = source.state()
    state.tensors["0"]["bias_mask"] = mask
    assert_refused(target, state, words)
    target.bound_model(torch.zeros(1, 6))


def test_a_bias_mask_for_a_layer_without_bias_is_refused():
    def make():
        pruner = LevelPruner(nn.Sequential(nn.Linear(3, 3, bias=False)), [{"sparsity": 0.5}])
        pruner.compress()
        return pruner

    state = make().state()
    state.tensors["0"]["bias_mask"] = torch.ones(3)
    assert_refused(make(), state, "the layer has no bias")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.progress.update(now_epoch=-5), "progress → now_epoch: received -5"),
        (lambda s: s.progress.update(now_epoch=10**300), "progress → now_epoch: received 1000"),
        (lambda s: s.progress.update(now_epoch=True), "progress → now_epoch: received True"),
        (lambda s: s.progress.update(evil=1), "progress → evil: unknown here"),
        (
            lambda s: s.layers["0"]["values"].update(updated_epoch="x"),
            "received 'x', expected a int",
        ),
        (
            lambda s: s.layers["0"]["values"].update(updated_epoch=-2),
            "expected an integer from -1",
        ),
        (lambda s: s.layers["0"]["values"].update(updated_epoch=True), "expected a int"),
        (lambda s: s.layers["0"]["values"].update(evil=1), "0 → evil: unknown here"),
        (lambda s: s.tensors["0"].update(evil=torch.ones(2)), "0 → evil: unknown here"),
        (lambda s: s.tensors.update(nowhere={"x": torch.ones(2)}), "nowhere: tensors of a layer"),
    ],
)
def test_a_state_with_something_impossible_or_unknown_is_refused(change, words):
    source, target = make_pruner(), make_pruner()
    train(source, range(4))
    state = source.state()
    change(state)
    assert_refused(target, state, words)


def make_quantizer(kind=PTQQuantizer):
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)]
    quantizer = kind(nn.Sequential(*layers), [{}], example_inputs=torch.randn(2, 2, 4, 4))
    quantizer.compress()
    quantizer.calibrate([torch.randn(2, 2, 4, 4)])
    return quantizer


@pytest.mark.parametrize("kind", [PTQQuantizer, QATQuantizer])
@pytest.mark.parametrize(
    "change",
    [
        {"places": {"dict": {"input": {"dict": {"module": "nowhere", "by": None}}}}},
        {"places": {"dict": {"input": {"dict": {"module": 3, "by": None}}}}},
        {"places": {"dict": {"input": 7}}},
        {"places": {"dict": {"weight": {"dict": {"module": "1", "by": None}}}}},
        {"places": {"dict": {"input": {"dict": {"module": "", "by": {"tuple": ["9", "input"]}}}}}},
        {"places": {"dict": {"input": {"dict": {"module": "", "by": {"tuple": ["0", "x"]}}}}}},
        {"norm": "nowhere"},
        {"norm": "4"},
        {"is_on": 1},
        {"input_is_known": None},
    ],
    ids=str,
)
def test_what_the_checks_cannot_see_is_rolled_back(kind, change):
    quantizer = make_quantizer(kind)
    state = quantizer.state()
    state.layers["0"]["values"].update(change)
    batch = torch.randn(2, 2, 4, 4)
    quantizer.bound_model.eval()
    before = quantizer.bound_model(batch)
    assert_refused(quantizer, state, "does not fit|is not quantized here")
    assert torch.equal(quantizer.bound_model(batch), before)


def test_a_quantizer_takes_a_state_before_compress_as_well():
    source = make_quantizer()
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)]
    target = PTQQuantizer(nn.Sequential(*layers), [{}])
    target.load_state(source.state())
    target.compress()
    for one, two in zip(source.get_modules_wrapper(), target.get_modules_wrapper(), strict=True):
        assert all(torch.equal(t, two.tensors()[k]) for k, t in one.tensors().items())
        assert one.places == two.places and two.input_is_known == one.input_is_known


def test_a_file_name_that_is_not_ours_is_refused_and_never_deleted(tmp_path):
    mine = tmp_path / "weights.pt"
    mine.write_bytes(b"mine")
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    path = tmp_path / "lilliput.json"
    document = json.loads(path.read_text())
    document["tensors"]["file"] = "weights.pt"
    path.write_text(json.dumps(document))
    for use in (pruner.state().save, pruner.load_state):
        with pytest.raises(StateError, match="no readable compression state"):
            use(tmp_path)
    assert mine.read_bytes() == b"mine"


def test_saving_to_the_path_of_a_file_is_refused(tmp_path):
    (tmp_path / "taken").write_bytes(b"mine")
    with pytest.raises(WriteError, match="is a file; expected the name of a folder"):
        make_pruner().state().save(tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"mine"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_cannot_be_written_keeps_the_old_state(tmp_path, monkeypatch, code):
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    train(pruner, range(4))

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(WriteError, match=os.strerror(code)):
        pruner.state().save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert CompressionState.load(tmp_path).progress == {"now_epoch": 0}


def test_tensors_that_a_killed_save_left_are_removed_by_a_later_one(tmp_path):
    pruner = make_pruner()
    pruner.state().save(tmp_path)
    old, young = (tmp_path / f"state-{x * 16}.safetensors" for x in "ab")
    for path in (old, young):
        path.write_bytes(b"left by a killed save")
    ancient = time.time() - 2 * STALE_SECONDS
    os.utime(old, (ancient, ancient))
    train(pruner, range(4))
    pruner.state().save(tmp_path)
    assert not old.exists()
    assert young.exists()  # another process may be about to name it


def save_often(folder, seed):
    pruner = make_pruner(seed)
    for epoch in range(8):
        train(pruner, [epoch])
        pruner.state().save(folder)


def test_processes_that_save_to_one_folder_leave_one_whole_state(tmp_path):
    context = get_context("fork" if os.name == "posix" else "spawn")
    savers = [context.Process(target=save_often, args=(tmp_path, seed)) for seed in (1, 2)]
    make_pruner().state().save(tmp_path)
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        make_pruner().load_state(tmp_path)
    for saver in savers:
        saver.join()
        assert saver.exitcode == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_the_error_of_a_value_that_cannot_be_packed_passes_between_processes():
    with pytest.raises(NotPlainError) as raised:
        pack({1, 2}, "held", {}, lambda x: False)
    received = pickle.loads(pickle.dumps(raised.value))
    assert (str(received), received.what) == (str(raised.value), "a set")
