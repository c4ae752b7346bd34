"""The Ikeda equation once more, by other means than the emulator: what a perfect bench would read.

    tau dx/dt = -x + beta sin²(x(t - T) + rho u(t) + phi)        out = LP(output_v x)

The past of one delay is known, so that each delay is a linear filter of a known signal (scipy). The step is a part
of a sample of the generator.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from reservoir_hw.backends.visa.burst import BurstLayout
from reservoir_hw.emulators.physics.devices import Ikeda


def answer_v(
    volts: np.ndarray, sample_s: float, device: Ikeda, tau_s: float, fine: int, held: bool = False
) -> np.ndarray:
    """Volts of the answer (samples, fine) for volts (samples,), from rest at the first one.

    Each of them rises or falls on a straight line to the next, or is held for its period.
    """
    dt = sample_s / fine
    times = (np.arange(len(volts) * fine) + 0.5) / fine
    u = volts[times.astype(int)] if held else np.interp(times, np.arange(len(volts)), volts)
    delay = round(device.delay_s / dt)
    x0 = 0.0
    for _ in range(10_000):
        x0 = device.feedback_gain * np.sin(x0 + device.gain_per_v * volts[0] + device.phase_rad) ** 2
    x = np.full(delay + len(u), x0)
    keep = np.exp(-dt / tau_s)
    for first in range(0, len(u), delay):
        part = slice(first, min(first + delay, len(u)))
        past = x[first : first + part.stop - part.start]
        # The past in the middle of each step.
        middle = (past + np.append(past[1:], x[first + len(past)])) / 2
        drive = device.feedback_gain * np.sin(middle + device.gain_per_v * u[part] + device.phase_rad) ** 2
        begin = [keep * x[delay + first - 1]]
        x[delay + first : delay + part.stop] = lfilter([1 - keep], [1, -keep], drive, zi=begin)[0]
    out = device.output_v * x[delay:] + device.offset_v
    keep = np.exp(-2 * np.pi * device.bandwidth_hz * dt)
    return lfilter([1 - keep], [1, -keep], out, zi=[keep * out[0]])[0].reshape(len(volts), fine)


def states(
    layout: BurstLayout,
    u: np.ndarray,
    device: Ikeda,
    position: float,
    average: float,
    tau_s: float | None = None,
    fine: int = 64,
    lsb_v: float = 0.0,
    held: bool = False,
) -> np.ndarray:
    """(steps, nodes) for inputs (steps, inputs), the mean of the answer over the share of each node that is read.

    Time begins in the middle of the first edge of the marker: half a sample before it, if volts are not held. With
    `lsb_v` a converter takes one sample in the middle of each of the generator's, in such steps.
    """
    volts = layout.between_markers(layout.driven(u))
    out = answer_v(volts, 1 / layout.hold.sample_rate_hz, device, tau_s or device.tau_s, fine, held)
    if lsb_v:
        out = np.repeat(np.round(out[:, fine // 2, None] / lsb_v) * lsb_v, fine, axis=1)
    begin = (len(layout.marker) + layout.memory_steps * layout.samples_per_step) * fine - (0 if held else fine // 2)
    end = begin + len(u) * layout.samples_per_step * fine
    nodes = out.reshape(-1)[begin:end].reshape(len(u), layout.mask.nodes, -1)
    size = nodes.shape[-1]
    low, high = round((position - average / 2) * size), round((position + average / 2) * size)
    return nodes[..., low:high].mean(-1)
