"""One config list, the same weights: torch and Keras get the same masks and the same numbers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

torch = pytest.importorskip("torch")

import lilliput.keras as on_keras  # noqa: E402
import lilliput.torch as on_torch  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(8)
        self.relu1 = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv2d(8, 16, 3)
        self.relu2 = torch.nn.ReLU()
        self.fc = torch.nn.Linear(16, 10)

    def forward(self, x):
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.conv2(x))
        return self.fc(x.mean((2, 3)))


def twins():
    """Return a torch model and a Keras model that compute the same."""
    torch.manual_seed(0)
    one = Net().eval()
    with torch.no_grad():
        one.bn1.running_mean.normal_()
        one.bn1.running_var.uniform_(0.5, 2)
        one.bn1.weight.normal_(1, 0.2)
        one.bn1.bias.normal_()
    inputs = keras.Input((9, 9, 3))
    x = layers.Conv2D(8, 3, use_bias=False, name="conv1")(inputs)
    x = layers.ReLU(name="relu1")(layers.BatchNormalization(epsilon=1e-5, name="bn1")(x))
    x = layers.ReLU(name="relu2")(layers.Conv2D(16, 3, name="conv2")(x))
    other = keras.Model(
        inputs, layers.Dense(10, name="fc")(layers.GlobalAveragePooling2D()(x)), name="net"
    )
    # Copies: JAX keeps the memory that it is given, and torch changes its parameters in place.
    values = {name: p.detach().numpy().copy() for name, p in one.state_dict().items()}
    for name, perm in (("conv1", (2, 3, 1, 0)), ("conv2", (2, 3, 1, 0)), ("fc", (1, 0))):
        layer = other.get_layer(name)
        layer.kernel.assign(values[f"{name}.weight"].transpose(perm))
        if f"{name}.bias" in values:
            layer.bias.assign(values[f"{name}.bias"])
    parts = ("weight", "bias", "running_mean", "running_var")
    other.get_layer("bn1").set_weights([values[f"bn1.{part}"] for part in parts])
    return one, other


BATCH = np.random.default_rng(0).standard_normal((16, 9, 9, 3)).astype(np.float32)


def outputs(one, other):
    with torch.no_grad():
        first = one(torch.from_numpy(BATCH.transpose(0, 3, 1, 2).copy())).numpy()
    return first, ops.convert_to_numpy(ops.stop_gradient(other(BATCH, training=False)))


def masks_of(compressor):
    """Return the masks by layer, in the order of torch's axes."""
    found = {}
    for wrapper in compressor.get_modules_wrapper():
        mask = wrapper.weight_mask
        array = mask.numpy() if wrapper.compressor._backend.name == "torch" else to_numpy(mask)
        if wrapper.compressor._backend.name == "keras":
            array = array.transpose((3, 2, 0, 1) if array.ndim == 4 else (1, 0))
        found[wrapper.name] = array
    return found


def to_numpy(value):
    return ops.convert_to_numpy(value.detach() if hasattr(value, "detach") else value)


def test_the_twins_compute_the_same():
    np.testing.assert_allclose(*outputs(*twins()), atol=1e-5)


PRUNERS = {
    "level": ("LevelPruner", [{"op_types": ["default"], "sparsity": 0.7}]),
    "by name": ("LevelPruner", [{"op_names": ["conv*"], "sparsity": 0.5}]),
    "torch's type names": ("LevelPruner", [{"op_types": ["Conv2d", "Linear"], "sparsity": 0.4}]),
    "all layers together": ("LevelPruner", [{"op_types": ["default"], "total_sparsity": 0.6}]),
    "excluded": (
        "LevelPruner",
        [{"op_types": ["default"], "sparsity": 0.7}, {"op_names": ["fc"], "exclude": True}],
    ),
    "2:4": ("LevelPruner", [{"op_names": ["conv2", "fc"], "granularity": "2:4"}]),
    "blocks": ("LevelPruner", [{"op_names": ["conv2"], "sparsity": 0.5, "granularity": [4, 2]}]),
    "quality": ("SensitivityPruner", [{"op_types": ["default"], "quality": 0.6}]),
    "l1": ("L1NormPruner", [{"op_names": ["conv1", "conv2"], "sparsity": 0.5}]),
    "l2": ("L2NormPruner", [{"op_names": ["conv1", "conv2"], "sparsity": 0.5}]),
    "fpgm": ("FPGMPruner", [{"op_names": ["conv1", "conv2"], "sparsity": 0.25}]),
}


