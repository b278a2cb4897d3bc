"""SensitivityAnalysis: measure how much a model degrades when one of its layers is pruned.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
>>> def val_func(model):
...     return float((model[0].weight != 0).float().mean())
>>> scan = SensitivityAnalysis(model, val_func, sparsities=[0.25, 0.5], prune_type="level")
>>> scan.analysis()
{'0': {0.25: 0.75, 0.5: 0.5}, '1': {0.25: 1.0, 0.5: 1.0}}
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lilliput.core.checks import checked_choice, checked_number
from lilliput.errors import AlgorithmError, ConfigError, StageError, nearest
from lilliput.files import write_atomically
from lilliput.pruning.sensitivity_files import (
    Curves,
    Scan,
    fingerprint,
    load_scan,
    save,
    write_curves,
)
from lilliput.pruning.sensitivity_probe import (
    Masks,
    Probe,
    measure,
    measure_and_restore,
    name_of,
)

log = logging.getLogger("lilliput")

STOP_MODES = ("minimize", "maximize", "dropped", "raised")


class SensitivityAnalysis:
    """Prune one layer at a time to several sparsities, and measure the model.

    Afterwards the model is restored bit by bit, whatever ``val_func`` does.

    Parameters
    ----------
    model : object
        The model.
    val_func : callable
        ``val_func(model, *val_args, **val_kwargs)`` returns a number. If the model is among the
        arguments (``val_args=[model]``), it is not passed twice.
    sparsities : sequence of float, optional
        Shares of a layer's remaining weights, in (0, 1); 0.1 to 0.9 by default.
    prune_type : str
        Name of a one-shot pruner: ``'level'``, ``'l1'``, …
    early_stop_mode : str, optional
        End a layer's scan when the metric falls below (``'minimize'``) or rises above
        (``'maximize'``) ``early_stop_value``, or has ``'dropped'`` or ``'raised'`` by more than it.
    early_stop_value : float
        Required with a mode.
    config_list : list of dict, optional
        Which layers, in the config language; by default those that the pruner selects by default.
    checkpoint_dir : path, optional
        Stores every metric in ``sensitivity.json`` as it is measured; the next run continues from there.
    example_inputs : optional
        Passed to pruners that trace channels through the model.

    Attributes
    ----------
    sensitivities : dict
        ``{layer: {sparsity: metric}}``.
    ori_metric : float
        The metric of the unpruned model, once measured.
    already_pruned : dict
        Share of each layer that is already pruned; scanned sparsities apply to the rest.
    """

    def __init__(
        self,
        model: Any,
        val_func: Callable[..., Any],
        sparsities: Sequence[float] | None = None,
        prune_type: str = "l1",
        early_stop_mode: str | None = None,
        early_stop_value: float | None = None,
        *,
        config_list: Any = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        example_inputs: Any = None,
    ) -> None:
        self.model = model
        self.val_func = val_func
        self.sparsities = _checked_sparsities(sparsities)
        self.prune_type = prune_type
        self.early_stop_mode, self.early_stop_value = early_stop_mode, early_stop_value
        _check_stop(early_stop_mode, early_stop_value)
        self.scan_path = (
            None if checkpoint_dir is None else Path(checkpoint_dir, "sensitivity.json")
        )
        self.probe = Probe(prune_type, model, config_list, example_inputs)
        self.layers = [layer.name for layer in self.probe.selection.chosen]
        self.already_pruned = dict.fromkeys(self.layers, 0.0)
        self.masks: Masks = {}
        self.sensitivities: Curves = {}
        self.ori_metric = math.nan

    def analysis(
        self,
        val_args: Sequence[Any] | None = None,
        val_kwargs: Mapping[str, Any] | None = None,
        specified_layers: Sequence[str] | None = None,
    ) -> Curves:
        """Scan all layers, or those specified, and return ``{layer: {sparsity: metric}}``."""
        layers = self.layers if specified_layers is None else list(specified_layers)
        self._check_names(layers)
        given = (self.val_func, self.model, val_args or (), val_kwargs or {})
        evaluate = partial(measure, *given)
        scan = self._open_scan()
        self.ori_metric = self._baseline(partial(measure_and_restore, *given), scan)
        for number, layer in enumerate(layers, 1):
            self.sensitivities[layer] = self._scan_layer(layer, evaluate, scan)
            log.info("sensitivity of %s, %d/%d: %s", layer, number, len(layers), self._line(layer))
        return {layer: dict(self.sensitivities[layer]) for layer in layers}

    def export(self, filepath: str | os.PathLike[str]) -> None:
        """Write the sensitivities as CSV, in NNI's format."""
        write_curves(filepath, self.sensitivities, self.sparsities)

    def update_already_pruned(self, layername: str, ratio: float) -> None:
        """Set the share of a layer that is already pruned."""
        self._check_names([layername])
        if not 0 <= ratio < 1:
            raise ConfigError(
                f"already pruned of {layername!r}: received {ratio!r}, expected [0, 1)."
            )
        self.already_pruned[layername] = ratio

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load other weights into the model, such as fine-tuned ones."""
        self.model.load_state_dict(state_dict)

    @property
    def limit(self) -> float | None:
        """The metric at which a layer's scan ends."""
        value = self.early_stop_value
        if self.early_stop_mode is None or value is None:
            return None
        signs = {"dropped": -1, "raised": 1}
        sign = signs.get(self.early_stop_mode)
        return value if sign is None else self.ori_metric + sign * value

    def curves_svg(self) -> str:
        """Return the curves as an SVG drawing: metric by sparsity, one line per layer."""
        if not self.sensitivities:
            raise StageError("there are no curves yet; call analysis() first.")
        from lilliput.charts.curves import draw_curves  # needed for drawing only

        return draw_curves(self.sensitivities, self.ori_metric, self.limit)

    def plot(self, filepath: str | os.PathLike[str]) -> None:
        """Write :meth:`curves_svg` to a file."""
        write_atomically(filepath, self.curves_svg().encode())

    def __repr__(self) -> str:
        done = f"{len(self.sensitivities)} of {len(self.layers)} layers analysed"
        return f"SensitivityAnalysis({self.prune_type}, {done}, {len(self.sparsities)} sparsities)"

    def _repr_html_(self) -> str:
        from lilliput.tables import html_table

        rows = [
            (layer, *(f"{curve[s]:.4g}" if s in curve else "" for s in self.sparsities))
            for layer, curve in self.sensitivities.items()
        ]
        header = ("layer", *(f"{sparsity:g}" for sparsity in self.sparsities))
        is_known = math.isfinite(self.ori_metric)
        note = f"metric by sparsity; unpruned {self.ori_metric:.4g}" if is_known else ""
        return html_table(rows, header, title=repr(self), notes=filter(None, [note]))

    def _open_scan(self) -> Scan:
        if self.scan_path is None:
            return Scan(made_from={})
        made_from = {
            "weights": fingerprint(self.model),
            "prune_type": self.prune_type,
            "already_pruned": self.already_pruned,
            "evaluator": name_of(self.val_func),
        }
        return load_scan(self.scan_path, made_from)

    def _keep(self, scan: Scan) -> None:
        if self.scan_path is not None:
            save(self.scan_path, scan)

    def _baseline(self, evaluate: Callable[[], float], scan: Scan) -> float:
        if scan.baseline is None:
            scan.baseline = evaluate()
            if not math.isfinite(scan.baseline):
                raise AlgorithmError(
                    f"the evaluator returned {scan.baseline} for the unpruned model; expected a finite "
                    "number, since everything is compared with it."
                )
            self._keep(scan)
        return scan.baseline

    def _scan_layer(
        self, layer: str, evaluate: Callable[[], float], scan: Scan
    ) -> dict[float, float]:
        curve: dict[float, float] = {}
        already = self.already_pruned[layer]
        for sparsity in self.sparsities:
            metric = scan.find(layer, sparsity)
            if metric is None:
                share = {layer: already + (1 - already) * sparsity}
                with self.probe.pruned(share, self.masks):
                    metric = evaluate()
                scan.note(layer, sparsity, metric)
                self._keep(scan)
            curve[sparsity] = metric
            if self._is_beyond(metric):
                break
        return curve

    def _is_beyond(self, metric: float) -> bool:
        """Whether to end the scan of a layer; a NaN metric ends it, too."""
        limit = self.limit
        if limit is None:
            return False
        is_fine = (
            metric <= limit if self.early_stop_mode in ("maximize", "raised") else metric >= limit
        )
        return not is_fine

    def _check_names(self, layers: Sequence[str]) -> None:
        for name in layers:
            if name not in self.already_pruned:
                raise ConfigError(
                    f"layer {name!r} is not among those to analyse.{nearest(name, self.layers)} "
                    f"They are: {', '.join(self.layers)}."
                )

    def _line(self, layer: str) -> str:
        return ", ".join(f"{s:g} → {m:.4g}" for s, m in self.sensitivities[layer].items())


def _checked_sparsities(sparsities: Sequence[float] | None) -> list[float]:
    if sparsities is None:
        return [i / 10 for i in range(1, 10)]
    given = list(sparsities) if isinstance(sparsities, Iterable) else []
    if not given:
        raise ConfigError(f"sparsities: received {sparsities!r}, expected numbers in (0, 1).")
    return sorted({checked_number("sparsities", x, "numbers in (0, 1)", _is_share) for x in given})


def _is_share(number: float) -> bool:
    return 0 < number < 1


def _check_stop(mode: str | None, value: float | None) -> None:
    if mode is not None:
        checked_choice("early_stop_mode", mode, STOP_MODES)
    if (mode is None) != (value is None):
        raise ConfigError(
            "early_stop_mode and early_stop_value belong together; give both or neither."
        )
    if value is not None:
        checked_number("early_stop_value", value, "a number")
