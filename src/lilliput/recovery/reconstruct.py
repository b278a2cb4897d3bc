"""Refit the layers of a pruned model by least squares, so that it computes the same as before.

One layer after the other, in the order in which they run, is fitted to the output of the original
model there, from the inputs in the pruned model: the remaining channels replace a removed one as far
as possible, and the bias replaces its mean.

He et al., "Channel pruning for accelerating very deep neural networks", 2017, and Luo et al., "ThiNet",
2017, do so for the layer after a pruned one. Here every layer after a change takes part, and a layer
that is added to a shortcut also compensates for the loss of the shortcut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks import backend_of, part_for


@dataclass(frozen=True)
class Reconstruction:
    """The result for each layer; ``print`` shows it.

    Attributes
    ----------
    errors : dict
        For each refitted layer, its squared error before and after, relative to the variance of
        the original's output there.
    left : dict
        Layers after a change that were not refitted, and why.
    """

    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        width = max([len(name) for name in self.errors], default=0)
        lines = [f"{len(self.errors)} layers refitted; their error relative to the original:"]
        lines += [f"  {x:<{width}}  {a:8.4f} → {b:.4f}" for x, (a, b) in self.errors.items()]
        return "\n".join(lines + [f"  {x}: left, {why}" for x, why in self.left.items()])


def reconstruct(
    model: Any,
    batches: Iterable[Any],
    teacher: Any,
    *,
    ridge: float = 1e-3,
    progress: bool = True,
) -> Reconstruction:
    """Refit the layers of a pruned model to the outputs of the original one, without training.

    Call it after ``compress()`` and before ``speedup()``: the masked model and the cut one
    stay equal. Masked weights stay zero.

    Parameters
    ----------
    model : torch.nn.Module
        The pruned model with masked channels; changed in place.
    batches : iterable
        A few hundred examples without labels, like those the model will see. The model is called with a
        tensor or dict, and with the inputs of a tuple ``(inputs, targets)``.
    teacher : torch.nn.Module
        The model before pruning: ``copy.deepcopy(model)``.
    ridge : float
        The penalty on changing a weight, relative to the mean energy of its layer's inputs; it is
        increased where a layer sees few examples, as the last one does.
    progress : bool
        Whether to show progress.

    Returns
    -------
    Reconstruction
        The error of each layer before and after.

    Examples
    --------
    >>> import copy, torch
    >>> from lilliput.torch import L1NormPruner
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> teacher, x = copy.deepcopy(model), torch.randn(64, 4)
    >>> rule = {"op_names": ["0"], "sparsity": 0.5}
    >>> model = L1NormPruner(model, [rule], example_inputs=x).compress()
    >>> before = (model(x) - teacher(x)).square().mean()
    >>> result = reconstruct(model, [x], teacher, progress=False)
    >>> bool((model(x) - teacher(x)).square().mean() < before)
    True
    """
    if backend_of(model).name != "torch":
        raise UnsupportedModelError(
            "reconstruct works on torch models only; recalibrate or fine-tune a Keras model."
        )
    errors, left = part_for(model, "reconstruct").refit(model, batches, teacher, ridge, progress)
    return Reconstruction(errors, left)
