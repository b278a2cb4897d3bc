"""The result of an export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lilliput.errors import ExportError, LilliputError, StageError
from lilliput.export.guard.cpu import Cpu
from lilliput.export.run import Agreement
from lilliput.export.summary import cpu_lines, headline, html_table, layer_table, summary_lines
from lilliput.export.targets.executed import ExecutedFile, open_file
from lilliput.export.targets.measured import MeasuredFile
from lilliput.export.targets.table import target_for
from lilliput.frameworks.exporting.layer import Layer
from lilliput.measure.receipt import COUNTED, Figures, Receipt, take_receipt
from lilliput.measure.timing import how_to_measure_model, measure_opened


@dataclass(frozen=True)
class Guarded:
    """A layer that could saturate, in ``channels`` output channels; before and after the remedy."""

    layer: str
    channels: int
    worst: int
    bits: int
    worst_after: int
    bits_after: int

    @property
    def is_changed(self) -> bool:
        """Whether its weights were made coarser."""
        return self.worst_after < self.worst


@dataclass(eq=False, repr=False)
class ExportResult:
    """A written file, its agreement with the simulation, and the layers that run on integers.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    bytes : int
        Its size, including additional files.
    target : str
        The runtime it was written for.
    runtimes : dict
        From the name of a runtime to its agreement with the simulation: the largest difference, the
        signal-to-noise ratio in dB, and the difference in steps of the output's grid.
    layers : list of Layer
        Each layer with its kernel, and the reason if it is not an integer kernel.
    notes : list of str
        Notes for the user.
    guarded : list of Guarded
        Layers that could saturate on CPUs without VNNI, before and after their weights were made coarser.
    cpu : Cpu, optional
        The CPUs that the file is for; None if that makes no difference.
    beside : list of str
        Names of additional files in the same folder: the weights, above 2 GB.
    sizes : dict
        The accepted values of each dynamic input size, by name, such as ``"1 to 512"``; and for sizes
        that are expected to be dynamic but are not, the reason.
    """

    path: Path
    bytes: int
    target: str
    runtimes: dict[str, Agreement] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    guarded: list[Guarded] = field(default_factory=list)
    cpu: Cpu | None = None
    beside: list[str] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)
    _compare: Callable[[str], list[dict[str, Any]]] | None = field(default=None, repr=False)
    # Returns the model without compressors, and its inputs.
    _source: Callable[[], tuple[Any, Any]] | None = field(default=None, repr=False)
    # Writes the model as a float file of the same format, for the same runtime.
    _write_float: Callable[[Path], None] | None = field(default=None, repr=False)

    @property
    def integer_share(self) -> float:
        """The fraction of multiplications that run on integers, 0 to 1."""
        total = sum(layer.macs or 0 for layer in self.layers)
        done = sum(layer.macs or 0 for layer in self.layers if layer.integer)
        return done / total if total else 0.0

    @cached_property
    def receipt(self) -> Receipt:
        """Before → after: the model without compressors, and the file.

        Both are measured as files of one format: the original as a separate float file. Figures that a
        format does not contain (parameters, MACs) are counted in the model. If the model cannot be written
        as a float file, a note says why, its size on disk is left out, and its latency is that of the
        framework. Measured on first access, so that an export without it costs nothing.
        """
        if self._source is None:
            raise StageError(
                "this result came without its model; use measure() and take_receipt()."
            )
        before, after, notes = self._measured(*self._source())
        found = [x.max_error for x in self.runtimes.values()]
        return take_receipt(
            before,
            after,
            max_difference=max(found, default=None),
            notes=(*notes, *cpu_lines(self)),
            parameters=before.parameters,
            macs=before.macs,
        )

    def _measured(self, model: Any, inputs: Any) -> tuple[Figures, Figures, list[str]]:
        """Return the figures of the model and of the file, with notes on how they were obtained."""
        names = ["float model", self.path.name]
        given, file = (model, how_to_measure_model(model)), _opened(self.path)
        with TemporaryDirectory() as folder:
            path = Path(folder, f"float{self.path.suffix}")
            try:
                self._write_as_float(path)
            except LilliputError as error:
                before, after = measure_opened([given, file], inputs, names)
                note = f"bytes before are unknown: no float file of this format ({error})"
                return replace(before, bytes=None), after, [note]
            before, after = measure_opened([_opened(path), file], inputs, names)
        missing = [name for name in COUNTED if getattr(before, name) is None]
        if missing:
            (held,) = measure_opened([given], inputs, names, runs=0)
            before = replace(before, **{name: getattr(held, name) for name in missing})
        return before, after, []

    def _write_as_float(self, path: Path) -> None:
        if self._write_float is None:
            raise ExportError("this result came without it.")
        self._write_float(path)

    def compare_layers(self, runtime: str = "") -> list[dict[str, Any]]:
        """Return the agreement of each quantized tensor of the file with the simulation.

        Runs the model and the file again. Errors of earlier layers are part of those of later ones.

        Parameters
        ----------
        runtime : str
            For ONNX ``"onnxruntime"``, or ``"onnxruntime_unoptimized"`` for the file without integer
            kernels; for LiteRT ``"litert"``, or ``"litert_builtin"`` without XNNPACK; ``"openvino"``;
            ``"executorch"``. By default the one that the file is for.

        Returns
        -------
        list of dict
            ``layer``, ``tensor`` (input or output), ``call`` (0 for the first use of the layer),
            ``sqnr`` in dB, ``max_error`` and ``lsb`` (in steps of the grid).
        """
        main = target_for(self.path).runtime
        return [] if self._compare is None else self._compare(runtime or main)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "path": str(self.path),
            "bytes": self.bytes,
            "beside": list(self.beside),
            "sizes": dict(self.sizes),
            "target": self.target,
            "runtimes": {name: found.to_dict() for name, found in self.runtimes.items()},
            "integer_share": self.integer_share,
            "layers": [layer.to_dict() for layer in self.layers],
            "notes": list(self.notes),
            "guarded": [asdict(row) for row in self.guarded],
            "cpu": None if self.cpu is None else self.cpu.to_dict(),
        }

    def summary(self) -> str:
        """Return a short text for humans; :meth:`table` lists every layer."""
        return "\n".join(summary_lines(self))

    def table(self) -> str:
        """Return a table of all layers: kernel, type of the weight, multiplications, reason for float."""
        return layer_table(self.layers)

    __str__ = summary

    def __repr__(self) -> str:
        return f"<ExportResult {headline(self)}>"

    def _repr_html_(self) -> str:
        """Return a short table for notebooks."""
        return html_table(self)


def _opened(path: Path) -> tuple[ExecutedFile, MeasuredFile]:
    """Return a file in its runtime, and how it is measured."""
    file = open_file(path)
    return file, MeasuredFile(file)
