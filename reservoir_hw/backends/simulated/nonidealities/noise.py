"""The non-idealities of one device as numbers: constant patterns drawn once, noise by (seed, sequence, step)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.backends.simulated.nonidealities.configuration import Nonidealities
from reservoir_hw.core import arrays
from reservoir_hw.core.seeds import generator, step_noise, step_uniform
from reservoir_hw.core.signal import Quantiser

Array = NDArray[Any]


class LoopTerms(NamedTuple):
    """What becomes of a freshly computed state x: y = keep * before + gain * L tanh(x / L) + additive, then rounded.

    `saturation` is L (infinite: none). `keep` and `gain` are (nodes,), `additive` (batch, time, nodes), all of the
    engine's dtype. `lsb` is the step of the rounding (0: none), to the nearest multiple from -limit to limit - lsb.
    """

    saturation: float
    keep: Array
    gain: Array
    additive: Array
    lsb: float
    limit: float


class DrawnNonidealities:
    """The section `nonidealities:`, as numbers for a device with this many nodes."""

    def __init__(self, config: Nonidealities, nodes: int, dtype: np.dtype[Any]) -> None:
        self.config = config = config.effective
        self._nodes, self._dtype = nodes, dtype
        self._seed = config.seed or 0

        loop, readout = config.loop, config.readout
        alive = np.ones(nodes)
        alive[self._some(loop.dead_nodes, "dead nodes")] = 0
        gain = 1 + loop.mismatch * self._normal("mismatch")
        self._gain = (loop.bandwidth * gain * alive).astype(dtype)
        self._keep = ((1 - loop.bandwidth) * alive).astype(dtype)
        self._alive = alive
        self._drift = loop.drift * self._normal("drift")
        self._drift_phase = generator(self._seed, "drift phase").uniform(0, 2 * np.pi, nodes)
        self._offset = (readout.offset * self._normal("offset")).astype(dtype)
        self._stuck = self._some(readout.stuck_nodes, "stuck nodes")
        self._stuck_at = generator(self._seed, "stuck values").uniform(*readout.range, self._stuck.size).astype(dtype)
        self.dac = None if config.drive.bits is None else Quantiser(bits=config.drive.bits, range=config.drive.range)
        self._adc = None if readout.bits is None else Quantiser(bits=readout.bits, range=readout.range)
        # In the precision of the engine, which rounds with them.
        self._lsb = dtype.type(0.0 if loop.bits is None else 2 * loop.limit / 2**loop.bits)
        self._limit = dtype.type(loop.limit)
        self._loop_is_ideal = loop == type(loop)()
        self._readout_is_ideal = readout == type(readout)()

    def loop_terms(self, sequences: Array, first: int, age: int, steps: int) -> LoopTerms | None:
        """The terms for some steps of some sequences; None where the loop is ideal.

        `sequences` (batch,) are the numbers of the sequences, `first` that of the first step in them, `age` the
        number of steps since the device was opened, on which the drift depends.
        """
        if self._loop_is_ideal:
            return None
        loop, kind = self.config.loop, self._dtype.type
        additive = np.zeros((len(sequences), steps, self._nodes))
        if loop.noise:
            for row, sequence in zip(additive, sequences, strict=True):
                row += loop.noise * step_noise(self._seed, int(sequence), first, steps, self._nodes, "loop noise")
        if loop.drift:
            turn = 2 * np.pi * (np.arange(age, age + steps) % loop.drift_period_steps) / loop.drift_period_steps
            additive += self._drift * np.sin(turn[:, None] + self._drift_phase)
        additive *= self._alive
        return LoopTerms(
            saturation=kind(np.inf if loop.saturation is None else loop.saturation),
            keep=self._keep,
            gain=self._gain,
            additive=additive.astype(self._dtype),
            lsb=self._lsb,
            limit=self._limit,
        )

    def measure(self, states: Any, sequences: Array, first: int) -> tuple[Any, int, int]:
        """What is read of the states (batch, time, nodes), and how often they saturated and were lost.

        A state saturates where the loop's rounding holds it at an end of its range, and again where the ADC does.
        Works on numpy arrays in place and on tensors so that gradients pass.
        """
        saturated = 0
        if self._lsb:
            saturated = int(((states <= float(-self._limit)) | (states >= float(self._limit - self._lsb))).sum())
        if self._readout_is_ideal:
            return states, saturated, 0
        readout = self.config.readout
        seed, shape = self._seed, states.shape
        disturbance = np.broadcast_to(self._offset, shape)
        if readout.noise:
            noise = [step_noise(seed, int(s), first, shape[1], shape[2], "readout noise") for s in sequences]
            disturbance = disturbance + (readout.noise * np.array(noise)).astype(self._dtype)
        keep = np.ones(shape, self._dtype)
        lost = 0
        if readout.lost_samples:
            draws = [step_uniform(seed, int(s), first, shape[1], shape[2], "lost samples") for s in sequences]
            keep[np.array(draws) < readout.lost_samples] = 0
            lost = int(keep.size - np.count_nonzero(keep))
        states = states + arrays.like(disturbance, states)
        if self._adc is not None:
            states, beyond = self._adc.apply(states)
            saturated += beyond
        states[..., self._stuck] = arrays.like(self._stuck_at, states)
        return states * arrays.like(keep, states), saturated, lost

    def _normal(self, name: str) -> Array:
        return generator(self._seed, name).standard_normal(self._nodes)

    def _some(self, share: float, name: str) -> Array:
        count = round(share * self._nodes)
        return np.sort(generator(self._seed, name).permutation(self._nodes)[:count])
