"""Commands that work: run, prune, quantize, speedup, export; they are recipes underneath."""

import json

import pytest

from lilliput.cli.commands import shortcuts

COMMON = ["--data", "tiny_cli:batches", "--evaluate", "tiny_cli:accuracy", "--quiet"]


@pytest.fixture
def asked(monkeypatch):
    """The recipes that shortcuts would run, instead of running them."""
    found = []

    def execute(terminal, source, options, default):
        found.append((source, options.output or default, options))

    monkeypatch.setattr(shortcuts, "execute", execute)
    return found


def test_prune_is_a_recipe(lilliput, asked, place):
    words = ["prune", "m:f", "-a", "agp", "-s", "0.5", "--op-types", "Conv2d", "--epochs", "3"]
    words += ["--option", "pruning_algorithm=l1", "--speedup", "--finetune", "2"]
    words += ["--export", "small.onnx", "--loss", "mse", "--data", "m:d", "--seed", "7", "--resume"]
    assert lilliput(*words, "--save-recipe", "saved.yaml").code == 0
    recipe, folder, options = asked[0]
    assert (folder, options.resume, options.seed) == ("prune-run", True, 7)
    assert recipe == {
        "lilliput": 1,
        "model": "m:f",
        "data": "m:d",
        "loss": "mse",
        "steps": [
            {
                "prune": "agp",
                "config": [{"op_types": ["Conv2d"], "sparsity": 0.5}],
                "options": {"pruning_algorithm": "l1"},
                "epochs": 3,
            },
            {"speedup": {}},
            {"finetune": {"epochs": 2}},
            {"export": "onnx", "file": "small.onnx"},
        ],
    }
    from lilliput.recipes import load_recipe

    saved = load_recipe("saved.yaml")
    assert saved.seed == 7 and [step.verb for step in saved.steps][1:] == [
        *("speedup", "finetune", "export")
    ]


def test_quantize_speedup_and_export_are_recipes(lilliput, asked, place):
    more = ["--data", "m:d"]
    assert lilliput("quantize", "m:f", "--bits", "4", "--option", "adaround=true", *more).code == 0
    rules = [{"op_types": ["default"], "quant_bits": 4}]
    step = {"quantize": "ptq", "config": rules, "options": {"adaround": True}}
    assert asked[0][0]["steps"] == [step]
    (place / "r.yaml").write_text("- {quant_bits: 8}\n", encoding="utf-8")
    assert lilliput("quantize", "m:f", "--config", "r.yaml", "--batches", "3", *more).code == 0
    assert asked[1][0]["steps"] == [{"quantize": "ptq", "config": "r.yaml", "batches": 3}]
    assert lilliput("speedup", "m:f", "--extend-masks", *more).code == 0
    assert asked[2][0]["steps"] == [{"speedup": {"extend_masks": True}}]
    assert lilliput("export", "m:f", "a.tflite", "-o", "out", *more).code == 0
    assert asked[3][0]["steps"] == [{"export": "litert", "file": "a.tflite"}]
    assert str(asked[3][1]) == "out"
    assert lilliput("export", "m:f", "a.onnx", "--no-assume-vnni", *more).code == 0
    assert asked[4][0]["steps"][0]["options"] == {"assume_vnni": False}
    assert lilliput("quantize", "m:f", "--export", "a.onnx", "--assume-vnni", *more).code == 0
    assert asked[5][0]["steps"][1]["options"] == {"assume_vnni": True}
    assert "pass both" in lilliput("quantize", "m:f", "--no-assume-vnni", *more).err
    ended = lilliput("export", "m:f", "a.tflite", "--assume-vnni", *more)
    assert ended.code and "litert files have no option 'assume_vnni'" in ended.err


def test_run_takes_a_folder_named_after_the_recipe_and_a_seed(lilliput, place, monkeypatch):
    import lilliput.recipes as recipes
    from lilliput.measure.receipt import Figures, Receipt

    found = {}

    def run(recipe, folder, *, resume, progress, trust):
        found.update(seed=recipe.seed, at=recipe.folder, resume=resume, progress=progress)
        receipt = Receipt(Figures("a", bytes=4), Figures("b", bytes=2))
        return recipes.RunResult(receipt, folder / "report.html", [folder / "b.onnx"], folder)

    monkeypatch.setattr(recipes, "run", run)
    text = "{lilliput: 1, model: m:f, inputs: m:i, steps: [{export: onnx, file: b.onnx}]}"
    (place / "mine.yaml").write_text(text, encoding="utf-8")
    ended = lilliput("run", "mine.yaml", "--seed", "3", "--resume", "--quiet")
    assert ended.code == 0, ended.err
    assert (found["seed"], found["resume"], found["progress"]) == (3, True, False)
    assert ended.out.endswith("file    mine-run/b.onnx\nreport  mine-run/report.html\n")
    assert "2.0× smaller on disk" in ended.out


