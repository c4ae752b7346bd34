"""What the section `hil:` of a reservoir names is there, before the device is driven."""

from __future__ import annotations

import shlex
import shutil

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.core.functions import import_function
from reservoir_hw.core.reservoir_config import HilConfig, ReservoirConfig, call, run
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.testing.golden import read


def check(hil: HilConfig, spec: ReservoirSpec) -> int:
    """Look, and give the steps of the golden trace (0 if there is none).

    Raise `ConfigurationError` for a function or a program that is not there, and a golden trace that cannot be ours.

    `spec` is that of the open device.
    """
    for key, action in (("recover", hil.recover), ("safe_check", hil.safe_check), ("fault", hil.fault)):
        if isinstance(action, str):
            import_function(action, f"hil.{key}")
        elif action is not None:
            program = action[0]
            # As it is started: with a path, it is looked for in the folder.
            if shutil.which(str(hil.folder / program) if "/" in program else program) is None:
                raise ConfigurationError(
                    f"hil.{key}: {shlex.join(action)!r} cannot be started in {hil.folder}: there is no program "
                    f"{program}"
                )
    if hil.golden is None:
        return 0
    try:
        trace = read(hil.golden)
        trace.check_widths(spec)
    except ConfigurationError as error:
        raise ConfigurationError(f"hil.golden: {error}") from error
    return len(trace.inputs)


# ---- What is done to bring a device back after a fault.


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
