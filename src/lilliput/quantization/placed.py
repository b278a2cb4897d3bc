"""The base of quantizers that quantize activations where runtimes expect it."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, ClassVar

from lilliput.core.quantizer import Quantizer
from lilliput.errors import StateError
from lilliput.graph.placement import Layer, place_quantizers
from lilliput.ops.qparams import Grid
from lilliput.quantization.grids import grid_for

log = logging.getLogger("lilliput")

ACTIVATIONS = ("input", "output")


class PlacedQuantizer(Quantizer):
    """Place quantizers by the flow of tensors, so that each is quantized once; see :mod:`placement`."""

    keeps_ranges: ClassVar[bool] = True  # whether grids cover exactly the observed range

    _grids: dict[tuple[str, str], Grid] | None = None
    _remote: tuple[Any, ...] = ()
    _is_placed: bool = False

    def grid(self, wrapper: Any, target: str) -> Grid:
        """Return the grid of a layer's weight, input or output."""
        if self._grids is None:
            self._grids = {}
        key = (wrapper.name, target)
        if key not in self._grids:
            self._grids[key] = grid_for(wrapper.config, target, wrapper.layer_info)
        return self._grids[key]

    def _take_flow(self, flow: Any) -> None:
        """Decide where activations are quantized, based on the flow of tensors."""
        wrappers = {wrapper.name: wrapper for wrapper in self.get_modules_wrapper()}
        layers = []
        for name, wrapper in wrappers.items():
            paths = frozenset(p for owner in wrapper.layer_info.owners for p in owner.paths)
            grids = {t: self.grid(wrapper, t) for t in ACTIVATIONS if t in wrapper.roles}
            layers.append(Layer(name, paths, grids))
            wrapper.norm = flow.norm_after(paths)
        for (name, target), placement in place_quantizers(layers, flow, self.keeps_ranges).items():
            wrappers[name].places[target] = asdict(placement)
        self._is_placed = True
        for wrapper in wrappers.values():
            wrapper.set_attribute("placed", self._backend.tensor(1.0, wrapper))

    def _agrees(self, wrapper: Any) -> bool:
        """Whether the ranges of a loaded checkpoint were recorded at the same placements as here."""
        is_placed = float(wrapper.placed) != 0
        if is_placed == self._is_placed:
            return True
        how = "by the flow of tensors" if is_placed else "at the layers themselves"
        log.warning(
            "%s: in the checkpoint that was loaded, activations of layer %r are quantized %s, but "
            "not here, so its ranges are not used; call load_state() with quantizer.state() as well, "
            "or pass the same example_inputs as there.",
            type(self).__name__,
            wrapper.name,
            how,
        )
        return False

    def _place_by(self, batch: Any, forward: Any) -> None:
        """Decide the placement from the flow of a batch, unless it was decided before."""
        if self._is_placed:
            return
        self._remove_remote()
        for wrapper in self.get_modules_wrapper():
            self._backend.keep_quantizers(wrapper, ())
        self._take_flow(self._backend.flow_of_batch(self.bound_model, batch, forward))
        self._apply_places()

    def _who_quantizes(self, wrapper: Any, target: str) -> tuple[Any, str]:
        """Return the wrapper, and its input or output, that quantizes a layer's input or output."""
        by = wrapper.places.get(target, {}).get("by")
        if by is None:
            return wrapper, target
        others = {other.name: other for other in self.get_modules_wrapper()}
        return others[by[0]], by[1]

    def _take_state(self) -> None:
        super()._take_state()
        self._check_places()
        self._is_placed = any(float(wrapper.placed) != 0 for wrapper in self.get_modules_wrapper())
        if self.is_wrapped:
            self._apply_places()

    def _check_places(self) -> None:
        """Raise if the placements and norms of a loaded state do not exist in this model."""
        others = {wrapper.name: wrapper for wrapper in self.get_modules_wrapper()}
        for wrapper in others.values():
            for target, placement in wrapper.places.items():
                name, tensor = placement["by"] or (wrapper.name, target)
                known = {*wrapper.roles} & {*ACTIVATIONS}, {*others[name].roles} & {*ACTIVATIONS}
                if target not in known[0] or tensor not in known[1]:
                    raise StateError(
                        f"layer {wrapper.name!r}: the state quantizes its {target} as {tensor!r} of "
                        f"{name!r}, which is not quantized here."
                    )
                if placement["module"]:
                    self._backend.add_remote_quantizer(
                        self.bound_model, placement["module"], wrapper, target
                    ).remove()
            self._backend.link_norm(self.bound_model, wrapper)
            if wrapper.norm:
                self._backend.norm_factor(wrapper)

    def _bind(self) -> None:
        super()._bind()
        self._is_placed = False
        self._grids = None

    def _wrap_model(self) -> None:
        super()._wrap_model()
        self._apply_places()

    def _detach_all(self) -> None:
        self._remove_remote()
        super()._detach_all()

    def _apply_places(self) -> None:
        """Quantize activations at their placements, and nowhere else."""
        self._remove_remote()
        model, handles = self.bound_model, []
        for wrapper in self.get_modules_wrapper():
            self._backend.link_norm(self.bound_model, wrapper)
            clip = wrapper.places.get("output", {}).get("clip")
            wrapper.__dict__["_clip"] = None if clip is None else tuple(clip)
            own = [role for role in wrapper.roles if self._is_own(wrapper, role)]
            self._backend.keep_quantizers(wrapper, own)
            for target, placement in wrapper.places.items():
                if placement["module"] and placement["by"] is None:
                    path = placement["module"]
                    handle = self._backend.add_remote_quantizer(model, path, wrapper, target)
                    handles.append(handle)
        self._remote = tuple(handles)

    @staticmethod
    def _is_own(wrapper: Any, target: str) -> bool:
        placement = wrapper.places.get(target, {"module": "", "by": None})
        return not placement["module"] and placement["by"] is None

    def _remove_remote(self) -> None:
        for handle in self._remote:
            handle.remove()
        self._remote = ()
