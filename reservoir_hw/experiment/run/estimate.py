"""What a run will cost, said before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run import language
from reservoir_hw.experiment.states.plan import plan_of, steps_needed
from reservoir_hw.readout.models.configuration import ModelConfig
from reservoir_hw.tasks.task import Task


@dataclass(frozen=True)
class Estimate:
    """Totals over all points. `hours` is None where no step period is declared (a simulation).

    `training_steps` are those of language models, updates of the weights; `chunks` count for the others only.
    """

    runs: int
    device_steps: int
    chunks: int
    state_bytes: int | None
    hours: float | None
    kept: bool = False
    training_steps: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for `--json`."""
        return asdict(self)

    def __str__(self) -> str:
        size = "unknown size" if self.state_bytes is None else _bytes(self.state_bytes)
        time = "" if self.hours is None else f", {self.hours:.2g} h of device time"
        what = "harvest" if self.kept else "run"
        runs = f"1 {what}" if self.runs == 1 else f"{self.runs} {what}s"
        learning = f", {self.training_steps:,} training steps" if self.training_steps else ""
        chunks = f" in {self.chunks:,} chunks" if self.chunks else ""
        where = "kept on disk" if self.kept else "streamed, not kept" if self.chunks else "precomputed"
        states = f", {size} of states ({where})" if self.state_bytes != 0 else ""
        return f"{runs}{learning}, {self.device_steps:,} device steps{chunks}{states}{time}"


def estimate(points: Sequence[tuple[Point, Task]], *, kept: bool = False) -> Estimate:
    """From the tasks' lengths and what the configurations say of nodes and step period; opens nothing.

    `kept` is for a harvest: only states that are kept count as bytes, and no forecast is made.
    """
    steps = chunks = learning = 0
    sizes: list[int] = []
    periods: list[float] = []
    for point, task in points:
        reservoir = point.config.reservoir
        period = getattr(reservoir, "step_period_s", None)
        if isinstance(point.config.readout, ModelConfig):
            model = language.cost(point, task)
            steps, learning = steps + model.device_steps, learning + model.training_steps
            sizes += [] if model.state_bytes is None else [model.state_bytes]
            periods += [] if period is None else [model.device_steps * period / 3600]
            continue
        legs = [leg for burst in plan_of(point, task) for leg in burst.legs]
        here = sum(leg.steps for leg in legs) if kept else steps_needed(point, task)
        here += _steps_for_rest(point, task)
        steps, chunks = steps + here, chunks + len(legs)
        nodes = getattr(reservoir, "nodes", None)
        if nodes is not None:
            written = sum(leg.steps for leg in legs if leg.place is not None) if kept else here
            sizes.append(written * nodes * (8 if getattr(reservoir, "dtype", "float32") == "float64" else 4))
        if period is not None:
            periods.append(here * period / 3600)
    return Estimate(
        runs=len(points),
        device_steps=steps,
        chunks=chunks,
        state_bytes=sum(sizes) if len(sizes) == len(points) else None,
        hours=sum(periods) if len(periods) == len(points) else None,
        kept=kept,
        training_steps=learning,
    )


def _steps_for_rest(point: Point, task: Task) -> int:
    """Steps of replays, and of the washout or waveform of each reset, as far as the configuration tells them."""
    reservoir = point.config.reservoir
    replayed = getattr(reservoir, "memory_steps", 0) if getattr(reservoir, "continuity", "") == "replayed" else 0
    policy = getattr(reservoir, "reset", None)
    rest = getattr(policy, "steps", 0) or len(getattr(policy, "values", ()))
    total = 0
    for burst in plan_of(point, task):
        calls = len(burst.legs)
        resets = calls if replayed else 1
        total += burst.batch * ((calls - 1) * replayed + resets * rest)
    return total


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
