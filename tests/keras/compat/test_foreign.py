"""TensorFlow objects that are no Keras 3 models are refused with the way to a Keras 3 model."""

import subprocess
import sys

import keras
import numpy as np
import pytest

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks import backend_of
from lilliput.frameworks.foreign import explain_foreign

CONFIG = [{"sparsity": 0.5, "op_types": ["default"]}]


def of_class(name):
    """Return an object of a class with that full name, and a subclass of it."""
    module, _, bare = name.rpartition(".")
    base = type(bare, (), {"__module__": module})
    return type("Mine", (base,), {"__module__": "users_code"})()


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def refusal(model):
    from lilliput.keras import LevelPruner

    messages = []
    for compress in (
        lambda: LevelPruner(model, CONFIG),
        lambda: LevelPruner(config_list=CONFIG).compress(model),
    ):
        with pytest.raises(UnsupportedModelError) as caught:
            compress()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "Lilliput compresses Keras 3 models" in messages[0]
    return messages[0]


def test_a_graph_and_its_parts_name_the_keras_route(tf):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (None, 4))
        y = tf.matmul(x, tf.ones((4, 2)))
    session = tf.compat.v1.Session(graph=graph)
    for part in (graph, graph.as_graph_def(), y, y.op, session):
        assert "keras.Sequential or keras.Model" in refusal(part)
    session.close()
    assert "a TensorFlow graph (Graph)" in refusal(graph)


def test_a_module_and_a_function_name_the_keras_route(tf):
    class Net(tf.Module):
        def __init__(self):
            super().__init__()
            self.v = tf.Variable(tf.ones((4, 2)))

        @tf.function
        def __call__(self, x):
            return x @ self.v

    net = Net()
    assert "subclass of keras.Model" in refusal(net)
    assert "traced function" in refusal(net.__call__)
    concrete = net.__call__.get_concrete_function(tf.zeros((1, 4)))
    assert "traced function" in refusal(concrete)
    assert "TensorFlow graph (FuncGraph)" in refusal(concrete.graph)


def test_a_saved_model_names_the_keras_route(tf, tmp_path):
    module = tf.Module()
    module.v = tf.Variable(1.0)
    tf.saved_model.save(module, str(tmp_path))
    assert ".keras file of the same model" in refusal(tf.saved_model.load(str(tmp_path)))


@pytest.mark.parametrize(
    "name",
    [
        "tf_keras.src.engine.training.Model",
        "keras.engine.training.Model",
        "keras.src.engine.functional.Functional",
        "tensorflow.python.keras.engine.training.Model",
    ],
)
def test_a_keras_2_model_is_told_how_to_move(name):
    message = refusal(of_class(name))
    assert message.startswith("received a Keras 2 model (Mine)")
    assert "model.set_weights(old_model.get_weights())" in message


def test_a_layer_and_a_symbolic_tensor_are_no_models():
    layer = keras.layers.Dense(2)
    output = layer(keras.Input((4,)))
    assert "keras.Sequential([layer])" in refusal(layer)
    assert "keras.Model(inputs, outputs)" in refusal(output)


def test_keras_3_models_of_all_kinds_go_to_the_keras_backend():
    inputs = keras.Input((4,))

    class Own(keras.Model):
        def call(self, x):
            return x

    models = [
        keras.Sequential([inputs, keras.layers.Dense(2)]),
        keras.Model(inputs, keras.layers.Dense(2)(inputs)),
        Own(),
    ]
    for model in models:
        assert explain_foreign(model) is None
        assert backend_of(model).name == "keras"


def test_anything_else_is_not_taken_for_tensorflow():
    for thing in (None, "model.keras", object(), np.zeros(3), keras):
        assert explain_foreign(thing) is None


def test_asking_imports_no_framework():
    code = (
        "import sys\n"
        "from lilliput.frameworks.foreign import explain_foreign\n"
        "explain_foreign(object())\n"
        "print([m for m in ('torch', 'keras', 'tensorflow', 'jax', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
