"""Files that somebody has damaged or forged: refused by an error of ours, and the model as it was."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_tools import fingerprint
from torch import nn

from lilliput.errors import LilliputError
from lilliput.torch import (
    AGPPruner,
    L1NormPruner,
    LevelPruner,
    PTQQuantizer,
    Receipt,
    Report,
    load,
    speedup,
)

SLOWEST = 30.0  # seconds until a file is refused, on a busy machine
DEEP = "[" * 100_000 + "]" * 100_000
Edit = Callable[[dict[str, Any]], Any]


def make_model(width: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))


def make_pruner() -> AGPPruner:
    pruner = AGPPruner(make_model(), [{"final_sparsity": 0.5, "end_epoch": 0}])
    pruner.compress()
    return pruner


# -- states of pruners and quantizers ---------------------------------------------------------------


def layer(document: dict[str, Any]) -> dict[str, Any]:
    return document["layers"]["0"]


JSON_EDITS: dict[str, Edit] = {
    "format 0": lambda d: d.update(format=0),
    "format true": lambda d: d.update(format="1"),
    "format from the future": lambda d: d.update(format=2),
    "huge format": lambda d: d.update(format=10**300),
    "other kind": lambda d: d.update(kind="shrunk model"),
    "no kind": lambda d: d.pop("kind"),
    "other algorithm": lambda d: d.update(algorithm="LevelPruner"),
    "algorithm is a list": lambda d: d.update(algorithm=["AGPPruner"]),
    "other framework": lambda d: d.update(framework="jax"),
    "extra key": lambda d: d.update(evil=1),
    "no layers": lambda d: d.update(layers={}),
    "layers is a list": lambda d: d.update(layers=[]),
    "one layer too many": lambda d: d["layers"].update({"9": layer(d)}),
    "one layer less": lambda d: d["layers"].pop("2"),
    "layer is null": lambda d: d["layers"].update({"0": None}),
    "layer without shape": lambda d: layer(d).pop("shape"),
    "other shape": lambda d: layer(d).update(shape=[6, 5]),
    "negative shape": lambda d: layer(d).update(shape=[-6, -4]),
    "shape of floats": lambda d: layer(d).update(shape=[6.0, 4.0]),
    "shape of text": lambda d: layer(d).update(shape="6x4"),
    "other rule": lambda d: layer(d)["config"].update(final_sparsity=0.9),
    "config is null": lambda d: layer(d).update(config=None),
    "type is a number": lambda d: layer(d).update(type=3),
    "values is a list": lambda d: layer(d).update(values=[]),
    "epoch as text": lambda d: layer(d)["values"].update(updated_epoch="x"),
    "epoch as list": lambda d: layer(d)["values"].update(updated_epoch=[1]),
    "epoch below": lambda d: layer(d)["values"].update(updated_epoch=-7),
    "unknown value": lambda d: layer(d)["values"].update(evil=1),
    "private value": lambda d: layer(d)["values"].update(_buffers=1),
    "class as value": lambda d: layer(d)["values"].update(__class__="x"),
    "method as value": lambda d: layer(d)["values"].update(forward=1),
    "module as value": lambda d: layer(d)["values"].update(module=1),
    "config as value": lambda d: layer(d)["values"].update(config={"dict": {}}),
    "tensor from nowhere": lambda d: layer(d)["values"].update(x={"tensor": "nowhere"}),
    "tensor named by a list": lambda d: layer(d)["values"].update(x={"tensor": ["a"]}),
    "unknown packing": lambda d: layer(d)["values"].update(x={"object": 1}),
    "two packings": lambda d: layer(d)["values"].update(x={"dict": {}, "tuple": []}),
    "tuple of nothing": lambda d: layer(d)["values"].update(x={"tuple": 3}),
    "negative progress": lambda d: d["progress"].update(now_epoch=-5),
    "huge progress": lambda d: d["progress"].update(now_epoch=10**300),
    "progress as text": lambda d: d["progress"].update(now_epoch="3"),
    "progress as truth": lambda d: d["progress"].update(now_epoch=True),
    "progress as float": lambda d: d["progress"].update(now_epoch=1.5),
    "no progress": lambda d: d["progress"].clear(),
    "unknown progress": lambda d: d["progress"].update(bound_model=1),
    "progress is a list": lambda d: d.update(progress=[]),
    "file elsewhere": lambda d: d["tensors"].update(file="../x.safetensors"),
    "absolute file": lambda d: d["tensors"].update(file="/etc/passwd"),
    "file of another name": lambda d: d["tensors"].update(file="weights.pt"),
    "file with a line break": lambda d: d["tensors"].update(file=d["tensors"]["file"] + "\n"),
    "file is null": lambda d: d["tensors"].update(file=None),
    "other checksum": lambda d: d["tensors"].update(sha256="0" * 64),
    "checksum is a number": lambda d: d["tensors"].update(sha256=0),
    "no tensors": lambda d: d.pop("tensors"),
}
RAW_STATES = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"1e999",
    "not a number": b'{"format": NaN}',
    "half": b'{"format": 1, ',
    "not UTF-8": b'{"format": "\xff\xfe"}',
    "zero bytes": b"\x00" * 1000,
    "deep": DEEP.encode(),
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "long number": b'{"format": ' + b"9" * 10_000 + b"}",
    "pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00c__main__\n",
}


def rewrite_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Forge tensors whose name and checksum are right."""
    from safetensors.torch import load as parse
    from safetensors.torch import save

    path = folder / "lilliput.json"
    document = json.loads(path.read_text())
    tensors = parse((folder / document["tensors"]["file"]).read_bytes())
    data = change(tensors)
    data = save(tensors) if data is None else data
    digest = hashlib.sha256(data).hexdigest()
    document["tensors"] = {"file": f"state-{digest[:16]}.safetensors", "sha256": digest}
    (folder / document["tensors"]["file"]).write_bytes(data)
    path.write_text(json.dumps(document))


