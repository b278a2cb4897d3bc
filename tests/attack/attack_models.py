"""Sixty shapes of models: one for each way a layer can hold, share, transform or use a weight.

Each factory returns a model and the inputs of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

Factory = Callable[[], tuple[nn.Module, tuple[Any, ...]]]
FACTORIES: dict[str, Factory] = {}


def shape(factory: Factory) -> Factory:
    FACTORIES[factory.__name__] = factory
    return factory


class Of(nn.Module):
    """A model of parts and a function that says what to do with them."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.run(self, *args)


def vectors(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)).to(dtype)


def tokens(count: int = 11) -> Tensor:
    return torch.randint(count, (4, 5), generator=torch.Generator().manual_seed(7))


def simple(*layers: nn.Module, size: tuple[int, ...] = (4, 8)) -> tuple[nn.Module, tuple[Any, ...]]:
    return nn.Sequential(*layers), (vectors(*size),)


def declare(name: str, make: Factory) -> None:
    FACTORIES[name] = make


IMAGE, LINE, CUBE = (4, 4, 6, 6), (4, 4, 9), (2, 4, 5, 5, 5)
L = nn.Linear
declare("mlp", lambda: simple(L(8, 8), nn.ReLU(), L(8, 3)))
declare("mlp_without_bias", lambda: simple(L(8, 8, bias=False), nn.ReLU(), L(8, 3, bias=False)))
declare("one_layer", lambda: (L(8, 3), (vectors(4, 8),)))
declare("one_weight", lambda: simple(L(8, 1), L(1, 1), L(1, 1)))
declare("float64", lambda: (simple(L(8, 8), L(8, 3))[0].double(), (vectors(4, 8).double(),)))
declare("bfloat16", lambda: (simple(L(8, 8), L(8, 3))[0].bfloat16(), (vectors(4, 8).bfloat16(),)))
declare("float16", lambda: (simple(L(8, 8), L(8, 3))[0].half(), (vectors(4, 8).half(),)))
declare(
    "mixed_types",
    lambda: (
        Of(lambda s, x: s.b(s.a(x).double()), a=L(8, 8), b=L(8, 3).double()),
        (vectors(4, 8),),
    ),
)
declare(
    "conv2d",
    lambda: simple(
        nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), size=IMAGE
    ),
)
declare("conv1d", lambda: simple(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 3), size=LINE))
declare("conv3d", lambda: simple(nn.Conv3d(4, 8, 3), nn.ReLU(), nn.Conv3d(8, 4, 1), size=CUBE))
declare("grouped", lambda: simple(nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(8, 4, 1), size=IMAGE))
declare("depthwise", lambda: simple(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 4, 1), size=IMAGE))
declare("transposed", lambda: simple(nn.ConvTranspose2d(4, 8, 3), nn.Conv2d(8, 4, 1), size=IMAGE))
declare(
    "transposed_grouped",
    lambda: simple(nn.ConvTranspose2d(4, 8, 3, groups=2), nn.Conv2d(8, 4, 1), size=IMAGE),
)
declare("transposed1d", lambda: simple(nn.ConvTranspose1d(4, 8, 3), nn.Conv1d(8, 4, 1), size=LINE))
declare("transposed3d", lambda: simple(nn.ConvTranspose3d(4, 8, 3), nn.Conv3d(8, 4, 1), size=CUBE))
declare(
    "padding_modes",
    lambda: simple(
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(8, 4, 3, padding="same"),
        size=IMAGE,
    ),
)
declare(
    "group_norm",
    lambda: simple(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 1), size=IMAGE),
)
declare("layer_norm", lambda: simple(L(8, 8), nn.LayerNorm(8), L(8, 3)))
declare(
    "instance_norm",
    lambda: simple(
        nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.Conv2d(8, 4, 1), size=IMAGE
    ),
)
declare("prelu", lambda: simple(L(8, 8), nn.PReLU(8), L(8, 3)))
declare("frozen_layer", lambda: simple(L(8, 8).requires_grad_(False), nn.ReLU(), L(8, 3)))
declare(
    "eval_mode_norm",
    lambda: simple(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8).eval(), nn.Conv2d(8, 4, 1), size=IMAGE),
)
declare("dropout", lambda: simple(L(8, 8), nn.Dropout(0.5), L(8, 3)))
declare(
    "lstm",
    lambda: (
        Of(lambda s, x: s.b(s.a(x)[0]), a=nn.LSTM(4, 6, 2, bidirectional=True), b=L(12, 3)),
        (vectors(5, 2, 4),),
    ),
)
declare(
    "gru", lambda: (Of(lambda s, x: s.b(s.a(x)[0]), a=nn.GRU(4, 6), b=L(6, 3)), (vectors(5, 2, 4),))
)
declare(
    "rnn", lambda: (Of(lambda s, x: s.b(s.a(x)[0]), a=nn.RNN(4, 6), b=L(6, 3)), (vectors(5, 2, 4),))
)
declare(
    "lstm_projected",
    lambda: (Of(lambda s, x: s.a(x)[0], a=nn.LSTM(4, 6, proj_size=3)), (vectors(5, 2, 4),)),
)
declare(
    "lstm_cell",
    lambda: (Of(lambda s, x: s.b(s.a(x)[0]), a=nn.LSTMCell(4, 6), b=L(6, 3)), (vectors(3, 4),)),
)
declare(
    "gru_cell",
    lambda: (Of(lambda s, x: s.b(s.a(x)), a=nn.GRUCell(4, 6), b=L(6, 3)), (vectors(3, 4),)),
)
declare(
    "attention",
    lambda: (
        Of(lambda s, x: s.b(s.a(x, x, x)[0]), a=nn.MultiheadAttention(8, 2), b=L(8, 3)),
        (vectors(5, 2, 8),),
    ),
)
declare(
    "attention_kdim",
    lambda: (
        Of(
            lambda s, x: s.a(x, x[..., :4], x[..., :6])[0],
            a=nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        ),
        (vectors(5, 2, 8),),
    ),
)
declare(
    "encoder_layer",
    lambda: simple(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), L(8, 3), size=(5, 2, 8)),
)
declare(
    "encoder",
    lambda: simple(
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
            2,
            enable_nested_tensor=False,
        ),
        size=(2, 5, 8),
    ),
)
declare(
    "embedding",
    lambda: (Of(lambda s, t: s.b(s.a(t)), a=nn.Embedding(11, 8), b=L(8, 3)), (tokens(),)),
)
declare(
    "embedding_padding",
    lambda: (
        Of(lambda s, t: s.b(s.a(t)), a=nn.Embedding(11, 8, padding_idx=0), b=L(8, 3)),
        (tokens(),),
    ),
)
declare(
    "embedding_sparse",
    lambda: (
        Of(lambda s, t: s.b(s.a(t)), a=nn.Embedding(11, 8, sparse=True), b=L(8, 3)),
        (tokens(),),
    ),
)
declare(
    "embedding_bag",
    lambda: (Of(lambda s, t: s.b(s.a(t)), a=nn.EmbeddingBag(11, 8), b=L(8, 3)), (tokens(),)),
)
declare(
    "bilinear",
    lambda: (Of(lambda s, x: s.b(s.a(x, x)), a=nn.Bilinear(8, 8, 4), b=L(4, 3)), (vectors(4, 8),)),
)
declare("scalar_output", lambda: (Of(lambda s, x: s.a(x).mean(), a=L(8, 3)), (vectors(4, 8),)))
declare(
    "dict_output", lambda: (Of(lambda s, x: {"y": s.a(x), "z": [x]}, a=L(8, 3)), (vectors(4, 8),))
)
declare(
    "two_inputs",
    lambda: (
        Of(lambda s, x, y: s.a(x) + s.b(y), a=L(8, 3), b=L(4, 3)),
        (vectors(4, 8), vectors(4, 4)),
    ),
)
declare(
    "residual",
    lambda: (
        Of(lambda s, x: s.c(s.a(x) + s.b(x)), a=L(8, 8), b=L(8, 8), c=L(8, 3)),
        (vectors(4, 8),),
    ),
)
declare(
    "concat",
    lambda: (
        Of(lambda s, x: s.c(torch.cat([s.a(x), s.b(x)], -1)), a=L(8, 4), b=L(8, 4), c=L(8, 3)),
        (vectors(4, 8),),
    ),
)
declare(
    "functional",
    lambda: (Of(lambda s, x: F.linear(x, s.a.weight, s.a.bias), a=L(8, 3)), (vectors(4, 8),)),
)
declare(
    "quant_stubs",
    lambda: simple(torch.ao.quantization.QuantStub(), L(8, 3), torch.ao.quantization.DeQuantStub()),
)
declare("lazy", lambda: simple(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)))
declare(
    "meta_device",
    lambda: (
        simple(L(8, 8, device="meta"), L(8, 3, device="meta"))[0],
        (vectors(4, 8).to("meta"),),
    ),
)
declare("empty_layer", lambda: simple(L(8, 0), nn.ReLU(), L(0, 3)))
declare("no_layers", lambda: simple(nn.ReLU(), nn.Tanh()))
declare("weight_norm_new", lambda: simple(parametrizations.weight_norm(L(8, 8)), L(8, 3)))
declare("spectral_norm", lambda: simple(parametrizations.spectral_norm(L(8, 8)), L(8, 3)))
declare("orthogonal", lambda: simple(parametrizations.orthogonal(L(8, 8)), L(8, 3)))
declare("zero_weights", lambda: (_zeroed(), (vectors(4, 8),)))


