"""A learned map from the width of a student's layer to that of its teacher's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lilliput.errors import AlgorithmError, ConfigError
from lilliput.ops.namespace import namespace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Tensor = Any
_RIDGE = (
    1e-3  # relative to the mean energy of a channel: keeps channels apart that a batch does not
)


def width_axis(
    student: tuple[int, ...], teacher: tuple[int, ...], channels: int | None, place: str
) -> int | None:
    """Return the only axis along which two shapes differ, or None if they are equal.

    It has to be the one of the channels, if that is known, or else the first one after the batch or the last.

    Examples
    --------
    >>> width_axis((8, 16, 4, 4), (8, 32, 4, 4), 1, "layer1")
    1
    """
    if student == teacher:
        return None
    pairs = list(zip(student, teacher, strict=False))
    axes = [i for i, (one, other) in enumerate(pairs) if one != other]
    if len(student) != len(teacher) or len(axes) != 1 or axes == [0]:
        raise ConfigError(
            f"{place}: shapes {student} and {teacher} cannot be compared; expected equal shapes, or shapes "
            "that differ only in the number of channels, for which a projection is learned."
        )
    known = [1, len(student) - 1] if channels is None else [channels]
    if axes[0] not in known:
        listed = " or ".join(map(str, known))
        raise ConfigError(
            f"{place}: shapes {student} and {teacher} differ along axis {axes[0]}, but their channels are "
            f"along axis {listed}, and projections are learned between channels only; compare layers whose "
            "other axes (time, height, width) are equal."
        )
    return axes[0]


@dataclass(frozen=True)
class Projection:
    """A matrix of the teacher's width by the student's: a 1×1 convolution along any axis."""

    weight: Any

    @staticmethod
    def fit(
        student: Tensor, teacher: Tensor, axis: int, add_up: Callable[[Any], Any], place: str
    ) -> NDArray[np.float64]:
        """Return the least-squares matrix that maps one tensor to the other.

        Training then starts from the best linear map instead of a random one. ``add_up`` sums an array over
        processes, so that all of them start from the same matrix; ``place`` names the tensors in an error.
        """
        import numpy as np  # imported here to keep importing Lilliput fast

        xp = namespace(student)
        rows, wanted = (
            np.moveaxis(xp.to_numpy(x), axis, -1).reshape(-1, x.shape[axis])
            for x in (student, teacher)
        )
        products, crosses = add_up(rows.T @ rows), add_up(rows.T @ wanted)
        if not (np.isfinite(products).all() and np.isfinite(crosses).all()):
            raise AlgorithmError(
                f"{place}: their outputs contain NaN, infinity or values too large to square, so no "
                "projection can be fitted; check the batch and the weights."
            )
        price = _RIDGE * products.diagonal().mean() + np.finfo(np.float32).tiny
        fitted: NDArray[np.float64] = np.linalg.solve(
            products + price * np.eye(len(products)), crosses
        ).T
        return fitted

    def apply(self, tensor: Tensor, axis: int) -> Tensor:
        """Return a tensor with the teacher's number of channels along an axis."""
        xp = namespace(tensor)
        last = xp.moveaxis(tensor, axis, -1)
        weight = xp.to_float(self.weight, like=tensor)
        return xp.moveaxis(last @ xp.moveaxis(weight, 0, 1), -1, axis)