@pytest.mark.parametrize("case", PRUNERS)
def test_pruners_give_identical_masks(case):
    name, rules = PRUNERS[case]
    one, other = twins()
    # torch has to run the model to see its graph, Keras has it.
    inputs = {"example_inputs": torch.ones(1, 3, 9, 9)} if "Norm" in name or "FPGM" in name else {}
    first = getattr(on_torch, name)(one, rules, **inputs)
    second = getattr(on_keras, name)(other, rules)
    first.compress()
    second.compress()
    found, expected = masks_of(second), masks_of(first)
    assert found.keys() == expected.keys()
    for key, mask in expected.items():
        np.testing.assert_array_equal(found[key], mask, err_msg=key)
        assert 0 < mask.mean() < 1
    np.testing.assert_allclose(*outputs(one, other), atol=1e-5)


def test_agp_follows_the_same_curve():
    rules = [{"op_types": ["default"], "final_sparsity": 0.8, "end_epoch": 4}]
    one, other = twins()
    first, second = on_torch.AGPPruner(one, rules), on_keras.AGPPruner(other, rules)
    first.compress()
    second.compress()
    for epoch in range(5):
        first.update_epoch(epoch)
        second.update_epoch(epoch)
        for key, mask in masks_of(first).items():
            np.testing.assert_array_equal(masks_of(second)[key], mask)


WEIGHTS = {
    "naive": ("NaiveQuantizer", {"quant_bits": 4}),
    "dorefa": ("DoReFaQuantizer", {"quant_bits": 3}),
    "dorefa, one bit": ("DoReFaQuantizer", {"quant_bits": 1}),
    "bnn": ("BNNQuantizer", {"quant_types": ["weight"]}),
    "qat": ("QATQuantizer", {"quant_types": ["weight"]}),
    "qat per tensor": ("QATQuantizer", {"quant_types": ["weight"], "granularity": "per_tensor"}),
    "ptq": ("PTQQuantizer", {"quant_types": ["weight"], "quant_bits": 4}),
    "lsq": ("LSQQuantizer", {"quant_types": ["weight"], "quant_bits": 4}),
    "lsq+": ("LSQPlusQuantizer", {"quant_types": ["weight"], "quant_bits": 3}),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_quantized_weights_are_the_same(case):
    name, settings = WEIGHTS[case]
    rules = [{"op_types": ["default"], **settings}]
    one, other = twins()
    inputs = {"example_inputs": torch.ones(1, 3, 9, 9)} if name.startswith(("Q", "P", "L")) else {}
    getattr(on_torch, name)(one, rules, **inputs).compress()
    getattr(on_keras, name)(other, rules).compress()
    for key in ("conv1", "conv2", "fc"):
        expected = one.get_submodule(key).weight.detach().numpy()
        kernel = to_numpy(other.get_layer(key).kernel)
        kernel = kernel.transpose((3, 2, 0, 1) if kernel.ndim == 4 else (1, 0))
        np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-6, err_msg=key)


# By default, the output of a dense layer is quantized on Keras only.
ACTIVATIONS = {"op_types": ["default"], "quant_types": ["weight", "input"]}


