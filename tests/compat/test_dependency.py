"""Dependencies in NNI's words, against sets written down by hand."""

import csv

import pytest
import torch
from torch import nn

from lilliput.compat.nni.tools.conflicts import fix_mask_conflict
from lilliput.compat.nni.tools.dependency import (
    CatPaddingDependency,
    ChannelDependency,
    GroupDependency,
    InputChannelDependency,
    not_safe_to_prune,
)
from lilliput.errors import ConfigError


class Residual(nn.Module):
    """A stem, a block with a shortcut convolution, a plain block; its output is what the last one adds."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv1, self.bn1 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.shortcut = nn.Conv2d(4, 6, 1)
        self.conv3 = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        x = self.stem(x).relu()
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        x = (y + self.shortcut(x)).relu()
        return x + self.conv3(x)


class Concat(nn.Module):
    """Two branches side by side, read by one layer."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 6, 1)
        self.after = nn.Conv2d(10, 5, 1)
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        x = torch.cat([self.left(x).relu(), self.right(x)], dim=1)
        return self.fc(self.after(x).mean((2, 3)))


class Grouped(nn.Module):
    """A convolution in two groups, one in four, and a depthwise one."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 1)
        self.two = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.four = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x):
        return self.depthwise(self.four(self.two(self.conv(x).relu())))


X = torch.randn(1, 3, 8, 8)


def test_a_residual_block_binds_what_is_added():
    sets = ChannelDependency(Residual(), X).dependency_sets
    assert sets == [{"stem"}, {"conv1"}, {"conv2", "shortcut", "conv3"}]


def test_a_concatenation_binds_nothing():
    found = ChannelDependency(Concat(), X)
    assert found.dependency_sets == [{"left"}, {"right"}, {"after"}, {"fc"}]
    assert found.dependency == {}
    assert found.build_dependency() == {}
    assert CatPaddingDependency(Concat(), X).dependency_sets == [{"left", "right"}]


def test_readers_of_the_same_channels_depend_on_each_other():
    sets = InputChannelDependency(Residual(), X).dependency_sets
    assert sets == [{"stem"}, {"conv1", "shortcut"}, {"conv2"}, {"conv3"}]
    sets = InputChannelDependency(Concat(), X).dependency_sets
    assert sets == [{"left", "right"}, {"after"}, {"fc"}]


def test_groups_must_divide_what_is_made_for_them():
    assert GroupDependency(Grouped(), X).dependency_sets == {
        "conv": 2,
        "two": 4,
        "four": 8,
        "depthwise": 8,
    }


def test_a_depthwise_convolution_goes_with_what_it_reads():
    sets = ChannelDependency(Grouped(), X).dependency_sets
    assert sets == [{"conv"}, {"two"}, {"four", "depthwise"}]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ChannelDependency, [["Dependency Set", "Layers"], ["Set 1", "left"], ["Set 2", "right"]]),
        (GroupDependency, [["Conv Layer Name", "Group"], ["left", "1"], ["right", "1"]]),
    ],
)
def test_what_is_exported_is_a_table(kind, expected, tmp_path):
    kind(Concat(), X).export(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file))[:3] == expected


def test_a_model_is_needed():
    with pytest.raises(ConfigError, match="a dependency needs model and dummy_input"):
        ChannelDependency(traced_model=object())
    with pytest.raises(ConfigError, match="pass masks, model and dummy_input"):
        fix_mask_conflict({}, Concat(), X)


def test_masks_agree_afterwards_and_can_be_cut():
    from lilliput.compat.nni.tools.speedup import ModelSpeedup

    model = Residual().eval()
    removed = {"conv2": [0, 1, 2], "shortcut": [1, 2, 3], "conv3": [2, 5], "conv1": [4]}
    masks = {}
    for name, channels in removed.items():
        module = model.get_submodule(name)
        masks[name] = {"weight": torch.ones_like(module.weight), "bias": torch.ones(6)}
        masks[name]["weight"][channels] = 0
        masks[name]["bias"][channels] = 0
    fixed = fix_mask_conflict(masks, model, X)
    gone = {name: (mask["bias"] == 0).nonzero().flatten().tolist() for name, mask in fixed.items()}
    assert gone == {"conv2": [2], "shortcut": [2], "conv3": [2], "conv1": [4]}
    ModelSpeedup(model, X, {"conv1": fixed["conv1"]}).speedup_model()
    assert model.conv2.in_channels == 5


def test_masks_of_single_weights_are_left_alone():
    model = Concat()
    mask = torch.ones(4, 3, 1, 1)
    mask[0, 0] = 0
    fixed = fix_mask_conflict({"left": {"weight": mask}}, model, X)
    assert torch.equal(fixed["left"]["weight"], mask)


def test_layers_that_cannot_shrink_are_named():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.last(self.first(x).sort(-1).values)

    assert not_safe_to_prune(Sorted(), torch.randn(1, 3)) == ["first"]
    assert not_safe_to_prune(Concat(), X) == []
