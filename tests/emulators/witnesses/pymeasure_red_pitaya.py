"""PyMeasure on a Red Pitaya at the address that is the argument: settings, trigger, records in ASCII.

It has no generator, whose commands are sent as they are. Its binary mode is faulty: it takes whatever comes as whole
numbers of eight bytes in the order of this computer, and gives volts of the order of 1e14.
"""

import sys

import numpy as np
from pymeasure.instruments.redpitaya import RedPitayaScpi  # pyright: ignore[reportMissingImports]

board = RedPitayaScpi(sys.argv[1], visa_library="@py")
assert board.id.startswith("REDPITAYA,"), board.id
assert board.board_name == "STEMlab 125-14 v1.0"
board.clear()

board.acquisition_reset()
board.decimation = 128
board.average_skipped_samples = False
board.acq_units = "VOLTS"
board.acq_format = "ASCII"
board.acq_trigger_delay_samples = 8192
board.acq_trigger_level = 0.25
board.ain1.gain = "LV"
assert (board.decimation, board.average_skipped_samples, board.acq_units) == (128, False, "VOLTS")
assert (board.acq_trigger_delay_samples, board.acq_trigger_level, board.ain1.gain) == (8192, 0.25, "LV")
assert board.buffer_length == 16384

ramp = np.linspace(-1, 1, 16384)
for command in (
    "GEN:RST",
    "SOUR1:FUNC ARBITRARY",
    "SOUR1:TRAC:DATA:DATA " + ",".join(f"{volts:.5f}" for volts in ramp),
    "SOUR1:FREQ:FIX 59.604644775390625",
    "SOUR1:VOLT 1",
    "SOUR1:BURS:STAT BURST",
    "SOUR1:BURS:NCYC 1",
    "OUTPUT1:STATE ON",
):
    board.write(command)

for source in ("AWG_PE", "CH1_PE"):
    board.acquisition_start()
    board.acq_trigger_source = source
    assert not board.acq_trigger_status
    board.write("SOUR1:TRIG:INT")
    assert board.acq_trigger_status
    assert board.acq_buffer_filled
    volts = board.ain1.get_data()
    # The edge at the input is met where the ramp reaches it.
    first = 0 if source == "AWG_PE" else 10240
    np.testing.assert_allclose(volts[: 16384 - first], ramp[first:], atol=3e-4)
np.testing.assert_array_equal(board.ain1.get_data(100), volts[:100])

board.acq_format = "BIN"
wrong = board.ain1.get_data(100, "BIN")
assert len(wrong) == 50
assert np.abs(wrong).max() > 1e9, wrong
assert board.check_errors() == []
board.write("ACQ:TRIG NOW")
(error,) = board.check_errors()
assert int(error[0]) == -221, error
board.adapter.close()
