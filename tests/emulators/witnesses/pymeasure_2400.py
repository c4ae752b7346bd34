"""PyMeasure's Keithley 2400 on the source whose address is in the argument, beside a switch matrix: a sweep, a buffer.

It prints the currents (steps, electrodes), and how the output was left.
"""

import json
import sys
import warnings

import numpy as np
from pymeasure.instruments import Instrument  # pyright: ignore[reportMissingImports]
from pymeasure.instruments.keithley import Keithley2400  # pyright: ignore[reportMissingImports]

# Some of its own words are old.
warnings.simplefilter("ignore", FutureWarning)
asked = json.loads(sys.argv[1])
ends = {"visa_library": "@py", "read_termination": "\n", "write_termination": "\n"}
switch = Instrument(asked["switch"], "switch", includeSCPI=True, **ends)
smu = Keithley2400(asked["source"], **ends)
assert "MODEL 2400" in smu.id, smu.id
smu.reset()
smu.source_mode = "voltage"
smu.compliance_current = 1e-3
smu.enable_source()
assert (smu.source_mode, smu.compliance_current, smu.source_enabled) == ("voltage", 1e-3, True)

currents = []
for volts in asked["volts"]:
    smu.source_voltage = volts
    assert smu.source_voltage == volts
    currents.append([])
    for channel in asked["channels"]:
        switch.write(f"ROUT:CLOS (@{channel})")
        assert switch.ask("*OPC?").strip() == "1"
        currents[-1].append(smu.current)
assert smu.check_errors() == []

# All elements, and what was not measured.
whole = smu.measure_all()
assert whole["current"] == currents[-1][-1], whole
assert whole["voltage"] == asked["volts"][-1], whole
assert np.isclose(whole["resistance"], whole["voltage"] / whole["current"], rtol=1e-5), whole
assert not whole["status"] & 8, whole
smu.compliance_current = 1e-6
assert smu.measure_all()["status"] & 8
smu.compliance_current = 1e-3

smu.config_buffer(5)
smu.start_buffer()
smu.wait_for_buffer(timeout=5)
assert smu.buffer_data.shape == (25,), smu.buffer_data
smu.trigger_count = 1

smu.ramp_to_voltage(0.0, steps=3, pause=0.0)
smu.shutdown()
assert not smu.source_enabled
smu.write("SOUR:VOLT 1000")
(error,) = smu.check_errors()
assert int(error[0]) == -222, error
sys.stdout.write(json.dumps({"currents": currents, "source_voltage": smu.source_voltage}))
