"""What a run will cost, said before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reservoir_hw.experiment.configuration import Point
from reservoir_hw.experiment.drive import steps_needed
from reservoir_hw.tasks.task import Task


@dataclass(frozen=True)
class Estimate:
    """Totals over all points. `hours` is None where no step period is declared (a simulation)."""

    runs: int
    device_steps: int
    chunks: int
    state_bytes: int | None
    hours: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        size = "unknown size" if self.state_bytes is None else _bytes(self.state_bytes)
        time = "" if self.hours is None else f", {self.hours:.2g} h of device time"
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        return (
            f"{runs}, {self.device_steps:,} device steps in {self.chunks:,} chunks, "
            f"{size} of states (streamed, not kept){time}"
        )


def estimate(points: Sequence[Point], tasks: Sequence[Task]) -> Estimate:
    """From the tasks' lengths and what the configurations say of nodes and step period; opens nothing."""
    steps = [steps_needed(task, p.config.training) for p, task in zip(points, tasks, strict=True)]
    chunks = sum(-(-n // p.config.run.chunk_steps) for n, p in zip(steps, points, strict=True))
    sizes: list[int] = []
    periods: list[float] = []
    for n, point in zip(steps, points, strict=True):
        reservoir = point.config.reservoir
        nodes, period = getattr(reservoir, "nodes", None), getattr(reservoir, "step_period_s", None)
        if nodes is not None:
            sizes.append(n * nodes * (8 if getattr(reservoir, "dtype", "float32") == "float64" else 4))
        if period is not None:
            periods.append(n * period / 3600)
    return Estimate(
        runs=len(points),
        device_steps=sum(steps),
        chunks=chunks,
        state_bytes=sum(sizes) if len(sizes) == len(points) else None,
        hours=sum(periods) if len(periods) == len(points) else None,
    )


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
