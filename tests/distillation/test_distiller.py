"""Distillation as users meet it: beside pruners and quantizers, before and after a cut, on real digits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.demo import Digits
from lilliput.errors import ConfigError
from lilliput.testing import TinyCNN
from lilliput.torch import (
    AGPPruner,
    Distiller,
    L1NormPruner,
    LevelPruner,
    LSQQuantizer,
    QATQuantizer,
    speedup,
)


def test_a_pruned_student_learns_more_from_the_teacher_than_from_the_labels_of_fifty_digits():
    data = Digits()
    images, labels = (x[:50] for x in data.train.tensors)
    everything, answers = data.train.tensors
    test_images, test_labels = data.test

    def train(model, optimizer, steps, x, loss):
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            rows = torch.randint(len(x), (32,), generator=generator)
            optimizer.zero_grad()
            loss(model(x[rows].flatten(1)), rows).backward()
            optimizer.step()

    def accuracy(model):
        found = model(test_images.flatten(1)).argmax(1)
        return float((found == test_labels).float().mean())

    gains = []
    for seed in range(2):
        torch.manual_seed(seed)
        original = nn.Sequential(
            *(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
        )
        adam = torch.optim.Adam(original.parameters(), lr=2e-3)
        train(original, adam, 300, everything, lambda y, rows: F.cross_entropy(y, answers[rows]))
        reached = {}
        for kind in ("labels", "teacher"):
            model = copy.deepcopy(original)
            adam = torch.optim.Adam(model.parameters(), lr=3e-3)
            distiller = Distiller(model, [{"temperature": 4.0}], adam)
            if kind == "teacher":
                distiller.compress()
            LevelPruner(model, [{"sparsity": 0.8}], adam).compress()

            def loss(y, rows, kind=kind, distiller=distiller):
                return F.cross_entropy(y, labels[rows]) if kind == "labels" else distiller.loss()

            train(model, adam, 250, images, loss)
            with torch.no_grad():
                reached[kind] = accuracy(model)
        gains.append(reached["teacher"] - reached["labels"])
    assert min(gains) > 0.02, gains  # some points, without a single label


QAT = [{"op_types": ["Conv2d", "Linear"], "quant_types": ["weight", "input"], "quant_bits": 8}]
PRUNERS = {
    "level": lambda model, x, opt: LevelPruner(model, [{"sparsity": 0.5}], opt),
    "l1": lambda model, x, opt: L1NormPruner(
        model, [{"op_types": ["Conv2d"], "sparsity": 0.5}], opt, example_inputs=x
    ),
    "agp": lambda model, x, opt: AGPPruner(model, [{"final_sparsity": 0.5, "end_epoch": 1}], opt),
}
QUANTIZERS = {
    "qat": lambda model, opt: QATQuantizer(model, QAT, opt),
    "lsq": lambda model, opt: LSQQuantizer(model, QAT, opt),
}


@pytest.mark.parametrize("pruner", PRUNERS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_every_pair_trains_towards_the_teacher_and_leaves_a_plain_model(pruner, quantizer):
    torch.manual_seed(0)
    model = TinyCNN()
    x = model.make_input(8)
    keys = list(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    distiller = Distiller(model, [{}, {"op_types": ["Conv2d"], "loss": "cosine"}], optimizer)
    distiller.compress()
    others = [PRUNERS[pruner](model, x, optimizer)]
    others[0].compress()
    others.append(QUANTIZERS[quantizer](model, optimizer))
    others[1].compress()
    losses = []
    for epoch in range(2):
        for compressor in others:
            compressor.update_epoch(epoch)
        for _ in range(10):
            optimizer.zero_grad()
            model(x)
            loss = distiller.loss()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[-10]
    for compressor in (distiller, *reversed(others)):
        compressor.strip()
    assert list(model.state_dict()) == keys
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    held = {id(p) for p in model.parameters()}
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == held
    zeros = [float((p == 0).float().mean()) for p in model.parameters() if p.dim() > 1]
    assert max(zeros) >= 0.45


def test_a_distiller_goes_on_over_a_cut_and_projects_what_became_narrower():
    torch.manual_seed(0)
    model = TinyCNN().eval()
    x = model.make_input(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    names = [name for name, m in model.named_modules() if isinstance(m, nn.Conv2d)]
    distiller = Distiller(model, [{}, {"op_names": names, "loss": "mse"}], optimizer)
    distiller.compress()
    pruner = L1NormPruner(
        model, [{"op_names": names[:1], "sparsity": 0.5}], optimizer, example_inputs=x
    )
    pruner.compress()

    def step():
        optimizer.zero_grad()
        model(x)
        loss = distiller.loss()
        loss.backward()
        optimizer.step()
        return loss.item()

    step()
    assert distiller.parameters() == []
    shrunk = speedup(model, x).model
    assert shrunk is model
    losses = [step() for _ in range(10)]
    (projection,) = distiller.parameters()
    kept, all_of_them = (
        net.get_submodule(names[0]).out_channels for net in (model, distiller.teacher)
    )
    assert projection.shape == (all_of_them, kept) and kept < all_of_them
    assert losses[-1] < losses[0]


# A hook on the model is compiled apart and gets its output; torch hides this warning of its own.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_student_is_compared_as_it_is():
    torch.manual_seed(0)
    model = TinyCNN().eval()
    x = model.make_input(4)
    distiller = Distiller(model, [{}, {"op_types": ["Conv2d"], "loss": "mse"}])
    distiller.compress()
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    model(x)
    wanted = distiller.loss()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        compiled(x)
        torch.testing.assert_close(distiller.loss(), wanted)


def test_activation_checkpointing_records_once_and_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, uses):
            super().__init__()
            self.uses = uses
            self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6))
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            middle = checkpoint(self.body, x, use_reentrant=False) if self.uses else self.body(x)
            return self.head(middle)

    found = []
    for uses in (False, True):
        torch.manual_seed(0)
        model = Checkpointed(uses)
        distiller = Distiller(model, [{}, {"op_names": ["body.0"], "loss": "mse"}])
        distiller.compress()
        with torch.no_grad():
            model.body[0].weight.mul_(0.5)
        model(torch.ones(2, 4))
        distiller.loss().backward()
        found.append([p.grad for p in model.parameters()])
        model(torch.ones(2, 4))  # what was recomputed in backward is no forward of its own
        distiller.loss()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_is_compared_in_full():
    torch.manual_seed(0)
    model = TinyCNN().eval()
    x = model.make_input(4)
    distiller = Distiller(model)
    distiller.compress()
    with torch.no_grad():
        next(model.parameters()).mul_(0.5)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
        loss = distiller.loss()
        answer = distiller.teacher(x)
    assert (output.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    student, teacher = (y.float() / 2 for y in (output, answer))
    wanted = 4 * F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    torch.testing.assert_close(loss, wanted)


def test_an_evaluation_does_not_replace_the_training_pass():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    distiller = Distiller(model)
    distiller.compress()
    with torch.no_grad():
        model.weight.mul_(0.2)
    inputs = torch.randn(8, 4)
    model(inputs)
    expected = distiller.loss()
    assert expected > 0.01
    model(inputs)
    model.eval()(torch.zeros(8, 4))
    model.train()
    assert torch.equal(distiller.loss(), expected)


def test_an_axis_that_features_do_not_have_is_refused():
    model = nn.Sequential(nn.Linear(4, 3))
    distiller = Distiller(model, [{"op_names": ["0"], "loss": "cosine", "axis": 7}])
    distiller.compress()
    model(torch.randn(8, 4))
    with pytest.raises(
        ConfigError, match=r"'0' is compared by 'cosine' along axis 7.*from -2 to 1"
    ):
        distiller.loss()


class Tokens(nn.Module):
    """A convolution over time, whose output a transformer layer reads with channels last."""

    def __init__(self, width=4, stride=1):
        super().__init__()
        self.conv = nn.Conv1d(3, width, 3, stride=stride)
        self.act = nn.ReLU()
        self.block = nn.TransformerEncoderLayer(width, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.block(self.act(self.conv(x)).transpose(1, 2))


def spatial_maps(features, axis):
    return F.normalize(features.square().mean(axis).flatten(1))


@pytest.mark.parametrize(("name", "axis"), [("conv", 1), ("block", 2), ("block.linear1", 2)])
def test_attention_knows_the_channels_of_convolutions_over_time_and_of_tokens(name, axis):
    torch.manual_seed(0)
    model, teacher = Tokens(), Tokens(6)
    distiller = Distiller(model, [{"op_names": [name], "loss": "attention"}], teacher=teacher)
    distiller.compress()
    seen = {}
    for net in (model, teacher):
        net.get_submodule(name).register_forward_hook(lambda m, _inputs, y: seen.update({m: y}))
    x = torch.randn(5, 3, 12)
    model(x)
    loss = distiller.loss()
    one, other = (spatial_maps(seen[net.get_submodule(name)], axis) for net in (model, teacher))
    torch.testing.assert_close(loss, (one - other).square().sum(1).mean())


def test_attention_asks_for_the_channels_of_a_layer_that_may_have_them_first_or_last():
    model = Tokens()
    for rule, is_known in (({}, False), ({"axis": 1}, True)):
        rules = [{"op_names": ["act"], "loss": "attention", **rule}]
        distiller = Distiller(model, rules, teacher=Tokens(6))
        distiller.compress()
        model(torch.randn(5, 3, 12))
        if is_known:
            distiller.loss()
        else:
            with pytest.raises(ConfigError, match=r"'act' .*\(5, 4, 10\).*specify.*'axis': 1"):
                distiller.loss()
        distiller.strip()


def test_channels_of_activations_are_where_all_layers_of_a_model_have_them():
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Conv1d(3, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(10 * width, 2))
        for width in (4, 6)
    ]
    distiller = Distiller(nets[0], [{"op_names": ["1"], "loss": "attention"}], teacher=nets[1])
    distiller.compress()
    x = torch.randn(5, 3, 12)
    nets[0](x)
    one, other = (spatial_maps(net[:2](x), 1) for net in nets)
    torch.testing.assert_close(distiller.loss(), (one - other).square().sum(1).mean())


@pytest.mark.parametrize("loss", ["mse", "cosine"])
@pytest.mark.parametrize("rule", [{}, {"op_names": ["0"]}, {"op_names": ["1"]}])
def test_no_projection_is_learned_along_time(rule, loss):
    model, teacher = (
        nn.Sequential(nn.Conv1d(3, 4, 3, stride=stride), nn.Tanh()) for stride in (2, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    distiller = Distiller(model, [{**rule, "loss": loss}], optimizer, teacher=teacher)
    distiller.compress()
    model(torch.randn(8, 3, 21))
    with pytest.raises(ConfigError, match=r"\(8, 4, 10\) and \(8, 4, 19\).*channels.* axis 1"):
        distiller.loss()
    assert distiller.parameters() == []


@pytest.mark.parametrize(("name", "shape"), [("conv", (6, 4)), ("block", (6, 4)), ("act", (6, 4))])
def test_projections_are_learned_between_channels_first_and_last(name, shape):
    model = Tokens()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = [{"op_names": [name], "loss": "mse"}]
    distiller = Distiller(model, rules, optimizer, teacher=Tokens(6))
    distiller.compress()
    model(torch.randn(8, 3, 12))
    distiller.loss()
    assert [tuple(x.shape) for x in distiller.parameters()] == [shape]


def test_no_projection_is_learned_along_one_side_of_an_image():
    model, teacher = (nn.Conv2d(3, 4, 3, stride=(1, stride)) for stride in (2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    distiller = Distiller(model, [{"loss": "mse"}], optimizer, teacher=teacher)
    distiller.compress()
    model(torch.randn(2, 3, 9, 9))
    with pytest.raises(ConfigError, match="channels.* axis 1"):
        distiller.loss()
