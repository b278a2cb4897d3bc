"""What makes calibration better: equalize, smooth, round by reconstruction, correct biases."""

from lilliput.backends.torch.ptq.refinement import Refinement as Refinement
