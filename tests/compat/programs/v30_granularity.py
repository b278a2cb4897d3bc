"""v3.0: blocks in linear layers, input channels, one ratio for a group of layers, a threshold."""

from nni.compression.pruning import L1NormPruner, LevelPruner
from torch import nn

model = nn.Sequential()
for name, layer in {
    "embed": nn.Linear(16, 32),
    "query": nn.Linear(32, 32),
    "key": nn.Linear(32, 32),
    "mlp": nn.Linear(32, 64),
    "out": nn.Linear(64, 8),
}.items():
    model.add_module(name, layer)
before = {key: value.clone() for key, value in model.state_dict().items()}

block_config_list = [
    {"op_names": ["embed"], "sparse_ratio": 0.25, "granularity": "in_channel"},
    {"op_names": ["mlp"], "sparse_ratio": 0.5, "granularity": [8, 8]},
]
_, block_masks = L1NormPruner(model, block_config_list).compress()

config_list = [
    {
        "op_names": ["query", "key"],
        "target_names": ["weight", "bias"],
        "target_settings": {
            "weight": {
                "sparse_ratio": 0.6,
                "max_sparse_ratio": None,
                "min_sparse_ratio": 0.1,
                "sparse_threshold": None,
                "global_group_id": "attention",
                "dependency_group_id": None,
                "granularity": "default",
                "internal_metric_block": None,
                "apply_method": "mul",
            },
            "bias": {"align": {"target_name": "weight", "dims": [0]}, "apply_method": "mul"},
        },
    },
    {"op_names": ["out"], "sparse_threshold": 0.05},
]
_, masks = LevelPruner(model, config_list).compress()
