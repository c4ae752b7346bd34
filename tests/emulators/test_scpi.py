"""The language: what an emulated instrument accepts, refuses and answers."""

import math
import threading

import numpy as np
import pytest
from emulators.toy_generator import ToyGenerator
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw.emulators.scpi.messages import find_message_end


def errors_of(device):
    """All entries of the error queue, oldest first."""
    found = []
    while (entry := device.execute(b"SYST:ERR?").decode()) != '0,"No error"':
        found.append(entry)
    return found


def codes_of(device):
    return [int(entry.split(",")[0]) for entry in errors_of(device)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("FREQU 5", -113),
        ("SOUR:FREQ:CENT 5", -113),
        ("FREQ1 5", -113),
        ("FREQ:CW:FIX 5", -113),
        ("DISPSCR:TEXT 'a'", -113),
        ("SCR2:TEXT 'a'", -114),
        ("SOUR2::FREQ 5", -113),
        ("WAV:DATA", -113),
        ("*RST?", -113),
        ("SOUR3:FREQ 5", -114),
        ("FREQ=5", -111),
        ("5 FREQ", -102),
        ("FREQ", -109),
        ("FREQ 1,2", -108),
        ("*TRG;*IDN?;FREQ?", -440),
    ],
)
def test_headers_that_are_refused(message, code):
    device = ToyGenerator()
    device.execute(message.encode())
    assert codes_of(device) == [code]


def test_an_error_in_the_middle_of_a_message():
    device = ToyGenerator()
    assert device.execute(b"FREQ 5;FREQ?;FREQ 1E99;VOLT 2;FOO;VOLT 3") == b"+5.000000000000000E+00"
    assert (device.frequencies[1], device.levels[1]) == (5.0, 2.0), "what cannot be understood ends the message"
    assert errors_of(device) == ['-222,"Data out of range"', '-113,"Undefined header"']
    assert device.execute(b"FREQ?;VOLT?") == b"+5.000000000000000E+00;+2.000000000000000E+00"


@pytest.mark.parametrize(
    ("message", "attribute", "value"),
    [
        ("FREQ 1.5", "frequencies", 1.5),
        ("FREQ:CW 1.5", "frequencies", 1.5),
        ("SCREEN1:TEXT 'ab'", "label", "ab"),
        ("DISP:TEXT 'ab'", "label", "ab"),
        ("FREQ 1 E3", "frequencies", 1e3),
        ("FREQ 10KHZ", "frequencies", 1e4),
        ("FREQ #H1F", "frequencies", 31.0),
        ("FREQ MAX", "frequencies", 30e6),
        ("FREQ DEFault", "frequencies", 1e3),
        ("VOLT 1.000000e+00VPP", "levels", 1.0),
        ("OUTP:LOAD 10 KOHM;:VOLT MAX", "levels", 20.0),
        ("OUTP:LOAD INF", "loads", math.inf),
        ("BURS:NCYC 2.5", "cycles", 3),
        ("BURS:NCYC INFINITY", "cycles", math.inf),
        ("FUNC:ARB:SRAT 2 MSA/S", "rates", 2e6),
        ("TRIG:SOUR external", "sources", "EXT"),
    ],
)
def test_arguments_that_are_accepted(message, attribute, value):
    device = ToyGenerator()
    device.execute(message.encode())
    assert errors_of(device) == []
    found = getattr(device, attribute)
    assert (found if attribute == "label" else found[1]) == value


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("FREQ 1E-7", -222),
        ("FREQ 1 V", -131),
        ("FREQ 1 QHZ", -131),
        ("BURS:NCYC 1 HZ", -138),
        ("FREQ 1.5.2", -121),
        ("FREQ FAST", -104),
        ("FREQ '5'", -104),
        ("OUTP MAYBE", -224),
        ("TRIG:SOUR 1", -104),
        ("DISP:TEXT 'open", -151),
        ("DISP:TEXT 'a'b'", -151),
        ("DISP:TEXT bare", -104),
        ("DISP:SHOW CHAN1,CHAN3", -224),
        ("DATA:ARB:DAC atoolongname12,1", -223),
        ("DATA:ARB:DAC a,1,40000", -222),
        ("DATA:ARB:DAC a,1,,2", -109),
        ("DATA:ARB:DAC a,nan", -104),
        ("DATA:ARB:DAC a,#13abc", -230),
        ("DATA:ARB:DAC a,#12ab,1", -108),
        ("DATA:RAW #15abc", -161),
        ("DATA:RAW #", -161),
    ],
)
def test_arguments_that_are_refused(message, code):
    device = ToyGenerator()
    before = repr((device.settings(), device.loads, device.cycles))
    device.execute(message.encode())
    assert codes_of(device) == [code]
    assert repr((device.settings(), device.loads, device.cycles)) == before
    assert device.waveforms == {}
    assert device.shown == []


