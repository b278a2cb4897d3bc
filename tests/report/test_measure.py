"""What is counted and timed, against formulas; files are executed by their runtime."""

import time

import numpy as np
import pytest
import torch
from torch import nn

from lilliput.errors import ConfigError, StateError, UnsupportedModelError
from lilliput.frameworks.torch.measure import count_macs
from lilliput.measure.latency import readings_of
from lilliput.measure.timing import time_calls
from lilliput.torch import (
    L1NormPruner,
    LevelPruner,
    PTQQuantizer,
    export_onnx,
    measure,
    measure_all,
    open_file,
    speedup,
    take_receipt,
)

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    ).eval()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model under post-training quantization, and its file."""
    model = make_model()
    quantizer = PTQQuantizer(model, [{"op_types": ["Conv2d", "Linear"]}])
    quantizer.compress()
    quantizer.calibrate([X])
    path = tmp_path_factory.mktemp("files") / "small.onnx"
    return model, export_onnx(quantizer, path, X)


def test_counts_are_those_of_the_formulas():
    model = make_model()
    figures = measure(model, X, runs=5)
    assert figures.parameters == 8 * 27 + 8 + 8 + 8 + 8 * 36 * 5 + 5
    assert figures.macs == 36 * 8 * 27 + 8 * 36 * 5
    assert figures.bytes == 4 * (figures.parameters + 8 + 8) + 8  # running statistics, and a count
    assert figures.nonzeros == figures.parameters - 8  # the shifts of a new batch norm are zero
    assert 0 < figures.p50 <= figures.p95
    assert figures.runs == 5
    by_the_clock, by_cpu_time = figures.readings[:2], figures.readings[2:]
    assert max(by_the_clock) >= figures.p50 >= min(by_the_clock) > 0
    assert all(x > 0 for x in by_cpu_time) and len(by_cpu_time) == (torch.get_num_threads() == 1)


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (nn.LSTM(3, 4), torch.zeros(5, 2, 3), 10 * 4 * 4 * (3 + 4)),
        (nn.GRU(3, 4, 2, bidirectional=True), torch.zeros(5, 2, 3), 10 * 2 * 12 * (3 + 4 + 8 + 4)),
        (nn.LSTMCell(3, 4), torch.zeros(5, 3), 5 * 16 * (3 + 4)),
        (nn.Conv2d(4, 8, 3, groups=2), torch.zeros(1, 4, 5, 5), 9 * 8 * 2 * 9),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(),
            torch.zeros(2, 3, 8),
            6 * (4 * 64 + 2 * 8 * 16) + 2 * 2 * 9 * 8,
        ),
    ],
)
def test_recurrent_and_attention_layers_are_counted(layer, inputs, expected):
    assert count_macs(layer, inputs) == expected


def test_measuring_changes_nothing():
    model = make_model().train()
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    measure(model, X, runs=2)
    assert model.training and not model[1].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.backends.mha.get_fastpath_enabled()


def test_masks_show_as_zeros_and_as_nothing_gained():
    model = make_model()
    before = measure(model, X, runs=0)
    LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.5}]).compress()
    after = measure(model, X, runs=0)
    assert before.nonzeros - after.nonzeros == 8 * 36 * 5 // 2
    assert take_receipt(before, after).masked_only


def test_a_shrunk_model_comes_with_its_receipt():
    model = make_model()
    rules = [{"op_types": ["Conv2d"], "sparsity": 0.5}]
    model = L1NormPruner(model, rules, example_inputs=X).compress()
    receipt = speedup(model, X).receipt
    assert receipt.before.parameters == 8 * 27 + 8 + 16 + 8 * 36 * 5 + 5
    assert receipt.after.parameters == 4 * 27 + 4 + 8 + 4 * 36 * 5 + 5
    assert receipt.after.macs * 2 == receipt.before.macs
    assert receipt.after.bytes < receipt.before.bytes
    assert receipt.max_difference < 1e-6
    assert receipt.after.p50 > 0


def test_an_export_comes_with_its_receipt(exported):
    _, result = exported
    receipt = result.receipt
    assert receipt is result.receipt  # measured once
    assert receipt.after.bytes == result.bytes
    assert receipt.before.macs == receipt.after.macs == 36 * 8 * 27 + 8 * 36 * 5
    assert receipt.after.parameters == 8 * 27 + 8 + 8 * 36 * 5 + 5  # the norm is folded
    assert receipt.max_difference == max(x.max_error for x in result.runtimes.values())
    assert "to the simulation" in str(receipt)  # not to the float model, which is the other column
    assert receipt.before.runtime == receipt.after.runtime
    assert receipt.after.runtime.startswith("ONNX Runtime")
    assert "not comparable" not in str(receipt)


def test_a_file_is_called_like_its_model(exported):
    model, result = exported
    file = open_file(result.path).eval().to("cpu")
    with torch.no_grad():
        expected = model(X)
    assert torch.allclose(file(X), expected, atol=0.05 * float(expected.abs().max()))
    assert isinstance(file(X.numpy()), np.ndarray)
    rows = file.predict(X.numpy(), batch_size=3)
    np.testing.assert_allclose(rows, file(X.numpy()), rtol=1e-5, atol=1e-6)


def test_one_evaluation_fits_the_model_and_the_file(exported):
    model, result = exported

    def mean(net):
        return net(X).mean()

    both = measure_all([model, result.path], X, evaluate=mean, names=["a", ""], runs=1)
    assert [x.name for x in both] == ["a", "small.onnx"]
    assert both[0].metric == pytest.approx(both[1].metric, abs=0.02)


def test_bad_input_is_named(tmp_path):
    model = make_model()
    with pytest.raises(ConfigError, match="returned list, expected one number"):
        measure(model, X, evaluate=lambda net: [1], runs=0)
    with pytest.raises(ConfigError, match="no such file"):
        measure(tmp_path / "none.onnx", X)
    with pytest.raises(ConfigError, match="ends in .onnx or .tflite"):
        measure(tmp_path / "model.pt", X)
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(StateError, match="broken.onnx: ONNX Runtime cannot read"):
        measure(tmp_path / "broken.onnx", X)
    with pytest.raises(UnsupportedModelError):
        measure(3, X)


def test_the_number_of_inputs_is_checked(exported):
    _, result = exported
    with pytest.raises(ConfigError, match="takes 1 inputs, received 2"):
        open_file(result.path)(X, X)


def test_an_input_that_does_not_fit_is_named_with_what_the_file_takes(exported):
    _, result = exported
    file = open_file(result.path)
    for wrong in (X[:, :-1], X[0], X.double()):
        kind, shape = str(wrong.dtype).removeprefix("torch."), list(wrong.shape)
        with pytest.raises(ConfigError) as caught:
            file(wrong)
        assert f" is {kind} of shape {shape}, expected float32 of shape [?, " in str(caught.value)


def test_a_call_that_takes_long_is_made_as_seldom_as_it_may_be():
    made = []

    def slow():
        made.append(1)
        time.sleep(0.02)

    (times,) = time_calls([slow], 20, seconds=0.01, warm_up=0, fewest=4)
    assert len(times) == len(made) == 4
    assert len(readings_of(times)) == 2  # so that a busy machine shows


def test_the_receipt_of_a_cut_has_two_readings_of_both_models():
    class Slow(torch.nn.Sequential):
        def forward(self, x):
            time.sleep(0.03)
            return super().forward(x)

    model = Slow(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    x = torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    receipt = speedup(model, x).receipt
    for side in (receipt.before, receipt.after):
        assert len(side.readings) == 2
        assert side.runs == 4
        assert side.p50 >= 30


def test_the_receipt_of_a_cut_times_no_first_call():
    seen = []

    class Cold(torch.nn.Sequential):
        def forward(self, x):
            if not any(x is self for x in seen):
                seen.append(self)
                time.sleep(0.3)
            return super().forward(x)

    model = Cold(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    x = torch.randn(2, 4)
    L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    receipt = speedup(model, x).receipt
    for side in (receipt.before, receipt.after):
        assert max(side.readings) < 100
