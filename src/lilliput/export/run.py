"""Execute a file and compare it with the simulation."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from lilliput.errors import ExportError
from lilliput.export.exact import with_float_lstms
from lilliput.export.packed import Packed
from lilliput.extras import require
from lilliput.frameworks.exporting.simulation import Placement

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Execute = Callable[[Feeds], list[Array]]

PLAIN = "onnxruntime_unoptimized"
FAST = "onnxruntime"
EXACT = (
    "onnxruntime_float_activations"  # MatMulNBits kernels that do not round activations to 8 bits
)
ACCURACY = "session.qdq_matmulnbits_accuracy_level"
OPENVINO = "openvino"
LITERT = "litert"
_PIECE = 1 << 16  # entries that are compared at a time


@dataclass(frozen=True)
class Agreement:
    """How close a runtime is to the simulation.

    Parameters
    ----------
    max_error : float
        The largest difference.
    sqnr : float
        Signal-to-noise ratio in dB, infinite if all values are equal.
    lsb : float, optional
        The largest difference in steps of the output's grid, or None if it has none.
    output : str
        The output that differs most.
    local_lsb : float, optional
        The largest difference of any quantized tensor, in steps of its grid, given the preceding tensors
        as computed by the runtime.
    local_layer : str
        The layer that produces it.
    """

    max_error: float
    sqnr: float
    lsb: float | None = None
    output: str = ""
    local_lsb: float | None = None
    local_layer: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; an infinite ratio is None."""
        return {**asdict(self), "sqnr": self.sqnr if math.isfinite(self.sqnr) else None}


def compare_tensor(
    placement: Placement, call: int, expected: Array, received: Array, step: Any
) -> dict[str, Any]:
    """Return the agreement of one tensor of a file with its quantized value in the simulation."""
    worst = compare([placement.name], [expected], [received], [step])
    return {
        "layer": placement.wrapper.name,
        "tensor": placement.quant_type.value,
        "call": call,
        "sqnr": sqnr(expected, received),
        "max_error": worst.max_error,
        "lsb": worst.lsb,
    }


def sqnr(expected: Array, received: Array) -> float:
    """Return the signal-to-noise ratio in dB.

    Examples
    --------
    >>> sqnr(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    20.0
    >>> sqnr(np.array([1.0]), np.array([1.0]))
    inf
    """
    return _difference(expected, received)[0]


def _difference(expected: Array, received: Array) -> tuple[float, float]:
    """Return the signal-to-noise ratio in dB, and the largest difference.

    In pieces that fit into the cache: the logits of a language model take half a gigabyte in float64.
    """
    signal = noise = largest = 0.0
    first, second = (np.ravel(x) for x in np.broadcast_arrays(expected, received))
    with np.errstate(all="ignore"):  # infinity and NaN show in the result
        for start in range(0, first.size, _PIECE):
            one = first[start : start + _PIECE].astype(np.float64)
            error = one - second[start : start + _PIECE]
            # Not a scalar product: for one so short, BLAS keeps all its threads busy.
            signal, noise = (
                signal + float(np.square(one).sum()),
                noise + float(np.square(error).sum()),
            )
            worst = max(float(error.max()), -float(error.min()))
            largest = max(largest, worst if math.isfinite(worst) else math.inf)
    return _decibels(signal, noise), largest


def _decibels(signal: float, noise: float) -> float:
    if noise == 0.0:
        return math.inf
    if not math.isfinite(noise) or signal == 0.0:
        return -math.inf
    return round(10 * math.log10(signal / noise), 2)


def compare(
    names: Sequence[str],
    expected: Sequence[Array],
    received: Sequence[Array],
    steps: Sequence[float | None],
) -> Agreement:
    """Return the agreement of the worst output."""
    worst = Agreement(0.0, math.inf)
    for name, a, b, step in zip(names, expected, received, steps, strict=True):
        if a.shape != b.shape:
            raise ExportError(f"output {name!r} has shape {b.shape}, in the simulation {a.shape}.")
        ratio, largest = _difference(a, b)
        found = Agreement(largest, ratio, None, name)
        lsb = None if step is None else found.max_error / step
        worst = Agreement(
            max(worst.max_error, found.max_error),
            min(worst.sqnr, found.sqnr),
            lsb if worst.lsb is None else max(worst.lsb, lsb or 0.0),
            found.output if found.sqnr < worst.sqnr or not worst.output else worst.output,
        )
    return worst


def run(runtime: str, data: Packed, batches: Sequence[Feeds], optimized: str = "") -> list[Any]:
    """Return the outputs of each batch in a runtime; ``optimized``: where to save its graph."""
    execute = executor(runtime, data, optimized)
    return [execute(feeds) for feeds in batches]


def executor(runtime: str, data: Packed, optimized: str = "") -> Execute:
    """Open a file in a runtime, and return a function from inputs to outputs."""
    if runtime == OPENVINO:
        from lilliput.export.targets.openvino import compiled

        model = compiled(data)
        return lambda feeds: [np.array(x) for x in model(feeds).values()]
    session = _session(data, runtime, optimized)

    def execute(feeds: Feeds) -> list[Array]:
        outputs: list[Array] = session.run(None, feeds)
        return outputs

    return execute


def require_onnxruntime() -> Any:
    """Return the module, or raise an error with installation instructions."""
    message = "checking the file needs pip install 'lilliput[onnx]', or pass check=False"
    return require("onnxruntime", message)


def has_openvino() -> bool:
    """Whether OpenVINO is installed."""
    return find_spec("openvino") is not None


def open_session(
    source: bytes | str | os.PathLike[str],
    *,
    threads: int = 0,
    is_optimized: bool = True,
    optimized: str = "",
    entries: Mapping[str, str] | None = None,
) -> Any:
    """Return a file or its bytes as a session of ONNX Runtime on the CPU.

    Parameters
    ----------
    source : bytes, str or path-like
        The file, or its bytes.
    threads : int
        The number of threads; 0 for the runtime's default.
    is_optimized : bool
        Whether the runtime may fuse nodes into its own kernels.
    optimized : str
        Where to write its optimized graph.
    entries : mapping, optional
        Other settings of the session.
    """
    module = require_onnxruntime()
    options = module.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if not is_optimized:
        options.graph_optimization_level = module.GraphOptimizationLevel.ORT_DISABLE_ALL
    if optimized:
        options.optimized_model_filepath = optimized
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return module.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _session(data: Packed, runtime: str, optimized: str) -> Any:
    entries = {ACCURACY: "1"} if runtime == EXACT else {}
    graph = data.graph if runtime == FAST else with_float_lstms(data).graph
    if data.folder is not None:
        entries["session.model_external_initializers_file_folder_path"] = str(data.folder)
        if optimized:
            entries["session.optimized_model_external_initializers_file_name"] = "optimized.data"
    return open_session(graph, is_optimized=runtime != PLAIN, optimized=optimized, entries=entries)
