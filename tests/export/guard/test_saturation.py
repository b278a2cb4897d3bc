import numpy as np
import pytest
import torch
from emulation import emulated_errors, pair_sums
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lilliput.config.layer import QuantType
from lilliput.core.quantizer import Quantizer
from lilliput.errors import ConfigError
from lilliput.export.guard import cpu
from lilliput.export.guard.cpu import cpu_has_wide_dot
from lilliput.export.guard.pairs import LIMIT, worst_pairs
from lilliput.export.guard.saturation import guard, watch_inputs
from lilliput.ops.qparams import Grid, QParams

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

narrow_only = pytest.mark.skipif(cpu_has_wide_dot(), reason="this CPU adds products in 32 bits")
CONV = {3: nn.functional.conv1d, 4: nn.functional.conv2d, 5: nn.functional.conv3d}


def worst_pair_sums(weight, largest=None, groups=1):
    """Worst_pairs of tensors."""
    seen = None if largest is None else largest.numpy()
    return torch.from_numpy(worst_pairs(weight.numpy(), seen, groups))


def exact_sums(stored, weight, zero_point, **options):
    """The layer in exact integers; float64 holds them."""
    inputs, weight = stored.double() - zero_point, weight.double()
    if weight.ndim == 2:
        return inputs @ weight.T
    return CONV[weight.ndim](inputs, weight, **options)


def executed_errors(stored, weight, zero_point=0, threads=1, **options):
    """What ONNX Runtime adds to the exact sums of one row or one output place, for each output channel.

    The bias is minus the exact sum, so that the output is zero if all is well, and its scale is one.
    """
    expected = exact_sums(stored, weight, zero_point, **options).reshape(-1)
    outputs = len(weight)
    assert len(expected) == outputs
    constants = {
        "one": np.float32(1),
        "zero": np.uint8(zero_point),
        "weight": weight.numpy().astype(np.int8),
        "ones": np.ones(outputs, np.float32),
        "weight_zero": np.zeros(outputs, np.int8),
        "bias": -expected.numpy().astype(np.int32),
        "bias_zero": np.zeros(outputs, np.int32),
        "middle": np.uint8(128),
    }
    make = onnx.helper.make_node
    nodes = [
        make("DequantizeLinear", ["x", "one", "zero"], ["inputs"]),
        make("DequantizeLinear", ["weight", "ones", "weight_zero"], ["weights"], axis=0),
        make("DequantizeLinear", ["bias", "ones", "bias_zero"], ["biases"], axis=0),
        make("Gemm", ["inputs", "weights", "biases"], ["sums"], transB=1)
        if weight.ndim == 2
        else make(
            "Conv", ["inputs", "weights", "biases"], ["sums"], group=options.get("groups", 1)
        ),
        make("QuantizeLinear", ["sums", "one", "middle"], ["y"]),
    ]
    unsigned = onnx.TensorProto.UINT8
    graph = onnx.helper.make_graph(
        nodes,
        "layer",
        [onnx.helper.make_tensor_value_info("x", unsigned, stored.shape)],
        [onnx.helper.make_tensor_value_info("y", unsigned, None)],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    )
    choices = onnxruntime.SessionOptions()
    choices.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), choices, providers=["CPUExecutionProvider"]
    )
    (output,) = session.run(None, {"x": stored.numpy().astype(np.uint8)})
    return torch.from_numpy(output.astype(np.int64).reshape(-1) - 128)


def largest_of(stored, axis):
    """Largest integers of each channel, and of each with the next, as watch_inputs has them."""
    rows = stored.movedim(axis, 0).flatten(1)
    return torch.stack([rows.amax(1), torch.cat([rows[:-1] + rows[1:], rows[-1:]]).amax(1)]).float()


