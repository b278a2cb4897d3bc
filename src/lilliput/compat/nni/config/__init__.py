"""Config lists of every generation of NNI, translated to the current config language."""
