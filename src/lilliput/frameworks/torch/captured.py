"""A captured graph as a module, for code whose sizes cannot be set from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from lilliput.errors import StageError, StateError, UnsupportedModelError
from lilliput.frameworks.torch.capture import Exported, as_inputs, capture, quiet
from lilliput.frameworks.torch.cutting import apply_cuts
from lilliput.frameworks.torch.graph import to_graph
from lilliput.frameworks.torch.nodes import op_name
from lilliput.frameworks.torch.rewrite import argument, find_edits, rewrite
from lilliput.graph.analysis import Analysis, analyse
from lilliput.graph.cuts import Cut
from lilliput.graph.labels import Flags
from lilliput.graph.removal import removal_of

_TRAINING = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), "train"),
    **dict.fromkeys(("batch_norm", "cudnn_batch_norm"), "training"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "train"),
    "instance_norm": "use_input_stats",
}


class CapturedModule(fx.GraphModule):
    """Runs a captured graph; dropout and batch norms follow its mode, as usual.

    Parameters keep their names. Where the captured code depends on them, sizes of
    inputs are fixed to those of the example inputs. Code that reads its mode itself (stochastic
    depth, dropout within fused attention) runs as in evaluation.
    """

    def train(self, mode: bool = True) -> Any:
        """Switch between training and evaluation."""
        super().train(mode)
        for node in self.graph.nodes:
            name = _TRAINING.get(op_name(node)) if node.op == "call_function" else None
            if name is not None and not node.meta.get("always_training"):
                _set_argument(node, name, mode)
        self.recompile()
        return self

    def __reduce__(self) -> Any:
        raise StateError(
            "a captured graph cannot be pickled; save it with save(folder) of the SpeedupResult, or save "
            "its state_dict()."
        )

    def __deepcopy__(self, memo: Any) -> Any:
        with quiet():  # torch copies classes that it deprecates
            twin: Any = super().__deepcopy__(memo)
        twin.check_inputs(self.input_check)  # torch does not copy hooks,
        held = dict(self.named_modules())
        for path, module in twin.named_modules():  # nor which buffers are not saved
            unsaved = held[path]._non_persistent_buffers_set
            module._non_persistent_buffers_set |= unsaved & module._buffers.keys()
        return twin

    def check_inputs(self, check: InputCheck) -> None:
        """Raise for inputs for which the captured code might behave differently."""
        self.input_check = check
        self.register_forward_pre_hook(check, with_kwargs=True)


def capture_whole(
    plain: nn.Module, cuts: tuple[Cut, ...], example_inputs: Any, any_size: bool
) -> CapturedModule:
    """Return a model as a captured graph with its channels cut."""
    captured = capture(plain, *as_inputs(example_inputs), any_size)
    return _cut_graph(captured, analyse(to_graph(captured)), cuts)


def capture_part(
    plain: nn.Module, path: str, cuts: tuple[Cut, ...], example_inputs: Any, any_size: bool
) -> CapturedModule:
    """Return one module of a model as a captured graph with its channels cut."""
    args, kwargs = _record_call(plain, path, example_inputs)
    prefix = f"{path}."
    own = tuple(cut.within(prefix) for cut in cuts if cut.tensor.startswith(prefix))
    part = plain.get_submodule(path)
    captured = capture(part, args, kwargs, any_size)
    return _cut_graph(captured, analyse(to_graph(captured), is_part=True), own)


def _cut_graph(exported: Exported, analysis: Analysis, cuts: tuple[Cut, ...]) -> CapturedModule:
    removed = removal_of(analysis, cuts)
    check = _input_check(exported, analysis, removed)
    rewrite(find_edits(analysis, removed))
    module = exported.module
    apply_cuts(module, cuts)
    module.graph.eliminate_dead_code()  # only the model's own code had to run it
    for node in module.graph.nodes:  # norms without running statistics
        name = _TRAINING.get(op_name(node)) if node.op == "call_function" else None
        node.meta["always_training"] = name is not None and argument(node, name, False)
    captured = CapturedModule(module, module.graph, type(module).__name__).eval()
    captured.check_inputs(check)
    return captured


@dataclass(frozen=True)
class InputCheck:
    """A hook that raises for inputs for which the captured code might behave differently.

    Parameters
    ----------
    structure : object
        The nesting of the example inputs.
    leaves : tuple
        For each of them its value, or the smallest and largest size of each dimension.
    """

    structure: Any
    leaves: tuple[Any, ...]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Raise unless every argument is one that the graph was captured for."""
        leaves, structure = tree_flatten((args, kwargs))
        if structure != self.structure:
            raise StageError(
                "this part of the model runs as a graph that was captured from a call with different "
                "arguments; shrink the model with realistic example inputs."
            )
        for received, expected in zip(leaves, self.leaves, strict=True):
            if not isinstance(expected, Sizes):
                fits = type(received) is type(expected) and received == expected
            else:
                sizes = getattr(received, "shape", ())
                fits = len(sizes) == len(expected.bounds) and all(
                    low <= n <= high for n, (low, high) in zip(sizes, expected.bounds, strict=True)
                )
            if not fits:
                shown = tuple(received.shape) if isinstance(received, Tensor) else received
                raise StageError(
                    f"this part of the model runs as a graph, captured for {expected}, and received "
                    f"{shown}; shrink the model with realistic example inputs."
                )


@dataclass(frozen=True)
class Sizes:
    """The smallest and largest size of each dimension of a tensor."""

    bounds: tuple[tuple[int, float], ...]

    def __str__(self) -> str:
        sizes = [str(low) if low == high else f"{low} to {high}" for low, high in self.bounds]
        return f"a tensor of sizes ({', '.join(sizes)})"


def _input_check(exported: Exported, analysis: Analysis, removed: Flags) -> InputCheck:
    """Return the check that a graph's inputs are like those it was captured for."""
    leaves, structure = tree_flatten(exported.call)
    nodes = [n for n in exported.graph.nodes if n.op == "placeholder"]
    values = (analysis.walk.value(tensor) for tensor in analysis.graph.inputs)
    found: list[Any] = []
    for node, leaf in zip(nodes, leaves, strict=True):
        value = next(values) if isinstance(node.meta.get("val"), Tensor) else None
        if not isinstance(leaf, Tensor) or value is None:
            found.append(leaf)
            continue
        bounds: list[tuple[int, float]] = []
        for d, size in enumerate(node.meta["val"].shape):
            kept = int(analysis.kept(value, d, removed).sum())
            is_open = isinstance(size, torch.SymInt) and not size.node.expr.is_number
            limits = exported.ranges.get(size.node.expr) if is_open else None
            if limits is None:
                bounds.append((kept, kept))
            else:
                # torch reports "from 2" for every dynamic size, and means any
                low = int(limits.lower)
                bounds.append((low if low > 2 else 1, float(limits.upper)))
        found.append(Sizes(tuple(bounds)))
    return InputCheck(structure, tuple(found))


def _record_call(model: nn.Module, path: str, example_inputs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the arguments of a module when the model runs."""
    calls: list[tuple[Any, Any]] = []
    module = model.get_submodule(path)
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True
    )
    args, kwargs = example_inputs
    try:
        with quiet(), torch.no_grad():
            model(*args, **kwargs)
    finally:
        handle.remove()
    if len(calls) != 1:
        raise UnsupportedModelError(
            f"{path} is called {len(calls)} times; only a module that is called once can be captured."
        )
    return calls[0]


def _set_argument(node: fx.Node, name: str, value: bool) -> None:
    names = [x.name for x in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index(name)
    if at < len(node.args):
        node.args = (*node.args[:at], value, *node.args[at + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: value}
