"""From a traced ONNX graph to the graph of a file; ``finish`` has the order."""
