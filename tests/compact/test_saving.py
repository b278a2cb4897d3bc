"""save and load: what a model computes with comes back exactly, or the model stays as it was."""

import copy
import lzma

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lilliput.torch as lt
from lilliput.compact.saving import _upper_half, convert
from lilliput.errors import ConfigError, LilliputError, StateError, WriteError


def net(hidden=64):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(40, hidden),
        torch.nn.BatchNorm1d(hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 10),
    ).eval()


def outputs(model):
    with torch.no_grad():
        return model(torch.linspace(-1, 1, 400).reshape(10, 40))


@pytest.mark.parametrize("compact", [False, True])
def test_a_plain_model_comes_back_bit_for_bit(tmp_path, compact):
    model, again = net(), net()
    with torch.no_grad():
        for p in again.parameters():
            p.zero_()
    size = lt.save(model, tmp_path / "m.lil", compact=compact)
    assert size == (tmp_path / "m.lil").stat().st_size
    assert lt.load(again, tmp_path / "m.lil") is again
    for one, two in zip(model.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("make", "share"),
    [
        (lambda m: lt.LevelPruner(m, [{"op_types": ["Linear"], "sparsity": 0.9}]), 5),
        (lambda m: lt.NaiveQuantizer(m, [{"op_types": ["Linear"], "quant_bits": 4}]), 5),
        (
            lambda m: lt.QATQuantizer(
                m, [{"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": 8}]
            ),
            2.5,
        ),
        (lambda m: lt.DoReFaQuantizer(m, [{"op_types": ["Linear"], "quant_bits": 2}]), 8),
        (lambda m: lt.BNNQuantizer(m, [{"op_types": ["Linear"]}]), 12),
    ],
    ids=["pruned", "4 bits", "8 bits per channel", "dorefa", "binary"],
)
def test_what_a_compressor_makes_of_weights_is_written(tmp_path, make, share):
    model, plain = net(), net()
    compressor = make(model)
    compressor.compress()
    expected = outputs(model)
    held = {k: v.clone() for k, v in model.state_dict().items()}
    size = lt.save(model, tmp_path / "m.lil", compact=True)
    lt.load(plain, tmp_path / "m.lil")
    torch.testing.assert_close(outputs(plain), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(plain[0].weight, model[0].weight)
    assert size < lt.save(plain, tmp_path / "m.safetensors") / share
    assert all(torch.equal(v, held[k]) for k, v in model.state_dict().items())


def test_odd_types_come_back(tmp_path):
    class Odd(torch.nn.Module):
        def __init__(self, fill):
            super().__init__()
            for i, dtype in enumerate((torch.bfloat16, torch.float16, torch.float64, torch.int64)):
                held = torch.arange(24).reshape(2, 3, 4).to(dtype) * fill
                self.register_buffer(f"b{i}", held)
            self.register_buffer("flags", torch.tensor([True, False, True]) & bool(fill))
            self.register_buffer("scalar", torch.tensor(float(fill)))
            self.register_buffer("empty", torch.zeros(0, 3))

    one, two = Odd(3), Odd(0)
    lt.save(one, tmp_path / "odd.lil", compact=True)
    lt.load(two, tmp_path / "odd.lil")
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_tied_weights_are_paid_for_once(tmp_path):
    tied = torch.nn.Sequential(torch.nn.Linear(50, 50), torch.nn.Linear(50, 50))
    tied[1].weight = tied[0].weight
    alone = torch.nn.Sequential(tied[0])
    two = lt.save(tied, tmp_path / "two.lil", compact=True)
    assert two < lt.save(alone, tmp_path / "one.lil", compact=True) + 50 * 4 + 30


def test_quantized_activations_are_refused_as_by_export_model(tmp_path):
    model = net()
    rule = {"op_types": ["Linear"], "quant_types": ["weight", "input"], "quant_bits": 8}
    lt.QATQuantizer(model, [rule]).compress()
    with pytest.raises(LilliputError, match="quantized activations"):
        lt.save(model, tmp_path / "m.lil", compact=True)
    assert not (tmp_path / "m.lil").exists()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: net(32), r"'0.weight' is float32 of shape \[64, 40\], expected .*\[32, 40\]"),
        (lambda: net().double(), "'0.weight' is float32 .*expected float64"),
        (lambda: torch.nn.Linear(3, 3), "'weight' is missing.*'0.weight' is not in the model"),
    ],
)
@pytest.mark.parametrize("compact", [False, True])
def test_a_file_of_another_model_is_refused_and_nothing_changes(tmp_path, other, message, compact):
    lt.save(net(), tmp_path / "m.lil", compact=compact)
    model = other()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StateError, match=message):
        lt.load(model, tmp_path / "m.lil")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_model_under_a_compressor_is_not_loaded_into(tmp_path):
    model = net()
    lt.save(model, tmp_path / "m.lil", compact=True)
    lt.LevelPruner(model, [{"sparsity": 0.5}]).compress()
    with pytest.raises(StateError, match="strip"):
        lt.load(model, tmp_path / "m.lil")


