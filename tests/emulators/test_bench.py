import json
from dataclasses import replace

import numpy as np
import pytest

from reservoir_hw.emulators.bench import Acquisition, BenchConfig, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.physics.devices import Ikeda, Linear

DIGITIZER_HZ = 5e6


def bench_with(device, **others):
    return VirtualBench(BenchConfig(**others).with_device(device))


def capture(bench, acquisition, *, forced=False):
    bench.arm(acquisition)
    if forced:
        bench.force()
    else:
        bench.start([1, 2])
    record = bench.capture(0)
    assert record is not None
    return record


def crossing(volts, level):
    """In samples, the first time that volts rise above the level."""
    k = int(np.argmax(volts >= level))
    return k - 1 + (level - volts[k - 1]) / (volts[k] - volts[k - 1])


def test_the_planted_delay_gain_ppm_and_jitter_are_in_the_captures():
    device = Linear(delay_s=3.3e-6, gain_per_v=0.8, offset_v=0.1, bandwidth_hz=2e7, noise_v=0)
    bench = bench_with(device, digitizer_ppm=20.0)
    pulses = np.zeros(100_000)
    pulses[1000:1500] = pulses[91_000:91_500] = 1.0
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(pulses, 1e6)))
    volts = capture(bench, Acquisition(DIGITIZER_HZ, 500_000, -100e-6))[1]
    first, second = crossing(volts[:50_000], 0.5), 400_000 + crossing(volts[400_000:], 0.5)
    assert ((second - first) / DIGITIZER_HZ / 90e-3 - 1) * 1e6 == pytest.approx(20.0, abs=0.1)
    assert volts[500] == pytest.approx(0.1, abs=1e-9)
    assert volts[500 + 7450] == pytest.approx(0.9, abs=1e-3)

    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(pulses[990:2500], 1e6)))
    # tau dx/dt = -x + u reaches the half after tau ln 2; the amplifier adds its own time constant.
    expected = 10e-6 + device.delay_s + device.tau_s * np.log(2) + 1 / (2 * np.pi * device.bandwidth_hz)
    late = np.array([crossing(capture(bench, Acquisition(DIGITIZER_HZ, 1500))[1], 0.5) for _ in range(60)])
    # Sample 0 comes 0 … 1 sample periods after the trigger, so the answer comes earlier by that.
    early = expected * DIGITIZER_HZ - late
    assert early.min() > -0.02
    assert early.max() < 1.02
    assert np.ptp(early) > 0.8
    assert early.mean() == pytest.approx(0.5, abs=4 * 0.29 / np.sqrt(60))


def test_triggers_are_edges_or_the_begin_of_a_burst_and_may_not_be_met():
    bench = bench_with(Linear(delay_s=5e-6, tau_s=10e-6, noise_v=0), trigger_jitter=0.0, digitizer_ppm=0.0)
    ramp = np.concatenate([np.zeros(50), np.ones(50), -np.ones(50)])
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(ramp, 1e6)))
    bench.set_output(2, OutputSettings(on=True, waveform=Waveform(2 * ramp, 0.5e6)))
    common = Acquisition(DIGITIZER_HZ, 1000, -20e-6, channels=(1, 2, 3, 4))

    record = capture(bench, common)
    assert [len(volts) for volts in record.values()] == [1000] * 4
    assert np.argmax(record[2] > 0.5) == pytest.approx((20 + 50) * 5, abs=1)
    assert np.argmax(record[3] > 1.0) == pytest.approx((20 + 100) * 5, abs=1)
    assert not record[4].any()

    record = capture(bench, replace(common, source=2, level_v=0.5))
    assert np.argmax(record[2] > 0.5) == pytest.approx(20 * 5, abs=1)
    record = capture(bench, replace(common, source=2, level_v=0.5, slope="falling"))
    assert np.argmax(record[2] > 0.5) == 0
    assert np.argmax(record[2] < 0.5) == pytest.approx(20 * 5, abs=1)
    # Of the device the half comes after its delay and tau ln 2.
    record = capture(bench, replace(common, source=1, level_v=0.5))
    assert record[1][100] == pytest.approx(0.5, abs=0.02)
    assert np.argmax(record[2] > 0.5) == pytest.approx((20 - 5 - 10 * np.log(2)) * 5, abs=1.5)

    bench.arm(replace(common, source=1, level_v=1.5))
    bench.start([1])
    assert bench.armed
    assert bench.capture(0) is None
    bench.force()
    assert bench.capture(0) is not None

    # What is played without end triggers a digitizer that is armed later.
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(ramp, 1e6, cycles=None)))
    bench.start([1])
    bench.arm(replace(common, source=2, level_v=0.0))
    record = bench.capture(0)
    assert record is not None
    np.testing.assert_array_equal(record[2][:200], record[2][750:950])
    assert np.unique(record[2]).tolist() == [-1, 0, 1]


