"""What is done to bring a device back after a fault."""

from __future__ import annotations

from reservoir_hw.core.actions import call, run
from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.reservoir_config import ReservoirConfig


def recover(config: ReservoirConfig) -> None:
    """Do what `hil.recover` names, if it names something.

    A function that returns anything but False has done it. Raises as `perform` does, and `DeviceFault` where it was
    not done.
    """
    hil = config.hil
    if hil is None or hil.recover is None:
        return
    if isinstance(hil.recover, str):
        done, said = call(hil.recover, config) is not False, f"{hil.recover} returned False"
    else:
        status, said = run(list(hil.recover), hil.folder, hil.timeout_s)
        done = status == 0
    if not done:
        raise DeviceFault(f"the device was not recovered: {said} (hil: recover:)")