def one(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


TENSOR_EDITS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "mask of another shape": one("0::weight_mask", torch.ones(6, 5)),
    "mask that would broadcast": one("0::weight_mask", torch.ones(1, 4)),
    "mask of no numbers": one("0::weight_mask", torch.ones(0)),
    "mask of halves": one("0::weight_mask", torch.full((6, 4), 0.5)),
    "mask of NaN": one("0::weight_mask", torch.full((6, 4), float("nan"))),
    "mask of infinity": one("0::weight_mask", torch.full((6, 4), float("inf"))),
    "mask of minus one": one("0::weight_mask", -torch.ones(6, 4)),
    "bias mask of another shape": one("0::bias_mask", torch.ones(16)),
    "bias mask that would broadcast": one("0::bias_mask", torch.ones(1)),
    "bias mask of twos": one("0::bias_mask", torch.full((6,), 2.0)),
    "no mask": lambda tensors: tensors.__delitem__("0::weight_mask"),
    "unknown tensor": one("0::evil", torch.ones(2)),
    "tensor of no layer": one("nowhere::weight_mask", torch.ones(2)),
    "tensor of no name": one("evil", torch.ones(2)),
    "not safetensors": lambda tensors: b"\x80\x04pickle",
    "no bytes": lambda tensors: b"",
    "huge header": lambda tensors: b"\xff" * 64,
    "header beyond the end": lambda tensors: (2**40).to_bytes(8, "little") + b"{}",
}


def attack_state(folder: Path, damage: Callable[[Path], Any]) -> None:
    make_pruner().state().save(folder)
    damage(folder)
    target = make_pruner()
    target.update_epoch(0)
    check(target.bound_model, lambda: target.load_state(folder))
    target.bound_model(torch.zeros(1, 4))


def edit_json(folder: Path, edit: Edit) -> None:
    path = folder / "lilliput.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


# -- plans of shrunk models ---------------------------------------------------------------------------


