"""What a run will cost, said before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reservoir_hw.backends.simulated.memory import in_units
from reservoir_hw.core.words import counted
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run.trainer import Cost, DeviceMemory


@dataclass(frozen=True)
class Estimate:
    """Totals over all points. `hours` is None where no step period is declared (a simulation).

    `training_steps` are those of language models, updates of the weights; `chunks` count for the others only.
    They are as long as they may be, a slow device gets shorter ones. `bursts` are those of instruments. `stored` of the
    runs take the states of a harvest. `on_device` is the memory of the point that takes most on a GPU.
    """

    runs: int
    device_steps: int
    chunks: int
    state_bytes: int | None
    hours: float | None
    kept: bool = False
    training_steps: int = 0
    bursts: int = 0
    stored: int = 0
    on_device: DeviceMemory | None = None

    def __str__(self) -> str:
        size = "unknown size" if self.state_bytes is None else in_units(self.state_bytes)
        time = "" if self.hours is None else f", {self.hours:.2g} h of device time"
        runs = counted(self.runs, "harvest" if self.kept else "run")
        runs += f" ({self.stored} on harvested states)" if self.stored else ""
        learning = f", {self.training_steps:,} training steps" if self.training_steps else ""
        chunks = f" in {counted(self.chunks, 'chunk')} or more" if self.chunks else ""
        chunks += f" and {counted(self.bursts, 'burst')}" if self.bursts else ""
        where = "kept on disk" if self.kept else "streamed, not kept" if self.chunks else "precomputed"
        states = f", {size} of states ({where})" if self.state_bytes != 0 else ""
        return f"{runs}{learning}, {self.device_steps:,} device steps{chunks}{states}{time}"


def estimate(points: Sequence[tuple[Point, Cost]], *, kept: bool = False) -> Estimate:
    """Add up what the points take, in hours as far as their configurations say of a step period.

    `kept` is for a harvest: only states that are kept count as bytes, and no forecast is made.
    """
    costs = [cost for _, cost in points]
    sizes = [cost.state_bytes for cost in costs if cost.state_bytes is not None]
    periods = [(getattr(point.config.reservoir, "step_period_s", None), cost.device_steps) for point, cost in points]
    hours = [steps * period / 3600 for period, steps in periods if period is not None]
    summed = ("device_steps", "chunks", "training_steps", "bursts", "stored")
    return Estimate(
        runs=len(points),
        state_bytes=sum(sizes) if len(sizes) == len(points) else None,
        hours=sum(hours) if len(hours) == len(points) else None,
        kept=kept,
        on_device=max(filter(None, (cost.on_device for cost in costs)), key=lambda memory: memory.total, default=None),
        **{name: sum(getattr(cost, name) for cost in costs) for name in summed},
    )
