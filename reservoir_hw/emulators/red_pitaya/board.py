"""A Red Pitaya STEMlab 125-14 with its SCPI server (RedPitaya/RedPitaya, scpi-server, and its list of commands).

One instrument at one address has two outputs and two inputs. Messages and answers end with CR LF. What the server
leaves open, or what is simpler here:

- Samples beyond ±1 are refused, as the server does, and so are amplitude and offset together beyond ±1 V. More than
  16384 samples overrun a buffer of the server; here they are -223.
- What the server carries out at a wrong time, and what then gives chance values, is an error: a trigger before
  `ACQ:START` (-221), data without a record (-230).
- The format of arrays and the error queue belong to the board, not to a connection.
- Samples taken with averaging are means of 8 values at most. Nothing is calibrated, so raw codes and volts agree.
- Not emulated, and so errors: digital and slow analog pins, LEDs, buses, sweeps, `PHAS`, `DCYC`, `SOUR:LOAD`, repeated
  bursts, noise, PWM, sawtooth, hysteresis, delays in ns, deep memory, split triggers, filters, little-endian data.
"""

from __future__ import annotations

from reservoir_hw.emulators.red_pitaya.digitizer import Digitizer
from reservoir_hw.emulators.red_pitaya.generator import Generator


class RedPitaya(Generator, Digitizer):
    """The board on a bench: its outputs are those of the bench, its inputs the inputs 1 and 2."""
