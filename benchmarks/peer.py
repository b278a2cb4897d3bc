"""Torch-Pruning on one model of the zoo, used as in its documentation.

It is told which layers produce the output (they must keep their shape) and how many heads the query, key
and value layers have. After pruning, the head counts and widths that the model stores as attributes are
updated, as its transformer examples do by hand. Three settings are tried; one that works is enough.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

from outputs import shapes, tensors
from timing import call, latency_ratio, macs, parameters
from torch import nn
from zoo import Entry

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "heads", "num_key_value_heads", "groups")
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")
WIDTHS = ("all_head_size", "embed_dim", "hidden_size", "inner_dim", "dim", "split_size")
QUERIES = ("query", "q_proj", "q_lin", "to_q", "wq", "q", "query_proj")
OTHERS = (
    *("key", "k_proj", "k_lin", "to_k", "wk", "k", "key_proj"),
    *("value", "v_proj", "v_lin", "to_v", "wv", "v", "value_proj"),
)
FUSED = ("qkv", "query_key_value", "qkv_proj", "Wqkv")
SETTINGS: dict[str, dict[str, Any]] = {
    "head dims": {"prune_num_heads": False, "prune_head_dims": True},
    "whole heads": {
        "prune_num_heads": True,
        "prune_head_dims": False,
        "head_pruning_ratio": 0.5,
    },
    "no heads given": {},
}


def output_layers(model: nn.Module, inputs: Any) -> list[nn.Module]:
    """Return the layers with weights that are nearest to the outputs, by walking autograd's graph."""
    kinds = (nn.modules.conv._ConvNd, nn.Linear, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)
    made: dict[Any, nn.Module] = {}
    handles = []

    def remember(module: nn.Module, _: Any, outputs: Any) -> None:
        for tensor in tensors(outputs):
            if tensor.grad_fn is not None:
                made[tensor.grad_fn] = module

    for module in model.modules():
        if isinstance(module, kinds):
            handles.append(module.register_forward_hook(remember))
    outputs = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    for handle in handles:
        handle.remove()
    found: dict[nn.Module, None] = {}
    seen = set()
    waiting = [tensor.grad_fn for tensor in tensors(outputs) if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in made:
            found[made[node]] = None
        else:
            waiting += [other for other, _ in node.next_functions if other is not None]
    return list(found)


def attention_modules(model: nn.Module) -> Iterator[tuple[nn.Module, int, int, list[nn.Module]]]:
    """Yield modules with heads: the module, its heads, its key heads, and its linear layers."""
    for module in model.modules():
        children = dict(module.named_children())
        linear = [children[n] for n in (*QUERIES, *OTHERS, *FUSED) if n in children]
        linear = [child for child in linear if isinstance(child, nn.Linear)]
        config = getattr(module, "config", None)
        heads = first_int(module, COUNTS) or first_int(config, COUNTS)
        if linear and heads:
            small = getattr(config, "num_key_value_heads", None) or getattr(module, "groups", heads)
            yield module, heads, small if isinstance(small, int) else heads, linear


def first_int(owner: Any, names: tuple[str, ...]) -> int | None:
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)


def heads_of(model: nn.Module) -> dict[nn.Module, int]:
    found = {}
    for module, heads, small, linear in attention_modules(model):
        for child in linear:
            name = next(n for n, other in module.named_children() if other is child)
            found[child] = small if name in OTHERS and small != heads else heads
    return found


def update_attributes(model: nn.Module, pruned_heads: dict[nn.Module, int]) -> None:
    """Set the number of heads, their size and the width to those of the pruned layers."""
    for module, _, _, linear in list(attention_modules(model)):
        heads = pruned_heads[linear[0]]
        name = next(n for n, other in module.named_children() if other is linear[0])
        width = linear[0].out_features // (3 if name in FUSED else 1)
        values = [(COUNTS[:4], heads), (HEAD_SIZES, width // heads), (WIDTHS, width)]
        for names, value in values:
            for attribute in names:
                if type(getattr(module, attribute, None)) is int:
                    setattr(module, attribute, value)
        small = [pruned_heads[child] for child in linear[1:]]
        if small and hasattr(module, "num_key_value_groups"):
            module.num_key_value_groups = heads // small[0]


def attempt(entry: Entry, setting: str) -> dict[str, Any]:
    import torch_pruning as tp

    inputs = entry.inputs()
    model = entry.build()
    options = dict(SETTINGS[setting])
    num_heads = heads_of(model) if options else {}
    start = time.process_time()
    pruner = tp.pruner.BasePruner(
        model,
        inputs if isinstance(inputs, dict) else tuple(inputs),
        importance=tp.importance.GroupMagnitudeImportance(p=1),
        pruning_ratio=0.5,
        ignored_layers=output_layers(model, inputs),
        num_heads=num_heads,
        **options,
    )
    pruner.step()
    seconds = time.process_time() - start
    if num_heads:
        update_attributes(model, pruner.num_heads)
    original = entry.build()
    expected, received = call(original, inputs), call(model, inputs)
    record: dict[str, Any] = {"status": "ok", "setting": setting, "seconds": seconds}
    if shapes(expected) != shapes(received):
        record |= {"status": "fail", "message": "the output shape changed"}
    record["parameters_kept"] = parameters(model) / parameters(original)
    if record["parameters_kept"] > 0.99 and record["status"] == "ok":
        record |= {"status": "unchanged", "message": "nothing was removed"}
    if record["status"] == "ok":
        record["macs_kept"] = macs(model, inputs) / max(1, macs(original, inputs))
        record["latency_ratio"] = latency_ratio(
            lambda: call(original, inputs), lambda: call(model, inputs)
        )
    return record


def run_peer(entry: Entry, seconds: int = 20) -> dict[str, Any]:
    """Return the first setting that works within this number of CPU seconds, or the first failure."""
    failures = []
    for setting in SETTINGS:
        if setting != "head dims" and not heads_of(entry.build()):
            continue
        signal.signal(signal.SIGPROF, stop)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            record = attempt(entry, setting)
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            record = {
                "status": "fail",
                "setting": setting,
                "message": f"{type(error).__name__}: {text}",
            }
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if record["status"] == "ok":
            return record
        failures.append(record)
        if "TimeoutError" in record.get("message", ""):
            break  # it hangs in its dependency graph, which no setting changes
    return failures[0]


def stop(*_: Any) -> None:
    raise TimeoutError("no result in 20 CPU seconds")
