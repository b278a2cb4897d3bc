"""From a traced ONNX graph to the graph of a file; the order is in ``finish``."""
