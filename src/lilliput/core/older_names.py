"""Names that a compressor had in NNI, so that code written for it runs; new code needs none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lilliput.config.files import read_rules
from lilliput.config.layer import LayerInfo
from lilliput.core.binding import names_of
from lilliput.errors import StageError


class OlderNames:
    """What :class:`~lilliput.core.compressor.Compressor` offers under older names."""

    _wrappers: list[Any] | None

    def __call__(self: Any, model: Any = None) -> Any:
        """Compress ``model``, the 2019 way of writing ``compress()``."""
        return self.compress(model)

    @property
    def modules_wrapper(self: Any) -> list[Any]:
        """The wrappers, one per selected layer."""
        return list(self.get_modules_wrapper())

    def get_modules_to_compress(self: Any) -> list[tuple[LayerInfo, dict[str, Any]]]:
        """Return the selected layers, each with the rule that took it."""
        return [(layer, layer.config) for layer in self.selection.chosen]

    def select_config(self: Any, layer: Any) -> dict[str, Any] | None:
        """Return the rule that takes a layer, None if it is left alone."""
        return next((x.config for x in self.selection.chosen if x.name == layer.name), None)

    def load_configure(self: Any, path: Any) -> None:
        """Append the rules of a YAML or JSON file to the config list; call it before binding."""
        if self._wrappers is not None:
            raise StageError("load_configure() came after a model was bound; call it before.")
        rules = read_rules(path, names_of(type(self)), "torch")
        self.config_list = [*(self.config_list or []), *rules]

    def reset(self: Any, checkpoint: Mapping[str, Any] | None = None) -> None:
        """Unwrap the model, load a state dict of the plain model if given, and start anew."""
        was_wrapped = self.is_wrapped
        self.strip()
        if checkpoint is not None:
            self.bound_model.load_state_dict(checkpoint)
        self._wrappers = None
        for name in self.tracked:
            vars(self).pop(name, None)  # back to the value of the class
        self._bind()
        if was_wrapped:
            self._prepare()
            self._wrap_model()
            self._follow_optimizer()

    def load_model_state_dict(self: Any, model_state: Mapping[str, Any]) -> None:
        """Load a state dict of the plain or of the compressed model into the bound one."""
        self.bound_model.load_state_dict(model_state)

    def step_with_optimizer(self: Any) -> None:
        """Older name of :meth:`step`; called right after it."""