def test_blocks_may_contain_anything_and_are_not_copied():
    device = ToyGenerator()
    samples = np.arange(-8, 8, dtype=">i2")
    special = b'\n;,"#15 \r' + bytes(range(256))
    message = b"DATA:ARB:DAC r1,#232" + samples.tobytes() + b";DAC r2, -8, -7,+6E0;:DATA:RAW #3%d" % len(special)
    message += special + b" ;:FREQ 7"
    device.execute(message)
    assert errors_of(device) == []
    np.testing.assert_array_equal(device.waveforms["r1"], samples)
    assert np.shares_memory(device.waveforms["r1"], np.frombuffer(message, "u1"))
    np.testing.assert_array_equal(device.waveforms["r2"], [-8, -7, 6])
    assert device.waveforms["raw"] == special
    assert device.frequencies[1] == 7
    device.execute(b"DATA:RAW #0;:FREQ 8,\n#15")
    assert device.waveforms["raw"] == b";:FREQ 8,\n#15"
    device.execute(b"DATA:ARB:DAC r1,1")
    assert errors_of(device) == ['780,"The specified arb waveform already exists"']


def test_messages_of_a_stream_end_where_they_should():
    stream = b"A '#19';B\nDATA #15a\n;\nb;C\nDISP 'open\nX #0;\n#H1F\n"
    expected = [b"A '#19';B", b"DATA #15a\n;\nb;C", b"DISP 'open", b"X #0;", b"#H1F"]
    # Whatever pieces they come in.
    for step in range(1, 12):
        data, messages, resume = bytearray(), [], 0
        for start in range(0, len(stream), step):
            data += stream[start : start + step]
            while (found := find_message_end(data, resume)).at is not None:
                messages.append(bytes(data[: found.at]))
                del data[: found.at + 1]
                resume = 0
            resume = found.resume
        assert messages == expected
        assert not data


def test_the_error_queue():
    device = ToyGenerator()
    for channel in range(3, 21):
        device.execute(b"OUTP%d ON" % channel)
    device.execute(b"FREQ 1E99")
    assert device.status_byte() == 4
    for _ in range(3):
        device.execute(b"FOO")
    assert codes_of(device) == [-114] * 18 + [-222, -350]
    assert device.status_byte() == 0
    device.execute(b"FOO")
    device.execute(b"*CLS")
    assert device.execute(b"SYSTem:ERRor:NEXT?;:SYST:VERS?") == b'0,"No error";1999.0'


def test_status_registers():
    device = ToyGenerator()
    assert device.execute(b"*ESR?;*ESR?") == b"128;0"
    device.execute(b"*ESE 48;*SRE 36;FREQ 1E99")
    assert device.execute(b"*ESE?;*SRE?;*STB?;*ESR?;*ESR?;*STB?") == b"48;36;100;16;0;68"
    device.execute(b"FOO")
    assert device.execute(b"*ESR?") == b"32"
    device.execute(b"*CLS;*TRG;*TRG")
    assert device.triggers == 2
    device.idle.clear()
    device.execute(b"*OPC")
    assert device.execute(b"*ESR?") == b"0"
    device.idle.set()
    assert device.execute(b"*ESR?;*OPC?;*TST?") == b"1;1;0"
    device.execute(b"*ESE 256")
    assert codes_of(device) == [-222]


