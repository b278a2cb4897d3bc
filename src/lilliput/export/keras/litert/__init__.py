"""LiteRT files: from a float graph with quantizers to an integer graph."""
