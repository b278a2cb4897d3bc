"""Steps with a teacher: a distiller is attached to the model while one epoch trains.

It leaves nothing that a checkpoint would have to contain: a projection, if a rule needs one,
starts in each epoch at the least-squares fit of its first batch.
"""

from __future__ import annotations

from typing import Any

from lilliput.recipes.opening import make_model, make_original
from lilliput.recipes.session import Session
from lilliput.recipes.step_specs import DistillStep, teacher_of, uses_labels


def make_distiller(session: Session, index: int) -> Any:
    """Return the distiller of a step, bound to the model, or None if the step has no teacher."""
    from lilliput.distillation.distiller import Distiller

    step = session.recipe.steps[index]
    asked = teacher_of(step)
    if asked is None:
        return None
    if asked not in session.teachers:
        factory = (session.functions.teachers or {}).get(index)
        session.teachers[asked] = (
            make_original(session) if factory is None else make_model(factory, session.recipe.seed)
        )
        session.framework.evaluation_mode(session.teachers[asked])
    rules = step.config if isinstance(step, DistillStep) else None
    distiller = Distiller(session.model, rules, session.optimizer, session.teachers[asked])
    distiller.is_alone = not uses_labels(step)
    return distiller
