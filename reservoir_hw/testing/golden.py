"""Golden traces: what a device once answered, several times, to hold it against later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir_hw.backends.replay import Tape, recorded_spec
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.measures.comparison import REPEATS


@dataclass(frozen=True)
class GoldenTrace:
    """Inputs (time, inputs), the states (repeats, time, nodes) that they gave, and what the device declared."""

    path: str
    inputs: np.ndarray
    states: np.ndarray
    spec: ReservoirSpec

    def check_widths(self, spec: ReservoirSpec) -> None:
        """Raise `ConfigurationError` where the device has other inputs or nodes than the trace."""
        ours, recorded = (spec.inputs, spec.nodes), (self.spec.inputs, self.spec.nodes)
        if ours != recorded:
            raise ConfigurationError(
                f"{self.path} was recorded with {recorded[0]} inputs and {recorded[1]} nodes, the device has {ours[0]} "
                f"and {ours[1]}"
            )

    def check(self, spec: ReservoirSpec, *, any_device: bool = False) -> None:
        """Raise `ConfigurationError` where the trace cannot be that of this device."""
        self.check_widths(spec)
        identity = self.spec.identity
        if not any_device and spec.identity.fingerprint != identity.fingerprint:
            raise ConfigurationError(
                f"{self.path} was recorded on another device ({identity.name}, fingerprint "
                f"{identity.fingerprint[:12]}) than this {spec.identity.name} ({spec.identity.fingerprint[:12]})"
            )

    def repeats(self, count: int) -> np.ndarray:
        """The first `count` of them. Raises `ConfigurationError` where there are fewer."""
        if len(self.states) < count:
            raise ConfigurationError(
                f"{self.path} holds {len(self.states)} repeats of its drive; a device that scatters needs {count}"
            )
        return self.states[:count]


def read(path: str | Path) -> GoldenTrace:
    """The golden trace in a store: its first sequence, and all others with the same inputs."""
    store = StateStore.open(str(path))
    tape = Tape(store, from_rest=True)
    steps = tape.length(0)
    inputs = tape.inputs(0, 0, steps)
    same = [
        number
        for number in range(tape.sequences)
        if tape.length(number) == steps and np.array_equal(tape.inputs(number, 0, steps), inputs)
    ]
    spec = recorded_spec(store)
    states = np.empty((len(same), steps, spec.nodes), spec.numpy_dtype)
    tape.read_states(np.array(same), 0, states)
    return GoldenTrace(str(path), inputs, states, spec)


def record(reservoir: Reservoir, u: np.ndarray, path: str | Path) -> None:
    """Drive with `u` (1, time, inputs) from rest, as often as a comparison needs, into a new store."""
    with Recorder(reservoir, path):
        for _ in range(REPEATS):
            reservoir.reset(1)
            reservoir.run(u)
