"""Recipes on PyTorch: plain training loops, and weights as safetensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.calling import call
from lilliput.errors import AlgorithmError, ConfigError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks.looping import Epoch, Functions
from lilliput.frameworks.torch.copies import plain_copy
from lilliput.frameworks.torch.files import dump_tensors

_LOSSES = {"cross_entropy": nn.functional.cross_entropy, "mse": nn.functional.mse_loss}


class TorchLoop:
    """How torch trains and writes; see :class:`~lilliput.frameworks.looping.Loop`."""

    name = "torch"

    def seed(self, number: int) -> None:
        """Seed torch on all devices."""
        torch.manual_seed(number)

    def threads(self) -> int:
        """Return the threads of one operation."""
        return torch.get_num_threads()

    def set_threads(self, count: int | None) -> None:
        """Compute with this many threads."""
        if count is not None:
            torch.set_num_threads(count)

    def tensors(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict."""
        state = model.state_dict()
        for name, value in state.items():
            if not isinstance(value, Tensor):
                raise StateError(
                    f"{name!r} in the state dict is a {type(value).__name__}, expected a tensor; a "
                    "checkpoint contains tensors only."
                )
        return dict(state)

    def load(self, model: nn.Module, tensors: dict[str, Any]) -> None:
        """Load a complete state dict."""
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise StateError(f"the checkpoint does not fit the model: {error}") from error

    # -- training ------------------------------------------------------------------------------------

    def check_training(self, functions: Functions) -> str:
        """Return what is missing for training."""
        if functions.train is None and functions.loss is None:
            return "a step trains, but the recipe has neither 'loss' nor 'train'; add loss: cross_entropy"
        return ""

    def start_training(
        self,
        model: nn.Module,
        compressors: list[Any],
        functions: Functions,
        factory: Any,
        learning_rate: float | None,
    ) -> Any:
        """Return a new optimizer; compressors add their own parameters to it."""
        make = _default_optimizer if factory is None else factory
        optimizer = make(model)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer: the function returned {type(optimizer).__name__}, expected a "
                "torch.optim.Optimizer."
            )
        own = {id(p) for c in compressors for w in c._every_wrapper() for p in w.parameters()}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in own]
            if learning_rate is not None:
                group["lr"] = learning_rate
        for compressor in compressors:
            compressor.bind_optimizer(optimizer)
        return optimizer

    def start_recovery(self, model: nn.Module) -> Any:
        """Return Adam: the steps of cut and refitted networks must not depend on the scale of weights."""
        return torch.optim.Adam(model.parameters())

    def set_rate(self, optimizer: Any, rate: float) -> None:
        """Set the learning rate of all groups."""
        for group in optimizer.param_groups:
            group["lr"] = rate

    def stop_training(self, compressors: list[Any]) -> None:
        """Remove the optimizer from compressors."""
        for compressor in compressors:
            compressor.bind_optimizer(None)

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return its state dict."""
        return optimizer.state_dict()

    def load_optimizer(self, optimizer: Any, state: Any) -> None:
        """Load its state dict."""
        try:
            optimizer.load_state_dict(state)
        except (KeyError, ValueError) as error:
            raise StateError(f"the checkpoint does not fit the optimizer: {error}") from error

    def train(self, epoch: Epoch) -> None:
        """Train one epoch, by the user's function or by a plain loop."""
        model, functions, distiller = epoch.model, epoch.functions, epoch.distiller
        model.train()
        if epoch.current is not None:
            epoch.current.update_epoch(epoch.number + epoch.current._first_epoch)
        if functions.train is not None and distiller is None:
            made = epoch.train_by_user()
            if isinstance(made, nn.Module) and made is not model:
                raise ConfigError(
                    "train: the function returned another model, expected the given one, trained "
                    "in place."
                )
            return
        count = 0
        for batch in epoch.batches:
            epoch.optimizer.zero_grad()
            loss = _loss(model, batch, functions, distiller)
            loss.backward()
            epoch.optimizer.step()
            count += 1
        if not count:
            raise ConfigError("data: the function returned no batches.")
        if not torch.isfinite(loss.detach()).all():
            raise AlgorithmError(
                f"the loss is {loss.item()} in epoch {epoch.number + 1}: lower the learning_rate of the "
                "step, or look for such numbers in the data."
            )

    def calibrate(self, compressor: Any, batches: Iterable[Any], functions: Functions) -> None:
        """Run batches; a criterion that uses gradients gets the loss of the recipe."""
        extras: dict[str, Any] = {}
        if "loss" in inspect.signature(compressor.calibrate).parameters:
            has_loss = functions.loss is not None
            extras = (
                {"loss": lambda model, batch: _loss(model, batch, functions)} if has_loss else {}
            )
        batches = [self.place(batch, compressor.bound_model) for batch in batches]
        call(compressor.calibrate, batches, progress=False, **extras)

    def forward(self, model: nn.Module, inputs: Any) -> Any:
        """Call a model with the inputs of a batch: one, a tuple of several, or a dict of named ones."""
        return _run(model, inputs)

    def evaluation_mode(self, model: nn.Module) -> None:
        """Turn dropout and batch statistics off."""
        model.eval()

    def training_of(self, model: nn.Module) -> Callable[[Any], None]:
        """Return a function that does nothing: a module does not store how it is trained."""
        return lambda shrunk: None

    # -- writing -------------------------------------------------------------------------------------

    def write_model(self, model: nn.Module, compressors: list[Any], folder: Path) -> Path:
        """Write the state dict of the plain model as safetensors."""
        path = folder / "model.safetensors"
        quantizers = [x for x in compressors if x.kind == "quantizer"]
        has_activations = any(
            {"input", "output"} & set(w.roles) for x in quantizers for w in x._every_wrapper()
        )
        if compressors and not has_activations:
            compressors[-1].export_model(str(path))
        else:  # a state dict cannot store rounded activations: these are the trained weights
            write_atomically(path, dump_tensors(plain_copy(model).state_dict()))
        return path

    def place(self, value: Any, model: nn.Module) -> Any:
        """Return inputs on the device of the model."""
        first = next(model.parameters(), None)
        return value if first is None else _to(value, first.device)

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of all tensors."""
        if isinstance(inputs, Tensor):
            return inputs[:count] if inputs.dim() else inputs
        if isinstance(inputs, Mapping):
            return {key: self.first_rows(value, count) for key, value in inputs.items()}
        if isinstance(inputs, (list, tuple)):
            return tuple(self.first_rows(value, count) for value in inputs)
        return inputs


def _default_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def _loss(model: nn.Module, batch: Any, functions: Functions, distiller: Any = None) -> Any:
    """Return the loss of one batch of inputs and targets; a teacher alone needs no targets."""
    if distiller is not None and distiller.is_alone:
        is_pair = isinstance(batch, (list, tuple)) and len(batch) == 2
        _run(model, loop.place(batch[0] if is_pair else batch, model))
        return distiller.loss()
    if not isinstance(batch, (list, tuple)) or len(batch) != 2:
        raise ConfigError(
            f"data: received a batch of {type(batch).__name__}, expected (inputs, targets); write a "
            "'train' function for other batches."
        )
    loss: Any = functions.loss
    inputs, targets = (loop.place(part, model) for part in batch)
    function: Any = _LOSSES[loss] if isinstance(loss, str) else loss
    found = function(_run(model, inputs), targets)
    return found if distiller is None else found + distiller.loss()


def _run(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (list, tuple)) else model(inputs)


def _to(value: Any, place: torch.device) -> Any:
    """Return a batch on a device."""
    if isinstance(value, Tensor):
        return value.to(place)
    if isinstance(value, Mapping):
        return {key: _to(item, place) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_to(item, place) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


loop = TorchLoop()
