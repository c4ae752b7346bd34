"""The emulated Keysight 33512B, and our driver on it."""

import contextlib
import math
import threading

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.keysight_33500 import Keysight33500Config
from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.servers.hislip import serving_hislip
from reservoir_hw.emulators.servers.socket import serving_socket

EIGHT = b"DATA:ARB:DAC r1,-8,-7,-6,-5,-4,-3,-2,32767"
LEVELS = "-1,-.5,0,.25,.5,.75,.875,1"
BURST = b"FUNC:ARB r1;:FUNC ARB;:BURS:NCYC 2;:BURS:STAT ON;:TRIG:SOUR BUS;:OUTP ON"


@pytest.fixture
def generator():
    with VirtualBench() as bench:
        yield Keysight33512B(bench)


def say(generator, *messages):
    """The answers, and after them the numbers of all errors."""
    answers = [a.decode() for m in messages if (a := generator.execute(m.encode() if isinstance(m, str) else m))]
    while (entry := generator.execute(b"SYST:ERR?").decode()) != '+0,"No error"':
        answers.append(int(entry.split(",")[0]))
    return answers


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["*IDN?"], ["Keysight Technologies,33512B,MY00000001,5.03-3.15-2.00-58-00"]),
        (["SOUR2:VOLT 0.5 VPP;:SOURce2:VOLTage?"], ["+5.000000000000000E-01"]),
        (["VOLT:HIGH 1;LOW -.5;:VOLT?;VOLT:OFFS?"], ["+1.500000000000000E+00;+2.500000000000000E-01"]),
        (["OUTP:LOAD INF;:OUTP:LOAD?;:VOLT?"], ["+9.9E+37;+2.000000000000000E-01"]),
        (["OUTP1:STAT ON;:OUTP?;:OUTP2?"], ["1;0"]),
        (["FREQ 2 MHZ;FREQ?;:FUNC RAMP;:FREQ?"], ["+2.000000000000000E+06;+2.000000000000000E+05", -221]),
        (["BURS:NCYC INF;:BURS:NCYC?;:TRIG:SOUR?"], ["+9.9E+37;BUS", -221]),
        (["TRIG1:SOUR BUS;:BURS:NCYC INF;:TRIG:SOUR IMM;:BURS:NCYC?"], ["+1.000000000000000E+00", -221]),
        (["TRIG:SOUR BUS;*TRG;*WAI;*OPC?"], ["1", -211]),
        (["BURS:STAT ON;:TRIG:SOUR EXT;*TRG"], [-211]),
        (["BURS:STAT ON;:TRIG:SOUR EXT;:TRIG;*OPC?"], ["1"]),
        # Arbitrary waveforms.
        ([EIGHT, "DATA:VOL:CAT?;FREE?"], [r'"INT:\BUILTIN\EXP_RISE.ARB","R1";+1048568']),
        (
            [EIGHT, "FUNC:ARB R1;ARB?;ARB:POIN?;SRAT 1E3;FREQ?;PER 1;SRAT?"],
            ['"R1";8;+1.250000000000000E+02;+8.000000000000000E+00'],
        ),
        ([EIGHT, EIGHT], [786]),
        ([EIGHT, "DATA:VOL:CLE", EIGHT], []),
        ([EIGHT, "FUNC:ARB r1;:DATA:VOL:CLE;:FUNC:ARB?"], [r'"INT:\BUILTIN\EXP_RISE.ARB"']),
        ([EIGHT, "SOUR2:FUNC:ARB r1"], [785]),
        ([f"DATA:ARB twelve_chars,{LEVELS};:DATA:ARB thirteen_char,{LEVELS}"], [783]),
        (["DATA:ARB:DAC a,1,2,3,4,5,6,7"], [-220]),
        (["DATA:ARB:DAC a,1,2,3,4,5,6,7,32768"], [-222]),
        (["DATA:ARB a,1,0,0,0,0,0,0,1.01"], [-222]),
        ([b"DATA:ARB:DAC a,#216" + bytes(14) + b"\x80\x00"], [-222]),
        ([b"DATA:ARB:DAC a,#217" + bytes(17)], [800]),
        ([b"DATA:ARB a,#234" + bytes(34)], [-161]),
        ([b"DATA:ARB a,#232" + b"\x7f\xc0\x00\x00" * 8], [-222]),
        ([b"DATA:ARB:DAC a,#72097154" + bytes(2_097_154)], [781]),
        ([b"DATA:ARB:DAC a,#72097152" + bytes(2_097_152), EIGHT, "DATA:VOL:FREE?"], ["+0", 781]),
        (["DATA:ARB2:DAC a,1,2,3,4,5,6,7,8"], [-114]),
        # Limits: the value is set to the nearest that is possible.
        (["VOLT 11;VOLT?"], ["+1.000000000000000E+01", -222]),
        (["OUTP:LOAD INF;:VOLT 11;VOLT?;VOLT? MAX"], ["+1.100000000000000E+01;+2.000000000000000E+01"]),
        (["VOLT 1;VOLT:OFFS 4.6;OFFS?"], ["+4.500000000000000E+00", -222]),
        (["VOLT:OFFS 4;:VOLT 4;VOLT:OFFS?"], ["+3.000000000000000E+00", -221]),
        (["VOLT:HIGH -1;:VOLT:LOW?"], ["-1.001000000000000E+00", -221]),
        (["FUNC:ARB:SRAT 251 MSA/S;SRAT?"], ["+2.500000000000000E+08", -222]),
        (["FUNC:ARB:SRAT 1E8;FILT OFF;SRAT?"], ["+6.250000000000000E+07", -221]),
        (["OUTP:LOAD 20000"], [-222]),
        (["FUNC NOIS"], [-224]),
        (["VOLT:UNIT DBM"], [-224]),
        (["OUTP3 ON"], [-114]),
        (["FORM:BORD SWAP;BORD?"], ["SWAP"]),
    ],
)
def test_what_is_accepted_and_refused(generator, messages, expected):
    assert say(generator, *messages) == expected


