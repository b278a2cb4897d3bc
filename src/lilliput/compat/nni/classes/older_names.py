"""Names of compressor methods in NNI, so that code written for it runs; new code needs none of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lilliput.config.files import read_rules_by_framework
from lilliput.config.layer import LayerInfo
from lilliput.config.spec import Rule
from lilliput.core.binding import names_of
from lilliput.core.compressor import Compressor, then_refresh
from lilliput.errors import ConfigError, StageError, UnsupportedModelError
from lilliput.frameworks import backend_of

_CONFIG_TYPES = (list, tuple, Mapping, Rule, str, os.PathLike)


class OlderNames(Compressor):
    """Older names of a compressor's methods; the first argument may be the config list, as in 2019."""

    def __init__(
        self, model: Any = None, config_list: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if config_list is None and isinstance(model, _CONFIG_TYPES):
            model, config_list = None, model
        super().__init__(model, config_list, *args, **kwargs)

    def __call__(self, model: Any = None) -> Any:
        """Compress ``model``; the form of ``compress()`` in 2019."""
        return self.compress(model)

    @property
    def modules_wrapper(self) -> list[Any]:
        """The wrappers, one per selected layer."""
        return list(self.get_modules_wrapper())

    def get_modules_to_compress(self) -> list[tuple[LayerInfo, dict[str, Any]]]:
        """Return the selected layers, each with its rule."""
        return [(layer, layer.config) for layer in self.selection.chosen]

    def select_config(self, layer: Any) -> dict[str, Any] | None:
        """Return the rule that selects a layer, or None."""
        return next((x.config for x in self.selection.chosen if x.name == layer.name), None)

    def load_configure(self, path: str | os.PathLike[str]) -> None:
        """Append the rules of a YAML or JSON file to the config list; call it before binding.

        A section may be for one framework (``tfAGPruner:``). Whether that is the framework of the
        model is checked when a model is bound.
        """
        if self._wrappers is not None:
            raise StageError("load_configure() came after a model was bound; call it before.")
        names, frameworks = names_of(type(self)), type(self).backends
        earlier = _by_framework(self.config_list, names, frameworks)
        found = read_rules_by_framework(path, names, tuple(earlier))
        joined = [[*earlier[name], *rules] for name, rules in found.items()]
        is_one = all(rules == joined[0] for rules in joined)
        if self.config_list is None and not (is_one and len(found) == len(frameworks)):
            self.config_list = Path(path).absolute()  # read again for the framework of the model
        elif is_one:
            self.config_list = joined[0]
        else:
            raise ConfigError(
                f"has a section for each of {', '.join(found)}, and the model is not known yet; make "
                "this file the only config list, or give its sections one name.",
                title=os.fspath(path),
            )

    def reset(self, checkpoint: Mapping[str, Any] | None = None) -> None:
        """Unwrap the model, load a state dict of the plain model if given, and start over."""
        if checkpoint is not None:
            self._check_state_dict()
        was_wrapped = self.is_wrapped
        self.strip()
        if checkpoint is not None:
            self.bound_model.load_state_dict(checkpoint)
        self._wrappers = None
        for name in self.tracked:
            vars(self).pop(name, None)  # restores the class attribute
        self._bind()
        if was_wrapped:
            self._prepare()
            self._wrap_model()
            self._follow_optimizer()
        else:
            self._watch_optimizer()

    def load_model_state_dict(self, model_state: Mapping[str, Any]) -> None:
        """Load a state dict of the plain or of the compressed model into the bound one."""
        self._check_state_dict()
        self.bound_model.load_state_dict(model_state)

    def compress_default_graph(self) -> None:
        """Raise: it compressed TensorFlow's default graph in 2019."""
        raise UnsupportedModelError(
            "TensorFlow has no default graph any more; build the model with Keras 3 and compress "
            f"that: {type(self).__name__}(config_list)(model)."
        )

    def _check_state_dict(self) -> None:
        # On the torch backend a Keras model does have one, with names that only Keras understands.
        if backend_of(self.bound_model).name == "keras":
            raise UnsupportedModelError(
                "a Keras model has no state dict; load its weights into the model itself, before it is "
                "compressed: model.load_weights(path) or model.set_weights(arrays)."
            )

    def step_with_optimizer(self) -> None:
        """Older name of :meth:`step`; called right after it."""

    @then_refresh
    def _on_step(self) -> None:
        super()._on_step()
        self.step_with_optimizer()

    def _refresh_early(self) -> None:
        self.step_with_optimizer()
        super()._refresh_early()


@cache
def with_older_names(cls: Any) -> Any:
    """Return a compressor with the older names; anything else unchanged."""
    if not (isinstance(cls, type) and issubclass(cls, Compressor)):
        return cls
    members = {"__module__": cls.__module__, "__doc__": cls.__doc__, "adapts": cls}
    return type(cls.__name__, (OlderNames, cls), members)


def _by_framework(
    config_list: Any, names: Sequence[str], frameworks: Sequence[str]
) -> dict[str, list[Any]]:
    """Return a config list of any form as a list of rules for each framework."""
    if isinstance(config_list, (str, os.PathLike)):
        return read_rules_by_framework(config_list, names, frameworks)
    single = isinstance(config_list, (Mapping, Rule))
    return dict.fromkeys(frameworks, [config_list] if single else list(config_list or []))