def _zeroed() -> nn.Module:
    model = simple(L(8, 8), L(8, 3))[0]
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


@shape
def weight_norm_old() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return simple(weight_norm(L(8, 8)), L(8, 3))


@shape
def expanded_weight() -> Any:
    model, inputs = simple(L(8, 8), L(8, 3))
    model[0].weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))
    return model, inputs


@shape
def transposed_memory() -> Any:
    model, inputs = simple(L(8, 8), L(8, 3))
    model[0].weight = nn.Parameter(torch.randn(8, 8).t())
    return model, inputs


@shape
def shared_storage() -> Any:
    model, inputs = simple(L(8, 8), L(8, 8))
    base = torch.randn(16, 8)
    model[0].weight, model[1].weight = nn.Parameter(base[:8]), nn.Parameter(base[4:12])
    return model, inputs


class Aliased(nn.Linear):
    def __init__(self, *args: int) -> None:
        super().__init__(*args)
        self.alias = self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.alias, self.bias)


@shape
def alias_in_one_module() -> Any:
    return simple(Aliased(8, 8), Aliased(8, 3))


@shape
def tied() -> Any:
    model = Of(lambda s, t: s.b(s.c(s.a(t))), a=nn.Embedding(11, 8), c=L(8, 8), b=L(8, 11))
    model.b.weight = model.a.weight
    return model, (tokens(),)