def test_no_file_is_left_where_none_can_be_written(tmp_path):
    with pytest.raises(WriteError):
        lt.save(net(), tmp_path / "missing" / "m.lil", compact=True)
    with pytest.raises(StateError, match="no readable"):
        lt.load(net(), tmp_path / "missing.lil")


def test_a_shrunk_model_is_one_small_file(tmp_path):
    model, x = net(), torch.randn(4, 40)
    lt.L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    result = lt.speedup(model, x)
    result.save(tmp_path / "shrunk.lil", compact=True)
    again = lt.load(net(), tmp_path / "shrunk.lil")
    assert again[0].out_features == 32
    assert torch.equal(outputs(again), outputs(result.model))
    held = sum(t.nbytes for t in result.model.state_dict().values())
    assert (tmp_path / "shrunk.lil").stat().st_size < held
    with pytest.raises(StateError):
        lt.load(net(32), tmp_path / "shrunk.lil")


def test_negative_zeros_cost_nothing(tmp_path):
    model = torch.nn.Linear(100, 100)
    with torch.no_grad():
        model.weight.mul_(torch.rand_like(model.weight) < 0.05)  # leaves zeros of both signs
    assert np.signbit(model.weight.detach().numpy()[model.weight.detach().numpy() == 0]).any()
    size = lt.save(model, tmp_path / "m.lil", compact=True)
    again = lt.load(torch.nn.Linear(100, 100), tmp_path / "m.lil")
    assert torch.equal(again.weight, model.weight)
    assert size < 500 * 3.2 + 10_000 * 0.3 / 8 + 400 + 100


def test_biases_are_rounded_if_asked_and_only_they(tmp_path):
    model = net(300)
    exact = lt.save(model, tmp_path / "exact.lil", compact=True)
    size = lt.save(model, tmp_path / "small.lil", compact=True, bias_bits=6)
    again = lt.load(net(300), tmp_path / "small.lil")
    assert torch.equal(again[0].weight, model[0].weight)
    for one, two in ((model[0].bias, again[0].bias), (model[3].bias, again[3].bias)):
        step = float(one.detach().abs().max()) / 31
        assert 0 < float((one - two).detach().abs().max()) <= step / 2 * 1.001
    assert exact - size > 310 * (3.2 - 6.5 / 8)  # bytes of a float, less what its exponent tells
    with pytest.raises(ConfigError, match="bias_bits: received 1, expected 2 to 16"):
        lt.save(model, tmp_path / "small.lil", compact=True, bias_bits=1)


class Biased(torch.nn.Module):
    """Has biases of recurrent layers and attention, and tensors that are only called biases."""

    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 64, bidirectional=True)
        self.attention = torch.nn.MultiheadAttention(64, 4)
        self.conv = torch.nn.Conv1d(64, 64, 3)
        self.table = torch.nn.Embedding(50, 64)
        self.rel_bias = torch.nn.Parameter(torch.randn(50, 50))
        self.rel_bias_table = torch.nn.Parameter(torch.randn(64))
        self.unbiased = torch.nn.Parameter(torch.randn(64))
        self.logit_bias = torch.nn.Parameter(torch.randn(64))
        self.register_buffer("running_bias", torch.randn(64))


@pytest.mark.parametrize("compact", [False, True])
def test_bias_bits_round_the_biases_of_all_layers_and_no_matrices(tmp_path, compact):
    torch.manual_seed(0)
    model, again = Biased(), Biased()
    with torch.no_grad():  # torch creates these as zeros
        for name in ("in_proj_bias", "out_proj.bias"):
            model.attention.get_parameter(name).normal_()
    lt.save(model, tmp_path / "m", compact=compact, bias_bits=2)
    lt.load(again, tmp_path / "m")
    state = again.state_dict()
    changed = {name for name, t in model.state_dict().items() if not torch.equal(t, state[name])}
    sides = [f"{side}_l0{end}" for side in ("ih", "hh") for end in ("", "_reverse")]
    expected = {f"lstm.bias_{side}" for side in sides} | {"conv.bias", "logit_bias"}
    expected |= {"attention.in_proj_bias", "attention.out_proj.bias"}
    assert changed == expected
    assert all(len(state[name].unique()) <= 3 for name in expected)


