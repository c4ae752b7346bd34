"""Measures of a device that answers: it is driven with what each of them needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, NotSupported
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import Counters
from reservoir_hw.core.validation import at_least
from reservoir_hw.measures._lyapunov import (
    LyapunovExponent,
    LyapunovSpectrum,
    lyapunov_from_replicas,
    lyapunov_from_transition,
    lyapunov_spectrum,
)
from reservoir_hw.measures._measured import BATCHES
from reservoir_hw.measures._nodes import Nodes, latency_of, nodes_of
from reservoir_hw.measures._rank import Streams
from reservoir_hw.measures._source import Source

_CHUNK = 4096
_INITIAL_STATES = 16
_DRIVES = 8
_TRIALS = 4
_EXPONENTS = 10

# Numbers in the states of the drives for the noise budget that are held in memory; longer drives are cut.
_MOST = 40_000_000

# Last steps in which similar streams agree, as in Büsing et al. 2010.
_SHARED_STEPS = 3

OnSteps = Callable[[int], None]


class Live(Source):
    """An open reservoir, driven with inputs drawn uniformly over its range.

    Each measure drives the device as it needs, and those that need the same share it. A repeated drive resets the
    device, drives a different random past, and then the same inputs. Responses differ by noise, by chaos, or because
    the memory is longer than the washout. A simulated device meets new noise after each reset.

    Parameters
    ----------
    reservoir
        Open, and left at rest for one sequence at the end of each drive.
    steps
        Steps of the long drive. All repeats together have as many, each at least 100. Each short drive has a tenth, but
        at least 200. Each repeat for the noise budget has `steps` again, cut to what memory holds.
    washout
        Steps before each drive that do not count: more than the device remembers. Different pasts and input
        streams are as long.
    repeats
        How often the same drive is repeated.
    streams
        Input streams of each rank; by default as many as nodes.
    sets
        Sets of streams of each rank; fewer than three have no interval over sets.
    hold
        Each input is held for so many device steps, and the last state is its response.
        Exponents that are measured by setting states know no hold.
    max_delay
        Longest delay of the capacities; by default twice the number of nodes, but at most a tenth of `steps`.
    input_range
        Lowest and highest input; by default the range that the device declares, or else from -1 to 1.
    seed
        Of all inputs.
    on_steps
        Is called with the number of steps done.

    Raises `ConfigurationError` for numbers that are too small. It also raises it for an `input_range` beyond the
    device's range, unless the device clips such inputs.
    """

    distribution = "uniform"

    def __init__(
        self,
        reservoir: Reservoir,
        *,
        steps: int = 20_000,
        washout: int = 200,
        repeats: int = 10,
        streams: int | None = None,
        sets: int = 3,
        hold: int = 1,
        max_delay: int | None = None,
        input_range: tuple[float, float] | None = None,
        seed: int = 0,
        on_steps: OnSteps | None = None,
    ) -> None:
        at_least(
            steps=(steps, 1), washout=(washout, _SHARED_STEPS + 1), repeats=(repeats, 2), sets=(sets, 1), hold=(hold, 1)
        )
        spec = reservoir.spec
        self.reservoir = reservoir
        self.nodes, self.channels = spec.nodes, spec.inputs
        self.washout, self.max_delay = washout, max_delay
        self._low, self._high = self.input_range = input_range or reservoir.safe_range
        if not (self._low < self._high and math.isfinite(self._high - self._low)):
            raise ConfigurationError(f"input_range is {self.input_range}; it must be (lowest, highest), both finite")
        least, most = reservoir.known_range or (-math.inf, math.inf)
        if reservoir.out_of_range == "error" and not least <= self._low < self._high <= most:
            raise ConfigurationError(
                f"inputs from {self._low:g} to {self._high:g} lie beyond the range of the device, {least:g} to "
                f"{most:g}{' before its mask' * (reservoir.input_mask is not None)}: give a smaller input_range"
            )
        self._steps, self._repeats = steps, repeats
        self._repeat_steps = max(steps // repeats, 100)
        self._budget_steps = min(steps, max(_MOST // (repeats * self.nodes), 4 * self.nodes))
        self._short = max(steps // 10, 200)
        self._streams, self._sets = streams or self.nodes, sets
        self._hold = hold
        self._seed = seed
        self._on_steps = on_steps
        self._reset_steps = reservoir.played_steps(reservoir.reset_policy.length)

    @property
    def counters(self) -> list[Counters]:
        """What was counted, of each opening of the device."""
        return [self.reservoir.counters]

    @property
    def opening_steps(self) -> int:
        """Device steps of `open()`."""
        return self.reservoir.reset_policy.opening_steps(self.reservoir.played_steps)

    @property
    def fewest_steps(self) -> int:
        """Steps that a drive must have for capacities of so many nodes and delays."""
        return max(2 * BATCHES, 4 * self.nodes) + max(0, (self.max_delay or 0) - self.washout)

    def planned_steps(self, names: Collection[str]) -> int:
        """Steps that measures will drive, summed over sequences and resets."""
        spec = self.reservoir.spec
        ranks = (self._sets + (not spec.deterministic)) * self._steps_of_drive(self._streams, self.washout)
        short = self.washout + self._short
        trials = self._steps_of_drive(_TRIALS, self.washout)
        drives = (
            (
                {"memory_capacity", "processing_capacity", "effective_dimension"},
                self._steps_of_drive(1, self.washout + self._steps),
            ),
            (
                {"consistency", "signal_to_noise", "drift"},
                self._repeats * self._steps_of_drive(1, 2 * self.washout + self._repeat_steps),
            ),
            ({"noise_budget"}, self._repeats * self._steps_of_drive(1, 2 * self.washout + self._budget_steps)),
            ({"kernel_rank"}, ranks),
            ({"generalisation_rank"}, ranks),
            ({"echo_state_index"}, self._steps_of_drive(_INITIAL_STATES + 1, short)),
            (
                set() if self.no_spectrum() else {"lyapunov_spectrum"},
                trials + _TRIALS * (min(_EXPONENTS, self.nodes) + 1) * self._short,
            ),
            (
                {"lyapunov_exponent"},
                trials + 2 * _TRIALS * self._short if spec.settable else self._steps_of_drive(2 * _DRIVES, short),
            ),
        )
        return sum(steps for served, steps in drives if served & set(names))

    def _steps_of_drive(self, sequences: int, steps: int) -> int:
        """Device steps of `_drive`: it leaves the device at rest for one sequence."""
        return sequences * (self.reservoir.played_steps(self._hold * steps) + self._reset_steps) + self._reset_steps

    def recording(self) -> tuple[np.ndarray, np.ndarray]:
        """One long drive."""
        return self._recording

    def repeats(self) -> np.ndarray:
        """Drives with the same inputs after different pasts, one after the other: their order is that of time."""
        return self._repeated[1]

    def repeated_drive(self) -> tuple[np.ndarray, np.ndarray]:
        """As `repeats`, with drives as long as the long one, as far as their states fit into memory."""
        return self._budget_drive

    def replicas(self) -> tuple[np.ndarray, float]:
        """Responses to one drive after pasts of the highest input, the lowest input, and random ones."""
        states = self._after_pasts(1, _INITIAL_STATES + 1, "echo-state index")[0]
        if self.reservoir.spec.deterministic:
            return states[:-1], 0.0
        # The last past was the first one again: what is left between these two is noise.
        last = slice(-self._short // 4, None)
        return states[:-1], float(np.sqrt(np.mean((states[-1, last] - states[0, last]) ** 2)))

    def nodes_seen(self) -> Nodes | None:
        """Of the repeats, once there are any."""
        if "_repeated" not in vars(self):
            return None
        spec = self.reservoir.spec
        states = self._repeated[1][:, self.washout :]
        return nodes_of(states, state_range=spec.state_range, simulated=spec.identity.simulated)

    def latency_seen(self) -> int | None:
        """From the long drive, or else the repeats, where inputs are not held."""
        if self._hold > 1:
            return None
        if "_recording" in vars(self):
            inputs, states = self._recording
            return latency_of(inputs[0], states[0])
        return latency_of(*self._repeated) if "_repeated" in vars(self) else None

    def streams(self, kind: Streams) -> tuple[np.ndarray, np.ndarray | None]:
        """The states at the ends of random input streams, and the noise of each node if the device is not
        deterministic.

        The inputs of similar streams agree in their last three steps.
        """
        inputs = self._draw(f"{kind} streams", self._sets * self._streams, self.washout)
        inputs = inputs.reshape(self._sets, self._streams, self.washout, self.channels)
        if kind == "similar":
            inputs[:, :, -_SHARED_STEPS:] = inputs[:, :1, -_SHARED_STEPS:]
        ends = np.stack([self._drive(of_set)[:, -1] for of_set in inputs])
        if self.reservoir.spec.deterministic:
            return ends, None
        again = self._drive(inputs[0])[:, -1]
        return ends, np.sqrt(np.mean((again.astype(np.float64) - ends[0]) ** 2, axis=0) / 2)

    def lyapunov_exponent(self) -> LyapunovExponent:
        """By setting the state where the device allows that, else from drives after different pasts."""
        if not self.reservoir.spec.settable:
            return self.lyapunov_from_replicas()
        inputs = self._draw("trials", _TRIALS, self.washout + self._short)
        begin = self._drive(inputs[:, : self.washout])[:, -1]

        spec, level = self.reservoir.spec, 0.0
        if spec.output_bits is not None and spec.state_range is not None:
            level = (spec.state_range[1] - spec.state_range[0]) / (2**spec.output_bits - 1)
        driven = inputs[:, self.washout :]
        return lyapunov_from_transition(self.transition, driven, begin, settle=self._short // 10, level=level)

    def lyapunov_spectrum(self) -> LyapunovSpectrum:
        """The ten largest conditional exponents, by setting the state."""
        if reason := self.no_spectrum():
            raise NotSupported(reason)
        inputs = self._draw("spectrum", _TRIALS, self.washout + self._short)
        begin = self._drive(inputs[:, : self.washout])[:, -1]
        exponents = min(_EXPONENTS, self.nodes)

        def step(t: int, states: np.ndarray) -> np.ndarray:
            return self.transition(np.tile(inputs[:, self.washout + t], (exponents + 1, 1)), states)

        return lyapunov_spectrum(step, begin, steps=self._short, exponents=exponents, settle=self._short // 10)

    def no_spectrum(self) -> str | None:
        """Why the device has no Lyapunov spectrum that could be measured, or nothing."""
        spec = self.reservoir.spec
        if not spec.settable:
            why = spec.not_supported.get("settable")
            return "a Lyapunov spectrum needs a device whose state can be set, and that of this one cannot" + (
                f": {why}" if why else ""
            )
        if spec.output_bits is not None:
            return (
                f"the device rounds its states to {spec.output_bits} bits, too coarsely for the small differences of a "
                "Lyapunov spectrum"
            )
        return None

    def transition(self, u: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Do one step from the given states, and count it."""
        self._done(len(u))
        return np.asarray(self.reservoir.transition(u.astype(self.reservoir.spec.numpy_dtype), states))

    def lyapunov_from_replicas(self) -> LyapunovExponent:
        """From pairs of drives with the same inputs, after a past of the highest and one of the lowest input."""
        return lyapunov_from_replicas(self._after_pasts(_DRIVES, 2, "replicas"))

    @cached_property
    def _recording(self) -> tuple[np.ndarray, np.ndarray]:
        inputs = self._draw("long drive", 1, self.washout + self._steps)
        return inputs, self._drive(inputs)

    @cached_property
    def _repeated(self) -> tuple[np.ndarray, np.ndarray]:
        return self._again_and_again("repeated drive", self._repeat_steps)

    @cached_property
    def _budget_drive(self) -> tuple[np.ndarray, np.ndarray]:
        return self._again_and_again("noise budget", self._budget_steps)

    def _again_and_again(self, name: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs (washout + steps, channels) and states (repeats, washout + steps, nodes), each after another past."""
        drive = self._draw(name, 1, self.washout + steps)
        pasts = self._draw("pasts of the repeats", self._repeats, self.washout)
        driven = [self._drive(np.concatenate([past[None], drive], axis=1))[:, self.washout :] for past in pasts]
        return drive[0], np.concatenate(driven)

    def _after_pasts(self, drives: int, pasts: int, name: str) -> np.ndarray:
        """States after different pasts: (drives, pasts, time, nodes). The inputs after the past are the same.

        Past 0 is the highest input, past 1 the lowest, the others random. With more than two, the last repeats past 0.
        """
        inputs = self._draw(name, drives * pasts, self.washout + self._short)
        inputs = inputs.reshape(drives, pasts, -1, self.channels)
        inputs[:, 0, : self.washout] = self._high
        inputs[:, 1, : self.washout] = self._low
        if pasts > 2:
            inputs[:, -1] = inputs[:, 0]
        inputs[:, :, self.washout :] = inputs[:, :1, self.washout :]
        states = self._drive(inputs.reshape(drives * pasts, -1, self.channels))[:, self.washout :]
        return states.reshape(drives, pasts, self._short, self.nodes)

    def _draw(self, name: str, sequences: int, steps: int) -> np.ndarray:
        """Inputs (sequences, steps, channels)."""
        shape = (sequences, steps, self.channels)
        return generator(self._seed, f"measures/{name}").uniform(self._low, self._high, shape)

    def _drive(self, inputs: np.ndarray) -> np.ndarray:
        """States (sequences, time, nodes), from rest."""
        inputs = np.repeat(inputs.astype(self.reservoir.spec.numpy_dtype), self._hold, axis=1)
        sequences, steps = inputs.shape[:2]
        self.reservoir.reset(sequences)
        # A device that keeps its state between calls is driven in pieces, so that progress can be seen.
        together = self.reservoir.spec.max_batch is None or sequences <= self.reservoir.spec.max_batch
        chunk = _CHUNK if self.reservoir.spec.continuity == "held" and together else steps
        states = np.empty((sequences, steps, self.nodes), self.reservoir.spec.numpy_dtype)
        for begin in range(0, steps, chunk):
            piece: Any = self.reservoir.run(inputs[:, begin : begin + chunk])
            states[:, begin : begin + chunk] = piece
            self._done(sequences * piece.shape[1])
        self.reservoir.reset(1)
        self._done((sequences + 1) * self._reset_steps)
        return states[:, self._hold - 1 :: self._hold]

    def _done(self, steps: int) -> None:
        if self._on_steps is not None:
            self._on_steps(steps)
