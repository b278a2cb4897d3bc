"""The check: what a program uses of NNI is found in any form of import, and judged as a run would."""

import textwrap
from pathlib import Path

import pytest

from lilliput.compat.nni.__main__ import main
from lilliput.compat.nni.reading.check import check_files, check_source, summary

UNCHANGED = "runs unchanged"


def check(source):
    return check_source(textwrap.dedent(source), Path("train.py"))


def said(source):
    """Return what is said about each use, by its name."""
    return {verdict.name: verdict.text for verdict in check(source).verdicts}


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import nni\nnni.compression.torch.L1FilterPruner", "nni.compression.torch.L1FilterPruner"),
        ("import nni.compression.torch as z\nz.L1FilterPruner", "nni.compression.torch.L1FilterPruner"),
        ("import nni.compression.torch\nnni.compression.torch.L1FilterPruner", None),
        ("from nni.compression.torch import L1FilterPruner", None),
        ("from nni.compression.torch import L1FilterPruner as P", None),
        ("from nni.compression import torch as t\nt.L1FilterPruner", None),
        ("from nni.compression.torch import *\nL1FilterPruner", None),
        ("def f():\n    from nni.compression.torch import L1FilterPruner", None),
        ("import importlib, nni\nimportlib.import_module('nni.compression.torch')\n"
         "nni.compression.torch.L1FilterPruner", None),
    ],
)  # fmt: skip
def test_a_name_is_found_in_every_form_of_import(program, name):
    found = said(program)[name or "nni.compression.torch.L1FilterPruner"]
    assert found == "runs, spelled today lilliput.torch.L1NormPruner"


def test_names_of_other_libraries_are_left_alone():
    assert said("import torch\nfrom torch.nn.utils import prune\nprune.l1_unstructured") == {}
    assert said("from .nni import LevelPruner\nLevelPruner(1, 2, 3, 4, 5)") == {}
    assert said("def f(nni):\n    nni.compression.torch.NoSuchPruner") == {}


def test_what_is_missing_is_said_with_the_reason():
    report = check(
        "from nni.retiarii import x\nimport nni.common\nimport nni.compression.torch.nope"
    )
    assert not report.runs
    assert [verdict.line for verdict in report.verdicts] == [1, 2, 3]
    assert all(str(v.text).startswith("not here: ") for v in report.verdicts)
    assert "model compression only" in report.verdicts[1].text


def test_an_import_that_the_program_can_do_without_does_not_fail_it():
    report = check(
        """
        try:
            from nni.common.graph_utils import build
        except ImportError:
            build = None
        """
    )
    assert report.runs
    assert "goes on without it" in report.verdicts[0].text


def test_arguments_are_judged_by_the_constructors_of_their_version():
    program = """
        from nni.compression.torch import TaylorFOWeightFilterPruner as P, L1FilterPruner, LevelPruner
        P(model, config_list, optimizer, statistics_batch_num=4)
        P(model, config_list, optimizer, trainer, criterion, sparsifying_training_batches=2)
        LevelPruner(model, config_list, optimizer)
        LevelPruner(config_list)
        L1FilterPruner(model, config_list, dependency_aware=True, dummy_input=x)
        L1FilterPruner(model, config_list, 3)
        L1FilterPruner(model, config_list, optimizer, True, x, 4)
        L1FilterPruner(*everything, **others)
    """
    texts = [verdict.text for verdict in check(program).verdicts[3:]]
    today = "TaylorFOWeightPruner(model, config_list, optimizer, training_batches=…)"
    assert texts[:5] == [
        f"runs, spelled today {today}",
        f"runs, spelled today {today} and your own training loop",
        UNCHANGED,
        UNCHANGED,
        "runs, spelled today L1NormPruner(model, config_list, example_inputs=…)",
    ]
    assert [text.startswith("not here: ") for text in texts[5:]] == [True, True, False]


