"""Fill unknown sizes of a Keras model from example inputs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from keras import KerasTensor, tree

from lilliput.frameworks.keras.graph import Graph

log = logging.getLogger("lilliput")


def with_sizes(graph: Graph, example_inputs: Any) -> Graph:
    """Return the graph with unknown shapes filled in from example inputs."""
    is_open = any(None in shape[1:] for shape in graph.shapes.values())
    arrays = [x for x in tree.flatten(example_inputs) if hasattr(x, "shape")]
    if not is_open or len(arrays) != len(graph.inputs):
        return graph
    known = {n: (None, *x.shape[1:]) for n, x in zip(graph.inputs, arrays, strict=True)}
    shapes = {**graph.shapes, **known}
    try:
        for node in graph.nodes:
            tensors = node.arguments.keras_tensors
            given = {
                id(x): KerasTensor(shapes[n], x.dtype)
                for x, n in zip(tensors, node.inputs, strict=True)
            }
            args, kwargs = node.arguments.fill_in(given)
            made = tree.flatten(node.operation.compute_output_spec(*args, **kwargs))
            shapes |= {n: tuple(x.shape) for n, x in zip(node.outputs, made, strict=True)}
    except Exception as error:  # the sizes are only for counting and for views
        log.debug("speedup: sizes stay open: %r", error)
        return graph
    return replace(graph, shapes=shapes)
