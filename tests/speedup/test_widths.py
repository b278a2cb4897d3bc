"""Widths that modules remember but do not compute with are those of the shrunk model."""

import torch
from torch import nn

from lilliput.torch import L1NormPruner, load, speedup


class Backbone(nn.Module):
    """Remembers widths as the models of timm do."""

    def __init__(self, classes=3):
        super().__init__()
        self.embed_dim = self.num_features = self.head_hidden_size = 32
        self.stem_channels, self.dims = 16, (16, 32)
        self.feature_info = [
            {"num_chs": 16, "reduction": 1, "module": "stem"},
            {"num_chs": 32, "reduction": 1, "module": "act"},
        ]
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.body, self.act = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.act(self.body(self.stem(x))).mean((2, 3)))


class Ambiguous(Backbone):
    """Two things of one width, cut to different ones."""

    def __init__(self):
        super().__init__()
        self.wide_dim, self.other = 32, nn.Linear(3, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, x):
        return super().forward(x) + self.last(self.other(x.mean((2, 3))))


def shrunk(model, sparsity=0.5, **rules):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    config = [{"op_names": ["stem", "body"], "sparsity": sparsity}]
    config += [{"op_names": [name], "sparsity": s} for name, s in rules.items()]
    L1NormPruner(model, config, example_inputs=x).compress()
    return speedup(model, x), x


def test_a_new_classifier_fits():
    result, x = shrunk(Backbone())
    model = result.model
    assert model.num_features == model.embed_dim == model.head_hidden_size == 16
    model.head = nn.Linear(model.num_features, 7)
    assert model(x).shape == (2, 7)
    assert result.remembered["num_features"] == (32, 16)
    assert "num_features 32 → 16" in str(result)


def test_lists_of_widths_and_of_feature_maps_follow():
    model = Backbone()
    given = model.feature_info
    result, _ = shrunk(model)
    assert (model.stem_channels, model.dims) == (8, (8, 16))
    assert [x["num_chs"] for x in model.feature_info] == [8, 16]
    assert [x["num_chs"] for x in given] == [16, 32]  # perhaps another model's too
    assert result.notes == ()


def test_the_width_that_a_classifier_reads_is_known_among_others():
    class Deeper(Backbone):
        def __init__(self):
            super().__init__()
            self.head = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 3))

    model = Deeper()
    shrunk(model, **{"head.0": 0.25})
    assert model.head[0].in_features == 16 and model.num_features == model.head[1].in_features == 24


def test_two_classifiers_of_different_widths_leave_it_open():
    model = Ambiguous()
    result, _ = shrunk(model, other=0.25)
    assert model.head.in_features == 16 and model.last.in_features == 24
    assert "num_features" not in result.remembered and "num_features" in result.notes[-1]


def test_a_width_that_could_be_either_is_reported():
    model = Ambiguous()
    result, _ = shrunk(model, other=0.25)
    assert model.wide_dim == 32
    assert "wide_dim (32)" in result.notes[-1] and "from before the cut" in str(result)


def test_widths_are_saved_and_loaded(tmp_path):
    result, x = shrunk(Backbone())
    result.save(tmp_path)
    again = load(Backbone(), tmp_path)
    assert again.num_features == 16 and again.dims == (8, 16)
    assert [x["num_chs"] for x in again.feature_info] == [8, 16]
    assert torch.equal(again.eval()(x), result.model.eval()(x))


def test_what_is_not_cut_keeps_its_width():
    model = Backbone()
    x = torch.randn(2, 3, 8, 8)
    L1NormPruner(model, [{"op_names": ["stem"], "sparsity": 0.5}], example_inputs=x).compress()
    speedup(model, x)
    assert (model.num_features, model.stem_channels, model.dims) == (32, 8, (8, 32))


def test_an_attribute_that_forward_reads_otherwise_is_left_and_reported():
    class Reads(Backbone):
        def forward(self, x):
            return super().forward(x) / self.head_hidden_size

    model = Reads()
    result, _ = shrunk(model)
    assert model.head_hidden_size == 32 and model.num_features == 16
    assert "head_hidden_size (32)" in result.notes[-1]


def test_a_width_that_other_layers_still_have_is_not_reported():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden_dim = 32
            self.up, self.inner, self.down = nn.Linear(3, 32), nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x):
            return self.down(self.inner(self.up(x)))

    model, x = Encoder(), torch.randn(2, 3)
    L1NormPruner(model, [{"op_names": ["inner"], "sparsity": 0.5}], example_inputs=x).compress()
    assert speedup(model, x).notes == () and model.hidden_dim == 32
