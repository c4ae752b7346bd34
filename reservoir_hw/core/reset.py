"""How a device is brought back to its rest state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import ReservoirSpec


class _Reset(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    probe_steps: NonNegativeInt = Field(
        default=0, description="measure at open() how far two resets are apart, with a probe of this many steps"
    )

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """What is played to bring the device to rest, (steps, inputs); None: nothing."""
        del spec

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return 0

    def opening_steps(self, played: Callable[[int], int]) -> int:
        """Device steps of `Reservoir.open`: a reset and, with `probe_steps`, three probes and four resets.

        `played` says how many steps a run of so many takes: `Reservoir.played_steps`.
        """
        reset = played(self.length)
        return reset + (4 * reset + 3 * played(self.probe_steps) if self.probe_steps else 0)


class ResetByCommand(_Reset):
    """The device has a reset of its own."""

    kind: Literal["command"] = "command"


class ResetByIdle(_Reset):
    """The device forgets by itself: wait."""

    kind: Literal["idle"] = "idle"
    settle_s: NonNegativeFloat


class ResetByWashout(_Reset):
    """Drive the device with seeded noise over its whole input range until it has forgotten the rest."""

    kind: Literal["washout"] = "washout"
    steps: PositiveInt
    seed: int = 0

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """(steps, inputs), uniform over the input range (over ±1 where there is no limit)."""
        low, high = spec.input_range or (-1.0, 1.0)
        return generator(self.seed, "washout").uniform(low, high, (self.steps, spec.inputs))

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return self.steps


class ResetByWaveform(_Reset):
    """Play a given waveform: one row of input values per step."""

    kind: Literal["waveform"] = "waveform"
    values: list[list[float]] = Field(min_length=1)

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """(steps, inputs), as given."""
        if any(len(row) != spec.inputs for row in self.values):
            raise ConfigurationError(
                f"reset.values: every row needs {spec.inputs} numbers, one per input of the device"
            )
        return np.array(self.values)

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return len(self.values)


class NoReset(_Reset):
    """The device cannot be reset, and `reason` says why that does no harm."""

    kind: Literal["none"] = "none"
    reason: str = Field(min_length=1)


ResetPolicy = Annotated[
    ResetByCommand | ResetByIdle | ResetByWashout | ResetByWaveform | NoReset, Field(discriminator="kind")
]
