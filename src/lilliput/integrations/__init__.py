"""Callbacks for the training loops of Lightning, transformers and accelerate; import the one you use."""
