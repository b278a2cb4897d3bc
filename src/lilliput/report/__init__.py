"""The results of compression, as data and as tables."""
