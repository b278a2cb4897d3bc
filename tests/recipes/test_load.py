"""Reading recipes: every fault at once, with its line and the fix."""

import json
from pathlib import Path

import pytest

from lilliput.errors import ConfigError
from lilliput.recipes.load import load_recipe

SMALL = Path(__file__).parent / "project" / "small.yaml"
HEAD = {"lilliput": 1, "model": "a:b", "data": "a:c"}


def faults(value):
    with pytest.raises(ConfigError) as error:
        load_recipe(value)
    return [str(problem) for problem in error.value.problems]


def faults_of_steps(*steps):
    return faults({**HEAD, "steps": list(steps)})


def test_a_recipe_is_read_with_its_folder_and_its_text():
    recipe = load_recipe(SMALL)
    assert [step.verb for step in recipe.steps][:3] == ["finetune", "analyze", "prune"]
    assert recipe.folder == SMALL.parent and "# masks whole channels" in recipe.text
    assert load_recipe(recipe) is recipe


def test_all_faults_come_at_once_with_their_lines(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "lilliput: 1\n"
        "model: digits.build\n"
        "data: digits:batches\n"
        "los: mse\n"
        "steps:\n"
        "  - prune: agpp\n"
        "  - prune: agp\n"
        "    config:\n"
        "      - {op_types: [Linear], final_sparsity: 0.5}\n"
        "      - op_type: [Linear]\n"
        "        final_sparsity: 50\n"
        "    epoch: 3\n"
        "  - quantise: qat\n"
        "  - export: onnx\n"
        "    file: ../small.onnx\n"
    )
    found = faults(file)
    starts = [
        "line 2, model: received 'digits.build', expected module:factory, or the folder",
        "line 4, los: unknown key. Did you mean 'loss'?",
        "line 6, step 1 → prune: no pruner is called 'agpp'. Did you mean 'agp'?",
        "line 10, step 2 → config → rule 1 → op_type: unknown key. Did you mean 'op_types'?",
        "line 11, step 2 → config → rule 1 → final_sparsity: expected a fraction in [0, 1).",
        "line 12, step 2 → epoch: unknown key. Did you mean 'epochs'?",
        "line 13, step 3: has no verb; expected one of prune, factorize, recover, speedup",
        "line 15, step 4 → file: expected the name of a file",
    ]
    assert len(found) == len(starts)
    for text, start in zip(found, starts, strict=True):
        assert text.startswith(start)


