"""The engine of distillation: who the teacher is, which forward counts, and what is refused."""

import copy
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lilliput.errors import (
    AlgorithmError,
    ConfigError,
    StageError,
    StateError,
    UnsupportedModelError,
)
from lilliput.torch import (
    CompressionState,
    Distiller,
    FisherPruner,
    L1NormPruner,
    LevelPruner,
    MovementPruner,
    QATQuantizer,
    speedup,
)


class Net(nn.Module):
    """A block with dropout, a batch norm and a ReLU that writes in place."""

    def __init__(self, width=6):
        super().__init__()
        self.conv = nn.Conv2d(2, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        features = self.act(self.norm(self.conv(x)))
        return self.head(self.drop(features.mean((2, 3))))


def make(width=6, seed=0):
    torch.manual_seed(seed)
    net = Net(width)
    for _ in range(3):
        net(torch.randn(8, 2, 4, 4))  # running statistics of its own
    return net


X = torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(1))
FEATURES = [{"op_names": ["conv"], "loss": "mse"}]


def attached(model, *args, **kwargs):
    distiller = Distiller(model, *args, **kwargs)
    distiller.compress()
    return distiller


# -- the teacher -------------------------------------------------------------------------------------


def test_the_teacher_is_the_model_as_it_was_in_eval_mode_and_the_student_runs_as_the_loop_says():
    model = make()
    original = copy.deepcopy(model).eval()
    distiller = attached(model, [{"temperature": 2.0}])
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    model.train()
    torch.manual_seed(3)
    seen = model(X)
    student_again = torch.random.get_rng_state()
    loss = distiller.loss()
    assert torch.equal(torch.random.get_rng_state(), student_again)  # the teacher draws nothing
    wanted = F.kl_div(
        (seen / 2).log_softmax(1), (original(X) / 2).softmax(1), reduction="batchmean"
    )
    torch.testing.assert_close(loss, 4 * wanted)
    assert not distiller.teacher.training
    for name, value in distiller.teacher.state_dict().items():
        assert torch.equal(value, original.state_dict()[name]), name
    assert not any(p.requires_grad for p in distiller.teacher.parameters())


