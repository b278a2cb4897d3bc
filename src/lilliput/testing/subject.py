"""The class under test, with its test settings, and how to create one for a given model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError
from lilliput.testing.lab import Lab, Model, Optimizer

Make = Callable[[Any, list[dict[str, Any]], Any], Compressor]

_FITTING: dict[tuple[Any, ...], bool] = {}  # whether a kind of model suits a class


@dataclass(frozen=True)
class Subject:
    """A pruner or quantizer class, with its test settings; see :mod:`lilliput.testing`.

    There is a subclass for each framework, with its lab.
    """

    lab: ClassVar[Lab]  # of the framework whose models it is tested on

    cls: Any
    config: Mapping[str, Any] | None = None
    make: Make | None = None

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.cls.__name__)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of every rule."""
        return self._defaults() if self.config is None else dict(self.config)

    @property
    def sparsity_key(self) -> str | None:
        """The setting for a sparsity in each layer, or None."""
        return next((k for k in ("final_sparsity", "sparsity") if k in self.settings), None)

    @property
    def has_bits(self) -> bool:
        """Whether the class has a setting for the number of bits."""
        return "quant_bits" in self.cls.rule.model_fields

    def rules(self, **settings: Any) -> list[dict[str, Any]]:
        """Return a config list of one rule."""
        return [{**self.settings, **settings}]

    def build(self, model: Model, optimizer: Optimizer = None, **settings: Any) -> Compressor:
        """Return a compressor for an untouched model."""
        return self.build_from(model, self.rules(**settings), optimizer)

    def build_from(self, model: Model, rules: Any, optimizer: Optimizer = None) -> Compressor:
        """Return a compressor with exactly this config list."""
        if self.make is not None:
            return self.make(model, rules, optimizer)
        given = (model, rules) if optimizer is None else (model, rules, optimizer)
        compressor: Compressor = self.cls(*given)
        return compressor

    def compress(self, model: Model, optimizer: Optimizer = None, **settings: Any) -> Compressor:
        """Compress a model in place and return the compressor."""
        compressor = self.build(model, optimizer, **settings)
        compressor.compress(model)
        return compressor

    def set_up(self, model: Model, *kind: str, **settings: Any) -> tuple[Optimizer, Compressor]:
        """Compress a model that is to be trained, and return its optimizer and the compressor."""
        optimizer = self.lab.optimizer(model, *kind)
        return optimizer, self.compress(model, optimizer, **settings)

    def train(self, model: Model) -> tuple[Optimizer, Compressor]:
        """Compress a model, train it for a few steps, and return its optimizer and the compressor."""
        optimizer, compressor = self.set_up(model)
        self.lab.train(model, optimizer, self.lab.STEPS, compressor)
        return optimizer, compressor

    def models(self, *kinds: str) -> list[Model]:
        """Return fresh models of these kinds (all by default), without unsuitable ones."""
        found = [self._fresh(kind) for kind in kinds or self.lab.SPECIMENS]
        return [model for model in found if model is not None]

    def model(self) -> Model:
        """Return a fresh model for checks that need only one."""
        for kind in self.lab.SPECIMENS:
            model = self._fresh(kind)
            if model is not None:
                return model
        raise ConfigError(
            f"{self.name} compresses {', '.join(sorted(self._wanted_types()))} only, of which no test "
            f"model has any; set config={{'op_types': [...]}} to layers such as "
            f"{' or '.join(self.lab.SIMPLE_TYPES)}."
        )

    def _fresh(self, kind: str) -> Model | None:
        """Return a model, or None if there is none or the class finds nothing to compress in it."""
        return self.lab.SPECIMENS[kind]() if self._fits(kind) else None

    def _fits(self, kind: str) -> bool:
        """Whether the class compresses anything in a kind of model; cached."""
        key = (type(self), self.cls, repr(self.settings), self.make is None, kind)
        if key not in _FITTING:
            with self.lab.isolated():  # as if no model had been created for it
                _FITTING[key] = self._has_types(kind) and self._has_channels(kind)
        return _FITTING[key]

    def _has_types(self, kind: str) -> bool:
        is_there = kind in self.lab.SPECIMENS
        return is_there and not self._wanted_types().isdisjoint(self.lab.types_in(kind))

    def _has_channels(self, kind: str) -> bool:
        try:
            if self.make is None:
                self.build(self.lab.SPECIMENS[kind]())  # which only reads the model
        except ConfigError as error:
            return "channels that can be removed" not in str(error)
        return True

    def _wanted_types(self) -> set[str]:
        """Return the layer types that the class compresses with these settings."""
        own = self.lab.DEFAULT_TYPES if self.cls.default_types is None else self.cls.default_types
        asked = self.settings.get("op_types", ["default"])
        names = {x for x in ([asked] if isinstance(asked, str) else asked) if x[:1] != "!"}
        return (names - {"default"}) | (set(own) if "default" in names or not names else set())

    def _defaults(self) -> dict[str, Any]:
        keys = self.cls.rule.model_fields
        if "final_sparsity" in keys:
            return {"final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 0}
        wanted: dict[str, Any] = {"sparsity": 0.5, "quant_bits": 8}
        return {key: value for key, value in wanted.items() if key in keys}


Check = Callable[[Subject], None]


def seeded(check: Check) -> Check:
    """Run a check with fixed seeds on one thread, and restore both.

    One thread is the fastest for models this small, and gives the same sums on every machine.
    """

    @functools.wraps(check)
    def run(subject: Subject) -> None:
        with subject.lab.isolated():
            subject.lab.set_seed(0)
            check(subject)

    return run
