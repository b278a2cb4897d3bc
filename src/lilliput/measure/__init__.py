"""Figures of a model or file, how they are measured, and the receipt that compares two of them."""
