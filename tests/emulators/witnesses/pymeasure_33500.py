"""PyMeasure on a Keysight 33500 at the address that is the argument: upload, sample rate, burst, trigger."""

import sys

import numpy as np
from pymeasure.instruments.agilent import Agilent33500  # pyright: ignore[reportMissingImports]

generator = Agilent33500(sys.argv[1], visa_library="@py", read_termination="\n", write_termination="\n")
assert generator.id.startswith("Keysight Technologies,33512B"), generator.id
generator.clear()
generator.reset()

channel = generator.ch_1
counts = [int(count) for count in np.random.default_rng(7).integers(-32767, 32768, 4096)]
counts[:2] = [-32767, 32767]
channel.data_volatile_clear()
channel.data_arb("witness", counts, data_format="DAC")
channel.data_arb("floats", [count / 32767 for count in counts[:8]], data_format="float")
channel.arb_file = "witness"
channel.arb_filter = "OFF"
channel.arb_srate = 1e6
channel.shape = "ARB"
channel.output_load = "INF"
channel.amplitude = 2.0
channel.offset = 0.5
channel.burst_mode = "TRIG"
channel.burst_ncycles = 3
channel.burst_state = True
generator.trigger_source = "BUS"
channel.output = "on"
for _ in range(2):
    generator.trigger()
generator.wait_for_trigger(timeout=5)

assert channel.arb_file == '"WITNESS"', channel.arb_file
assert (channel.shape, channel.arb_filter, channel.arb_srate) == ("ARB", "OFF", 1e6)
assert (channel.amplitude, channel.offset, channel.output_load) == (2.0, 0.5, 9.9e37)
assert (channel.burst_mode, channel.burst_ncycles, channel.burst_state) == ("TRIG", 3, True)
assert (generator.trigger_source, channel.output) == ("BUS", True)
assert generator.check_errors() == []
channel.data_arb("witness", counts[:8], data_format="DAC")
(error,) = generator.check_errors()
assert int(error[0]) == 786, error
channel.output = "off"
assert generator.check_errors() == []
generator.adapter.close()
