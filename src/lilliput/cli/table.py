"""Tables and receipts for people: with lines and colours on a terminal, as plain text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any


@dataclass(frozen=True)
class Table:
    """Rows to print; columns whose name starts with ``>`` are aligned to the right.

    Examples
    --------
    >>> print(Table(["layer", ">parameters"], [["conv1", "1,728"]]))
    layer  parameters
    conv1       1,728
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __str__(self) -> str:
        """Return the table as text, as wide as necessary: names are never broken."""
        head = [name.removeprefix(">") for name in self.columns]
        cells = [[cell.splitlines() or [""] for cell in row] for row in self.rows]
        lines = [line for row in cells for line in zip_longest(*row, fillvalue="")]
        lines = [tuple(head), *lines] if any(head) else lines
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(head))]
        text = ["  ".join(map(self._align, line, self.columns, widths)).rstrip() for line in lines]
        return "\n".join([self.title, *text] if self.title else text)

    @staticmethod
    def _align(cell: str, column: str, width: int) -> str:
        return cell.rjust(width) if column.startswith(">") else cell.ljust(width)

    def __rich__(self) -> Any:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=self.title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 2, 0, 0),
            pad_edge=False,
            show_edge=False,
            show_header=any(self.columns),
        )
        for name in self.columns:
            justify: Any = "right" if name.startswith(">") else "left"
            table.add_column(name.removeprefix(">"), justify=justify, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        return table


def show(part: Any, stream: IO[str]) -> None:
    """Print text, a table or a receipt: formatted by rich on a terminal, if it is installed."""
    if stream.isatty() and hasattr(part, "__rich__"):
        try:
            from rich.console import Console
        except ModuleNotFoundError:
            pass
        else:
            console = Console(file=stream, highlight=False, markup=False)
            if console.is_terminal:
                console.print(part)
                return
    print(part, file=stream)
