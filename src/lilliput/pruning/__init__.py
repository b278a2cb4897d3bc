"""Pruning algorithms, one per file."""
