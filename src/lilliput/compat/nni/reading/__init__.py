"""Read a program that uses NNI without running it: report what runs here, and rewrite it."""