def test_a_device_relaxes_for_the_time_that_passes_and_goes_on_from_there():
    # So slow that what passes between two calls is a small part of it.
    tau_s = 0.5
    bench = bench_with(Linear(delay_s=0.0, tau_s=tau_s, noise_v=0))
    bench.set_output(1, OutputSettings(on=True, rest_v=1.0))
    begun = bench.log.events[-1]["time_s"]
    bench.set_output(1, replace(bench.output(1), waveform=Waveform(np.ones(100_000), 1e6)))
    # Half of the record lies before its trigger, which waits until so much time has passed.
    acquisition = Acquisition(1e4, 1000, -50e-3)
    for _ in range(3):
        before = bench.now()
        volts = capture(bench, acquisition, forced=True)[1]
        after = bench.now()
        relaxed = -tau_s * np.log(1 - volts) + begun
        assert before - 1e-4 < relaxed[500] < relaxed[-1] < after + 1e-4
        np.testing.assert_allclose(np.diff(relaxed), 1e-4, rtol=1e-3)
        # A burst at the level of rest changes nothing but the time: 0.1 s of it pass at once.
        bench.start([1])
        assert bench.now() > after + 0.1

    settled = bench_with(Ikeda(noise_v=0))
    fixed = capture(settled, acquisition, forced=True)[1]
    assert fixed == pytest.approx(0.8 * np.sin(fixed + 0.2) ** 2, abs=1e-6)


def test_a_burst_has_the_same_bits_however_old_the_bench_is():
    # So slow that eleven days cost few steps.
    device = Linear(delay_s=0.0, tau_s=100.0, noise_v=0)
    bench = bench_with(device, trigger_jitter=0.0, digitizer_ppm=0.0)
    burst = Waveform(np.random.default_rng(0).uniform(-1, 1, 2000), 1e6)
    acquisition = Acquisition(DIGITIZER_HZ, 10_000, channels=(1, 2))

    def record():
        bench.set_output(1, OutputSettings(on=True, waveform=burst))
        return capture(bench, acquisition)

    young = record()
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(np.zeros(8), 8e-6)))
    bench.start([1])
    assert bench.now() > 1e6
    old = record()
    for channel in (1, 2):
        # Of the first burst the device remembers 1e-323.
        np.testing.assert_allclose(old[channel], young[channel], rtol=0, atol=1e-320)


def test_the_log_says_what_the_outputs_did_at_once(tmp_path):
    path = tmp_path / "events.jsonl"
    with VirtualBench(BenchConfig(termination_ohm=None), path) as bench:
        wave = Waveform(np.array([0.5, -0.25] * 50), 1e6, cycles=3)
        bench.set_output(1, OutputSettings(waveform=wave))
        bench.set_output(2, OutputSettings(waveform=wave))
        bench.start([1, 2])
        assert path.read_text() == ""
        bench.set_output(1, replace(bench.output(1), on=True))
        bench.arm(Acquisition(DIGITIZER_HZ, 2000, channels=(2, 3)))
        bench.start([1, 2])
        bench.set_output(1, replace(bench.output(1), rest_v=0.5))
        bench.set_output(1, replace(bench.output(1), load_ohm=None))
        bench.set_output(1, replace(bench.output(1), on=False))
        events = [json.loads(line) for line in path.read_text().splitlines()]
        record = bench.capture(0)
    assert [(e["event"], e["channel"]) for e in events] == [
        ("on", 1), ("burst begins", 1), ("burst ends", 1), ("level", 1), ("level", 1), ("off", 1),
    ]  # fmt: skip
    assert events == bench.log.events
    times = [e["time_s"] for e in events]
    assert times == sorted(times)
    assert times[2] - times[1] == pytest.approx(300e-6, abs=1e-12)
    # Set for 50 ohm and driving none, an output gives twice what it displays.
    assert (events[1]["low_v"], events[1]["high_v"]) == (-0.5, 1.0)
    assert [e["volts"] for e in events if e["event"] == "level"] == [1.0, 0.5]
    assert record is not None
    assert set(record[2].tolist()) == {-0.5, 0.0, 1.0}
    assert not record[3].any()