def test_calibrated_models_give_the_same_outputs():
    one, other = twins()
    rules = [{**ACTIVATIONS, "observer": "minmax"}]
    first, second = on_torch.PTQQuantizer(one, rules), on_keras.PTQQuantizer(other, rules)
    first.compress()
    second.compress()
    first.calibrate([torch.from_numpy(BATCH.transpose(0, 3, 1, 2).copy())], progress=False)
    second.calibrate([BATCH], progress=False)
    for left, right in zip(first.get_wrappers(), second.get_wrappers(), strict=True):
        assert left.name == right.name
        for target in ("input", "output"):
            assert (target in left.roles) == (target in right.roles)
            assert left.places.get(target, {}).get("by") == right.places.get(target, {}).get("by")
    found, expected = outputs(one, other)
    step = max(float(w.input_scale) for w in first.get_wrappers())
    plain = outputs(*twins())[0]
    assert np.abs(plain - expected).max() > 1e-3  # it is quantized
    np.testing.assert_allclose(found, expected, atol=step)


def test_a_step_of_training_moves_both_alike():
    labels = np.arange(16) % 10
    one, other = twins()
    rules = [ACTIVATIONS]
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    first = on_torch.QATQuantizer(one, rules, optimizer, torch.ones(1, 3, 9, 9))
    second = on_keras.QATQuantizer(other, rules)
    first.compress()
    second.compress()
    other.get_layer("bn1").trainable = False  # norms of the two frameworks average differently
    one.train()
    one.bn1.eval()
    before = {
        wrapper.name: wrapper.weight.detach().clone().numpy() for wrapper in first.get_wrappers()
    }
    for _ in range(2):
        optimizer.zero_grad()
        scores = one(torch.from_numpy(BATCH.transpose(0, 3, 1, 2).copy()))
        torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
        one.bn1.weight.grad = one.bn1.bias.grad = None
        optimizer.step()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    other.compile(keras.optimizers.SGD(0.1), loss)
    other.fit(BATCH, labels, batch_size=16, epochs=2, verbose=0, shuffle=False)
    for left, right in zip(first.get_wrappers(), second.get_wrappers(), strict=True):
        expected = left.weight.detach().numpy()
        kernel = to_numpy(right.weight)
        kernel = kernel.transpose((3, 2, 0, 1) if kernel.ndim == 4 else (1, 0))
        moved = np.abs(expected - before[left.name]).max()
        np.testing.assert_allclose(kernel, expected, atol=0.2 * moved, err_msg=left.name)
        for target in set(left.roles) - {"weight"}:
            for end in ("low", "high"):
                values = [float(to_numpy(getattr(w, f"{target}_{end}"))) for w in (left, right)]
                assert values[0] == pytest.approx(values[1], rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("name", ["LSQQuantizer", "LSQPlusQuantizer"])
def test_a_step_of_learning_moves_scales_alike(name):
    """One step: in a second one, the last digits decide which activations are rounded up."""
    labels = np.arange(16) % 10
    one, other = twins()
    rules = [{**ACTIVATIONS, "quant_bits": 4}]
    optimizer = torch.optim.SGD(one.parameters(), lr=1.0)
    first = getattr(on_torch, name)(one, rules, optimizer, torch.ones(1, 3, 9, 9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    other.get_layer("bn1").trainable = False
    other.compile(keras.optimizers.SGD(1.0), loss)
    second = getattr(on_keras, name)(other, rules, other.optimizer)
    first.compress()
    second.compress()
    one.train()
    one.bn1.eval().requires_grad_(False)
    scores = one(torch.from_numpy(BATCH.transpose(0, 3, 1, 2).copy()))
    torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)).backward()
    learned = [(w.name, key) for w in second.get_wrappers() for key in w.learned()]
    assert len(learned) == (6 if name == "LSQQuantizer" else 9)
    held = {wrapper.name: wrapper for wrapper in first.get_wrappers()}
    moved = {(layer, key): getattr(held[layer], key).grad.abs().max() for layer, key in learned}
    optimizer.step()
    other.fit(BATCH, labels, batch_size=16, epochs=1, verbose=0, shuffle=False)
    for wrapper in second.get_wrappers():
        for key in wrapper.learned():
            expected = getattr(held[wrapper.name], key).detach().numpy()
            found = to_numpy(ops.convert_to_tensor(getattr(wrapper, key)))
            close = 1e-3 * float(moved[wrapper.name, key]) + 1e-6
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=close, err_msg=key)