def test_bias_bits_of_a_pruned_model_round_the_same_biases(tmp_path):
    model, again = net(), net()
    lt.LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.5}]).compress()
    lt.save(torch.compile(model), tmp_path / "m", compact=True, bias_bits=2)
    lt.load(again, tmp_path / "m")
    assert len(again[0].bias.unique()) == len(again[3].bias.unique()) == 3
    assert torch.equal(again[0].weight, model[0].weight)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("largest", [6e-8, 1e-6, 3e-5, 1.0, 65504.0])
@pytest.mark.parametrize("bits", [2, 6, 16])
def test_rounded_biases_are_numbers_near_the_biases(dtype, largest, bits, tmp_path):
    model = torch.nn.Linear(2, 5).to(dtype)
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.0, 0.3, -0.6, 1.0, -1.0]) * largest)
    lt.save(model, tmp_path / "small.lil", compact=True, bias_bits=bits)
    found = lt.load(torch.nn.Linear(2, 5).to(dtype), tmp_path / "small.lil").bias.double()
    step = largest / (2 ** (bits - 1) - 1)
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    slack = max(step * 0.501, least) + 2e-3 * largest
    assert float((found - model.bias.double()).detach().abs().max()) <= slack


def test_the_receipt_shows_the_compact_file():
    model, x = net(), torch.randn(4, 40)
    before = lt.measure(model, x, runs=1, compact=True)
    lt.LevelPruner(model, [{"op_types": ["Linear"], "sparsity": 0.9}]).compress()
    after = lt.measure(model, x, runs=1, compact=True)
    receipt = lt.Receipt(before, after)
    assert before.coded > 2 * after.coded
    (row,) = [row for row in receipt.rows() if row[0] == "file, entropy coded"]
    assert row[1:3] == (f"{before.coded:,}", f"{after.coded:,}")
    assert lt.Receipt.from_dict(receipt.to_dict()) == receipt


def test_lenet_at_the_densities_of_sparsevd_takes_less_than_5600_bytes(tmp_path):
    """266,610 weights, 3,807 left in 4 bits, border pixels dead: header, tables and biases counted."""
    rng = np.random.default_rng(1)
    sizes = (784, 300, 100, 10)
    model = torch.nn.Sequential(*(torch.nn.Linear(*sizes[i : i + 2]) for i in range(3)))
    alive = np.pad(np.ones((20, 20), bool), 4).ravel()
    for layer, sparsity in zip(model, (0.989, 0.972, 0.62), strict=True):
        shape = tuple(layer.weight.shape)
        places = np.flatnonzero(np.broadcast_to(alive if shape[1] == 784 else True, shape))
        kept = rng.choice(places, round((1 - sparsity) * layer.weight.numel()), replace=False)
        table = np.sort(rng.standard_normal(15)).astype(np.float32)
        values = np.zeros(shape, np.float32)
        codes = np.clip(np.round(rng.laplace(scale=2, size=len(kept))), -7, 7).astype(int)
        values.flat[kept] = table[codes + 7]
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(values))
    assert sum(p.numel() for p in model.parameters()) == 266_610
    assert sum(int((layer.weight != 0).sum()) for layer in model) == 3807
    size = lt.save(model, tmp_path / "m.lil", compact=True, bias_bits=6)
    again = lt.load(copy.deepcopy(model), tmp_path / "m.lil")
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(again, model, strict=True))
    assert size <= 5600


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("bits", [4, 8])
def test_pruned_weights_on_grids_per_channel_are_smaller_than_what_xz_makes_of_them(
    tmp_path, sparsity, bits
):
    # The largest weights are left, so the smallest of a row is many steps of its grid away from zero.
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(400, 250, bias=False))
    if sparsity:
        lt.LevelPruner(model, [{"op_types": ["Linear"], "sparsity": sparsity}]).compress()
    rule = {"op_types": ["Linear"], "quant_types": ["weight"], "quant_bits": bits}
    lt.PTQQuantizer(model, [rule]).compress()
    size = lt.save(model, tmp_path / "m.lil", compact=True)
    lt.save(model, tmp_path / "m.safetensors")
    plain = (tmp_path / "m.safetensors").read_bytes()
    assert size <= len(lzma.compress(plain, preset=9))
    # Codes of so many bits, a mask and float scales: what the page promises is no more than that.
    share = 1 - sparsity
    mask = -sum(p * np.log2(p) for p in (share, sparsity) if p)
    assert size * 8 <= 1.03 * (400 * 250 * (share * bits + mask) + 250 * 32) + 8 * 200
    again = torch.nn.Sequential(torch.nn.Linear(400, 250, bias=False))
    assert torch.equal(lt.load(again, tmp_path / "m.lil")[0].weight, model[0].weight)


