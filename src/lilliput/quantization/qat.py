"""QATQuantizer: train with the rounding of integer inference in the forward pass.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", 2018. Weights are rounded to a grid that covers them; the ranges of activations are
moving averages over the training batches, widened so that zero is exact. The gradient passes
where a value is inside its range. Quantization may start later (``quant_start_step``), and batch norms
may switch to their running statistics (``freeze_norm_step``).

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> quantizer = QATQuantizer(model, [{"op_types": ["Linear"], "quant_bits": 8}])
>>> model = quantizer.compress()
>>> output = model(torch.randn(16, 4))  # ranges follow what is seen in training mode
"""

from __future__ import annotations

from collections import deque
from typing import Any

from lilliput.core.checks import checked_number
from lilliput.errors import ConfigError
from lilliput.ops.fakequant import fake_quantize
from lilliput.ops.namespace import Tensor, namespace
from lilliput.ops.qparams import QParams, fit
from lilliput.quantization.placed import ACTIVATIONS
from lilliput.quantization.ranges import RangeQuantizer, check_count
from lilliput.registry import register_quantizer

_PASSES = 256  # forward passes of one layer per step that activation checkpointing may repeat


@register_quantizer("qat", "QAT_Quantizer", "QATquantizer")
class QATQuantizer(RangeQuantizer):
    """Quantize weights and activations while the model trains.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs, quant_start_step
        See :class:`~lilliput.quantization.ranges.RangeQuantizer`.
    momentum : float
        Weight of the previous average in the moving average of ranges.
    freeze_norm_step : int, optional
        The step from which batch norms after quantized layers use their running statistics, as in
        inference. Needs ``example_inputs``.
    """

    paper = "Jacob et al. 2018, Quantization and training for integer-only inference"

    momentum: float = 0.99
    freeze_norm_step: int | None = None
    _frozen: tuple[Any, ...] = ()
    _passes: dict[tuple[int, str], deque[list[Tensor]]] | None = None  # since the last step

    def __init__(
        self,
        model: Any = None,
        config_list: Any = None,
        optimizer: Any = None,
        example_inputs: Any = None,
        quant_start_step: int = 0,
        *,
        momentum: float = 0.99,
        freeze_norm_step: int | None = None,
    ) -> None:
        if freeze_norm_step is not None:
            check_count("freeze_norm_step", freeze_norm_step)
        if freeze_norm_step is not None and example_inputs is None:
            raise ConfigError(
                "freeze_norm_step needs example_inputs, to know which norms follow quantized layers."
            )
        self.momentum = checked_number(
            "momentum", momentum, "a number in [0, 1)", lambda x: 0 <= x < 1
        )
        self.freeze_norm_step = freeze_norm_step
        super().__init__(model, config_list, optimizer, example_inputs, quant_start_step)

    def follow(self, tensor: Tensor, wrapper: Any, target: str) -> None:
        """Move the range towards that of a batch."""
        xp = namespace(tensor)
        names = ("low", "high", "scale", "zero_point")
        held = [getattr(wrapper, f"{target}_{name}") for name in names]
        seen = [xp.widen(x) for x in xp.range_of(xp.detach(tensor), None)]
        # Zeros only: nothing was observed yet, or only batches with NaN.
        is_new = (held[0] == 0) & (held[1] == 0)
        share = xp.where(is_new, 1.0, 1 - self.momentum)
        moved = [old + share * (new - old) for old, new in zip(held[:2], seen, strict=True)]
        # A batch with NaN or infinity must not spoil the range permanently.
        is_fine = xp.isfinite(moved[0]) & xp.isfinite(moved[1])
        is_repeated = self._backend.when_recomputing(held[0])
        is_fine = is_fine if is_repeated is None else is_fine & ~is_repeated
        low, high = (xp.where(is_fine, new, old) for old, new in zip(held[:2], moved, strict=True))
        for old, new in zip(
            held, (low, high, *fit(low, high, self.grid(wrapper, target))), strict=True
        ):
            xp.assign(old, new)
        if not getattr(wrapper, f"{target}_is_known"):
            setattr(wrapper, f"{target}_is_known", True)
        if self._backend.may_be_recomputed():
            self._note(wrapper, target, [*seen, *(xp.zeros_like(x) + x for x in held[2:])])

    def _note(self, wrapper: Any, target: str, what: list[Tensor]) -> None:
        """Record the range of an activation, and the grid on which it was rounded."""
        if self._passes is None:
            self._passes = {}
        self._passes.setdefault((id(wrapper), target), deque(maxlen=_PASSES)).append(what)

    def _round_activation(self, tensor: Tensor, wrapper: Any, target: str) -> Tensor:
        if wrapper.training and self._passes and self._backend.is_recomputing():
            passes = self._passes.get((id(wrapper), target))
            if passes is not None and len(passes) > 1:
                return fake_quantize(tensor, self._grid_then(tensor, wrapper, target, passes))
        return super()._round_activation(tensor, wrapper, target)

    def _grid_then(self, tensor: Tensor, wrapper: Any, target: str, passes: Any) -> QParams:
        """Return the grid on which an activation was rounded in the forward pass that is now recomputed.

        A recomputed pass has the same range. Among several passes with that range, the last one is
        chosen, in the order of backward; it is then moved to the front, so that the others are next.
        """
        xp = namespace(tensor)
        low, high = (float(xp.widen(x)) for x in xp.range_of(xp.detach(tensor), None))
        distances = [abs(float(x[0]) - low) + abs(float(x[1]) - high) for x in passes]
        index = max(range(len(passes)), key=lambda i: (-distances[i], i))
        found = passes[index]
        del passes[index]
        passes.appendleft(found)
        return QParams(found[2], found[3], self.grid(wrapper, target))

    def step(self) -> None:
        """Count the steps, and freeze the norms when due."""
        super().step()
        self._passes = None
        self._freeze_when_due()

    def _take_state(self) -> None:
        super()._take_state()
        self._freeze_when_due()

    def strip(self) -> Any:
        """As in :meth:`Compressor.strip`."""
        model = super().strip()
        if self._frozen:
            for hook in self._frozen:
                hook.remove()
            self._frozen = ()
            self._backend.thaw_norms(model)
        return model

    def _freeze_when_due(self) -> None:
        due = self.freeze_norm_step is not None and self.current_step >= self.freeze_norm_step
        if due and not self._frozen and self.is_wrapped:
            self._frozen = tuple(self._backend.freeze_norms(self.bound_model, self._norms()))

    def _norms(self) -> list[str]:
        return [wrapper.norm for wrapper in self.get_modules_wrapper() if wrapper.norm]

    def _after_step(self) -> None:
        super()._after_step()
        self._share_ranges()

    def _share_ranges(self) -> None:
        """Average the ranges over all training processes, in one exchange.

        Inside ``DistributedDataParallel.join()`` some processes may have stopped: ranges are then shared like
        all buffers, those of one process in each forward pass, and those of the last one at the end.
        """
        if self._backend.processes() == 1 or self._backend.is_joining(self.bound_model):
            return
        spots = [
            (wrapper, target)
            for wrapper in self.get_modules_wrapper()
            for target in ACTIVATIONS
            if target in wrapper.roles
        ]
        bounds = [getattr(w, f"{t}_{end}") for w, t in spots for end in ("low", "high")]
        if not bounds or not self._backend.average(bounds):
            return
        for wrapper, target in spots:
            low, high = (getattr(wrapper, f"{target}_{end}") for end in ("low", "high"))
            scale, zero = fit(low, high, self.grid(wrapper, target))
            wrapper.set_attribute(f"{target}_scale", scale)
            wrapper.set_attribute(f"{target}_zero_point", zero)
