"""What the engine asks of a framework. One subclass per framework, and nothing else touches it."""

from __future__ import annotations

from typing import ClassVar

from lilliput.frameworks.ports.files import Processes, Storing
from lilliput.frameworks.ports.graphs import Graphs, Quantizing
from lilliput.frameworks.ports.layers import Layers, Masks
from lilliput.frameworks.ports.training import Running, Teaching, Training


class Backend(Layers, Masks, Training, Running, Teaching, Graphs, Quantizing, Processes, Storing):
    """The engine's view of a framework: nine small parts, so that code can ask for the one it needs."""

    name: ClassVar[str]
    default_types: ClassVar[frozenset[str]]
    # Layers whose integer kernels, in the runtimes that the framework's users have, return integers.
    integer_outputs: ClassVar[frozenset[str]] = frozenset({"_ConvNd"})
    dynamic_inputs: ClassVar[frozenset[str]] = frozenset({"Linear", "MultiheadAttention"})