def test_gradients_reach_the_student_alone():
    model = make().eval()
    distiller = attached(model)
    with torch.no_grad():
        model.head.weight.mul_(-1)
    output = model(X)
    loss = distiller.loss()
    received = torch.autograd.grad(
        loss, list(model.parameters()), retain_graph=True, allow_unused=True
    )
    own = F.kl_div(
        (output / 2).log_softmax(1), (distiller.teacher(X) / 2).softmax(1), reduction="batchmean"
    )
    wanted = torch.autograd.grad(4 * own, list(model.parameters()), allow_unused=True)
    for one, other in zip(received, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_given_teacher_is_used_as_it_is_and_keeps_its_modes():
    teacher = make(9, seed=5).train()
    model = make()
    distiller = attached(model, teacher=teacher)
    before = copy.deepcopy(teacher.state_dict())
    output = model(X)
    loss = distiller.loss()
    assert teacher.training and all(p.requires_grad for p in teacher.parameters())
    assert all(torch.equal(value, before[key]) for key, value in teacher.state_dict().items())
    answer = teacher.eval()(X)
    wanted = F.kl_div((output / 2).log_softmax(1), (answer / 2).softmax(1), reduction="batchmean")
    torch.testing.assert_close(loss, 4 * wanted)
    assert not any(module._forward_hooks for module in teacher.modules())


def test_a_model_that_is_compressed_already_is_no_teacher():
    model = make()
    LevelPruner(model, [{"sparsity": 0.5}]).compress()
    with pytest.raises(
        StageError, match=r"LevelPruner is already attached.*before attaching other compressors"
    ):
        Distiller(model)
    attached(model, teacher=make())  # what was the original can be given


def test_a_model_that_cannot_be_copied_asks_for_a_teacher():
    model = make()
    model.cache = model(X)  # not a leaf of its graph
    with pytest.raises(
        UnsupportedModelError, match="cannot be copied.*pass a teacher to the distiller"
    ):
        Distiller(model)


def test_a_model_is_not_its_own_teacher():
    model = make()
    with pytest.raises(ConfigError, match="received the model itself"):
        Distiller(model, teacher=model)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_teacher_does_not_share_parameters(is_frozen):
    model = make()
    model.conv.requires_grad_(not is_frozen)  # a pruner would mask it in the teacher, too
    teacher = nn.Sequential(model.conv, nn.Flatten(), nn.Linear(96, 3))
    with pytest.raises(ConfigError, match="teacher: it shares 'conv.weight' with the model"):
        Distiller(model, teacher=teacher)
    Distiller(model, teacher=copy.deepcopy(teacher))


def test_a_teacher_does_not_share_running_statistics_or_layers_without_parameters():
    model = make()
    model.norm = nn.BatchNorm2d(6, affine=False)  # nothing to freeze
    teacher = nn.Sequential(nn.Conv2d(2, 6, 3), model.norm)
    with pytest.raises(ConfigError, match=r"shares 'norm.running_mean'.*copy.deepcopy\(teacher\)"):
        Distiller(model, teacher=teacher)
    with pytest.raises(ConfigError, match="shares 'act' with the model"):
        Distiller(model, teacher=nn.Sequential(nn.Conv2d(2, 6, 3), model.act))


@pytest.mark.parametrize("change", [lambda y: y[:0], lambda y: torch.complex(y, y)])
def test_outputs_without_real_numbers_are_refused(change):
    model = make()
    model.head.register_forward_hook(lambda _module, _inputs, y: change(y))
    distiller = attached(model)
    model(X)
    with pytest.raises(ConfigError, match="expected real numbers, and at least one"):
        distiller.loss()


def test_a_teacher_that_does_not_run_on_the_same_inputs_is_named():
    distiller = attached(model := make(), teacher=nn.Linear(3, 3))
    model(X)
    with pytest.raises(ConfigError, match=r"^teacher: it does not run .* RuntimeError"):
        distiller.loss()


# -- which forward counts ----------------------------------------------------------------------------


def test_loss_without_a_forward_says_so():
    distiller = attached(model := make())
    with pytest.raises(StageError, match="no forward pass to compare"):
        distiller.loss()
    with torch.no_grad():
        model(X)
    with pytest.raises(StageError, match="no forward pass to compare"):
        distiller.loss()
    model(X)
    distiller.loss()
    with pytest.raises(StageError, match="once for each forward"):
        distiller.loss()


def test_a_forgotten_loss_is_noticed_at_the_next_forward():
    distiller = attached(model := make())
    model(X)
    with pytest.raises(StageError, match=r"ran again.*before loss\(\)"):
        model(X)
    model(X)  # and the model can be used again
    distiller.loss()


def test_evaluation_between_steps_is_not_taken_for_training():
    model = make()
    distiller = attached(model, [{"op_names": ["head"], "loss": "mse"}])
    model.train()
    output = model(X)
    loss = distiller.loss()
    model.eval()
    model(2 * X)
    model(3 * X)  # without no_grad(), as many do
    with torch.no_grad():
        model(X)
    model.train()
    model(X)
    distiller.loss()
    torch.testing.assert_close(loss, (output - distiller.teacher(X)).square().mean())


def test_training_in_eval_mode_is_training_too():
    distiller = attached(model := make().eval())
    with torch.no_grad():
        model.head.weight.mul_(-1)
    model(X)
    distiller.loss().backward()
    assert model.conv.weight.grad.abs().sum() > 0


def test_of_two_passes_in_eval_mode_it_is_unclear_which_one_is_trained():
    distiller = attached(model := make().eval())
    model(X)
    model(2 * X)
    with pytest.raises(StageError, match=r"ran several times in eval mode.*torch.no_grad\(\)"):
        distiller.loss()
    model(X)
    with torch.no_grad():
        model(2 * X)
    assert distiller.loss().item() == 0
    model(X)
    model(2 * X)
    model.train()(X)  # the only one in training mode
    distiller.loss()


def test_calibration_and_cuts_between_steps_are_not_compared():
    model = make().eval()
    distiller = attached(model)

    def loss(model, x):
        return model(x).square().sum()

    for compressor in (
        FisherPruner(model, [{"op_names": ["head"], "sparsity": 0.5}]),
        L1NormPruner(model, [{"op_names": ["conv"], "sparsity": 0.5}], example_inputs=X),
    ):
        if isinstance(compressor, FisherPruner):
            compressor.calibrate([X, X], loss=loss)
        compressor.compress()
        assert not distiller.has_run
    speedup(model, X)
    assert not distiller.has_run
    model(X)
    FisherPruner(model, [{"op_names": ["head"], "sparsity": 0.1}]).calibrate([2 * X], loss=loss)
    model.train()
    distiller.loss()  # of the pass before
    with pytest.raises(StageError, match="no forward pass"):
        distiller.loss()


def test_inputs_that_were_written_to_are_refused():
    distiller, x = attached(model := make()), X.clone()
    model(x)
    x.add_(1)
    with pytest.raises(StageError, match="modified in place"):
        distiller.loss()


def test_an_output_that_was_written_to_is_refused_if_it_is_compared():
    class Labelled(Several):
        def forward(self, x):
            logits = self.fc(x)
            return {"a": logits, "b": logits.mean()}

    distiller = attached(model := Labelled(), [{"item": "a"}])
    output = model(torch.ones(4, 3))
    output["a"].mul_(3)
    with pytest.raises(
        StageError, match=r"output of the model was modified in place.*call loss\(\)"
    ):
        distiller.loss()
    output = model(torch.ones(4, 3))
    output["b"] *= 3  # such as a loss divided by the number of accumulated batches
    output["a"] = output["a"] * 3  # another tensor, in the dict of the caller
    assert distiller.loss().item() == 0


@pytest.mark.parametrize("with_kwargs", [False, True])
def test_hooks_that_change_the_inputs_run_once_in_the_teacher(with_kwargs):
    model = make().eval()
    if with_kwargs:
        model.register_forward_pre_hook(
            lambda _module, args, kwargs: (((kwargs["x"] - 5) / 2,), {}), with_kwargs=True
        )
    else:
        model.register_forward_pre_hook(lambda _module, args: ((args[0] - 5) / 2,))
    distiller = attached(model, [{"loss": "mse"}])
    model(x=X) if with_kwargs else model(X)
    assert distiller.loss().item() == 0
    other = attached(model, [{"loss": "mse"}], teacher=make().eval())  # gets the batch itself
    output = model(x=X) if with_kwargs else model(X)
    torch.testing.assert_close(other.loss(), (output - other.teacher(X)).square().mean())


def test_named_arguments_and_several_of_them_reach_the_teacher():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, a, *, scale):
            return self.fc(a) * scale

    model = Two()
    distiller = attached(model, [{"loss": "mse"}])
    with torch.no_grad():
        model.fc.bias.add_(1)
    model(torch.ones(4, 3), scale=torch.tensor(3.0))
    assert distiller.loss().item() == pytest.approx(9.0)