def test_a_run_from_pruning_to_its_report(lilliput, place):
    words = ["prune", "tiny_cli:build", "-a", "l1", "-s", "0.5", "--speedup", *COMMON, "-o", "out"]
    planned = json.loads(lilliput(*words, "--dry-run", "--json").out)
    assert planned["dry_run"] and len(planned["steps"]) == 2
    ended = lilliput(*words, "--json")
    assert ended.code == 0, ended.err
    done = json.loads(ended.out)
    before, after = done["receipt"]["before"], done["receipt"]["after"]
    assert after["parameters"] < before["parameters"] and done["receipt"]["verdict"]
    assert (place / "out" / "report.html").is_file()
    refused = lilliput(*words)
    assert refused.code == 1 and "--resume" in refused.err
    assert json.loads(lilliput(*words, "--resume", "--json").out)["receipt"] == done["receipt"]

    assert lilliput("report", "out", "-o", "page.html").out == "page.html\n"
    assert "<html" in (place / "page.html").read_text(encoding="utf-8")
    found = json.loads(lilliput("inspect", "out", "--data", "tiny_cli:batches", "--json").out)
    assert found["parameters"] == after["parameters"]
    compared = lilliput("compare", "tiny_cli:build", "out", "--data", "tiny_cli:batches")
    assert compared.code == 0 and "of out" in compared.out.splitlines()[0]
    (place / "out" / "run.json").write_text("{}")
    assert lilliput("inspect", "out").code == 2


def test_masks_alone_are_said_to_be_masks(lilliput, place):
    words = ["prune", "tiny_cli:build", "-a", "level", "-s", "0.5", *COMMON, "-o", "out"]
    text = lilliput(*words).out
    assert "masks only" in text and "nothing is smaller or faster yet" in text


def test_auto_writes_a_file_that_keeps_the_goal(lilliput, place):
    pytest.importorskip("scipy")
    pytest.importorskip("onnxscript")
    words = ["auto", "tiny_cli:build", "--target", "macs=0.6", "--drop", "1", *COMMON, "--json"]
    ended = lilliput(*words, "--epochs", "0", "-o", "small")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    after, before = found["receipt"]["after"], found["receipt"]["before"]
    assert found["is_met"] and after["macs"] <= 0.6 * before["macs"]
    assert (place / "small" / "model.onnx").is_file() and (
        place / "small" / "report.html"
    ).is_file()
    again = lilliput(*words, "-o", "small")
    assert again.code == 2 and "--resume" in again.err
    planned = lilliput(*words, "--dry-run", "-o", "other")
    assert json.loads(planned.out)["decisions"] == 2 and not (place / "other").exists()


@pytest.mark.parametrize(("verdict", "code"), [("met", 0), ("not shown", 4), ("not met", 1)])
def test_auto_tells_a_noisy_machine_from_a_missed_goal(verdict, code, lilliput, place, monkeypatch):
    from lilliput.measure.receipt import Figures, Receipt
    from lilliput.recipes.auto import Compressed

    receipt = Receipt(Figures("original"), Figures("compressed"))
    done = Compressed(place / "a b" / "model.onnx", receipt, verdict, [], None)
    monkeypatch.setattr("lilliput.recipes.auto.compress", lambda *args, **given: done)
    words = ["auto", "tiny_cli:build", "--target", "latency=0.5", *COMMON]
    ended = lilliput(*words)
    assert ended.code == code
    assert ("the budget is not met" in ended.err) == (code == 1)
    again = f"lilliput compare '{place}/a b/original.onnx' '{place}/a b/model.onnx' --data tiny_cli"
    assert (again in ended.out) == (code == 4)
    ended = lilliput(*words, "--json")
    assert ended.code == code and json.loads(ended.out)["verdict"] == verdict


def test_auto_says_when_a_goal_cannot_be_met(lilliput, place):
    pytest.importorskip("scipy")
    pytest.importorskip("onnxscript")
    ended = lilliput("auto", "tiny_cli:build", "--target", "macs=0.001", *COMMON)
    assert ended.code == 1 and "cannot be met" in ended.err and "is achievable" in ended.err


def test_a_table_of_latencies_is_shown(lilliput, place):
    from lilliput.search.latency import LatencyTable, Network, TimedLayer

    timed = {"conv": TimedLayer(shape=[8, 4], kind="float", share=0.5)}
    table = LatencyTable.open(place, "ONNX Runtime 1.31", "some processor", 2)
    table.add("net", 12.5, Network(choice=[0], layers=timed, ratio=0.6))
    ended = lilliput("benchmark", "--table", ".")
    assert ended.code == 0 and "some processor" in ended.out and "12.5" in ended.out
    assert lilliput("benchmark", "--table", "nowhere").code == 2