@st.composite
def layers(draw):
    """A small layer with weights and stored inputs around the critical sizes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    dimensions = draw(st.sampled_from([0, 1, 2, 2, 3]))
    kernel = [draw(st.integers(1, 3)) for _ in range(dimensions)]
    groups = groups if dimensions else 1
    top, reach = draw(st.integers(60, 127)), draw(st.integers(100, 255))
    shape = (groups * outputs, channels, *kernel)
    weight = torch.randint(-top - 1, top + 1, shape, generator=generator)
    weight *= torch.rand(shape, generator=generator) < draw(st.sampled_from([0.3, 1.0]))
    stored = torch.randint(0, reach + 1, (1, groups * channels, *kernel), generator=generator)
    return weight, stored, groups, draw(st.sampled_from([0, 7, 128]))


@narrow_only
@settings(deadline=None, max_examples=60)
@given(layers())
def test_the_emulation_is_what_a_cpu_without_vnni_computes(layer):
    weight, stored, groups, zero_point = layer
    options = {"groups": groups} if weight.ndim > 2 else {}
    executed = executed_errors(stored, weight, zero_point, **options).numpy()
    assert executed.tolist() == emulated_errors(stored, weight, groups).tolist()


@settings(deadline=None, max_examples=60)
@given(layers())
def test_a_channel_that_cannot_saturate_is_exact_in_the_emulation(layer):
    weight, stored, groups, _ = layer
    worst = worst_pair_sums(weight, largest_of(stored, 1), groups).numpy()
    assert (emulated_errors(stored, weight, groups)[worst <= LIMIT] == 0).all()


@settings(deadline=None, max_examples=60)
@given(layers())
def test_a_channel_that_cannot_saturate_is_executed_exactly(layer):
    weight, stored, groups, zero_point = layer
    worst = worst_pair_sums(weight, largest_of(stored, 1), groups)
    options = {"groups": groups} if weight.ndim > 2 else {}
    errors = executed_errors(stored, weight, zero_point, **options)
    assert (errors[worst <= LIMIT] == 0).all()


@settings(deadline=None, max_examples=60)
@given(layers())
def test_the_bound_covers_every_pair(layer):
    weight, stored, groups, _ = layer
    if weight.ndim > 2 and weight.shape[1] == 1 and len(weight) == groups:
        return  # depthwise
    actual = np.abs(pair_sums(stored, weight, groups)).max(1)
    worst = worst_pair_sums(weight, largest_of(stored, 1), groups).numpy()
    assert (worst >= actual).all()


def test_the_bound_is_exact_for_one_row():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(1, 128, (40, 9), generator=generator)  # of one sign, so that none cancel
    stored = torch.randint(100, 256, (1, 9), generator=generator)
    worst = worst_pair_sums(weight, largest_of(stored, 1))
    assert (worst.numpy() == pair_sums(stored, weight).max(1)).all()
    assert ((emulated_errors(stored, weight) != 0) == (worst.numpy() > LIMIT)).all()


@pytest.mark.parametrize(
    ("shape", "groups", "first", "second"),
    [
        ((1, 6), 1, (0, 2), (0, 3)),
        ((1, 7), 1, (0, 4), (0, 5)),
        ((2, 4, 3, 3), 1, (1, 2, 1, 0), (1, 3, 1, 0)),
        ((1, 3, 3, 3), 1, (0, 2, 0, 0), (0, 0, 0, 1)),  # over two positions
        ((4, 2, 1, 1), 2, (3, 0, 0, 0), (3, 1, 0, 0)),
        ((2, 1, 3), 1, (1, 0, 0), (1, 0, 1)),  # one channel, two outputs: not depthwise
    ],
)
def test_one_pair_saturates_as_documented(shape, groups, first, second):
    options = {"groups": groups} if len(shape) > 2 else {}
    stored = torch.full((1, groups * shape[1], *shape[2:]), 255)
    for value, shown in ((127, -128), (-128, 127)):  # as much of the error as eight bits show
        weight = torch.zeros(shape, dtype=torch.int64)
        weight[first] = weight[second] = value
        assert emulated_errors(stored, weight, groups)[first[0]] == shown
        if not cpu_has_wide_dot():
            for threads in (1, 2):
                errors = executed_errors(stored, weight, threads=threads, **options)
                assert errors[first[0]] == shown
        assert worst_pair_sums(weight, None, groups)[first[0]] == abs(2 * 255 * value)


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6), 1), ((2, 4, 3, 3), 1), ((2, 3, 2, 2), 1), ((4, 4, 1), 2)]
)
def test_neighbours_of_different_pairs_do_not_saturate(shape, groups):
    ordered = torch.zeros(shape, dtype=torch.int64).movedim(1, -1).contiguous()
    ordered.view(shape[0], -1)[:, [1, 2]] = 127
    weight = ordered.movedim(-1, 1)
    stored = torch.full((1, groups * shape[1], *shape[2:]), 255)
    options = {"groups": groups} if len(shape) > 2 else {}
    assert (executed_errors(stored, weight, **options) == 0).all()
    assert worst_pair_sums(weight, None, groups).max() == 127 * 255


def test_sums_saturate_above_the_limit_and_not_before():
    for inputs, weights in (
        (129, (127, 127)),
        (130, (127, 127)),
        (255, (-127, -1)),
        (255, (-127, -2)),
    ):
        weight, stored = torch.tensor([weights]), torch.full((1, 2), inputs)
        is_exact = bool(emulated_errors(stored, weight) == 0)
        assert is_exact == bool(worst_pair_sums(weight, largest_of(stored, 1)) <= LIMIT)


def test_depthwise_convolutions_never_saturate():
    weight = torch.full((5, 1, 3, 3), 127)
    assert worst_pair_sums(weight, groups=5).max() == 0
    stored = torch.full((1, 5, 3, 3), 255)
    assert (executed_errors(stored, weight, groups=5) == 0).all()


def test_seven_bits_and_small_activations_raise_no_alarm():
    generator = torch.Generator().manual_seed(0)
    seven = torch.randint(-64, 64, (50, 30, 3, 3), generator=generator)
    assert worst_pair_sums(seven).max() <= LIMIT
    eight = torch.randint(-127, 128, (50, 30), generator=generator)
    assert worst_pair_sums(eight).max() > LIMIT
    assert worst_pair_sums(eight, torch.tensor([[129], [258]]).expand(2, 30)).max() <= LIMIT


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "flags\t\t: fpu avx2 avx512f avx512_vnni", True),
        ("AMD64", "flags\t\t: fpu avx2 avx_vnni", True),
        ("x86_64", "flags\t\t: fpu avx2 avx512f avx512bw", False),
        ("x86_64", None, False),
        ("aarch64", None, True),
        ("", None, False),
    ],
)
def test_the_cpu_is_known_by_its_flags(monkeypatch, tmp_path, machine, flags, expected):
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n")
    monkeypatch.setattr(cpu, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    assert cpu_has_wide_dot() is expected


# -- with a quantizer --------------------------------------------------------------------------------


class Fixed(Quantizer):
    """Weights by their largest magnitude, inputs on one grid for all layers."""

    keeps_zero = True
    inputs = QParams(torch.tensor(1 / 64), torch.tensor(10.0), Grid(8, False, False))

    def scales(self, weight, wrapper):
        return weight.detach().abs().flatten(1).amax(1) / 127

    def bits(self, wrapper):
        return getattr(wrapper, "bits", 8)

    def weight_qparams(self, weight, wrapper):
        grid = Grid(self.bits(wrapper), True, True, is_narrow=True, axis=0)
        scale = self.scales(weight, wrapper) * (127 / grid.high)
        return QParams(scale, torch.zeros_like(scale), grid)

    def quantize_weight(self, weight, wrapper, **kwargs):
        qparams = self.weight_qparams(weight, wrapper)
        return qparams.to_reals(qparams.to_integers(weight))

    def quantize_input(self, tensor, wrapper, **kwargs):
        return self.inputs.to_reals(self.inputs.to_integers(tensor))

    def qparams(self, wrapper, quant_type):
        if quant_type == QuantType.WEIGHT:
            return self.weight_qparams(wrapper.weight, wrapper)
        return self.inputs


class Reducing(Fixed):
    def reduce_bits(self, wrapper, bits):
        wrapper.bits = bits


class Coarsening(Fixed):
    def scales(self, weight, wrapper):
        return super().scales(weight, wrapper) * getattr(wrapper, "coarseness", 1.0)

    def coarsen_weight(self, wrapper, factors):
        wrapper.set_attribute("coarseness", factors)


CONFIG = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input"], "quant_bits": 8}]


def small_model():
    """The second convolution has two output channels that saturate on positive inputs, the rest not."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.Flatten(), nn.Linear(24, 3)
    )
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.weight.uniform_(-0.01, 0.01)
            layer.weight.view(len(layer.weight), -1)[:, 0] = 0.1  # it alone has the largest integer
        model[0].bias.fill_(3.0)
        model[2].weight[1:3] = 0.1
        model[2].bias.zero_()
    return model


