"""Find the channels of a model that can be removed, and what is removed with each of them."""

from __future__ import annotations

from typing import Any

from lilliput.frameworks import backend_of
from lilliput.graph.collect import find_groups
from lilliput.graph.groups import ChannelGroups


def channel_groups(model: Any, example_inputs: Any = None) -> ChannelGroups:
    """Return which channels of a model can be removed, and what is removed with each of them.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        A model that runs on the example inputs; a Keras model has to be built. It is only read.
    example_inputs : tensor, tuple, dict or structure of arrays, optional
        Inputs of the model, with a batch of at least two. Keras needs it only for subclassed
        models, and to count operations if a model has dynamic sizes.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> print(channel_groups(model, torch.zeros(2, 4)))
    1 channel group, 8 units can be removed
    0.weight: 8 units
      produced by 0.weight
      also in 0.bias, 2.weight
    1 that stay:
      2.weight (dim 0, 2): they are the model's output
    """
    return find_groups(backend_of(model).graph(model, example_inputs))
