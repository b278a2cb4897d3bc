"""Recipes on Keras 3: ``model.fit``, and weights as safetensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from lilliput.calling import call
from lilliput.errors import ConfigError, StateError
from lilliput.files import write_atomically
from lilliput.frameworks.keras.files import dump_tensors
from lilliput.frameworks.keras.scopes import sync
from lilliput.frameworks.looping import Epoch, Functions

_OURS = "lilliput_"  # variables of wrappers, which are part of the compressors' states


class KerasLoop:
    """How Keras trains and writes; see :class:`~lilliput.frameworks.looping.Loop`.

    The factory compiles the model, or the recipe has a ``loss``. Compile settings are carried
    over to shrunk models, with a new optimizer of the same settings for each step.
    """

    name = "keras"

    def seed(self, number: int) -> None:
        """Seed Keras and its backend."""
        keras.utils.set_random_seed(number)

    def threads(self) -> None:
        """Return None: the backends do not allow changing it once they run."""

    def set_threads(self, count: int | None) -> None:
        """Do nothing."""

    def tensors(self, model: Any) -> dict[str, Any]:
        """Return all variables, including those of random layers."""
        sync(model)
        return {name: variable.value for name, variable in _variables(model).items()}

    def load(self, model: Any, tensors: dict[str, Any]) -> None:
        """Assign all variables."""
        here = _variables(model)
        wrong = [name for name in {*here, *tensors} if name not in here or name not in tensors]
        wrong += [n for n, v in here.items() if n in tensors and v.shape != tensors[n].shape]
        if wrong:
            raise StateError(
                f"the checkpoint does not fit the model: {', '.join(sorted(wrong)[:5])}."
            )
        for name, variable in here.items():
            variable.assign(tensors[name])

    # -- training ------------------------------------------------------------------------------------

    def check_training(self, functions: Functions) -> str:
        """Return an empty string: whether the model is compiled is checked when it trains."""
        return ""

    def start_training(
        self,
        model: Any,
        compressors: list[Any],
        functions: Functions,
        factory: Any,
        learning_rate: float | None,
    ) -> Any:
        """Compile the model with a new optimizer."""
        optimizer = _new_optimizer(model) if factory is None else factory(model)
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise ConfigError(
                f"optimizer: the function returned {type(optimizer).__name__}, expected a "
                "keras.optimizers.Optimizer."
            )
        if learning_rate is not None:
            optimizer.learning_rate = learning_rate
        _compile(model, optimizer, _loss(functions) or getattr(model, "loss", None), model)
        optimizer.build(model.trainable_variables)
        for compressor in compressors:
            compressor.bind_optimizer(optimizer)
        return optimizer

    def start_recovery(self, model: Any) -> Any:
        """Compile the model with Adam and without a loss, which the distiller adds."""
        optimizer = keras.optimizers.Adam()
        _compile(model, optimizer, None, model)
        optimizer.build(model.trainable_variables)
        return optimizer

    def set_rate(self, optimizer: Any, rate: float) -> None:
        """Assign the learning rate."""
        optimizer.learning_rate = rate

    def stop_training(self, compressors: list[Any]) -> None:
        """Remove the optimizer from compressors."""
        for compressor in compressors:
            compressor.optimizer = None

    def optimizer_state(self, optimizer: Any) -> Any:
        """Return its variables."""
        return [variable.value for variable in optimizer.variables]

    def load_optimizer(self, optimizer: Any, state: Any) -> None:
        """Assign its variables."""
        if len(state) != len(optimizer.variables):
            raise StateError("the checkpoint does not fit the optimizer.")
        for variable, value in zip(optimizer.variables, state, strict=True):
            variable.assign(value)

    def train(self, epoch: Epoch) -> None:
        """Train one epoch, by the user's function or by ``fit``; a distiller adds to the loss."""
        model, functions, distiller = epoch.model, epoch.functions, epoch.distiller
        if epoch.current is not None:
            epoch.current.update_epoch(epoch.number + epoch.current._first_epoch)
        if functions.train is not None and distiller is None:
            epoch.train_by_user()
        else:
            is_alone = distiller is not None and distiller.is_alone
            if getattr(model, "loss", None) is None and not is_alone:
                raise ConfigError(
                    "model: it is not compiled with a loss; compile it in its factory, or add loss: "
                    "cross_entropy to the recipe."
                )
            model.fit(_as_dataset(epoch.batches), epochs=1, verbose=0, shuffle=False)
        sync(model)

    def calibrate(self, compressor: Any, batches: Iterable[Any], functions: Functions) -> None:
        """Run batches."""
        call(compressor.calibrate, list(batches), progress=False)

    def forward(self, model: Any, inputs: Any) -> Any:
        """Call a model for inference."""
        return model(inputs, training=False)

    def evaluation_mode(self, model: Any) -> None:
        """Do nothing: Keras models get the mode in each call."""

    def training_of(self, model: Any) -> Callable[[Any], None]:
        """Return a function that compiles a model like this one, because shrinking discards that."""
        loss = getattr(model, "loss", None)
        if loss is None:
            return lambda shrunk: None
        optimizer, settings = _new_optimizer(model), _settings(model)
        return lambda shrunk: shrunk.compile(optimizer, loss, **settings)

    # -- writing -------------------------------------------------------------------------------------

    def write_model(self, model: Any, compressors: list[Any], folder: Path) -> Path:
        """Write the weights by their names, masks applied."""
        path = folder / "model.safetensors"
        sync(model)
        own = [v for v in model.weights if not v.name.startswith(_OURS)]
        write_atomically(path, dump_tensors({_plain_path(v, model): v.value for v in own}))
        return path

    def place(self, value: Any, model: Any) -> Any:
        """Return the inputs: Keras places them itself."""
        return value

    def first_rows(self, inputs: Any, count: int) -> Any:
        """Return the first examples of all arrays."""
        if isinstance(inputs, Mapping):
            return {key: self.first_rows(value, count) for key, value in inputs.items()}
        if isinstance(inputs, (list, tuple)):
            return tuple(self.first_rows(value, count) for value in inputs)
        return keras.ops.convert_to_numpy(inputs[:count])


