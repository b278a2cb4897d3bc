"""Compress a model while the ``Trainer`` of transformers trains it.

    pruner = AGPPruner(model, [{"op_types": ["Linear"], "final_sparsity": 0.8, "end_epoch": 2}])
    trainer = Trainer(model, args, train_dataset=data, callbacks=[CompressionCallback(pruner)])
    trainer.train()

Each checkpoint gets a folder ``lilliput`` with masks and progress, and ``train(resume_from_checkpoint=...)``
resumes from it.
"""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from lilliput.errors import MissingExtraError

try:
    from transformers import TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise MissingExtraError(
        "lilliput.integrations.transformers needs transformers: "
        "pip install 'lilliput[transformers]'"
    ) from error

import numpy as np

from lilliput.core.state import CompressionState
from lilliput.errors import StateError
from lilliput.integrations.following import Following, torch_optimizer
from lilliput.ops.namespace import namespace

FOLDER = "lilliput"


class CompressionCallback(TrainerCallback):  # type: ignore[misc]
    """Follow the training of a transformers model with pruners and quantizers.

    Parameters
    ----------
    *compressors : Compressor
        Bound to the model or a part of it, or to none yet: ``AGPPruner(config_list=rules)``. Those that
        are not compressed when the Trainer is created are compressed then, before it creates its optimizer.
    strip : bool
        Turn the model into a plain one at the end of ``train``.
    steps_per_epoch : int, optional
        How many optimizer steps count as one epoch of the schedules, for fine-tuning in one
        pass over the data; by default, the Trainer's epochs are used.
    """

    def __init__(
        self, *compressors: Any, strip: bool = False, steps_per_epoch: int | None = None
    ) -> None:
        self.following = Following(compressors, steps_per_epoch)
        self.strip = strip
        self._epoch = 0

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compress the model before a checkpoint is read and the optimizer is created."""
        self.following.attach(kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Follow the optimizer, and resume from a checkpoint."""
        self.following.attach(kwargs["model"])  # again, if an earlier train() stripped it
        self.following.bind([torch_optimizer(kwargs["optimizer"])])
        self._epoch, self.following.epoch = int(state.epoch or 0), None
        if state.global_step > 0:
            self._resume(args, state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the schedules to this epoch."""
        self.following.start(self._epoch, state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the schedules to this step, if steps are counted."""
        self.following.start(self._epoch, state.global_step)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count epochs; the Trainer's own number is a fraction that depends on the data set."""
        self._epoch += 1

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write masks and progress into the checkpoint that was just saved."""
        folder = _checkpoint(args, state)
        states = self.following.states()  # in every process: sharded weights are gathered
        if args.should_save and folder.is_dir():
            for place, found in zip(self._places(folder), states, strict=True):
                found.save(place)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the masks of the best checkpoint, if that was loaded; strip if requested."""
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self.following.load(self._read(Path(state.best_model_checkpoint)))
        if self.strip:
            self.following.strip()

    def _resume(self, args: Any, state: Any) -> None:
        """Load the states that belong to the weights that the Trainer has just loaded."""
        named = Path(args.resume_from_checkpoint or "")
        folder = named if (named / FOLDER).is_dir() else _checkpoint(args, state)
        states = self._read(folder)
        held = zip(self.following.compressors, states, self.following.states(), strict=False)
        # The projections of a distiller are not part of the model, so they were not loaded with the
        # weights.
        pairs = [(saved, loaded) for x, saved, loaded in held if x.kind != "distiller"]
        if not all(_have_equal_tensors(saved, loaded) for saved, loaded in pairs):
            raise StateError(
                f"{folder}: its compression state is not that of the weights which were loaded. "
                + _FIX
            )
        self.following.load(states)
        count = self.following.steps_per_epoch
        told = ceil(state.epoch) - 1 if count is None else (state.global_step - 1) // count
        self.following.epoch = told

    def _read(self, folder: Path) -> list[CompressionState]:
        places = self._places(folder)
        missing = [str(place) for place in places if not place.is_dir()]
        if missing:
            raise StateError(f"no compression state is in {', '.join(missing)}. " + _FIX)
        return [CompressionState.load(place) for place in places]

    def _places(self, folder: Path) -> list[Path]:
        """Return a folder for each compressor."""
        names = [type(compressor).__name__ for compressor in self.following.compressors]
        return [folder / FOLDER / f"{index}_{name}" for index, name in enumerate(names)]


_FIX = (
    "A Trainer does not report where it resumes from: if it is not the output folder, also set "
    "TrainingArguments(resume_from_checkpoint=...). Weights that were trained without compression are "
    "loaded by from_pretrained() instead."
)


def _checkpoint(args: Any, state: Any) -> Path:
    """Return the path of the Trainer's checkpoint of this step."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _have_equal_tensors(saved: CompressionState, loaded: CompressionState) -> bool:
    """Whether a state was saved with the masks that are currently in the model."""
    for layer, tensors in loaded.tensors.items():
        for key, tensor in tensors.items():
            other = saved.tensors.get(layer, {}).get(key)
            is_attribute = "/" in key  # tensors within lists and similar: not in a state dict
            if not is_attribute and (other is None or not _is_equal(other, tensor)):
                return False
    return True


def _is_equal(saved: Any, loaded: Any) -> bool:
    arrays = (namespace(tensor).to_numpy(tensor) for tensor in (saved, loaded))
    return np.array_equal(*arrays)
