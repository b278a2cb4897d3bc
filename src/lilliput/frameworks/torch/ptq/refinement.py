"""One refinement of a model under a quantizer: the batches, the model's trace, and the changes made."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lilliput.errors import StageError, UnsupportedModelError
from lilliput.frameworks.torch.discover import unwrapped
from lilliput.frameworks.torch.process_group import processes
from lilliput.frameworks.torch.ptq import adaround, bias_correction, equalize, smooth
from lilliput.frameworks.torch.ptq.changes import Changes
from lilliput.frameworks.torch.ptq.equalize import Pair
from lilliput.frameworks.torch.ptq.trace import PlainLayer, Trace, in_float, record
from lilliput.frameworks.torch.ptq.watch import See, watch
from lilliput.graph.flow import Flow
from lilliput.progress import track

log = logging.getLogger("lilliput")

_WITH_CHANNELS = (nn.Linear, nn.modules.conv._ConvNd)


class Refinement:
    """Changes the parameters of a model to reduce its quantization error.

    Call the steps in the order in which they are defined here; :meth:`undo` reverts all of
    them.
    """

    def __init__(
        self,
        quantizer: Any,
        batches: Sequence[Any],
        forward: Callable[..., Any] | None,
        flow: Callable[[], Flow],
    ) -> None:
        _expect_one_process()
        _expect_own_memory(quantizer.get_modules_wrapper())
        self.quantizer, self.model = quantizer, quantizer.bound_model
        self.batches, self.forward = batches, forward
        self.changes = Changes()
        self.trace: Trace = record(unwrapped(self.model), flow)
        self.wrappers = [w for w in quantizer.get_modules_wrapper() if "weight" in w.roles]
        self.layers = self.trace.plain_layers(self.wrappers)
        self.means: dict[str, bias_correction.ChannelMean] = {}
        self._floats: dict[nn.Parameter, Tensor] = {}

    def equalize(self) -> None:
        """Give the channels between layers equal ranges of weights."""
        pairs = equalize.find_pairs(self.trace, self.layers)
        _tell("equalize", "pairs of layers", [pair.first.path for pair in pairs])
        if pairs:
            equalize.equalize(pairs, self.changes, self._highest(pairs))

    def _highest(self, pairs: Sequence[Pair]) -> dict[nn.Module, Tensor]:
        """Return the largest value of each channel before a clip, and log how many may be rescaled."""
        clipped = [pair for pair in pairs if not math.isinf(pair.limit)]
        seen = {
            pair.maker: equalize.Highest(pair.first.wrapper.layer_info.channel_axis)
            for pair in clipped
        }
        if not clipped:
            return {}
        self._watch_float({module: one.see for module, one in seen.items()})
        found = {module: one.value for module, one in seen.items() if one.value is not None}
        moves = [equalize.is_clear(pair, found[pair.maker]) for pair in clipped]
        log.info(
            "equalize: clips such as ReLU6 are in %d of them; %d of their %d channels stay below the "
            "clip on the calibration batches and were rescaled, the others are unchanged",
            len(clipped),
            sum(int(x.sum()) for x in moves),
            sum(x.numel() for x in moves),
        )
        return found

    def smooth(self, alpha: float) -> None:
        """Move outliers of activations after norms into the weights that read them."""
        groups = {group.norm: group for group in smooth.find_groups(self.trace, self.layers)}
        largest = {norm: smooth.Largest() for norm in groups}
        self._watch_float({norm: seen.see for norm, seen in largest.items()})
        _tell("smooth", "norms", [group.readers[0].path for group in groups.values()])
        for norm, group in groups.items():
            smooth.smooth(group, largest[norm].value, alpha, self.changes)

    def note_means(self) -> None:
        """Record the mean output of each layer in float, for :meth:`correct_biases`."""
        watchers: dict[nn.Module, See] = {}
        for wrapper in self._shifted():
            mean = bias_correction.ChannelMean(wrapper.layer_info.channel_axis)
            self.means[wrapper.name] = mean
            watchers[wrapper.module] = mean.see
        self._watch_float(watchers)

    def round(self, options: dict[str, Any], progress: bool) -> None:
        """Choose which weights to round up and which down."""
        settings = adaround.Settings(**options)
        left = {w.name for w in self.wrappers} - {layer.wrapper.name for layer in self.layers}
        if left:
            log.info("adaround: rounded to nearest, since not a plain layer: %s", sorted(left))
        for layer in track(self.layers, "rounding", progress):
            qparams, factor = self.quantizer.weight_rounding(layer.wrapper)
            weight = self.quantizer._backend.masked_weight(layer.wrapper)
            rounding = adaround.Rounding(weight, qparams, factor)
            samples = self._samples(layer, settings)
            bias = None if layer.bias is None else layer.bias.detach().float()
            rounded = adaround.learn(rounding, samples, bias, settings)
            self._floats[layer.weight] = layer.weight.detach().clone()
            self.changes.write(layer.weight, rounded)

    def correct_biases(self, progress: bool, is_quick: bool = False) -> None:
        """Give the outputs of layers the mean that they have in float."""
        norms = {x.wrapper.name: self.trace.norm_after(x) for x in self.trace.called(self.wrappers)}
        found, skipped = {}, []
        for wrapper in self._shifted():
            bias = bias_correction.find_bias(wrapper, norms.get(wrapper.name), self.trace)
            if bias is None:
                skipped.append(wrapper.name)
                continue
            axis, wanted = wrapper.layer_info.channel_axis, self.means[wrapper.name]
            found[wrapper] = (bias, bias_correction.CorrectedMean(axis, wanted))
        if is_quick and found:
            self._watch({wrapper.module: mean.correct for wrapper, (_, mean) in found.items()})
        for wrapper, (bias, mean) in track(found.items(), "correcting", progress):
            if not is_quick:
                paths = wrapper.layer_info.owners[0].paths
                is_called_once = self.trace.flow.only_call(paths) is not None
                self._watch({wrapper.module: mean.see}, is_last=is_called_once)
            bias_correction.shift(bias, mean.wanted.value - mean.value, self.changes)
        if skipped:
            log.info("bias_correction: without a bias, and no batch norm after it: %s", skipped)

    def finish(self) -> None:
        """Release the batches."""
        self.changes.seal()
        self.batches, self.layers, self.means, self._floats = (), [], {}, {}

    def undo(self) -> bool:
        """Restore every parameter; False if other code has changed one since."""
        is_intact = self.changes.is_intact()
        if is_intact:
            self.changes.undo()
        return is_intact

    # -- running the model ---------------------------------------------------------------------------

    def _shifted(self) -> list[Any]:
        """Return the layers whose mean output is corrected, in the order of calls."""
        first = {call.path: i for i, call in reversed([*enumerate(self.trace.flow.calls)])}
        order = {}
        for wrapper in self.quantizer.get_modules_wrapper():
            owners = wrapper.layer_info.owners
            calls = [first[path] for path in owners[0].paths if path in first]
            if calls and len(owners) == 1 and isinstance(wrapper.module, _WITH_CHANNELS):
                order[wrapper] = min(calls)
        return sorted(order, key=lambda wrapper: order[wrapper])

    def _samples(self, layer: PlainLayer, settings: adaround.Settings) -> adaround.Samples:
        """Return the input of a layer when quantized, and its output in float."""
        width = layer.weight[0].numel() * layer.groups
        total = min(settings.positions, adaround.LARGEST // width)
        count = max(-(-total // len(self.batches)), 1)
        inputs, wanted = [], []

        def see_quantized(batch: int, seen: Tensor, output: Tensor) -> None:
            picked = adaround.pick(layer, output, count, seed=batch)
            inputs.append(adaround.input_rows(layer, seen, picked))

        def see_float(batch: int, seen: Tensor, output: Tensor) -> None:
            picked = adaround.pick(layer, output, count, seed=batch)
            wanted.append(adaround.output_rows(layer, output, picked))

        self._watch({layer.module: see_quantized}, is_last=True)
        self._watch_float({layer.module: see_float}, is_last=True)
        norm = self.trace.norm_after(layer)
        finish = adaround.Finish(norm and norm.module, self.trace.has_relu(layer))
        return adaround.Samples(torch.cat(inputs), finish(torch.cat(wanted)), finish)

    def _watch(self, watchers: Mapping[nn.Module, See], is_last: bool = False) -> None:
        watch(self.model, self.batches, self.forward, watchers, is_last)

    def _watch_float(self, watchers: Mapping[nn.Module, See], is_last: bool = False) -> None:
        self._swap()
        try:
            with in_float(self.model):
                self._watch(watchers, is_last)
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange rounded weights for those in float, or back."""
        for parameter, other in self._floats.items():
            self._floats[parameter], parameter.data = parameter.data, other


def _expect_one_process() -> None:
    if processes() > 1:
        raise StageError(
            "equalize, smooth, adaround and bias_correction run in one process; calibrate there, and "
            "load the model's state dict and the quantizer's state() in the others."
        )


def _expect_own_memory(wrappers: Sequence[Any]) -> None:
    for wrapper in wrappers:
        for weight in (wrapper.weight, wrapper.bias):
            if weight is not None and weight.numel() > 1 and 0 in weight.stride():
                raise UnsupportedModelError(
                    f"layer {wrapper.name!r} ({wrapper.type}) has an expanded weight, whose entries share "
                    "memory, so that calibration cannot change them one by one; clone() it."
                )


def _tell(option: str, what: str, names: list[str]) -> None:
    if names:
        log.info("%s: %d %s, the first at %r", option, len(names), what, names[0])
    else:
        log.warning("%s: this model has no %s where it applies; nothing was changed.", option, what)
