"""What a rule selects: one weight of one layer, described independently of a framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lilliput.printing import printable, shown


class QuantType(str, Enum):
    """Which tensor of a layer is quantized.

    Examples
    --------
    >>> QuantType.OUTPUT, QuantType("weight")
    (<QuantType.OUTPUT: 'output'>, <QuantType.WEIGHT: 'weight'>)
    """

    WEIGHT = "weight"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, eq=False)
class Owner:
    """A module with the weight: tied weights have several.

    ``paths`` are all paths of the module in the model: one that is used twice has two.
    """

    paths: tuple[str, ...]
    module: Any = field(repr=False)
    weight_name: str | None
    bias_name: str | None

    @property
    def path(self) -> str:
        """Its first path."""
        return self.paths[0]


@dataclass(frozen=True, eq=False)
class LayerInfo:
    """One compressible layer: the unit that a rule selects and a wrapper is created for.

    A module with several weights (an LSTM) has one ``LayerInfo`` per weight, so that algorithms
    need not handle it. A weight shared by several modules has one ``LayerInfo`` with several owners.

    Parameters
    ----------
    name : str
        Path of the module, or path and weight name if the module has several weights.
    type : str
        Class name of the module.
    owners : tuple of Owner
        All modules with this weight; the first one is ``module``.
    shape : tuple of int
        Shape of the weight, empty if there is none (an activation layer).
    types : frozenset of str
        Class names by which ``op_types`` finds it: its owners' classes and their bases.
    is_bypassed : bool
        Whether its parent uses the weight without calling the module, so that input and output are
        never seen (``out_proj`` of ``MultiheadAttention``).
    config : dict
        The rule that selected this layer, filled in by selection.
    out_axis, in_axis : int
        The axes of the weight that count output and input channels.
    out_groups : int
        The number of blocks of output channels along the other axis: the groups of a
        transposed convolution.
    channel_axis : int
        The axis of the layer's output that counts channels.
    is_parameter : bool
        Whether this is one parameter of any kind, with its full name, instead of a layer that rules select.
    """

    name: str
    type: str
    owners: tuple[Owner, ...]
    shape: tuple[int, ...] = ()
    types: frozenset[str] = frozenset()
    is_bypassed: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    out_axis: int = 0
    out_groups: int = 1
    channel_axis: int = -1
    is_parameter: bool = False
    in_axis: int = 1

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "no weight"
        asked = {k: v for k, v in self.config.items() if k not in ("op_types", "op_names")}
        config = f", {shown(asked)}" if asked else ""
        return f"LayerInfo({shown(self.name)}, {printable(self.type)}, {shape}{config})"

    @property
    def module(self) -> Any:
        """The framework's own layer object."""
        return self.owners[0].module

    layer = module
    op = module

    @property
    def weight_name(self) -> str | None:
        """The module's attribute of the weight, None for a layer without one."""
        return self.owners[0].weight_name

    @property
    def bias_name(self) -> str | None:
        """The attribute of the bias that belongs to the weight, or None."""
        return self.owners[0].bias_name

    @property
    def tensor_name(self) -> str:
        """The first full name of the weight."""
        path, name = self.owners[0].path, self.weight_name or ""
        return f"{path}.{name}" if path else name

    @property
    def tensor_names(self) -> frozenset[str]:
        """Every full name of the weight: ``'layer1.0.conv1.weight'``."""
        found = ((path, owner.weight_name) for owner in self.owners for path in owner.paths)
        return frozenset(f"{path}.{name}" if path else name for path, name in found if name)

    @property
    def out_channels(self) -> int:
        """Number of output channels of the weight."""
        return self.shape[self.out_axis] * self.out_groups

    @property
    def names(self) -> frozenset[str]:
        """All names by which ``op_names`` finds it."""
        paths = (path for owner in self.owners for path in owner.paths if path)
        return frozenset({self.name, *paths})
