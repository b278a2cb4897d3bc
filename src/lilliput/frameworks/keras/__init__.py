"""Keras 3: on TensorFlow, JAX and torch."""
