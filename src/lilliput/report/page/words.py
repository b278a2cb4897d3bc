"""Numbers and figures in the format of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lilliput.charts.bars import draw_bar

NOTHING = "–"
_DENSE = 0.97  # a few zeros are not sparsity


@dataclass(frozen=True)
class Card:
    """One large figure of the receipt: ``7.6×`` ``smaller``, and its origin."""

    label: str
    figure: str
    word: str
    detail: str
    bar: str = ""
    mood: str = ""  # 'worse' or 'same'; empty for a gain


def sentence(text: str) -> str:
    """Return a text with an initial capital and real minus signs.

    Examples
    --------
    >>> sentence("smaller, accuracy -0.5.")
    'Smaller, accuracy −0.5.'
    """
    return with_minus(text[:1].upper() + text[1:])


def with_minus(text: str) -> str:
    """Return a text with real minus signs before numbers."""
    return re.sub(r"(?<!\S)-(?=\d)", "−", text)


def amount(value: float | None) -> str:
    """Return a number with three digits and a unit.

    Examples
    --------
    >>> amount(950), amount(24_786), amount(3_840_512), amount(None)
    ('950', '24.8 k', '3.84 M', '–')
    """
    if value is None:
        return NOTHING
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)} {unit}"
    return f"{value:g}"


def size(value: float | None) -> str:
    """Return a number of bytes.

    Examples
    --------
    >>> size(755_890), size(312)
    ('756 kB', '312 bytes')
    """
    if value is None or abs(value) < 1000:
        return NOTHING if value is None else f"{value:g} byte{'' if value == 1 else 's'}"
    return amount(value).replace(" ", " ") + "B"


def milliseconds(value: float | None) -> str:
    """Return a time.

    Examples
    --------
    >>> milliseconds(3.6214), milliseconds(0.0421)
    ('3.62 ms', '42.1 µs')
    """
    if value is None:
        return NOTHING
    return f"{_three(value)} ms" if value >= 0.1 or value == 0 else f"{_three(1e3 * value)} µs"


def percent(share: float | None) -> str:
    """Return a share as text; only exact values are shown as 0 % or 100 %.

    Examples
    --------
    >>> percent(0.1314), percent(0.9999), percent(1.0)
    ('13.1 %', '99.9 %', '100 %')
    """
    if share is None:
        return NOTHING
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def shape(sizes: list[int]) -> str:
    """Return the sizes of a tensor."""
    return "×".join(map(str, sizes))


def cards_of(receipt: Any) -> list[Card]:
    """Return the figures of a receipt that are known on both sides, the most informative first."""
    one, two = receipt.before, receipt.after
    cards = [
        _card("Size on disk", one.bytes, two.bytes, size, ("smaller", "larger")),
        _latency(receipt),
        _card("Multiplications", one.macs, two.macs, amount, ("fewer", "more")),
        _card("Parameters", one.parameters, two.parameters, amount, ("fewer", "more")),
    ]
    if two.nonzeros is not None and two.nonzeros < _DENSE * (two.parameters or 0):
        cards.append(
            _card("Non-zero weights", one.nonzeros, two.nonzeros, amount, ("fewer", "more"))
        )
    if one.metric is not None and two.metric is not None:
        change = with_minus(f"{two.metric - one.metric:+.4f}")
        detail = "unchanged" if one.metric == two.metric else f"{change}, was {one.metric:.4f}"
        cards.append(Card(sentence(receipt.metric_name), f"{two.metric:.4f}", "", detail))
    return [card for card in cards if card is not None]


def _latency(receipt: Any) -> Any:
    """Return the latencies, with their ratio only if one runtime gave steady readings of both."""
    one, two = receipt.before.p50, receipt.after.p50
    if one is None or two is None or not receipt.doubt:
        return _card("Latency, median", one, two, milliseconds, ("faster", "slower"))
    return Card("Latency, median", milliseconds(two), "", receipt.doubt)


def _card(label: str, one: Any, two: Any, text: Any, words: tuple[str, str]) -> Any:
    if one is None or two is None or min(one, two) <= 0:
        return None
    ratio = max(one, two) / min(one, two)
    detail = f"{text(one)} → {text(two)}"
    share = two / max(one, two), one / max(one, two)
    if ratio < 1.005:
        return Card(label, "Same", "as before", detail, draw_bar(*share), "same")
    figure = f"{ratio:.2f}×" if ratio < 2 else f"{_three(ratio)}×"
    mood = "worse" if two > one else ""
    return Card(label, figure, words[two > one], detail, draw_bar(*share), mood)


def mood_of(change: str) -> str:
    """Return whether a line of the receipt is a gain, a loss, or neither.

    Examples
    --------
    >>> mood_of("÷ 2.7"), mood_of("× 1.7"), mood_of("-0.005")
    ('gain', 'worse', '')
    """
    return {"÷": "gain", "+": "gain", "×": "worse"}.get(change[:1], "")


def _three(value: float) -> str:
    """Return exactly three digits, never as a power of ten."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f}"
