"""The keys of each NNI generation, as tables; :mod:`lilliput.compat.nni.config.dialects` applies them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def escape_glob(name: str) -> str:
    """Return a pattern that matches ``name`` literally.

    Examples
    --------
    >>> escape_glob("layers[0]")
    'layers[[]0]'
    """
    return re.sub(r"[*?\[]", r"[\g<0>]", name)


def full_regex(pattern: str) -> str:
    """Return a regex that matches a whole name where NNI's matched its start.

    Examples
    --------
    >>> full_regex("encoder"), full_regex("fc.*"), full_regex("a|b")
    ('encoder.*', 'fc.*', '(?:a|b).*')
    """
    if "|" in pattern:
        flags = re.match(r"(?:\(\?[aiLmsux]+\))?", pattern)
        start = flags.end() if flags else 0
        return f"{pattern[:start]}(?:{pattern[start:]}).*"
    return pattern if re.search(r"(?<!\\)(?:\.\*|\$)\Z", pattern) else f"{pattern}.*"


# Old key, current key, generation. Several old keys of one new key must agree.
RENAMES = (
    ("support_type", "op_types", "NNI 2019"),
    ("support_layer", "op_types", "NNI 2019"),
    ("support_op", "op_names", "NNI 2019"),
    ("q_bits", "quant_bits", "NNI 2019 and v1"),
    ("sparsity_per_layer", "sparsity", "NNI v2"),
    ("sparse_ratio", "sparsity", "NNI v3"),
    ("max_sparse_ratio", "max_sparsity_per_layer", "NNI v3"),
)

# In 2019 a type was the name of an operation in a TensorFlow graph; the layer that computes it.
# Only these rules are read that way: now a torch module may well be called MatMul.
GRAPH_TYPES = {"MatMul": "Dense", "DepthwiseConv2dNative": "DepthwiseConv2D"}

# Old list, the list its entries are appended to, generation, the current form of one entry.
PATTERNS: tuple[tuple[str, str, str, Callable[[str], str]], ...] = (
    ("op_partial_names", "op_names", "NNI v2", lambda name: f"*{escape_glob(name)}*"),
    ("op_names_re", "op_names", "NNI v3", lambda name: f"re:{full_regex(name)}"),
    ("exclude_op_names", "op_names", "NNI v3", lambda name: f"!{name}"),
    ("exclude_op_names_re", "op_names", "NNI v3", lambda name: f"!re:{full_regex(name)}"),
    ("exclude_op_types", "op_types", "NNI v3", lambda name: f"!{name}"),
)

# One old value with two settings: key, the second key, generation, how to split it.
COMPOUNDS: tuple[tuple[str, str, str, re.Pattern[str], Callable[[str], Any]], ...] = (
    (
        "quant_scheme",
        "granularity",
        "NNI v2",
        re.compile(r"(?P<second>per_tensor|per_channel|per_group)_(?P<first>symmetric|affine)"),
        str,
    ),
    (
        "quant_dtype",
        "quant_bits",
        "NNI v3",
        re.compile(r"(?P<first>u?int)(?P<second>[0-9]{1,3})"),
        int,
    ),
)

# NNI v3 keys without an exact equivalent: what the key did, and what to do instead.
UNSUPPORTED = {
    "sparse_threshold": "pruned every score below a threshold; "
    "give the target itself as 'sparsity' or 'total_sparsity' instead.",
    "min_sparse_ratio": "set the least sparsity of each layer of a group; "
    "give those layers a rule of their own with 'sparsity' instead.",
    "global_group_id": "spread one sparsity over several rules; "
    "write one rule that selects all their layers, with 'total_sparsity', instead.",
    "dependency_group_id": "made layers prune the same channels; "
    "there is no equivalent, remove it.",
    "internal_metric_block": "pruned each block of a weight (such as an attention head) equally; "
    "there is no equivalent, remove it.",
    "align": "copied the mask of another tensor; "
    "there is no equivalent, remove it: an algorithm returns all masks of a layer itself.",
    "apply_method": "chose how a mask or a quantizer is applied; "
    "remove it, masks always multiply ('mul') and quantizers always clamp and round.",
    "fuse_names": "named the layers to fuse before quantization; "
    "there is no equivalent: fuse them before compressing, and remove it.",
}

TARGETS = {
    "weight": "weight",
    "bias": "bias",
    "_input_": "input",
    "_input_0": "input",
    "_output_": "output",
    "_output_0": "output",
}

OLD_SELECTORS = {"support_type": "op_types", "support_layer": "op_types", "support_op": "op_names"}
NEW_SELECTORS = ("op_types", "op_names", *(row[0] for row in PATTERNS))
# Keys of a whole rule, which make no sense among the settings of one target.
RULE_KEYS = {
    *OLD_SELECTORS,
    *NEW_SELECTORS,
    *("prune", "exclude", "target_names", "target_settings", "quant_types"),
}
QUANTIZATION_KEYS = {
    *("quant_types", "quant_bits", "quant_scheme", "quant_dtype", "quant_start_step"),
    *("q_bits", "fuse_names"),
}
PRUNING_KEYS = {
    *("sparsity", "total_sparsity", "max_sparsity_per_layer", "sparsity_per_layer"),
    *("initial_sparsity", "final_sparsity", "sparse_ratio", "max_sparse_ratio"),
    *("min_sparse_ratio", "sparse_threshold", "global_group_id", "dependency_group_id"),
    *("internal_metric_block", "align"),
}
OLD_KEYS = (
    *(row[0] for row in RENAMES),
    *(row[0] for row in PATTERNS),
    *UNSUPPORTED,
    *("prune", "target_names", "target_settings"),
)
