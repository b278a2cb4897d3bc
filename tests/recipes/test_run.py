"""Recipes from end to end: what they write, and how they go on."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stopped_runs import Stopped, stop_after

pytest.importorskip("torch")

import torch

from lilliput.errors import ConfigError, ExportError, StateError
from lilliput.recipes import load_recipe, load_run, run
from lilliput.recipes.checkpoint import read_run
from lilliput.recipes.opening import make_model

HERE = Path(__file__).parent
SMALL = HERE / "project" / "small.yaml"


def test_a_recipe_runs_to_receipt_report_and_files(small):
    result, events = small
    names = {path.name for path in result.files}
    assert names == {
        "small.onnx",
        "model.safetensors",
        "receipt.json",
        "report.html",
        "report.json",
    }
    assert all(path.is_file() for path in result.files)
    assert result.receipt.metric_name == "accuracy"
    assert result.receipt.after.name == "small.onnx"
    assert result.receipt.after.parameters < result.receipt.before.parameters
    assert result.receipt.after.runtime.startswith("ONNX Runtime")
    assert result.receipt.after.metric > 0.5 > result.receipt.before.metric
    assert [event.number for event in events] == sorted(event.number for event in events)
    assert events[-1].number == events[-1].total
    page = json.loads((result.folder / "report.json").read_text())
    assert [point["name"] for point in page["points"]][-1] == "small.onnx"
    assert page["sensitivity"] and page["layers"] and "prune: agp" in page["recipe"]


def test_a_finished_run_is_not_run_again(small):
    result, _ = small
    before = (result.folder / "run.json").stat().st_mtime_ns
    again = run(SMALL, result.folder, resume=True, progress=pytest.fail)
    assert again.receipt.to_dict() == result.receipt.to_dict()
    assert (result.folder / "run.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_run_stopped_again_and_again_ends_with_the_same_files(small, tmp_path, digest):
    result, events = small
    texts = {event.number: event.text for event in events if event.number < event.total}
    for number in [n for n, text in texts.items() if not text.endswith(": measure")][::2]:
        with pytest.raises(Stopped):
            run(SMALL, tmp_path / "run", resume=True, progress=stop_after(number))
        assert read_run(tmp_path / "run").done == number
    run(SMALL, tmp_path / "run", resume=True, progress=False)
    assert digest(tmp_path / "run") == digest(result.folder)


def test_a_folder_with_a_run_or_with_other_files_is_refused(small, tmp_path):
    result, _ = small
    with pytest.raises(StateError, match=r"already contains a run; continue it with --resume"):
        run(SMALL, result.folder, progress=False)
    (tmp_path / "notes.txt").write_text("mine")
    for resume in (False, True):
        with pytest.raises(StateError, match="contains other files; choose a new"):
            run(SMALL, tmp_path, resume=resume, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A project of its own, with a run that was stopped in its second step."""
    folder = tmp_path_factory.mktemp("begun")
    source = (HERE / "project" / "recipe_toy.py").read_text()
    (folder / "recipe_begun.py").write_text(source)
    text = SMALL.read_text().replace("recipe_toy", "recipe_begun")
    (folder / "recipe.yaml").write_text(text)
    with pytest.raises(Stopped):
        run(folder / "recipe.yaml", folder / "run", progress=stop_after(3))
    return folder


def test_a_changed_recipe_is_refused_with_the_change(begun, tmp_path):
    text = (begun / "recipe.yaml").read_text()
    changed = begun / "changed.yaml"
    changed.write_text(text.replace("seed: 5", "seed: 6").replace("0.5}", "0.6}"))
    with pytest.raises(StateError) as error:
        run(changed, begun / "run", resume=True, progress=False)
    assert "the recipe changed: seed was 5, is 6" in str(error.value)
    assert "step 3 → config → 0 → final_sparsity was 0.5, is 0.6" in str(error.value)
    assert "another folder" in str(error.value)


