"""Quantization algorithms, one per file."""

from lilliput.quantization.bnn import BNNQuantizer
from lilliput.quantization.dorefa import DoReFaQuantizer
from lilliput.quantization.lsq import (
    LSQPlusQuantizer,
    LSQQuantizer,
)
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.quantization.ptq import PTQQuantizer
from lilliput.quantization.qat import QATQuantizer
from lilliput.quantization.ranges import RangeQuantizer

__all__ = [
    "BNNQuantizer",
    "DoReFaQuantizer",
    "LSQPlusQuantizer",
    "LSQQuantizer",
    "NaiveQuantizer",
    "PTQQuantizer",
    "QATQuantizer",
    "RangeQuantizer",
]
