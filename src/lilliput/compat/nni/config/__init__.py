"""Config lists of every generation of NNI, read as today's config language."""