def test_comments_and_order_of_keys_do_not_count_as_a_change(begun):
    text = (begun / "recipe.yaml").read_text()
    changed = begun / "comments.yaml"
    lines = text.replace("# masks whole channels", "# other words").splitlines()
    changed.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]))
    assert load_recipe(changed).seed == 5
    with pytest.raises(Stopped):
        run(changed, begun / "run", resume=True, progress=stop_after(4))


def test_a_changed_model_or_changed_data_is_refused(begun, monkeypatch):
    import recipe_begun

    original = recipe_begun.build
    wider = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    monkeypatch.setattr(recipe_begun, "build", lambda: wider)
    with pytest.raises(StateError, match=r"the model changed: .* is gone"):
        run(begun / "recipe.yaml", begun / "run", resume=True, progress=False)

    def other_weights():
        model = original()
        with torch.no_grad():
            model[0].weight[0, 0, 0, 0] += 1e-7
        return model

    monkeypatch.setattr(recipe_begun, "build", other_weights)
    with pytest.raises(StateError, match="the model changed: same layers, different weights"):
        run(begun / "recipe.yaml", begun / "run", resume=True, progress=False)
    monkeypatch.setattr(recipe_begun, "build", original)
    batches = recipe_begun.batches
    monkeypatch.setattr(recipe_begun, "batches", lambda: list(batches())[:3])
    with pytest.raises(StateError, match="the data changed: 4 batches, now 3"):
        run(begun / "recipe.yaml", begun / "run", resume=True, progress=False)


def test_another_version_is_refused(begun):
    copy = begun / "other_version"
    shutil.copytree(begun / "run", copy)
    held = json.loads((copy / "run.json").read_text())
    held["made_from"]["versions"]["torch"] = "1.0"
    (copy / "run.json").write_text(json.dumps(held))
    with pytest.raises(StateError, match=r"torch was 1\.0, is .* round differently"):
        run(begun / "recipe.yaml", copy, resume=True, progress=False)


