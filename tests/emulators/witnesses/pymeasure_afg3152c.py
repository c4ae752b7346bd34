"""PyMeasure on a Tektronix AFG3152C at the address that is the argument: shapes, levels, outputs, errors."""

import sys

from pymeasure.instruments.tektronix import AFG3152C  # pyright: ignore[reportMissingImports]

generator = AFG3152C(sys.argv[1], visa_library="@py", read_termination="\n", write_termination="\n")
assert generator.id.startswith("TEKTRONIX,AFG3152C"), generator.id
generator.clear()
generator.reset()

channel = generator.ch1
channel.waveform(shape="RAMP", frequency=2e3, units="VPP", amplitude=1.5, offset=0.25)
assert (channel.shape, channel.unit) == ("ramp", "VPP")
assert (channel.frequency, channel.amp_vpp, channel.offset) == (2e3, 1.5, 0.25)
channel.shape = "sinusoidal"
channel.amp_vpp = 1
channel.frequency = 1e3
channel.offset = -0.5
assert (channel.shape, channel.frequency, channel.amp_vpp, channel.offset) == ("sinusoidal", 1e3, 1.0, -0.5)
generator.ch2.frequency = 5e3
assert (channel.frequency, generator.ch2.frequency) == (1e3, 5e3)
# `channel.enable()` fails before it sends anything: channels have no `number`.
generator.write("output1:state on")
assert generator.opc() == 1
generator.write("output1:state off")
assert generator.check_errors() == []
# It puts `source1:` before `output:impedance`, which the instrument does not know.
channel.impedance = 50
(error,) = generator.check_errors()
assert int(error[0]) == -113, error
channel.offset = 7
(error,) = generator.check_errors()
assert int(error[0]) == -222, error
generator.adapter.close()
