"""The conformance battery for models of Keras, on TensorFlow, JAX or torch.

It has the names of :mod:`lilliput.testing`, and most of its checks. It runs on the backend of the
process::

    from lilliput.keras import Pruner
    from lilliput.testing.keras import check_pruner

    class MyPruner(Pruner):
        ...

    print(check_pruner(MyPruner))

Run it once per backend: ``KERAS_BACKEND=jax python check.py``.
"""

from lilliput.testing.expect import ConformanceError, Report
from lilliput.testing.keras.battery import (
    check_pruner,
    check_quantizer,
    pruner_checks,
    quantizer_checks,
)
from lilliput.testing.keras.models import (
    Specimen,
    TinyAttention,
    TinyCNN,
    TinyLSTM,
    TinyMLP,
    TinyNested,
    TinySubclassed,
    TinyUntold,
    make_input,
)
from lilliput.testing.keras.subject import Subject

__all__ = [
    "ConformanceError",
    "Report",
    "Specimen",
    "Subject",
    "TinyAttention",
    "TinyCNN",
    "TinyLSTM",
    "TinyMLP",
    "TinyNested",
    "TinySubclassed",
    "TinyUntold",
    "check_pruner",
    "check_quantizer",
    "make_input",
    "pruner_checks",
    "quantizer_checks",
]
