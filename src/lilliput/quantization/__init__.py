"""Quantization algorithms, one per file."""

from lilliput.quantization.dorefa import DoReFaQuantizer
from lilliput.quantization.naive import NaiveQuantizer

__all__ = ["DoReFaQuantizer", "NaiveQuantizer"]
