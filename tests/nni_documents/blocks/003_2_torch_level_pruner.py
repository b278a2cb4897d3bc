pruner = nni.compressors.torchCompressor.LevelPruner([{'sparsity':0.8,'support_type': 'default'}])
pruner(model)
