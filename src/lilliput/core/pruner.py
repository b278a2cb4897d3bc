"""The base of all pruners: ask the algorithm for masks, check them, put them in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lilliput.config.spec import PruneRule, Rule
from lilliput.core.compressor import Compressor
from lilliput.core.hooks import Call, plan_call
from lilliput.errors import AlgorithmError

_MASK_KEYS = {"weight_mask": "weight_mask", "bias_mask": "bias_mask"} | {
    "weight": "weight_mask",
    "bias": "bias_mask",
}


class Pruner(Compressor):
    """Remove weights by masks; an algorithm overrides :meth:`calc_mask` and nothing else.

    Masked weights are exactly zero in every forward, get no gradient, and stay zero whatever the
    optimizer does.

    Examples
    --------
    >>> import torch
    >>> class DropSmall(Pruner):
    ...     def calc_mask(self, wrapper, wrapper_idx=None):
    ...         return {"weight_mask": (wrapper.weight.abs() > 0.1).float()}
    >>> model = DropSmall(torch.nn.Linear(4, 4), [{"op_types": ["Linear"]}]).compress()
    >>> bool((model.weight[model.weight != 0].abs() > 0.1).all())
    True
    """

    kind: ClassVar[str] = "pruner"
    rule: ClassVar[type[Rule]] = PruneRule
    # What the conformance battery may expect of the algorithm.
    exact_sparsity: ClassVar[bool] = True  # a rule's sparsity is met to the weight
    regrows: ClassVar[bool] = False  # pruned weights may come back
    _calc_mask: Call | None = None

    @property
    def removes_channels(self) -> bool:
        """Whether a sparsity counts whole channels, of which one always stays."""
        return False

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> Any:
        """Return the masks of one layer, or None to leave them as they are.

        Called for every wrapper at ``compress()``, after each training step, also those before
        ``compress()`` if an optimizer was given, and after each epoch.

        Parameters
        ----------
        wrapper : PrunerModuleWrapper
            Has ``weight``, ``weight_mask``, ``config``, ``name``, ``type``, ``module`` and whatever
            ``set_wrappers_attribute`` added.
        wrapper_idx : int
            Position of the wrapper in ``get_modules_wrapper()``.

        Returns
        -------
        dict or tensor or None
            ``{'weight_mask': mask}``, optionally with ``'bias_mask'``; a bare tensor masks the
            weight. Ones keep, zeros prune.
        """
        raise NotImplementedError(f"{type(self).__name__} must override calc_mask().")

    def update_mask(self) -> None:
        """Ask the algorithm for new masks, and put them all in force or none."""
        if self._calc_mask is None:
            self._calc_mask = plan_call(self.calc_mask)
        self._backend.reshard(self.bound_model)
        wrappers = self.get_modules_wrapper()
        before = [wrapper.attributes() for wrapper in wrappers]
        try:
            updates = self._ask_for_masks(wrappers, self._calc_mask)
        except BaseException:
            for wrapper, attributes in zip(wrappers, before, strict=True):
                wrapper.reset_attributes(attributes)
            raise
        for wrapper, masks in updates:
            wrapper.set_masks(masks)
        if updates and self.is_wrapped:
            changed = [wrapper for wrapper, _ in updates]
            self._backend.apply_masks(changed, self.optimizer)
            self._backend.narrow_norms(changed)

    _refresh = update_mask

    def _refresh_early(self) -> None:
        """Ask for masks; they are in force from ``compress()`` on."""
        self.update_mask()

    def _after_step(self) -> None:
        """Keep pruned weights at zero, whatever the optimizer made of a zero gradient."""
        self._backend.hold_masks(self.every_wrapper())

    def _ask_for_masks(
        self, wrappers: list[Any], calc_mask: Call
    ) -> list[tuple[Any, dict[str, Any]]]:
        updates = []
        with self._backend.no_grad():
            for index, wrapper in enumerate(wrappers):
                # A sharded weight is gathered when it is read: only if the algorithm takes it.
                tensors = (
                    (self._backend.value_of(wrapper.weight),) if calc_mask.wants_tensor else ()
                )
                answer = calc_mask(wrapper, *tensors, index=index)
                if answer is not None:
                    updates.append((wrapper, self._check_masks(wrapper, answer)))
        return updates

    def _check_masks(self, wrapper: Any, answer: Any) -> dict[str, Any]:
        masks = answer if isinstance(answer, Mapping) else {"weight_mask": answer}
        checked = {}
        for key, mask in masks.items():
            name = _MASK_KEYS.get(key)
            if name is None:
                raise AlgorithmError(
                    f"{type(self).__name__}.calc_mask returned the key {key!r} for layer "
                    f"{wrapper.name!r}; expected 'weight_mask' or 'bias_mask'."
                )
            fault = None if mask is None else self._backend.check_mask(wrapper, name, mask)
            if fault:
                raise AlgorithmError(
                    f"{type(self).__name__}.calc_mask returned a bad {name} for layer "
                    f"{wrapper.name!r}: {fault}"
                )
            if mask is not None:
                # A copy: the algorithm may fill one buffer for all layers.
                checked[name] = self._backend.to_flags(mask)
        return checked
