"""NNI's pruners, quantizers and evaluators, as thin forms of Lilliput's."""
