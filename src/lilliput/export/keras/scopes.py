"""Find the layer in which something was traced, from the names that TensorFlow assigns."""

from __future__ import annotations

from collections.abc import Sequence


def layer_of(name: str, paths: Sequence[str]) -> str:
    """Return the path of the layer whose scope a name belongs to, or an empty string.

    TensorFlow adds numbers to names that it has seen before.

    Examples
    --------
    >>> layer_of("functional_1/block_1/conv_2/convolution:0", ["block/conv", "block"])
    'block/conv'
    """
    scopes = name.split("/")[:-1]
    for path in paths:
        wanted = path.split("/")
        for start in range(len(scopes) - len(wanted) + 1):
            part = scopes[start : start + len(wanted)]
            if all(
                x == y or (x.startswith(f"{y}_") and x[len(y) + 1 :].isdigit())
                for x, y in zip(part, wanted, strict=True)
            ):
                return path
    return ""
