"""PTQQuantizer: integers without training, from a few batches of data.

Run batches through the model, and the ranges of activations are fixed by what is seen; weights are
covered, or cut where that is better on the whole.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> quantizer = PTQQuantizer(model, [{"op_types": ["Linear"]}])
>>> model = quantizer.compress()
>>> quantizer.calibrate([torch.randn(16, 4) for _ in range(4)])
>>> quantizer.qparams(quantizer.get_modules_wrapper()[0], QuantType.INPUT).grid.dtype
'uint8'
"""

from __future__ import annotations

from typing import Any

from lilliput.config.layer import QuantType as QuantType
from lilliput.quantization.ranges import RangeQuantizer
from lilliput.registry import register_quantizer


@register_quantizer("ptq", "ObserverQuantizer", "PtqQuantizer")
class PTQQuantizer(RangeQuantizer):
    """Quantize a trained model by calibration.

    Parameters
    ----------
    model, config_list, optimizer, example_inputs
        See :class:`~lilliput.quantization.ranges.RangeQuantizer`. Rules may name an ``observer``:
        'mse' (the default), 'minmax', 'ema', 'percentile' or 'kl'.
    """

    default_observer = "mse"

    def calibrate(self, *args: Any, **kwargs: Any) -> None:
        """As in :meth:`RangeQuantizer.calibrate`."""
        super().calibrate(*args, **kwargs)


ObserverQuantizer = PTQQuantizer
