"""How far a run, a harvest or an import has come, for whoever waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reservoir_hw.core.reservoir import Reservoir


Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all)."""


def following(reservoir: Reservoir, add: Callable[[int], None]) -> Callable[[int], None]:
    """Adds what the device has counted since the last call, from its opening on, whatever it is called with."""
    seen = 0

    def look(_steps: int = 0) -> None:
        nonlocal seen
        add(reservoir.counters.steps - seen)
        seen = reservoir.counters.steps

    look()
    return look


class StepCounter:
    """Adds up steps for one progress report."""

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        self._progress = progress
        self.total, self.done, self._what = total, 0, ""

    def say(self, what: str) -> None:
        """What is being done from now on."""
        self._what = what
        self.add(0)

    def add(self, steps: int) -> None:
        """So many steps were done."""
        self.done += steps
        if self._progress is not None:
            self._progress(self._what, self.done, max(self.total, self.done))


# ---- Progress on standard error: a bar in a terminal, lines in a file, a line that moves in a notebook.


LINE_EVERY_S = 30.0
_NOTEBOOK_EVERY_S = 0.5
_BAR_WIDTH = 20
"""Characters: beside it, days of a slow device fit into 80 columns."""


@contextmanager
def shown_progress(given: Progress | None = None) -> Iterator[Progress]:
    """What is given, or else a bar in a terminal, a line that moves in a notebook, and nothing elsewhere."""
    if given is not None:
        yield given
    elif "ipykernel" in sys.modules:
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
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Steps per second and the time that is left."""

        def render(self, task: Task) -> Text:
            """As far as it can be known."""
            rate, left = task.finished_speed or task.speed, task.time_remaining
            text = "" if rate is None else f"{rate:,.{0 if rate >= 100 else 1}f} steps/s"
            return Text(text + ("" if left is None else f", {timedelta(seconds=round(left))} left"))

    class Bar(Progress):
        """The bar on a line of its own, below what is being done: neither cuts the other, however long it is."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """Two parts, of which the first wraps."""
            for task in self.tasks:
                yield Text(task.description, overflow="fold")
            yield self.make_tasks_table(self.tasks)

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = ["{task.percentage:>3.0f}%", BarColumn(_BAR_WIDTH), TimeElapsedColumn(), Rate()]
    with Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        work = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(work, description=what, completed=done, total=total)


class _Lines:
    """Progress for a file or a job log: a line now and then instead of a bar."""

    def __init__(self) -> None:
        self._said = self._began = time.monotonic()
        self._first: int | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        # What an earlier run has done says nothing about the speed of this one.
        if self._first is None:
            self._first = done
        now = time.monotonic()
        if now - self._said < LINE_EVERY_S:
            return
        self._said = now
        seconds, here = now - self._began, done - self._first
        left = f", {timedelta(seconds=round(seconds / here * (total - done)))} left" if here else ""
        sys.stderr.write(f"{done:,} of {total:,} steps after {timedelta(seconds=round(seconds))}{left}: {what}\n")


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
