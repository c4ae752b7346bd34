"""The emulated Red Pitaya by its language, and our driver in both of its roles."""

import contextlib

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.red_pitaya import RedPitayaDigitizerConfig, RedPitayaGeneratorConfig
from reservoir_hw.drivers.visa.roles import Input, Output, Trigger
from reservoir_hw.emulators.bench import BenchConfig, Cable, VirtualBench
from reservoir_hw.emulators.faults import FaultyInstrument, Struck
from reservoir_hw.emulators.red_pitaya import RedPitaya
from reservoir_hw.emulators.servers import SocketServer

STEP_V = 1 / 8192
# Nothing lies between outputs and inputs, and the trigger comes where a sample begins.
WIRES = BenchConfig(
    inputs={1: Cable(output=1), 2: Cable(output=2)}, termination_ohm=None, digitizer_ppm=0.0, trigger_jitter=0.0
)


@pytest.fixture
def board():
    with VirtualBench(WIRES) as bench:
        yield RedPitaya(bench)


def say(board, *messages):
    """The answers, and after them the numbers of all errors."""
    answers = [answer.decode() for message in messages if (answer := board.execute(message.encode()))]
    while (entry := board.execute(b"SYST:ERR?").decode()) != '0,"No error"':
        answers.append(int(entry.split(",")[0]))
    return answers


def serving(board):
    return SocketServer(board, terminator=b"\r\n")


@contextlib.contextmanager
def connected(address, outputs=None, inputs=None):
    """Both roles on one connection, as a bench has them."""
    ours = {"kind": "red_pitaya", "address": address, "timeout_s": 1.0}
    generator = RedPitayaGeneratorConfig(**ours, outputs=outputs or {1: Output(range_v=(-1.0, 1.0))}).build()
    digitizer = RedPitayaDigitizerConfig(**ours, inputs=inputs or {1: Input(range_v=(-1.0, 1.0))}).build()
    digitizer.share(generator)
    with generator, digitizer:
        yield generator, digitizer


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["*IDN?", "SYST:BRD:NAME?", "SYST:VERS?"], ["REDPITAYA,INSTR2024,0,01-16", "STEMlab 125-14 v1.0", "1999.0"]),
        # Only some words have short forms.
        (["OUTPUT1:STATE?", "OUTP1:STATE?", "SOURCE1:FUNC?", "ACQ:TR:DLY?"], ["OFF", "0", -113, -113]),
        (["*TRG", "FOO", "SOUR3:FUNC SINE", "SYST:ERR:COUN?"], ["3", -113, -113, -114]),
        (["OUTPUT:STATE ON", "OUTPUT1:STATE?;:OUTPUT2:STATE?", "OUTPUT2:STATE OFF;STATE?"], ["ON;ON", "OFF"]),
        # Levels, together within 1 V.
        (["SOUR1:VOLT .5;VOLT:OFFS -.5", "SOUR1:VOLT .51;VOLT:OFFS .51;OFFS?;:SOUR1:VOLT?"], ["-0.5;0.5", -222, -222]),
        (["SOUR2:FREQ:FIX 12.207031;FIX?", "SOUR2:FREQ:FIX 63E6", "SOUR2:FREQ:FIX 0"], ["12.207", -222, -222]),
        (["SOUR1:TRAC:DATA:DATA .5,-1,1;DATA?", "SOUR1:TRAC:DATA:DATA 0,1.01;DATA?"],
         ["{0.500000,-1.000000,1.000000}", "{0.500000,-1.000000,1.000000}", -222]),
        (["SOUR1:TRAC:DATA:DATA " + "0," * 16384 + "0"], [-223]),
        (["SOUR1:BURS:NCYC 0", "SOUR1:BURS:NOR 2", "SOUR1:FUNC PWM", "SOUR1:TRIG:SOUR EXT_PE;:SOUR1:TRIG:INT"],
         [-222, -222, -224, -211]),
        # What is reset by whom.
        (["SOUR1:BURS:STAT BURST;:ACQ:DEC 8;:ACQ:DATA:FORMAT BIN;UNITS RAW", "*RST", "ACQ:DEC?", "SOUR1:BURS:STAT?",
          "GEN:RST", "ACQ:RST", "ACQ:DEC?", "SOUR1:BURS:STAT?", "ACQ:DATA:FORMAT?;UNITS?"],
         ["8", "BURST", "1", "CONTINUOUS", "ASCII;VOLTS"]),
        # Acquisition.
        (["ACQ:DEC 12;DEC?", "ACQ:DEC:FACTOR 17;FACTOR?", "ACQ:DEC:F 9", "ACQ:SRAT?"],
         ["1", "17", "  7352941 Hz", -222, -222]),
        (["ACQ:SOUR2:GAIN HV;GAIN?", "ACQ:AVG OFF;AVG?", "ACQ:BUF:SIZE?", "ACQ:TRIG:DLY -9000;DLY?"],
         ["HV", "OFF", "16384", "-8192"]),
        (["ACQ:TRIG AWG_PE", "ACQ:SOUR1:DATA?", "ACQ:TRIG:STAT?;FILL?"], ["TD;0", -221, -230]),
        (["ACQ:START;:ACQ:TRIG CH1_PE;TRIG:STAT?;FILL?", "ACQ:STOP;TRIG:STAT?;FILL?"], ["WAIT;0", "TD;0"]),
        (["ACQ:START;:ACQ:TRIG NOW;TRIG:STAT?;FILL?", "ACQ:START;:ACQ:TRIG EXT_PE;TRIG:STAT?;FILL?", "ACQ:SOUR1:DATA?"],
         ["TD;1", "WAIT;0", -230]),
    ],
)  # fmt: skip
def test_what_is_accepted_and_refused(board, messages, expected):
    assert say(board, *messages) == expected