# -- what layers return --------------------------------------------------------------------------------


def test_features_are_seen_before_a_relu_that_writes_in_place():
    model = make().eval()
    distiller = attached(model, [{"op_names": ["norm"], "loss": "mse"}])
    with torch.no_grad():
        model.norm.bias.sub_(10)  # all of it is clipped, and 10 away before
    model(X)
    assert distiller.loss().item() == pytest.approx(100, rel=1e-4)


def test_weights_of_rules_add_up_and_values_are_without_them():
    model = make().eval()
    rules = [{"weight": 0.25, "temperature": 1.0}, {"op_names": ["conv"], "weight": 3.0}]
    distiller = attached(model, rules)
    with torch.no_grad():
        model.conv.weight.mul_(0.5)
    model(X)
    loss = distiller.loss()
    values = distiller.values
    assert sorted(values) == ["(model)", "conv"]
    torch.testing.assert_close(
        loss.detach(), 0.25 * values["(model)"] + 3 * values["conv"], rtol=1e-6, atol=0
    )
    assert not any(value.requires_grad for value in values.values())


def test_a_layer_that_is_called_twice_is_compared_call_by_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return self.fc(self.fc(x).tanh())

    model = Twice()
    distiller = attached(model, [{"op_names": ["fc"], "loss": "mse"}])
    with torch.no_grad():
        model.fc.bias.add_(0.3)
    x, first = torch.ones(2, 3), []
    for net in (model, distiller.teacher):
        once = net.fc(x)
        first.append((once, net.fc(once.tanh())))
    wanted = sum((one - other).square().mean() for one, other in zip(*first, strict=True)) / 2
    model(x)
    torch.testing.assert_close(distiller.loss(), wanted)


