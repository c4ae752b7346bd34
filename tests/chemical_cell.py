"""A slow chemical cell with three electrodes, as its lab wrote it down: the functions that `kind: python` names."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

electrodes = np.zeros(3)
driven = 0
"""Steps since this was imported, as the cell counts them."""
asleep_since: float | None = None
prepared = 0
"""How often it was opened since this was imported."""
fails_at: int | None = None
"""The step at which `breaks` finds no current any more."""


def prepare() -> dict[str, float]:
    global prepared
    prepared += 1
    return {"bias_mT": 5.0, "temperature_c": 21.3}


def to_rest() -> None:
    electrodes[:] = 0


def drive(u: np.ndarray) -> np.ndarray:
    """Volts (time, 1) -> currents (time, 3)."""
    global driven
    driven += len(u)
    currents = np.empty((len(u), 3))
    for t, (volts,) in enumerate(u):
        electrodes[:] = np.tanh(0.5 * np.roll(electrodes, 1) + volts * np.array([1.0, -0.5, 0.25]))
        currents[t] = electrodes
    return currents


def breaks(u: np.ndarray) -> np.ndarray:
    """As `drive`, until a wire breaks."""
    currents = drive(u)
    if fails_at is not None and driven > fails_at:
        raise OSError("no current at electrode 2")
    return currents


def forgets(u: np.ndarray) -> np.ndarray:
    """The cell relaxes within 0.2 s of nothing."""
    global asleep_since
    if asleep_since is not None and time.monotonic() - asleep_since > 0.2:
        to_rest()
    currents = drive(u)
    asleep_since = time.monotonic()
    return currents


def until_the_power_fails(u: np.ndarray) -> np.ndarray:
    """Writes down what it was driven with; the power fails at the step that POWER_FAILS_AT names."""
    currents = drive(u)
    with open("driven.txt", "a") as log:
        log.write(f"{len(u)}\n")
    if driven >= int(os.environ.get("POWER_FAILS_AT", 1 << 60)):
        os.kill(os.getpid(), signal.SIGKILL)
    return currents