@shape
def tied_linear() -> Any:
    model, inputs = simple(L(8, 8), nn.ReLU(), L(8, 8), L(8, 3))
    model[2].weight = model[0].weight
    return model, inputs


@shape
def module_used_twice() -> Any:
    layer = L(8, 8)
    return simple(layer, nn.ReLU(), layer, L(8, 3))


@shape
def nested_shared() -> Any:
    inner = nn.Sequential(L(8, 8), nn.ReLU())
    return simple(nn.Sequential(inner), nn.Sequential(inner, L(8, 8)), L(8, 3))


class ListOfWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(8, 8) / 5, torch.randn(8, 8) / 5])
        self.head = L(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight
        return self.head(x)


@shape
def parameter_list() -> Any:
    return ListOfWeights(), (vectors(4, 8),)


@shape
def closure() -> Any:
    hidden = L(8, 8)
    return Of(lambda s, x: s.a(F.linear(x, hidden.weight)), a=L(8, 3)), (vectors(4, 8),)


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * self.scale


@shape
def own_parameter() -> Any:
    return simple(OwnParameter(), L(8, 3))


class OwnGetattr(nn.Linear):
    def __getattr__(self, name: str) -> Any:
        return 42 if name == "answer" else super().__getattr__(name)


@shape
def own_getattr() -> Any:
    return simple(OwnGetattr(8, 8), L(8, 3))


class Sealed(nn.Linear):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise RuntimeError("no subclasses")


@shape
def sealed_class() -> Any:
    return simple(Sealed(8, 8), L(8, 3))


class Slotted(nn.Linear):
    __slots__ = ("extra",)


@shape
def slots() -> Any:
    return simple(Slotted(8, 8), L(8, 3))


class ForgetsBias(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


@shape
def unused_bias() -> Any:
    return simple(ForgetsBias(8, 8), L(8, 3))


@shape
def unused_layer() -> Any:
    return Of(lambda s, x: s.a(x), a=L(8, 3), b=L(5, 5)), (vectors(4, 8),)


@shape
def buffers_and_hooks() -> Any:
    model, inputs = simple(L(8, 8), L(8, 3))
    model.register_buffer("seen", torch.zeros(1))
    model[0].register_forward_hook(lambda m, i, o: o * 2)
    model[1].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    return model, inputs
