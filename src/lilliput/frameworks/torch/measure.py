"""Parameters, size and costs of a torch model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.frameworks.torch.copies import shared_copy
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.example_inputs import as_inputs, fresh
from lilliput.frameworks.torch.modes import evaluating
from lilliput.frameworks.torch.sidecar import SIDECAR, is_computed, is_ours
from lilliput.frameworks.torch.snapshot import examples_in, watch
from lilliput.frameworks.torch.weights import whole


class MeasuredTorch:
    """Counts and calls torch modules."""

    def counts(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""
        return {
            **self.stored(model),
            "macs": count_macs(model, inputs) // self.batch(model, inputs),
        }

    def stored(self, model: nn.Module) -> dict[str, int]:
        """Return parameters, nonzeros and bytes."""
        return count_stored(model)

    def untouched(self, model: nn.Module) -> nn.Module:
        """Return a copy that shares its parameters, in eval mode."""
        twin = shared_copy(unwrapped(model))
        twin.eval()  # a user's own train() may return nothing
        return twin

    def fresh(self, inputs: Any) -> Any:
        """Return copies of tensors."""
        return fresh(inputs)

    def caller(self, model: nn.Module, inputs: Any) -> Callable[[], Any]:
        """Return a function that runs the model once."""
        args, kwargs = as_inputs(inputs)

        def call() -> Any:
            with evaluating(model), torch.no_grad():
                result = model(*args, **kwargs)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                return result

        return call

    def runtime(self) -> str:
        """Return the name of the framework and its threads."""
        version = torch.__version__.partition("+")[0]
        return f"PyTorch {version}, {_threads(torch.get_num_threads())}"

    def batch(self, model: nn.Module, inputs: Any) -> int:
        """Return the number of examples in the inputs."""
        return examples_in(unwrapped(model), inputs) or 1


def count_stored(model: nn.Module) -> dict[str, int]:
    """Return the number of parameters, of nonzero ones, and the bytes of the saved model.

    Tensors of compressors are excluded, because a saved model is a plain one.
    """
    plain = unwrapped(model)
    parameters = [_computed(plain, k, x) for k, x in plain.named_parameters() if not is_ours(k)]
    saved = [
        x for name, x in plain.state_dict().items() if not is_ours(name) and isinstance(x, Tensor)
    ]
    state = {(x.data_ptr(), x.shape): x for x in saved}  # tied ones are stored once
    return {
        "parameters": sum(x.numel() for x in parameters),
        "nonzeros": sum(int(torch.count_nonzero(x.detach())) for x in parameters),
        "bytes": sum(x.numel() * x.element_size() for x in state.values()),
    }


def _computed(model: nn.Module, name: str, parameter: nn.Parameter) -> Tensor:
    """Return a parameter, or the value that a pruner computes from it."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if not is_computed(module, leaf):
        return parameter
    with torch.no_grad():
        return module._modules[SIDECAR].pruned(leaf, whole(parameter))  # type: ignore[union-attr,operator,no-any-return]


def count_macs(model: nn.Module, inputs: Any) -> int:
    """Return the multiplications of one forward pass, including those of recurrent layers.

    Examples
    --------
    >>> count_macs(nn.LSTM(3, 4), torch.zeros(5, 2, 3))
    1120
    """
    return sum(work.macs for work in watch(model, inputs, timing=False)[1].values())


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


measured = MeasuredTorch()
