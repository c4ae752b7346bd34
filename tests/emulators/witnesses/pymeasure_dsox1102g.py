"""What PyMeasure's KeysightDSOX1102G sees at an address: prints its preamble and its volts as JSON.

Run with a python that has PyMeasure 0.16, pyvisa and pyvisa-py: `python pymeasure_dsox1102g.py TCPIP::…::SOCKET`.
"""

import json
import sys

from pymeasure.instruments.keysight import KeysightDSOX1102G  # pyright: ignore[reportMissingImports]

scope = KeysightDSOX1102G(sys.argv[1], visa_library="@py", read_termination="\n", write_termination="\n")
scope.factory_reset()
scope.stop()
scope.timebase_setup(mode="main", horizontal_range=10e-3)
scope.ch1.setup(coupling="dc", display=True, probe_attenuation=1, vertical_range=4.0, offset=0.0)
scope.acquisition_type = "normal"
scope.digitize("channel1")
volts, preamble = scope.download_data("channel1", points=1000)
errors = scope.check_errors()
json.dump({"preamble": preamble, "volts": volts.tolist(), "errors": [list(e) for e in errors]}, sys.stdout)
scope.adapter.close()
