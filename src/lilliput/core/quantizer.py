"""The base of all quantizers: quantize weight, input and output of layers in each forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lilliput.config.layer import LayerInfo, QuantType
from lilliput.config.select import Selection
from lilliput.config.spec import QuantRule, Rule
from lilliput.core.compressor import Compressor
from lilliput.core.hooks import Call, plan_call
from lilliput.errors import AlgorithmError, Problem
from lilliput.ops.grad import QuantGrad, gradient_rule
from lilliput.ops.qparams import QParams

_METHODS = {
    QuantType.WEIGHT: "quantize_weight",
    QuantType.INPUT: "quantize_input",
    QuantType.OUTPUT: "quantize_output",
}


class Quantizer(Compressor):
    """Simulate low precision in training; an algorithm overrides ``quantize_weight`` and similar.

    The float weight continues to be trained; ``quant_grad`` defines the gradient of the quantizer.

    Examples
    --------
    >>> import torch
    >>> class Halves(Quantizer):
    ...     def quantize_weight(self, weight, config, **kwargs):
    ...         return (weight * 2).round() / 2
    >>> model = Halves(torch.nn.Linear(2, 2), [{"op_types": ["Linear"]}]).compress()
    >>> bool((model.weight * 2 == (model.weight * 2).round()).all())
    True
    """

    kind: ClassVar[str] = "quantizer"
    rule: ClassVar[type[Rule]] = QuantRule
    # Whether zero is quantized to exactly zero. Otherwise masks are applied again afterwards.
    keeps_zero: ClassVar[bool] = False
    _needs_dense_gradient: ClassVar[bool] = False  # sparse gradients of embeddings are not enough
    # What the conformance battery may expect: at most 2**bits different weights in a layer.
    counts_levels: ClassVar[bool] = True

    quant_grad: Any = QuantGrad
    _calls: dict[QuantType, Call] | None = None
    _gradient: type[QuantGrad] | None = QuantGrad

    def quantize_weight(self, weight: Any, wrapper: Any, **kwargs: Any) -> Any:
        """Return the weight that the layer uses.

        Parameters
        ----------
        weight : tensor
            The float weight, with masks applied.
        wrapper : QuantizerModuleWrapper
            The layer's wrapper. Name the parameter ``config`` to get the rule instead.
        """
        raise NotImplementedError(f"{type(self).__name__} must override quantize_weight().")

    def quantize_output(self, output: Any, wrapper: Any, **kwargs: Any) -> Any:
        """Return the output that the next layer receives."""
        raise NotImplementedError(f"{type(self).__name__} must override quantize_output().")

    def quantize_input(self, *inputs: Any, wrapper: Any, **kwargs: Any) -> Any:
        """Return the inputs that the layer uses."""
        raise NotImplementedError(f"{type(self).__name__} must override quantize_input().")

    def targets_of(self, layer: LayerInfo) -> list[str]:
        """Return which tensors of a layer its rule quantizes."""
        given = layer.config.get("quant_types")
        return list(given) if given else self.default_targets(layer)

    def default_targets(self, layer: LayerInfo) -> list[str]:
        """Return the tensors to quantize if a rule does not specify them."""
        bits = layer.config.get("quant_bits")
        return list(bits) if isinstance(bits, Mapping) else ["weight"]

    def qparams(self, wrapper: Any, quant_type: QuantType) -> QParams | None:
        """Return the integer grid of a layer's tensor, or None if the algorithm has none.

        Tensors with a grid are exported as integers; the others as the floating-point operations
        of the algorithm.
        """
        return None

    def run(self, wrapper: Any, quant_type: QuantType, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Quantize tensors of one layer, with the gradient defined by ``quant_grad``.

        The engine calls this in the forward pass; do not override it.
        """
        if self._calls is None:
            self._prepare()
        call, rule = (self._calls or {})[quant_type], self._gradient_of(wrapper, quant_type)
        groups = [tuple(tensors)] if call.takes_all else [(tensor,) for tensor in tensors]
        results: list[Any] = []
        for group in groups:
            answer = self._backend.quantize(group, lambda *xs: call(wrapper, *xs), rule, quant_type)
            received, expected = [tuple(x.shape) for x in answer], [tuple(x.shape) for x in group]
            if received != expected:
                raise AlgorithmError(
                    f"{type(self).__name__}.{_METHODS[quant_type]} returned tensors of shapes "
                    f"{received} for layer {wrapper.name!r}; expected {expected}."
                )
            results.extend(answer)
        return tuple(results)

    @property
    def _differentiates_itself(self) -> bool:
        """Whether gradients go through the algorithm's own code, as with ``quant_grad = None``."""
        return self._gradient is None

    def _gradient_of(self, wrapper: Any, quant_type: QuantType) -> type[QuantGrad] | None:
        """Return the gradient function of one quantizer of a layer, None for the algorithm's own code."""
        return self._gradient

    def _prepare(self) -> None:
        self._gradient = gradient_rule(self.quant_grad)
        self._calls = {kind: plan_call(getattr(self, name)) for kind, name in _METHODS.items()}

    def _implements(self, quant_type: QuantType) -> bool:
        name = _METHODS[quant_type]
        return getattr(type(self), name) is not getattr(Quantizer, name)

    def _can_wrap(self, layer: LayerInfo) -> bool:
        """Whether there is anything to quantize: every layer has an output."""
        return True

    def _find_problems(self, selection: Selection) -> list[Problem]:
        """Return a problem for each rule that requests a tensor that cannot be quantized."""
        problems = []
        for decision in selection.decisions:
            if decision.rule is None or decision.excluded:
                continue
            layer = decision.layer
            asked = [QuantType(x) for x in self.targets_of(layer)]
            place = f"rule {decision.rule} → quant_types"
            for quant_type in asked:
                if not self._implements(quant_type):
                    able = [str(kind.value) for kind in QuantType if self._implements(kind)]
                    text = f"{type(self).__name__} quantizes {able}, not {quant_type.value!r}."
                    problems.append(Problem(place, text))
            if QuantType.WEIGHT in asked and layer.weight_name is None:
                text = f"layer {layer.name!r} ({layer.type}) has no weight; use 'output' instead."
                problems.append(Problem(place, text))
            if layer.is_bypassed and set(asked) - {QuantType.WEIGHT}:
                text = (
                    f"layer {layer.name!r} is computed by its parent without being called, so its input and "
                    "output cannot be quantized; use 'weight' only."
                )
                problems.append(Problem(place, text))
        return list(dict.fromkeys(problems))