def integer_layer(quantizer, wrapper, inputs):
    """Return what a file would hold of a layer, and its stored inputs at the first place."""
    weight = quantizer.qparams(wrapper, QuantType.WEIGHT).to_integers(wrapper.module.weight)
    return weight.detach().long(), Fixed.inputs.to_integers(inputs).detach().long()


@pytest.mark.parametrize("kind", [Reducing, Coarsening])
def test_a_layer_that_saturates_is_exact_after_the_guard(kind):
    quantizer = kind(small_model(), CONFIG)
    model = quantizer.compress()
    batch = torch.rand(8, 4, 2, 2)
    wrapper = quantizer.get_modules_wrapper()[1]
    with torch.no_grad():
        place = model[:2](batch)[:1].repeat(1, 1, 2, 2)[..., :3, :3]
    weight, stored = integer_layer(quantizer, wrapper, place)
    assert (emulated_errors(stored[:1], weight) != 0).any()

    (row,) = guard(quantizer, [batch])

    assert (row.layer, row.channels, row.bits) == ("2", 2, 8)
    assert row.worst > LIMIT >= row.worst_after
    assert row.bits_after == (7 if kind is Reducing else 8)
    weight, stored = integer_layer(quantizer, wrapper, place)
    assert (emulated_errors(stored[:1], weight) == 0).all()
    assert (executed_errors(stored, weight, 10) == 0).all()  # on any CPU
    assert guard(quantizer, [batch]) == []