def _variables(model: Any) -> dict[str, Any]:
    """Return the variables of a model by number, since names may repeat, without those of compressors."""
    own = [v for v in model.variables if not v.name.startswith(_OURS)]
    return {f"{number} {v.name}": v for number, v in enumerate(own)}


def _plain_path(variable: Any, model: Any) -> str:
    """Return the path of a variable inside its model, without the model's name, which Keras may number."""
    return str(variable.path).removeprefix(f"{model.name}/")


def _new_optimizer(model: Any) -> Any:
    """Return a new optimizer with the settings of the compiled one."""
    held = getattr(model, "optimizer", None)
    if held is None:
        return keras.optimizers.SGD(0.01, momentum=0.9)
    return type(held).from_config(held.get_config())


def _compile(model: Any, optimizer: Any, loss: Any, other: Any) -> None:
    """Compile a model with the settings of another."""
    model.compile(optimizer, loss, **_settings(other))


def _settings(model: Any) -> dict[str, Any]:
    """Return the compile settings of a model except optimizer and loss."""
    jit = model.jit_compile if getattr(model, "compiled", False) else "auto"
    return {"jit_compile": jit, "run_eagerly": model.run_eagerly}


def _loss(functions: Functions) -> Any:
    names = {
        "cross_entropy": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "mse": "mse",
    }
    return names[functions.loss] if isinstance(functions.loss, str) else functions.loss


class _Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """A list of batches, because ``fit`` treats a plain list as arrays."""

    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def _as_dataset(batches: Any) -> Any:
    """Return batches in a form that ``fit`` accepts; framework datasets are returned unchanged."""
    kind = type(batches)
    is_known = isinstance(batches, keras.utils.PyDataset) or kind.__name__.endswith("Dataset")
    if is_known or kind.__module__.startswith(("tensorflow", "torch", "grain")):
        return batches
    return _Batches([_parts(batch) for batch in batches])


def _parts(batch: Any) -> Any:
    """Return a batch as ``fit`` takes it, without targets that are None."""
    if not isinstance(batch, (tuple, list)):
        return batch
    return tuple(batch[:1]) if all(part is None for part in batch[1:]) else tuple(batch)


loop = KerasLoop()
