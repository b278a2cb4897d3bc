"""v3's config lists for pruners: the settings of each rule for the weight and its companions.

A rule of v3 sets its targets (``weight``, ``bias``, ``_output_``) one by one. Settings that current rules
can express stay in the rule; the others become a :class:`Target`, which :mod:`target_masks` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lilliput.compat.nni.config.keys import NEW_SELECTORS
from lilliput.errors import ConfigError, Problem
from lilliput.printing import shown

_SELECTORS = (*NEW_SELECTORS, "exclude")
_RATIOS = ("sparse_ratio", "sparsity", "sparsity_per_layer", "total_sparsity")
_PLAIN = {*_RATIOS, "apply_method"}
_KNOWN = {
    *(*_RATIOS, "sparse_threshold", "min_sparse_ratio", "max_sparse_ratio", "global_group_id"),
    *("max_sparsity_per_layer", "dependency_group_id", "granularity", "internal_metric_block"),
    *("align", "apply_method"),
}
_TARGETS = ("weight", "bias", "_output_", "_output_0")


@dataclass(frozen=True)
class Target:
    """The settings of one v3 rule for its layers.

    Parameters
    ----------
    ratio : float, optional
        Share to remove: of the layer, or of its global group.
    threshold : float, optional
        Remove what scores below it; replaces ``ratio``.
    least, most : float
        Bounds of the share that is removed from this layer.
    granularity : str or tuple of int, optional
        ``out_channel``, ``in_channel``, or the sizes of blocks along the last dimensions, -1 for whole.
    global_id, dependency_id : optional
        Layers that share a ratio, or the removed positions.
    blocks : int
        Number of equal parts of the scores, each of which loses the same share.
    align : str, optional
        The layer whose weight mask is followed, along its first dimension.
    masked : tuple of str
        Which targets are masked.
    """

    ratio: float | None = None
    threshold: float | None = None
    least: float = 0.0
    most: float = 1.0
    granularity: str | tuple[int, ...] | None = None
    global_id: Any = None
    dependency_id: Any = None
    blocks: int = 1
    align: str | None = None
    masked: tuple[str, ...] = ("weight", "bias")


def split_rules(
    config_list: Any, title: str, always: bool = False
) -> tuple[Any, list[Target | None]]:
    """Return current rules, and targets for the settings of v3 beyond them; no targets if there are none.

    With ``always``, targets are always returned.

    Examples
    --------
    >>> rules, targets = split_rules([{"op_types": ["Linear"], "sparse_ratio": 0.5,
    ...                                "granularity": "in_channel"}], "L1NormPruner")
    >>> rules
    [{'op_types': ['Linear'], 'sparsity': 0.5}]
    >>> targets[0].granularity
    'in_channel'
    """
    if not isinstance(config_list, (list, tuple)):
        return config_list, []
    if not always and not any(map(_goes_beyond, config_list)):
        return config_list, []
    reader = _Reader(title)
    rules: list[Any] = []
    targets: list[Target | None] = []
    for index, rule in enumerate(config_list):
        if not isinstance(rule, Mapping) or rule.get("exclude"):
            rules.append(rule)
            targets.append(None)
            continue
        target = reader.read(index, rule)
        selectors = {key: rule[key] for key in _SELECTORS if key in rule}
        rules.append(selectors | {"sparsity": target.ratio or 0.0})
        targets.append(target)
    reader.check_groups(targets)
    return rules, targets


def _goes_beyond(rule: Any) -> bool:
    if not isinstance(rule, Mapping) or rule.get("exclude"):
        return False
    setting = _setting_of(rule, "weight")
    names = rule.get("target_names")
    is_usual = names is None or {*names} == {"weight", "bias"}
    special = {k for k, v in setting.items() if v is not None and k in _KNOWN - _PLAIN}
    if setting.get("granularity") == "default":
        special.discard("granularity")
    return bool(special - {"max_sparsity_per_layer"}) or not is_usual


def _setting_of(rule: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the setting of one target: its own, or that of the rule."""
    shared = {k: v for k, v in rule.items() if k not in (*_SELECTORS, "target_names")}
    own = shared.pop("target_settings", None) or {}
    own = own.get(name) if isinstance(own, Mapping) else None
    return shared | (dict(own) if isinstance(own, Mapping) else {})


