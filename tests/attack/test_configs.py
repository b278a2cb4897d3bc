"""Config lists of any nonsense: accepted or refused by an error of ours, and the model as it was."""

from __future__ import annotations

import copy
import logging
import pathlib
import random
import time
import types
from typing import Any

import numpy as np
import pytest
import torch
from attack_tools import ALL, Outcome, fingerprint, settings_of, summary
from torch import nn

from lilliput.compat.nni.config.keys import OLD_KEYS
from lilliput.config.layer import QuantType
from lilliput.config.spec import PruneRule
from lilliput.errors import LilliputError

SLOWEST = 10.0  # seconds for one list of a few rules, on a busy machine


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class NoEq:
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class NoBool:
    def __bool__(self) -> bool:
        raise RuntimeError("no truth value")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class NoItems(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no items")

    def __iter__(self) -> Any:
        raise RuntimeError("no keys")


class LoudStr(str):
    def lower(self) -> str:
        raise RuntimeError("no lower")


def looped() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


NUMBERS = [0, 1, -1, 2, 4, 8, 16, 17, 0.0, 0.5, 0.999, 1.0, -0.5, 50, 80.0, 1e300, 1e-320, 10**400]
NUMBERS += [
    -(10**400),
    2**31,
    2**63,
    float("nan"),
    float("inf"),
    -float("inf"),
    True,
    False,
    3 + 4j,
]
TEXTS = [
    "",
    "default",
    "Conv2d",
    "conv2d",
    "Linear",
    "0",
    "3",
    "*",
    "re:.*",
    "re:(",
    "!0",
    "!",
    "re:",
]
TEXTS += [
    "[",
    "[!]",
    "2:4",
    "4:2",
    "0:0",
    "1:" + "9" * 400,
    "per_channel",
    "per_group",
    "int",
    "uint",
]
TEXTS += [
    "symmetric",
    "affine",
    "weight",
    "input",
    "output",
    "minmax",
    "percentile:nan",
    "mse",
    "ema",
]
TEXTS += [
    "percentile:1e999",
    "percentile:-1",
    "percentile:",
    "ü" * 50,
    "\x00",
    "\x1b[31m",
    "x" * 5000,
]
TEXTS += [
    "re:" + "(" * 50 + ")" * 50,
    "re:[",
    "re:\\",
    "(?i)x",
    "re:(?i)CONV.*",
    "\ud800",
    "nan",
    "1",
]


def junk(rng: random.Random, depth: int = 0) -> Any:
    """Return a value of any kind."""
    choice = rng.randrange(14)
    if choice < 4:
        return rng.choice(NUMBERS)
    if choice < 8:
        return rng.choice(TEXTS)
    if choice == 8 and depth < 3:
        return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
    if choice == 9 and depth < 3:
        keys = ["weight", "input", "output", "bias", "_input_", 3, None, "sparsity"]
        return {rng.choice(keys): junk(rng, depth + 1) for _ in range(rng.randrange(4))}
    if choice == 10 and depth < 3:
        return tuple(junk(rng, depth + 1) for _ in range(rng.randrange(3)))
    makers = [
        *(lambda: None, NoRepr, NoEq, NoBool, NoItems, object, looped, lambda: LoudStr("Conv2d")),
        *(lambda: nested(2000), lambda: {"a", "b"}, lambda: frozenset({1}), lambda: b"bytes"),
        *(lambda: np.float64(0.5), lambda: np.array([0.5, 1]), lambda: torch.tensor(0.5)),
        *(lambda: torch.ones(2), lambda: QuantType.WEIGHT, lambda: [QuantType.WEIGHT, "input"]),
        *(
            lambda: pathlib.Path("nowhere.yaml"),
            lambda: range(3),
            lambda: (x for x in [0.5]),
            lambda: int,
        ),
        *(lambda: types.MappingProxyType({"weight": 8}), lambda: NoItems(a=1), lambda: len),
    ]
    return rng.choice(makers)()


GOOD: dict[str, list[Any]] = {
    "op_types": [
        ["default"],
        "Linear",
        ["Conv2d", "Linear"],
        ["!Linear", "default"],
        ["BatchNorm2d"],
    ],
    "op_names": [["0"], "4", ["re:[04]"], ["*"], ["!0"], ["0", "4"]],
    "exclude": [True, False],
    "granularity": [
        "2:4",
        [1, 2],
        "per_channel",
        "per_tensor",
        "per_group",
        {"weight": "per_tensor"},
    ],
    "quant_types": [["weight"], ["weight", "input"], "output", ["input"]],
    "quant_bits": [8, 4, 1, 2, {"weight": 4}, {"weight": 8, "input": 8}, {"output": 3}],
    "quant_scheme": ["symmetric", "affine", {"input": "affine"}, "per_tensor_affine"],
    "quant_dtype": ["int", "uint", "int8", {"weight": "int"}],
    "max_macs": [0.5, 1000, 10],
    "max_params": [0.5, 100],
    "group_size": [2, 3, 9],
    "observer": ["minmax", "ema", "percentile:99.9", "mse", {"input": "mse"}],
    "end_epoch": [0, 3, 10],
    "frequency": [1, 2],
    "support_type": ["default", ["Linear"]],
    "target_names": [["weight", "_input_"], ["weight", "bias"]],
    "target_settings": [{"weight": {"quant_dtype": "int8"}}, {"weight": {"sparse_ratio": 0.5}}],
}


def rule(rng: random.Random, cls: Any) -> Any:
    """Return a rule that is right at first, with a few keys that are not."""
    if rng.random() < 0.04:
        return junk(rng)
    made: dict[Any, Any] = dict(settings_of(cls)) if rng.random() < 0.8 else {}
    keys = [
        *cls.rule.model_fields,
        *cls.rule.model_fields,
        *OLD_KEYS,
        "sparsities",
        "op_type",
        7,
        None,
    ]
    for _ in range(rng.randrange(5)):
        key = rng.choice(keys)
        is_good = rng.random() < 0.6
        made[key] = copy.deepcopy(rng.choice(GOOD.get(key, [0.5, 3]))) if is_good else junk(rng)
    return types.MappingProxyType(made) if rng.random() < 0.05 else made


def config_list(rng: random.Random, cls: Any) -> Any:
    """Return what a user, or an enemy, might hand to a constructor."""
    choice = rng.random()
    if choice < 0.04:
        return junk(rng)
    if choice < 0.06:
        return rng.choice([PruneRule(sparsity=0.5), "no/such.yaml", pathlib.Path(), None])
    rules = [rule(rng, cls) for _ in range(rng.choice([1, 1, 1, 2, 3, 6]))]
    if choice < 0.1:
        return rules[0]
    return tuple(rules) if choice < 0.15 else rules


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def attack(seed: int, cls: Any, model: nn.Module, before: list[Any]) -> Outcome:
    rng = random.Random(f"{cls.__name__} {seed}")
    given = config_list(rng, cls)
    start = time.process_time()
    kind, detail = "works", ""
    try:
        cls(model, given)
        copied = copy.deepcopy(model)
        try:
            cls(copied, given).compress()
        except StopIteration:  # a generator among the values is empty the second time
            kind = "refused"
    except LilliputError as error:
        raw = {c for c in str(error) if c != "\n" and not c.isprintable()}
        kind, detail = ("prints raw characters", str(raw)) if raw else ("refused", "")
    except BaseException as error:
        kind, detail = "foreign exception", f"{type(error).__name__}: {error}"
    if fingerprint(model) != before:
        kind = "model changed"
    elif time.process_time() - start > SLOWEST:
        kind, detail = "slow", f"{time.process_time() - start:.0f} s"
    return Outcome(f"{cls.__name__}, seed {seed}", kind, detail)


def sweep(count: int) -> list[Outcome]:
    """Attack all compressors in turn with lists that depend on nothing but their number."""
    logging.disable(logging.CRITICAL)
    try:
        model, classes = make_model(), list(ALL.values())
        before = fingerprint(model)
        return [attack(i, classes[i % len(classes)], model, before) for i in range(count)]
    finally:
        logging.disable(logging.NOTSET)


def test_a_sample_of_config_lists_is_accepted_or_refused() -> None:
    outcomes = sweep(300)
    assert not any(x.is_broken for x in outcomes), summary(outcomes)
    assert {x.kind for x in outcomes} == {"works", "refused"}


@pytest.mark.slow
def test_twenty_thousand_config_lists_are_accepted_or_refused() -> None:
    outcomes = sweep(20_000)
    print(summary(outcomes))
    assert not any(x.is_broken for x in outcomes), summary(outcomes)
