"""The base of pruners that request all their masks at once from a criterion (a masker)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from numbers import Integral
from types import SimpleNamespace
from typing import Any, ClassVar, TypedDict

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.core.masker import Answers, Targets, WeightMasker
from lilliput.core.pruner import Pruner
from lilliput.errors import AlgorithmError, ConfigError, Problem, StageError
from lilliput.ops.namespace import Tensor, namespace

log = logging.getLogger("lilliput")

# Keys of rules that only some criteria use; the others would silently ignore them.
_OPTIONAL_KEYS = ("granularity", "min_kept", "round_to")


def checked_epoch(epoch: Any) -> int:
    """Return an epoch as an int, or raise."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or epoch < 0:
        raise AlgorithmError(f"update_epoch received {epoch!r}, expected an integer from 0.")
    return int(epoch)


def check_counts(least: int, **counts: Any) -> None:
    """Raise unless all arguments, given by name, are integers of at least ``least``."""
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}: received {value!r}, expected an integer from {least}.")


def check_scores(score: Tensor, layer: str) -> None:
    """Raise if the scores of a layer cannot be ranked."""
    xp = namespace(score)
    if xp.any(xp.isnan(score)):
        raise AlgorithmError(
            f"layer {layer!r} has NaN among its scores, so nothing can be ranked; check the weights of "
            "this layer."
        )


class TrainingMasker(WeightMasker):
    """A criterion for which the model is trained for ``training_epochs`` epochs before it scores."""

    training_epochs: int
    training_under: ClassVar[str]  # what the criterion adds to the training

    def is_ready(self) -> bool:
        """Whether these epochs are over."""
        return int(self.pruner.now_epoch) >= self.training_epochs

    def what_is_missing(self) -> str:
        """Return how many epochs are left."""
        left = self.training_epochs - int(self.pruner.now_epoch)
        text = f"{left} of {self.training_epochs} epochs with {self.training_under} are missing"
        return text if left > 0 else ""


class CriterionArguments(TypedDict, total=False):
    """What pruners with a criterion are made with besides; see :class:`CriterionPruner`."""

    groups: Any


