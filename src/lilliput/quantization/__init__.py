"""Quantization algorithms, one per file."""

from lilliput.quantization.bnn import BNNQuantizer
from lilliput.quantization.dorefa import DoReFaQuantizer
from lilliput.quantization.lsq import (
    LSQPlusQuantizer,
    LsqPlusQuantizer,
    LSQQuantizer,
    LsqQuantizer,
)
from lilliput.quantization.naive import NaiveQuantizer
from lilliput.quantization.ptq import ObserverQuantizer, PTQQuantizer, PtqQuantizer
from lilliput.quantization.qat import QAT_Quantizer, QATQuantizer, QATquantizer
from lilliput.quantization.ranges import RangeQuantizer

__all__ = [
    "BNNQuantizer",
    "DoReFaQuantizer",
    "LSQPlusQuantizer",
    "LSQQuantizer",
    "LsqPlusQuantizer",
    "LsqQuantizer",
    "NaiveQuantizer",
    "ObserverQuantizer",
    "PTQQuantizer",
    "PtqQuantizer",
    "QATQuantizer",
    "QAT_Quantizer",
    "QATquantizer",
    "RangeQuantizer",
]
