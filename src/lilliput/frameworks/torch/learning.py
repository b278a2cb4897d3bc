"""Parameters that an algorithm adds (learned scales), trained by the user's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import ConfigError
from lilliput.frameworks.torch.replicated import GradientMean
from lilliput.frameworks.torch.weights import is_sharded

_NAME = "_lilliput_name"  # an attribute of learned parameters, by which they are sorted

# Optimizers that cannot train a few numbers, and why.
_UNFIT = {
    "Muon": "it trains matrices only",
    "ZeroRedundancyOptimizer": "it has divided its parameters among processes already",
}


class Learned:
    """Added parameters in an optimizer, each in the group of the weight of its layer.

    No group is added, so that learning rate schedulers, created before or after, see the same groups, and
    functions over all parameters (``zero_grad``, ``GradScaler``, ``state_dict``) find them. Only during
    an optimizer step are they in separate groups without weight decay, which would pull
    a learned scale to zero and make it useless.

    In a group they are in the order of their names, whichever compressor came first: optimizers restore
    their state by position.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        The optimizer that trains them.
    found : sequence of (str, Parameter, Tensor or None)
        The name of each, the parameter, and the weight whose learning rate it uses.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, found: Sequence[tuple[str, nn.Parameter, Any]]
    ) -> None:
        check_fit(optimizer, [parameter for _, parameter, _ in found])
        self.optimizer = optimizer
        self.names = {id(parameter): name for name, parameter, _ in found}
        groups = optimizer.param_groups
        for name, parameter, weight in found:
            setattr(parameter, _NAME, name)
            _join(
                next((g for g in groups if _holds(g, weight)), groups[0]), [parameter], self.names
            )
        self._apart: list[tuple[dict[str, Any], dict[str, Any]]] = []
        shared = [parameter for _, parameter, _ in found if is_sharded(parameter)]
        self._hooks: list[Any] = [
            *([GradientMean(shared)] if shared else []),
            optimizer.register_step_pre_hook(self._part),
            optimizer.register_step_post_hook(lambda *_: self._unite()),
            optimizer.register_state_dict_pre_hook(lambda *_: self._unite()),  # after a failed step
        ]

    def remove(self) -> None:
        """Remove the parameters and their optimizer state."""
        for hook in self._hooks:
            hook.remove()
        self._unite()
        for group in self.optimizer.param_groups:
            for parameter in _leave(group, self.names):
                self.optimizer.state.pop(parameter, None)

    def _part(self, *_: Any) -> None:
        """Move the parameters into separate groups for one step."""
        self._unite()  # a failed step has left them separate
        groups = self.optimizer.param_groups
        for group in list(groups):
            is_mixed = len({is_sharded(p) for p in group["params"]}) > 1  # no kernel takes both
            if group.get("weight_decay") or is_mixed:
                own = _leave(group, self.names)
                if own:
                    rest = {k: v for k, v in group.items() if k not in ("params", "param_names")}
                    decay = {"weight_decay": 0.0} if "weight_decay" in group else {}
                    groups.append({**rest, **decay, "params": own})
                    self._apart.append((group, groups[-1]))

    def _unite(self) -> None:
        """Move them back."""
        groups = self.optimizer.param_groups
        for group, apart in self._apart:
            groups[:] = [x for x in groups if x is not apart]
            _join(group, apart["params"], self.names)
        self._apart = []


def check_fit(optimizer: torch.optim.Optimizer, learned: Sequence[nn.Parameter]) -> None:
    """Raise if an optimizer cannot train the added parameters, if there are any."""
    if not learned:
        return
    for cls in type(optimizer).__mro__:
        reason = _UNFIT.get(cls.__name__)
        if reason is not None:
            raise ConfigError(
                f"optimizer: {cls.__name__} cannot train the scales (or scores, or thresholds) that this "
                f"compressor learns: {reason}. Construct it without that optimizer and, after compress(), "
                "train what is learned with another one: learned = [p for w in "
                "compressor.get_modules_wrapper() for p in w.parameters()]; "
                "compressor.bind_optimizer(torch.optim.Adam(learned, lr=1e-3))."
            )
    if isinstance(optimizer, torch.optim.LBFGS):
        if optimizer.state:
            raise ConfigError(
                "optimizer: this LBFGS has made steps without the learned scales; create a new one "
                "after compress(), and bind_optimizer(optimizer)."
            )
        held = [p for group in optimizer.param_groups for p in group["params"]]
        kinds = sorted({str(p.dtype) for p in [*held, *learned]})
        if len(kinds) > 1:
            raise ConfigError(
                f"optimizer: LBFGS cannot train parameters of {' and '.join(kinds)} together, and what this "
                "compressor learns is float32 at least; train the model in float32, or use another "
                "optimizer."
            )
        optimizer._numel_cache = None


def _holds(group: dict[str, Any], weight: Tensor | None) -> bool:
    return any(p is weight for p in group["params"])


def _join(group: dict[str, Any], parameters: Sequence[nn.Parameter], names: dict[int, str]) -> None:
    """Insert parameters after those of the model, sorted by name among all learned ones."""
    held = group["params"]
    for parameter in parameters:
        name = names[id(parameter)]
        later = (i for i, other in enumerate(held) if getattr(other, _NAME, "") > name)
        index = next(later, len(held))
        held.insert(index, parameter)
        if "param_names" in group:
            group["param_names"].insert(index, name)


def _leave(group: dict[str, Any], names: dict[int, str]) -> list[nn.Parameter]:
    own = [p for p in group["params"] if id(p) in names]
    if own:
        group["params"][:] = [p for p in group["params"] if id(p) not in names]
        if "param_names" in group:
            left = set(names.values())
            group["param_names"][:] = [x for x in group["param_names"] if x not in left]
    return own
