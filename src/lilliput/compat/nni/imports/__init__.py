"""Targets of NNI's import paths: tables of its names, and their replacements."""
