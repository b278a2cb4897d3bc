"""The projections of a distiller: created where widths differ, and trained with the model."""

from __future__ import annotations

import functools
from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.core.projection import Projection
from lilliput.errors import ConfigError, StageError
from lilliput.frameworks.features import links_of
from lilliput.ops.namespace import namespace

Tensor = Any


class Projecting(Compressor):
    """A compressor whose wrappers may each have a learned ``projection``."""

    _is_probing: bool = False  # while example inputs determine which projections are needed
    _exchanges: tuple[Any, ...] = ()  # with other processes

    def parameters(self) -> list[Any]:
        """Return the learned projections, for an optimizer that was not passed to this distiller."""
        projections = (self._projection_of(w) for w in self.get_modules_wrapper())
        return [x.weight for x in projections if x is not None]

    def _projected(
        self, wrapper: Any, link: str, student: Tensor, teacher: Tensor, axis: int
    ) -> Tensor:
        projection = self._projection_of(wrapper)
        if projection is None:
            if len(links_of(wrapper)) > 1:
                raise ConfigError(
                    f"layer {wrapper.name!r} is linked to several layers of the teacher and its width "
                    f"differs from that of {link!r}; link it to one."
                )
            projection = self._learn(wrapper, link, student, teacher, axis)
        xp = namespace(student)
        received = int(xp.shape(teacher)[axis]), int(xp.shape(student)[axis])
        if received != tuple(projection.weight.shape):
            raise StageError(
                f"layer {wrapper.name!r}: its projection was made for {projection.weight.shape[1]} channels, "
                f"but it has {received[1]} now; strip() the distiller after a cut and create a new one: "
                "Distiller(model, rules, optimizer, teacher=distiller.teacher)."
            )
        return projection.apply(student, axis)

    def _projection_of(self, wrapper: Any) -> Projection | None:
        weight = getattr(wrapper, "projection", None)
        return None if weight is None else Projection(weight)

    def _learn(
        self, wrapper: Any, link: str, student: Tensor, teacher: Tensor, axis: int
    ) -> Projection:
        """Create a projection and add it to the optimizer."""
        xp = namespace(student)
        widths = int(xp.shape(student)[axis]), int(xp.shape(teacher)[axis])
        can_adopt = self.optimizer is not None and self._backend.sees_every_step
        if not (can_adopt or self._is_probing):
            raise StageError(
                f"layer {wrapper.name!r} has {widths[0]} channels, its teacher {widths[1]}: a projection "
                "between them is learned. Pass example_inputs to the distiller (Keras; on torch, "
                "distiller.parameters() then go to your optimizer), or, on torch, the optimizer."
            )
        add_up = functools.partial(self._backend.reduce, how="sum")
        place = f"layer {wrapper.name!r} and {link!r} of the teacher"
        fitted = Projection.fit(xp.detach(student), teacher, axis, add_up, place)
        wrapper.set_attribute("projection", self._backend.learned(fitted, like=student))
        self._train_projections()
        found = self._projection_of(wrapper)
        if found is None:
            raise StageError(f"layer {wrapper.name!r}: its projection could not be created.")
        return found

    def _train_projections(self) -> None:
        """Add new projections to the optimizer, in the same way in all processes."""
        if not self.is_wrapped:
            return
        for handle in self._exchanges:
            handle.remove()
        self._exchanges = tuple(self._backend.average_gradients(self.parameters()))
        if self._step_handles:  # otherwise they are added when the optimizer is followed
            added = self._backend.add_to_optimizer(self.optimizer, self.get_modules_wrapper())
            self._step_handles = (*self._step_handles, *added)
