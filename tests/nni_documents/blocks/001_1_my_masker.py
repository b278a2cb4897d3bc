class MyMasker(WeightMasker):
    def __init__(self, model, pruner):
        super().__init__(model, pruner)
        # 此处可初始化，如为算法收集计算权重所需要的统计信息。
        # 如果你的算法需要计算掩码

    def calc_mask(self, sparsity, wrapper, wrapper_idx=None):
        # 根据 wrapper.weight, 和 sparsity,  
        # 及其它信息来计算掩码
        # mask = ...
        return {'weight_mask': mask}
