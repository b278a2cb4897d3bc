"""NNI's ``AutoCompressPruner``: rounds of annealing, ADMM and cutting.

Liu et al., "AutoCompress: an automatic DNN structured pruning framework for ultra-high compression rates",
2020. With ``n`` rounds, each keeps the ``n``-th root of what the rules keep in total.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from lilliput.compat.nni.classes.admm import IterationsInside, SecondIterationsInside
from lilliput.compat.nni.classes.arguments import Unknown
from lilliput.compat.nni.classes.constructors import FORMS
from lilliput.compat.nni.classes.cutting import CutsInTheEnd
from lilliput.compat.nni.classes.searching import (
    AnnealingForm,
    FirstStage,
    SecondAnnealingForm,
    base_masker,
)
from lilliput.compat.nni.classes.training import training_mode
from lilliput.compat.nni.config.rules import in_part
from lilliput.compat.nni.tools.speedup import ModelSpeedup
from lilliput.errors import ConfigError
from lilliput.pruning.one_shot import OneShotPruner

_OF_ANNEALING = (
    *("evaluator", "optimize_mode", "base_algo", "start_temperature", "stop_temperature"),
    *("cool_down_rate", "perturbation_magnitude"),
)


class Annealing(AnnealingForm):
    """The annealing of a round, in the first stack."""

    forms = FORMS["first"]["SimulatedAnnealingPruner"]


class SecondAnnealing(SecondAnnealingForm):
    """The annealing of a round, in the second stack."""

    forms = FORMS["second"]["SimulatedAnnealingPruner"]


class ADMM(IterationsInside):
    """The training of a round, in the first stack."""

    forms = FORMS["first"]["ADMMPruner"]


class SecondADMM(SecondIterationsInside):
    """The training of a round, in the second stack."""

    forms = FORMS["second"]["ADMMPruner"]


class RoundsThatCut(FirstStage):
    """The first stack: each round works on a copy of the model that is smaller than the one before."""

    rounds: Any = 3
    annealing: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    dummy_input: Any = None
    asked: Any = None

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return False

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        title = type(self).__name__
        self.rounds, self.dummy_input = given.pop("num_iterations"), given.pop("dummy_input")
        if self.dummy_input is None:
            raise ConfigError(f"{title}: dummy_input is missing: each round cuts the model.")
        self.annealing = {name: given.pop(name) for name in _OF_ANNEALING}
        epochs = (
            given.pop("admm_training_epochs", None),
            given.pop("admm_epochs_per_iteration", None),
        )
        self.training = {
            "trainer": given.pop("trainer"),
            "criterion": given.pop("criterion", None),
            "num_iterations": given.pop("admm_num_iterations"),
            "epochs_per_iteration": epochs[0] or epochs[1],
            "row": given.pop("row"),
            "base_algo": self.annealing["base_algo"],
        }
        self.masker_type = base_masker(title, self.annealing["base_algo"])
        self.asked = given.get("config_list")
        given.pop("experiment_data_dir", None)
        return super()._translated(given)

    def compress(self, model: Any = None) -> Any:
        """Run all rounds, and return the small model; the given model is not changed."""
        self._take(model)
        small = copy.deepcopy(self.bound_model)
        rules = in_part(self.asked, 1 / self.rounds)
        for _ in range(self.rounds):
            found = Annealing(small, rules, **self.annealing).find_rules()
            trained = ADMM(small, found, **self.training)
            trained.compress()
            masks = trained.get_masks()
            trained.strip()
            small = ModelSpeedup(small, self.dummy_input, masks).speedup_model()
        self.bound_model, self._wrappers, self._has_compressed = small, [], True
        return small


class RoundsThatMask(CutsInTheEnd, OneShotPruner):
    """The second stack: each round prunes the same model further, and ``speedup`` cuts in the last."""

    rounds: Any = 1
    annealing: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}
    asked: Any = None
    scorer: Any = None

    def _is_of_today(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return False

    def _translated(self, given: dict[str, Any]) -> dict[str, Any]:
        title = type(self).__name__
        self.rounds = given.pop("total_iteration")
        annealing, training = given.pop("sa_params"), given.pop("admm_params")
        for name, params in (("sa_params", annealing), ("admm_params", training)):
            if not isinstance(params, (Mapping, Unknown)):
                raise ConfigError(
                    f"{title}: {name}: received {params!r}, expected a dict of arguments."
                )
        self.annealing = {} if isinstance(annealing, Unknown) else dict(annealing)
        self.training = {} if isinstance(training, Unknown) else dict(training)
        is_coarse = self.training.get("granularity") == "coarse-grained"
        self.masker_type = base_masker(title, "l1" if is_coarse else "level")
        evaluator = given.pop("evaluator", None)
        self.scorer = evaluator or self.annealing.get("evaluator")
        self._take_cutting(given, evaluator)
        self.asked = given.get("config_list")
        translated = super()._translated(given)
        if hasattr(evaluator, "train") and not isinstance(evaluator, Unknown):
            self.evaluator = evaluator
        return translated

    def compress(self, model: Any = None) -> Any:
        """Run all rounds; return the model and its masks, which are empty if they are cut out."""
        self._take(model)
        before, number = self._backend.remember(self.bound_model), 0
        try:
            for number in range(1, self.rounds + 1):
                self._do_round(number)
        except BaseException:
            if not self.cuts or self.is_wrapped or number < self.rounds:
                self.strip()
                before.restore()
            raise
        return self.bound_model, self.get_masks()

    def _do_round(self, number: int) -> None:
        rules = in_part(self.asked, number / self.rounds)
        self.strip()
        found = SecondAnnealing(self.bound_model, rules, **self.annealing)
        self.config_list = found.find_rules()
        trained = SecondADMM(self.bound_model, self.config_list, **self.training)
        try:
            trained.compress()
        finally:
            trained.strip()
        self._wrappers = None
        self._bind()
        self.attach()
        if self.cuts and number == self.rounds:
            self._cut_out()
        with training_mode(self.bound_model):
            self._train_once(number)

    def get_best_result(self) -> tuple[Any, ...]:
        """Return ``(task, model, masks, score, config_list)`` of the last round."""
        score = None
        if self.scorer is not None:
            score = getattr(self.scorer, "evaluate", self.scorer)(self.bound_model)
        return self.rounds, self.bound_model, self.get_masks(), score, self.config_list
