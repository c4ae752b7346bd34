"""Tables on the terminal and JSON for machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from reservoir_hw.experiment.states.progress_bar import progress_bar as progress_bar

if TYPE_CHECKING:
    from reservoir_hw.experiment.run.result import InFolder
    from reservoir_hw.tasks.task import Table


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


def print_json(value: Any) -> None:
    """Indented JSON on standard output."""
    from reservoir_hw.experiment.run.folder import to_json

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
    """Tables with their notes. Without a terminal they are as wide as they need to be, or as COLUMNS says."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=500)
    for table in tables:
        shown = RichTable(title=Text(table.title), title_justify="left")
        for index, name in enumerate(table.header):
            sentences = any(len(row[index]) > 40 for row in table.rows)
            shown.add_column(Text(name), justify="left" if index == 0 or sentences else "right")
        for row in table.rows:
            shown.add_row(*map(Text, row))
        console.print(shown)
        if table.note:
            console.print(Text(table.note, style="dim"))


def print_facts(facts: Iterable[tuple[str, str]], *, indent: str = "") -> None:
    """A line for each name and what there is to say about it."""
    facts = list(facts)
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        typer.echo(f"{indent}{name:<{width}}  {text}")