def test_links_name_other_layers_and_of_several_the_nearest_counts():
    teacher = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    rules = [{"op_names": ["0"], "loss": "mse", "link": ["0", "1"]}]
    distiller = attached(model, rules, teacher=teacher)
    x = torch.ones(2, 3)
    student = model(x), model[0](x)
    loss = distiller.loss()
    first = teacher[0](x)
    distances = [(student[1] - y).square().mean() for y in (first, teacher[1](first))]
    torch.testing.assert_close(loss, min(distances))


Pair = namedtuple("Pair", "logits aux")


@dataclass(frozen=True)
class Found:
    aux: torch.Tensor
    logits: torch.Tensor


@pytest.mark.parametrize(
    ("wrap", "item"),
    [
        (lambda y: (y, None), None),
        (lambda y: (y * 0, y), 1),
        (lambda y: {"loss": y.mean(), "logits": y}, None),
        (lambda y: {"a": y * 0, "b": y}, "b"),
        (lambda y: Pair(y, y * 0), None),
        (lambda y: Pair(y, y * 0), 0),
        (lambda y: (y * 0, y), -1),
        (lambda y: Found(y * 0, y), None),
        (lambda y: Found(y, y * 0), "aux"),
        (lambda y: Found(y, y * 0), 0),
    ],
)
def test_the_part_of_an_output_that_counts(wrap, item):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, x):
            return wrap(self.fc(x))

    model = Wrapped()
    distiller = attached(model, [{"loss": "mse", **({} if item is None else {"item": item})}])
    with torch.no_grad():
        model.fc.bias.add_(2)
    model(torch.ones(4, 3))
    assert distiller.loss().item() == pytest.approx(4.0)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return {"a": self.fc(x), "b": x, "c": 3}


def test_an_output_whose_parts_are_unknown_shows_which_ones_are_not():
    class Wrapped(Several):
        def forward(self, x):
            return SimpleNamespace(logits=self.fc(x))

    distiller = attached(model := Wrapped(), [{"item": "logits"}])
    model(torch.ones(4, 3))
    with pytest.raises(ConfigError, match="SimpleNamespace, .* a tuple, dict or dataclass.* layer"):
        distiller.loss()


def test_parts_of_a_dataclass_are_compared_as_the_model_returned_them():
    class Block(nn.Linear):
        def forward(self, x):
            return Found(x, super().forward(x))

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block(3, 2)

        def forward(self, x):
            return Found(x, self.block(x).logits.mul_(3))

    rules = [{"loss": "mse"}, {"op_names": ["block"], "loss": "mse"}]
    distiller = attached(model := Wrapped(), rules)
    with torch.no_grad():
        model.block.bias.add_(1)
    output = model(torch.ones(4, 3))
    object.__setattr__(output, "logits", output.aux)
    distiller.loss()
    assert distiller.values["(model)"].item() == pytest.approx(9)
    assert distiller.values["block"].item() == pytest.approx(1)  # before mul_()
    model(torch.ones(4, 3)).logits.mul_(2)
    with pytest.raises(StageError, match="output of the model was modified in place"):
        distiller.loss()


def test_an_output_of_several_tensors_asks_which():
    distiller = attached(model := Several())
    model(torch.ones(4, 3))
    with pytest.raises(ConfigError, match=r"is a dict with the tensors 'a', 'b'; .*'item'"):
        distiller.loss()
    distiller = attached(model, [{"item": "d"}])
    model(torch.ones(4, 3))
    with pytest.raises(ConfigError, match="of which 'd' is not one"):
        distiller.loss()


# -- what is refused ---------------------------------------------------------------------------------


def test_all_mistakes_of_a_config_list_come_at_once_and_nothing_is_attached():
    rules = [
        {"op_names": ["conw"]},
        {"op_names": ["conv"], "loss": "mse", "temperature": 2.0},
        {"op_names": ["norm"], "losss": "mse"},
        {"weight": 0},
    ]
    with pytest.raises(ConfigError) as caught:
        Distiller(model := make(), rules)
    text = str(caught.value)
    for words in (
        "Did you mean 'conv'",
        "'temperature' belongs to",
        "Did you mean 'loss'",
        "weight",
    ):
        assert words in text
    with pytest.raises(ConfigError, match=r"rule 0 → link.*no layer 'hed'. Did you mean 'head'"):
        Distiller(model := make(), [{"op_names": ["head"], "link": "hed"}])
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_does_not_run_is_named():
    model = make()
    model.spare = nn.Linear(2, 2)
    distiller = attached(model, [{"op_names": ["spare"]}])
    model(X)
    with pytest.raises(StageError, match="layer 'spare' of the model was not called"):
        distiller.loss()


