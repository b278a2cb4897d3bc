import copy
import io
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from lilliput.errors import StageError
from lilliput.torch import LevelPruner, NaiveQuantizer


def make(masked=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    if masked:
        LevelPruner(model, [{"sparsity": 0.5}]).compress()
    NaiveQuantizer(model, [{"quant_bits": 4}]).compress()
    return model


EDITS = {
    "data": lambda w: w.data.fill_(1.0),
    "init": nn.init.kaiming_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "item": lambda w: w.__setitem__(0, 1.0),
    "row": lambda w: w[0].zero_(),
    "row of data": lambda w: w.data[0].zero_(),
    "transpose": lambda w: w.T.mul_(2.0),
    "view": lambda w: w.view(-1).add_(1.0),
    "piece": lambda w: w.chunk(2)[0].add_(1.0),
    "detached": lambda w: w.detach().copy_(torch.ones(6, 6)),
    "new data": lambda w: setattr(w, "data", torch.ones(6, 6)),
    "operator": lambda w: w.__imul__(2.0),
    "freeze": lambda w: w.requires_grad_(False),
    "gradient": lambda w: setattr(w, "grad", None),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("edit", EDITS.values(), ids=list(EDITS))
def test_an_edit_of_a_quantized_weight_raises_and_changes_nothing(edit, masked):
    model = make(masked)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad(), pytest.raises(StageError, match=r"'weight' is computed.*get_parameter"):
        edit(model[0].weight)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_every_view_of_a_quantized_weight_refuses_to_be_edited():
    weight = make()[0].weight.detach()
    storage = weight.untyped_storage()
    names = [x for x in dir(torch.Tensor) if not x.startswith("_") and not x.endswith("_")]
    views = set()
    for name, args in itertools.product(names, [(), (0,), (2,), (0, 1), ((6, 6),), (weight,)]):
        try:
            result = getattr(weight, name)(*args)
        except Exception:  # called in a way that it is not for
            continue
        for x in result if isinstance(result, (tuple, list)) else [result]:
            is_plain = type(x) is torch.Tensor and x.layout is torch.strided
            if is_plain and x.untyped_storage().data_ptr() == storage.data_ptr():
                views.add(name)
    assert views == set()


def test_resetting_a_quantized_layer_raises():
    with pytest.raises(StageError, match="'weight' is computed"):
        make()[0].reset_parameters()


def test_get_parameter_gives_the_raw_parameter_whose_edits_count():
    model = make()
    parameter = model.get_parameter("0.weight")
    assert parameter is model[0]._parameters["weight"]
    assert model[0].get_parameter("weight") is parameter
    parameter.data.fill_(0.5)
    assert torch.equal(model[0].weight, torch.full((6, 6), 0.5))


def test_the_gradient_of_the_parameter_is_seen():
    model = make()
    model(torch.randn(4, 6)).sum().backward()
    assert model[0].weight.grad is model.get_parameter("0.weight").grad is not None


def test_a_quantized_weight_is_read_like_any_tensor():
    weight = make()[0].weight
    assert type(weight + 1) is torch.Tensor and type(weight.clone()) is torch.Tensor
    assert weight.detach().numpy().shape == weight.T.shape == (6, 6)
    buffer = io.BytesIO()
    torch.save({"weight": weight.detach()}, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=True)["weight"], weight)
    assert type(copy.deepcopy(weight.detach())) is torch.Tensor
    edited = weight.detach().clone()
    edited.zero_()
    assert not edited.any() and weight.any()


def test_a_parametrized_weight_under_a_quantizer_raises_too():
    layer = parametrizations.weight_norm(nn.Linear(4, 4))
    NaiveQuantizer(layer, [{"quant_bits": 4}]).compress()
    with pytest.raises(StageError, match="is computed"):
        layer.weight.data.zero_()


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_code_with_a_graph_break_gets_plain_tensors():
    class Broken(nn.Linear):
        def forward(self, x):
            torch._dynamo.graph_break()
            weight = self.weight
            torch._dynamo.graph_break()
            return nn.functional.linear(x, weight, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(Broken(4, 4))
    NaiveQuantizer(model, [{"quant_bits": 4, "op_types": ["Linear"]}]).compress()
    x = torch.randn(2, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
