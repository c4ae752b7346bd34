"""What a training says while it runs, and what is left of it afterwards: rows of a CSV file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replacing
from reservoir_hw.core.words import duration


@dataclass(frozen=True)
class Row:
    """The state of a training after `step` steps.

    `loss` is the mean over the steps since the row before (nats per target), `validation_loss` that over the
    validation corpus after this step, None where it was not evaluated. `tokens` were read in all, `seconds` is wall
    time of this process and `tokens_per_s` its speed since the row before, evaluations and checkpoints left out.
    `processor_seconds` is processor time of all threads of this process for the steps so far, with what they drove,
    and with those before an interruption. `metrics` are those of the caller's
    `evaluate`, empty where it was not asked.
    """

    step: int
    tokens: int
    loss: float
    validation_loss: float | None
    learning_rate: float
    gradient_norm: float
    tokens_per_s: float
    seconds: float
    processor_seconds: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """All of it but the step, by name, for a logger; what is not known is left out."""
        own = {name: value for name, value in asdict(self).items() if name not in ("step", "metrics")}
        return {**{name: value for name, value in own.items() if value is not None}, **self.metrics}


@dataclass(frozen=True)
class Progress:
    """A row as the caller sees it, with an estimate of what is left."""

    row: Row
    steps: int
    seconds_left: float

    @property
    def standing(self) -> str:
        """Step, losses and speed, for whoever shows the time that is left in another way."""
        row = self.row
        validation = "" if row.validation_loss is None else f", validation {row.validation_loss:.4f}"
        losses = f"loss {row.loss:.4f}{validation}"
        return f"step {row.step:,} of {self.steps:,}: {losses}, {row.tokens_per_s:,.0f} tokens/s"

    def __str__(self) -> str:
        return f"{self.standing}, {duration(self.seconds_left)} left"


class Log:
    """A CSV file that grows by rows; `begin` says after which step it goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, step: int) -> list[Row]:
        """Forget rows beyond `step`, which a process that died has left; returns the others."""
        rows = [row for row in self.read() if row.step <= step]
        with replacing(self._path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(one.name for one in fields(Row))
            writer.writerows(_cells(row) for row in rows)
        return rows

    def read(self) -> list[Row]:
        """All whole rows; none if there is no file."""
        if not self._path.exists():
            return []
        lines = self._path.read_bytes().decode().splitlines(keepends=True)
        # The last line of a process that died may be cut.
        whole = [line for line in lines if line.endswith("\n")]
        try:
            return [_row(cells) for cells in list(csv.reader(whole))[1:]]
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self._path} is not the log of a training: {error}; put it right, or move it away: the training goes "
                "on without the rows in it"
            ) from error

    def add(self, row: Row) -> None:
        """Append a row; it is on its way to the disk when this returns."""
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(_cells(row))

    def settle(self) -> None:
        """Return when every row is on the disk."""
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())


def _cells(row: Row) -> list[str]:
    # repr gives the same float back.
    *numbers, metrics = asdict(row).values()
    return [*("" if value is None else repr(value) for value in numbers), json.dumps(metrics) if metrics else ""]


def _row(cells: Sequence[str]) -> Row:
    names = [one.name for one in fields(Row)]
    if len(cells) != len(names):
        raise ValueError(f"a line has {len(cells)} cells instead of {len(names)}")
    *numbers, metrics = cells
    whole = {"step", "tokens"}
    values = [
        None if cell == "" else int(cell) if name in whole else float(cell)
        for name, cell in zip(names, numbers, strict=False)
    ]
    return Row(*values, metrics=json.loads(metrics) if metrics else {})  # type: ignore[arg-type]


# ---- The loss over the steps, as a picture.


def draw_losses(rows: Sequence[Row], path: Path) -> None:
    """Training and validation loss over the steps, as PNG."""
    from reservoir_hw.core.figure_style import colours, one_panel

    figure, axes = one_panel(7.5, 3.8)
    training, validation = colours(2)
    axes.plot([row.step for row in rows], [row.loss for row in rows], color=training, lw=1.2, label="training")
    evaluated = [(row.step, row.validation_loss) for row in rows if row.validation_loss is not None]
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), color=validation, marker="o", ms=4, lw=1.2, label="validation")
        best = min(evaluated, key=lambda pair: pair[1])
        axes.axhline(best[1], color=validation, lw=0.8, ls=":", label=f"best validation {best[1]:.4f}")
    axes.set_xlabel("step")
    axes.set_ylabel("cross-entropy (nats per token)")
    axes.legend(frameon=False)
    with replacing(path) as partial:
        figure.savefig(partial, dpi=150, format="png")
