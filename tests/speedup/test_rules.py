"""What each family of ops does to channels: expected by hand, and probed by running the model."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lilliput.speedup.channels import channel_groups

LINEAR = (2, 3)
MAP = (2, 3, 4, 4)
TOKENS = (2, 5, 3)


class Between(nn.Module):
    """Layers by name, and a function of them and the input."""

    def __init__(self, function, **layers):
        super().__init__()
        for name, layer in layers.items():
            if isinstance(layer, nn.Parameter):
                self.register_parameter(name, layer)
            else:
                self.add_module(name, layer)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def chain(*names):
    def run(m, x):
        for name in names:
            x = getattr(m, name)(x)
        return x

    return run


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


def up_to(n):
    return list(range(n))


def describe(groups):
    """Return where the units of each group lie, by 'tensor:dim'."""
    return {
        group.name: {f"{s.tensor}:{s.dim}": s.units.tolist() for s in group.slices}
        for group in groups
    }


def rows_of(groups):
    return {g.name: None if g.rows is None else g.rows.tolist() for g in groups}


def heads(m, x, name, size):
    y = getattr(m, name)(x)
    return y.view(*y.shape[:2], -1, size).transpose(1, 2)


def attend(size, **options):
    def run(m, x):
        q, k, v = (heads(m, x, name, size) for name in ("q", "k", "v"))
        y = F.scaled_dot_product_attention(q, k, v, **options)
        return m.b(y.transpose(1, 2).flatten(2))

    return run


def attend_by_hand(m, x):
    q, k, v = (heads(m, x, name, 3) for name in ("q", "k", "v"))
    y = (q @ k.mT).softmax(-1) @ v
    return m.b(y.transpose(1, 2).reshape(*x.shape[:2], -1))


def fused_attention(m, x):
    n, t, _ = x.shape
    q, k, v = m.a(x).reshape(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v)
    return m.b(y.transpose(1, 2).reshape(n, t, -1))


def shuffle(m, x):
    y = m.a(x)
    return m.b(y.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6))


def with_class_token(m, x):
    token = m.token.expand(x.shape[0], -1, -1)
    return m.b(torch.cat([token, m.a(x)], 1))


def gates(hidden, count):
    return up_to(hidden) * count


FOUR = {"a.weight:0": up_to(4), "a.bias:0": up_to(4), "b.weight:1": up_to(4)}
SIX = {"a.weight:0": up_to(6), "a.bias:0": up_to(6), "b.weight:1": up_to(6)}
HEADS = [0] * 3 + [1] * 3


def linear(*sizes):
    return {"a": nn.Linear(3, sizes[0]), "b": nn.Linear(sizes[-1], 2)}


def conv(*sizes):
    return {"a": nn.Conv2d(3, sizes[0], 1), "b": nn.Conv2d(sizes[-1], 2, 1)}


def from_a(units, reads):
    return {"a.weight": {"a.weight:0": units, "a.bias:0": units, "b.weight:1": reads}}


# name: (function, layers, shape of the input, expected groups)
CASES = {
    "linear": (chain("a", "b"), linear(4), LINEAR, {"a.weight": FOUR}),
    "conv": (chain("a", "b"), conv(4), MAP, {"a.weight": FOUR}),
    "conv1d": (
        chain("a", "b"),
        {"a": nn.Conv1d(3, 4, 3), "b": nn.Conv1d(4, 2, 2)},
        (2, 3, 8),
        {"a.weight": FOUR},
    ),
    "conv3d": (
        chain("a", "b"),
        {"a": nn.Conv3d(3, 4, 1), "b": nn.Conv3d(4, 2, 2)},
        (2, 3, 2, 2, 2),
        {"a.weight": FOUR},
    ),
    "grouped": (
        chain("a", "b"),
        {"a": nn.Conv2d(3, 4, 1), "b": nn.Conv2d(4, 2, 1, groups=2)},
        MAP,
        {"a.weight": {**FOUR, "b.weight:1": [[0, 1], [2, 3]]}},
    ),
    "depthwise": (
        chain("a", "c", "b"),
        {**conv(4), "c": nn.Conv2d(4, 4, 3, groups=4)},
        MAP,
        {"a.weight": {**FOUR, "c.weight:0": up_to(4), "c.bias:0": up_to(4)}},
    ),
    "depthwise multiplied": (
        chain("a", "c", "b"),
        {**conv(4, 8), "c": nn.Conv2d(4, 8, 3, groups=4)},
        MAP,
        {
            "a.weight": {
                **FOUR,
                "c.weight:0": [0, 0, 1, 1, 2, 2, 3, 3],
                "c.bias:0": [0, 0, 1, 1, 2, 2, 3, 3],
                "b.weight:1": [0, 0, 1, 1, 2, 2, 3, 3],
            }
        },
    ),
    "transposed": (
        chain("a", "b"),
        {"a": nn.ConvTranspose2d(3, 4, 2), "b": nn.ConvTranspose2d(4, 2, 2, stride=2)},
        MAP,
        {"a.weight": {"a.weight:1": up_to(4), "a.bias:0": up_to(4), "b.weight:0": up_to(4)}},
    ),
    "transposed in groups": (  # the same positions in all of them
        chain("a", "b"),
        {"a": nn.ConvTranspose2d(3, 6, 2, groups=3), "b": nn.Conv2d(6, 2, 1)},
        MAP,
        {"a.weight": {"a.weight:1": [0, 1], "a.bias:0": [0, 1] * 3, "b.weight:1": [0, 1] * 3}},
    ),
    "read in groups, transposed": (
        chain("a", "b"),
        {"a": nn.Conv2d(3, 4, 1), "b": nn.ConvTranspose2d(4, 6, 2, groups=2)},
        MAP,
        {"a.weight": {f"{x}:0": [0, 1] * 2 for x in ("a.weight", "a.bias", "b.weight")}},
    ),
    "batch norm": (
        chain("a", "n", "b"),
        {**conv(4), "n": nn.BatchNorm2d(4)},
        MAP,
        {
            "a.weight": {
                **FOUR,
                **{f"n.{x}:0": up_to(4) for x in ("weight", "bias", "running_mean", "running_var")},
            }
        },
    ),
    "instance norm": (
        chain("a", "n", "b"),
        {**conv(4), "n": nn.InstanceNorm2d(4, affine=True)},
        MAP,
        {"a.weight": {**FOUR, "n.weight:0": up_to(4), "n.bias:0": up_to(4)}},
    ),
    "layer norm": (
        chain("a", "n", "b"),
        {**linear(4), "n": nn.LayerNorm(4)},
        LINEAR,
        {"a.weight": {**FOUR, "n.weight:0": up_to(4), "n.bias:0": up_to(4)}},
    ),
    "rms norm": (
        chain("a", "n", "b"),
        {**linear(4), "n": nn.RMSNorm(4)},
        LINEAR,
        {"a.weight": {**FOUR, "n.weight:0": up_to(4)}},
    ),
    "group norm": (
        chain("a", "n", "b"),
        {**conv(6), "n": nn.GroupNorm(2, 6)},
        MAP,
        {"a.weight": {**SIX, "n.weight:0": up_to(6), "n.bias:0": up_to(6)}},
    ),
    "prelu": (
        chain("a", "n", "b"),
        {**conv(4), "n": nn.PReLU(4)},
        MAP,
        {"a.weight": {**FOUR, "n.weight:0": up_to(4)}},
    ),
    "flatten": (
        lambda m, x: m.b(m.a(x).flatten(1)),
        {"a": nn.Conv2d(3, 4, 3), "b": nn.Linear(16, 2)},
        MAP,
        from_a(up_to(4), np.repeat(up_to(4), 4).tolist()),
    ),
    "permute": (
        lambda m, x: m.b(m.a(x).permute(0, 2, 3, 1)),
        {"a": nn.Conv2d(3, 4, 1), "b": nn.Linear(4, 2)},
        MAP,
        {"a.weight": FOUR},
    ),
    "movedim": (
        lambda m, x: m.b(torch.movedim(m.a(x), 1, -1)),
        {"a": nn.Conv2d(3, 4, 1), "b": nn.Linear(4, 2)},
        MAP,
        {"a.weight": FOUR},
    ),
    "shuffle": (shuffle, linear(6), LINEAR, from_a(up_to(6), [0, 3, 1, 4, 2, 5])),
    "channel shuffle": (
        lambda m, x: m.b(F.channel_shuffle(m.a(x), 2)),
        conv(6),
        MAP,
        from_a(up_to(6), [0, 3, 1, 4, 2, 5]),
    ),
    "residual": (
        lambda m, x: m.b(m.a(x) + m.c(x)),
        {**linear(4), "c": nn.Linear(3, 4)},
        LINEAR,
        {"a.weight": {**FOUR, "c.weight:0": up_to(4), "c.bias:0": up_to(4)}},
    ),
    "cat with the input": (
        lambda m, x: m.b(torch.cat([m.a(x), x], 1)),
        linear(4, 7),
        LINEAR,
        from_a(up_to(4), [0, 1, 2, 3, -1, -1, -1]),
    ),
    "cat": (
        lambda m, x: m.b(torch.cat([m.c(x), m.a(x)], 1)),
        {**linear(4, 6), "c": nn.Linear(3, 2)},
        LINEAR,
        {
            "a.weight": {**FOUR, "b.weight:1": [-1, -1, 0, 1, 2, 3]},
            "c.weight": {
                "c.weight:0": [0, 1],
                "c.bias:0": [0, 1],
                "b.weight:1": [0, 1, -1, -1, -1, -1],
            },
        },
    ),
    "stack": (
        lambda m, x: m.b(torch.stack([m.a(x), m.c(x)], 1).sum(1)),
        {**linear(4), "c": nn.Linear(3, 4)},
        LINEAR,
        {"a.weight": {**FOUR, "c.weight:0": up_to(4), "c.bias:0": up_to(4)}},
    ),
    "split and swap": (
        lambda m, x: m.b(torch.cat(m.a(x).split([2, 4], 1)[::-1], 1)),
        linear(6),
        LINEAR,
        from_a(up_to(6), [2, 3, 4, 5, 0, 1]),
    ),
    "chunks that meet": (
        lambda m, x: m.b(torch.add(*m.a(x).chunk(2, 1))),
        linear(6, 3),
        LINEAR,
        from_a([0, 1, 2] * 2, [0, 1, 2]),
    ),
    "glu": (
        lambda m, x: m.b(F.glu(m.a(x))),
        linear(6, 3),
        LINEAR,
        from_a([0, 1, 2] * 2, [0, 1, 2]),
    ),
    "slice": (
        lambda m, x: m.b(m.a(x)[:, 1:-1]),
        linear(6, 4),
        LINEAR,
        {
            "a.weight": {  # read by nobody
                "a.weight:0": [0, -1, -1, -1, -1, 1],
                "a.bias:0": [0, -1, -1, -1, -1, 1],
            },
            "a.weight #2": {
                "a.weight:0": [-1, 0, 1, 2, 3, -1],
                "a.bias:0": [-1, 0, 1, 2, 3, -1],
                "b.weight:1": up_to(4),
            },
        },
    ),
    "flip": (lambda m, x: m.b(m.a(x).flip(1)), linear(4), LINEAR, from_a(up_to(4), up_to(4)[::-1])),
    "rotated, which has no rule": (
        lambda m, x: m.b(torch.rot90(m.a(x), 2, (1, 2))),
        conv(4),
        MAP,
        from_a(up_to(4), up_to(4)[::-1]),
    ),
    "repeat": (
        lambda m, x: m.b(m.a(x).repeat(1, 2)),
        linear(3, 6),
        LINEAR,
        from_a(up_to(3), [0, 1, 2] * 2),
    ),
    "repeat_interleave": (
        lambda m, x: m.b(m.a(x).repeat_interleave(2, 1)),
        linear(3, 6),
        LINEAR,
        from_a(up_to(3), [0, 0, 1, 1, 2, 2]),
    ),
    "expand": (
        with_class_token,
        {**linear(4), "token": parameter(1, 1, 4)},
        TOKENS,
        {"a.weight": {**FOUR, "token:2": up_to(4)}},
    ),
    "pad": (
        lambda m, x: m.b(F.pad(m.a(x), (0, 0, 0, 0, 1, 2))),
        conv(4, 7),
        MAP,
        from_a(up_to(4), [-1, 0, 1, 2, 3, -1, -1]),
    ),
    "pixel_shuffle": (
        lambda m, x: m.b(F.pixel_shuffle(m.a(x), 2)),
        conv(8, 2),
        MAP,
        from_a([0] * 4 + [1] * 4, [0, 1]),
    ),
    "pixel_unshuffle": (
        lambda m, x: m.b(F.pixel_unshuffle(m.a(x), 2)),
        conv(2, 8),
        MAP,
        from_a([0, 1], [0] * 4 + [1] * 4),
    ),
    "im2col": (
        lambda m, x: m.b(F.unfold(m.a(x), 2).transpose(1, 2)),
        {"a": nn.Conv2d(3, 4, 1), "b": nn.Linear(16, 2)},
        MAP,
        from_a(up_to(4), np.repeat(up_to(4), 4).tolist()),
    ),
    "col2im": (
        lambda m, x: m.b(F.fold(m.a(x).transpose(1, 2), (4, 4), 2, stride=2)),
        {"a": nn.Linear(3, 8), "b": nn.Conv2d(2, 2, 1)},
        (2, 4, 3),
        from_a([0] * 4 + [1] * 4, [0, 1]),
    ),
    "pooling and upsampling": (
        lambda m, x: m.b(
            F.adaptive_avg_pool2d(F.interpolate(F.max_pool2d(m.a(x), 2), scale_factor=3), 1)
        ),
        conv(4),
        MAP,
        {"a.weight": FOUR},
    ),
    "attention": (
        attend(3),
        {**{x: nn.Linear(3, 6) for x in "qkv"}, "b": nn.Linear(6, 2)},
        TOKENS,
        {
            "q.weight": {
                **{f"{x}.{y}:0": HEADS for x in "qkv" for y in ("weight", "bias")},
                "b.weight:1": HEADS,
            }
        },
    ),
    "attention by hand": (
        attend_by_hand,
        {**{x: nn.Linear(3, 6) for x in "qkv"}, "b": nn.Linear(6, 2)},
        TOKENS,
        {
            "q.weight": {
                **{f"{x}.{y}:0": HEADS for x in "qkv" for y in ("weight", "bias")},
                "b.weight:1": HEADS,
            }
        },
    ),
    "attention with shared key heads": (
        attend(3, enable_gqa=True),
        {"q": nn.Linear(3, 12), "k": nn.Linear(3, 6), "v": nn.Linear(3, 6), "b": nn.Linear(12, 2)},
        TOKENS,
        {
            "q.weight": {
                **{f"{x}.{y}:0": HEADS for x in "kv" for y in ("weight", "bias")},
                **{f"q.{y}:0": [0] * 6 + [1] * 6 for y in ("weight", "bias")},
                "b.weight:1": [0] * 6 + [1] * 6,
            }
        },
    ),
    "attention from one matrix": (
        fused_attention,
        {"a": nn.Linear(3, 24), "b": nn.Linear(8, 2)},
        TOKENS,
        {
            "a.weight": {
                "a.weight:0": ([0] * 4 + [1] * 4) * 3,
                "a.bias:0": ([0] * 4 + [1] * 4) * 3,
                "b.weight:1": [0] * 4 + [1] * 4,
            }
        },
    ),
    "lstm": (
        lambda m, x: m.b(m.a(x)[0][:, -1]),
        {"a": nn.LSTM(3, 4, batch_first=True), "b": nn.Linear(4, 2)},
        TOKENS,
        {
            "a.weight_ih_l0": {
                **{
                    f"a.{x}_{y}_l0:0": gates(4, 4) for x in ("weight", "bias") for y in ("ih", "hh")
                },
                "a.weight_hh_l0:1": up_to(4),
                "b.weight:1": up_to(4),
            }
        },
    ),
    "gru of two layers": (
        lambda m, x: m.b(m.a(x)[0].mean(1)),
        {"a": nn.GRU(3, 4, 2, batch_first=True, bias=False), "b": nn.Linear(4, 2)},
        TOKENS,
        {
            "a.weight_ih_l0": {
                **{f"a.weight_{x}_l{n}:0": gates(4, 3) for x in ("ih", "hh") for n in (0, 1)},
                **{f"a.weight_{x}:1": up_to(4) for x in ("hh_l0", "ih_l1", "hh_l1")},
                "b.weight:1": up_to(4),
            }
        },
    ),
    "embedding": (
        lambda m, x: m.b(m.a(x.long().clamp(0, 4))),
        {"a": nn.Embedding(5, 4), "b": nn.Linear(4, 2)},
        (2, 3),
        {"a.weight": {"a.weight:1": up_to(4), "b.weight:1": up_to(4)}},
    ),
    "tied embedding": (
        lambda m, x: F.linear(m.b(m.a(x.long().clamp(0, 4))), m.a.weight),
        {"a": nn.Embedding(5, 4), "b": nn.Linear(4, 4)},
        (2, 3),
        {
            "a.weight": {"a.weight:1": up_to(4), "b.weight:0": up_to(4), "b.weight:1": up_to(4)}
            | {"b.bias:0": up_to(4)}
        },
    ),
    "einsum": (
        lambda m, x: m.b(torch.einsum("bi,oi->bo", x, m.w)),
        {"w": parameter(4, 3), "b": nn.Linear(4, 2)},
        LINEAR,
        {"w": {"w:0": up_to(4), "b.weight:1": up_to(4)}},
    ),
    "matmul": (
        lambda m, x: m.b(x @ m.w),
        {"w": parameter(3, 4), "b": nn.Linear(4, 2)},
        LINEAR,
        {"w": {"w:1": up_to(4), "b.weight:1": up_to(4)}},
    ),
    "addmm": (
        lambda m, x: m.b(torch.addmm(m.c, x, m.w)),
        {"w": parameter(3, 4), "c": parameter(4), "b": nn.Linear(4, 2)},
        LINEAR,
        {"w": {"w:1": up_to(4), "c:0": up_to(4), "b.weight:1": up_to(4)}},
    ),
    "clamp by a parameter": (
        lambda m, x: m.b(m.a(x).clamp(min=m.low, max=m.high)),
        {**linear(4), "low": parameter(4), "high": nn.Parameter(torch.full((4,), 9.0))},
        LINEAR,
        {"a.weight": {**FOUR, "low:0": up_to(4), "high:0": up_to(4)}},
    ),
    "a sum of what is zero": (
        lambda m, x: m.b(m.a(x).clamp(-1, 1)) + m.a(x).relu().clamp_min(0).sum(1, keepdim=True),
        linear(4),
        LINEAR,
        {"a.weight": FOUR},
    ),
    "scale and shift": (
        lambda m, x: m.b(m.a(x) * m.scale - m.shift),
        {**conv(4), "scale": parameter(4, 1, 1), "shift": parameter(1, 4, 1, 1)},
        MAP,
        {"a.weight": {**FOUR, "scale:0": up_to(4), "shift:1": up_to(4)}},
    ),
    "masked and chosen": (
        lambda m, x: m.b(torch.where(x[:, :1] > 0, m.a(x), m.a(x).masked_fill(x[:, 1:2] > 0, 1.0))),
        linear(4),
        LINEAR,
        {"a.weight": FOUR},
    ),
    "a layer called twice": (
        lambda m, x: m.b(m.c(m.c(m.a(x)).relu())),
        {**linear(4), "c": nn.Linear(4, 4)},
        LINEAR,
        {
            "a.weight": {
                **FOUR,
                "c.weight:0": up_to(4),
                "c.weight:1": up_to(4),
                "c.bias:0": up_to(4),
            }
        },
    ),
}


def build(name):
    torch.manual_seed(3)
    function, layers, shape, _ = CASES[name]
    model = copy.deepcopy(Between(function, **layers)).double().eval()
    return model, torch.randn(shape, dtype=torch.float64)


@cache
def groups_of(name):
    """Return the groups of a case, found once for all tests."""
    return channel_groups(*build(name))


@pytest.mark.parametrize("name", CASES)
def test_groups_are_those_written_down_by_hand(name):
    expected, groups = CASES[name][3], groups_of(name)
    assert describe(groups) == expected
    sizes = {g.name: g.size for g in groups}
    assert sizes == {
        name: 1 + max(np.ravel(next(iter(places.values())))) for name, places in expected.items()
    }


@torch.no_grad()
def zero(model, slices, unit):
    """Set everything of a unit in these slices to zero."""
    tensors = dict(model.named_parameters())
    for piece in slices:
        if piece.tensor not in tensors:
            continue
        tensor, gone = tensors[piece.tensor], piece.units == unit
        if gone.ndim == 1:
            tensor.movedim(piece.dim, 0)[torch.from_numpy(gone)] = 0
        else:
            blocks = tensor.view(len(gone), -1, *tensor.shape[1:])
            for block, here in zip(blocks, gone, strict=True):
                block.movedim(piece.dim, 0)[torch.from_numpy(here)] = 0


# Norms and sums change by what is made; a tied table makes and reads at once.
UNFIT = ("layer norm", "rms norm", "group norm", "tied embedding", "a sum of what is zero")


@pytest.mark.parametrize("name", [x for x in CASES if x not in UNFIT])
def test_what_a_unit_makes_reaches_nothing_but_its_own_slices(name):
    """With all that scales or reads a unit at zero, it does not matter what is made."""
    (model, x), groups = build(name), groups_of(name)
    assert len(groups) > 0
    original = model(x)
    for group in groups:
        for unit in range(group.size):
            unread, silent = copy.deepcopy(model), copy.deepcopy(model)
            zero(unread, [s for s in group.slices if not s.is_output], unit)
            zero(silent, group.slices, unit)
            torch.testing.assert_close(unread(x), silent(x), rtol=1e-12, atol=1e-12)
            is_read = any("b.weight" in s.tensor and unit in s.units for s in group.slices)
            is_same = torch.allclose(silent(x), original, rtol=1e-6, atol=1e-9)
            assert is_same != is_read, (group.name, unit)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("grouped", [0, 0, 1, 1]), ("group norm", [0, 0, 0, 1, 1, 1]), ("linear", None)],
)
def test_groups_that_need_equal_counts_have_rows(name, rows):
    assert rows_of(groups_of(name)) == {"a.weight": rows}


# -- what must stay, and why ------------------------------------------------------------------------

STAY = {
    "softmax": (lambda m, x: m.b(m.a(x).softmax(1)), linear(4), "softmax", "depend on each other"),
    "cumsum": (lambda m, x: m.b(m.a(x).cumsum(1)), linear(4), "cumsum", "depend on each other"),
    "sort": (lambda m, x: m.b(m.a(x).sort(1).values), linear(4), "sort", "depend on each other"),
    "topk": (lambda m, x: m.b(m.a(x).topk(3, 1).values), linear(4, 3), "topk", "depend"),
    "select": (
        lambda m, x: m.b(m.a(x)[:, 2:3] * m.a(x)[:, 1][:, None]),
        linear(4, 1),
        "select",
        "",
    ),
    "index": (
        lambda m, x: m.b(m.a(x)[:, torch.tensor([2, 0, 1])]),
        linear(4, 3),
        "index",
        "looked up by index",
    ),
    "unbind": (
        lambda m, x: m.b(torch.stack(m.a(x).unbind(1), 1)),
        linear(4),
        "unbind",
        "used one by one",
    ),
    "amax": (
        lambda m, x: m.b(m.a(x).amax(1, True)),
        linear(4, 1),
        "amax",
        "compared with each other",
    ),
    "a mean": (
        lambda m, x: m.b(m.a(x) - m.a(x).mean(1, keepdim=True)),
        linear(4),
        "mean",
        "a mean over channels is computed inside a larger module",
    ),
    "one in two": (
        lambda m, x: m.b(m.a(x)[:, ::2]),
        linear(4, 2),
        "slice",
        "one in 2 of its entries is taken",
    ),
    "a sum of what is not zero": (
        lambda m, x: m.b(m.a(x)) + m.a(x).clamp_min(0.5).sum(1, keepdim=True),
        linear(4),
        "sum",
        "a sum over channels is computed inside a larger module",
    ),
    "a sum of what is not zero, by hardtanh": (
        lambda m, x: m.b(m.a(x)) + F.hardtanh(m.a(x), 0.5, 1.0).sum(1, keepdim=True),
        linear(4),
        "sum",
        "a sum over channels is computed inside a larger module",
    ),
    "roll": (lambda m, x: m.b(m.a(x).roll(1, 1)), linear(4), "roll", "depend on each other"),
    "fft, which has no rule": (
        lambda m, x: m.b(torch.fft.fft(m.a(x)).real.contiguous()),
        linear(4),
        "fft",
        "",
    ),
    "window over channels": (
        lambda m, x: m.b(m.a(x)[:, None]).flatten(1),
        {"a": nn.Linear(3, 4), "b": nn.Conv1d(1, 2, 3)},
        "conv1d",
        "a window slides over it",
    ),
}


@pytest.mark.parametrize("name", sorted(STAY))
def test_what_cannot_be_cut_stays_and_says_why(name):
    function, layers, op, reason = STAY[name]
    groups = channel_groups(Between(function, **layers).eval(), torch.randn(LINEAR))
    assert len(groups) == 0
    why = groups.reason("a.weight")
    assert op in why, why
    assert reason in why, why
    assert "test_rules.py:" in why or "larger module" in why, why


def test_channels_of_the_output_stay():
    groups = groups_of("linear")
    assert [(p.tensor, p.dim, p.size, p.reason) for p in groups.pinned] == [
        ("b.weight", 0, 2, "they are the model's output")
    ]


def test_an_op_without_a_rule_is_listed():
    function, layers, *_ = STAY["fft, which has no rule"]
    groups = channel_groups(Between(function, **layers), torch.randn(LINEAR))
    assert [name for name in groups.unknown if "fft" in name] == list(groups.unknown)[:1]
    assert "ops without a rule, whose channels are kept: " in str(groups)


def test_masked_zeros_in_a_denominator_are_pinned_and_in_a_numerator_are_not():
    class Divide(nn.Module):
        def __init__(self, flipped):
            super().__init__()
            self.a, self.b, self.flipped = nn.Linear(4, 6), nn.Linear(6, 2), flipped

        def forward(self, x):
            made, other = self.a(x), x[:, :1].exp()
            return self.b(other / made if self.flipped else made / other)

    assert len(channel_groups(Divide(False), torch.randn(2, 4))) == 1
    assert "infinities" in channel_groups(Divide(True), torch.randn(2, 4)).reason("a.weight")
