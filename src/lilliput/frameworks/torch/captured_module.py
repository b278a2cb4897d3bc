"""A captured graph as a module, for code whose sizes cannot be set from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from lilliput.errors import StateError, UnsupportedModelError
from lilliput.frameworks.torch.capture import Exported, capture, quiet
from lilliput.frameworks.torch.cutting import apply_cuts
from lilliput.frameworks.torch.example_inputs import as_inputs
from lilliput.frameworks.torch.graph import to_graph
from lilliput.frameworks.torch.input_check import InputCheck, input_check_of
from lilliput.frameworks.torch.nodes import op_name
from lilliput.frameworks.torch.rewrite import argument, find_edits, rewrite
from lilliput.graph.analysis import Analysis, analyse
from lilliput.graph.cuts import Cut
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
    check = input_check_of(exported, analysis, removed)
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
