"""Sums of 8-bit products that saturate in 16 bits: where, on which CPUs, and the remedy."""
