"""Columns for a person: rows of texts under their headings."""

import shutil
import sys
from collections.abc import Sequence

from loopwarden.cli.output import Output
from loopwarden.display import cut, shown_line


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]], output: Output) -> None:
    """Print rows under headings. What reads a pipe gets whole lines; a terminal gets one line a row."""
    cells = [tuple(headings), *(tuple(shown_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings) - 1)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for *named, last in cells:
        padded = [cell.ljust(width) for cell, width in zip(named, widths, strict=True)]
        output.show(cut("  ".join([*padded, last]).rstrip(), room))
