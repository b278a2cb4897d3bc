"""NNI's ``AMCPruner``: the same target, found by :class:`~lilliput.search.search.Search`.

He et al., "AMC: AutoML for model compression and acceleration on mobile devices", 2018, trained an agent by
reinforcement learning for hundreds of episodes. There is no agent here: sparsities for the same budget are
found from sensitivities, an exact solve and exchanges by the evaluator's score. The uniform sparsity that
meets the budget is evaluated as well, so that the result is never worse than that.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lilliput.compat.nni.classes.arguments import Unknown
from lilliput.compat.nni.classes.cutting import new_optimizer
from lilliput.compat.nni.classes.searching import FirstStage, SecondStage, base_masker
from lilliput.compat.nni.classes.training import training_mode
from lilliput.compat.nni.tools.flops import count_flops_params
from lilliput.compat.nni.tools.speedup import at_least_two
from lilliput.errors import ConfigError
from lilliput.frameworks.work import batch_of
from lilliput.pruning.channel_rule import ChannelRule
from lilliput.search.search import Search
from lilliput.search.space import Space
from lilliput.search.strategies.moves import alike
from lilliput.speedup.channels import channel_groups

log = logging.getLogger("lilliput")

_BASES = ("l1", "l2", "fpgm")
_ALTERNATIVES = 20  # per layer, at most
_BATCHES = 8  # for sensitivities, if a program does not specify a number
_OF_AGENT = (
    *("hidden1", "hidden2", "lr_c", "lr_a", "warmup", "discount", "bsize", "rmsize"),
    *("window_length", "tau", "init_delta", "delta_decay", "max_episode_length", "epsilon"),
    *("n_points_per_layer", "suffix", "model_type", "dataset", "output_dir", "debug"),
)


class SearchedChannels(FirstStage):
    """Find the channels to remove, and mask them."""

    rule = ChannelRule
    budget: Mapping[str, Any] = {}
    limits: tuple[Any, Any] = (0.0, 1.0)  # of the sparsity of a layer
    algorithm: Any = "l1"
    trials: Any = 1
    seed: Any = 0
    scorer: Any = None
    loader: Any = None
    batches: Any = _BATCHES
    settings: Mapping[str, Any] = {}
    score: float | None = None

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return False

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        for name in _OF_AGENT:
            given.pop(name, None)
        if given.pop("reward", "acc_reward") not in ("acc_reward", None):
            raise ConfigError(
                "AMCPruner: reward: the budget is kept exactly, and the score is the evaluator's; expected "
                "'acc_reward'."
            )
        self.budget = {"macs": given.pop("flops_ratio")}
        self.limits = 1 - given.pop("rbound"), 1 - given.pop("lbound")
        self.settings = {"round_to": given.pop("channel_round")}
        self.trials, self.seed = given.pop("train_episode"), given.pop("seed", None) or 0
        self.loader, self.batches = given.pop("val_loader"), given.pop("n_calibration_batches")
        self.scorer = given.pop("evaluator")
        if self.scorer is None or self.loader is None:
            raise ConfigError(
                "AMCPruner: evaluator(val_loader, model) and val_loader are required."
            )
        self.masker_type = base_masker("AMCPruner", "l1")
        given["config_list"] = _with_sparsity(given.get("config_list"))
        return super()._translated(given)

    def compress(self, model: Any = None) -> Any:
        """Search, mask the channels that were found in all layers that use them, and return the model."""
        self._take(model)
        found = list(islice(self.loader, self.batches))
        inputs = at_least_two(found[0][0] if isinstance(found[0], (tuple, list)) else found[0])

        def evaluate(model: Any) -> Any:
            return self.scorer(self.loader, model)

        rules, _ = self._search(evaluate, found, inputs, self.budget)
        self.config_list, self.example_inputs = rules, inputs
        self._wrappers = None
        self._bind()
        return self.attach()

    def _search(
        self,
        evaluate: Callable[[Any], Any],
        data: Iterable[Any],
        inputs: Any,
        budget: Mapping[str, Any],
    ) -> tuple[list[dict[str, Any]], Any]:
        """Return the rules that were found, and the network without the removed channels."""
        log.warning(
            "AMCPruner: there is no agent to train here. The same target (%s) is searched by sensitivities "
            "and an exact solve, Search of lilliput.torch; arguments of the agent have no effect.",
            ", ".join(f"{k}: {v:g}" for k, v in budget.items()),
        )
        search = Search(
            self.bound_model,
            self._choices(inputs),
            budget=budget,
            evaluate=evaluate,
            data=data,
            example_inputs=inputs,
            pruner=self.algorithm,
            recover="none",
            trials=self.trials,
            seed=self.seed,
        )
        with tempfile.TemporaryDirectory() as folder:
            task = search.start(Path(folder))
            best = search.run_strategy(task)
            uniform = alike(task)
            if uniform is not None:
                best = max([best, task.trial(uniform)], key=lambda trial: trial.metric)
        self.score = best.metric
        return search.space.pruning(best.choice), task.candidate(best.choice).model

    def _choices(self, inputs: Any) -> list[dict[str, Any]]:
        """Return rules for the selected layers whose channels can be removed, in steps of whole channels."""
        types = {layer.type for layer in self.selection.chosen}
        rule = {"op_types": sorted(types), "sparsity": {"choose": [0, 0.5]}}
        left = [d.layer for d in self.selection.decisions if not d.is_chosen]
        others = [layer.name for layer in left if layer.type in types]
        rules = [rule, {"op_names": others, "exclude": True}] if others else [rule]
        space = Space(self.bound_model, rules, inputs, self.algorithm)
        (least, most), step = self.limits, int(self.settings.get("round_to", 1))
        found = []
        for decision in space.decisions:
            width = space.layers[decision.layers[0]].out_channels
            count = step * math.ceil(width / step / _ALTERNATIVES)
            shares = [i / width for i in range(0, width, count)]
            chosen = [x for x in shares if least <= x <= most] or [least]
            names = list(decision.layers)
            found.append({"op_names": names, **self.settings, "sparsity": {"choose": chosen}})
        return found


class SearchedAndCut(SearchedChannels, SecondStage):
    """The second stack, which cuts: the given model is not changed."""

    dummy_input: Any = None
    target: Any = "flops"
    share: Any = 0.5

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        self.target, self.dummy_input = given.pop("target"), given.pop("dummy_input")
        if not isinstance(self.target, Unknown) and self.target not in ("flops", "params"):
            raise ConfigError(
                f"AMCPruner: target: received {self.target!r}, expected 'flops' or 'params'."
            )
        self.trials, self.algorithm = given.pop("total_episode"), given.pop("pruning_algorithm")
        if not isinstance(self.algorithm, Unknown) and self.algorithm not in _BASES:
            raise ConfigError(
                f"AMCPruner: pruning_algorithm: received {self.algorithm!r}, expected {', '.join(_BASES)}, "
                "which use only weights."
            )
        self.masker_type = base_masker("AMCPruner", "l1")
        given.pop("ddpg_params", None)
        if given.pop("pruning_params", None):
            raise ConfigError("AMCPruner: pruning_params is not available here.")
        self.scorer = given.pop("evaluator")
        if self.scorer is None or self.dummy_input is None:
            raise ConfigError("AMCPruner: dummy_input and evaluator are required.")
        translated = super(SearchedChannels, self)._translated(given)
        if hasattr(self.scorer, "train") and not isinstance(self.scorer, Unknown):
            self.evaluator = self.scorer
        return translated

    def compress(self, model: Any = None) -> Any:
        """Search, cut, fine-tune, and return the model and its masks, which are empty."""
        self._take(model)
        evaluate = getattr(self.scorer, "evaluate", self.scorer)
        inputs = at_least_two(self.dummy_input)
        data = seen_batches(self.bound_model, evaluate) or [inputs]
        self.config_list, small = self._search(evaluate, data, inputs, self._budget(inputs))
        if self.evaluator is not None:
            new_optimizer(self.evaluator, small, type(self).__name__)
        self.bound_model, self._wrappers, self._has_compressed = small, [], True
        with training_mode(small):
            self._train_once(0)
        if self._tunes:
            self.score = float(evaluate(small))
        return small, {}

    @property
    def _tunes(self) -> bool:
        return self.finetuner is not None or self.evaluator is not None

    def _budget(self, inputs: Any) -> dict[str, float]:
        """Return the budget of the whole network if the selected layers lose their share."""
        chosen = {layer.name: layer for layer in self.selection.chosen}
        share = next(iter(chosen.values())).config.get("total_sparsity")
        caps = [x.config.get("max_sparsity_per_layer") or 1.0 for x in chosen.values()]
        if share is None:
            raise ConfigError("AMCPruner: config_list: expected 'total_sparsity' in its rules.")
        self.limits = 0.0, min(caps)
        if self.target == "params":
            whole = sum(p.numel() for p in self.bound_model.parameters())
            own = sum(math.prod(layer.shape) for layer in chosen.values())
            return {"params": whole - share * own}
        _, _, rows = count_flops_params(self.bound_model, inputs, verbose=False)
        own = sum(row["flops"] for row in rows if row["name"] in chosen)
        groups = channel_groups(self.bound_model, inputs)
        batch = batch_of(tree_leaves(inputs))
        return {"macs": groups.count_macs() / batch - share * own}

    def get_masks(self) -> dict[str, dict[str, Any]]:
        """Return no masks: everything is cut out."""
        return {}

    def get_best_result(self) -> tuple[Any, ...]:
        """Return ``(task, model, masks, score, config_list)``."""
        return 0, self.bound_model, {}, self.score, self.config_list


def seen_batches(model: Any, call: Callable[[Any], Any]) -> list[Any]:
    """Return the first inputs with which a function calls a model, if it has one argument."""
    seen: list[Any] = []

    def note(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_plain = len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor)
        if is_plain and len(seen) < _BATCHES:
            seen.append(args[0].detach().clone())

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        call(model)
    finally:
        handle.remove()
    return seen


def _with_sparsity(rules: Any) -> Any:
    """Add a sparsity to rules of 1.x, which only select layers, so that they can be read."""
    if not isinstance(rules, (list, tuple)):
        return rules
    known = [dict(x) if isinstance(x, Mapping) else x for x in rules]
    for rule in known:
        if isinstance(rule, dict) and not rule.get("exclude"):
            rule.setdefault("sparsity", 0.5)
    return known
