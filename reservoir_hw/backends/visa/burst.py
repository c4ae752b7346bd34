"""A burst: a marker, rest, the inputs, perhaps rest, and the marker again. And how states are read from its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.core.errors import ConfigurationError, DeviceFault, InputRangeError
from reservoir_hw.core.signal import Alignment, Mask, SampleAndHold, Scaling, Template
from reservoir_hw.drivers.visa.roles import Waveform

Array = NDArray[np.float64]

# Inputs that are masked at a time while they are held against the range of the output.
_BLOCK = 1 << 12
TAIL = 0.125
"""Rest after a marker that is looked for with it, as a part of the marker: inputs that look like it go on."""


class Piece(NamedTuple):
    """Steps `first` to `last` (not included) of a run, driven after the `overlap` steps before them."""

    first: int
    last: int
    overlap: int


@dataclass(frozen=True)
class BurstLayout:
    """Samples of the generator; `hold` knows their rate.

    Raises `ConfigurationError` if the longest waveform has no room for one step after those that are remembered.
    """

    mask: Mask
    scaling: Scaling
    hold: SampleAndHold
    memory_steps: int
    rest_after: int
    """Steps of rest before the second marker: where markers are seen through the device, it must have forgotten."""
    rest_v: float
    marker: Array
    """Volts (samples,)."""
    longest: int

    def __post_init__(self) -> None:
        if self.most_steps <= self.memory_steps:
            step = self.samples_per_step
            raise ConfigurationError(
                f"a burst has at most {self.longest} samples here (memory of the generator, or of the digitizer): "
                f"2 markers of {len(self.marker)}, and rest of {self.memory_steps + self.rest_after} steps of {step} "
                f"({self.mask.nodes} nodes · {self.hold.points_per_node} points), leave room for "
                f"{max(0, self.most_steps)} steps, and memory_steps + 1 = {self.memory_steps + 1} are needed: take "
                "fewer memory_steps, nodes or points_per_node"
            )

    def at_rate(self, sample_rate_hz: float) -> BurstLayout:
        """The same on a generator that has this sample rate."""
        hold = SampleAndHold(points_per_node=self.hold.points_per_node, sample_rate_hz=sample_rate_hz)
        return replace(self, hold=hold)

    @property
    def samples_per_step(self) -> int:
        """Samples of the generator."""
        return self.mask.nodes * self.hold.points_per_node

    @property
    def most_steps(self) -> int:
        """In one burst."""
        rest = self.memory_steps + self.rest_after
        return (self.longest - 2 * len(self.marker)) // self.samples_per_step - rest

    def samples(self, steps: int) -> int:
        """How many samples a burst of so many steps has."""
        return 2 * len(self.marker) + (self.memory_steps + steps + self.rest_after) * self.samples_per_step

    def pieces(self, steps: int) -> Iterator[Piece]:
        """A run of so many steps as bursts. All but the first replay `memory_steps`."""
        first, overlap = 0, 0
        while first < steps:
            last = min(steps, first + self.most_steps - overlap)
            yield Piece(first, last, overlap)
            first, overlap = last, self.memory_steps

    def content(self) -> str:
        """What of it decides about states, for the identity of the device."""
        return (
            f"mask {self.mask.digest()} gain {self.scaling.gain!r} offset {self.scaling.offset!r} "
            f"theta {self.hold.theta_s!r} points {self.hold.points_per_node} rest {self.rest_v!r}"
        )

    def driven(self, u: Array) -> Array:
        """The volts (samples,) of inputs (steps, inputs)."""
        return self.hold.apply(self.scaling.apply(self.mask.apply(u)))

    def between_markers(self, driven: Array) -> Array:
        """A burst (samples,) of whole steps of volts."""
        before, after = (
            np.full(steps * self.samples_per_step, self.rest_v) for steps in (self.memory_steps, self.rest_after)
        )
        return np.concatenate([self.marker, before, driven, after, self.marker])

    def check(self, u: Array, range_v: tuple[float, float]) -> None:
        """Raise `InputRangeError` if inputs (steps, inputs) would be played as volts beyond a range."""
        low, high = range_v
        for first in range(0, len(u), _BLOCK):
            volts = self.scaling.apply(self.mask.apply(u[first : first + _BLOCK]))
            if volts.min() < low or volts.max() > high:
                step, node = (int(k) for k in np.argwhere((volts < low) | (volts > high))[0])
                raise InputRangeError(
                    f"step {first + step} would play {volts[step, node]:g} V at node {node}, beyond range_v "
                    f"[{low:g}, {high:g}] of the output: take a smaller scaling.gain; nothing was sent"
                )

    @property
    def template(self) -> Template:
        """What a monitor shows of a marker, and of the rest after it."""
        tail = np.full(int(TAIL * len(self.marker)), self.rest_v)
        return Template(np.concatenate([self.marker, tail]), self.hold.sample_rate_hz)

    def marker_distance_s(self, steps: int) -> float:
        """From the begin of the first marker to that of the second, on the generator's clock."""
        return (self.samples(steps) - len(self.marker)) / self.hold.sample_rate_hz

    @property
    def payload_s(self) -> float:
        """From the begin of the first marker to that of the inputs, on the generator's clock."""
        return (len(self.marker) + self.memory_steps * self.samples_per_step) / self.hold.sample_rate_hz

    def states(self, record: Waveform, found: Alignment, steps: int, *, position: float, average: float) -> Array:
        """(steps, nodes) in a record that was aligned: means over the share `average` of each node around `position`.

        Raises `DeviceFault` if the record ends before the burst.
        """
        nodes = np.arange(steps * self.mask.nodes, dtype=np.float64) + position
        middle_s = self.payload_s + nodes * self.hold.theta_s
        return means(record, found, middle_s, average * self.hold.theta_s).reshape(steps, self.mask.nodes)


def means(record: Waveform, found: Alignment, middle_s: Array, width_s: float) -> Array:
    """Mean volts (m,) over `width_s` around times (m,) since the begin of the first marker, on the generator's clock.

    Between samples are straight lines: the clocks of the instruments do not know each other, and a window that begins
    at the nearest sample would begin at another place in each burst. Raises `DeviceFault` if the record ends before.
    """
    volts, rate = np.asarray(record.volts, np.float64), record.sample_rate_hz
    middle = (found.start_s + middle_s * found.clock_ratio) * rate
    half = width_s / 2 * found.clock_ratio * rate
    if middle[-1] + half > len(volts) - 1:
        raise DeviceFault(
            f"the record ends before the burst: {middle[-1] + half:.0f} samples are needed, it has {len(volts)}"
        )
    if half == 0:
        return np.interp(middle, np.arange(len(volts)), volts)
    return (_integral(volts, middle + half) - _integral(volts, middle - half)) / (2 * half)


def _integral(samples: Array, until: Any) -> Array:
    """From sample 0 to places (m,), which lie within the samples, along straight lines between them."""
    whole = np.concatenate([[0.0], np.cumsum((samples[1:] + samples[:-1]) / 2)])
    index = np.minimum(until.astype(np.int64), len(samples) - 2)
    part = until - index
    first = samples[index]
    return whole[index] + part * (first + part / 2 * (samples[index + 1] - first))
