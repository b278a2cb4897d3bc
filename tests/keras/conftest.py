"""One process has one Keras backend: KERAS_BACKEND says which, TensorFlow by default."""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ["KERAS_BACKEND"] == "jax":  # compiling is nearly all that these tests do there
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ.setdefault("XLA_FLAGS", quick)

import pytest

pytest.importorskip("keras")

import keras

BACKEND = keras.backend.backend()


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)
