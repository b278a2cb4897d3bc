"""Make an algorithm fail deliberately, to check what it leaves behind."""

from __future__ import annotations

from typing import Any

from lilliput.core.hooks import plan_call


class FaultError(Exception):
    """Raised deliberately."""


def compress_with_fault(compressor: Any, model: Any) -> bool:
    """Compress while the last layer fails; return whether an error was raised."""
    break_last_layer(compressor)
    try:
        compressor.compress(model)
    except FaultError:
        return True
    finally:
        repair(compressor)
    return False


def break_last_layer(compressor: Any) -> None:
    """Make ``calc_mask`` of this one object raise, after all layers but the last are done."""
    call = plan_call(compressor.calc_mask)

    def calc_mask(wrapper: Any, wrapper_idx: int = 0) -> Any:
        answer = call(wrapper, wrapper.weight, index=wrapper_idx)
        if wrapper_idx == len(compressor.get_modules_wrapper()) - 1:
            raise FaultError("calc_mask fails on purpose.")
        return answer

    compressor.calc_mask = calc_mask
    compressor._calc_mask = None


def repair(compressor: Any) -> None:
    """Undo :func:`break_last_layer`."""
    del compressor.calc_mask
    compressor._calc_mask = None