@pytest.mark.parametrize("home", ["torch", "tensorflow"])
def test_arguments_of_a_class_with_one_form_are_judged_by_todays_constructor(home):
    program = f"""
        from nni.compression.{home} import DoReFaQuantizer
        DoReFaQuantizer(model, config_list, optimizer)
        DoReFaQuantizer(config_list)
        DoReFaQuantizer(model, config_list, no_such_argument=1)
    """
    assert [verdict.runs for verdict in check(program).verdicts] == [True, True, True, False]


def test_methods_are_judged_on_the_objects_that_have_them():
    report = check(
        """
        from nni.compression.torch import LevelPruner, AGP_Pruner
        make = LevelPruner if simple else AGP_Pruner
        pruner = make(model, config_list)
        pruner.compress()
        pruner.export_model("m.pth", mask_path="k.pth")
        pruner.export_model("m.pth", mask="k.pth")
        pruner.no_such_method()
        model.no_such_method()

        class Trainer:
            def __init__(self):
                self.pruner = LevelPruner(model, config_list)

            def run(self, pruner):
                self.pruner.no_such_method()
                pruner.no_such_method()
        """
    )
    missing = [verdict.line for verdict in report.verdicts if not verdict.runs]
    assert sorted(set(missing)) == [7, 8, 16]


def test_the_keys_of_config_lists_are_judged_one_by_one():
    program = """
        from nni.compression.torch import LevelPruner
        rules = [
            {"sparsity_per_layer": args.sparsity, "op_partial_names": ["conv"]},
            {"support_type": "default", "prune": False},
            {"op_names": ["fc"], "sparsity": 0.5, "quant_bits": 8, "sparse_threshold": 3},
        ]
        LevelPruner(model, rules)
    """
    found = said(program)
    assert found["rule 0 → sparsity_per_layer"] == "runs, spelled today 'sparsity'"
    assert found["rule 0 → op_partial_names"] == "runs, spelled today ['*conv*'] in 'op_names'"
    assert found["rule 1 → prune"] == "runs, spelled today 'exclude': True"
    assert found["rule 2 → op_names"] == found["rule 2 → sparsity"] == UNCHANGED
    assert found["rule 2 → quant_bits"].startswith("not here: the class does not know this key")
    assert found["rule 2 → sparse_threshold"].startswith("not here: ")
    assert {v.line for v in check(program).verdicts if v.name.startswith("rule 1")} == {5}


def test_a_config_list_is_known_by_its_name_where_its_class_is_not():
    assert said("import nni\nconfig_list = [{'sparse_ratio': 0.5, 'op_types': ['Linear']}]") == {
        "nni": UNCHANGED,
        "rule 0 → sparse_ratio": "runs, spelled today 'sparsity'",
        "rule 0 → op_types": UNCHANGED,
    }
    assert said("config_list = [{'name': 'x'}]\nprices = [{'sparsity': 3}]") == {}


def test_a_file_that_python_cannot_read_is_said_and_fails(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9\n")
    (tmp_path / "fine.py").write_text("import os\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "other.py").write_text("import nni.common\n")
    reports = {report.file.name: report for report in check_files([tmp_path])}
    assert reports.keys() == {"broken.py", "latin.py"}
    assert not any(report.runs for report in reports.values())
    assert "2 cannot be read" in summary(reports.values())


@pytest.mark.parametrize(("program", "code"), [("import nni", 0), ("import nni.common", 1)])
def test_the_exit_code_tells_whether_all_of_it_runs(tmp_path, capsys, program, code):
    file = tmp_path / "train.py"
    file.write_text(f"{program}\n")
    with pytest.raises(SystemExit) as ended:
        main(["--check", str(file), str(tmp_path)])
    assert ended.value.code == code
    out = capsys.readouterr().out.splitlines()
    assert out[0] == out[1] and out[0].startswith(f"{file}:1: nni")
    assert out[2].startswith("2 uses of NNI in 2 files: ")


def test_nothing_of_the_program_is_run(tmp_path):
    (tmp_path / "train.py").write_text("import nni\nopen('touched', 'w')\nraise SystemExit(3)\n")
    assert [report.runs for report in check_files([tmp_path / "train.py"])] == [True]
    assert not Path("touched").exists()
