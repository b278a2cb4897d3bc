"""The base of all pruners: request masks from the algorithm, validate them, apply them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lilliput.config.spec import PruneRule, Rule
from lilliput.core.compressor import Compressor
from lilliput.core.hooks import Call, plan_call
from lilliput.core.masker import Answers, Targets
from lilliput.errors import AlgorithmError, ConfigError
from lilliput.printing import shown

_MASK_KEYS = {"weight_mask": "weight_mask", "bias_mask": "bias_mask"} | {
    "weight": "weight_mask",
    "bias": "bias_mask",
}


class Pruner(Compressor):
    """Remove weights by masks; an algorithm overrides :meth:`calc_masks`, or :meth:`calc_mask`.

    ``calc_masks`` computes the masks of all due layers at once. If each layer can be decided separately,
    ``calc_mask`` is simpler; the one that a subclass overrides last is called. Masked weights are
    exactly zero in every forward pass, get no gradient, and stay zero whatever the optimizer
    does.

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
    # What the conformance battery may expect from the algorithm.
    exact_sparsity: ClassVar[bool] = True  # a rule's sparsity is met to the weight
    regrows: ClassVar[bool] = False  # pruned weights may become nonzero again
    # Whether layers may use weights from compute_weight(), while the raw weights are trained.
    computes_weights: bool = False
    _calc_mask: Call | None = None
    # The result of calc_masks for all layers, while an author's calc_mask calls super() per layer.
    _shared: dict[Any, Any] | None = None

    @property
    def removes_channels(self) -> bool:
        """Whether a sparsity counts whole channels, of which at least one is kept."""
        return False

    def targets(self) -> Targets:
        """Return the wrappers that need a new mask, each with the sparsity of its rule."""
        return [(wrapper, wrapper.config.get("sparsity")) for wrapper in self.get_modules_wrapper()]

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the masks of the layers that need new ones.

        Called at ``compress()``, after each training step (also before ``compress()`` if an
        optimizer was given), and after each epoch.

        Parameters
        ----------
        targets : list of tuple
            The result of :meth:`targets`: pairs of a wrapper and its sparsity, None if its rule has
            none.

        Returns
        -------
        iterable of tuple
            Pairs of a wrapper and its masks, in the forms of :meth:`calc_mask`. Wrappers that are
            omitted keep their masks.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override calc_masks(), or calc_mask() for layers one by one."
        )

    def calc_mask(self, wrapper: Any, wrapper_idx: int | None = None) -> Any:
        """Return the masks of one layer, or None to keep them.

        By default its part of the result of :meth:`calc_masks`. If overridden, it is called for every
        wrapper, whenever ``calc_masks`` would be.

        Parameters
        ----------
        wrapper : PrunerModuleWrapper
            Has ``weight``, ``weight_mask``, ``config``, ``name``, ``type``, ``module`` and the
            attributes added by ``set_wrappers_attribute``.
        wrapper_idx : int
            Position of the wrapper in ``get_modules_wrapper()``.

        Returns
        -------
        dict or tensor or None
            ``{'weight_mask': mask}``, optionally with ``'bias_mask'``; a bare tensor masks the
            weight. Ones keep, zeros prune.
        """
        answers = {} if self._shared is None else self._shared
        if not answers:
            answers.update(self.calc_masks(self.targets()))
        self._mark_done([wrapper])
        return answers.get(wrapper)

    def compute_weight(self, wrapper: Any, weight: Any, mask: Any) -> Any:
        """Return the weight that a layer uses while its wrapper has ``is_soft`` set.

        Its raw weight is then trained, also where the mask is zero; :meth:`harden` and ``strip()``
        write the computed weight into it. Gradients are those of this function. The result must be
        zero where the mask is, and depend only on the arguments.

        Parameters
        ----------
        wrapper : PrunerModuleWrapper
            The wrapper of the layer, or of its copy in another model.
        weight, mask : tensor
            The raw weight, and its mask in the same dtype.
        """
        raise NotImplementedError(f"{type(self).__name__} must override compute_weight().")

    def harden(self, wrappers: Sequence[Any] | None = None) -> None:
        """Set the raw weights of soft layers to the computed weights, and keep their masks.

        Parameters
        ----------
        wrappers : sequence, optional
            The wrappers of the layers; all by default.
        """
        chosen = self.get_modules_wrapper() if wrappers is None else wrappers
        self._backend.harden(chosen, self.optimizer)

    def add_penalty(self, wrapper: Any, names: Sequence[str], penalty: Callable[..., Any]) -> None:
        """Add ``penalty(*values)`` to the loss, by its gradient.

        Call it before each optimizer step where gradients are accessible, and once otherwise (Keras).

        Parameters
        ----------
        wrapper : PrunerModuleWrapper
            The wrapper of the layer.
        names : sequence of str
            Names of the values: ``"weight"`` is the raw weight (on torch only), others are parameters that
            were set on the wrapper.
        penalty : callable
            Takes the values, and returns a differentiable number.
        """
        self._backend.add_penalty(wrapper, names, penalty, self.optimizer)

    def update_mask(self) -> None:
        """Request new masks from the algorithm, and apply all of them or none."""
        self._backend.reshard(self.bound_model)
        wrappers = self.get_modules_wrapper()
        before = [wrapper.attributes() for wrapper in wrappers]
        updates, self._shared = [], {}
        try:
            is_by_layer = self._is_asked_by_layer()
            with self._backend.no_grad():
                answers = self._ask_each() if is_by_layer else self.calc_masks(self.targets())
                for pair in self._checked(answers):
                    wrapper, answer = self._checked_pair(pair)
                    if answer is not None:
                        updates.append((wrapper, self._check_masks(wrapper, answer)))
            if not is_by_layer:
                self._mark_done(wrappers)
                self._follow_up(bool(updates))
        except BaseException:
            for wrapper, attributes in zip(wrappers, before, strict=True):
                wrapper.reset_attributes(attributes)
            raise
        finally:
            self._shared = None
        for wrapper, masks in updates:
            wrapper.set_masks(masks)
        if updates and self.is_wrapped:
            changed = [wrapper for wrapper, _ in updates]
            self._backend.apply_masks(changed, self.optimizer)
            self._backend.narrow_norms(changed)

    # -- internals ---------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if self._is_asked_by_layer() or self._is_due():
            self.update_mask()

    def _refresh_early(self) -> None:
        """Request masks; they take effect at ``compress()``."""
        self._refresh()

    def _is_due(self) -> bool:
        """Whether the algorithm may have new masks; False once it is finished."""
        return True

    def _mark_done(self, wrappers: Sequence[Any]) -> None:
        """Record that layers have received their masks."""

    def _follow_up(self, has_masks: bool) -> None:
        """Called after :meth:`calc_masks`, with whether it returned any masks."""

    def _check_reach(self) -> None:
        """Raise if a selected layer is trained by another optimizer, whose steps are not followed."""
        wrappers = self.get_modules_wrapper()
        missed = (
            [] if self.optimizer is None else self._backend.missing_from(self.optimizer, wrappers)
        )
        if missed:
            more = f" and {len(missed) - 1} others" if missed[1:] else ""
            raise ConfigError(
                f"{type(self).__name__} works through the optimizer, which does not train layer "
                f"{missed[0]!r}{more}; pass the optimizer of all selected layers (one per pruner), or "
                "exclude the layer."
            )

    def _after_step(self) -> None:
        """Reset pruned weights to zero, even if the optimizer has moved them."""
        self._backend.hold_masks(self._every_wrapper())

    def _is_asked_by_layer(self) -> bool:
        """Whether ``calc_mask`` is overridden, and ``calc_masks`` is not overridden after it."""
        classes = [vars(cls) for cls in type(self).__mro__]
        first = next(x for x in (vars(self), *classes) if "calc_mask" in x or "calc_masks" in x)
        return "calc_masks" not in first

    def _ask_each(self) -> Answers:
        """Call ``calc_mask`` for every layer, with the arguments that its signature requests."""
        if self._calc_mask is None:
            self._calc_mask = plan_call(self.calc_mask)
        call = self._calc_mask
        for index, wrapper in enumerate(self.get_modules_wrapper()):
            # Reading a sharded weight gathers it, so only if the algorithm takes it.
            tensors = (self._backend.value_of(wrapper.weight),) if call.wants_tensor else ()
            yield wrapper, call(wrapper, *tensors, index=index)
        if self._shared:
            yield from ((wrapper, self._shared.get(wrapper)) for wrapper in self.companions())
            self._follow_up(True)

    def _checked(self, answers: Any) -> Answers:
        if isinstance(answers, Mapping) or not isinstance(answers, Iterable):
            raise AlgorithmError(
                f"{type(self).__name__}.calc_masks returned {shown(answers)}; expected pairs of a wrapper "
                "and its masks: [(wrapper, {'weight_mask': mask}), ...]."
            )
        return answers

    def _checked_pair(self, pair: Any) -> tuple[Any, Any]:
        is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
        if not is_pair or getattr(pair[0], "compressor", None) is not self:
            raise AlgorithmError(
                f"{type(self).__name__}.calc_masks returned {shown(pair)} for a layer; expected a wrapper "
                "of this pruner and its masks: (wrapper, {'weight_mask': mask})."
            )
        return pair[0], pair[1]

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
                # A copy: the algorithm may reuse one buffer for all layers.
                checked[name] = self._backend.to_flags(mask)
        return checked