def attribute(**changes: Any) -> dict[str, Any]:
    return {"module": "0", "name": "in_features", "value": 3, "is_tuple": False, **changes}


PLAN_EDITS: dict[str, Edit] = {
    "other source": lambda d: d["source"].update({"0.weight": [9, 9]}),
    "no source": lambda d: d.update(source={}),
    "unknown tensor": lambda d: d["cuts"][0].update(tensor="nowhere"),
    "dimension beyond": lambda d: d["cuts"][0].update(dim=7),
    "negative dimension": lambda d: d["cuts"][0].update(dim=-1),
    "index beyond": lambda d: d["cuts"][0].update(keep=[0, 10**9]),
    "negative index": lambda d: d["cuts"][0].update(keep=[-1, 0]),
    "index twice": lambda d: d["cuts"][0].update(keep=[0, 0, 1]),
    "index as text": lambda d: d["cuts"][0].update(keep=["0"]),
    "cut less": lambda d: d["cuts"].pop(),
    "cut to nothing": lambda d: d["cuts"][0].update(keep=[]),
    "attribute of no module": lambda d: d["attributes"].append(attribute(module="nowhere")),
    "attribute that is none": lambda d: d["attributes"].append(attribute(name="forward")),
    "private attribute": lambda d: d["attributes"].append(attribute(name="__class__")),
    "attribute as text": lambda d: d["attributes"].append(attribute(value="x")),
    "attribute that is a truth value": lambda d: d["attributes"].append(attribute(name="training")),
    "huge attribute": lambda d: d["attributes"].append(attribute(value=10**30)),
    "negative attribute": lambda d: d["attributes"].append(attribute(value=-1)),
    "graph of nowhere": lambda d: d.update(graphs=["nowhere"]),
    "graphs as text": lambda d: d.update(graphs="0"),
    "other checksum": lambda d: d["tensors"].update(sha256="0" * 64),
    "file elsewhere": lambda d: d["tensors"].update(file="../../x"),
    "other kind": lambda d: d.update(kind="compression state"),
    "extra key": lambda d: d.update(evil=1),
    "from the future": lambda d: d.update(format=9),
}


def attack_plan(folder: Path, edit: Edit) -> None:
    model, inputs = make_model(), torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=inputs).compress()
    speedup(model, inputs).save(folder)
    edit_json(folder, edit)
    fresh = make_model()
    check(fresh, lambda: load(fresh, folder))


# -- config files ---------------------------------------------------------------------------------------

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]" for i in range(1, 30))]
)
CONFIGS = {
    "run.yaml": "!!python/object/apply:os.system [echo]",
    "tag.yaml": "- !evil {sparsity: 0.5}",
    "object.yaml": "- !!python/name:os.system {}",
    "laughs.yaml": LAUGHS,
    "loop.yaml": "- &a {sparsity: 0.5, op_names: [*a]}",
    "self.yaml": "&a [*a]",
    "merge.yaml": "- &a {sparsity: 0.5}\n- <<: *a",
    "deep.yaml": "[" * 5000,
    "deeper.yaml": DEEP,
    "indent.yaml": "\n".join(" " * i + f"a{i}:" for i in range(900)),
    "rules.yaml": "- {sparsity: 0.5}\n" * 60_000,
    "keys.yaml": "- sparsity: 0.5\n" + "".join(f"  k{i}: 1\n" for i in range(60_000)),
    "twice.yaml": "- {sparsity: 0.5, sparsity: 0.6}",
    "date.yaml": "- {sparsity: 2020-01-01}",
    "bytes.yaml": "- {sparsity: !!binary aGVsbG8=}",
    "number.yaml": "- {sparsity: .inf}",
    "nan.yaml": "- {sparsity: .nan}",
    "octal.yaml": "- {quant_bits: 0o10}",
    "digits.yaml": "- {sparsity: " + "9" * 10_000 + "}",
    "documents.yaml": "- {sparsity: 0.5}\n---\n- {sparsity: 0.5}",
    "version.yaml": "%YAML 1.1\n---\n- {sparsity: 0.5}",
    "empty.yaml": "",
    "scalar.yaml": "0.5",
    "control.yaml": "- {op_names: ['\x07'], sparsity: 0.5}",
    "regex.yaml": "- {op_names: ['re:(((((((((('], sparsity: 0.5}",
    "rules.json": json.dumps([{"sparsity": 0.5}] * 60_000),
    "keys.json": json.dumps([{f"k{i}": 1 for i in range(60_000)}]),
    "names.json": json.dumps([{"op_names": [f"n{i}" for i in range(60_000)], "sparsity": 0.5}]),
    "twice.json": '[{"sparsity": 0.5, "sparsity": 0.6}]',
    "nan.json": '[{"sparsity": NaN}]',
    "deep.json": DEEP,
    "digits.json": '[{"sparsity": ' + "9" * 10_000 + "}]",
    "half.json": '[{"sparsity": 0.5',
    "surrogate.json": '[{"op_names": ["\\ud800"], "sparsity": 0.5}]',
    "null.json": "null",
    "large.json": "[" + " " * (1 << 20) + "]",
}