def test_a_layer_that_its_parent_computes_is_refused():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(ConfigError, match=r"'self_attn.out_proj' is computed by its parent"):
        Distiller(model, [{"op_names": ["self_attn.out_proj"]}])


def test_parts_of_a_transformer_layer_are_seen_in_the_teacher_as_well():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    distiller = attached(model, [{"op_names": ["linear1"], "loss": "mse"}])
    with torch.no_grad():
        model.linear1.bias.add_(1)
    model(torch.randn(2, 5, 8))
    assert distiller.loss().item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(
    ("output", "rules", "words"),
    [
        (torch.zeros(4, 3, 5), [{}], "specify the axis of its classes"),
        (torch.zeros(4, 1), [{}], "a single class"),
        (torch.full((4, 5), 0.2), [{}], "are probabilities"),
        (torch.zeros(4, 5), [{"axis": 3}], "along axis 3, but has shape"),
        (torch.zeros(4, 5), [{"loss": "attention"}], "expected samples, channels"),
    ],
)
def test_outputs_that_a_loss_cannot_compare(output, rules, words):
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return output + self.bias

    distiller = attached(model := Constant(), rules)
    model(torch.zeros(1))
    with pytest.raises(ConfigError, match=words):
        distiller.loss()


def test_probabilities_are_compared_if_the_rule_says_so():
    class Softmaxed(Net):
        def forward(self, x):
            return super().forward(x).softmax(1)

    torch.manual_seed(0)
    model = Softmaxed().eval()
    distiller = attached(model, [{"probabilities": True, "temperature": 3.0}])
    with torch.no_grad():
        model.head.weight.mul_(-1)
    model(X)
    received = distiller.loss()
    logits = [Net.forward(net, X) / 3 for net in (model, distiller.teacher)]
    wanted = F.kl_div(logits[0].log_softmax(1), logits[1].softmax(1), reduction="batchmean")
    torch.testing.assert_close(received, 9 * wanted)


def test_features_without_a_gradient_are_refused():
    model = make()
    model.conv.requires_grad_(False)
    distiller = attached(model, FEATURES)
    model(X)
    with pytest.raises(StageError, match="no gradient reaches the output of layer 'conv'"):
        distiller.loss()


def test_data_parallel_is_refused():
    with pytest.raises(UnsupportedModelError, match="use DistributedDataParallel"):
        Distiller(nn.DataParallel(make()))


def test_calls_at_the_wrong_time():
    with pytest.raises(StageError, match="before a model was bound"):
        Distiller().loss()
    with pytest.raises(StageError, match="before a model was bound"):
        Distiller().state()
    distiller = Distiller(make())
    with pytest.raises(StageError, match=r"before compress\(\)"):
        distiller.loss()


# -- projections ---------------------------------------------------------------------------------------


def narrow_student(optimizer=torch.optim.SGD, rules=FEATURES, **kwargs):
    model = make(4, seed=1)
    trained = optimizer(model.parameters(), lr=0.1, **kwargs)
    return model, trained, attached(model, rules, trained, teacher=make(6))


def test_a_projection_starts_at_the_least_squares_fit_and_is_trained_without_decay():
    model, optimizer, distiller = narrow_student(weight_decay=0.5)
    model.conv.weight.requires_grad_(False)
    model.conv.bias.requires_grad_(True)
    count = len(optimizer.param_groups[0]["params"])
    model(X)
    loss = distiller.loss()
    (projection,) = distiller.parameters()
    assert projection.shape == (6, 4)
    with torch.no_grad():
        rows, wanted = (
            net.conv(X).movedim(1, -1).flatten(0, 2).double() for net in (model, distiller.teacher)
        )
        energy = (rows.T @ rows).diagonal().mean()
        ridge = rows.T @ rows + 1e-3 * energy * torch.eye(4, dtype=torch.float64)
        fitted = torch.linalg.solve(ridge, rows.T @ wanted).T
    torch.testing.assert_close(projection.detach(), fitted.float())
    torch.testing.assert_close(
        loss.detach(), (rows @ fitted.T - wanted).square().mean().float(), rtol=1e-4, atol=0
    )
    loss.backward()
    gradient, before = projection.grad.clone(), projection.detach().clone()
    assert len(optimizer.param_groups) == 1
    assert len(optimizer.param_groups[0]["params"]) == count + 1
    optimizer.step()
    torch.testing.assert_close(projection.detach(), before - 0.1 * gradient)  # not pulled to zero
    distiller.strip()
    assert len(optimizer.param_groups[0]["params"]) == count
    assert projection not in optimizer.state


