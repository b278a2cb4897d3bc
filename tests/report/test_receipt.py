"""What a receipt says, and that it says so in words."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lilliput.errors import StateError
from lilliput.measure.receipt import Figures, Receipt, take_receipt

BEFORE = Figures("model", "PyTorch", 1000, 990, 50_000, 4000, 2.0, 2.5, 50, 0.91)
AFTER = Figures("small.onnx", "ONNX Runtime", 250, 240, 12_500, 1000, 0.5, 0.7, 50, 0.905)


def changed(figures, **fields):
    return Figures.from_dict({**figures.to_dict(), **fields})


def test_the_verdict_names_size_speed_and_metric():
    same = changed(BEFORE, runtime="ONNX Runtime 1.31.1, 1 thread")
    receipt = Receipt(same, AFTER, metric_name="accuracy")
    assert receipt.verdict == "4.0× smaller on disk and 4.0× faster, accuracy -0.0050."


def test_two_runtimes_make_no_claim_about_speed():
    receipt = Receipt(changed(BEFORE, runtime="PyTorch 2.13.0, 1 thread"), AFTER)
    assert receipt.verdict == (
        "4.0× smaller on disk, metric -0.0050; speed not compared (ONNX Runtime now, PyTorch before)."
    )
    assert ("latency p50", "2 ms", "0.5 ms", "not comparable") in receipt.rows()
    assert "measure_all([original, small], inputs)" in str(receipt)
    assert not any(word in str(receipt) for word in ("faster", "slower"))


def test_other_threads_or_batches_make_no_claim_about_speed():
    one, two = (
        changed(BEFORE, runtime=f"PyTorch 2.13.0, {threads}, batch 8", p50=p50)
        for threads, p50 in (("1 thread", 2.0), ("2 threads", 1.0))
    )
    assert "speed not compared (2 threads, batch 8 now, 1 thread, batch 8 before)" in (
        Receipt(one, two).verdict
    )


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({}, {"readings": (0.3, 0.9)}, "noisy: two readings of small.onnx gave 0.3 and 0.9 ms"),
        ({"readings": (2.0, 2.6)}, {"readings": (0.6, 0.5)}, "two readings of the ratio gave 3.33"),
        (
            {"readings": (2.0, 2.2)},  # 1.1× slower, and two readings that are 1.2× apart
            {"p50": 2.2, "readings": (2.3, 2.1)},
            "two readings of the ratio gave 0.87 and 1.05",
        ),
        ({"p95": 9.0}, {}, "noisy: model took 2 ms in the median, 9 ms at p95"),
    ],
)
def test_noisy_latencies_make_no_claim_about_speed(before, after, words):
    receipt = Receipt(changed(BEFORE, runtime="ONNX Runtime", **before), changed(AFTER, **after))
    assert words in receipt.verdict and words in str(receipt)
    assert "faster" not in str(receipt) and "4.0× smaller" in receipt.verdict
    assert next(row for row in receipt.rows() if row[0] == "latency p50")[3] == "noisy"


def test_a_ratio_by_the_clock_that_cpu_time_does_not_confirm_is_noise():
    """A steady load: both halves of the calls agree, at two or three times the time that they need."""
    one = changed(BEFORE, runtime="ONNX Runtime", p50=14.6, readings=(14.6, 14.5, 6.1))
    two = changed(AFTER, p50=10.7, readings=(10.7, 10.8, 2.8))
    assert "faster" not in Receipt(one, two).verdict
    assert "gave 6.1 and 14.6 ms" in Receipt(one, two).verdict


def test_load_that_both_sides_meet_leaves_the_ratio():
    one = changed(BEFORE, runtime="ONNX Runtime", readings=(2.0, 2.8))
    assert "4.0× faster" in Receipt(one, changed(AFTER, readings=(0.5, 0.68))).verdict


def test_masks_alone_are_not_called_smaller():
    masked = changed(BEFORE, nonzeros=200)
    receipt = Receipt(BEFORE, masked)
    assert receipt.masked_only
    assert receipt.verdict.startswith(
        "masks only: 80% of the weights are zero, but nothing is smaller"
    )
    assert "speedup()" in receipt.verdict
    assert not Receipt(BEFORE, AFTER).masked_only


@pytest.mark.parametrize(
    "after",
    [
        changed(
            BEFORE, nonzeros=200, bytes=4100
        ),  # a file with fewer zeros, by rounding, and larger
        changed(BEFORE, nonzeros=200, bytes=None),
        changed(BEFORE, nonzeros=200, parameters=None),
    ],
)
def test_what_is_not_only_masked_is_not_called_so(after):
    assert not Receipt(BEFORE, after).masked_only


def test_a_loss_is_told_as_one():
    worse = changed(BEFORE, bytes=6000, p50=3.0)
    assert Receipt(BEFORE, worse).verdict.startswith("1.50× larger on disk and 1.50× slower here")


def test_a_difference_within_the_noise_is_not_called_faster():
    assert "no faster here" in Receipt(BEFORE, changed(BEFORE, p50=1.95)).verdict


def test_where_pruning_took_much_of_the_metric_a_way_back_is_offered():
    before = Figures("before", parameters=100, nonzeros=100, metric=0.9)
    fell = Figures("after", parameters=60, nonzeros=60, metric=0.45)
    text = str(Receipt(before, fell))
    assert "recalibrate(model, batches, original=original)" in text
    assert "reconstruct(model, batches, original)" in text
    on_keras = str(Receipt(replace(before, runtime="Keras 3.15.1 on jax"), fell))
    assert "recalibrate(model, batches, original=original)" in on_keras
    assert "reconstruct" not in on_keras  # it is for torch models
    for after in (
        replace(fell, metric=0.89),
        replace(fell, nonzeros=100),
        replace(fell, metric=None),
    ):
        assert "recalibrate" not in str(Receipt(before, after))


def test_what_was_not_measured_is_left_out():
    unknown = Figures("file.tflite", bytes=100)
    receipt = Receipt(Figures("model", bytes=400), unknown)
    assert [row[0] for row in receipt.rows()] == ["bytes on disk"]
    assert receipt.verdict == "4.0× smaller on disk."


def test_a_metric_alone_is_a_verdict():
    one, two = Figures("model", metric=0.9), Figures("small", metric=0.8)
    assert Receipt(one, two, metric_name="accuracy").verdict == "accuracy -0.1000."
    one, two = (replace(x, runtime=x.name, p50=1.0) for x in (one, two))
    verdict = Receipt(one, two).verdict
    assert verdict == "metric -0.1000; speed not compared (small now, model before)."


def test_a_receipt_takes_from_the_model_what_a_file_does_not_tell():
    receipt = take_receipt(BEFORE, Figures("x.tflite", bytes=9), parameters=250, macs=7)
    assert (receipt.after.parameters, receipt.after.macs) == (250, 7)
    kept = take_receipt(BEFORE, AFTER, parameters=1)
    assert kept.after.parameters == 250


@pytest.mark.parametrize("show", [str, lambda x: x._repr_html_()])
def test_every_figure_is_shown(show):
    text = show(Receipt(BEFORE, AFTER, "accuracy", 0.125, ("read me",)))
    for part in (
        "1,000",
        "250",
        "50,000",
        "4,000",
        "0.5 ms",
        "0.9050",
        "0.125",
        "read me",
        "small.onnx",
    ):
        assert part in text


def test_the_table_fits_a_terminal_of_100_columns():
    assert max(len(line) for line in str(Receipt(BEFORE, AFTER)).splitlines()) <= 100


def test_names_cannot_bring_markup_into_a_notebook_or_a_terminal():
    from rich.console import Console

    receipt = Receipt(changed(BEFORE, name="<script>[bold]"), AFTER)
    assert "<script>" not in receipt._repr_html_()
    console = Console(width=100)
    with console.capture() as shown:
        console.print(receipt)
    assert "<script>[bold]" in shown.get()


@given(
    st.builds(
        Figures,
        name=st.text(max_size=8),
        parameters=st.none() | st.integers(0, 10**12),
        nonzeros=st.none() | st.integers(0, 10**12),
        bytes=st.none() | st.integers(0, 10**12),
        p50=st.none() | st.floats(0, 1e6),
        metric=st.none() | st.floats(-1e6, 1e6),
    ),
    st.builds(
        Figures,
        name=st.text(max_size=8),
        parameters=st.none() | st.integers(0, 10**12),
        nonzeros=st.none() | st.integers(0, 10**12),
        bytes=st.none() | st.integers(0, 10**12),
        p50=st.none() | st.floats(0, 1e6),
    ),
)
def test_any_figures_make_a_receipt_that_survives_json(before, after):
    receipt = Receipt(before, after)
    assert Receipt.from_dict(receipt.to_dict()) == receipt
    assert receipt.verdict.endswith(".")
    assert str(receipt)


def test_a_receipt_is_saved_and_read(tmp_path):
    receipt = Receipt(BEFORE, AFTER, "accuracy", 0.5)
    receipt.save(tmp_path / "receipt.json")
    assert Receipt.load(tmp_path / "receipt.json") == receipt


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"before": 1, "after": 2}', '{"befor": {}}'])
def test_a_damaged_receipt_is_refused(tmp_path, text):
    (tmp_path / "receipt.json").write_text(text)
    with pytest.raises(StateError):
        Receipt.load(tmp_path / "receipt.json")
