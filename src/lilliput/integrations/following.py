"""The interface of compressors for training libraries: attach, follow the training, save, strip."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.core.state import CompressionState
from lilliput.errors import ConfigError, StageError, StateError

FORMAT = 1


class Following:
    """Several compressors of one torch model that follow its training together.

    Parameters
    ----------
    compressors : sequence of Compressor
        In the order of attaching. A compressor without a model gets the model that is trained.
    steps_per_epoch : int, optional
        How many optimizer steps count as one epoch of the schedules; by default, the
        library's epochs are used.
    """

    def __init__(self, compressors: Sequence[Any], steps_per_epoch: int | None = None) -> None:
        if not compressors:
            raise ConfigError(
                "compressors: received none, expected one like AGPPruner(model, rules)."
            )
        for compressor in compressors:
            if not isinstance(compressor, Compressor):
                raise ConfigError(
                    f"compressors: received {type(compressor).__name__!r}, expected pruners and "
                    "quantizers, made but not necessarily compressed: AGPPruner(model, rules)."
                )
        is_count = isinstance(steps_per_epoch, int) and steps_per_epoch > 0
        if steps_per_epoch is not None and not is_count:
            raise ConfigError(
                f"steps_per_epoch: received {steps_per_epoch!r}, expected a number above 0."
            )
        self.compressors = tuple(compressors)
        self.steps_per_epoch = steps_per_epoch
        self.epoch: int | None = None  # the last one passed to the compressors

    def attach(self, model: Any) -> None:
        """Compress the model, or the part of it that each compressor is bound to."""
        parts = {id(part) for part in model.modules()}
        for compressor in self.compressors:
            bound = compressor.bound_model
            if bound is not None and id(bound) not in parts:
                raise StageError(
                    f"{type(compressor).__name__} is bound to a different model than the one being trained; "
                    f"pass that model, or none: {type(compressor).__name__}(config_list=rules)."
                )
        for compressor in self.compressors:
            if not compressor.is_wrapped:
                compressor.compress(model if compressor.bound_model is None else None)

    def bind(self, optimizers: Sequence[Any]) -> None:
        """Make each compressor follow the optimizer that trains its weights."""
        for compressor in self.compressors:
            refusals: list[ConfigError] = []
            for optimizer in optimizers:
                try:
                    compressor.bind_optimizer(optimizer)
                    break
                except ConfigError as error:
                    refusals.append(error)
            if refusals and len(refusals) == len(optimizers):
                raise refusals[0]

    def start(self, epoch: int, step: int) -> None:
        """Move the schedules, if this epoch or step starts a new one.

        Parameters
        ----------
        epoch : int
            The library's epoch, from 0.
        step : int
            The number of optimizer steps so far.
        """
        if self.steps_per_epoch is not None:
            epoch = step // self.steps_per_epoch
        if epoch != self.epoch:
            for compressor in self.compressors:
                compressor.update_epoch(epoch)
            self.epoch = epoch

    def strip(self) -> None:
        """Turn the model into a plain one."""
        for compressor in reversed(self.compressors):
            compressor.strip()

    def states(self) -> list[CompressionState]:
        """Return the states of all compressors."""
        return [compressor.state() for compressor in self.compressors]

    def load(self, states: Sequence[CompressionState]) -> None:
        """Continue from states; raise if their number differs."""
        if len(states) != len(self.compressors):
            raise StateError(
                f"the checkpoint holds the states of {[x.algorithm for x in states]}, expected those "
                f"of {[type(x).__name__ for x in self.compressors]}."
            )
        for compressor, state in zip(self.compressors, states, strict=True):
            compressor.load_state(state)


def torch_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside accelerate's wrapper."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def pack(states: Sequence[CompressionState]) -> dict[str, Any]:
    """Return states as text and tensors: ``torch.load`` reads such a file with its safe defaults.

    Examples
    --------
    >>> pack([CompressionState("AGPPruner", progress={"now_epoch": 2})])["states"]
    '[{"algorithm": "AGPPruner", "framework": "torch", "layers": {}, "progress": {"now_epoch": 2}}]'
    """
    described = [
        {
            "algorithm": state.algorithm,
            "framework": state.framework,
            "layers": state.layers,
            "progress": state.progress,
        }
        for state in states
    ]
    text = json.dumps(described, allow_nan=False)
    return {"format": FORMAT, "states": text, "tensors": [dict(state.tensors) for state in states]}


def unpack(packed: Any) -> list[CompressionState]:
    """Return the states given to :func:`pack`; raise for anything else."""
    version = packed.get("format") if isinstance(packed, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise StateError(
            f"the compression state is in format {version}, this version of Lilliput reads up to "
            f"{FORMAT}; upgrade Lilliput."
        )
    try:
        described = json.loads(packed["states"])
        return [
            CompressionState(**fields, tensors=tensors)
            for fields, tensors in zip(described, packed["tensors"], strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the checkpoint contains no readable compression state ({error!r})."
        ) from error
