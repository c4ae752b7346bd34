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
    steps = [
        steps_needed(task, p.config.training) + _steps_for_rest(p, task) for p, task in zip(points, tasks, strict=True)
    ]
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


def _steps_for_rest(point: Point, task: Task) -> int:
    """Steps of replays, and of the washout or waveform of each reset, as far as the configuration tells them."""
    reservoir, chunk = point.config.reservoir, point.config.run.chunk_steps
    replayed = getattr(reservoir, "memory_steps", 0) if getattr(reservoir, "continuity", "") == "replayed" else 0
    policy = getattr(reservoir, "reset", None)
    rest = getattr(policy, "steps", 0) or len(getattr(policy, "values", ()))
    passes = point.config.training.settle_passes + 1
    total = 0
    for split, times in ((task.train, passes), (task.test, 1)):
        sequences, length = split.inputs.shape[:2]
        bursts = times * -(-length // chunk)
        resets = bursts if replayed else 1
        total += sequences * ((bursts - 1) * replayed + resets * rest)
    return total


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
