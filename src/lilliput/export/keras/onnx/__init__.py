"""From a function of TensorFlow to the ONNX graph that the passes for torch models begin with."""
