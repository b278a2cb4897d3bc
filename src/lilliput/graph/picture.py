"""The channel groups of a model as a metro map, in one self-contained SVG file.

>>> import torch
>>> from lilliput.torch import channel_groups
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> "0.weight · 8 units" in draw(channel_groups(model, torch.zeros(2, 4)))
True
"""

from __future__ import annotations

from lilliput.charts.metro import Row, Track, draw_map_file, units_of
from lilliput.graph.groups import ChannelGroups, layer_of, roles_of


def draw(groups: ChannelGroups) -> str:
    """Return the map, with the shapes of all tensors; see :mod:`lilliput.charts.metro`."""
    rows = _find_rows(groups)
    place = {name: i for i, name in enumerate(rows)}
    tracks = []
    for group in groups:
        makes, reads, passes = ([place[x] for x in layers] for layers in roles_of(group, groups))
        label = f"{group.name} · {units_of(group.size, group.row_count)}"
        tracks.append(Track(group.size, label, str(group), makes, reads, passes))
    for pinned in groups.pinned:
        rows[layer_of(pinned.tensor)].write(f"{pinned.size} stay: {pinned.reason}")
    for name in groups.unreached:
        rows[layer_of(name)].write("it is not reached by the example inputs")
    notes = [f"op without a rule: {name}, at {where}" for name, where in groups.unknown.items()]
    return draw_map_file(list(rows.values()), tracks, notes)


def _find_rows(groups: ChannelGroups) -> dict[str, Row]:
    """Return the layers with parameters in model order, and those that are never reached."""
    shapes = {name: value.shape for name, value in groups.analysis.axes.items()}
    shown = {
        *groups.analysis.graph.trained,
        *(s.tensor for group in groups for s in group.slices),
        *groups.unreached,
        *(pinned.tensor for pinned in groups.pinned),
    }
    tensors: dict[str, list[str]] = {}
    for name in (*shapes, *groups.unreached):
        if layer_of(name) in tensors or name in shown:  # other buffers have nothing to show
            tensors.setdefault(layer_of(name), []).append(name)
    rows = {}
    for layer, names in tensors.items():
        sizes = {name: "×".join(map(str, shapes.get(name, ()))) for name in names}
        largest = max(names, key=lambda name: len(shapes.get(name, ())))
        hover = "\n".join(f"{name} {size}" for name, size in sizes.items())
        rows[layer] = Row(layer, sizes[largest], hover)
    return rows
