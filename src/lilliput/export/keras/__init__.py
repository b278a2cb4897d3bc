"""Write compressed Keras models as files that LiteRT and ONNX runtimes execute."""
