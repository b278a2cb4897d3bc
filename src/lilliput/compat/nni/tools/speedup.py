"""``ModelSpeedup`` in NNI's forms: masks as dict or file, any batch, and a model with nothing to cut."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from lilliput.compat.nni.tools.filing import PathLike
from lilliput.errors import ConfigError, NothingToCutError
from lilliput.speedup.model_speedup import ModelSpeedup as TodaysModelSpeedup

log = logging.getLogger("lilliput")

# Arguments that described unknown modules to NNI's tracer.
_NOT_NEEDED = ("customized_replace_func", "customized_mask_updaters", "customized_replacers")


class ModelSpeedup(TodaysModelSpeedup):
    """Cut out masked channels.

    Parameters
    ----------
    model : torch.nn.Module
        The model, plain or under a pruner; it is changed in place.
    dummy_input : tensor, tuple, list or dict
        Inputs of the model. A batch of one is doubled.
    masks_file : path or dict
        Written by ``export_model(mask_path=…)`` or returned by ``compress()``, here or in NNI;
        ``masks_or_file`` in v3.
    map_location : optional
        Where to load the masks.
    batch_dim : int
        The dimension of the batch in the inputs.
    confidence, batch_size : int
        How many samples NNI tried; unused, because the graph is traced here.
    customized_replace_func, customized_mask_updaters, customized_replacers : optional
        How NNI was told to cut unknown modules. Here every module is traced op by op, so
        they are not called: a note says what to do for an unknown op.
    graph_module, garbage_collect_values, logger : optional
        Of NNI's own tracer; not used.
    """

    def __init__(
        self,
        model: nn.Module,
        dummy_input: Any,
        masks_file: PathLike | Mapping[str, Any] | None = None,
        map_location: Any = None,
        batch_dim: int = 0,
        confidence: int = 8,
        customized_replace_func: Any = None,
        customized_replacers: Any = None,
        *,
        masks_or_file: PathLike | Mapping[str, Any] | None = None,
        batch_size: int = 8,
        customized_mask_updaters: Any = None,
        graph_module: Any = None,
        garbage_collect_values: bool = True,
        logger: Any = None,
    ) -> None:
        masks = masks_file if masks_or_file is None else masks_or_file
        if masks is None:
            raise ConfigError(
                "ModelSpeedup: masks_file is missing; pass a path or a dict of masks."
            )
        given = (customized_replace_func, customized_mask_updaters, customized_replacers)
        for name, value in zip(_NOT_NEEDED, given, strict=True):
            if value:
                _note_not_needed(name, value)
        super().__init__(model, at_least_two(dummy_input, batch_dim), masks, map_location)

    def speedup_model(self) -> Any:
        """Shrink the model in place and return it; leave it unchanged if nothing can be cut."""
        try:
            model = super().speedup_model()
        except NothingToCutError as error:
            log.warning("ModelSpeedup: the model is unchanged: %s", error)
            return self.bound_model
        if model is not self.bound_model:
            log.warning(
                "ModelSpeedup: the smaller model runs as a captured graph and could not replace the "
                "given model in place; use the result of speedup_model()."
            )
        return model


def at_least_two(inputs: Any, batch_dim: int = 0) -> Any:
    """Return inputs with a batch of at least two: a batch of one is doubled.

    Examples
    --------
    >>> at_least_two((torch.zeros(1, 3), torch.zeros(4)))[0].shape
    torch.Size([2, 3])
    """
    inputs = tuple(inputs) if isinstance(inputs, list) else inputs
    tensors: list[Tensor] = []
    tree_map(lambda x: tensors.append(x) if isinstance(x, Tensor) else None, inputs)
    wide = [x for x in tensors if x.dim() > batch_dim]
    if not wide or wide[0].shape[batch_dim] != 1:
        return inputs
    return tree_map(lambda x: _doubled(x, batch_dim), inputs)


def _doubled(value: Any, dim: int) -> Any:
    is_single = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == 1
    return torch.cat([value, value], dim) if is_single else value


def _note_not_needed(name: str, value: Any) -> None:
    kinds = value if isinstance(value, Iterable) else [value]
    listed = ", ".join(getattr(x, "__name__", type(x).__name__) for x in kinds)
    log.warning(
        "ModelSpeedup: %s (%s) is not called: modules are traced op by op, whatever their type, and the "
        "outputs are compared. Where an op keeps its channels, give it a rule: see 'A rule for an op' in "
        "the page on channel groups.",
        name,
        listed,
    )