def test_weights_become_a_compact_file_and_come_back(lilliput, place):
    import torch
    from safetensors.torch import load_file, save_file

    weights = {"w": torch.randn(60, 80) * (torch.rand(60, 80) < 0.1)}
    save_file(weights, place / "w.safetensors")
    planned = json.loads(lilliput("compact", "w.safetensors", "--dry-run", "--json").out)
    assert planned["dry_run"] and not (place / "w.lil").exists()
    made = json.loads(lilliput("compact", "w.safetensors", "--json").out)
    assert made["bytes"] == (place / "w.lil").stat().st_size < made["bytes_before"] / 5
    assert lilliput("compact", "w.lil", "-o", "again.safetensors").code == 0
    assert torch.equal(load_file(place / "again.safetensors")["w"], weights["w"])
    (place / "w.lil").rename(place / "odd.safetensors")  # what it is decides, not its name
    assert "pass another name" in lilliput("compact", "odd.safetensors").err
    assert lilliput("compact", "odd.safetensors", "-o", "from_odd").code == 0
    assert torch.equal(load_file(place / "from_odd")["w"], weights["w"])
    assert "already exists" in lilliput("compact", "odd.safetensors", "-o", "from_odd").err
    (place / "w.safetensors").rename(place / "plain.bin")
    assert lilliput("compact", "plain.bin").code == 0 and (place / "plain.lil").is_file()
    (place / "plain.bin").rename(place / "w.safetensors")
    (place / "w.lil").write_bytes(b"LILC" + bytes(30))
    for words, said in (
        (["w.lil", "-o", "new.safetensors"], "not a readable compact file"),
        (["none.lil"], "no such file"),
        (["w.safetensors", "-o", "w.safetensors"], "pass another name"),
        (["w.safetensors", "-o", "no/w.lil"], "create it first"),
    ):
        ended = lilliput("compact", *words)
        assert ended.code == 2 and said in ended.err


def test_repair_restores_what_a_config_list_takes(lilliput, place):
    pytest.importorskip("scipy")
    pytest.importorskip("onnxscript")
    (place / "harsh.json").write_text('[{"op_types": ["Conv2d"], "sparsity": 0.75}]')
    words = ["repair", "tiny_cli:build", "harsh.json", "--drop", "0", "--cost", "macs", *COMMON]
    ended = lilliput(*words, "--trials", "4", "--json", "-o", "better")
    assert ended.code == 0, ended.err
    after, before = (json.loads(ended.out)["receipt"][side] for side in ("after", "before"))
    assert after["metric"] >= before["metric"] and (place / "better" / "found.json").is_file()


@pytest.mark.parametrize(("cost", "is_timed"), [("latency", True), ("macs", False)])
def test_repair_says_that_it_will_time_networks(cost, is_timed, lilliput, place):
    (place / "harsh.json").write_text('[{"op_types": ["Conv2d"], "sparsity": 0.75}]')
    words = ["repair", "tiny_cli:build", "harsh.json", "--drop", "0", "--cost", cost, *COMMON]
    said = lilliput(*words, "--dry-run").out
    assert "evaluate at most 10" in said and ("time 12 networks" in said) == is_timed


def test_repair_shows_its_progress(lilliput, place):
    pytest.importorskip("scipy")
    pytest.importorskip("onnxscript")
    (place / "harsh.json").write_text('[{"op_types": ["Conv2d"], "sparsity": 0.75}]')
    words = ["repair", "tiny_cli:build", "harsh.json", "--drop", "1", "--cost", "macs", *COMMON]
    ended = lilliput(*(word for word in words if word != "--quiet"), "-o", "better")
    assert ended.code == 0 and "trial 1: metric" in ended.err


def test_repair_fails_if_the_file_loses_too_much(lilliput, place, monkeypatch):
    from lilliput.measure.receipt import Figures, Receipt
    from lilliput.search.result import Found

    (place / "harsh.json").write_text('[{"op_types": ["Conv2d"], "sparsity": 0.75}]')
    (place / "better").mkdir()
    receipt = Receipt(Figures("original"), Figures("found"))
    found = Found([], [], [], [], receipt, None, place / "model.onnx", "not met", [])
    monkeypatch.setattr("lilliput.search.repair.repair", lambda *args, **given: found)
    words = ["repair", "tiny_cli:build", "harsh.json", "--drop", "0", *COMMON, "-o", "better"]
    ended = lilliput(*words)
    assert ended.code == 1 and "loses more than --drop" in ended.err
    ended = lilliput(*words, "--json")
    assert ended.code == 1 and json.loads(ended.out)["is_met"] is False
