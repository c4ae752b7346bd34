"""Where the responses come from that a measure needs, and the measures of such a source."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Collection
from typing import Any

import numpy as np

from reservoir_hw.core.errors import NotSupported
from reservoir_hw.measures._consistency import Consistency, consistency
from reservoir_hw.measures._drift import Drift, drift
from reservoir_hw.measures._echo_state_index import EchoStateIndex, echo_state_index
from reservoir_hw.measures._effective_dimension import EffectiveDimension, effective_dimension
from reservoir_hw.measures._lyapunov_exponent import LyapunovExponent
from reservoir_hw.measures._lyapunov_spectrum import LyapunovSpectrum
from reservoir_hw.measures._memory_capacity import MemoryCapacity, memory_capacity
from reservoir_hw.measures._nodes import Nodes
from reservoir_hw.measures._noise_budget import NoiseBudget, noise_budget
from reservoir_hw.measures._polynomials import Distribution
from reservoir_hw.measures._processing_capacity import ProcessingCapacity, information_processing_capacity
from reservoir_hw.measures._rank import Rank, Streams, generalisation_rank, kernel_rank
from reservoir_hw.measures._signal_to_noise import SignalToNoise, signal_to_noise

# Functions of each degree that the processing capacity tries by default.
_FUNCTIONS = 2000
_DEGREES = 5


MEASURES = {
    "memory_capacity": "linear memory capacity",
    "processing_capacity": "information processing capacity",
    "kernel_rank": "kernel rank",
    "generalisation_rank": "generalisation rank",
    "consistency": "consistency",
    "echo_state_index": "echo-state index",
    "lyapunov_exponent": "conditional Lyapunov exponent (per step)",
    "effective_dimension": "effective dimension",
    "signal_to_noise": "signal-to-noise ratio (dB)",
    "drift": "drift (standard deviations)",
}
"""What a source can be asked for, by the name of its method."""


class Source(ABC):
    """Something to be measured. Its hooks give responses, or say in a `NotSupported` why they cannot.

    `washout` first steps of `recording` and `repeats` belong to no result. `max_delay` is the longest delay of a
    capacity, None for a choice by the number of nodes and steps.
    """

    washout: int = 0
    max_delay: int | None = None
    nodes: int
    channels: int
    distribution: Distribution = "empirical"
    input_range: tuple[float, float] | None = None

    # ---- what a source gives --------------------------------------------------------------------

    def recording(self) -> tuple[Any, Any]:
        """Inputs (sequences, time, channels) and states (sequences, time, nodes)."""
        raise NotSupported("it gives no states")

    def repeats(self) -> np.ndarray:
        """States (repeats, time, nodes) of drives with the same inputs, in the order of time."""
        raise NotSupported("it gives no repeated drives")

    def repeated_drive(self) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (time, channels) that were driven several times, and states (repeats, time, nodes)."""
        raise NotSupported("it gives no repeated drives")

    def replicas(self) -> tuple[np.ndarray, float]:
        """States (initial, time, nodes) under one drive from different initial states, and the noise between two runs.

        The noise is the root mean square difference of a node between two drives from the same initial state.
        """
        raise NotSupported("it gives no responses from different initial states")

    def streams(self, kind: Streams) -> tuple[np.ndarray, np.ndarray | None]:
        """States (sets, streams, nodes) at the ends of input streams, and the noise of each node (nodes,) if known."""
        raise NotSupported("it gives no responses to many input streams")

    def planned_steps(self, names: Collection[str]) -> int:
        """Steps that the measures `names` will drive; 0 for what was driven already."""
        return 0

    def nodes_seen(self) -> Nodes | None:
        """What each node did in repeated drives, where there were any; nothing is driven for it."""
        return None

    def latency_seen(self) -> int | None:
        """How many steps late the states are, as far as what was driven tells; nothing is driven for it."""
        return None

    # ---- the measures ---------------------------------------------------------------------------

    def memory_capacity(self) -> MemoryCapacity:
        """Linear memory capacity."""
        inputs, states = self.recording()
        return memory_capacity(inputs, states, max_delay=self._longest(states), washout=self.washout)

    def processing_capacity(self) -> ProcessingCapacity:
        """Information processing capacity, of up to 2000 functions of each degree from 2 to 5."""
        inputs, states = self.recording()
        return information_processing_capacity(
            inputs,
            states,
            max_delays=self._max_delays(self._longest(states)),
            washout=self.washout,
            distribution=self.distribution,
            input_range=self.input_range,
        )

    def kernel_rank(self) -> Rank:
        """Rank of the states that different input streams lead to."""
        states, noise = self.streams("different")
        return kernel_rank(states, noise=noise)

    def generalisation_rank(self) -> Rank:
        """Rank of the states that similar input streams lead to."""
        states, noise = self.streams("similar")
        return generalisation_rank(states, noise=noise)

    def consistency(self) -> Consistency:
        """Correlation between the responses to repeated drives."""
        return consistency(self.repeats(), washout=self.washout)

    def echo_state_index(self) -> EchoStateIndex:
        """Number of different responses to one drive."""
        states, noise = self.replicas()
        return echo_state_index(states, noise=noise)

    def lyapunov_exponent(self) -> LyapunovExponent:
        """Largest conditional Lyapunov exponent."""
        raise NotSupported("it gives no responses after different pasts")

    def lyapunov_spectrum(self) -> LyapunovSpectrum:
        """Lyapunov spectrum of the driven system."""
        raise NotSupported("a Lyapunov spectrum needs a device whose state can be set")

    def effective_dimension(self) -> EffectiveDimension:
        """Participation ratio of the variances of the states."""
        return effective_dimension(self.recording()[1], washout=self.washout)

    def signal_to_noise(self) -> SignalToNoise:
        """Signal-to-noise ratio from repeated drives."""
        return signal_to_noise(self.repeats(), washout=self.washout)

    def noise_budget(self) -> NoiseBudget:
        """Rank of the states as linear capacity, nonlinear capacity, and what is lost to noise."""
        inputs, states = self.repeated_drive()
        return noise_budget(
            inputs,
            states,
            max_delays=self._max_delays(self._longest(states)),
            washout=self.washout,
            distribution=self.distribution,
            input_range=self.input_range,
        )

    def drift(self) -> Drift:
        """Trend of means and spreads from repeat to repeat."""
        return drift(self.repeats(), washout=self.washout)

    def _longest(self, states: Any) -> int:
        if self.max_delay is not None:
            return self.max_delay
        return max(0, min(2 * self.nodes, (states.shape[1] - self.washout) // 10))

    def _max_delays(self, longest: int) -> list[int]:
        """The longest delay for each degree that keeps the functions few."""
        delays = [longest]
        for degree in range(2, _DEGREES + 1):
            variables = self.channels
            while math.comb(variables + self.channels + degree - 1, degree) <= _FUNCTIONS:
                variables += self.channels
            if math.comb(variables + degree - 1, degree) > _FUNCTIONS:
                break
            delays.append(min(longest, variables // self.channels - 1))
        return delays
