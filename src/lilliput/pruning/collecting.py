"""Criteria that use data: averages per weight or channel, collected while the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lilliput.config.select import Selection
from lilliput.core.arguments import passes_on
from lilliput.core.masker import WeightMasker
from lilliput.errors import AlgorithmError, ConfigError, StageError, UnsupportedModelError
from lilliput.ops.namespace import Tensor, namespace
from lilliput.progress import track
from lilliput.pruning.criterion import CriterionArguments, check_counts
from lilliput.pruning.one_shot import OneShotPruner

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CollectingMasker(WeightMasker):
    """Score weights or channels by the average of a quantity over ``training_batches`` batches.

    Combine it with the masker that turns scores into masks: ``class Mine(CollectingMasker, ChannelMasker)``.
    """

    def __init__(self, model: Any, pruner: Any, training_batches: int = 20) -> None:
        super().__init__(model, pruner)
        check_counts(1, training_batches=training_batches)
        self.training_batches = training_batches
        self.is_calibrating = False
        self.shows_progress = True
        self.batch = 0  # the current batch of calibrate()
        self.start_over()

    @classmethod
    def lay_out(cls, pruner: Any, selection: Selection) -> Any:
        """As in :meth:`WeightMasker.lay_out`; raise if the criterion would see no batches."""
        if not pruner.sees_training and not isinstance(pruner, CollectingPruner):
            raise UnsupportedModelError(
                f"{type(pruner).__name__} uses {cls.__name__} repeatedly while the model trains, but "
                "compiled training of a Keras model exposes no batches; choose a criterion based on "
                f"weights, such as {'l1' if cls.removes_channels else 'level'!r}."
            )
        return super().lay_out(pruner, selection)

    def add(self, wrapper: Any, sums: Tensor, count: int) -> None:
        """Add a batch: the sum of each score over ``count`` observations."""
        before = wrapper.statistic
        wrapper.statistic = sums if before is None else before + sums
        wrapper.observations += count
        wrapper.batches += 1
        if wrapper.batches >= self.training_batches and not self.is_calibrating:
            wrapper.is_collected = True

    def number(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches, and number them for messages."""
        for self.batch, batch in enumerate(batches, 1):
            yield batch

    def can_count(self, values: Tensor, name: str) -> bool:
        """Whether the values of a layer are finite; raise if they are not in calibration.

        In training such batches are skipped: in mixed precision, the first gradients are often infinite.
        """
        xp = namespace(values)
        if xp.count_nonzero(xp.isfinite(values)) == xp.size(values):
            return True
        if self.is_calibrating:
            raise AlgorithmError(
                f"calibration batch {self.batch}: the data collected from layer {name!r} holds NaN or "
                "infinity; check the data and the weights. The calibration was discarded."
            )
        return False

    def score(self, wrapper: Any) -> Tensor:
        """Return the averages over all training processes."""
        sums, count = wrapper.statistic, wrapper.observations
        xp = namespace(sums)
        flat = xp.reshape(sums, (-1,))
        total = self.pruner.sum_over_processes(xp.concat([flat, xp.ones_like(flat[:1]) * count]))
        return xp.reshape(total[:-1] / total[-1], xp.shape(sums))

    def is_ready(self) -> bool:
        """Whether every layer has seen enough batches."""
        return all(wrapper.is_collected for wrapper in self.pruner.get_modules_wrapper())

    def what_is_missing(self) -> str:
        """Return how many batches are missing, and for which layer."""
        wrappers = [w for w in self.pruner.get_modules_wrapper() if not w.is_collected]
        if not wrappers:
            return ""
        least = min(wrappers, key=lambda wrapper: wrapper.batches)
        left = self.training_batches - least.batches
        return f"{left} of {self.training_batches} batches are missing for layer {least.name!r}" + (
            f" and {len(wrappers) - 1} others" if len(wrappers) > 1 else ""
        )

    def start_over(self) -> None:
        """Discard the collected statistics."""
        # Plain attributes instead of buffers, which DistributedDataParallel would overwrite.
        empty = {"statistic": None, "observations": 0, "batches": 0, "is_collected": False}
        for name, value in empty.items():
            self.pruner.set_wrappers_attribute(name, value)

    def finish(self) -> None:
        """Stop collecting and mark the statistics as complete."""
        for wrapper in self.pruner.get_modules_wrapper():
            if not wrapper.batches:
                raise AlgorithmError(
                    f"no data was collected from layer {wrapper.name!r}: no batch was run, or "
                    f"{self.nothing_seen()}."
                )
            wrapper.is_collected = True

    def nothing_seen(self) -> str:
        """Return why a layer may not have been observed although batches were run."""
        return "none reached it"


