"""LiteRT files: from a graph of floats with quantizers in it to one of integers."""
