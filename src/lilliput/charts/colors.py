"""The colours of the page, for light and for dark mode; a test checks their contrast."""

from __future__ import annotations

import re

LIGHT = {
    "paper": "#faf9f6",  # behind everything
    "card": "#ffffff",  # behind tables and drawings
    "ink": "#1d2126",  # text
    "soft": "#5a636d",  # secondary text
    "line": "#e5e2da",  # hairlines
    "axis": "#a9a69e",
    "accent": "#0b6b69",  # the result, links, focus
    "wash": "#dcecea",  # a light fill of the accent
    "before": "#858b93",  # the original
    "faint": "#e4e5e6",  # a light fill of the original
    "warn": "#8f5200",
}
DARK = {
    "paper": "#15181b",
    "card": "#1c2024",
    "ink": "#e9e6e0",
    "soft": "#a5adb5",
    "line": "#30363c",
    "axis": "#5f676f",
    "accent": "#62cabf",
    "wash": "#1f3c3b",
    "before": "#868e97",
    "faint": "#353b41",
    "warn": "#e5ad57",
}

# Named lines; the same eight in both modes, each readable as text on its card.
SERIES_LIGHT = (
    *("#00659e", "#b84500", "#00734f", "#a03a74", "#7a5d00", "#a8203a", "#6540a5", "#664d2a"),
)
SERIES_DARK = (
    *("#55b4ee", "#f6945a", "#3fcb9a", "#e793c3", "#dcb545", "#f5858f", "#bba0f2", "#ccac7d"),
)

# Heat maps: from little to much. Kept weights in the accent, noise in a warm tone.
KEPT_LIGHT = ("#e6f0ee", "#c3dfdb", "#97c8c2", "#63aaa4", "#2f8682", "#0a5f5d")
KEPT_DARK = ("#20302f", "#25494a", "#2c6664", "#3b8883", "#4fada4", "#86dfd3")
NOISE_LIGHT = ("#f8efe2", "#f2d9b5", "#e9bd80", "#d9994b", "#b87022", "#8a4a08")
NOISE_DARK = ("#2f2a22", "#4a3b26", "#6d522a", "#956e33", "#c28f43", "#f0bd6c")


def variables(is_dark: bool) -> str:
    """Return the colours as CSS variables.

    Examples
    --------
    >>> variables(is_dark=False)[:16]
    '--paper:#faf9f6;'
    """
    named = DARK if is_dark else LIGHT
    families = {
        "s": SERIES_DARK if is_dark else SERIES_LIGHT,
        "k": KEPT_DARK if is_dark else KEPT_LIGHT,
        "n": NOISE_DARK if is_dark else NOISE_LIGHT,
    }
    parts = [f"--{name}:{color};" for name, color in named.items()]
    for letter, family in families.items():
        parts += [f"--{letter}{i}:{color};" for i, color in enumerate(family)]
    return "".join(parts)


def resolved(style: str, is_dark: bool) -> str:
    """Return CSS with its colours written out, because few programs except browsers support variables.

    Examples
    --------
    >>> resolved("text{fill:var(--ink)}", is_dark=False)
    'text{fill:#1d2126}'
    """
    known = dict(part.split(":") for part in variables(is_dark).rstrip(";").split(";"))
    return re.sub(r"var\((--\w+)\)", lambda name: known[name[1]], style)
