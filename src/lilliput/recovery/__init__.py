"""What pruning took from a model's outputs, given back from a few batches and without training."""
