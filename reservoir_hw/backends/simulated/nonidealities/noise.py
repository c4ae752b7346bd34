"""The non-idealities of one device as numbers: constant patterns drawn once, noise by (seed, sequence, step)."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from reservoir_hw import networks
from reservoir_hw.backends.simulated.nonidealities.configuration import LoopNonidealities, Nonidealities
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator, step_noise, step_uniform
from reservoir_hw.core.signal import Quantiser

Array = NDArray[Any]


class LoopTerms(NamedTuple):
    """What becomes of a freshly computed state x: y = keep * before + gain * L tanh(x / L) + additive, then rounded.

    `saturation` is L (infinite: none). `keep` and `gain` are (nodes,) and the same arrays at every call, `additive` is
    (batch, time, nodes), all of the engine's dtype: arrays, or tensors on its device. `lsb` is the step of the
    rounding (0: none), to the nearest multiple from -limit to limit - lsb.
    """

    saturation: float
    keep: Any
    gain: Any
    additive: Any
    lsb: float
    limit: float


class Numbers:
    """What the numbers of a device are, in the dtype of its engine or in float64: arrays of numpy, and in a class
    derived from this one tensors.

    Noise is that of `core/seeds.py`, of several sequences (batch,) at once: (batch, steps, size), float64.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def sin(self, x: Any) -> Any:
        """Sin x, element by element."""
        return np.sin(x)

    def number(self, x: float) -> Any:
        """x as the engine's dtype holds it."""
        return self._dtype.type(x)

    def array(self, x: Array) -> Any:
        """An array of numpy as it is, where the engine computes."""
        return x

    def rounded(self, x: Any) -> Any:
        """In the engine's dtype."""
        return x.astype(self._dtype)

    def uniform(self, seed: int, sequences: Array, first: int, steps: int, size: int, name: str) -> Any:
        """Numbers uniform in [0, 1)."""
        return np.array([step_uniform(seed, int(sequence), first, steps, size, name) for sequence in sequences])

    def normal(self, seed: int, sequences: Array, first: int, steps: int, size: int, name: str) -> Any:
        """Standard normal numbers."""
        return np.array([step_noise(seed, int(sequence), first, steps, size, name) for sequence in sequences])


