"""Random small networks, as trees that hypothesis can shrink."""

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import nn

ACTIVATIONS = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,  # not zero at zero
    "hardswish": nn.Hardswish,
    "tanh": nn.Tanh,
    "prelu": nn.PReLU,
}


def map_norm(kind, channels):
    if kind == "bn":
        return nn.BatchNorm2d(channels)
    if kind == "gn":
        return nn.GroupNorm(2 if channels % 2 == 0 else 1, channels)
    if kind == "gn1":
        return nn.GroupNorm(1, channels)
    if kind == "in":
        return nn.InstanceNorm2d(channels, affine=True)
    return nn.Identity()


class OwnRMSNorm(nn.Module):
    """As in many language models."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def token_norm(kind, width):
    if kind == "ln":
        return nn.LayerNorm(width)
    if kind == "plain_ln":
        return nn.LayerNorm(width, elementwise_affine=False)
    if kind == "rms":
        return nn.RMSNorm(width, eps=1e-6)
    if kind == "own_rms":
        return OwnRMSNorm(width)
    return nn.Identity()


# -- blocks on maps (batch, channels, height, width) --------------------------------------------------


class Conv(nn.Sequential):
    def __init__(self, channels, width, size=3, norm="bn", act="relu", groups=1, bias=True):
        super().__init__(
            nn.Conv2d(channels, width, size, padding=size // 2, groups=groups, bias=bias),
            map_norm(norm, width),
            ACTIVATIONS[act](),
        )
        self.width = width


class Residual(nn.Module):
    def __init__(self, channels, width, norm, act, project):
        super().__init__()
        self.first = Conv(channels, width, norm=norm, act=act)
        self.width = width if project else channels
        self.second = Conv(width, self.width, norm=norm, act="none")
        self.shortcut = Conv(channels, self.width, 1, norm, "none") if project else nn.Identity()
        self.act = ACTIVATIONS[act]()

    def forward(self, x):
        return self.act(self.second(self.first(x)) + self.shortcut(x))


class Branches(nn.Module):
    """Two ways, joined by concatenation, product or sum; one of them perhaps the input itself."""

    def __init__(self, channels, width, norm, act, how):
        super().__init__()
        self.left = Conv(channels, width, norm=norm, act=act)
        self.right = nn.Identity() if how == "dense" else Conv(channels, width, 1, norm, "sigmoid")
        self.how = how
        self.width = {"dense": width + channels, "cat": 2 * width}.get(how, width)

    def forward(self, x):
        a, b = self.left(x), self.right(x)
        if self.how in ("cat", "dense"):
            return torch.cat([a, b], 1)
        return a * b if self.how == "gate" else torch.maximum(a, b)


class Halves(nn.Module):
    """Cut the channels in two, by chunk, split or slices."""

    def __init__(self, channels, width, act, how):
        super().__init__()
        self.wide = nn.Conv2d(channels, 2 * width, 1)
        self.deep = nn.Conv2d(width, width, 3, padding=1)
        self.act = ACTIVATIONS[act]()
        self.how, self.half = how, width
        self.width = width if how in ("glu", "sum") else 2 * width

    def forward(self, x):
        x = self.wide(x)
        if self.how == "glu":
            return F.glu(x, 1)
        if self.how == "slice":
            a, b = x[:, : self.half], x[:, self.half :]
        elif self.how == "split":
            a, b = x.split(self.half, 1)
        else:
            a, b = x.chunk(2, 1)
        if self.how == "sum":
            return self.act(a) + self.deep(b)
        return torch.cat([self.act(a), self.deep(b)], 1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels, width, act):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.act, self.width = ACTIVATIONS[act](), channels

    def forward(self, x):
        scale = self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * scale.sigmoid()


class Shuffle(nn.Module):
    """Channel shuffle with sizes from the input, as ShuffleNet writes it."""

    def __init__(self, channels):
        super().__init__()
        self.width = channels

    def forward(self, x):
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale, self.shift = (
            nn.Parameter(torch.ones(channels, 1, 1)),
            nn.Parameter(torch.ones(1)),
        )
        self.width = channels

    def forward(self, x):
        return x * self.scale + self.shift


class ChannelNorm(nn.Module):
    """A layer norm over channels of a map, written by hand."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )
        self.width = channels

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).square().mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class Spatial(nn.Module):
    """A map of where to look, from mean and maximum over channels."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.width = nn.Conv2d(2, 1, 3, padding=1), channels

    def forward(self, x):
        seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * self.conv(seen).sigmoid()


class Moved(nn.Module):
    """Channels that are padded, cut unevenly, turned into space and back, or unfolded."""

    def __init__(self, channels, width, how):
        super().__init__()
        self.how = how
        if how == "space":
            self.up, self.mid = (
                nn.Conv2d(channels, 4 * width, 1),
                nn.Conv2d(width, width, 3, padding=1),
            )
            self.width = 4 * width
        elif how == "unfold":
            self.mid, self.width = nn.Linear(9 * channels, width), width
        elif how == "uneven":
            self.up, self.left, self.right = (
                nn.Conv2d(channels, width, 1),
                nn.Conv2d(width - 3, 4, 1),
                nn.Conv2d(3, 4, 1),
            )
            self.width = 4
        else:
            self.width = channels + 2

    def forward(self, x):
        n, _, h, w = x.shape
        if self.how == "space":
            return F.pixel_unshuffle(self.mid(F.pixel_shuffle(self.up(x), 2)), 2)
        if self.how == "unfold":
            patches = self.mid(F.unfold(x, 3, padding=1).transpose(1, 2))
            return patches.transpose(1, 2).reshape(n, -1, h, w)
        if self.how == "uneven":
            x = self.up(x)
            return self.left(x[:, 3:]) * self.right(x[:, :3])
        return F.pad(x, (0, 0, 0, 0, 1, 1))


class Skip(nn.Module):
    """Down and up again, with the way around joined on."""

    def __init__(self, channels, width, act):
        super().__init__()
        self.down, self.up = (
            nn.Conv2d(channels, width, 2, 2),
            nn.ConvTranspose2d(width, width, 2, 2),
        )
        self.act, self.width = ACTIVATIONS[act](), channels + width

    def forward(self, x):
        return torch.cat([x, self.up(self.act(self.down(x)))], 1)


class Twice(nn.Module):
    """One layer used two times."""

    def __init__(self, channels, act):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.act, self.width = ACTIVATIONS[act](), channels

    def forward(self, x):
        return self.norm(self.conv(self.act(self.norm(self.conv(x)))))


class Plain(nn.Sequential):
    def __init__(self, module, channels):
        super().__init__(module)
        self.width = channels


# -- blocks on tokens (batch, tokens, channels) --------------------------------------------------------


class MLP(nn.Module):
    def __init__(self, width, hidden, norm, act, gated):
        super().__init__()
        self.norm = token_norm(norm, width)
        self.up, self.down = (
            nn.Linear(width, hidden * (2 if gated else 1)),
            nn.Linear(hidden, width),
        )
        self.act, self.gated = ACTIVATIONS[act](), gated

    def forward(self, x):
        y = self.up(self.norm(x))
        if self.gated:
            a, b = y.chunk(2, -1)
            return x + self.down(a * self.act(b))
        return x + self.down(self.act(y))


class Attention(nn.Module):
    def __init__(self, width, heads, head_dim, norm, how, scaled):
        super().__init__()
        self.norm = token_norm(norm, width)
        self.heads, self.head_dim, self.how = heads, head_dim, how
        inner = heads * head_dim
        if how == "qkv":
            self.qkv = nn.Linear(width, 3 * inner)
        else:
            self.kv_heads = 1 if how == "mqa" else (heads // 2 if how == "gqa" else heads)
            self.q = nn.Linear(width, inner)
            self.k = nn.Linear(width, self.kv_heads * head_dim)
            self.v = nn.Linear(width, self.kv_heads * head_dim)
        self.out = nn.Linear(inner, width)
        self.gamma = nn.Parameter(torch.ones(width)) if scaled else None

    def forward(self, x):
        n, t, _ = x.shape
        y = self.norm(x)
        if self.how == "qkv":
            q, k, v = self.qkv(y).reshape(n, t, 3, self.heads, self.head_dim).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (
                f(y).view(n, t, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v)
            )
        if self.how == "manual":
            weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
            y = weights @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.how in ("gqa", "mqa"))
        y = self.out(y.transpose(1, 2).reshape(n, t, -1))
        return x + (y if self.gamma is None else self.gamma * y)


class TokenMixer(nn.Module):
    """A perceptron across tokens, as in MLP-Mixer; there are four of them."""

    def __init__(self, width, hidden, norm):
        super().__init__()
        self.norm = token_norm(norm, width)
        self.up, self.down = nn.Linear(4, hidden), nn.Linear(hidden, 4)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x).transpose(1, 2)))).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, width, hidden, cls, layers, both):
        super().__init__()
        self.rnn = getattr(nn, cls)(width, hidden, layers, batch_first=True, bidirectional=both)
        self.out = nn.Linear(hidden * (2 if both else 1), width)

    def forward(self, x):
        return x + self.out(self.rnn(x)[0])


class TorchAttention(nn.Module):
    def __init__(self, width, how):
        super().__init__()
        if how == "mha":
            self.layer = nn.MultiheadAttention(width, 2, batch_first=True)
        else:
            first = how == "pre"
            self.layer = nn.TransformerEncoderLayer(
                width, 2, 6, 0.1, batch_first=True, norm_first=first
            )

    def forward(self, x):
        if isinstance(self.layer, nn.MultiheadAttention):
            return x + self.layer(x, x, x, need_weights=False)[0]
        return self.layer(x)


class Net(nn.Module):
    """A stem, blocks on maps, optionally blocks on tokens, and a head."""

    def __init__(self, spec):
        super().__init__()
        stem, blocks, tokens, head = spec
        maps = [Conv(3, *stem)]
        for kind, *options in blocks:
            maps.append(make_block(kind, maps[-1].width, *options))
        self.maps = nn.Sequential(*maps)
        width = maps[-1].width
        self.is_tokens = bool(tokens)
        if tokens:
            embed, token_blocks, last = tokens
            self.embed = nn.Linear(width, embed) if embed else nn.Identity()
            width = embed or width
            self.position = nn.Parameter(torch.zeros(1, 1, width))
            self.tokens = nn.Sequential(
                *(make_token_block(kind, width, *o) for kind, *o in token_blocks)
            )
            self.last = token_norm(last, width)
        self.how = head
        # Maps keep at most 6 × 6 positions; a flattening head sees them all.
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(width * 4 if head == "flatten" and not tokens else width, 5)

    def forward(self, x):
        x = self.maps(x)
        if self.is_tokens:
            x = self.embed(self.pool(x).flatten(2).transpose(1, 2)) + self.position
            x = self.last(self.tokens(x))
            x = x[:, 0] if self.how == "first" else x.mean(1)
        elif self.how == "flatten":
            x = self.pool(x).flatten(1)
        else:
            x = x.mean((2, 3))
        return self.head(x)


def make_block(kind, channels, *options):
    if kind == "conv":
        width, size, norm, act, bias = options
        return Conv(channels, width, size, norm, act, bias=bias)
    if kind == "grouped":
        width, norm, act = options
        groups = 2 if channels % 2 == 0 else 1
        return Conv(channels, width, 3, norm, act, groups=groups)
    if kind == "depthwise":
        times, norm, act = options
        return Conv(channels, channels * times, 3, norm, act, groups=channels)
    if kind == "residual":
        return Residual(channels, *options)
    if kind == "branches":
        return Branches(channels, *options)
    if kind == "halves":
        return Halves(channels, *options)
    if kind == "se":
        return SqueezeExcite(channels, *options)
    if kind == "shuffle":
        return Shuffle(channels) if channels % 2 == 0 else Scale(channels)
    if kind == "scale":
        return Scale(channels)
    for cls in (ChannelNorm, Spatial, Moved, Skip, Twice):
        if kind == cls.__name__:
            return cls(channels, *options)
    if kind == "transposed":
        (width,) = options
        made = Plain(nn.ConvTranspose2d(channels, width, 2, stride=2), width)
        made.append(nn.MaxPool2d(2))
        return made
    return Plain(
        {
            "max": nn.MaxPool2d(3, 1, 1),
            "avg": nn.AvgPool2d(3, 1, 1),
            "up": nn.Sequential(nn.AvgPool2d(2), nn.Upsample(scale_factor=2)),
            "dropout": nn.Dropout(0.3),
        }[kind],
        channels,
    )


def make_token_block(kind, width, *options):
    if kind == "torch" and width % 2:
        kind, options = "mlp", (4, "ln", "relu", False)
    return {
        "mlp": MLP,
        "attention": Attention,
        "mixer": TokenMixer,
        "rnn": Recurrent,
        "torch": TorchAttention,
    }[kind](width, *options)


# -- strategies ----------------------------------------------------------------------------------------

widths = st.sampled_from([4, 6, 8])
acts = st.sampled_from(sorted(ACTIVATIONS))
map_norms = st.sampled_from(["bn", "none", "gn", "gn1", "in"])
token_norms = st.sampled_from(["ln", "rms", "own_rms", "plain_ln", "none"])
blocks = st.one_of(
    st.tuples(st.just("conv"), widths, st.sampled_from([1, 3]), map_norms, acts, st.booleans()),
    st.tuples(st.just("grouped"), widths, map_norms, acts),
    st.tuples(st.just("depthwise"), st.sampled_from([1, 2]), map_norms, acts),
    st.tuples(st.just("residual"), widths, map_norms, acts, st.booleans()),
    st.tuples(
        st.just("branches"),
        widths,
        map_norms,
        acts,
        st.sampled_from(["cat", "dense", "gate", "max"]),
    ),
    st.tuples(
        st.just("halves"), widths, acts, st.sampled_from(["chunk", "split", "slice", "glu", "sum"])
    ),
    st.tuples(st.just("se"), widths, acts),
    st.tuples(st.just("transposed"), widths),
    st.tuples(st.just("Moved"), widths, st.sampled_from(["space", "unfold", "uneven", "pad"])),
    st.tuples(st.just("Skip"), widths, acts),
    st.tuples(st.just("Twice"), acts),
    st.sampled_from(
        [
            ("ChannelNorm",),
            ("Spatial",),
            ("shuffle",),
            ("scale",),
            ("max",),
            ("avg",),
            ("up",),
            ("dropout",),
        ]
    ),
)
token_blocks = st.one_of(
    st.tuples(st.just("mlp"), widths, token_norms, acts, st.booleans()),
    st.tuples(
        st.just("attention"),
        st.sampled_from([2, 4]),
        st.sampled_from([2, 3]),
        token_norms,
        st.sampled_from(["qkv", "plain", "manual", "gqa", "mqa"]),
        st.booleans(),
    ),
    st.tuples(st.just("mixer"), widths, token_norms),
    st.tuples(
        st.just("rnn"),
        widths,
        st.sampled_from(["LSTM", "GRU", "RNN"]),
        st.integers(1, 2),
        st.booleans(),
    ),
    st.tuples(st.just("torch"), st.sampled_from(["mha", "pre", "post"])),
)
stems = st.tuples(widths, st.just(3), map_norms, acts)
specs = st.tuples(
    stems,
    st.lists(blocks, max_size=4),
    st.one_of(
        st.none(),
        st.tuples(
            st.sampled_from([0, 8]), st.lists(token_blocks, min_size=1, max_size=2), token_norms
        ),
    ),
    st.sampled_from(["mean", "flatten", "first"]),
)


@torch.no_grad()
def randomize(model, seed=0):
    """Give every parameter and running statistic a value that hides nothing."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        fan = max(1, parameter[0].numel()) if parameter.dim() > 1 else 1
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(noise / fan**0.5 + (0.3 if parameter.dim() == 1 else 0))
    for name, buffer in model.named_buffers():
        noise = torch.randn(buffer.shape, generator=generator, dtype=torch.float64)
        if name.endswith("running_mean"):
            buffer.copy_(noise)
        elif name.endswith("running_var"):
            buffer.copy_(noise.abs() + 0.5)
    return model


def build(spec, seed=0):
    return randomize(Net(spec).double(), seed)