def test_a_projection_needs_an_optimizer():
    model = make(4)
    distiller = attached(model, FEATURES, teacher=make(6))
    model(X)
    with pytest.raises(
        StageError, match=r"has 4 channels, its teacher 6.*example_inputs.*the optimizer"
    ):
        distiller.loss()


def test_a_projection_of_nan_names_the_layers():
    model, _, distiller = narrow_student()
    model(X * float("nan"))
    with pytest.raises(AlgorithmError, match="layer 'conv' and 'conv' of the teacher.*NaN"):
        distiller.loss()


def test_example_inputs_make_projections_in_time_for_an_optimizer_of_ones_own():
    model = make(4).train()
    before = copy.deepcopy(model.state_dict())
    distiller = attached(model, FEATURES, teacher=make(6), example_inputs=X)
    (projection,) = distiller.parameters()
    assert projection.shape == (6, 4) and projection.requires_grad and model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model(X)
    distiller.loss().backward()
    assert projection.grad.abs().sum() > 0
    assert distiller.parameters()[0] is projection


def test_shapes_that_no_projection_joins_are_refused():
    teacher = make(6)
    teacher.conv = nn.Conv2d(2, 6, 3)  # smaller maps, and other channels
    model, optimizer, distiller = narrow_student()
    distiller = attached(model, FEATURES, optimizer, teacher=teacher)
    model(X)
    with pytest.raises(ConfigError, match=r"\(8, 4, 4, 4\) and \(8, 6, 2, 2\) cannot be compared"):
        distiller.loss()
    model, optimizer, distiller = narrow_student(
        rules=[{"op_names": ["conv"], "loss": "kl", "axis": 1}]
    )
    model(X)
    with pytest.raises(
        ConfigError, match=r"has shape \(8, 4, 4, 4\), the teacher's \(8, 6, 4, 4\)"
    ):
        distiller.loss()


def test_a_projection_for_a_width_that_changed_again_is_refused():
    model, _, distiller = narrow_student()
    model(X)
    distiller.loss()
    model.conv = nn.Conv2d(2, 3, 3, padding=1)
    model.norm, model.head = nn.BatchNorm2d(3), nn.Linear(3, 3)
    model.conv._forward_hooks = distiller.get_wrappers()[0].module._forward_hooks
    model(X)
    with pytest.raises(StageError, match=r"made for 4 channels, but it has 3 now; strip\(\)"):
        distiller.loss()


# -- strip, copies, state --------------------------------------------------------------------------------


def test_strip_leaves_the_model_as_it_was():
    model = make()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    dicts = [dict(module.__dict__) for module in model.modules()]
    distiller = attached(model, [{}, *FEATURES])
    assert list(model.state_dict()) == keys  # neither teacher nor wrappers are in the model
    model(X)
    distiller.strip()
    assert list(model.state_dict()) == keys
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    assert [module.__dict__.keys() for module in model.modules()] == [d.keys() for d in dicts]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with pytest.raises(StageError, match=r"after strip\(\)"):
        distiller.loss()
    distiller.compress()
    model(X)
    distiller.loss()


def test_copies_of_the_model_are_not_watched(tmp_path):
    distiller = attached(model := make(), [{}, *FEATURES])
    model(X)
    copied = copy.deepcopy(model)  # between forward and loss: what is held has a graph
    copied(X)
    copied(X)
    torch.save(model, tmp_path / "whole.pt")
    loaded = torch.load(tmp_path / "whole.pt", weights_only=False)
    loaded(X)
    distiller.loss()