class DrawnNonidealities:
    """The section `nonidealities:`, as numbers for a device with this many nodes."""

    def __init__(self, config: Nonidealities, nodes: int, numbers: Numbers) -> None:
        self.config = config = config.effective
        self._nodes, self._numbers = nodes, numbers
        self._seed = config.seed or 0

        loop, readout = config.loop, config.readout
        alive = np.ones(nodes)
        alive[self._some(loop.dead_nodes, "dead nodes")] = 0
        gain = 1 + loop.mismatch * self._normal("mismatch")
        stuck = self._some(readout.stuck_nodes, "stuck nodes")
        stuck_at = generator(self._seed, "stuck values").uniform(*readout.range, stuck.size)
        array, rounded = numbers.array, numbers.rounded
        self._gain = rounded(array(loop.bandwidth * gain * alive))
        self._keep = rounded(array((1 - loop.bandwidth) * alive))
        self._alive = array(alive)
        self._drift = array(loop.drift * self._normal("drift"))
        self._drift_phase = array(generator(self._seed, "drift phase").uniform(0, 2 * np.pi, nodes))
        self._offset = rounded(array(readout.offset * self._normal("offset")))
        self._stuck, self._stuck_at = array(stuck), rounded(array(stuck_at))
        self.dac = None if config.drive.bits is None else Quantiser(bits=config.drive.bits, range=config.drive.range)
        self._adc = None if readout.bits is None else Quantiser(bits=readout.bits, range=readout.range)
        # In the precision of the engine, which rounds with them.
        self._lsb = numbers.number(0.0 if loop.bits is None else 2 * loop.limit / 2**loop.bits)
        self._limit = numbers.number(loop.limit)
        self._loop_is_ideal = loop == type(loop)()
        self._readout_is_ideal = readout == type(readout)()

    def loop_terms(self, sequences: Array, first: int, age: int, steps: int) -> LoopTerms | None:
        """The terms for some steps of some sequences; None where the loop is ideal.

        `sequences` (batch,) are the numbers of the sequences, `first` that of the first step in them, `age` the
        number of steps since the device was opened, on which the drift depends.
        """
        if self._loop_is_ideal:
            return None
        loop, numbers = self.config.loop, self._numbers
        if loop.noise:
            additive = loop.noise * numbers.normal(self._seed, sequences, first, steps, self._nodes, "loop noise")
        else:
            additive = numbers.array(np.zeros((len(sequences), steps, self._nodes)))
        if loop.drift:
            turn = 2 * np.pi * (np.arange(age, age + steps) % loop.drift_period_steps) / loop.drift_period_steps
            additive += self._drift * numbers.sin(numbers.array(turn[:, None]) + self._drift_phase)
        additive *= self._alive
        return LoopTerms(
            saturation=numbers.number(np.inf if loop.saturation is None else loop.saturation),
            keep=self._keep,
            gain=self._gain,
            additive=numbers.rounded(additive),
            lsb=self._lsb,
            limit=self._limit,
        )

    def measure(self, states: Any, sequences: Array, first: int) -> tuple[Any, int, int]:
        """What is read of the states (batch, time, nodes), and how often they saturated and were lost.

        A state saturates where the loop's rounding holds it at an end of its range, and again where the ADC does.
        Gradients pass through tensors.
        """
        saturated = lost = 0
        if self._lsb:
            saturated = int(((states <= float(-self._limit)) | (states >= float(self._limit - self._lsb))).sum())
        if self._readout_is_ideal:
            return states, saturated, 0
        readout, numbers = self.config.readout, self._numbers
        seed, (_, steps, nodes) = self._seed, states.shape
        disturbance = self._offset
        if readout.noise:
            noise = numbers.normal(seed, sequences, first, steps, nodes, "readout noise")
            disturbance = disturbance + numbers.rounded(readout.noise * noise)
        states = states + disturbance
        if self._adc is not None:
            states, beyond = self._adc.apply(states)
            saturated += beyond
        states[..., self._stuck] = self._stuck_at
        if readout.lost_samples:
            missing = numbers.uniform(seed, sequences, first, steps, nodes, "lost samples") < readout.lost_samples
            lost = int(missing.sum())
            states = states * numbers.rounded(~missing)
        return states, saturated, lost

    def _normal(self, name: str) -> Array:
        return generator(self._seed, name).standard_normal(self._nodes)

    def _some(self, share: float, name: str) -> Array:
        return np.sort(generator(self._seed, name).permutation(self._nodes)[: round(share * self._nodes)])


# ---- Weights as a device with few bits holds them.


_Weights = TypeVar("_Weights", "networks.EsnWeights", "networks.GatedWeights")


def to_float16(weights: Array) -> Array:
    """The nearest float16 numbers, as float64. Raises `ConfigurationError` beyond ±65504, the largest of them."""
    with np.errstate(over="ignore"):
        return _held(weights, weights.astype(np.float16), "float16 ends at 65504")


def to_bfloat16(weights: Array) -> Array:
    """The nearest bfloat16 numbers (eight bits of significand, the exponents of float32), as float64.

    Raises `ConfigurationError` beyond ±3.39e38, the largest of them.
    """
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(weights, np.float32).view(np.uint32)
    # To the nearest, ties to even: numpy has no such type.
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return _held(weights, rounded, "bfloat16 ends at 3.39e38")


def _held(weights: Array, rounded: Array, end: str) -> Array:
    if not np.isfinite(rounded).all():
        raise ConfigurationError(
            f"weights reach {np.abs(weights).max():g}, {end}: remove weight_storage, or scale down"
        )
    return rounded.astype(np.float64)


ROUNDINGS = {"float16": to_float16, "bfloat16": to_bfloat16}


def to_weight_bits(weights: _Weights, loop: LoopNonidealities) -> _Weights:
    """The weights with every number rounded to `weight_bits`, where the device has them; as `to_bits` otherwise."""
    if loop.weight_bits is None:
        return weights
    return weights.rounded(partial(to_bits, bits=loop.weight_bits, limit=loop.weight_limit))


def to_bits(weights: Array, bits: int, limit: float) -> Array:
    """The nearest of 2^bits multiples of 2 limit / 2^bits from -limit on.

    Raises `ConfigurationError` for weights beyond ±limit: a chip's compiler would refuse them too.
    """
    if (largest := float(np.abs(weights).max(initial=0.0))) > limit:
        raise ConfigurationError(
            f"weights reach {largest:g}, beyond nonidealities.loop.weight_limit {limit:g}: raise it, or scale down"
        )
    lsb = 2 * limit / 2**bits
    return np.clip(np.floor(weights / lsb + 0.5) * lsb, -limit, limit - lsb)
