"""While one thread calibrates, reports on or exports a model, others get what they always get."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from lilliput.torch import (
    L1NormPruner,
    PTQQuantizer,
    QATQuantizer,
    export_onnx,
    quantization_report,
    speedup,
)

pytestmark = pytest.mark.slow

BATCHES = [torch.randn(16, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def quantized(seed: int, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    ).eval()
    quantizer = PTQQuantizer(model, [{"quant_bits": 4}], **options)
    quantizer.compress()
    quantizer.calibrate(BATCHES)
    return quantizer


def encoder(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()


def calibrate(quantizer: Any, folder: Any) -> None:
    for _ in range(3):
        quantizer.calibrate(BATCHES)


def report(quantizer: Any, folder: Any) -> None:
    for _ in range(5):
        quantization_report(quantizer, BATCHES)


def export(quantizer: Any, folder: Any) -> None:
    export_onnx(quantizer, folder / "a.onnx", BATCHES[0])


WORK = {"calibrate": calibrate, "report": report, "export": export}


def while_running(work: Callable[[], Any], look: Callable[[], bool]) -> tuple[int, int]:
    """Return how often ``look()`` was right and wrong while work was done in another thread.

    On a busy machine the work may be over before this thread has its turn: then it is done again.
    """
    right = wrong = 0
    with ThreadPoolExecutor(1) as pool:
        for _ in range(10):
            future = pool.submit(work)
            while not future.done():
                if look():
                    right += 1
                else:
                    wrong += 1
            future.result()
            if right + wrong > 3:
                break
    return right, wrong


@torch.no_grad()
def inference(model: Any, batch: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = model(batch)
    return result


@pytest.mark.parametrize("whose", ["another model", "a copy"])
@pytest.mark.parametrize("name", list(WORK))
def test_inference_in_another_thread_stays_right(name: str, whose: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"bias_correction": True}
    if name == "calibrate":
        options |= {"adaround": {"steps": 100}, "equalize": True}
    first = quantized(0, **options)
    other = (
        quantized(1).bound_model if whose == "another model" else copy.deepcopy(first.bound_model)
    )
    expected = inference(other, BATCHES[0])
    plain = inference(first.bound_model, BATCHES[0])
    right, wrong = while_running(
        lambda: WORK[name](first, tmp_path),
        lambda: torch.equal(inference(other, BATCHES[0]), expected),
    )
    assert wrong == 0
    assert right > 3
    assert torch.equal(inference(first.bound_model, BATCHES[0]), plain)  # the same calibration


def test_ranges_are_those_of_the_own_batches_while_a_copy_runs() -> None:
    first = quantized(0)
    clone = copy.deepcopy(first.bound_model)
    expected = {w.name: float(w.input_high) for w in first.get_modules_wrapper()}
    while_running(
        lambda: first.calibrate(BATCHES * 8),
        lambda: bool(inference(clone, 100 * BATCHES[0]).isfinite().all()),
    )
    assert {w.name: float(w.input_high) for w in first.get_modules_wrapper()} == pytest.approx(
        expected
    )


def test_a_copy_made_meanwhile_is_not_marked() -> None:
    quantizer = quantized(0)
    copies: list[nn.Module] = []

    def forward(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        copies.append(copy.deepcopy(model))
        return model(batch)  # type: ignore[no-any-return]

    quantizer.calibrate(BATCHES, forward)
    expected = inference(quantizer.bound_model, BATCHES[0])  # the ranges are the same again
    assert torch.equal(inference(copies[-1], BATCHES[0]), expected)


def test_two_exports_at_once_both_succeed(tmp_path: Any) -> None:
    quantizers = [quantized(seed) for seed in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(export_onnx, q, tmp_path / f"{i}.onnx", BATCHES[0])
            for i, q in enumerate(quantizers)
        ]
        results = [job.result() for job in jobs]
    for i, quantizer in enumerate(quantizers):
        alone = tmp_path / f"alone{i}.onnx"
        export_onnx(quantizer, alone, BATCHES[0])
        assert results[i].path.read_bytes() == alone.read_bytes()


def test_flows_recorded_at_once_are_those_of_their_own_models() -> None:
    """Placement of quantizers by example inputs, in several threads, with attention's fast path."""

    def places(seed: int) -> list[Any]:
        model = encoder(seed)
        quantizer = QATQuantizer(model, None, example_inputs=torch.zeros(2, 5, 8))
        quantizer.compress()
        return [(w.name, w.places) for w in quantizer.get_modules_wrapper()]

    expected = places(0)
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(places, range(12)))
    assert all(each == expected for each in found)
    assert torch.backends.mha.get_fastpath_enabled() == was_enabled


def test_two_threads_train_two_models_as_one_after_the_other() -> None:
    def train(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        quantizer = QATQuantizer(model, [{"quant_bits": 4}], optimizer)
        quantizer.compress()
        for batch in BATCHES * 3:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    alone = [train(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, range(4)))
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_cuts_in_two_threads_are_those_of_one() -> None:
    def cut(seed: int) -> list[tuple[int, ...]]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        L1NormPruner(model, [{"sparsity": 0.5, "op_names": ["0"]}], None, BATCHES[0]).compress()
        shrunk = speedup(model, BATCHES[0]).model
        return [tuple(p.shape) for p in shrunk.parameters()]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(cut, range(4))) == [cut(0)] * 4


def test_the_first_exports_may_come_together(tmp_path: Any) -> None:
    program = """
import threading, torch
from lilliput.frameworks.torch.export.marks import mark_operator
start, found = threading.Barrier(8), []
def ask():
    start.wait()
    found.append(mark_operator())
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 8, len(found)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