def test_a_damaged_checkpoint_is_refused(begun):
    copy = begun / "damaged"
    shutil.copytree(begun / "run", copy)
    (state,) = copy.glob("state-*.safetensors")
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with pytest.raises(StateError, match="damaged"):
        run(begun / "recipe.yaml", copy, resume=True, progress=False)
    (copy / "run.json").write_text('{"format": 2}')
    with pytest.raises(StateError, match="upgrade Lilliput"):
        run(begun / "recipe.yaml", copy, resume=True, progress=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_two_processes_do_not_run_in_one_folder(begun):
    import fcntl

    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    lock = begun / "run" / ".lock"
    command = [sys.executable, "-c", code, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(StateError, match="another process is running in this folder"):
            run(begun / "recipe.yaml", begun / "run", resume=True, progress=False)
        other.kill()
    with lock.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again


def test_what_does_not_fit_the_model_is_said_before_anything_runs(tmp_path):
    steps = [
        {"prune": "l1", "config": [{"op_types": ["Conv3d"], "sparsity": 0.5}]},
        {"quantize": "ptq", "config": [{"op_names": ["conv1"]}]},
    ]
    recipe = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({**recipe, "steps": steps}))
    (tmp_path / "recipe_toy.py").write_text((HERE / "project" / "recipe_toy.py").read_text())
    with pytest.raises(ConfigError) as error:
        run(file, tmp_path / "run", progress=False)
    assert "step 1 → rule 0" in str(error.value) and "step 2 → rule 0" in str(error.value)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.slow
def test_runs_are_chained_by_their_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    pruned = load_recipe(
        _written(tmp_path / "prune.json", head, [{"prune": "l1", "config": rules}])
    )
    first = run(pruned, tmp_path / "pruned", progress=False)
    assert first.receipt.masked_only
    held = load_run(tmp_path / "pruned")
    assert [type(x).__name__ for x in held.compressors] == ["L1NormPruner"]
    assert int((held.model[0].weight == 0).sum()) == 4 * 9

    second = {"lilliput": 1, "model": "pruned"}
    file = _written(tmp_path / "speedup.json", second, [{"speedup": {}}])
    run(file, tmp_path / "fast", progress=False)
    assert load_run(tmp_path / "fast").model[0].out_channels == 4

    third = {"lilliput": 1, "model": "fast", "data": "recipe_toy:batches"}
    quantize = {"quantize": "ptq", "config": [{"op_types": ["Conv2d"]}], "batches": 2}
    file = _written(tmp_path / "quantize.json", third, [quantize])
    with pytest.raises(Stopped):
        run(file, tmp_path / "integers", progress=stop_after(3))
    run(file, tmp_path / "integers", resume=True, progress=False)
    final = load_run(tmp_path / "integers")
    x = final.inputs
    assert final.model[0].out_channels == 4 and len(final.compressors) == 1
    quantized = final.model.eval()(x)
    assert not torch.equal(quantized, load_run(tmp_path / "fast").model.eval()(x))


def test_a_run_from_another_run_is_timed_in_one_runtime(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    head = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    run(
        _written(tmp_path / "a.json", head, [{"prune": "l1", "config": rules}]), "a", progress=False
    )
    second = _written(tmp_path / "b.json", {**head, "model": "a"}, [EXPORT])
    receipt = run(second, tmp_path / "b", progress=False).receipt
    assert receipt.before.runtime == receipt.after.runtime and receipt.before.p50
    # Nothing is done to the model but to write it: the same file, counted and weighed alike.
    for name in ("parameters", "nonzeros", "macs"):
        assert getattr(receipt.before, name) == getattr(receipt.after, name)
    assert receipt.before.bytes == pytest.approx(receipt.after.bytes, rel=0.01)
    assert len(receipt.before.readings) == len(receipt.after.readings) >= 2


def test_a_model_that_takes_long_to_make_is_not_timed_at_another_time(tmp_path, monkeypatch):
    from lilliput.recipes import finish

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finish, "_QUICK", -1.0)
    head = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    file = _written(tmp_path / "a.json", head, [{"prune": "l1", "config": rules}])
    receipt = run(file, tmp_path / "a", progress=False).receipt
    assert receipt.before.p50 is None and "not timed together" in receipt.notes[-1]
    assert "faster" not in receipt.verdict.partition("yet")[2]


@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "refused"])
def test_bytes_of_a_file_are_not_compared_with_those_of_a_model(tmp_path, monkeypatch, is_slow):
    from lilliput.recipes import finish

    def refuse(*args):
        raise ExportError("no such operator.")

    monkeypatch.chdir(tmp_path)
    if is_slow:
        monkeypatch.setattr(finish, "_QUICK", -1.0)
    else:
        monkeypatch.setattr(finish, "export", refuse)
    head = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    receipt = run(
        _written(tmp_path / "a.json", head, [EXPORT]), tmp_path / "a", progress=False
    ).receipt
    assert receipt.before.bytes is None and receipt.after.bytes
    assert "on disk" not in receipt.verdict and receipt.before.parameters
    said = "not timed together" if is_slow else "no such operator"
    assert any(said in note and "bytes" in note for note in receipt.notes)


EXPORT = {"export": "onnx", "file": "small.onnx"}


def _written(file, head, steps):
    source = HERE / "project" / "recipe_toy.py"
    (file.parent / "recipe_toy.py").write_text(source.read_text())
    file.write_text(json.dumps({**head, "steps": steps}))
    return file


