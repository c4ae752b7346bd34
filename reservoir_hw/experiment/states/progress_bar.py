"""Progress on standard error: a bar in a terminal, lines in a file, a line that moves in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from reservoir_hw.experiment.states.progress import Progress

LINE_EVERY_S = 30.0
_NOTEBOOK_EVERY_S = 0.5


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """For whoever calls from Python: a bar in a terminal, a line that moves in a notebook, else nothing."""
    if "ipykernel" in sys.modules:
        yield _Notebook()
        sys.stderr.write("\n")
    elif sys.stderr is not None and sys.stderr.isatty():
        with progress_bar() as bar:
            yield bar
    else:
        yield lambda what, done, total: None


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on standard error: call what this yields with (what is being done, steps done, steps in all)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Steps per second and the time that is left."""

        def render(self, task: Task) -> Text:
            """As far as it can be known."""
            rate, left = task.finished_speed or task.speed, task.time_remaining
            text = "" if rate is None else f"{rate:,.3g} steps/s"
            return Text(text + ("" if left is None else f", {timedelta(seconds=round(left))} left"))

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = [BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(), Rate()]
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console, transient=True, redirect_stdout=False
    ) as bar:
        work = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(work, description=what, completed=done, total=total)


class _Lines:
    """Progress for a file or a job log: a line now and then instead of a bar."""

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said < LINE_EVERY_S:
            return
        self._said = now
        sys.stderr.write(f"{done:,} of {total:,} steps after {timedelta(seconds=round(now - self._began))}: {what}\n")


class _Notebook:
    """A line that is written over, with what a notebook can always show."""

    def __init__(self) -> None:
        self._said = 0.0
        self._width = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said < _NOTEBOOK_EVERY_S:
            return
        self._said = now
        line = f"{100 * done // max(total, 1)} % of {total:,} steps: {what}"
        self._width = max(self._width, len(line))
        sys.stderr.write(f"\r{line:<{self._width}}")
        sys.stderr.flush()
