"""QCoDeS on a Keysight 33512B at the address that is the argument: bursts, triggers, errors."""

import sys

from qcodes.instrument_drivers.Keysight import Keysight33512B  # pyright: ignore[reportMissingImports]

generator = Keysight33512B("witness", sys.argv[1], visalib="@py", silent=True)
assert (generator.model, generator.num_channels) == ("33512B", 2)
generator.flush_error_queue(verbose=False)

channel = generator.ch1
settings = {
    "function_type": "SIN",
    "frequency": 2e3,
    "amplitude_unit": "VPP",
    "amplitude": 0.5,
    "offset": 0.25,
    "trigger_source": "BUS",
    "trigger_timer": 0.3,
    "burst_mode": "N Cycle",
    "burst_ncycles": 5,
    "burst_int_period": 0.1,
    "burst_state": "ON",
    "output": "ON",
}
for name, value in settings.items():
    channel.parameters[name].set(value)
for name, value in settings.items():
    assert channel.parameters[name].get() == value, name
generator.write("*TRG")
assert generator.ask("*OPC?") == "1"
assert generator.error() == (0, "No error")

channel.burst_ncycles("INF")
assert channel.burst_ncycles() == float("inf")
channel.amplitude(50)
assert generator.error() == (-222, "Data out of range; value clipped to upper limit")
assert generator.error() == (-221, "Settings conflict; offset changed due to amplitude")
generator.write("SOUR1:FUNC:ARB nothing")
assert generator.error() == (785, "Specified arb waveform does not exist")
channel.output("OFF")
assert generator.error() == (0, "No error")
generator.close()
