"""From a quantized torch model to an ExecuTorch program: capture, passes on its graph, lowering."""
