"""A class under test with the settings to test it with, whatever its models are made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lilliput.core.compressor import Compressor
from lilliput.errors import ConfigError


@dataclass(frozen=True)
class Candidate:
    """What the subjects of all frameworks have in common: the class, its rules, how to make one."""

    cls: Any
    config: Mapping[str, Any] | None = None
    make: Callable[[Any, list[dict[str, Any]], Any], Compressor] | None = None

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.cls.__name__)

    @property
    def settings(self) -> dict[str, Any]:
        """What goes into every rule."""
        return self._defaults() if self.config is None else dict(self.config)

    @property
    def sparsity_key(self) -> str | None:
        """The setting that asks for a sparsity in each layer, None if there is none."""
        return next((k for k in ("final_sparsity", "sparsity") if k in self.settings), None)

    def rules(self, **settings: Any) -> list[dict[str, Any]]:
        """Return a config list of one rule."""
        return [{**self.settings, **settings}]

    def build(self, model: Any, optimizer: Any = None, **settings: Any) -> Compressor:
        """Return a compressor for a model that is still untouched."""
        return self.build_from(model, self.rules(**settings), optimizer)

    def build_from(self, model: Any, rules: Any, optimizer: Any = None) -> Compressor:
        """Return a compressor with exactly this config list."""
        if self.make is not None:
            return self.make(model, rules, optimizer)
        given = (model, rules) if optimizer is None else (model, rules, optimizer)
        compressor: Compressor = self.cls(*given)
        return compressor

    def compress(self, model: Any, optimizer: Any = None, **settings: Any) -> Compressor:
        """Compress a model in place and return the compressor."""
        compressor = self.build(model, optimizer, **settings)
        compressor.compress(model)
        return compressor

    def wanted_types(self, default_types: Collection[str]) -> set[str]:
        """Return the layer types that the class compresses under these settings."""
        own = default_types if self.cls.default_types is None else self.cls.default_types
        asked = self.settings.get("op_types", ["default"])
        names = {x for x in ([asked] if isinstance(asked, str) else asked) if x[:1] != "!"}
        return (names - {"default"}) | (set(own) if "default" in names or not names else set())

    def no_model_fits(self, wanted: Collection[str], examples: str) -> ConfigError:
        """Return the error for a class that compresses no layer of any test model."""
        return ConfigError(
            f"{self.name} compresses {', '.join(sorted(wanted))} only, of which no test model has any; "
            f"set config={{'op_types': [...]}} to layers such as {examples}."
        )

    def _defaults(self) -> dict[str, Any]:
        keys = self.cls.rule.model_fields
        if "final_sparsity" in keys:
            return {"final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 0}
        wanted: dict[str, Any] = {"sparsity": 0.5, "quant_bits": 8}
        return {key: value for key, value in wanted.items() if key in keys}