def test_what_it_plays(board):
    events = board.bench.log.events
    setup = "SOUR{0}:FUNC ARBITRARY;VOLT 1;TRAC:DATA:DATA .1,-1,1;:SOUR{0}:BURS:STAT BURST;NCYC 2"
    setup += ";:SOUR{0}:FREQ:FIX 61.03515625"
    levels = "SOUR1:BURS:INITV .25;LASTV -.5;:OUTPUT1:STATE ON"
    assert say(board, setup.format(1), setup.format(2), levels) == []
    assert board.bench.output(1).rest_v == 0.25
    assert say(board, "SOUR1:TRIG:INT") == []
    assert board.bench.output(1).rest_v == -0.5
    # The frequency is that of 16384 samples, however many there are.
    begun = next(event for event in events if event["event"] == "burst begins")
    assert (begun["samples"], begun["rate_hz"], begun["cycles"]) == (3, 1e6, 2)
    np.testing.assert_array_equal(board.bench.output(1).waveform.volts, np.array([819, -8192, 8191]) * STEP_V)
    events.clear()
    assert say(board, "OUTPUT2:STATE ON", "SOUR:TRIG:INT") == []
    first, second = [event for event in events if event["event"] == "burst begins"]
    assert (first["channel"], second["channel"], first["time_s"]) == (1, 2, second["time_s"])
    # 125 MS/s are the most.
    say(board, "SOUR1:TRAC:DATA:DATA " + ",".join(["0", "1", "0", "0"] * 4) + ";:SOUR1:FREQ:FIX 15258.7890625")
    assert (len(board.bench.output(1).waveform.volts), board.bench.output(1).waveform.rate_hz) == (8, 125e6)
    events.clear()
    # A signal without end goes on when a setting changes, and ends with the output.
    say(board, "GEN:RST", "OUTPUT1:STATE ON", "SOUR1:TRIG:INT", "SOUR1:VOLT .5", "OUTPUT1:STATE OFF")
    kinds = [event["event"] for event in events if event["channel"] == 1]
    assert kinds == ["off", "on", "burst begins", "burst ends", "burst begins", "burst ends", "off"]