@pytest.mark.parametrize("compact", [False, True])
def test_a_tied_model_refuses_tensors_that_differ(tmp_path, compact):
    def pair():
        return torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.ReLU(), torch.nn.Linear(5, 5))

    def tied():
        model = pair()
        model[2].weight = model[0].weight
        return model

    lt.save(pair(), tmp_path / "m.lil", compact=compact)
    model = tied()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StateError, match=r"m\.lil: '0\.weight' and '2\.weight' are one"):
        lt.load(model, tmp_path / "m.lil")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    other = tied()
    lt.save(other, tmp_path / "m.lil", compact=compact)
    assert torch.equal(lt.load(model, tmp_path / "m.lil")[2].weight, other[0].weight)


@pytest.mark.parametrize("compact", [False, True])
def test_a_tied_model_refuses_a_shrunk_one_whose_tensors_differ(tmp_path, compact):
    def pair(is_tied):
        first, second = torch.nn.Linear(4, 8, bias=False), torch.nn.Linear(4, 8, bias=False)
        if is_tied:
            second.weight = first.weight
        readers = torch.nn.Linear(8, 4), torch.nn.Linear(8, 2)
        return torch.nn.Sequential(first, readers[0], second, readers[1])

    model, x = pair(is_tied=False), torch.randn(2, 4)
    with torch.no_grad():  # what is least is the same in both, so the cuts are too
        for layer in (model[0], model[2]):
            layer.weight[4:] *= 0.001
    rule = {"op_names": ["0", "2"], "sparsity": 0.5}
    lt.L1NormPruner(model, [rule], example_inputs=x).compress()
    lt.speedup(model, x).save(tmp_path / "m", compact=compact)
    target = pair(is_tied=True)
    with pytest.raises(StateError, match=r"m: '0\.weight' and '2\.weight' are one"):
        lt.load(target, tmp_path / "m")
    assert target[0].weight.shape == (8, 4)


