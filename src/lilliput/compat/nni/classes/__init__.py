"""NNI's pruners, quantizers and evaluators, as thin forms of today's."""
