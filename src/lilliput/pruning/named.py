"""Pruners that use the criterion of another pruner, given by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from lilliput.core.masker import WeightMasker
from lilliput.errors import ConfigError, nearest
from lilliput.pruning.criterion import CriterionArguments, CriterionPruner
from lilliput.pruning.one_shot import OneShotPruner
from lilliput.registry import pruners


class NamedCriterionArguments(CriterionArguments, total=False):
    """What pruners that borrow a criterion are made with besides; see :class:`NamedCriterionPruner`."""

    example_inputs: Any
    pruning_params: Mapping[str, Any] | None


class NamedCriterionPruner(CriterionPruner):
    """Decide when to prune and how much; another pruner's criterion ranks the weights.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`.
    pruning_algorithm : str
        The one-shot pruner whose criterion ranks weights or channels.
    example_inputs, groups : optional
        See :class:`~lilliput.pruning.channels.ChannelPruner`; for criteria that rank channels.
    pruning_params : dict, optional
        Keyword arguments of the criterion, such as ``{'activation': 'gelu'}``.
    """

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        pruning_algorithm: str | type = "level",
        *,
        example_inputs: Any = None,
        groups: Any = None,
        pruning_params: Mapping[str, Any] | None = None,
    ) -> None:
        if pruning_params is not None and not isinstance(pruning_params, Mapping):
            raise ConfigError(
                f"pruning_params: received {pruning_params!r}, expected a dict of keyword arguments of the "
                "criterion."
            )
        criterion = self.masker_of(pruning_algorithm)
        _check_params(criterion, pruning_params or {})
        super().__init__(
            model,
            config_list,
            optimizer,
            masker_type=criterion,
            options=pruning_params,
            example_inputs=example_inputs,
            groups=groups,
        )

    def masker_of(self, algorithm: str | type) -> type[WeightMasker]:
        """Return the criterion of a one-shot pruner; raise for any other."""
        found: Any = pruners.get(algorithm) if isinstance(algorithm, str) else algorithm
        if not isinstance(found, type) or not issubclass(found, OneShotPruner):
            raise ConfigError(
                f"pruning_algorithm {algorithm!r} has no scores to rank weights by; expected a one-shot "
                "pruner such as 'level'."
            )
        return found.masker_type


def _check_params(criterion: type, given: Mapping[str, Any]) -> None:
    """Raise for arguments that the criterion does not have."""
    takes = inspect.signature(criterion).parameters.values()
    if any(x.kind is x.VAR_KEYWORD for x in takes):
        return
    positional = [x for x in takes if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    own = [
        *positional[2:],
        *(x for x in takes if x.kind is x.KEYWORD_ONLY),
    ]  # after model and pruner
    names = [x.name for x in own]
    for name in given:
        if name not in names:
            known = f"expected some of {', '.join(names)}" if names else "it has none"
            raise ConfigError(
                f"pruning_params: {criterion.__name__} has no argument {name!r}; {known}."
                f"{nearest(name, names)}"
            )
