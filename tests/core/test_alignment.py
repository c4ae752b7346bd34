"""A burst is found in records of an emulated bench, of which nobody told when they begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.signal import Template, align, marker
from reservoir_hw.emulators.bench import Acquisition, BenchConfig, Cable, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.physics.devices import Linear
from reservoir_hw.emulators.physics.signals import Interpolation, to_codes

RATE_HZ, POINTS = 1e6, 10
THETA_S = POINTS / RATE_HZ
MARKER = marker(POINTS)
REST = np.zeros(1000)
TEMPLATE = Template(np.concatenate([MARKER, np.zeros(80)]), RATE_HZ)
LATEST_S = 400e-6


class Played:
    """Bursts on output 1, and what input 1 shows of them."""

    def __init__(self, bench: VirtualBench, seed: int = 0) -> None:
        self._bench, self.random = bench, np.random.default_rng(seed)
        self.samples = 0

    def load(self, payload: np.ndarray, *, cut: int = 0, interpolation: Interpolation = "hold") -> None:
        """Volts (samples,) between the markers; of the second one, so many samples are cut."""
        volts = np.concatenate([MARKER, REST, payload, MARKER[: len(MARKER) - cut]])
        self.samples = len(volts) + cut
        waveform = Waveform(volts, RATE_HZ, interpolation=interpolation)
        self._bench.set_output(1, OutputSettings(on=True, waveform=waveform))

    @property
    def distance_s(self) -> float:
        return (self.samples - len(MARKER)) / RATE_HZ

    def record(self, delay_s: float, rate_hz: float, bits: int = 8) -> np.ndarray:
        """Samples (n,), with noise of a thousandth of the range; the burst begins after `delay_s` of them."""
        samples = int((2 * LATEST_S + self.samples / RATE_HZ * 1.003) * rate_hz)
        self._bench.arm(Acquisition(rate_hz, samples, first_s=-delay_s))
        self._bench.start([1])
        record = self._bench.capture(5.0)
        assert record is not None
        noisy = record[1] + self.random.normal(0, 2.5e-3, samples)
        return to_codes(noisy, 2.5, 0.0, bits) * (2.5 / 2**bits)

    def aligned(self, delay_s: float, rate_hz: float, bits: int = 8) -> tuple[float, float]:
        """How far, in seconds, the first and the last sample of the burst are from where they are found."""
        found = align(self.record(delay_s, rate_hz, bits), rate_hz, TEMPLATE, self.distance_s, latest_s=LATEST_S)
        end_s = self.samples / RATE_HZ
        clock = 1 + 1e-6 * self._bench.config.digitizer_ppm
        return found.start_s - delay_s, found.start_s + end_s * found.clock_ratio - delay_s - end_s * clock


def bench(ppm: float, monitor: Linear | None = None) -> VirtualBench:
    cable = Cable(output=1, device=monitor)
    return VirtualBench(BenchConfig(inputs={1: cable}, digitizer_ppm=ppm, trigger_jitter=0.0))


@pytest.fixture
def played() -> Iterator[Played]:
    with bench(20.0) as other:
        yield Played(other)


@pytest.mark.parametrize("rate_hz", [0.23e6, 0.8e6, 1e6, 2.7e6])
@pytest.mark.parametrize("payload", ["noise", "constant", "marker"])
def test_places_are_right_to_half_a_sample(played: Played, rate_hz: float, payload: str) -> None:
    steps = {
        "noise": np.repeat(played.random.uniform(-1, 1, 3000), POINTS),
        "constant": np.zeros(30_000),
        # A mask of 63 nodes that is the marker itself, for a constant input.
        "marker": np.tile(MARKER, 48),
    }
    for interpolation in ("hold", "linear"):
        played.load(steps[payload], interpolation=interpolation)
        # On straight lines, the middle of an edge lies half a sample before its end.
        early_s = 0.5 / RATE_HZ if interpolation == "linear" else 0.0
        for _ in range(3):
            errors = played.aligned(played.random.uniform(0, LATEST_S), rate_hz)
            assert np.abs(np.array(errors) + early_s).max() <= 0.5 / rate_hz + 1e-9


@pytest.mark.parametrize("rate_hz", [0.31e6, 1e6, 2e6])
def test_a_slow_monitor_is_late_by_less_than_a_tenth_of_a_node(rate_hz: float) -> None:
    slow = Linear(tau_s=3 / (2 * np.pi * RATE_HZ), delay_s=0.0, bandwidth_hz=1e9, noise_v=0.0)
    with bench(-20.0, slow) as other:
        played = Played(other)
        played.load(np.full(3000, 0.7))
        errors = [played.aligned(played.random.uniform(0, LATEST_S), rate_hz) for _ in range(3)]
    assert np.abs(errors).max() <= max(0.1 * THETA_S, 0.5 / rate_hz)


def test_what_is_not_there_is_not_found(played: Played) -> None:
    played.load(np.repeat(played.random.uniform(-1, 1, 3000), POINTS), cut=len(MARKER) // 4)
    with pytest.raises(DeviceFault, match=r"second marker is not in the record: .* the burst was cut"):
        played.aligned(1e-4, 1e6)
    noise = played.random.normal(0, 1e-3, 40_000)
    for nothing in (np.zeros(40_000), noise):
        with pytest.raises(DeviceFault, match=r"first marker is not in the record: .* is the monitor connected"):
            align(nothing, 1e6, TEMPLATE, 0.03, latest_s=LATEST_S)
    # Markers go on where the last one, and rest, should be.
    markers = np.concatenate([np.zeros(100), MARKER, REST, MARKER, MARKER])
    with pytest.raises(DeviceFault, match=r"second marker is not in the record: .* a residual of 0\.[45]"):
        align(markers, 1e6, TEMPLATE, (len(MARKER) + len(REST)) / RATE_HZ, latest_s=LATEST_S)
    with pytest.raises(DeviceFault, match="ends before the marker"):
        align(noise[:300], 1e6, TEMPLATE, 0.03, latest_s=LATEST_S)
    with bench(2000.0) as other:
        fast = Played(other)
        fast.load(np.zeros(30_000))
        with pytest.raises(DeviceFault, match=r"clocks of generator and digitizer differ by (1\d|20)\d\d ppm"):
            fast.aligned(1e-4, 1e6)
