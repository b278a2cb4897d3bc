"""Recover accuracy lost by pruning, from a few batches and without training."""