def test_bursts_and_what_is_played_without_end(generator):
    events = generator.bench.log.events
    say(generator, EIGHT, BURST.replace(b":OUTP ON", b":OUTP OFF"), "*TRG;*OPC?")
    assert events == [], "an output that is off plays nothing"
    assert say(generator, "VOLT 2;VOLT:OFFS 1;:OUTP ON;*TRG;*OPC?") == ["1"]
    assert [event["event"] for event in events] == ["on", "burst begins", "burst ends"]
    assert events[0]["volts"] == pytest.approx(1 - 8 / 32767), "it rests at its first sample"
    assert events[1]["high_v"] == pytest.approx(2.0)
    assert events[2]["time_s"] - events[1]["time_s"] == pytest.approx(2 * 8 / 40e3)
    events.clear()

    assert say(generator, "BURS:NCYC INF;*TRG;*TRG") == [-211]
    # *OPC? waits as long as it plays; who clears the instrument gets no answer.
    gone = threading.Event()
    threading.Timer(0.05, gone.set).start()
    assert generator.execute(b"*OPC?", gone.is_set) == b""
    assert [event["event"] for event in events] == ["burst begins"]
    assert say(generator, "ABOR;*OPC?") == ["1"]
    assert [event["event"] for event in events] == ["burst begins", "burst ends"]

    generator.execute(b"*RST")
    events.clear()
    say(generator, "OUTP ON;:FUNC SQU;:BURS:STAT ON;:TRIG:SOUR BUS;:OUTP OFF")
    begun = [event["channel"] for event in events if event["event"] == "burst begins"]
    assert len(begun) == len([event for event in events if event["event"] == "burst ends"]) == 3
    say(generator, "FUNC DC;:VOLT:OFFS 2;:OUTP ON")
    assert events[-1]["event"] == "on"
    assert events[-1]["volts"] == 2.0


def test_text_and_blocks_leave_the_same_samples(generator):
    counts = np.random.default_rng(1).integers(-32767, 32768, 1000)
    levels = (counts / 32767).astype("f4")
    for name, message in {
        "text": b"DATA:ARB:DAC text, " + ", ".join(map(str, counts)).encode(),
        "normal": b"DATA:ARB:DAC normal,#42000" + counts.astype(">i2").tobytes(),
        "swapped": b"FORM:BORD SWAP;:DATA:ARB:DAC swapped,#42000" + counts.astype("<i2").tobytes(),
        "levels": b"DATA:ARB levels,#44000" + levels.astype("<f4").tobytes(),
        "level_text": b"DATA:ARB level_text," + ",".join(map(str, levels)).encode(),
    }.items():
        assert say(generator, message) == []
        np.testing.assert_array_equal(generator.memories[1][name], counts)