def test_lines_are_found_in_json_as_well(tmp_path):
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({**HEAD, "steps": [{"speedup": {"extend": True}}]}, indent=1))
    assert faults(file) == [
        "line 8, step 1 → speedup → extend: unknown key. Did you mean 'extend_masks'? Known: "
        "extend_masks, allow_graph."
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty, expected a recipe"),
        ("- a\n", "expected keys such as lilliput, model, data and steps"),
        ("lilliput: 1\nmodel: [\n", "line 3"),
        ("lilliput: !!python/name:os.system\n", "is not allowed"),
        ("a: 1\na: 2\n", "duplicate key"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="recipe.yaml") as error:
        load_recipe(file)
    assert message in str(error.value)


def test_a_missing_file_says_which_is_near(tmp_path):
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(ConfigError, match="Did you mean 'recipe.yaml'"):
        load_recipe(tmp_path / "recipee.yaml")


def test_what_is_missing_is_said():
    found = faults({"lilliput": 1})
    assert [text.partition(":")[0] for text in found] == ["model", "steps"]
    assert faults({**HEAD, "lilliput": 2, "steps": [{"speedup": {}}]})[0].startswith("lilliput")


def test_the_other_language_version_is_refused():
    (text,) = faults({"lilliput": 2, **{k: HEAD[k] for k in ("model", "data")}, "steps": STEPS})
    assert text.startswith("lilliput: input should be 1")


STEPS = [{"export": "onnx", "file": "a.onnx"}]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [{"finetune": {"epochs": 1}}, {"speedup": {}}],
            "step 2 → speedup: comes after training without a prune step",
        ),
        (
            [{"quantize": "ptq"}, {"speedup": {}}],
            "step 2 → speedup: comes after quantize; cut channels out first",
        ),
        ([*STEPS, *STEPS], "step 2 → export: writes 'a.onnx', which an earlier step writes too"),
        ([{"analyze": "l1"}], "step 1 → analyze: needs 'evaluate'"),
        ([{"prune": "l1", "quantize": "qat"}], "step 1: has 2 verbs (prune, quantize)"),
        ([7], "step 1: expected a mapping with one of prune"),
        ([{"finetune": {"epochs": 0}}], "step 1 → finetune → epochs"),
        ([{"finetune": {}}], "step 1 → finetune → epochs: is missing: Epochs to train."),
        ([{"export": "onnx", "file": "a.tflite"}], "step 1: 'file' 'a.tflite': expected a name"),
        (
            [{"quantize": "qat", "options": {"momentm": 0.9}}],
            "step 1 → options → momentm: QATQuantizer has no such option. Did you mean 'momentum'?",
        ),
        (
            [{"quantize": "qat", "options": {"momentum": 9}}],
            "step 1 → options: momentum: received 9",
        ),
        (
            [{"prune": "l1", "options": {"model": 1}}],
            "step 1 → options → model: is set by the recipe itself",
        ),
        (
            [{"prune": "agp", "config": [{"final_sparsity": 0.5}]}],
            "step 1 → config → rule 0 → end_epoch: is 1, but the step trains 0 epochs",
        ),
        (
            [{"prune": "agp", "epochs": 2, "config": [{"final_sparsity": 0.5, "end_epoch": 9}]}],
            "set epochs to 9 or more, or omit end_epoch",
        ),
    ],
)
def test_steps_that_cannot_work_are_refused(steps, message):
    found = faults_of_steps(*steps)
    assert len(found) == 1 and message in found[0]


def test_a_schedule_ends_with_its_step_by_default():
    step = {"prune": "agp", "epochs": 7, "config": {"final_sparsity": 0.5}}
    recipe = load_recipe({**HEAD, "loss": "mse", "steps": [step]})
    assert recipe.steps[0].config == [{"final_sparsity": 0.5, "end_epoch": 7}]


def test_a_config_list_in_a_file_of_its_own_is_part_of_the_recipe(tmp_path):
    (tmp_path / "rules.yaml").write_text("- {op_types: [Linear], sparsity: 0.5}\n")
    file = tmp_path / "recipe.json"
    steps = [{"prune": "level", "config": "rules.yaml"}]
    file.write_text(json.dumps({**HEAD, "steps": steps}))
    assert load_recipe(file).steps[0].config == [{"op_types": ["Linear"], "sparsity": 0.5}]
    (tmp_path / "rules.yaml").write_text("- {op_types: [Linear], sparsity: 5}\n")
    assert "rules.yaml: expected a fraction" in faults(file)[0]
    (tmp_path / "rules.yaml").unlink()
    assert "there is no such file" in faults(file)[0]


def test_train_and_loss_exclude_each_other():
    (text,) = faults({**HEAD, "train": "a:d", "loss": "mse", "steps": STEPS})
    assert "are alternatives" in text


def test_options_of_an_export_are_checked_before_any_work():
    step = {"export": "onnx", "file": "a.onnx"}
    (fault,) = faults_of_steps({**step, "options": {"assume_vni": False}})
    assert "onnx files have no option 'assume_vni'. Did you mean 'assume_vnni'?" in fault
    (fault,) = faults_of_steps({**step, "options": {"assume_vnni": "no"}})
    assert "'assume_vnni': expected true, false or null" in fault
    recipe = load_recipe({**HEAD, "steps": [{**step, "options": {"assume_vnni": False}}]})
    assert recipe.steps[0].options == {"assume_vnni": False}


@pytest.mark.parametrize("name", ["onnx", "openvino", "executorch"])
def test_the_options_of_an_export_are_those_of_the_exporter(name):
    pytest.importorskip("torch")
    import inspect

    from lilliput.export.targets.table import TARGETS

    given = {"quantizer_or_model", "path", "example_inputs", "calibration"}
    export = TARGETS[name].writer("torch").load()
    assert set(inspect.signature(export).parameters) - given == set(TARGETS[name].options)