class Holder(torch.nn.Module):
    def __init__(self, tensor):
        super().__init__()
        self.register_buffer("held", tensor)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Holder(torch.zeros(3, dtype=torch.complex128)), "'held' .*complex128"),
        (lambda: Holder(torch.eye(3).to_sparse()), "'held' .*sparse"),
        (lambda: Holder(torch.eye(3).to_sparse_csr()), "'held' .*sparse"),
        (
            lambda: Holder(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
            "'held' .*qint8",
        ),
        (lambda: torch.nn.Sequential(torch.nn.LazyLinear(3)), "'0.weight' .*no shape yet"),
        (lambda: torch.nn.Linear(2, 2, device="meta"), "'weight' .*meta"),
    ],
    ids=["complex128", "sparse", "csr", "quantized", "lazy", "meta"],
)
@pytest.mark.filterwarnings(
    "ignore"
)  # torch warns of lazy, of quantized and of some sparse tensors
def test_tensors_that_files_cannot_hold_are_refused_by_name(tmp_path, make, message, compact):
    path = tmp_path / "m.lil"
    path.write_bytes(b"as it was")
    with pytest.raises(LilliputError, match=message):
        lt.save(make(), path, compact=compact)
    assert path.read_bytes() == b"as it was"
    lt.save(torch.nn.Linear(2, 2), path, compact=compact)
    with pytest.raises(LilliputError, match=message):
        lt.load(make(), path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bias_bits_hold_for_every_type(tmp_path, dtype):
    torch.manual_seed(0)
    model, again = (torch.nn.Linear(4, 200).to(dtype) for _ in range(2))
    size = lt.save(model, tmp_path / "m.lil", compact=True)
    assert lt.save(model, tmp_path / "m.lil", compact=True, bias_bits=3) < size
    lt.load(again, tmp_path / "m.lil")
    assert len(again.bias.unique()) == 7
    step = model.bias.double().abs().max() / 3
    near = (model.bias.double() / step).round() * step
    torch.testing.assert_close(again.bias.double(), near, rtol=1e-2, atol=0)
    assert torch.equal(again.weight, model.weight)


def test_bias_bits_of_eight_bit_floats_are_refused(tmp_path):
    model = torch.nn.Linear(4, 4).to(torch.float8_e4m3fn)
    with pytest.raises(ConfigError, match="bias_bits: 'bias' is float8_e4m3fn, expected float16"):
        lt.save(model, tmp_path / "m.lil", compact=True, bias_bits=3)
    assert not (tmp_path / "m.lil").exists()


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def held_bits(bits, dtype):
    return Holder(torch.from_numpy(bits).view(dtype))


def check_eight_bit_floats(folder, bits, dtype):
    """Save bits in both kinds of file, convert each to the other, and load all four."""
    paths = {name: folder / name for name in ("compact", "plain", "converted", "packed")}
    lt.save(held_bits(bits, dtype), paths["compact"], compact=True)
    lt.save(held_bits(bits, dtype), paths["plain"])
    convert(paths["compact"], paths["converted"])
    convert(paths["plain"], paths["packed"])
    positive = np.where(bits == 0x80, np.uint8(0), bits)  # 0x80 is minus zero
    for name, path in paths.items():
        again = lt.load(held_bits(np.zeros_like(bits), dtype), path)
        found = again.held.view(torch.uint8).numpy()
        np.testing.assert_array_equal(found, bits if name == "plain" else positive, name)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("zeros", [0, 20, 5000])  # as they are, with holes, and sparse
def test_all_eight_bit_floats_come_back_bit_for_bit(tmp_path, dtype, zeros):
    bits = np.arange(256, dtype=np.uint8)  # NaN, infinity and subnormal numbers among them
    bits = np.concatenate([bits, bits[::-1], np.zeros(zeros, np.uint8)])
    check_eight_bit_floats(tmp_path, bits.reshape(4, -1), dtype)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    dtype=st.sampled_from(FLOAT8),
    shape=st.lists(st.integers(0, 9), max_size=4),
    values=st.integers(1, 256),
    kept=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_eight_bit_floats_come_back_bit_for_bit(tmp_path, dtype, shape, values, kept, seed):
    rng = np.random.default_rng(seed)
    table = rng.permutation(256)[:values].astype(np.uint8)
    bits = np.where(rng.random(shape) < kept, table[rng.integers(0, values, shape)], np.uint8(0))
    check_eight_bit_floats(tmp_path, np.asarray(bits, np.uint8), dtype)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("dtype", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"])
def test_other_eight_bit_floats_are_refused_by_name(tmp_path, dtype, compact):
    model = held_bits(np.arange(8, dtype=np.uint8), getattr(torch, dtype))
    with pytest.raises(StateError, match=f"'held' has the type {dtype}.*expected one of bool"):
        lt.save(model, tmp_path / "m", compact=compact)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("compact", [False, True])
def test_an_empty_tensor_whose_strides_are_zero_is_loaded(tmp_path, compact):
    def make():
        return Holder(torch.empty_strided((0, 2), (0, 0)))

    lt.save(make(), tmp_path / "m", compact=compact)
    assert lt.load(make(), tmp_path / "m").held.shape == (0, 2)


def test_rounded_bfloat16_biases_are_the_nearest_ones():
    values = torch.randn(1000) * torch.logspace(-30, 30, 1000)
    bits = _upper_half(values.numpy())
    assert (bits == values.to(torch.bfloat16).view(torch.uint16).numpy()).all()


@pytest.mark.parametrize("compact", [True, False])
def test_views_that_change_signs_are_saved_as_what_they_show(tmp_path, compact):
    model = torch.nn.Linear(2, 2)
    model.register_buffer("wave", torch.tensor([1 + 2j, 3 - 4j]).conj())
    model.register_buffer("flipped", torch._neg_view(torch.tensor([1.0, 2.0])))
    lt.save(model, tmp_path / "model", compact=compact)
    other = torch.nn.Linear(2, 2)
    other.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))
    other.register_buffer("flipped", torch.zeros(2))
    lt.load(other, tmp_path / "model")
    assert other.wave.tolist() == [1 - 2j, 3 + 4j] and other.flipped.tolist() == [-1.0, -2.0]


def test_a_tensor_that_cannot_be_written_to_leaves_the_model_as_it_was(tmp_path):
    def make():
        model = torch.nn.Linear(2, 2)
        model.register_buffer("rows", torch.ones(3, 1).expand(3, 4))
        return model

    lt.save(make(), tmp_path / "model", compact=True)
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StateError, match=r"tensor 'rows' .* made by expand\(\).*clone\(\)"):
        lt.load(model, tmp_path / "model")
    assert all(torch.equal(before[name], held) for name, held in model.state_dict().items())


def test_a_name_that_safetensors_uses_itself_is_refused(tmp_path):
    model = torch.nn.ParameterDict({"__metadata__": torch.nn.Parameter(torch.ones(2))})
    with pytest.raises(StateError, match="'__metadata__': safetensors files use this name"):
        lt.save(model, tmp_path / "model")
    lt.save(model, tmp_path / "model", compact=True)
