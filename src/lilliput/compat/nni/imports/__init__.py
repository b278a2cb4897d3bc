"""Where NNI's import paths lead: tables of its names, and what replaces each."""
