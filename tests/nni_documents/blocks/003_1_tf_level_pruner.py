pruner = nni.compressors.tfCompressor.LevelPruner([{'sparsity':0.8,'support_type': 'default'}])
pruner(model_graph)
