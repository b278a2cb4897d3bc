"""``auto_set_denpendency_group_ids``: which layers lose channels together, and that masks follow."""

import torch
from torch import nn

from lilliput.compat.nni import install, uninstall


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.left = nn.Conv2d(8, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.tail = nn.Conv2d(16, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = self.stem(x)
        y = x + self.left(torch.relu(x))
        z = self.grouped(torch.relu(y))
        y = torch.cat([y, z], 1)
        return self.head(torch.relu(self.tail(y)).mean((2, 3)))


def test_added_layers_share_a_group_and_grouped_ones_a_number_of_parts():
    install()
    try:
        from nni.compression.pruning import L1NormPruner
        from nni.compression.speedup import ModelSpeedup
        from nni.compression.utils import auto_set_denpendency_group_ids

        torch.manual_seed(0)
        model, x = Net().eval(), torch.randn(2, 3, 6, 6)
        rules = [
            {"op_types": ["Conv2d"], "sparse_ratio": 0.5, "exclude_op_names": ["tail"]},
            {"op_names": ["head"], "exclude": True},
        ]
        found = auto_set_denpendency_group_ids(model, rules, x)
        by_name = {rule["op_names"][0]: rule for rule in found}
        assert list(by_name) == ["stem", "left", "grouped", "head"]
        assert found[-1] == rules[-1]
        assert by_name["stem"]["dependency_group_id"] == by_name["left"]["dependency_group_id"]
        assert {name: rule.get("internal_metric_block") for name, rule in by_name.items()} == {
            **dict.fromkeys(("stem", "left", "grouped"), 2),
            "head": None,
        }
        assert "dependency_group_id" not in by_name["grouped"]
        scores = [layer.weight.detach().abs().sum((1, 2, 3)) for layer in (model.stem, model.left)]
        pruner = L1NormPruner(model, found)
        _, masks = pruner.compress()
        mean = (scores[0] + scores[1]).reshape(2, 4)
        gone = sorted(int(i) + 4 * row for row in (0, 1) for i in mean[row].argsort()[:2])
        for name in ("stem", "left"):
            rows = masks[name]["weight"].flatten(1).amax(1)
            assert (rows == 0).nonzero().flatten().tolist() == gone
        pruner.unwrap_model()
        before = model(x)
        ModelSpeedup(model, x, masks).speedup_model()
        assert (model.stem.out_channels, model.grouped.out_channels) == (4, 4)
        torch.testing.assert_close(model(x), before)
    finally:
        uninstall()