def test_channels_that_do_not_saturate_keep_their_scale():
    quantizer = Coarsening(small_model(), CONFIG)
    model = quantizer.compress()
    before = model[2].weight.detach().clone()
    guard(quantizer, [torch.rand(8, 4, 2, 2)])
    is_equal = (model[2].weight == before).flatten(1).all(1)
    assert is_equal.tolist() == [True, False, False, True, True, True]


def test_a_quantizer_without_remedy_is_reported_and_left_alone():
    quantizer = Fixed(small_model(), CONFIG)
    model = quantizer.compress()
    before = model[2].weight.detach().clone()
    (row,) = guard(quantizer, [torch.rand(8, 4, 2, 2)])
    assert row.worst == row.worst_after > LIMIT
    assert (row.bits, row.bits_after) == (8, 8)
    assert (model[2].weight == before).all()


def test_layers_are_only_listed_where_nothing_is_to_change():
    quantizer = Coarsening(small_model(), CONFIG)
    model = quantizer.compress()
    before = model[2].weight.detach().clone()
    (row,) = guard(quantizer, [torch.rand(8, 4, 2, 2)], change=False)
    assert row.layer == "2" and not row.is_changed
    assert (model[2].weight == before).all()


def test_inputs_are_watched_as_they_are_stored():
    model = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(8, 2))
    quantizer = Fixed(model, CONFIG)
    quantizer.compress().train()
    batch = torch.zeros(2, 3, 2, 2)
    batch[0, 0, 0, 0], batch[0, 1, 0, 0], batch[1, 1, 1, 1] = 1.0, 0.5, 2.004
    batch[:, 2] = -0.1
    seen = watch_inputs(quantizer, [batch[:1], batch[1:]])
    # 64 steps are one, the zero point is 10; padding counts, at the third channel it is all there is.
    assert seen["0"].tolist() == [[74, 138, 10], [10 + 138, 138 + 4, 20]]
    assert seen["2"].shape == (2, 8)
    assert model.training
    assert all(not m._forward_pre_hooks or "lilliput" in m._modules for m in model.modules())
    assert len(model[0]._forward_pre_hooks) == 1


def test_inputs_by_keyword_of_any_rank_and_signed_ones_are_watched():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(input=x)

    quantizer = Fixed(Model(), CONFIG)
    quantizer.inputs = QParams(torch.tensor(0.5), torch.tensor(0.0), Grid(8, True, True))
    quantizer.compress()
    batch = torch.tensor([[[1.0, -3.0], [-1.0, 2.0]]])
    seen = watch_inputs(quantizer, [{"x": batch}])
    assert seen["linear"].tolist() == [[130, 132], [258, 132]]


def test_nothing_is_watched_where_nothing_can_saturate():
    quantizer = Reducing(small_model(), CONFIG)
    quantizer.compress()
    for wrapper in quantizer.get_modules_wrapper():
        wrapper.bits = 7
    assert watch_inputs(quantizer, []) == {}
    assert guard(quantizer, [torch.rand(2, 4, 2, 2)]) == []


def test_with_little_data_activations_may_be_as_large_as_their_grid():
    quantizer = Coarsening(small_model(), CONFIG)
    quantizer.compress()
    batch = torch.rand(8, 4, 2, 2)
    assert set(watch_inputs(quantizer, [batch], enough=32)) == {"0", "2"}  # a Linear sees 8 rows
    assert watch_inputs(quantizer, [batch], enough=33) == {}
    few, many = (
        {row.layer: row.worst for row in guard(quantizer, [batch], change=False, enough=enough)}
        for enough in (33, 32)
    )
    assert few["2"] > many["2"]


def test_an_empty_loader_is_refused():
    quantizer = Reducing(small_model(), CONFIG)
    quantizer.compress()
    with pytest.raises(ConfigError, match="no batches"):
        guard(quantizer, iter([]))