class _Reader:
    """Reads rules one by one, and raises with the location of what it cannot interpret."""

    def __init__(self, title: str) -> None:
        self.title = title

    def fail(self, index: int, key: str, text: str) -> ConfigError:
        return ConfigError([Problem(f"rule {index} → {key}", text)], title=self.title)

    def read(self, index: int, rule: Mapping[str, Any]) -> Target:
        names = self.names_of(index, rule)
        is_output = any(name.startswith("_output_") for name in names)
        setting = _setting_of(rule, next(x for x in names if is_output or x != "bias"))
        unknown = [key for key in setting if key not in _KNOWN]
        if unknown:
            raise self.fail(index, unknown[0], "unknown key for pruning.")
        if setting.get("apply_method", "mul") not in ("mul", None):
            raise self.fail(index, "apply_method", "masks always multiply here; remove it.")
        align = self.align_of(index, setting.get("align"))
        ratio = next((setting[key] for key in _RATIOS if setting.get(key) is not None), None)
        threshold = setting.get("sparse_threshold")
        if (ratio is None) == (threshold is None) and align is None:
            received = "none" if ratio is None else "both"
            text = f"expected one of 'sparse_ratio' and 'sparse_threshold', received {received}."
            raise self.fail(index, "sparse_ratio", text)
        if is_output and align is None:
            text = (
                "activations are not masked here: align a BatchNorm with its convolution, or use "
                "lilliput.torch with example_inputs, which masks norms along with their channels."
            )
            raise self.fail(index, "target_names", text)
        whole = f"rule {index}" if setting.get("total_sparsity") is not None else None
        most = setting.get("max_sparse_ratio", setting.get("max_sparsity_per_layer"))
        return Target(
            ratio=None if ratio is None else float(ratio),
            threshold=None if threshold is None else float(threshold),
            least=float(setting.get("min_sparse_ratio") or 0.0),
            most=1.0 if most is None else float(most),
            granularity=self.granularity_of(index, setting.get("granularity"), is_output),
            global_id=setting.get("global_group_id", whole),
            dependency_id=setting.get("dependency_group_id"),
            blocks=self.blocks_of(index, setting.get("internal_metric_block")),
            align=align,
            masked=("weight", "bias") if is_output else names,
        )

    def names_of(self, index: int, rule: Mapping[str, Any]) -> tuple[str, ...]:
        names = rule.get("target_names")
        names = ("weight", "bias") if names is None else tuple(names)
        wrong = [name for name in names if name not in _TARGETS]
        if wrong or ("bias" in names and len(names) == 1) or not names:
            text = f"pruning acts on {list(_TARGETS[:3])}, and on a bias along with its weight; received "
            raise self.fail(index, "target_names", f"{text}{shown(list(names))}.")
        if any(name.startswith("_output_") for name in names) and len(names) > 1:
            raise self.fail(index, "target_names", "give '_output_' a rule of its own.")
        return names

    def align_of(self, index: int, align: Any) -> str | None:
        if align is None:
            return None
        place = "align"
        if not isinstance(align, Mapping) or align.get("target_name") != "weight":
            raise self.fail(index, place, "expected the 'weight' of another layer to align with.")
        if align.get("module_name") is None:
            raise self.fail(index, place, "'module_name' is missing: which layer to align with.")
        dims = align.get("dims")
        if list(dims if dims is not None else [0]) != [0]:
            raise self.fail(index, place, f"received dims {dims!r}, expected [0]: output channels.")
        return str(align["module_name"])

    def granularity_of(
        self, index: int, value: Any, is_output: bool
    ) -> str | tuple[int, ...] | None:
        if value is None or value in ("default", "out_channel", "in_channel"):
            return None if value == "default" else value
        if value == "per_channel" and is_output:
            return None
        if isinstance(value, Sequence) and not isinstance(value, str):
            sizes = tuple(value)
            if sizes and all(isinstance(x, int) and (x > 0 or x == -1) for x in sizes):
                return sizes
        expected = "'default', 'out_channel', 'in_channel' or sizes of blocks such as [4, 4]"
        raise self.fail(index, "granularity", f"received {shown(value)}, expected {expected}.")

    def blocks_of(self, index: int, value: Any) -> int:
        if value is None:
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            text = f"received {shown(value)}, expected a number of equal parts, 1 or more."
            raise self.fail(index, "internal_metric_block", text)
        return value

    def check_groups(self, targets: Sequence[Target | None]) -> None:
        """Raise for layers of one group with different shares."""
        for key, of in (("global_group_id", "global_id"), ("dependency_group_id", "dependency_id")):
            ratios: dict[Any, float | None] = {}
            for index, target in enumerate(targets):
                group = None if target is None else getattr(target, of)
                if target is None or group is None:
                    continue
                if target.ratio is None or ratios.setdefault(group, target.ratio) != target.ratio:
                    text = (
                        f"group {shown(group)} has one 'sparse_ratio' for all its rules; received "
                    )
                    raise self.fail(index, key, f"{text}{ratios.get(group)} and {target.ratio}.")
                if target.global_id is not None and target.dependency_id is not None:
                    text = "a layer is in a global group or in a dependency group, not in both."
                    raise self.fail(index, key, text)
