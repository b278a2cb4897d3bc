"""Widths that modules store but do not compute with: ``num_features``, ``feature_info``.

No run shows whether they are right, but other code reads them: ``nn.Linear(model.num_features, 10)`` for a
new classifier. Each is compared with the tensors of its module. If all tensors of this width, or those that
a classifier reads, get the same new width, it is set; otherwise it is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lilliput.frameworks.torch.attributes import OTHER_SIZES
from lilliput.frameworks.torch.cutting import named_tensors
from lilliput.frameworks.torch.layer_sizes import sizes_of
from lilliput.graph.cuts import Cut
from lilliput.graph.plan import Attributes

_WIDTH = re.compile(r"feature|channel|chs|dim|width|hidden|planes|embed|d_model|ffn|intermediate")
OF_CLASSIFIER = ("num_features", "head_hidden_size", "embed_dim", "hidden_size", "feature_dim")
_SMALLEST = 4  # smaller numbers are seldom widths

Key = tuple[str, str]  # the path of a module, and an attribute or an item of one
Stale = dict[Key, int]  # attributes with a width that no longer exists
Run = Callable[[nn.Module], Any]


class Widths:
    """The cuts of the tensors of a model, and the modules that store their widths.

    Parameters
    ----------
    model : torch.nn.Module
        The model before the cut.
    cuts : sequence of Cut
        The cuts.
    classifiers : mapping
        The weights that produce the model's outputs, and the output dimension of each.
    """

    def __init__(
        self, model: nn.Module, cuts: Sequence[Cut], classifiers: Mapping[str, int]
    ) -> None:
        self.model, self.classifiers = model, classifiers
        self.cut = {(cut.tensor, cut.dim): cut.keep.shape[-1] for cut in cuts}
        tensors = named_tensors(model)
        self.sizes = {(name, d): n for name, x in tensors.items() for d, n in enumerate(x.shape)}

    def find(self, skip: Callable[[Key], bool]) -> tuple[Attributes, Stale]:
        """Return the widths to set, and those that are uncertain."""
        found: Attributes = {}
        stale: Stale = {}
        for path, module in self.model.named_modules():
            for name, value in _remembered(module):
                if skip((path, name)):
                    continue
                new = self._now(path, name, value)
                if len(new) == 1 and new != {value} and not name.startswith("config."):
                    found[path, name] = new.pop()
                elif new - {value} and (value not in new or name in OF_CLASSIFIER):
                    stale[path, name] = value  # otherwise something still has this width
        return found, stale

    def _now(self, path: str, name: str, value: int) -> set[int]:
        """Return the sizes after the cut of a module's dimensions with this width."""
        prefix = f"{path}." if path else ""
        dims = [k for k, n in self.sizes.items() if n == value and k[0].startswith(prefix)]
        new = {self.cut.get(k, value) for k in dims}
        if len(new) > 1 and name in OF_CLASSIFIER:
            made = self.classifiers
            read = [k for k in dims if k[0] in made and k[1] != made[k[0]]]
            new = {self.cut.get(k, value) for k in read} or new
        return new


def find_feature_info(before: nn.Module, after: Callable[[], nn.Module], run: Run) -> Attributes:
    """Return the widths in lists of feature maps, as in timm's models, observed in a run."""
    entries = [
        (path, i, entry["module"], entry["num_chs"])
        for path, module in before.named_modules()
        for i, entry in enumerate(_listed(vars(module).get("feature_info")))
        if type(entry) is dict and {"module", "num_chs"} <= entry.keys()
    ]
    if not entries:
        return {}
    paths = {f"{path}.{name}".strip(".") for path, _, name, _ in entries}
    old, new = (_shapes(model, paths, run) for model in (before, after()))
    found: Attributes = {}
    for path, i, name, width in entries:
        at = f"{path}.{name}".strip(".")
        if at in old and at in new:
            pairs = {b for a, b in zip(old[at][1:], new[at][1:], strict=False) if a == width}
            if len(pairs) == 1 and pairs != {width}:
                found[path, f"feature_info.{i}.num_chs"] = pairs.pop()
    return found


def _shapes(model: nn.Module, paths: set[str], run: Run) -> dict[str, tuple[int, ...]]:
    """Return the shapes of modules' outputs in a run."""
    seen: dict[str, tuple[int, ...]] = {}

    def note(path: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen[path] = tuple(output.shape)

        return hook

    modules = dict(model.named_modules())
    handles = [modules[x].register_forward_hook(note(x)) for x in paths if x in modules]
    try:
        run(model)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _remembered(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield the attributes of a module that look like widths, including those of its config."""
    if sizes_of(module):
        return  # the sizes of torch's own layers follow from their tensors
    config = vars(module).get("config")
    held = {f"config.{name}": x for name, x in getattr(config, "__dict__", {}).items()}
    for name, value in {**vars(module), **held}.items():
        if (
            name.startswith(("_", "config._"))
            or not _WIDTH.search(name)
            or OTHER_SIZES.search(name)
        ):
            continue
        if type(value) is int and value >= _SMALLEST:
            yield name, value
        elif _listed(value) and all(type(x) is int for x in value) and min(value) >= _SMALLEST:
            yield from ((f"{name}.{i}", x) for i, x in enumerate(value))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def show(pairs: Mapping[Key, str]) -> str:
    """Return attributes with their values, grouped by name."""
    groups: dict[tuple[str, str], list[str]] = {}
    for (path, name), what in pairs.items():
        groups.setdefault((name, what), []).append(path)
    shown = []
    for (name, what), paths in groups.items():
        first = f"{paths[0]}.{name}" if paths[0] else name
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        shown.append(f"{first} ({what}){more}")
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} others" if len(shown) > 8 else "")