def test_what_it_takes_down(board):
    ramp = np.linspace(-1.0, 1.0, 16384)
    upload = "SOUR1:FUNC ARBITRARY;VOLT 1;TRAC:DATA:DATA " + ",".join(f"{v:.6f}" for v in ramp)
    assert say(board, upload, "SOUR1:FREQ:FIX 59.604644775390625;:SOUR1:BURS:STAT BURST", "OUTPUT1:STATE ON") == []
    record = "ACQ:START;:ACQ:TRIG AWG_PE;:SOUR1:TRIG:INT;:ACQ:TRIG:STAT?;FILL?"
    # Both take a sample in 128 periods of the board's clock.
    assert say(board, "ACQ:DEC 128;AVG OFF", record) == ["TD;1"]
    volts = np.array(say(board, "ACQ:SOUR1:DATA?")[0].strip("{}").split(","), float)
    assert len(volts) == 16384
    # The trigger stands in the middle.
    assert (volts[8191], volts[8192]) == (0.0, -1.0)
    np.testing.assert_allclose(volts[8192:], ramp[:8192], atol=2 * STEP_V)
    assert say(board, "ACQ:SOUR1:DATA:OLD:N? 2", "ACQ:SOUR1:DATA:LAT:N? 1") == [
        "{0.000000,0.000000}", f"{{{volts[-1]:.6f}}}",
    ]  # fmt: skip
    raw = np.array(say(board, "ACQ:DATA:UNITS RAW", "ACQ:SOUR1:DATA?")[0].strip("{}").split(","), int)
    say(board, "ACQ:DATA:FORMAT BIN")
    block = board.execute(b"ACQ:SOUR1:DATA?")
    assert block[:7] == b"#532768"
    np.testing.assert_array_equal(np.frombuffer(block[7:], ">i2"), raw)
    say(board, "ACQ:DATA:UNITS VOLTS")
    np.testing.assert_array_equal(np.frombuffer(board.execute(b"ACQ:SOUR1:DATA?")[7:], ">f4"), raw * np.float32(STEP_V))
    np.testing.assert_allclose(raw * STEP_V, volts, atol=1e-6)
    # A delay of half the buffer shows what follows the trigger only; the other range is coarser.
    assert say(board, "ACQ:TRIG:DLY 8192;:ACQ:SOUR1:GAIN HV", record) == ["TD;1"]
    coarse = np.frombuffer(board.execute(b"ACQ:SOUR1:DATA?")[7:], ">f4")
    np.testing.assert_allclose(coarse, ramp, atol=12 * STEP_V)
    # An edge at an input, and means of what is left out.
    assert say(board, "ACQ:RST", "SOUR1:TRAC:DATA:DATA 0,.8,0,.8,0,.8,0,0") == []
    assert say(board, "ACQ:DEC 256;:ACQ:TRIG:LEV .4", record.replace("AWG_PE", "CH1_PE")) == ["TD;1"]
    volts = np.array(say(board, "ACQ:SOUR1:DATA?")[0].strip("{}").split(","), float)
    np.testing.assert_allclose(volts[8190:8196], [0, 0, 0.4, 0.4, 0.4, 0], atol=0.1)


def test_our_driver_plays_and_takes_down_what_it_was_given(board):
    outputs = {1: Output(range_v=(-0.5, 0.9), safe_v=0.3), 2: Output(range_v=(-0.4, 0.4), load_ohm=50.0)}
    inputs = {1: Input(range_v=(-1.0, 1.0)), 2: Input(range_v=(-2.0, 2.0))}
    random = np.random.default_rng(2)
    volts = {1: np.repeat(random.uniform(-0.5, 0.9, 4000), 4), 2: np.repeat(random.uniform(-0.4, 0.4, 4000), 4)}
    # What somebody left behind must not be in the way.
    say(board, "SOUR1:VOLT .1;VOLT:OFFS .9;:SOUR2:BURS:NCYC 7;:OUTPUT:STATE ON;:ACQ:SOUR1:GAIN HV;:ACQ:DATA:FORMAT BIN")
    board.execute(b"FOO")
    with serving(board) as address, connected(address, outputs, inputs) as (generator, digitizer):
        assert generator.load(volts, 1e6) == pytest.approx(1e6, rel=1e-7)
        trigger = Trigger(source="external", before_s=100e-6)
        assert digitizer.configure([1, 2], trigger, 1e6, 16300) == 1e6
        generator.arm()
        assert (board.bench.output(1).rest_v, board.bench.output(2).rest_v) == (0.3, 0.0)
        board.bench.log.events.clear()
        digitizer.arm()
        generator.trigger()
        digitizer.wait(1.0)
        # Each record is armed for, and nothing is loaded again.
        digitizer.arm()
        generator.trigger()
        digitizer.wait(1.0)
        record = digitizer.fetch()
        begun = [event for event in board.bench.log.events if event["event"] == "burst begins"]
        assert [event["channel"] for event in begun] == [1, 2, 1, 2]
        # At 50 ohm half of the volts would be left; here nothing is connected.
        for number, played, least_v in ((1, volts[1], STEP_V), (2, 2 * volts[2], 20 * STEP_V)):
            taken = record[number]
            assert (taken.sample_rate_hz, taken.start_s, taken.clipped) == (1e6, -100e-6, 0)
            rest = outputs[number].safe_v
            # One sample at rest comes before the waveform.
            shown = np.concatenate([np.full(101, rest), played, np.full(16300 - 101 - len(played), rest)])
            # Between edges, which lie where samples begin.
            held = (shown[1:-1] == shown[:-2]) & (shown[1:-1] == shown[2:])
            np.testing.assert_allclose(taken.volts[1:-1][held], shown[1:-1][held], atol=least_v)
        assert generator.load({1: volts[1][:2]}, 5e6) == pytest.approx(5e6, rel=1e-7)
        assert not board.bench.output(2).on
        generator.arm()
        generator.stop()
        assert not board.bench.output(1).on


