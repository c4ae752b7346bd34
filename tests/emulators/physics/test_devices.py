import math

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.emulators.physics.devices import Ikeda, Linear, MackeyGlass, behaviour
from reservoir_hw.emulators.physics.signals import Playback, to_codes

SAMPLE_S = 1e-6
# A delay that is no whole number of steps of the device, but one of the reference, which is 80 times finer.
DELAY_S = 37.3e-6
FINE = 640


def by_heun(f, u, tau_s, bandwidth_hz, fed_back):
    """The equations as they are printed, by Heun's method in plain Python; the output at the end of each sample."""
    h = SAMPLE_S / FINE
    late = round(DELAY_S / h)
    x, y, xs, out = 0.0, 0.0, [0.0] * (late + 1), []

    def drive(step, begin):
        """What x relaxes to at the begin of a step (1) or at its end (0), with the input during it."""
        now, before = u[step // FINE], u[(step - late) // FINE] if step >= late else 0.0
        return f(xs[step + 1 - begin], now) if fed_back else f(before)

    for step in range(len(u) * FINE):
        x1, y1 = (drive(step, 1) - x) / tau_s, 2 * math.pi * bandwidth_hz * (x - y)
        xe, ye = x + h * x1, y + h * y1
        x2, y2 = (drive(step, 0) - xe) / tau_s, 2 * math.pi * bandwidth_hz * (xe - ye)
        x, y = x + h / 2 * (x1 + x2), y + h / 2 * (y1 + y2)
        xs.append(x)
        if (step + 1) % FINE == 0:
            out.append(y)
    return np.array(out)


def respond(device, u, steps):
    """The output at the end of each sample, with some steps for each."""
    dt_s = SAMPLE_S / steps
    return device.respond(np.repeat(u, steps), dt_s, device.start(dt_s))[0][steps - 1 :: steps]


@pytest.mark.parametrize(
    ("device", "f", "fed_back"),
    [
        (Ikeda(delay_s=DELAY_S, noise_v=0), lambda x, u: 0.8 * math.sin(x + 0.5 * u + 0.2) ** 2, True),
        (
            MackeyGlass(delay_s=DELAY_S, noise_v=0, gain_per_v=1.5, exponent=7, feedback_gain=1.3, output_v=1),
            lambda x, u: 1.3 * (x + 1.5 * u) / (1 + abs(x + 1.5 * u) ** 7),
            True,
        ),
        (Linear(delay_s=DELAY_S, noise_v=0, gain_per_v=0.7), lambda u: 0.7 * u, False),
    ],
    ids=["ikeda", "mackey_glass", "linear"],
)
def test_a_device_follows_its_equation_to_second_order(device, f, fed_back):
    u = np.repeat(np.random.default_rng(1).uniform(-1, 1, 30), 5)
    reference = by_heun(f, u, device.tau_s, device.bandwidth_hz, fed_back)
    scale = reference.std()
    errors = [float(np.abs(respond(device, u, steps) - reference).max()) / scale for steps in (8, 16, 32)]
    other = device.model_copy(update={"tau_s": 1.05 * device.tau_s})
    assert errors[0] < 5e-5
    assert errors[0] / errors[2] > 10
    assert np.abs(respond(other, u, 8) - reference).max() / scale > 1e-2


def test_noise_has_its_size_and_bandwidth_at_any_sample_rate_and_saturation_holds():
    device = Linear(noise_v=1e-3, bandwidth_hz=1e5, saturation_v=0.5, output_v=2.0, offset_v=0.1)
    for dt_s in (1e-7, 4e-7):
        noise = device.at_output(np.full(400_000, 0.1), dt_s, np.random.default_rng(5)) - 0.1
        assert noise.std() == pytest.approx(1e-3, rel=0.03)
        later = round(1 / (2 * np.pi * 1e5) / dt_s)
        expected = math.exp(-2 * np.pi * 1e5 * later * dt_s)
        assert np.corrcoef(noise[later:], noise[:-later])[0, 1] == pytest.approx(expected, abs=0.02)
    for level, limit in ((1.0, 0.5), (-1.0, -0.5)):
        out, _ = device.respond(np.full(20_000, level), 1e-7, device.start(1e-7))
        out = device.at_output(out, 1e-7, np.random.default_rng(5))
        assert np.abs(out).max() == 0.5
        assert out[-1] == limit


def test_a_playback_holds_or_joins_its_samples_and_a_converter_clips():
    volts = np.array([1.0, 3.0])
    times = np.array([9.9, 10.0, 10.5, 11.5, 12.0, 13.75, 14.0])
    held = Playback(10.0, 1.0, volts, 2, -1.0)
    joined = Playback(10.0, 1.0, volts, 2, -1.0, "linear")
    assert held.at(times).tolist() == [-1, 1, 1, 3, 1, 3, -1]
    assert joined.at(times).tolist() == [-1, 1, 2, 2, 1, 0, -1]
    assert Playback(10.0, 1.0, volts, None, -1.0).at(np.array([1e6])).tolist() == [1.0]

    codes = to_codes(np.array([-9.0, 0.5, 0.5 + 1 / 256, 9.0]), 1.0, 0.5, 8)
    assert codes.tolist() == [0, 128, 129, 255]


def test_what_a_device_reaches_and_how_long_it_remembers():
    seen = behaviour(Linear(tau_s=20e-6, delay_s=5e-6, noise_v=1e-3, offset_v=0.1), -0.5, 0.0, 1.0, 100e-6)
    assert seen.range_v == pytest.approx((-0.4, 1.1), abs=0.02)
    # Two pasts differ by 0.2 to 1.5 V, which become 1 mV.
    assert 5e-6 + 20e-6 * math.log(200) < seen.memory_s < 5e-6 + 20e-6 * math.log(1500)
    # What is left of the past is multiplied by the slope at rest in each round trip, which takes 500 µs and about tau.
    memory_s = [behaviour(MackeyGlass(noise_v=noise_v), -0.5, 0.0, 0.5, 10e-6).memory_s for noise_v in (1e-3, 1e-4)]
    assert memory_s[1] - memory_s[0] == pytest.approx(550e-6 * math.log(0.1) / math.log(0.8), rel=0.2)
    with pytest.raises(ConfigurationError, match=r"\(mackey_glass\) does not forget its past within 0\.2 s"):
        behaviour(MackeyGlass(feedback_gain=1.2), -0.5, 0.0, 0.5, 10e-6)
