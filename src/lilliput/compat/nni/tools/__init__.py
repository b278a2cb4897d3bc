"""NNI's files and tools: calibration, masks, speedup, dependencies, FLOPs."""