def test_our_driver_refuses_before_it_sends(board):
    for wrong, said in (
        ({"outputs": {1: Output(range_v=(-1.1, 1.0))}}, "the instrument reaches ±1 V"),
        ({"outputs": {1: Output(range_v=(-0.6, 0.5), load_ohm=50.0)}}, "the instrument reaches ±0.5 V at 50 ohm"),
        ({"inputs": {1: Input(range_v=(-21.0, 1.0))}}, "the instrument reaches ±20 V"),
        ({"inputs": {1: Input(range_v=(-1.0, 1.0), impedance_ohm=50)}}, "impedance_ohm 1000000 only"),
    ):
        with pytest.raises(ValueError, match=said), connected("TCPIP::127.0.0.1::1::SOCKET", **wrong):
            pass
    wave, external = np.zeros(100), Trigger(source="external")
    with serving(board) as address, connected(address) as (generator, digitizer):
        before = repr((board.channels, board._set))
        for volts, rate, said in (
            (wave + 1.01, 1e6, "beyond range_v"),
            (np.zeros(16384), 1e6, "has 1 to 16383 samples, not 16384"),
            (wave, 126e6, "exceed highest_sample_rate_hz"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                generator.load({1: volts}, rate)
        for inputs, rate, samples, said in (
            ([2], 1e6, 100, "has no input 2"),
            ([1], 126e6, 100, r"it takes 1.25e\+08 samples/s at most"),
            ([1], 1e6, 16385, "a record has at most 16384 samples, 16385 are needed"),
        ):
            with pytest.raises(ConfigurationError, match=said):
                digitizer.configure(inputs, external, rate, samples)
        assert repr((board.channels, board._set)) == before
        digitizer.configure([1], external, 1e6, 1000)
        digitizer.arm()
        with pytest.raises(DeviceFault, match=r"trigger not met within 0\.05 s"):
            digitizer.wait(0.05)
        # What the converter cannot reach is counted.
        generator.load({1: np.full(100, 1.0)}, 1e6)
        digitizer.configure([1], external, 1e6, 200)
        generator.arm()
        digitizer.arm()
        generator.trigger()
        digitizer.wait(1.0)
        assert digitizer.fetch()[1].clipped == 100


def test_an_upload_that_is_lost_does_not_play_the_waveform_before(board):
    lost = Struck(kind="ignored", instrument="generator", at="TRAC:DATA:DATA ", occurrence=2)
    faulty = FaultyInstrument(board, [lost])
    with SocketServer(faulty, terminator=b"\r\n") as address, connected(address) as (generator, _):
        generator.load({1: np.ones(100)}, 1e6)
        with pytest.raises(DeviceFault, match=r"DATA\? has 1 as sample 1, and -1 was sent"):
            generator.load({1: -np.ones(100)}, 1e6)


@pytest.mark.slow
def test_a_driver_that_nobody_here_wrote(tmp_path):
    with VirtualBench(WIRES) as bench, serving(RedPitaya(bench)) as address:
        run_witness("pymeasure_red_pitaya.py", address, tmp_path)
