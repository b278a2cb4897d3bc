"""Refinements of calibration: equalize, smooth, round by reconstruction, correct biases."""

from lilliput.frameworks.torch.ptq.refinement import Refinement as Refinement
