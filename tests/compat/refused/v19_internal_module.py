"""An internal module of NNI 1.9."""

from nni.compression.torch.speedup.infer_shape import ModuleMasks  # not here

masks = ModuleMasks("conv1")
