"""A run in memory: the model with its compressors, the measurements, and its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from lilliput.errors import ConfigError
from lilliput.frameworks import backend_named
from lilliput.frameworks.looping import Loop
from lilliput.packing import pack
from lilliput.recipes import fingerprints
from lilliput.recipes.arguments import make_compressor
from lilliput.recipes.checkpoint import Checkpoint, CompressorEntry, ModelEntry
from lilliput.recipes.functions import Functions
from lilliput.recipes.spec import Recipe
from lilliput.recipes.step_specs import training_of
from lilliput.recipes.units import Unit, seed_for, units_of

_ROWS = 8  # examples of the first batch used for analysis
_SAMPLES = 2  # batches that an exported file is compared on


class Session:
    """The state of a run.

    Attributes
    ----------
    model : object
        The current model.
    compressors : list
        The attached compressors, in order of attachment.
    optimizer : object or None
        The optimizer of the step, while it trains.
    inputs : object
        Inputs of the model, for analysis and timing.
    log : dict
        The measurements so far, as plain data.
    """

    def __init__(self, recipe: Recipe, folder: Path, functions: Functions) -> None:
        self.recipe, self.folder, self.functions = recipe, folder, functions
        self.units: list[Unit] = units_of(recipe)
        self.compressors: list[Any] = []
        self.optimizer: Any = None
        self.log: dict[str, Any] = {"points": [], "exports": [], "notes": []}
        self.done = 0
        self.is_finished = False
        self.framework: Loop
        self.entry: ModelEntry
        self.model: Any = None
        self.inputs: Any = None
        self.made_from: dict[str, Any] = {}
        self.threads: int | None = None
        self.teachers: dict[str, Any] = {}  # models that steps learn from, once created

    # -- for steps ---------------------------------------------------------------------------------

    def seed(self, what: str | int) -> None:
        """Seed all generators for one part of the run."""
        number = seed_for(self.recipe.seed, what)
        fingerprints.seed_python(number)
        self.framework.seed(number)

    def step_of(self, unit: Unit) -> Any:
        """Return the step that a unit belongs to."""
        return self.recipe.steps[unit.step]

    def attach(self, entry: CompressorEntry) -> None:
        """Attach a compressor to the model."""
        compressor = make_compressor(entry, self.model, self.inputs)
        compressor.compress()
        self.compressors.append(compressor)
        self.entry.compressors.append(entry)

    def start_training(self, step: int) -> None:
        """Create the optimizer of a step, if there is none yet."""
        if self.optimizer is None:
            rate = training_of(self.recipe.steps[step]).learning_rate
            factory = self.functions.optimizer_of(step)
            self.optimizer = self.framework.start_training(
                self.model, self.compressors, self.functions, factory, rate
            )

    def stop_training(self) -> None:
        """Discard the optimizer: the next step starts with a new one."""
        self.optimizer = None
        self.framework.stop_training(self.compressors)

    def samples(self, count: int = _SAMPLES) -> list[Any]:
        """Return the inputs of the first batches, always the same ones."""
        if self.functions.data is None:
            return []
        self.seed("data")
        batches = islice(self.functions.batches(), count)
        return [self.framework.place(inputs_of(batch), self.model) for batch in batches]

    # -- to and from the folder ----------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint atomically."""
        tensors = {f"model/{k}": x for k, x in self.framework.tensors(self.model).items()}
        entries = [self._noted(number, tensors) for number in range(len(self.compressors))]
        optimizer = None
        if self.optimizer is not None:
            state = self.framework.optimizer_state(self.optimizer)
            optimizer = pack(state, "optimizer", tensors, _is_tensor)
        self.entry = self.entry.model_copy(update={"compressors": entries})
        Checkpoint(
            text=self.recipe.text,
            made_from=self.made_from,
            threads=self.threads,
            model=self.entry,
            units=len(self.units),
            done=self.done,
            is_finished=self.is_finished,
            optimizer=optimizer,
            inputs=pack(self.inputs, "inputs", tensors, _is_tensor),
            log=self.log,
            tensors=tensors,
        ).save(self.folder)

    def _noted(self, number: int, tensors: dict[str, Any]) -> CompressorEntry:
        """Return the entry of a compressor with its state; its tensors are added to the others."""
        state = self.compressors[number].state()
        for layer, held in state.tensors.items():
            tensors |= {f"compressor {number}/{layer}::{k}": x for k, x in held.items()}
        known = {"layers": state.layers, "progress": state.progress, "class": state.algorithm}
        entry = self.entry.compressors[number]
        return entry.model_copy(update={"state": json.loads(json.dumps(known))})

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the result, as far as known before the run."""
        found: dict[str, Any] = {
            "recipe": fingerprints.canonical(self.recipe),
            "versions": fingerprints.of_versions(self.framework.name),
        }
        tensors = self.framework.tensors(self.model)
        data = backend_named(self.framework.name).dump_tensors(tensors)
        return {**found, "model": fingerprints.of_model(tensors, data), "data": self._of_data()}

    def _of_data(self) -> dict[str, Any] | None:
        """Return the fingerprint of the data, or None if two calls with one seed differ."""
        found = []
        for _ in range(2):
            self.seed("data")
            batches = None if self.functions.data is None else self.functions.batches()
            found.append(fingerprints.of_data(batches, self.inputs))
        return found[0] if found[0] == found[1] else None

    def take_inputs(self) -> None:
        """Determine the inputs of the model."""
        self.seed("data")
        if self.functions.inputs is not None:
            self.inputs = self.framework.place(self.functions.inputs(), self.model)
            return
        if self.functions.data is None and self.inputs is not None:
            return  # those of the earlier run
        batch = next(iter(self.functions.batches()), None)
        if batch is None:
            raise ConfigError("data: the function returned no batches.")
        if isinstance(batch, Mapping) or (isinstance(batch, (list, tuple)) and len(batch) != 2):
            raise ConfigError(
                f"data: received a batch of {len(batch)} items, expected (inputs, targets); otherwise add "
                "'inputs: module:function', which returns the model's arguments, and 'train'."
            )
        rows = self.framework.first_rows(inputs_of(batch), _ROWS)
        self.inputs = self.framework.place(rows, self.model)


def inputs_of(batch: Any) -> Any:
    """Return the inputs of a batch of inputs and targets."""
    return batch[0] if isinstance(batch, (list, tuple)) and len(batch) == 2 else batch


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