def test_training_goes_on_from_a_state_exactly_as_if_it_had_not_stopped(tmp_path):
    def train(model, optimizer, distiller, steps):
        for step in range(steps):
            optimizer.zero_grad()
            torch.manual_seed(step)
            model(X)
            distiller.loss().backward()
            optimizer.step()

    model, optimizer, distiller = narrow_student(torch.optim.Adam)
    train(model, optimizer, distiller, 3)
    distiller.state().save(tmp_path)
    weights, memory = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, distiller, 3)

    resumed, trained, follower = narrow_student(torch.optim.Adam)
    follower.load_state(tmp_path)
    resumed.load_state_dict(weights)
    trained.load_state_dict(memory)
    train(resumed, trained, follower, 3)
    assert torch.equal(follower.parameters()[0], distiller.parameters()[0])
    for key, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_moments_find_their_projection_beside_learned_scores_of_the_same_shape(is_first, is_named):
    """Projections of this distiller exist at once after a resume, but late in the first run."""

    def start():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        teacher = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4))
        held = model.named_parameters() if is_named else model.parameters()
        optimizer = torch.optim.Adam(held, 1e-2, weight_decay=0.1)
        rules = [{"op_names": ["0"], "loss": "mse"}, {}]
        return model, optimizer, attached(model, rules, optimizer, teacher=teacher)

    def prune(model, optimizer):
        rules = [{"op_names": ["2"], "sparsity": 0.5}]  # scores of shape 4×8, as the projection
        pruner = MovementPruner(model, rules, optimizer, 0, 6)
        pruner.compress()
        return pruner

    def train(model, optimizer, distiller, steps):
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(8, 6))
            distiller.loss().backward()
            optimizer.step()

    model, optimizer, distiller = start()
    pruner = prune(model, optimizer)
    train(model, optimizer, distiller, range(5))
    weights, memory = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    states = distiller.state(), pruner.state()
    train(model, optimizer, distiller, range(5, 10))

    resumed, trained, follower = start()
    if is_first:
        follower.load_state(states[0])
    other = prune(resumed, trained)
    if not is_first:
        follower.load_state(states[0])
    other.load_state(states[1])
    resumed.load_state_dict(weights)
    trained.load_state_dict(memory)
    train(resumed, trained, follower, range(5, 10))
    for key, value in model.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key
    if is_named:
        names = [group["param_names"] for group in (*optimizer.param_groups, *trained.param_groups)]
        assert names[0] == names[1] and names[0][-2:] == ["0.projection", "2.movement_score"]


def test_a_state_of_another_teacher_is_refused_and_changes_nothing():
    model, _, distiller = narrow_student()
    model(X)
    distiller.loss()
    state = distiller.state()
    model, optimizer, other = narrow_student()
    changed = Distiller(model, FEATURES, optimizer, teacher=make(6, seed=8))
    changed.compress()
    with pytest.raises(StateError, match="saved with another teacher.*original weights"):
        changed.load_state(state)
    assert changed.parameters() == []
    other.load_state(state)
    assert torch.equal(other.parameters()[0], distiller.parameters()[0])


def test_a_damaged_state_is_refused():
    model, _, distiller = narrow_student()
    model(X)
    distiller.loss()
    state = distiller.state()
    tensors = {"conv": {"projection": torch.zeros(3, 3)}}
    bad = CompressionState("Distiller", state.layers, tensors, state.progress)
    with pytest.raises(StateError, match="shape"):
        distiller.load_state(bad)


# -- beside other compressors ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_first", [True, False])
def test_strip_of_either_leaves_the_other_in_force(is_first):
    model = make()
    distiller = attached(model, [{}, *FEATURES])
    pruner = LevelPruner(model, [{"sparsity": 0.5}])
    pruner.compress()
    quantizer = QATQuantizer(model, [{"op_types": ["Conv2d", "Linear"], "quant_bits": 8}])
    quantizer.compress()
    zeros = int((pruner.get_modules_wrapper()[0].weight == 0).sum())
    if is_first:
        distiller.strip()
        assert int((pruner.get_modules_wrapper()[0].weight == 0).sum()) == zeros
        assert quantizer.is_wrapped and pruner.is_wrapped
    else:
        quantizer.strip()
        pruner.strip()
        model(X)
        assert distiller.loss().item() > 0


def test_a_distiller_bound_later_takes_its_teacher_then():
    distiller = Distiller(config_list=[{"loss": "mse"}])
    model = make().eval()
    distiller.compress(model)
    with torch.no_grad():
        model.head.bias.add_(2)
    model(X)
    assert distiller.loss().item() == pytest.approx(4.0, rel=1e-5)
