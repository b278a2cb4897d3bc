"""The framework interface of the engine. One subclass per framework; nothing else touches it."""

from __future__ import annotations

from typing import ClassVar

from lilliput.frameworks.ports.files import Processes, Storing
from lilliput.frameworks.ports.graphs import Graphs, Quantizing
from lilliput.frameworks.ports.layers import Layers, Masks
from lilliput.frameworks.ports.running import Running
from lilliput.frameworks.ports.teaching import Teaching
from lilliput.frameworks.ports.training import Training


class Backend(Layers, Masks, Training, Running, Teaching, Graphs, Quantizing, Processes, Storing):
    """The engine's view of a framework: nine small protocols, so that code can request the one it needs."""

    name: ClassVar[str]
    default_types: ClassVar[frozenset[str]]
    # Layers whose integer kernels return integers, in the runtimes of the framework's users.
    integer_outputs: ClassVar[frozenset[str]] = frozenset({"_ConvNd"})
    dynamic_inputs: ClassVar[frozenset[str]] = frozenset({"Linear", "MultiheadAttention"})
