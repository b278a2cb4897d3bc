"""v3's distillers: the distance to a teacher is added to the loss of an evaluator's training step."""

from __future__ import annotations

from typing import Any

from lilliput.compat.nni.classes.arguments import form
from lilliput.compat.nni.classes.fusion import Fused
from lilliput.compat.nni.config.distill_rules import distill_rules
from lilliput.errors import ConfigError, Problem
from lilliput.frameworks.features import Run
from lilliput.frameworks.torch.example_inputs import Call
from lilliput.torch import Distiller


class TeacherModelBasedDistiller(Fused, Distiller):
    """A distiller of v3: ``compress(max_steps, max_epochs)`` trains with a teacher and returns the model.

    Parameters
    ----------
    model, config_list, evaluator
        As for pruners; rules have ``lambda``, ``link`` and ``apply_method`` ('mse' or 'kl').
    teacher_model : torch.nn.Module
        The teacher, which runs in evaluation mode.
    teacher_predict : callable
        ``teacher_predict(batch, teacher_model)``.
    origin_loss_lambda : float
        Factor of the training step's loss.
    """

    forms = (
        form(
            "model, config_list, evaluator, teacher_model, teacher_predict, origin_loss_lambda=1.0, "
            "existed_wrappers"
        ),
    )
    teacher_predict: Any = None
    origin_loss_lambda: float = 1.0
    _batch: Any = None

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        name = type(self).__name__
        missing = [x for x in ("teacher_model", "teacher_predict") if given.get(x) is None]
        if missing:
            raise ConfigError(f"{name}: {missing[0]} is missing.")
        self.evaluator, self.teacher_predict = given["evaluator"], given["teacher_predict"]
        self.origin_loss_lambda = given["origin_loss_lambda"]
        return {
            "model": given["model"],
            "config_list": distill_rules(given["config_list"], name),
            "optimizer": getattr(self.evaluator, "optimizer", None),
            "teacher": given["teacher_model"],
        }

    @classmethod
    def faults_of(cls, rules: list[Any]) -> list[Problem] | None:
        """Return the problems of rules in the keys of v3."""
        try:
            distill_rules(rules, cls.__name__)
        except ConfigError as error:
            return list(error.problems)
        return []

    def compress(self, max_steps: int | None = None, max_epochs: int | None = None) -> Any:
        """Train with the evaluator and the teacher, and return the model."""
        self.train_together(max_steps, max_epochs)
        return self.bound_model

    def needs_training(self) -> bool:
        """Whether this compressor takes part in training; always."""
        return True

    def joined_loss(self, loss: Any, batch: Any) -> Any:
        """Return the loss of a training step plus the distance to the teacher."""
        self._batch = batch
        try:
            return self.origin_loss_lambda * loss + self.loss()
        finally:
            self._batch = None

    def _ask_teacher(self, run: Run) -> Run:
        """Call the program's own function to run the teacher on the batch."""
        if self._batch is None:  # to determine shapes
            return super()._ask_teacher(run)
        batch, predict = self._batch, self.teacher_predict
        return self._run_quietly(
            self.teacher, run, self._linked_names(), "teacher", lambda model: predict(batch, model)
        )

    def calc_loss(self, student: Any, teacher: Any, wrapper: Any) -> Any:
        """Return the distance, a KL divergence in v3's reduction: the sum over all axes but the batch."""
        value = super().calc_loss(student, teacher, wrapper)
        is_kl = self.loss_of(wrapper) == "kl"
        return value * (student[..., 0].numel() / len(student)) if is_kl else value


class DynamicLayerwiseDistiller(TeacherModelBasedDistiller):
    """If a layer is linked to several layers of the teacher, the nearest counts in each step."""

    def _projected(self, wrapper: Any, link: str, student: Any, teacher: Any, axis: int) -> Any:
        raise ConfigError(
            f"{type(self).__name__}: layer {wrapper.name!r} has shape {tuple(student.shape)}, {link!r} of "
            f"the teacher {tuple(teacher.shape)}; Adaptive1dLayerwiseDistiller learns a projection."
        )


class Adaptive1dLayerwiseDistiller(TeacherModelBasedDistiller):
    """If the width of a layer differs from its teacher's, a projection is trained along."""

    def track_forward(self, *args: Any, **kwargs: Any) -> None:
        """Record the models' inputs, so that projections exist before the training."""
        super().track_forward(*args, **kwargs)
        self.example_inputs = Call(args, kwargs)
