"""Memory of a simulation and of its readout on the device where they compute, and chunks that fit into what is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reservoir_hw.backends.simulated.memory import DriveMemory, does_not_fit, in_units
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig
from reservoir_hw.core.errors import OutOfMemory
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.experiment.states.plan import Burst

# What the libraries of a GPU take for themselves when they are first used.
_LIBRARIES = 64 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """Estimated bytes on `device`: weights, the largest chunk of `batch` sequences of `steps` steps, the readout."""

    device: str
    weights: int
    chunk: int
    readout: int
    batch: int
    steps: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.chunk + self.readout

    def __str__(self) -> str:
        sequences = "1 sequence" if self.batch == 1 else f"{self.batch:,} sequences"
        return (
            f"about {in_units(self.total)} of memory on {self.device}: weights {in_units(self.weights)}, a chunk of "
            f"{self.steps:,} steps of {sequences} {in_units(self.chunk)}, the readout {in_units(self.readout)}"
        )


def device_memory(reservoir: SimulatedConfig, bursts: Sequence[Burst], outputs: int) -> DeviceMemory:
    """What a point takes where its reservoir computes, whose number of inputs is configured."""
    need = reservoir.drive_memory()
    sizes = (chunk.inputs.shape[:2] for burst in bursts for chunk in burst.chunks)
    batch, steps = max(sizes, key=lambda size: need.bytes(*size))
    return DeviceMemory(
        device=getattr(reservoir, "device", "cpu"),
        weights=reservoir.weight_bytes(),
        chunk=need.bytes(batch, steps),
        readout=readout_bytes(need.nodes + need.inputs + outputs),
        batch=batch,
        steps=steps,
    )


def about_device_memory(reservoir: ReservoirConfig) -> str:
    """What a reservoir file on a GPU takes there, for any drive; nothing of other reservoirs."""
    device = getattr(reservoir, "device", "cpu")
    if device == "cpu" or not isinstance(reservoir, SimulatedConfig):
        return ""
    # How many there will be is not known, and makes little difference.
    known = reservoir if reservoir.inputs is not None else reservoir.model_copy(update={"inputs": 1})
    step = known.drive_memory().bytes(1, 1000) - known.drive_memory().bytes(1, 0)
    weights = in_units(known.weight_bytes())
    return f"It takes about {weights} of memory on {device}, and {in_units(step)} for 1,000 steps of a sequence"


def readout_bytes(columns: int) -> int:
    """Of the sums of a ridge readout over so many features and targets: two matrices and a block of rows in float64."""
    return 8 * (1 + columns) * (2 * (1 + columns) + 512)


def fitting_steps(need: DriveMemory, batch: int, most: int, free: int, columns: int, device: str) -> int:
    """Steps of a chunk of `batch` sequences, `most` at most, that fit into `free` bytes beside a readout of `columns`.

    Raises `OutOfMemory` where not even one step does.
    """
    left = max(0, free - readout_bytes(columns) - _LIBRARIES)
    if need.bytes(batch, most) <= left:
        return most
    steps = need.steps_that_fit(left, batch)
    if not steps:
        raise OutOfMemory(does_not_fit(need, batch, 1, left, device))
    return min(most, steps)
