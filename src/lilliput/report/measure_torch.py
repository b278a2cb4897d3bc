"""What a torch model holds and costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lilliput.backends.torch.discover import unwrapped
from lilliput.speedup.capture import as_inputs


class MeasuredTorch:
    """How torch modules are counted and called."""

    def counts(self, model: nn.Module, inputs: Any) -> dict[str, Any]:
        """Return parameters, nonzeros, macs and bytes."""
        return {**count_stored(model), "macs": count_macs(model, inputs) // self.batch(inputs)}

    def caller(self, model: nn.Module, inputs: Any) -> Callable[[], Any]:
        """Return a function that runs the model once."""
        args, kwargs = as_inputs(inputs)

        def call() -> Any:
            with evaluating(model), torch.inference_mode():
                result = model(*args, **kwargs)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                return result

        return call

    def runtime(self) -> str:
        """Return the name of the framework and its threads."""
        version = torch.__version__.partition("+")[0]
        return f"PyTorch {version}, {_threads(torch.get_num_threads())}"

    def batch(self, inputs: Any) -> int:
        """Return how many examples the inputs hold."""
        args, kwargs = as_inputs(inputs)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim()]
        return max(len(tensors[0]), 1) if tensors else 1


def count_stored(model: nn.Module) -> dict[str, int]:
    """Return parameters, those that are not zero, and bytes of all that is saved."""
    plain = unwrapped(model)
    parameters = list(plain.parameters())
    saved = [x for x in plain.state_dict().values() if isinstance(x, Tensor)]
    state = {(x.data_ptr(), x.shape): x for x in saved}  # tied ones are stored once
    return {
        "parameters": sum(x.numel() for x in parameters),
        "nonzeros": sum(int(torch.count_nonzero(x.detach())) for x in parameters),
        "bytes": sum(x.numel() * x.element_size() for x in state.values()),
    }


def count_macs(model: nn.Module, inputs: Any) -> int:
    """Return the multiplications of one forward, those of recurrent layers included.

    Examples
    --------
    >>> count_macs(nn.LSTM(3, 4), torch.zeros(5, 2, 3))
    1120
    """
    args, kwargs = as_inputs(inputs)
    counter, missed, started = FlopCounterMode(display=False), [0], [0]

    def begin(module: nn.RNNBase, received: Any) -> None:
        started[0] = counter.get_total_flops()

    def end(module: nn.RNNBase, received: Any, output: Any) -> None:
        x = (
            received[0].data
            if isinstance(received[0], nn.utils.rnn.PackedSequence)
            else received[0]
        )
        steps = x.numel() // x.shape[-1]
        own = steps * sum(w.numel() for w in module.parameters() if w.dim() == 2)
        missed[0] += own - (counter.get_total_flops() - started[0]) // 2

    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    hooks = [layer.register_forward_pre_hook(begin) for layer in layers]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused kernels are not counted
    try:
        with evaluating(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops()) // 2 + missed[0]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and every module back into its own afterwards."""
    modes = [(module, module.training) for module in model.modules() if module.training]
    if modes:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


measured = MeasuredTorch()
