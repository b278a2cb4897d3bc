"""Recipes that are broken at random: always a message of ours, on one screen."""

import copy
import random

from lilliput.errors import ConfigError
from lilliput.recipes.load import load_recipe

GOOD = {
    **{"lilliput": 1, "model": "a:b", "data": "a:c", "loss": "mse", "evaluate": "a:e", "seed": 0},
    "steps": [
        {
            "prune": "agp",
            "config": [{"op_types": ["Conv2d"], "final_sparsity": 0.7}, {"exclude": True}],
            "options": {"pruning_algorithm": "l1"},
            "epochs": 3,
        },
        {"prune": "taylorfo", "options": {"training_batches": 3}},
        {"speedup": {}},
        {"finetune": {"epochs": 2, "learning_rate": 0.1}},
        {"quantize": "ptq", "options": {"smooth": 0.5, "adaround": {"steps": 1}}, "batches": 3},
        {"analyze": "level", "sparsities": [0.5]},
        {"export": "onnx", "file": "small.onnx", "options": {"opset": 21}},
    ],
}
JUNK = [
    *(None, True, 0, -1, 3.5, float("nan"), -1e300, 10**30, "", "x", "é→", ":", "a" * 300, "\0"),
    *([], {}, [{}], {"a": 1}, ["a", 1, None], {"": ""}, "agp", "qat", "../x", {1: 2}, [1] * 50),
]


def places(value, path=()):
    if path:
        yield path
    if isinstance(value, list):
        value = dict(enumerate(value))
    for key, held in value.items() if isinstance(value, dict) else ():
        yield from places(held, (*path, key))


def damage(recipe, chance):
    """Change one to three places of a recipe: another value, none, or another key."""
    broken = copy.deepcopy(recipe)
    for _ in range(chance.choice([1, 1, 2, 3])):
        *path, key = chance.choice(list(places(broken)))
        holder = broken
        for part in path:
            holder = holder[part]
        action = chance.random()
        if action < 0.5:
            holder[key] = copy.deepcopy(chance.choice(JUNK))
        elif action < 0.7:
            del holder[key]
        elif isinstance(holder, dict):
            holder[f"{key}{chance.choice('abz_')}"[chance.choice([0, 1]) :]] = holder.pop(key)
        else:
            holder.insert(key, copy.deepcopy(chance.choice(JUNK)))
    return broken


def test_random_damage_gives_one_screen_of_our_words():
    chance = random.Random(0)
    load_recipe(GOOD)
    refused = 0
    for _ in range(300):
        broken = damage(GOOD, chance)
        try:
            load_recipe(broken)
        except ConfigError as error:
            refused += 1
            assert 0 < len(str(error).splitlines()) <= 20, error
    assert refused > 200
