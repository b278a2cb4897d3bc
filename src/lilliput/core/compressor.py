"""The base of all pruners and quantizers: bind a model, wrap its layers, follow the training."""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.config.spec import Rule
from lilliput.core.binding import select_layers
from lilliput.core.describe import describe, describe_as_html
from lilliput.core.hooks import weakly
from lilliput.core.state import CompressionState, capture, restore
from lilliput.errors import Problem, StageError, StateError
from lilliput.frameworks import backend_of
from lilliput.frameworks.ports.files import PlainFiles
from lilliput.garbage import uncollected

log = logging.getLogger("lilliput")


def then_refresh(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make an author's ``step`` or ``update_epoch`` refresh the masks at the end."""

    @functools.wraps(method)
    def call(self: Compressor, *args: Any, **kwargs: Any) -> Any:
        self._depth += 1
        try:
            result = method(self, *args, **kwargs)
        finally:
            self._depth -= 1
        if self._depth == 0 and self.is_wrapped:
            self._refresh()
        return result

    call.refreshes = True  # type: ignore[attr-defined]
    return call


class Compressor:
    """Wrap the layers that a config list selects, and keep them compressed while the model trains.

    The constructor reads the model and validates the config, but does not change the model. With an
    optimizer, its steps are followed from then on, so that a criterion can observe training before
    ``compress()``. ``compress()`` changes the model in place and returns it; ``strip()`` is its exact
    inverse.

    Parameters
    ----------
    model : object, optional
        The model. Can be omitted and passed to ``compress(model)`` later.
    config_list : list of dict, or path of a YAML or JSON file
        What to compress and how; see the config language in the documentation.
    optimizer : object, optional
        The optimizer that trains the model. It is hooked immediately, and masks are updated after each
        of its steps. Without it, call ``step()`` and ``update_epoch()`` yourself.
    """

    kind: ClassVar[str] = "compressor"
    rule: ClassVar[type[Rule]] = Rule
    default_types: ClassVar[frozenset[str] | None] = None  # None: the backend's own list
    backends: ClassVar[tuple[str, ...]] = ("torch", "keras")
    tracked: ClassVar[tuple[str, ...]] = ()  # attributes that are part of the saved state
    _first_epoch: ClassVar[int] = 1  # of a recipe; 0 if training precedes the first masks
    paper: ClassVar[str] = ""  # origin of the algorithm, for ``lilliput list``
    adapts: ClassVar[type | None] = None  # the algorithm that this class provides in an older form
    _strict_names: ClassVar[bool] = True  # False: only log a name that matches no layer
    _wrapper_type: ClassVar[Any] = None  # None: the framework's wrapper for this kind of compressor

    # Class-level defaults, so that a subclass whose __init__ never calls super() works, too.
    bound_model: Any = None
    config_list: Any = None
    optimizer: Any = None
    is_wrapped: bool = False
    _has_compressed: bool = False
    _backend: Any = None
    _wrappers: list[Any] | None = None
    _companions: Sequence[Any] = ()
    _parts: Sequence[tuple[str, Any]] = ()  # of the model, from binding to compress()
    _selection: Selection | None = None
    _attributes: Mapping[str, Any] = {}
    _step_handles: tuple[Any, ...] = ()
    _early_handles: tuple[Any, ...] = ()  # on the optimizer, between construction and compress()
    _tasks: tuple[Callable[[], None], ...] = ()
    _collectors: Mapping[int, list[Any]] = {}
    _collector_ids: Any = None
    _depth: int = 0

    def __init__(self, model: Any = None, config_list: Any = None, optimizer: Any = None) -> None:
        self.config_list = config_list
        self.optimizer = optimizer
        self.bound_model = model
        if model is not None and not self._preprocesses:
            self._bind()
            self._watch_optimizer()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("step", "update_epoch"):
            method = getattr(cls, name)  # it may be inherited from a mixin
            if not hasattr(method, "refreshes"):
                setattr(cls, name, then_refresh(method))

    # -- workflow ---------------------------------------------------------------------------------

    def compress(self, model: Any = None) -> Any:
        """Wrap the selected layers in place and return the model.

        If anything fails, the model is unchanged.
        """
        before = self.bound_model
        self._take(model)
        if self.is_wrapped:
            self._refresh()
            return self.bound_model
        try:
            if self._preprocesses and self._wrappers is None:
                changed = self.preprocess_model(self.bound_model)
                self.bound_model = self.bound_model if changed is None else changed
            if self._wrappers is None:
                self._bind()
        except BaseException:
            self.bound_model = before
            raise
        self._backend.check_unchanged(
            self.bound_model, self._every_wrapper(), self._parts, self._find_layers
        )
        self.bind_model(self.bound_model)
        self._prepare()
        self._wrap_model()
        try:
            self._follow_optimizer()
            self._refresh()
            self._backend.apply_masks(self._every_wrapper(), self.optimizer)
            self._backend.narrow_norms(self._every_wrapper())
        except BaseException:
            self._leave_optimizer()
            self._detach_all()
            self._watch_optimizer()
            raise
        self._has_compressed = True
        self._parts = ()  # do not keep a layer alive that is replaced later
        return self.bound_model

    @then_refresh
    def step(self) -> None:
        """Follow one training step; called after ``optimizer.step()`` if an optimizer was given."""

    @then_refresh
    def update_epoch(self, epoch: int) -> None:
        """Follow one epoch; call it at the start of each epoch, counting from 0."""

    def strip(self) -> Any:
        """Turn the model into a plain one again and return it.

        Parameters keep their identity, the state dict its original keys, and all hooks are removed.
        Pruned weights are zeros; after a quantizer the weights are the trained float ones.
        """
        if self.bound_model is None:
            raise StageError("strip() was called before a model was bound; call compress() first.")
        self._unwrap_model()
        self._leave_optimizer()
        for identifier in list(self._collectors):
            self.remove_activation_collector(identifier)
        return self.bound_model

    # -- methods that authors override -------------------------------------------------------------

    def preprocess_model(self, model: Any) -> Any:
        """Change the model before its layers are looked up; return the new model, or None."""

    def bind_model(self, model: Any) -> None:
        """Prepare for the model; its wrappers exist, and are attached right after this."""

    def validate_config(self, model: Any, config_list: Any) -> None:
        """Validate the config list and raise if it is invalid. Overriding this permits keys of your own."""

    # -- methods for authors and users -------------------------------------------------------------

    def get_modules_wrapper(self) -> list[Any]:
        """Return the wrappers, one per selected layer, in the model's order."""
        return list(self._wrappers or [])

    get_wrappers = get_modules_wrapper

    @property
    def selection(self) -> Selection:
        """Which rule selects which layer."""
        if self._selection is None:
            raise StageError("no model is bound yet; call compress(model) first.")
        return self._selection

    def explain(self) -> str:
        """Return a table of which rule selects which layer, and why."""
        return str(self.selection)

    def set_wrappers_attribute(self, name: str, value: Any) -> None:
        """Set an attribute on every wrapper; a tensor becomes a buffer.

        Each wrapper gets a copy, so a list is never shared between layers.
        """
        self._attributes = {**self._attributes, name: value}
        for wrapper in self.get_modules_wrapper():
            wrapper.set_attribute(name, copy.deepcopy(value))

    def add_activation_collector(self, collector: Callable[[Any, Any, Any], Any]) -> int:
        """Call ``collector(wrapper, input_, output)`` after each forward pass; return its identifier."""
        if self._wrappers is None:
            raise StageError("add_activation_collector() needs a model; bind one first.")
        if self._collector_ids is None:
            self._collector_ids, self._collectors = count(), {}
        identifier: int = next(self._collector_ids)
        handles = [h for w in self._wrappers for h in self._backend.on_forward(w, collector)]
        self._collectors = {**self._collectors, identifier: handles}
        return identifier

    def remove_activation_collector(self, fwd_id: int) -> None:
        """Remove the collector with this identifier."""
        if fwd_id not in self._collectors:
            raise StageError(
                f"no collector has the identifier {fwd_id!r}; it may already have been removed."
            )
        remaining = dict(self._collectors)
        for handle in remaining.pop(fwd_id):
            handle.remove()
        self._collectors = remaining

    def patch_optimizer(self, *tasks: Callable[[], None]) -> None:
        """Call each task after every step of the optimizer, until ``strip()``."""
        self._tasks = (*self._tasks, *tasks)
        if self._step_handles:
            self._leave_optimizer()
            self._follow_optimizer()

    def bind_optimizer(self, optimizer: Any) -> None:
        """Follow this optimizer from now on, also after ``compress()``; None to stop following."""
        if self._wrappers is not None and optimizer is not None:
            self._backend.check_optimizer(optimizer, self._wrappers)
        before = self.optimizer
        self._leave_optimizer()
        self.optimizer = optimizer
        try:
            self._join_optimizer()
        except BaseException:
            self.optimizer = before
            self._join_optimizer()
            raise

    def callback(self) -> Any:
        """Return a callback for ``model.fit`` of a Keras model that follows epochs and steps."""
        self._need_model("callback()")
        return self._backend.callback(self)

    def state(self) -> CompressionState:
        """Return masks, scales and progress as data to save; see CompressionState."""
        self._need_model("state()")
        return capture(self)

    def load_state(self, state: CompressionState | str | os.PathLike[str]) -> None:
        """Continue from a saved state, or its folder; the model must have the same layers.

        A state that does not fit raises StateError and changes nothing.
        """
        if isinstance(state, (str, os.PathLike)):
            state = CompressionState.load(Path(state))
        if not isinstance(state, CompressionState):
            raise StateError(
                f"load_state() received {type(state).__name__}, expected a CompressionState or the folder of "
                "a saved one."
            )
        self._need_model("load_state()")
        if not self.is_wrapped:
            self._prepare()  # so that compress() has nothing to prepare, and overwrites nothing
        restore(self, state, then=self._take_state)
        if self.is_wrapped:
            self._backend.reshard(self.bound_model)
            # Except in the optimizer: its state is loaded by the user, before or after this.
            self._backend.apply_masks(self._every_wrapper())
            self._backend.narrow_norms(self._every_wrapper())

    def export_model(
        self,
        model_path: str,
        mask_path: str | None = None,
        onnx_path: str | None = None,
        input_shape: tuple[int, ...] | None = None,
        device: Any = None,
    ) -> None:
        """Write the compressed model as a plain one; the bound model is not changed.

        The effects of other compressors on the model are included.

        Parameters
        ----------
        model_path : str
            Weights with masks and weight quantization applied: ``.safetensors``, or ``.pt`` /
            ``.pth`` for a state dict that ``torch.load`` reads with its safe defaults.
        mask_path : str, optional
            The masks, in the same formats.
        onnx_path, input_shape : optional
            Also write an ONNX file, traced with an input of that shape.
        device : optional
            Device for tracing; by default that of the model.
        """
        if not self._has_compressed:
            raise StageError("export_model() was called before compress(); call compress() first.")
        self._check_export()
        self._write_files(PlainFiles(model_path, mask_path, onnx_path, input_shape, device))

    def _check_export(self) -> None:
        """Raise if the algorithm is not ready for :meth:`export_model`."""

    def _write_files(self, files: PlainFiles) -> None:
        """Write the files that :meth:`export_model` has validated."""
        self._backend.export(self.bound_model, self._every_wrapper(), files)

    def __repr__(self) -> str:
        return describe(self)

    def _repr_html_(self) -> str:
        return describe_as_html(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise StageError(
            f"a {type(self).__name__} is tied to its model; copy the model (it stays compressed) or "
            "save state() and load it into a new one."
        )

    # -- internals ---------------------------------------------------------------------------------

    @property
    def _preprocesses(self) -> bool:
        return type(self).preprocess_model is not Compressor.preprocess_model

    def _need_model(self, what: str) -> None:
        """Raise if no model is bound yet, naming the call that needs it."""
        if self._wrappers is None:
            raise StageError(f"{what} was called before a model was bound; call compress() first.")

    def _is_tensor(self, value: Any) -> bool:
        return bool(self._backend.is_tensor(value))

    def _take(self, model: Any) -> None:
        if model is None and self.bound_model is None:
            raise StageError("compress() has no model; pass one: compress(model).")
        if model is not None and self.bound_model is not None and model is not self.bound_model:
            raise StageError(
                f"this {type(self).__name__} is bound to another model; create a new one for this model."
            )
        self.bound_model = model if self.bound_model is None else self.bound_model

    @uncollected()
    def _bind(self) -> None:
        """Match the config with the model and create the wrappers; the model is only read."""
        self._backend = backend_of(self.bound_model)
        selection = select_layers(self, self._backend)
        others = self._companion_layers(selection)
        self._backend.check_overlaps([*selection.chosen, *others])
        wrappers = [self._backend.wrap(self.kind, layer, self) for layer in selection.chosen]
        companions = [self._backend.wrap(self.kind, layer, self) for layer in others]
        if self.optimizer is not None:
            self._backend.check_optimizer(self.optimizer, wrappers)
        for name, value in self._attributes.items():
            for wrapper in wrappers:
                wrapper.set_attribute(name, copy.deepcopy(value))
        self._selection, self._wrappers, self._companions = selection, wrappers, companions
        self._parts = self._backend.parts(self.bound_model)

    @property
    def _checks_config(self) -> bool:
        """Whether the author overrides :meth:`validate_config`."""
        return type(self).validate_config is not Compressor.validate_config

    def _find_layers(self) -> list[LayerInfo]:
        """Return the layers of the bound model that rules can select."""
        return list(self._backend.layers(self.bound_model))

    def _can_wrap(self, layer: LayerInfo) -> bool:
        """Whether this kind of compressor can use a layer."""
        return layer.weight_name is not None

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return the problems of a selection that are specific to this kind of compressor."""
        return []

    def _refine(self, selection: Selection) -> Selection:
        """Return the selection without the layers that this kind of compressor cannot change."""
        return selection

    def _companion_layers(self, selection: Selection) -> list[LayerInfo]:
        """Return the other layers to wrap along with the selected ones."""
        return []

    def companions(self) -> list[Any]:
        """Return the wrappers of parameters that no rule selects but that are masked along."""
        return list(self._companions)

    def _every_wrapper(self) -> list[Any]:
        """Return the wrappers of the selected layers and of their companions."""
        return [*self.get_modules_wrapper(), *self._companions]

    def _take_loaded(self, wrapper: Any) -> None:
        """Update internal state after loading a model checkpoint that includes the wrapper's tensors."""

    def _take_state(self) -> None:
        """Update internal state after the wrappers are restored; called again after the undo if it raises."""

    def _prepare(self) -> None:
        """Prepare to run, after the author's constructor is complete."""

    def _refresh(self) -> None:
        """Update the masks; called after ``compress``, ``step`` and ``update_epoch``."""

    def _refresh_early(self) -> None:
        """Handle an optimizer step before ``compress()``."""

    def _watch_optimizer(self) -> None:
        """Hook the optimizer until ``compress()``, with weak references to this compressor."""
        can_watch = self._wrappers is not None and self._backend.sees_every_step
        if self.optimizer is not None and can_watch and not self._early_handles:
            after = self._backend.after_step(self.optimizer, weakly(self._on_early_step))
            before = [
                self._backend.before_step(self.optimizer, weakly(task))
                for task in self._before_early_step()
            ]
            self._early_handles = (after, *before)

    def _before_early_step(self) -> tuple[Callable[[], None], ...]:
        """Return the methods that read gradients before ``compress()``, without changing anything."""
        return ()

    def _on_early_step(self) -> None:
        for task in self._tasks:
            task()
        self.step()
        self._refresh_early()

    def _join_optimizer(self) -> None:
        """Hook the optimizer in the way that fits the stage."""
        if self.is_wrapped:
            self._follow_optimizer()
        else:
            self._watch_optimizer()

    def _unwatch_optimizer(self) -> None:
        for handle in self._early_handles:
            handle.remove()
        self._early_handles = ()

    def _follow_optimizer(self) -> None:
        """Hook the optimizer, and add the algorithm's parameters to it."""
        self._unwatch_optimizer()
        if self.optimizer is not None and not self._step_handles:
            try:
                for handle in self._hook_optimizer():
                    self._step_handles = (*self._step_handles, handle)
            except BaseException:
                self._leave_optimizer()
                raise

    def _hook_optimizer(self) -> Iterator[Any]:
        """Yield the removable handles of what is added to the optimizer, one by one."""
        for task in (*self._tasks, self._on_step):
            yield self._backend.after_step(self.optimizer, task)
        for task in self._before_step():
            yield self._backend.before_step(self.optimizer, task)
        yield from self._backend.add_to_optimizer(self.optimizer, self.get_modules_wrapper())
        yield from self._backend.watch_join(self.bound_model)

    def _before_step(self) -> tuple[Callable[[], None], ...]:
        """Return the methods to call before each optimizer step, when gradients are complete."""
        return ()

    def _leave_optimizer(self) -> None:
        self._unwatch_optimizer()
        for handle in self._step_handles:
            handle.remove()
        self._step_handles = ()

    @then_refresh
    def _on_step(self) -> None:
        self._after_step()
        self.step()

    def _after_step(self) -> None:
        """Run the engine's work after each optimizer step, before the author's ``step()``."""

    @uncollected()
    def _wrap_model(self) -> None:
        if self.is_wrapped:
            return
        attached: list[Any] = []
        try:
            for wrapper in self._every_wrapper():
                self._backend.attach(wrapper)
                attached.append(wrapper)
        except BaseException:
            for wrapper in reversed(attached):
                self._backend.detach(wrapper)
            self._backend.announce_buffers(self.bound_model)
            raise
        self.is_wrapped = True
        self._backend.announce_buffers(self.bound_model)

    def _unwrap_model(self) -> None:
        if self.is_wrapped:
            self._backend.reshard(self.bound_model)
            self._backend.write_zeros(self._every_wrapper())
            narrow = self._backend.widen_norms(self.bound_model)
            if narrow and getattr(getattr(self, "layout", None), "is_traced", False):
                log.warning(
                    "%s: stripped while %s and %d others computed statistics over kept channels only; the "
                    "plain model uses all channels and computes different outputs. speedup(model, "
                    "example_inputs) instead of strip() preserves the trained function.",
                    type(self).__name__,
                    narrow[0],
                    len(narrow) - 1,
                )
            self._detach_all()

    def _detach_all(self) -> None:
        self._backend.widen_norms(self.bound_model)
        for wrapper in reversed(self._every_wrapper()):
            self._backend.detach(wrapper)
        self.is_wrapped = False
        self._backend.narrow_norms_again(self.bound_model)
        self._backend.announce_buffers(self.bound_model)
