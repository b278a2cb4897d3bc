"""Quantization algorithms, one per file."""