@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_our_driver_plays_what_it_was_given(generator, serving):
    low, high, safe, rate = -0.5, 2.5, 0.3, 1e6
    outputs = {1: {"range_v": (low, high), "safe_v": safe}, 2: {"range_v": (-1.0, 1.0), "load_ohm": 50.0}}
    random = np.random.default_rng(2)
    volts = {1: random.uniform(low, high, 20_000), 2: random.uniform(-1, 1, 20_000)}
    # What somebody left behind must not be in the way.
    say(generator, "VOLT 1;VOLT:OFFS 4.5;:OUTP ON;:SOUR2:BURS:STAT ON;:FOO", *[EIGHT] * 2)
    with serving(generator) as address:
        config = Keysight33500Config.model_validate({"kind": "keysight_33500", "address": address, "outputs": outputs})
        with config.build() as driver:
            assert driver.load(volts, rate) == rate
            driver.arm()
            generator.bench.log.events.clear()
            driver.trigger()
            driver.finish("the burst", 5.0)
            begun = [event for event in generator.bench.log.events if event["event"] == "burst begins"]
            assert [event["channel"] for event in begun] == [1, 2]
            assert begun[0]["time_s"] == begun[1]["time_s"]
            for number, expected, range_v, rest in ((1, volts[1], high - low, safe), (2, volts[2], 2.0, 0.0)):
                output = generator.bench.output(number)
                half_a_step = range_v / 65534 / 2 * (1 + 1e-9)
                assert output.on
                assert output.load_ohm == (None if number == 1 else 50.0)
                assert abs(output.rest_v - rest) <= half_a_step
                assert output.waveform is not None
                assert (output.waveform.rate_hz, output.waveform.cycles) == (rate, 1)
                assert abs(output.waveform.volts[0] - rest) <= half_a_step
                np.testing.assert_allclose(output.waveform.volts[1:], expected, rtol=0, atol=half_a_step)
            # The next waveform is for one output only; the other one stays silent.
            driver.load({1: volts[1][:7]}, 250e6)
            driver.arm()
            generator.bench.log.events.clear()
            driver.trigger()
            assert {event["channel"] for event in generator.bench.log.events} == {1}
            driver.stop()
            assert generator.bench.log.events[-1]["event"] == "off"
            assert not any(generator.bench.output(number).on for number in (1, 2))
            driver.check_errors()


def test_our_driver_refuses_before_it_sends_and_tells_every_fault(generator):
    def config(address, **output):
        outputs = {1: {"range_v": (-1.0, 1.0), **output}}
        return Keysight33500Config.model_validate(
            {"kind": "keysight_33500", "address": address, "outputs": outputs, "memory_samples": 2_000_000}
        )

    for output, problem in (
        ({"range_v": (-6.0, 1.0), "load_ohm": 50.0}, "reaches ±5 V at 50 ohm"),
        ({"range_v": (-11.0, 1.0)}, "reaches ±10 V at inf ohm"),
        ({"range_v": (0.0, 1e-3)}, "smallest range"),
        ({"load_ohm": 20e3}, "must be 1 to 10000"),
    ):
        with pytest.raises(ValueError, match=problem):
            config("TCPIP::127.0.0.1::1::SOCKET", **output)

    wave = np.zeros(100)
    with serving_socket(generator) as address, config(address).build() as driver:
        channel = repr(generator.channels[1])
        for volts, rate, problem in (
            (wave + 1.01, 1e6, "beyond range_v"),
            (wave * math.nan, 1e6, "not finite"),
            (wave[:6], 1e6, "has 7 to 1999999 samples, not 6"),
            (wave, 251e6, "exceed highest_sample_rate_hz"),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                driver.load({1: volts}, rate)
        assert repr(generator.channels[1]) == channel
        assert generator.memories[1].names == [r"INT:\BUILTIN\EXP_RISE.ARB"]
        # This instrument has less memory than its configuration says.
        with pytest.raises(DeviceFault, match=r"\+781"):
            driver.load({1: np.zeros(1_048_576)}, 1e6)
        with pytest.raises(DeviceFault, match="Trigger ignored"):
            driver.trigger()
        driver.load({1: wave}, 1e6)
        generator.execute(b"BURS:STAT OFF")
        with pytest.raises(DeviceFault, match="Trigger ignored"):
            driver.trigger()
        driver.stop()
        assert not generator.bench.output(1).on


@pytest.mark.slow
@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
@pytest.mark.parametrize("witness", ["pymeasure_33500.py", "qcodes_33512b.py"])
def test_drivers_that_nobody_here_wrote(generator, serving, witness, tmp_path):
    with serving(generator) as address:
        run_witness(witness, address, tmp_path)
        events = [event["event"] for event in generator.bench.log.events]
        if witness == "qcodes_33512b.py":
            assert events == ["on", "burst begins", "burst ends", "level", "off"]
            return
        assert events == ["on", "burst begins", "burst ends", "burst begins", "burst ends", "off"]
        # Our binary upload leaves the samples that their text left. At ±1 V, full scale is one volt.
        theirs = generator.memories[1]["WITNESS"]
        outputs = {1: {"range_v": (-1.0, 1.0), "safe_v": theirs[0] / 32767}}
        ours = Keysight33500Config.model_validate({"kind": "keysight_33500", "address": address, "outputs": outputs})
        with contextlib.closing(ours.build().open()) as driver:
            driver.load({1: theirs[1:] / 32767}, 1e6)
        np.testing.assert_array_equal(generator.memories[1]["RHW1"], theirs)
