"""From a TensorFlow function to an ONNX graph for the passes that torch models use."""
