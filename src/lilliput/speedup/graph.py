"""A captured graph as a module: for code whose sizes cannot be set from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from lilliput.errors import StateError, UnsupportedModelError
from lilliput.speedup.analysis import Analysis, analyse, analyse_part
from lilliput.speedup.capture import quiet
from lilliput.speedup.cuts import Cut, apply_cuts
from lilliput.speedup.removal import removal_of
from lilliput.speedup.rewrite import argument, find_edits, rewrite
from lilliput.speedup.walk import op_name

_TRAINING = {
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout"), "train"),
    **dict.fromkeys(("batch_norm", "cudnn_batch_norm"), "training"),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), "train"),
    "instance_norm": "use_input_stats",
}


class CapturedModule(fx.GraphModule):
    """Runs a captured graph; dropout and batch norms follow its mode, as usual.

    Parameters have the names they had. Where the code it was captured from depends on them, sizes of
    inputs are fixed to those of the example inputs. Code that looks at its mode itself (stochastic
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
            "a captured graph cannot be pickled; write it by save(folder) of the SpeedupResult, or keep "
            "its state_dict()."
        )

    def __deepcopy__(self, memo: Any) -> Any:
        with quiet():  # torch copies classes that it deprecates
            return super().__deepcopy__(memo)


def capture_whole(
    plain: nn.Module, cuts: tuple[Cut, ...], example_inputs: Any, any_size: bool
) -> CapturedModule:
    """Return a model as a captured graph with its channels cut."""
    return _cut_graph(analyse(plain, example_inputs, any_size), cuts)


def capture_part(
    plain: nn.Module, path: str, cuts: tuple[Cut, ...], example_inputs: Any, any_size: bool
) -> CapturedModule:
    """Return one module of a model as a captured graph with its channels cut."""
    args, kwargs = _record_call(plain, path, example_inputs)
    prefix = f"{path}."
    own = tuple(
        Cut(cut.tensor.removeprefix(prefix), cut.dim, cut.keep)
        for cut in cuts
        if cut.tensor.startswith(prefix)
    )
    part = plain.get_submodule(path)
    return _cut_graph(analyse_part(part, args, kwargs, any_size), own)


def _cut_graph(analysis: Analysis, cuts: tuple[Cut, ...]) -> CapturedModule:
    rewrite(find_edits(analysis, removal_of(analysis, cuts)))
    module = analysis.captured.module
    apply_cuts(module, cuts)
    for node in module.graph.nodes:  # norms without running statistics are so in evaluation too
        name = _TRAINING.get(op_name(node)) if node.op == "call_function" else None
        node.meta["always_training"] = name is not None and argument(node, name, False)
    return CapturedModule(module, module.graph, type(module).__name__).eval()


def _record_call(model: nn.Module, path: str, example_inputs: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return what a module is called with when the model runs."""
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
            f"{path} is called {len(calls)} times; only once can be captured."
        )
    return calls[0]


def _set_argument(node: fx.Node, name: str, value: bool) -> None:
    names = [x.name for x in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index(name)
    if at < len(node.args):
        node.args = (*node.args[:at], value, *node.args[at + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: value}
