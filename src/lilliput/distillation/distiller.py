"""Train a compressed model to reproduce the original's outputs, with or without labels.

>>> import torch
>>> from lilliput.torch import Distiller, LevelPruner
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> distiller = Distiller(model, optimizer=optimizer)  # before the weights are changed
>>> model = distiller.compress()
>>> model = LevelPruner(model, [{"sparsity": 0.5}], optimizer).compress()
>>> losses = []
>>> for _ in range(20):
...     optimizer.zero_grad()
...     answer = model(torch.ones(2, 4))
...     loss = distiller.loss()  # alone, or added to that of the task
...     loss.backward()
...     optimizer.step()
...     losses.append(loss.item())
>>> losses[-1] < losses[0]
True
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from lilliput.config.select import Selection
from lilliput.config.spec import Names, Rule
from lilliput.core.distiller import BaseDistiller
from lilliput.distillation.attention import attention_distance
from lilliput.distillation.cosine import cosine_distance
from lilliput.distillation.kl import kl_divergence
from lilliput.distillation.mse import mean_squared_error
from lilliput.errors import ConfigError, Problem
from lilliput.frameworks.features import MODEL
from lilliput.ops.namespace import Tensor, namespace

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_PROBABILITIES = (
    ", of which 'kl' would take a softmax again; compare the layer before it, or write "
    "{'probabilities': True}."
)


class DistillRule(Rule):
    """What to compare with the teacher, and how."""

    loss: Literal["kl", "mse", "cosine", "attention"] | None = Field(
        None,
        description="How to compare; 'kl' for the model's output, 'mse' for layers by default.",
    )
    weight: _Positive = Field(1.0, description="By how much the distance counts in the loss.")
    temperature: _Positive | None = Field(
        None, description="Divides logits before 'kl'; 2 by default."
    )
    link: Names | None = Field(
        None,
        description="The teacher's layer, by default that of the same name; of several the nearest.",
    )
    item: int | str | None = Field(
        None, description="Which part of an output: position, key or field; 'logits' by default."
    )
    axis: int | None = Field(
        None, description="Where classes ('kl'), vectors ('cosine') or channels ('attention') lie."
    )
    probabilities: bool | None = Field(
        None, description="Whether 'kl' compares probabilities (after a softmax), not logits."
    )

    @model_validator(mode="after")
    def _check_keys(self) -> DistillRule:
        if self.loss in (None, "kl") or self.exclude:
            return self
        for key in ("temperature", "probabilities"):
            if getattr(self, key):
                raise ValueError(f"{key!r} belongs to the loss 'kl', not to {self.loss!r}.")
        if self.loss == "mse" and self.axis is not None:
            raise ValueError(
                "'axis' does not matter to the loss 'mse', which compares all entries."
            )
        return self


class Distiller(BaseDistiller):
    """Add the distance between a model and its teacher to the loss, at its output or at layers.

    The teacher is a copy of the model at the time the distiller is created, or any model that you pass.
    :meth:`loss` runs it on the inputs of the model, in evaluation mode (no dropout, running
    statistics in batch norms) and without gradients; the student runs as in your loop. Rules select
    what is compared; a rule without layers applies to the model's output.

    Parameters
    ----------
    model : object, optional
        The student. Can be omitted and passed to ``compress(model)`` later.
    config_list : list of dict, or path of a YAML or JSON file, optional
        What is compared and how. Besides ``op_names`` and ``op_types``: ``loss`` ('kl', 'mse',
        'cosine', 'attention'), ``weight``, ``temperature``, ``link``, ``item``, ``axis``,
        ``probabilities``. By default ``[{"loss": "kl", "temperature": 2}]``.
    optimizer : object, optional
        The optimizer that trains the model. It also trains the projections, which are created if a
        layer of the student has another width than its teacher's.
    teacher : object, optional
        The model to learn from. By default a frozen copy of the model when it is bound, so create
        the distiller before a pruner changes the weights.
    example_inputs : tensor, tuple or dict, optional
        Inputs of the model. With it, projections are created by ``compress()`` instead of the
        first step, so that :meth:`parameters` can be passed to your own optimizer.

    Examples
    --------
    Logits and the features of a block, in one list:

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> rules = [{"loss": "kl", "temperature": 2.0, "weight": 0.9}, {"op_names": ["1"], "loss": "cosine"}]
    >>> distiller = Distiller(model, rules)
    >>> model = distiller.compress()
    >>> output = model(torch.ones(2, 4))
    >>> distiller.loss().item() < 1e-6, sorted(distiller.values)
    (True, ['(model)', '1'])
    """

    rule: ClassVar[type[Rule]] = DistillRule

    def calc_loss(self, student: Tensor, teacher: Tensor, wrapper: Any) -> Tensor:
        """Return the distance named by the rule of a layer."""
        config, name = wrapper.config, self.loss_of(wrapper)
        if name == "mse":
            return mean_squared_error(student, teacher)
        if name == "cosine":
            return cosine_distance(student, teacher, self._vectors(student, wrapper))
        if name == "attention":
            return attention_distance(student, teacher, self._channels(student, teacher, wrapper))
        axis = self._classes(student, teacher, wrapper)
        if config.get("probabilities"):
            xp = namespace(student)
            student, teacher = (xp.log(xp.positive(x)) for x in (student, teacher))
        return kl_divergence(student, teacher, config.get("temperature") or 2.0, axis)

    def loss_of(self, wrapper: Any) -> str:
        """Return the name of the loss for a layer."""
        return str(wrapper.config.get("loss") or ("kl" if wrapper.name == MODEL else "mse"))

    def may_project(self, wrapper: Any) -> bool:
        """Whether features of another width are mapped: not classes, and not maps, which have no channels."""
        return self.loss_of(wrapper) in ("mse", "cosine")

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem where probabilities would be used as logits, if that is known in advance."""
        problems = super()._find_problems(selection)
        for decision in selection.decisions:
            layer = decision.layer
            asks = layer.config.get("loss") or ("kl" if layer.name == MODEL else "mse")
            is_logit = asks != "kl" or bool(layer.config.get("probabilities"))
            if decision.is_chosen and not is_logit and self._backend.ends_in_softmax(layer.module):
                text = f"{layer.name!r} ends in a softmax{_PROBABILITIES}"
                problems.append(Problem(f"rule {decision.rule} → loss", text))
        return problems

    def _classes(self, student: Tensor, teacher: Tensor, wrapper: Any) -> int:
        """Return the axis of classes; raise if the tensor is not a vector of logits."""
        one, other = tuple(student.shape), tuple(teacher.shape)
        place = f"{type(self).__name__}: {wrapper.name!r} is compared by 'kl'"
        if one != other:
            raise ConfigError(f"{place}, but has shape {one}, the teacher's {other}.")
        axis = wrapper.config.get("axis")
        if axis is None and len(one) != 2:
            raise ConfigError(
                f"{place} and has shape {one}; specify the axis of its classes, as in {{'axis': -1}} for a "
                "sequence of tokens or {'axis': 1} for a torch segmentation, or choose another loss."
            )
        axis = -1 if axis is None else axis
        if not -len(one) <= axis < len(one):
            raise ConfigError(f"{place} along axis {axis}, but has shape {one}.")
        if one[axis] == 1:
            raise ConfigError(
                f"{place}, but has a single class, whose share is always 1; choose 'mse' for one logit."
            )
        self._check_logits(student, teacher, wrapper, axis, place)
        return int(axis)

    def _check_logits(
        self, student: Tensor, teacher: Tensor, wrapper: Any, axis: int, place: str
    ) -> None:
        """Raise if probabilities are used as logits, once per layer."""
        if wrapper.config.get("probabilities") or wrapper.name in self._are_logits:
            return
        if self._backend.are_shares(teacher, axis):
            raise ConfigError(f"{place}, and its teacher's are probabilities{_PROBABILITIES}")
        self._are_logits = self._are_logits | {wrapper.name}

    _are_logits: frozenset[str] = frozenset()

    def _vectors(self, student: Tensor, wrapper: Any) -> int | None:
        """Return the axis of the vectors whose direction is compared; None for all entries of a sample."""
        axis, shape = wrapper.config.get("axis"), tuple(student.shape)
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ConfigError(
                f"{type(self).__name__}: {wrapper.name!r} is compared by 'cosine' along axis {axis}, but has "
                f"shape {shape}; expected an axis from {-len(shape)} to {len(shape) - 1}."
            )
        return None if axis is None else int(axis)

    def _channels(self, student: Tensor, teacher: Tensor, wrapper: Any) -> int:
        """Return the axis of channels; raise for maps of different sizes."""
        one, other = tuple(student.shape), tuple(teacher.shape)
        place = f"{type(self).__name__}: {wrapper.name!r} is compared by 'attention'"
        axis = wrapper.config.get("axis")
        axis = self._channel_axis(wrapper, len(one)) if axis is None else axis
        if axis is None:
            raise ConfigError(
                f"{place} and has shape {one}; specify the axis of its channels, as in {{'axis': 1}} after a "
                "convolution or {'axis': -1} for a sequence of tokens."
            )
        if len(one) < 3 or not -len(one) <= axis < len(one):
            raise ConfigError(
                f"{place} with channels along axis {axis}, but has shape {one}; expected samples, "
                "channels and at least one axis of places."
            )
        maps = [
            [n for i, n in enumerate(shape) if i != axis % len(shape)] for shape in (one, other)
        ]
        if maps[0] != maps[1]:
            raise ConfigError(
                f"{place}: its map {maps[0]} is not as large as the teacher's {maps[1]}."
            )
        return int(axis)
