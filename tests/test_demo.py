import pytest
import torch

from lilliput import demo


def test_the_demo_shrinks_a_network_that_still_reads_digits(monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "TRAIN_EPOCHS", 4)
    monkeypatch.setattr(demo, "PRUNE_EPOCHS", 4)
    monkeypatch.setattr(demo, "FINETUNE_EPOCHS", 2)
    monkeypatch.setattr(demo, "INTEGER_EPOCHS", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    journey = demo.run(lambda text: None, tmp_path)
    receipt, points = demo.compare(journey)
    torch.set_num_threads(threads)
    result, files = journey.shrunk, journey.files
    before, smaller, integers = (point["metric"] for point in points)
    assert before > 0.95
    assert smaller > before - 0.03
    assert integers > smaller - 0.01
    assert files[-1].integer_share == 1
    # 70 % of 32, 64, 64 and 128 channels go, less what it takes to keep multiples of eight.
    assert {gone for gone, _ in result.removed.values()} == {16, 40, 88}
    assert result.kind == "module"
    assert result.error < 1e-10
    channels = [1, 16, 24, 24]
    convs = sum((9 * a + 1 + 2) * b for a, b in zip(channels, channels[1:], strict=False))
    assert result.parameters[1] == convs + (24 * 16 + 1) * 40 + 40 * 10 + 10
    assert receipt.after.parameters == result.parameters[1] - 2 * sum(
        channels[1:]
    )  # norms are folded
    large, small, least = (point["bytes"] for point in points)
    assert small == pytest.approx(4 * result.parameters[1], rel=0.3)
    assert large > 4 * small
    assert small > 2.5 * least
