"""Tables on the terminal and JSON for machines."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from reservoir_hw.experiment.states.progress import progress_bar as progress_bar

if TYPE_CHECKING:
    from reservoir_hw.experiment.run.result import InFolder
    from reservoir_hw.tasks.task import Table


_LONGEST_NUMBER = 24
"""Characters of a cell with a number and its interval; longer ones are sentences."""
_INTERVAL = re.compile(r" (?=[(\[±])")
"""Where an interval begins behind its number."""
_LEAST_ROOM = 20
"""Characters of a fact in a line, however narrow the terminal is."""


@contextmanager
def own_stdout(wanted: bool) -> Iterator[None]:
    """Standard output belongs to us if that is wanted: what a lab's code prints meanwhile goes to standard error."""
    # It may be closed by the caller: then there is nothing to keep clean.
    if not wanted or sys.stdout is None:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def say(text: str) -> None:
    """A line on standard error, which is no result."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    from reservoir_hw.experiment.run.result import to_json

    typer.echo(to_json(value))


def print_result(result: InFolder, *, json: bool, now: str = "") -> None:
    """What was found and where it lies, `now` what to type next, and the remarks on standard error."""
    if json:
        print_json(result.metrics)
    else:
        print_tables(result.tables())
        for warning in result.warnings:
            typer.echo(f"warning: {warning}")
        typer.echo(f"Results are in {result.folder}")
        if now:
            typer.echo(f"Now: {now}")
    for note in result.notes:
        typer.echo(note, err=True)


def print_tables(tables: Iterable[Table]) -> None:
    """Tables with their notes, as wide as the terminal or `COLUMNS` allows; a table that cannot fit becomes lines."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    for table in tables:
        widths = _column_widths(table, console.width)
        if widths is None:
            console.print(Text(table.title, style="italic"))
            for number, row in enumerate(table.rows):
                if number:
                    typer.echo()
                print_facts([(name, text) for name, text in zip(table.header, row, strict=True) if text], indent="  ")
        else:
            shown = RichTable(title=Text(table.title), title_justify="left")
            for index, (name, width) in enumerate(zip(table.header, widths, strict=True)):
                left = index == 0 or _is_prose(table, index)
                shown.add_column(Text(name), justify="left" if left else "right", width=width, overflow="fold")
            for row in table.rows:
                shown.add_row(*(Text(_broken(cell, width)) for cell, width in zip(row, widths, strict=True)))
            console.print(shown)
        if table.note:
            console.print(Text(table.note, style="dim"))


def _is_prose(table: Table, column: int) -> bool:
    """Whether its cells may be wrapped between any words: they are names or sentences, not numbers and intervals."""
    return any(len(row[column]) > _LONGEST_NUMBER for row in table.rows)


def _broken(cell: str, width: int) -> str:
    """A number that is too long for its column has its interval on a line of its own."""
    return cell if len(cell) <= width or len(cell) > _LONGEST_NUMBER else _INTERVAL.sub("\n", cell)


def _column_widths(table: Table, width: int) -> list[int] | None:
    """Characters for each column in a table of at most `width` characters, or None if words would have to be cut."""
    least, most = [], []
    for column, name in enumerate(table.header):
        cells = [row[column] for row in table.rows]
        split = str.split if _is_prose(table, column) else _INTERVAL.split
        parts = [part for cell in cells for part in split(cell)]
        least.append(max(map(len, [*name.split(), *parts]), default=0))
        most.append(max(map(len, [name, *cells])))
    spare = width - (3 * len(least) + 1) - sum(least)
    if spare < 0:
        return None
    for _ in range(min(spare, sum(most) - sum(least))):
        # To the column that is wrapped into most lines.
        least[max(range(len(least)), key=lambda column: most[column] / max(least[column], 1))] += 1
    return least


def print_facts(facts: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """Each name and what there is to say about it, wrapped between words at the width of the terminal."""
    from rich.console import Console

    facts = list(facts)
    start = len(indent) + max(len(name) for name, _ in facts) + 2
    room = max(Console().width, start + _LEAST_ROOM)
    for name, text in facts:
        for number, line in enumerate(text.splitlines() or [""]):
            first = f"{indent}{'' if number else name}".ljust(start)
            wrapped = textwrap.fill(
                line,
                room,
                initial_indent=first,
                subsequent_indent=" " * start,
                break_long_words=False,
                break_on_hyphens=False,
            )
            typer.echo(wrapped or first.rstrip())
