"""Cut masked channels out of a model of any framework."""

from __future__ import annotations

import time
from typing import Any

from lilliput.errors import ConfigError
from lilliput.frameworks import part_for
from lilliput.frameworks.shrinking import Options, Shrinking
from lilliput.garbage import uncollected
from lilliput.speedup.before_after import receipt_of_cut
from lilliput.speedup.result import SpeedupResult


def speedup(
    model: Any,
    example_inputs: Any = None,
    *,
    optimizer: Any = None,
    masks: Any = None,
    extend_masks: bool = False,
    allow_graph: bool = True,
    inplace: bool = True,
) -> SpeedupResult:
    """Cut masked channels out of a model, in place, and check that its outputs stay the same.

    Compressors are detached from the model. Its weights become smaller tensors: a torch module keeps its
    layers and parameters, a Keras model gets new layers of the same names and has to be compiled again to
    train.

    Parameters
    ----------
    model : torch.nn.Module or keras.Model
        A model with a structured pruner, attached or stripped. A Keras model must be
        Functional or Sequential, possibly with nested models.
    example_inputs : tensor, tuple, dict or structure of arrays
        Inputs of the model, with a batch of at least two. A Keras model needs it only if its
        inputs have dynamic sizes; otherwise random numbers are used.
    optimizer : torch.optim.Optimizer, optional
        Its state (momentum and similar) is cut along with the parameters, so that training can continue;
        by default the optimizer of the pruner. Torch only.
    masks : path, or mapping of str to array, optional
        A file written by ``export_model(mask_path=…)``, or masks by parameter or variable,
        ``{'conv1.weight': tensor of 0 and 1, …}``, instead of those of attached pruners.
    extend_masks : bool
        Also remove channels for which only the filters are masked. Their remaining effect on later
        layers (norm shifts, activations of zero) is lost: the result differs from the masked model,
        and is compared with the model with extended masks.
    allow_graph : bool
        Whether parts that cannot be expressed in the user's code may be replaced by captured graphs
        (torch).
    inplace : bool
        Change the given model. Otherwise, it is not changed and keeps its pruners, and ``result.model`` is a
        new one.

    Returns
    -------
    SpeedupResult
        ``result.model`` is the shrunk model, ``print(result)`` the report.

    Examples
    --------
    >>> import torch
    >>> from lilliput.torch import L1NormPruner
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> x = torch.randn(2, 4)
    >>> model = L1NormPruner(model, [{"op_names": ["0"], "sparsity": 0.5}], example_inputs=x).compress()
    >>> result = speedup(model, x)
    >>> result.model[0], result.model is model
    (Linear(in_features=4, out_features=4, bias=True), True)
    """
    start = time.perf_counter()
    if optimizer is not None and not inplace:
        raise ConfigError(
            "speedup: received an optimizer together with inplace=False, which creates a new model; "
            "expected one of them. Create a new optimizer for result.model."
        )
    options = Options(optimizer, masks, extend_masks, allow_graph, inplace)
    part: Shrinking = part_for(model, "shrink")
    with uncollected():
        made = part.shrink(model, example_inputs, options)
        seconds = time.perf_counter() - start
        take_receipt = receipt_of_cut(made, is_now=part.RUNS_AT_ONCE)
    return SpeedupResult(
        model=made.model,
        plan=made.plan,
        error=made.error,
        parameters=made.parameters,
        macs=made.macs,
        removed=made.removed,
        seconds=seconds,
        remembered=made.remembered,
        notes=made.notes,
        source=made.source,
        example_inputs=example_inputs,
        _take_receipt=take_receipt,
    )