def test_opc_waits_and_can_be_cancelled():
    device = ToyGenerator()
    device.idle.clear()
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(device.execute(b"*OPC?")))
    waiting.start()
    assert device.waiting.wait(5)
    assert device.status_byte() == 0, "the status byte does not wait"
    assert not answers
    device.idle.set()
    waiting.join()
    assert answers == [b"1"]
    device.idle.clear()
    assert device.execute(b"FREQ?;*WAI;FREQ 7", cancelled=lambda: True) == b""
    assert device.frequencies[1] == 1e3
    assert device.execute(b"*OPT?", cancelled=lambda: True) == b""


NODES = st.sampled_from(
    [
        (("SOUR", "SOURCE", "source"), ("FREQ", "FREQUENCY", "frEQ"), ["5", "2 KHZ", "MAX"]),
        (("SOUR", "SOURCE", "source"), ("VOLT", "VOLTAGE"), ["1", "300 MV", "1E-3VPP", "MIN"]),
        (("SOUR:FUNC:ARB", "SOURCE:FUNCTION:ARBITRARY"), ("SRAT", "SRATE"), ["1e6", "2 KSA/S"]),
        (("OUTP", "OUTPUT"), ("STAT", "STATE"), ["ON", "0"]),
        (("TRIG", "TRIGGER"), ("SOUR", "SOURCE"), ["BUS", "external", "IMM"]),
        (("DISP", "DISPLAY"), ("TEXT", "text"), ["'a;b\"c'", '"x,#19"']),
    ]
)
COMMANDS = st.lists(st.tuples(NODES, st.integers(0, 2), st.integers(1, 2)), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(commands=COMMANDS, data=st.data())
def test_settings_do_not_depend_on_how_commands_are_written(commands, data):
    plain, written = ToyGenerator(), ToyGenerator()
    message, path = "", None
    for (parents, leaves, values), value, channel in commands:
        root, *below = parents[0].split(":")
        number = "" if root == "DISP" else str(channel)
        argument = values[value % len(values)]
        plain.execute(":".join([root + number, *below, leaves[0]]).encode() + b" " + argument.encode())
        # The same, relative to the path or from the root, in any form, in this message or the next.
        root, *below = data.draw(st.sampled_from(parents)).split(":")
        leaf = data.draw(st.sampled_from(leaves))
        here = (parents[0], number)
        if message and data.draw(st.booleans()):
            relative = here == path and data.draw(st.booleans())
            message += ";" + data.draw(st.sampled_from(["", "*WAI;", " "]))
            message += leaf if relative else ":" + ":".join([root + number, *below, leaf])
        else:
            written.execute(message.encode())
            message = data.draw(st.sampled_from(["", ":"])) + ":".join([root + number, *below, leaf])
        message += data.draw(st.sampled_from([" ", "\t", "  "])) + argument
        path = here
    written.execute(message.encode())
    assert errors_of(plain) == errors_of(written) == []
    assert written.settings() == plain.settings()


PIECES = st.sampled_from(
    b"""FREQ|SOUR2:|DATA:RAW |DATA:ARB:DAC a,|DISP:TEXT | |\n|?|*|:|;|,|#|#15|#0|#H|'|"|1E|KHZ|MAX""".split(b"|")
)


@settings(max_examples=100, deadline=None)
@given(parts=st.lists(st.one_of(PIECES, PIECES, st.binary(max_size=3), st.integers(0, 99).map(b"%d".__mod__))))
def test_no_message_breaks_the_instrument(parts):
    device = ToyGenerator()
    message = b"".join(parts)
    device.execute(message)
    assert device.execute(b"*CLS;*IDN?") == b"Toys,G1,42,1.0"