class CriterionPruner(Pruner):
    """Decide when to prune and how much; a masker decides which weights.

    Subclasses override :meth:`targets`; the masker computes the masks of all of them together.

    Parameters
    ----------
    model, config_list, optimizer
        See :class:`~lilliput.core.compressor.Compressor`.
    example_inputs : optional
        Inputs of the model, for criteria that trace channels.
    groups : ChannelGroups, optional
        The channel groups of the model, instead of ``example_inputs``.
    masker_type : type of WeightMasker, optional
        The criterion; by default that of the class.
    options : mapping, optional
        Keyword arguments of the criterion.
    """

    masker_type: type[WeightMasker]
    masker: Any = None
    layout: Any = None  # which parameters are masked together; None: each layer separately
    example_inputs: Any = None
    given_groups: Any = None

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        groups: Any = None,
        masker_type: type[WeightMasker] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if masker_type is not None:
            self.masker_type = masker_type
        self.example_inputs, self.given_groups = example_inputs, _checked_groups(groups)
        if self.masker_type.default_types is not None:
            self.default_types = self.masker_type.default_types  # type: ignore[misc]
        super().__init__(model, config_list, optimizer)
        try:
            self.masker = self.masker_type(self.bound_model, self, **(options or {}))
        except BaseException:
            self._unwatch_optimizer()
            raise
        self._watch_optimizer()

    @property
    def removes_channels(self) -> bool:
        """Whether the criterion scores whole channels."""
        return self.masker_type.removes_channels

    def targets(self) -> Targets:
        """Return the wrappers that need a new mask, each with its sparsity."""
        raise NotImplementedError(f"{type(self).__name__} must override targets().")

    def calc_masks(self, targets: Targets) -> Answers:
        """Return the masks computed by the masker for the given layers."""
        answers: Answers = self.masker.calc_masks(targets) if targets else ()
        return answers

    def bind_model(self, model: Any) -> None:
        """Pass the model to the masker, which may have been created before it."""
        if self.masker is not None:
            self.masker.model = model

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return keys that the criterion would ignore, and the problems that it reports itself."""
        problems = [
            Problem(f"rule {decision.rule} → {key}", f"{self._title} does not use this key.")
            for decision in selection.decisions
            for key in _OPTIONAL_KEYS
            if decision.is_chosen
            and key in decision.layer.config
            and key not in self.masker_type.keys
        ]
        return [*dict.fromkeys(problems), *self.masker_type.find_problems(selection)]

    def _refine(self, selection: Selection) -> Selection:
        """Drop the layers that the criterion cannot prune."""
        self.layout = self.masker_type.lay_out(self, selection)
        return selection if self.layout is None else self.layout.selection

    def _companion_layers(self, selection: Selection) -> list[LayerInfo]:
        """Return the parameters that are masked along with the selected layers."""
        return [] if self.layout is None else list(self.layout.companions)

    def _prepare(self) -> None:
        super()._prepare()
        if self.layout is not None and not self.layout.is_traced:
            log.warning(
                "%s: only filters and their biases are masked, so shifts added by norm layers remain; "
                "pass example_inputs to mask channels in all layers that use them.",
                type(self).__name__,
            )

    # -- framework functions for criteria ----------------------------------------------------------

    def gradient(self, wrapper: Any) -> Any:
        """Return the full gradient of a layer's raw weight, or None."""
        return self._backend.gradient(wrapper, self.optimizer)

    def pull_to_zero(self, scale: float) -> None:
        """Add the subgradient of ``scale * |w|`` to the gradients of the selected weights."""
        self._backend.pull_to_zero(self.get_modules_wrapper(), scale, self.optimizer)

    def penalize(self, scale: float) -> None:
        """Add ``scale * |w|`` of the selected weights to the loss, where gradients are not accessible."""
        self._backend.penalize(self.get_modules_wrapper(), scale)

    def is_activated(self, layer: LayerInfo) -> bool:
        """Whether a layer applies an activation function of its own to its output."""
        return bool(self._backend.is_activated(layer))

    @property
    def sees_training(self) -> bool:
        """Whether the criterion can observe activations and gradients while the model trains."""
        return bool(self._backend.shows_training)

    def watch(self, layer: LayerInfo, collector: Callable[[Any, Any, Any], Any]) -> list[Any]:
        """Call ``collector`` after each forward pass of a layer; return a handle with ``remove()``."""
        return list(self._backend.on_forward(SimpleNamespace(layer_info=layer), collector))

    def on_gradient(self, tensor: Any, task: Callable[[Any], None]) -> None:
        """Call ``task(gradient)`` when the gradient of a layer's output is computed."""
        self._backend.on_gradient(tensor, task)

    def weight_of(self, layer: LayerInfo) -> Any:
        """Return the current weight of any layer."""
        return getattr(layer.module, layer.weight_name or "")

    def is_training(self) -> bool:
        """Whether the model is in training mode."""
        return bool(self._backend.is_training(self.bound_model))

    def sum_over_processes(self, tensor: Any) -> Any:
        """Return the sum of a tensor over all training processes."""
        if self._backend.is_joining(self.bound_model):
            raise StageError(
                f"{type(self).__name__} sums statistics over all processes, and inside join() some may have "
                "stopped; call calibrate(batches) before the training, or train without join()."
            )
        return self._backend.sum_over_processes(tensor)

    # -- internals ---------------------------------------------------------------------------------

    @property
    def _title(self) -> str:
        return f"{type(self).__name__} with {self.masker_type.__name__}"

    def _needs_criterion(self) -> bool:
        """Whether masks are still to be computed, so that the criterion must observe the training."""
        return True

    def _before_step(self) -> tuple[Any, ...]:
        looks = self.sees_training and self._looks_at_gradients()
        return (self._look_at_gradients,) if looks else ()

    def _before_early_step(self) -> tuple[Any, ...]:
        return self._before_step() if self.masker_type.only_watches else ()

    def _looks_at_gradients(self) -> bool:
        # The optimizer hooks are registered before the masker exists.
        kind = self.masker_type if self.masker is None else type(self.masker)
        return getattr(kind, "before_step", None) not in (None, WeightMasker.before_step)

    def _look_at_gradients(self) -> None:
        if self.masker is not None:
            self.masker.before_step()

    def _refresh_early(self) -> None:
        """Compute no masks before ``compress()``: the criterion only observes until then."""

    def _watch_optimizer(self) -> None:
        super()._watch_optimizer()
        # Called by the base constructor before there is a masker, and again by this one.
        watches = self.masker is not None and self.masker_type.only_watches
        if self._early_handles and watches and self._needs_criterion():
            self.masker.start()

    def _follow_optimizer(self) -> None:
        super()._follow_optimizer()
        if self.masker is not None and self._needs_criterion():
            self.masker.start()

    def _leave_optimizer(self) -> None:
        super()._leave_optimizer()
        if self._wrappers is not None and self.masker is not None:
            self.masker.stop()


def _checked_groups(groups: Any) -> Any:
    """Return the argument, or raise unless it is None or holds channel groups."""
    if groups is None or hasattr(groups, "groups"):
        return groups
    raise ConfigError(
        f"groups: received {type(groups).__name__}, expected the result of channel_groups()."
    )
