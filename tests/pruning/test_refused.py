"""Arguments and rules that make no sense, of pruners that act in training: refused, and why."""

import pytest
from torch import nn

from lilliput.errors import ConfigError
from lilliput.torch import AGPPruner, MovementPruner, RigLPruner

HALF = {"sparsity": 0.5}
STEPS = {"training_steps": 9}
END = {"cool_down_beginning_step": 3}
CASES = [
    (RigLPruner, HALF, {}, "training_steps: received None"),
    (RigLPruner, HALF, {"training_steps": 0}, "training_steps: received 0"),
    (RigLPruner, HALF, {**STEPS, "update_every": 0}, "update_every: received 0"),
    (RigLPruner, HALF, {**STEPS, "drop_fraction": 1.5}, "drop_fraction: received 1.5"),
    (RigLPruner, HALF, {**STEPS, "stop_at": 0}, "stop_at: received 0"),
    (RigLPruner, {}, STEPS, "received neither"),
    (RigLPruner, {**HALF, "total_sparsity": 0.5}, STEPS, "received both"),
    (RigLPruner, {**HALF, "granularity": [3, 1]}, STEPS, "blocks of 3×1 do not divide"),
    (RigLPruner, {"granularity": "1:3"}, STEPS, "has 4 inputs, which 3 does not divide"),
    (RigLPruner, {"granularity": "2:4", "sparsity": 0.7}, STEPS, "leave 'sparsity' out"),
    (
        RigLPruner,
        {"granularity": "2:4", "total_sparsity": 0.5},
        STEPS,
        "sparsity of 0.5 in each layer; omit 'total_sparsity'",
    ),
    (MovementPruner, HALF, {}, "cool_down_beginning_step: received None"),
    (MovementPruner, HALF, {**END, "warm_up_step": -1}, "warm_up_step: received -1"),
    (MovementPruner, HALF, {**END, "warm_up_step": 3}, "expected less than"),
    (MovementPruner, HALF, {**END, "movement_mode": "mild"}, "expected 'hard' or 'soft'"),
    (MovementPruner, HALF, {**END, "regular_scale": -1}, "regular_scale: received -1"),
    (MovementPruner, HALF, {**END, "score_scale": 0}, "score_scale: received 0"),
    (MovementPruner, {}, END, "'sparsity' is missing"),
    (MovementPruner, {**HALF, "granularity": [3, 1]}, END, "blocks of 3×1 do not divide"),
    (
        MovementPruner,
        {"granularity": "2:4"},
        {**END, "movement_mode": "soft"},
        "no N:M pattern is possible: movement_mode='soft' keeps weights whose score is above a threshold",
    ),
    (
        AGPPruner,
        {"granularity": "2:4"},
        {"soft": True},
        "no N:M pattern is possible: soft=True shrinks all weights or blocks of a layer by one",
    ),
    (
        AGPPruner,
        {"final_sparsity": 0.5},
        {"soft": True, "pruning_algorithm": "l1"},
        "'l1' removes channels, but a norm after a channel that is only shrunk",
    ),
    (
        AGPPruner,
        {"final_sparsity": 0.5},
        {"soft": True, "pruning_algorithm": "random"},
        "shrunk by magnitude, but 'random' ranks by another criterion",
    ),
]


@pytest.mark.parametrize(("cls", "rule", "options", "text"), CASES)
def test_what_makes_no_sense_is_refused(cls, rule, options, text):
    with pytest.raises(ConfigError, match=text):
        cls(nn.Linear(4, 4), [rule], **options)
