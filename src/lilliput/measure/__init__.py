"""Figures of a model or file, how they are taken, and the receipt that two of them make."""
