"""tm_devices on an AFG3152C at 127.0.0.2 and a MSO54 at 127.0.0.1, both by HiSLIP on its usual port.

The generator plays a burst, and the oscilloscope takes it down. Its codes go as JSON to the file that is the argument.
"""

import json
import sys
from pathlib import Path

from tm_devices import DeviceManager  # pyright: ignore[reportMissingImports]
from tm_devices.helpers import PYVISA_PY_BACKEND  # pyright: ignore[reportMissingImports]

with DeviceManager(verbose=False) as manager:
    manager.visa_library = PYVISA_PY_BACKEND
    manager.setup_cleanup_enabled = manager.teardown_cleanup_enabled = False
    scope = manager.add_scope("TCPIP0::127.0.0.1::hislip0::INSTR")
    generator = manager.add_afg("TCPIP0::127.0.0.2::hislip0::INSTR")
    assert (type(scope).__name__, type(generator).__name__) == ("MSO5", "AFG3KC"), (scope, generator)

    for instrument in (scope, generator):
        instrument.ieee_cmds.cls()

    shapes = generator.source_device_constants.functions
    generator.setup_burst(1e3, shapes.SIN, 2.0, 0.5, 3, channel="SOURCE2")
    assert generator.query("SOURCE2:BURST:NCYCLES?") == "3"

    scope.turn_channel_on("CH2")
    scope.set_and_check("CH2:SCALE", 0.5)
    scope.set_and_check("CH2:OFFSET", 0.5)
    scope.set_and_check("HORIZONTAL:MODE", "MANUAL")
    scope.set_and_check("HORIZONTAL:MODE:SAMPLERATE", 625e3)
    scope.set_and_check("HORIZONTAL:MODE:RECORDLENGTH", 2500)
    scope.set_and_check("TRIGGER:A:MODE", "NORMAL")
    scope.set_and_check("TRIGGER:A:EDGE:SOURCE", "CH2")
    scope.set_and_check("TRIGGER:A:LEVEL:CH2", 0.6)
    scope.set_and_check("ACQUIRE:STOPAFTER", "SEQUENCE")
    scope.write("ACQUIRE:STATE 1")
    scope.poll_query(10, "TRIGGER:STATE?", "READY")
    generator.generate_burst()
    assert scope.ieee_cmds.opc() == "1"
    codes = scope.curve_query(2)
    names = ("XINCR", "XZERO", "PT_OFF", "YMULT", "YZERO")
    preamble = {name: float(scope.query(f"WFMOUTPRE:{name}?")) for name in names}
    for instrument in (scope, generator):
        instrument.expect_esr(0)
    scope.write("NONSENSE")
    scope.expect_esr(32, ('113,"Undefined header"',))
    Path(sys.argv[1]).write_text(json.dumps({"codes": codes, "preamble": preamble}))
