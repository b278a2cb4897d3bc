"""The base of distillers: run a teacher on the student's inputs, and compare their outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo
from lilliput.config.select import Selection
from lilliput.core.projection import width_axis
from lilliput.core.projections import Projecting
from lilliput.core.state import CompressionState
from lilliput.errors import (
    ConfigError,
    Problem,
    StageError,
    StateError,
    UnsupportedModelError,
    nearest,
)
from lilliput.frameworks import backend_of
from lilliput.frameworks.features import MODEL, Run, links_of, pick
from lilliput.ops.namespace import namespace

Tensor = Any


class BaseDistiller(Projecting):
    """Compare a model in training with its teacher; an algorithm overrides :meth:`calc_loss`."""

    kind: ClassVar[str] = "distiller"
    default_types: ClassVar[frozenset[str] | None] = frozenset({MODEL})
    tracked: ClassVar[tuple[str, ...]] = ("teacher_digest",)

    teacher: Any = None
    example_inputs: Any = None
    is_alone: bool = False  # whether the distillation loss replaces the loss of a Keras model
    teacher_digest: str = ""  # identifies the teacher of a saved state
    _owns_teacher: bool = False
    _pending: Run | None = None
    _values: Mapping[str, Tensor] = {}
    _watches: tuple[Any, ...] = ()  # hooks on the student

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        teacher: Any = None,
        example_inputs: Any = None,
    ) -> None:
        if teacher is not None and teacher is model:
            raise ConfigError(
                "teacher: received the model itself, which changes as it learns; omit the teacher to use a "
                "copy, or pass another model."
            )
        if teacher is not None:
            try:
                backend_of(teacher)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"teacher: {error}") from None
        self.teacher, self.example_inputs = teacher, example_inputs
        super().__init__(model, config_list, optimizer)

    # -- methods that authors override -------------------------------------------------------------

    def calc_loss(self, student: Tensor, teacher: Tensor, wrapper: Any) -> Tensor:
        """Return the distance between a student's tensor and its teacher's, as a scalar.

        Parameters
        ----------
        student, teacher : tensor
            In float32 or wider; of equal shape if :meth:`may_project` returns True; the teacher's has no
            gradient.
        wrapper : ModuleWrapper
            Has ``config`` (the rule) and ``name``.
        """
        raise NotImplementedError(f"{type(self).__name__} must override calc_loss().")

    def may_project(self, wrapper: Any) -> bool:
        """Whether a student's tensor of another width is mapped to the teacher's by a learned matrix."""
        return True

    # -- methods for users -------------------------------------------------------------------------

    def loss(self) -> Tensor:
        """Return the distance to the teacher for the last forward pass.

        The teacher is run on the same inputs. Add the result to the loss of the task, or train with
        it alone: ``loss = criterion(model(x), y) + distiller.loss()``. Each forward pass has its own
        distance: a second one in training mode before ``loss()`` raises an error, and so does ``loss()``
        after two in eval mode with gradients.
        """
        run = self._take_run()
        self._backend.check_inputs(run)
        if self.parameters() and self._backend.is_joining(self.bound_model):
            raise StageError(
                "projections are learned from the batches of all processes, so they cannot be trained "
                "inside DistributedDataParallel.join(); give every process the same number of batches."
            )
        answers = self._ask_teacher(run)
        values = {w.name: self._compare(w, run, answers) for w in self.get_modules_wrapper()}
        weighted = [
            w.config.get("weight", 1.0) * values[w.name] for w in self.get_modules_wrapper()
        ]
        if not self._backend.is_tracing():  # otherwise they would be symbols of a graph
            self._values = {name: namespace(x).detach(x) for name, x in values.items()}
        total = weighted[0]
        for value in weighted[1:]:
            total = total + value
        return total

    @property
    def has_run(self) -> bool:
        """Whether there is a forward pass whose :meth:`loss` has not been computed."""
        return self._pending is not None

    @property
    def values(self) -> dict[str, Tensor]:
        """The terms of the last :meth:`loss`: the distance at each layer, unweighted."""
        return dict(self._values)

    def state(self) -> CompressionState:
        """Return the projections and a digest of the teacher; the teacher itself is not saved."""
        self._need_model("state()")
        self.teacher_digest = self._digest()
        return super().state()

    def _digest(self) -> str:
        """Return a digest of the teacher's weights."""
        found, tensors = hashlib.sha256(), self._backend.model_tensors(self.teacher)
        for name, tensor in sorted(tensors.items()):
            if "float" in str(tensor.dtype):
                found.update(name.encode())
                is_array = hasattr(tensor, "tobytes")
                array = tensor if is_array else namespace(tensor).to_numpy(tensor)
                found.update(array.tobytes())
        return found.hexdigest()

    # -- teacher and student --------------------------------------------------------------------------

    def _take_run(self) -> Run:
        self._need_model("loss()")
        if not self.is_wrapped:
            raise StageError(
                "loss() was called before compress() or after strip(); call compress() first."
            )
        run, self._pending = self._pending, None
        if run is None:
            raise StageError(
                "loss() found no forward pass to compare: run the model on a batch first, with gradients "
                "enabled, and call loss() once for each forward pass. The distiller expects a forward pass "
                "of its own model; if your loop calls a part of it, create the distiller for that part."
            )
        if run.is_ambiguous:
            raise StageError(
                "loss(): the model ran several times in eval mode with gradients since the last loss(), so "
                "it is unclear which forward pass to compare. Disable gradients for everything but training, "
                "as in 'with torch.no_grad(): model(x)', and call loss() after each training forward pass."
            )
        return run

    def _take_forward(self, run: Run) -> None:
        """Store a forward pass of the student until ``loss()`` is called.

        Evaluation does not replace training. In eval mode the two look the same, so of two passes neither
        is chosen.
        """
        is_in_training = self._pending is not None and self._pending.is_training
        if is_in_training and not run.is_training:
            return
        if is_in_training:
            self._pending = None
            raise StageError(
                f"{type(self).__name__}: the model ran again in training mode before loss() was called for "
                "its last forward pass. Add distiller.loss() to the loss after each forward pass; to train "
                "without the teacher, strip() the distiller; to evaluate, use model.eval() or no_grad()."
            )
        run.is_ambiguous = not (self._pending is None or run.is_training or run.may_replace)
        self._pending = run

    def _ask_teacher(self, run: Run) -> Run:
        if self._owns_teacher:
            self._backend.move_like(self.teacher, self.bound_model)
        return self._run_quietly(self.teacher, run, self._linked_names(), "teacher")

    def _run_quietly(
        self,
        model: Any,
        run: Run,
        names: list[str],
        whose: str,
        forward: Callable[[Any], Any] | None = None,
    ) -> Run:
        try:
            outputs = self._backend.outputs_of(model, names, run, forward)
        except Exception as error:
            raise ConfigError(
                f"{whose}: it does not run on the inputs of the model: "
                f"{type(error).__name__}: {error}"
            ) from error
        return Run(run.args, run.kwargs, False, outputs, result=outputs[MODEL][0])

    def _linked_names(self) -> list[str]:
        return list(dict.fromkeys(x for w in self.get_modules_wrapper() for x in links_of(w)))

    def _compare(self, wrapper: Any, run: Run, answers: Run) -> Tensor:
        """Return the distance at one layer; with several linked teacher layers, the smallest counts."""
        students = [
            self._pick(wrapper, wrapper.name, "model", output)
            for output in run.calls_of(wrapper.name, "model")
        ]
        if wrapper.name == MODEL:
            self._backend.check_result(run, students)
        found = [self._distance(wrapper, link, students, answers) for link in links_of(wrapper)]
        nearest_one = found[0]
        for other in found[1:]:
            xp = namespace(other)
            nearest_one = xp.where(other < nearest_one, other, nearest_one)
        return nearest_one

    def _pick(self, wrapper: Any, name: str, whose: str, output: Any) -> Tensor:
        """Return the part of a layer's output to compare."""
        place = f"what {name!r} of the {whose} returns"
        return pick(output, wrapper.config.get("item"), self._backend.is_tensor, place)

    def _distance(self, wrapper: Any, link: str, students: list[Tensor], answers: Run) -> Tensor:
        teachers = answers.calls_of(link, "teacher")
        if len(students) != len(teachers):
            raise StageError(
                f"layer {wrapper.name!r} was called {len(students)} times in this forward pass, "
                f"{link!r} of the teacher {len(teachers)} times; they cannot be compared."
            )
        pairs = zip(students, teachers, strict=True)
        values = [self._compare_pair(wrapper, link, one, other) for one, other in pairs]
        total = values[0]
        for value in values[1:]:
            total = total + value
        return total / len(values)

    def _compare_pair(self, wrapper: Any, link: str, student: Tensor, output: Any) -> Tensor:
        teacher = self._pick(wrapper, link, "teacher", output)
        self._backend.check_trainable(student, wrapper.name)
        xp = namespace(student)
        if 0 in tuple(xp.shape(student)) or "complex" in str(student.dtype):
            raise ConfigError(
                f"what {wrapper.name!r} of the model returns has shape {tuple(xp.shape(student))} and type "
                f"{student.dtype}; expected real numbers, and at least one."
            )
        wide = xp.widen(student)
        teacher = xp.to_float(xp.widen(teacher), like=wide)
        axis = self._width_axis(wrapper, link, wide, teacher)
        if axis is not None:
            wide = self._projected(wrapper, link, wide, teacher, axis)
        return self.calc_loss(wide, teacher, wrapper)

    def _width_axis(self, wrapper: Any, link: str, student: Tensor, teacher: Tensor) -> int | None:
        if not self.may_project(wrapper):
            return None
        xp = namespace(student)
        one, other = tuple(xp.shape(student)), tuple(xp.shape(teacher))
        if one == other:
            return None
        channels = self._channel_axis(wrapper, len(one))
        return width_axis(
            one, other, channels, f"layer {wrapper.name!r} and {link!r} of the teacher"
        )

    def _channel_axis(self, wrapper: Any, rank: int) -> int | None:
        """Return the axis of channels of a layer's output; None if it is ambiguous."""
        module = wrapper.layer_info.module
        axis: int | None = self._backend.channel_axis(self.bound_model, module, rank)
        return axis

    # -- internals ---------------------------------------------------------------------------------

    def _find_layers(self) -> list[LayerInfo]:
        """Return the whole model and each of its modules, all of which have an output."""
        return list(self._backend.modules(self.bound_model))

    def _can_wrap(self, layer: LayerInfo) -> bool:
        """Whether there is anything to compare: everything that is called has an output."""
        return True

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem for each layer that is never called, and each link without a teacher layer."""
        problems = []
        teacher = self.bound_model if self.teacher is None else self.teacher
        names = {name for layer in self._backend.modules(teacher) for name in layer.names}
        for decision in selection.decisions:
            if not decision.is_chosen:
                continue
            layer, place = decision.layer, f"rule {decision.rule}"
            if layer.is_bypassed:
                text = f"layer {layer.name!r} is computed by its parent without being called."
                problems.append(Problem(place, text))
            for link in layer.config.get("link") or [layer.name]:
                if link not in names:
                    text = f"the teacher has no layer {link!r}.{nearest(link, names)}"
                    problems.append(Problem(f"{place} → link", text))
        return list(dict.fromkeys(problems))

    def _bind(self) -> None:
        super()._bind()
        if self.teacher is None:
            self.teacher, self._owns_teacher = self._backend.frozen_copy(self.bound_model), True
        shared = self._backend.shared_with(self.teacher, self.bound_model)
        if shared is not None:
            raise ConfigError(
                f"teacher: it shares {shared!r} with the model, so it would change when the model is "
                "trained, pruned or quantized (even if it is frozen: masks and running statistics change); "
                "pass a copy: teacher=copy.deepcopy(teacher)."
            )
        self._check_processes()

    def _check_processes(self) -> None:
        """Raise if the teacher differs between training processes."""
        if self._backend.processes() == 1:
            return
        number = float(int(self._digest()[:12], 16))
        low, high = (float(self._backend.reduce([number], how)[0]) for how in ("min", "max"))
        if low != high:
            raise StageError(
                "teacher: its weights differ between the processes. Load the same weights in all of them "
                "before creating the distiller, or create it after DistributedDataParallel has broadcast "
                "them."
            )

    def _wrap_model(self) -> None:
        if self.is_wrapped:
            return
        watches = self._backend.record(
            self.bound_model, self.get_modules_wrapper(), self._take_forward
        )
        self._watches, self.is_wrapped = tuple(watches), True
        try:
            if self.example_inputs is not None:
                self._probe()
            self._train_projections()  # of a state loaded before
        except BaseException:
            self._detach_all()
            raise
        self._backend.announce_buffers(self.bound_model)

    def _probe(self) -> None:
        """Run both models once to create the required projections."""
        args, kwargs = self._backend.as_arguments(self.example_inputs)
        run = Run(args, kwargs, False)
        names = [wrapper.name for wrapper in self.get_modules_wrapper()]
        student = self._run_quietly(self.bound_model, run, names, "example_inputs")
        answers = self._ask_teacher(run)
        self._is_probing = True
        try:
            with self._backend.no_grad():
                for wrapper in self.get_modules_wrapper():
                    self._compare(wrapper, student, answers)
        finally:
            self._is_probing = False

    def _unwrap_model(self) -> None:
        self._detach_all()

    def _detach_all(self) -> None:
        for handle in (*self._watches, *self._exchanges):
            handle.remove()
        self._watches = self._exchanges = ()
        self._pending, self.is_wrapped = None, False
        self._backend.announce_buffers(self.bound_model)

    def _take_state(self) -> None:
        """Raise for a state of another teacher, and continue to train its projections."""
        if self.teacher_digest and self.teacher_digest != self._digest():
            raise StateError(
                "the state was saved with another teacher. The teacher is the model before compression: "
                "create the distiller with the original weights, and load the trained ones afterwards."
            )
        self._train_projections()