def test_scales_that_are_learned_are_part_of_the_checkpoint(tmp_path, digest):
    head = {"lilliput": 1, "model": "recipe_toy:build", "data": "recipe_toy:batches"}
    head |= {"loss": "cross_entropy", "optimizer": "recipe_toy:make_optimizer"}
    rules = [{"op_types": ["Conv2d", "Linear"]}]
    file = _written(
        tmp_path / "lsq.json", head, [{"quantize": "lsq", "config": rules, "epochs": 2}]
    )
    with pytest.raises(Stopped):
        run(file, tmp_path / "whole", progress=stop_after(4))
    for number in (3, 4):
        with pytest.raises(Stopped):
            run(file, tmp_path / "parts", resume=number > 3, progress=stop_after(number))
    assert digest(tmp_path / "parts") == digest(tmp_path / "whole")


@pytest.mark.parametrize("how", ["reconstruct", "match", "recalibrate"])
def test_a_pruned_model_is_recovered_without_training(how, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE / "project")
    import recipe_tiny

    def agreement(*steps):
        recipe = {
            **{"lilliput": 1, "model": "recipe_tiny:build", "data": "recipe_tiny:batches"},
            "steps": [{"prune": "l1", "config": [{"op_names": ["0"], "sparsity": 0.5}]}, *steps],
        }
        folder = tmp_path / str(len(steps))
        run(recipe, folder)
        model = load_run(folder).model.eval()
        original = make_model(recipe_tiny.build, 0).eval()
        inputs, _ = recipe_tiny.data()
        with torch.no_grad():
            return -float((model(inputs) - original(inputs)).square().mean())

    steps = {"recover": how, "batches": 8}, {"speedup": {}}
    gain = agreement(*steps) - agreement(steps[1])
    if (
        how == "match"
    ):  # the only norm comes right behind the pruned layer: its statistics are right
        assert abs(gain) < 1e-6
    else:
        assert gain > 0 or how == "recalibrate"
    log = json.loads((tmp_path / "2" / "report.json").read_text())
    assert f"recover ({how})" in json.dumps(log)


def test_a_reconstruction_needs_the_original_to_belong_to_the_model():
    steps = [
        {"prune": "l1", "config": [{"sparsity": 0.5}], "epochs": 1},
        {"recover": "match"},
        {"speedup": {}},
        {"recover": "reconstruct"},
    ]
    recipe = {"lilliput": 1, "model": "recipe_tiny:build", "data": "recipe_tiny:batches"}
    with pytest.raises(ConfigError) as caught:
        load_recipe({**recipe, "loss": "cross_entropy", "steps": steps})
    assert "step 2 → recover: comes after training" in str(caught.value)
    assert "step 4 → recover: comes after speedup" in str(caught.value)


def test_a_recipe_writes_a_compact_file_if_asked(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE / "project")
    recipe = {
        "lilliput": 1,
        "model": "recipe_toy:build",
        "data": "recipe_toy:batches",
        "compact": True,
        "steps": [{"prune": "level", "config": [{"sparsity": 0.9}]}, {"quantize": "codebook"}],
    }
    result = run(recipe, tmp_path / "run", progress=False)
    small, plain = (result.folder / name for name in ("model.lil", "model.safetensors"))
    assert small in result.files
    assert result.receipt.after.coded == small.stat().st_size < plain.stat().st_size / 4
    from safetensors.torch import load_file

    from lilliput.compact.saving import read_weights

    expected = load_file(plain)
    found = read_weights(small).tensors
    assert found.keys() == expected.keys()
    assert all((found[k].array() == v.numpy()).all() for k, v in expected.items())
    assert "file, entropy coded" in str(result.receipt)


def test_a_compact_file_that_cannot_hold_the_model_is_a_note(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE / "project")
    recipe = {
        "lilliput": 1,
        "model": "recipe_toy:build",
        "data": "recipe_toy:batches",
        "compact": True,
        "steps": [{"quantize": "qat", "batches": 1}],
    }
    result = run(recipe, tmp_path / "run", progress=False)
    assert not (result.folder / "model.lil").exists()
    assert any("no compact file: layer" in note for note in result.receipt.notes)
