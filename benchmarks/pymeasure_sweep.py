"""The sweep of examples/smu_film as a script with PyMeasure, beside its file: `python benchmarks/pymeasure_sweep.py`.

It needs pymeasure, and an emulated bench: `reservoir-hw emulate bench --dialect smu`. It counts the lines of both.
"""

# the script
import numpy as np
from pymeasure.instruments import Instrument  # pyright: ignore[reportMissingImports]
from pymeasure.instruments.keithley import Keithley2400  # pyright: ignore[reportMissingImports]

ENDS = {"visa_library": "@py", "read_termination": "\n", "write_termination": "\n"}
CHANNELS = range(101, 109)
u = np.random.default_rng(0).uniform(-1, 1, 200)
switch = Instrument("TCPIP::127.0.0.1::5026::SOCKET", "switch", includeSCPI=True, **ENDS)
source = Keithley2400("TCPIP::127.0.0.1::5025::SOCKET", **ENDS)
source.reset()
source.source_mode = "voltage"
source.compliance_current = 1e-3
source.enable_source()
states, saturated = np.empty((len(u), len(CHANNELS))), 0
try:
    for step, value in enumerate(u):
        source.source_voltage = round(0.3 * value + 0.5, 4)
        for node, channel in enumerate(CHANNELS):
            switch.write(f"ROUT:CLOS (@{channel})")
            switch.ask("*OPC?")
            reading = source.values(":READ?")
            states[step, node] = 1e5 * reading[1]
            saturated += bool(int(reading[4]) & 8)
    source.check_errors()
finally:
    source.source_voltage = 0
    source.disable_source()
np.save("states.npy", states)
# the end of the script

if __name__ == "__main__":
    from pathlib import Path

    here = Path(__file__)
    script = here.read_text().partition("# the script\n")[2].partition("# the end")[0]
    file = (here.parents[1] / "examples/smu_film/film.yaml").read_text()
    for name, text in (("the script with PyMeasure", script), ("examples/smu_film/film.yaml", file)):
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        print(f"{name}: {len(lines)} lines")
    print(f"states of {len(u)} steps, {saturated} of {states.size} readings in compliance")
