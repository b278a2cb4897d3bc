"""The schema of a recipe: the model and its data by name, and the steps in order.

>>> recipe = Recipe.model_validate({
...     "lilliput": 1,
...     "model": "digits:build",
...     "data": "digits:batches",
...     "loss": "cross_entropy",
...     "steps": [{"finetune": {"epochs": 2}}, {"export": "onnx", "file": "small.onnx"}],
... })
>>> [step.verb for step in recipe.steps]
['finetune', 'export']
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, model_validator

from lilliput.recipes.step_specs import (
    Loss,
    ModelSource,
    Reference,
    Step,
    Strict,
    epochs_of,
    uses_labels,
)


class Recipe(Strict):
    """A compression run from a trained model to files; :func:`load_recipe` reads one."""

    lilliput: Literal[1] = Field(description="Version of the recipe language: 1.")
    model: ModelSource = Field(
        description="module:factory, () -> trained model; or the folder of an earlier run."
    )
    data: Reference | None = Field(
        None, description="module:function, () -> iterable of (inputs, targets)."
    )
    train: Reference | None = Field(
        None, description="module:function, (model, optimizer, batches) -> None."
    )
    loss: Loss | None = Field(
        None, description="cross_entropy, mse or module:function, for a plain training loop."
    )
    optimizer: Reference | None = Field(
        None, description="module:function, (model) -> optimizer; by default SGD."
    )
    evaluate: Reference | None = Field(
        None, description="module:function, (model) -> float, higher is better."
    )
    inputs: Reference | None = Field(
        None, description="module:function, () -> inputs; by default 8 rows of the first batch."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="Seed of all generators.")
    compact: bool = Field(
        False, description="Whether to write the weights as a compact file, model.lil, as well."
    )
    steps: Annotated[list[Step], Field(min_length=1)] = Field(description="What to do, in order.")
    _folder: Path = PrivateAttr(Path())
    _text: str = PrivateAttr("")

    @model_validator(mode="after")
    def _check_training(self) -> Recipe:
        if self.train is not None and self.loss is not None:
            raise ValueError("'train' and 'loss' are alternatives; give one of them.")
        return self

    @property
    def folder(self) -> Path:
        """The folder of the recipe; modules in it can be named in the recipe."""
        return self._folder

    @property
    def text(self) -> str:
        """The recipe as written."""
        return self._text

    @property
    def trains(self) -> bool:
        """Whether any step trains the model."""
        return any(epochs_of(step) for step in self.steps)

    @property
    def needs_loss(self) -> bool:
        """Whether any step trains with the loss of the recipe."""
        return any(epochs_of(step) and uses_labels(step) for step in self.steps)