def attack_config(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    model = make_model()
    check(model, lambda: LevelPruner(model, path).compress())


# -- receipts, reports, calibrations ----------------------------------------------------------------------

DOCUMENTS = [
    "",
    "null",
    "[]",
    "{}",
    '{"before": 1, "after": 2}',
    "{",
    DEEP,
    '{"a": NaN}',
    "9" * 10_000,
]


def attack_calibration(path: Path, text: str) -> None:
    path.write_text(text)
    quantizer = PTQQuantizer(make_model(), [{}])
    quantizer.compress()
    run = lambda: quantizer.calibrate([torch.randn(4, 4)], checkpoint=path)  # noqa: E731
    check(quantizer.bound_model, run)


def check(model: nn.Module, use: Callable[[], Any]) -> None:
    """Expect a refusal in good time, and a model that is what it was."""
    before, start = fingerprint(model), time.monotonic()
    with pytest.raises(LilliputError) as caught:
        use()
    assert fingerprint(model) == before
    assert time.monotonic() - start < SLOWEST
    assert all(c.isprintable() or c in "\n\t" for c in str(caught.value))


CASES: dict[str, Callable[[Path], None]] = {
    **{
        f"state, {k}": lambda p, e=v: attack_state(p, lambda f: edit_json(f, e))
        for k, v in JSON_EDITS.items()
    },
    **{
        f"state, {k}": lambda p, e=v: attack_state(
            p, lambda f: (f / "lilliput.json").write_bytes(e)
        )
        for k, v in RAW_STATES.items()
    },
    **{
        f"tensors, {k}": lambda p, e=v: attack_state(p, lambda f: rewrite_tensors(f, e))
        for k, v in TENSOR_EDITS.items()
    },
    **{f"plan, {k}": lambda p, e=v: attack_plan(p, e) for k, v in PLAN_EDITS.items()},
    **{f"config, {k}": lambda p, n=k, e=v: attack_config(p / n, e) for k, v in CONFIGS.items()},
    **{
        f"calibration {i}": lambda p, e=v: attack_calibration(p / "c.json", e)
        for i, v in enumerate(DOCUMENTS)
    },
}
# Shrinking a model, and reading 60,000 of anything, takes longer.
SLOW = ("plan", "config, rules", "config, keys", "config, names", "config, laughs")
QUICK = [name for name in CASES if not name.startswith(SLOW)][::12]


def test_there_are_ninety_hostile_files() -> None:
    assert len(CASES) >= 90


@pytest.mark.parametrize("name", QUICK)
def test_a_sample_of_hostile_files_is_refused(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
@pytest.mark.parametrize("kind", [Receipt, Report])
def test_a_hostile_receipt_or_report_is_refused(kind: Any, number: int, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(DOCUMENTS[number])
    with pytest.raises(LilliputError):
        kind.load(tmp_path / "x.json")
