import pytest
from rich.console import Console

from lilliput import demo


def test_the_demo_prunes_exactly_and_keeps_its_accuracy(monkeypatch):
    monkeypatch.setattr(demo, "TRAIN_EPOCHS", 6)
    monkeypatch.setattr(demo, "PRUNE_EPOCHS", 6)
    monkeypatch.setattr(demo, "FINETUNE_EPOCHS", 2)
    before, after = demo.run(Console(quiet=True))
    assert before["accuracy"] > 0.95
    assert after["accuracy"] > before["accuracy"] - 0.03
    weights = [9 * 32, 9 * 32 * 64, 1024 * 128, 128 * 10]
    pruned = sum(round(n * 0.9) for n in weights)
    assert after["non-zero parameters"] == pytest.approx(
        before["non-zero parameters"] - pruned, abs=5
    )
    assert after["bytes on disk, deflated"] < before["bytes on disk, deflated"] / 4