class CollectingArguments(CriterionArguments, total=False):
    """What pruners that look at data are made with besides; see :class:`CollectingPruner`."""

    training_batches: int


class CollectingPruner(OneShotPruner):
    """Prune once the criterion has seen enough batches, and keep the masks from then on.

    Masks are computed after training on ``training_batches`` batches; or call :meth:`calibrate`,
    before or after ``compress()``. With an optimizer, training batches before ``compress()`` count.
    Evaluation batches (with the model in eval mode) do not. On Keras, where training is compiled,
    only :meth:`calibrate` sees batches.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, groups
        See :class:`~lilliput.pruning.channels.ChannelPruner`, or for criteria on single weights
        :class:`~lilliput.pruning.one_shot.OneShotPruner`.
    training_batches : int
        How many batches to average over. On a schedule, these are the first ones after each update of the
        masks; for ``"fisher"``, the newest.
    options : mapping, optional
        Other keyword arguments of the criterion.
    """

    @passes_on(CriterionArguments, to=OneShotPruner)
    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        *,
        training_batches: int = 20,
        options: Mapping[str, Any] | None = None,
        **others: Unpack[CriterionArguments],
    ) -> None:
        options = {"training_batches": training_batches, **(options or {})}
        super().__init__(model, config_list, optimizer, example_inputs, options=options, **others)

    def step(self) -> None:
        """Follow one training step."""
        if self.is_wrapped and not self.sees_training and not self.masker.is_ready():
            raise StageError(
                f"{type(self).__name__} has not seen any batches, because compiled training of a Keras model "
                "exposes none; call calibrate(batches) before training."
            )

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        *,
        progress: bool = True,
    ) -> None:
        """Run batches without training on them, then prune by the collected statistics.

        The model is in eval mode meanwhile; its mode is restored afterwards.

        Parameters
        ----------
        batches : iterable
            A data loader or a list.
        forward : callable, optional
            ``forward(model, batch)``. By default a tensor or dict is what the model is called with, and
            a tuple its arguments, as in ``example_inputs``, or ``(inputs, targets)``: the parts that
            ``example_inputs`` or ``forward`` of the model has, and no targets.
        progress : bool
            Whether to show a progress bar on a terminal.
        """
        if self._wrappers is None:
            raise StageError(
                "calibrate() was called before a model was bound; call compress() first."
            )
        if not isinstance(batches, Iterable):
            raise ConfigError(
                f"calibrate() received {type(batches).__name__}, expected a data loader or a list."
            )
        masker: Any = self.masker
        masker.start()
        masker.is_calibrating, masker.shows_progress = True, progress
        try:
            self._run(masker.number(track(batches, "calibrating", progress)), forward)
            masker.finish()
        except BaseException:
            masker.start_over()
            raise
        finally:
            masker.is_calibrating = False
            if not self.is_wrapped:
                masker.stop()
        if self.is_wrapped:
            self.update_mask()

    def _run(self, batches: Iterable[Any], forward: Callable[..., Any] | None) -> None:
        forward = forward or self._backend.feeder(self.example_inputs)
        self._backend.run(self.bound_model, batches, forward)


class DifferentiatingPruner(CollectingPruner):
    """Prune by a criterion that reads gradients."""

    _needs_loss: ClassVar[bool] = False  # or ``forward``, which then returns it
    _loss: Callable[..., Any] | None = None

    def calibrate(
        self,
        batches: Iterable[Any],
        forward: Callable[..., Any] | None = None,
        loss: Callable[..., Any] | None = None,
        *,
        progress: bool = True,
    ) -> None:
        """As in :meth:`CollectingPruner.calibrate`; ``loss(model, batch)`` is differentiated."""
        if self._needs_loss and loss is None and forward is None:
            raise ConfigError(
                "calibrate() needs a loss: calibrate(batches, loss=lambda model, batch: ...)."
            )
        self._loss = loss
        super().calibrate(batches, forward, progress=progress)
