import keras
import numpy as np
import pytest
from keras import layers

from lilliput.errors import UnsupportedModelError
from lilliput.frameworks.keras.graph import read_graph


def summary(graph):
    return [
        (n.path or type(n.operation).__name__, n.scopes, n.inputs, n.outputs) for n in graph.nodes
    ]


def block(name="block"):
    inputs = keras.Input((8,))
    outputs = layers.Dense(8, name="second")(layers.Dense(8, name="first")(inputs))
    return keras.Model(inputs, outputs + inputs, name=name)


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, name="first")
        self.norm = layers.BatchNormalization(name="norm")
        self.last = layers.Dense(3, name="last")

    def call(self, x, training=None):
        return self.last(keras.ops.relu(self.norm(self.first(x), training=training)) + x)


class Outer(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = Plain()
        self.inner.name = "inner"

    def call(self, x):
        return self.inner(x) * 2


def test_a_sequential_model_is_a_chain_without_its_input_layer():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="a"), layers.ReLU(name="b")])
    graph = read_graph(model)
    assert summary(graph) == [("a", (), (0,), (1,)), ("b", (), (1,), (2,))]
    assert (graph.inputs, graph.outputs) == ((0,), (2,))
    assert graph.shapes == {0: (None, 4), 1: (None, 3), 2: (None, 3)}


def test_operations_of_keras_ops_have_no_path():
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.ops.relu(layers.Dense(4, name="a")(inputs)) + inputs)
    assert [x[0] for x in summary(read_graph(model))] == ["a", "Relu", "Add"]


def test_a_shared_layer_appears_once_per_call():
    first, second, dense = keras.Input((4,)), keras.Input((4,)), layers.Dense(4, name="shared")
    model = keras.Model(
        [first, second], layers.Concatenate(name="cat")([dense(first), dense(second)])
    )
    graph = read_graph(model)
    assert [x[0] for x in summary(graph)] == ["shared", "shared", "cat"]
    assert graph.inputs == (0, 1)
    assert graph.nodes[2].inputs == tuple(x.outputs[0] for x in graph.nodes[:2])
    assert graph.nodes[0].operation is graph.nodes[1].operation is dense


def test_nested_models_are_expanded_and_named_as_scopes():
    inputs = keras.Input((8,))
    stage = keras.Sequential([keras.Input((8,)), block(), layers.ReLU(name="act")], name="stage")
    model = keras.Model(inputs, layers.Dense(2, name="head")(stage(inputs)))
    graph = read_graph(model)
    assert [(x[0], x[1]) for x in summary(graph)] == [
        ("stage/block/first", ("stage", "stage/block")),
        ("stage/block/second", ("stage", "stage/block")),
        ("Add", ("stage", "stage/block")),
        ("stage/act", ("stage",)),
        ("head", ()),
    ]
    assert graph.nodes[2].inputs == (graph.nodes[1].outputs[0], graph.inputs[0])


def test_a_nested_model_called_twice_makes_new_values_each_time():
    inputs, inner = keras.Input((8,)), block()
    graph = read_graph(keras.Model(inputs, inner(inner(inputs))))
    assert len(graph.nodes) == 6
    made = [value for node in graph.nodes for value in node.outputs]
    assert len(set(made)) == 6
    assert graph.nodes[3].inputs == graph.nodes[2].outputs


def test_a_nested_model_finds_its_inputs_in_a_dict():
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    inner = keras.Model([a, b], layers.Subtract(name="minus")([a, b]), name="inner")
    x, y = keras.Input((4,), name="x"), keras.Input((4,), name="y")
    graph = read_graph(keras.Model([x, y], inner({"a": y, "b": x})))
    assert graph.nodes[0].inputs == (graph.inputs[1], graph.inputs[0])


def test_several_outputs_keep_their_order():
    inputs = keras.Input((6, 4))
    lstm = layers.LSTM(3, return_state=True, name="lstm")
    sequence, _, cell = lstm(inputs)
    graph = read_graph(keras.Model(inputs, [cell, sequence]))
    assert len(graph.nodes) == 1 and len(graph.nodes[0].outputs) == 3
    assert graph.outputs == (graph.nodes[0].outputs[2], graph.nodes[0].outputs[0])


def test_a_subclassed_model_is_run_on_symbols_and_left_as_it_was():
    model = Plain()
    model(np.zeros((2, 8), "float32"))
    before = [len(x._inbound_nodes) + len(x._outbound_nodes) for x in model._flatten_layers()]
    weights = [np.array(x) for x in model.get_weights()]
    graph = read_graph(model, np.zeros((2, 8)))
    assert [x[0] for x in summary(graph)] == ["first", "norm", "Relu", "Add", "last"]
    assert graph.shapes[graph.outputs[0]] == (2, 3)
    after = [len(x._inbound_nodes) + len(x._outbound_nodes) for x in model._flatten_layers()]
    assert before == after
    assert all(np.array_equal(x, y) for x, y in zip(weights, model.get_weights(), strict=True))


def test_a_subclassed_model_in_a_model_is_looked_into():
    model = Outer()
    model(np.zeros((2, 8), "float32"))
    names = [(x[0], x[1]) for x in summary(read_graph(model, np.zeros((2, 8), "float32")))]
    assert names[0] == ("inner/first", ("inner",))
    assert names[-1] == ("Multiply", ())
    inputs = keras.Input((8,))
    inner = Plain()
    functional = keras.Model(inputs, inner(inputs))
    assert read_graph(functional).nodes[0].path == f"{inner.name}/first"


def test_a_layer_made_of_layers_is_one_operation():
    inputs = keras.Input((6, 8))
    outputs = layers.MultiHeadAttention(2, 4, name="attention")(inputs, inputs)
    graph = read_graph(keras.Model(inputs, outputs))
    assert [x[0] for x in summary(graph)] == ["attention"]
    assert graph.nodes[0].inputs == (0, 0)


def test_what_cannot_be_read_is_refused_with_a_way_out():
    model = Plain()
    with pytest.raises(UnsupportedModelError, match="not built"):
        read_graph(model, np.zeros((2, 8)))
    model(np.zeros((2, 8), "float32"))
    with pytest.raises(UnsupportedModelError, match="example_inputs"):
        read_graph(model)
    with pytest.raises(UnsupportedModelError, match="Sequential"):
        read_graph(layers.Dense(3))

    class Eager(keras.Model):
        def call(self, x):
            return keras.ops.convert_to_tensor(keras.ops.convert_to_numpy(x) * 2)

    eager = Eager()
    eager(np.zeros((2, 8), "float32"))
    with pytest.raises(UnsupportedModelError, match="symbolic"):
        read_graph(eager, np.zeros((2, 8)))
