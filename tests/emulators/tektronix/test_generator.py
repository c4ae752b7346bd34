"""The emulated Tektronix AFG3152C, and our driver on it."""

import math

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.tektronix_afg3000 import TektronixAfg3000Config
from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.faults import FaultyInstrument, Ignored
from reservoir_hw.emulators.servers.hislip import serving_hislip
from reservoir_hw.emulators.servers.socket import serving_socket
from reservoir_hw.emulators.tektronix.generator import Afg3152C

FOUR = b"DATA EMEM,#18\x00\x00\x1f\xff\x3f\xfe\x00\x01"
BURST = "FUNC EMEM;:FREQ 1E5;:BURS:NCYC 2;:BURS:STAT ON;:TRIG:SOUR EXT;:OUTP ON"


@pytest.fixture
def generator():
    with VirtualBench() as bench:
        yield Afg3152C(bench)


def say(generator, *messages):
    """The answers, and after them the numbers of all errors."""
    answers = [a.decode() for m in messages if (a := generator.execute(m.encode() if isinstance(m, str) else m))]
    while (entry := generator.execute(b"SYST:ERR?").decode()) != '0,"No error"':
        answers.append(int(entry.split(",")[0]))
    return answers


def numbers(text):
    return [float(part) for part in text.split(";")]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (["*IDN?"], ["TEKTRONIX,AFG3152C,C000001,SCPI:99.0 FV:3.2.3"]),
        (["source1:voltage:amplitude 1.5e+00VPP;:OUTP1:STAT?;:OUTP2:IMP INF;IMP?"], ["0;9.9E+37"]),
        (["FUNC?;:FUNC:SHAP RAMP;SHAP?;:BURS:MODE?;:TRIG:SEQ:SOUR?;:OUTP:POL INV;POL?"], ["SIN;RAMP;TRIG;TIM;INV"]),
        # Memory: four counts, of which bytes come the most significant first.
        ([FOUR, "DATA:POIN? EMEM;VAL? EMEM,2;VAL? EMEM,4"], ["4;8191;1"]),
        ([FOUR, "TRAC:DATA:VAL EMEM,1,16382;:DATA:DATA:VAL? EMEM,1;VAL? EMEM,5"], ["16382", -222]),
        ([FOUR, "DATA:POIN EMEM,6;VAL? EMEM,3;VAL? EMEM,6;:DATA:DEF EMEM;POIN? EMEM"], ["16382;8191;1000"]),
        ([FOUR, "DATA:COPY USER2,EMEM;CAT?;DEF EMEM,2;COPY EMEM,USER2;POIN? EMEM"], ['"USER2","EMEM";4']),
        ([FOUR, "DATA:COPY USER,EMEM;:FUNC USER1;:DATA:DEL USER1;:FUNC SIN;:DATA:DEL USER1;CAT?"], ['"EMEM"', -221]),
        (["FUNC USER3;FUNC?;:DATA:COPY EMEM,USER3;COPY USER1,USER2;DEL USER4"], ["SIN", -220, -220, -224, -220]),
        ([b"DATA EMEM,#14\x00\x00\x3f\xff", b"DATA EMEM,#13abc", b"DATA EMEM,#12\x00\x00"], [-222, -161, -220]),
        ([b"DATA EMEM,#6262144" + bytes(262_144), "DATA:POIN? EMEM"], ["131072"]),
        ([b"DATA EMEM,#6262146" + bytes(262_146), "DATA:POIN? EMEM"], ["1000", -223]),
        (["DATA EMEM,1,2,3", "DATA EMEM2,#12ab"], [-104, -224]),
        # Triggers.
        (["*TRG;*OPC?", "BURS:STAT ON;:TRIG;*OPC?"], ["1", "1", -211]),
        (["FUNC DC;:BURS:STAT ON;*TRG"], [-211]),
        # Beyond a limit nothing changes.
        (["VOLT 11", "VOLT .019", "VOLT:OFFS 4.6", "VOLT:HIGH 5.1", "VOLT:HIGH -.5"], [-222] * 5),
        (["FREQ 151 MHZ", "FUNC SQU;:FREQ 1E-4", "BURS:NCYC 1000001", "OUTP:IMP 20000", "BURS:TDEL 1"], [-222] * 5),
        (["FUNC PULS", "VOLT:UNIT DBM", "OUTP3 ON", "SOUR1:OUTP:IMP?", "FREQ:SRAT 1"], [-224, -224, -114, -113, -113]),
    ],
)
def test_what_is_accepted_and_refused(generator, messages, expected):
    assert say(generator, *messages) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("FREQ 123456.78901234;FREQ:FIX?;:FUNC RAMP;:FREQ 1MHZ;:FUNC SIN;:FREQ?", [123456.789012, 1e6]),
        ("FREQ 140 MHZ;:FUNC RAMP;:FREQ?;:FUNC EMEM;:FREQ 1e-3;FREQ?", [1.5e6, 1e-3]),
        ("VOLT 1.23456;VOLT?;:VOLT .123456;VOLT?;:VOLT:OFFS .1234;OFFS?", [1.235, 0.1235, 0.123]),
        ("VOLT:HIGH 2.0004;LOW -1;:VOLT?;:VOLT:OFFS?;HIGH?;LOW?", [3.0, 0.5, 2.0, -1.0]),
        ("OUTP:IMP INF;:VOLT?;:VOLT:OFFS 1;:OUTP:IMP 50;:VOLT?;:VOLT:OFFS?", [2.0, 1.0, 0.5]),
        ("BURS:NCYC INF;:BURS:NCYC?;*RST;:BURS:NCYC?;:FREQ?;:VOLT?;:PHAS?", [9.9e37, 5.0, 1e6, 1.0, 0.0]),
    ],
)
def test_what_is_rounded_and_adjusted(generator, message, expected):
    (answer,) = say(generator, message)
    assert numbers(answer) == pytest.approx(expected, rel=1e-13, abs=1e-13)


def test_what_it_plays(generator):
    events, volts = generator.bench.log.events, lambda: generator.bench.output(1).waveform.volts
    assert say(generator, FOUR, BURST, "VOLT 2;VOLT:OFFS 0.5;*TRG;*OPC?") == ["1"]
    begun = [event for event in events if event["event"] == "burst begins"][-1]
    assert (begun["samples"], begun["rate_hz"], begun["cycles"]) == (4, 4e5, 2)
    np.testing.assert_allclose(volts(), [-0.5, 0.5, 1.5, -0.5 + 1 / 8191], atol=1e-12)
    assert generator.bench.output(1).rest_v == -0.5
    say(generator, "OUTP:POL INV;:PHAS 1.5707963")
    np.testing.assert_allclose(volts(), [0.5, -0.5, 1.5 - 1 / 8191, 1.5], atol=1e-12)
    # The edit memory changes while it is played; 100,000 points at 10 kHz would be 1 GSa/s.
    ramp = (np.arange(100_000) % 16383).astype(">u2")
    assert say(generator, "*RST", b"DATA EMEM,#6200000" + ramp.tobytes(), "FREQ 1E4", BURST, "FREQ 1E4") == []
    assert (len(volts()), generator.bench.output(1).waveform.rate_hz) == (25_000, 250e6)
    np.testing.assert_allclose(volts(), (ramp[::4].astype(float) - 8191) / 8191 / 2)
    say(generator, FOUR)
    assert len(volts()) == 4

    say(generator, "*RST")
    events.clear()
    assert say(generator, "BURS:STAT ON;NCYC INF;:TRIG:SOUR EXT;:OUTP ON;:TRIG;*TRG;:ABOR;:TRIG:SOUR TIM") == [-211]
    kinds = ["on", "burst begins", "burst ends", "burst begins"]
    assert [event["event"] for event in events] == kinds, "the timer triggers by itself"


@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_our_driver_plays_what_it_was_given(generator, serving):
    low, high, safe, rate = -0.5001, 2.5, 0.3, 1e6
    outputs = {1: {"range_v": (low, high), "safe_v": safe}, 2: {"range_v": (-1.0, 1.0), "load_ohm": 50.0}}
    random = np.random.default_rng(2)
    volts = {1: random.uniform(low, high, 20_000), 2: random.uniform(-1, 1, 20_000)}
    volts[1][:2] = low, high
    # What somebody left behind must not be in the way.
    say(generator, "FREQ 1E3;:VOLT .1;:VOLT:OFFS 4.9;:OUTP ON;:OUTP:POL INV;:PHAS 1;:SOUR2:BURS:NCYC 9")
    generator.execute(b"FOO")
    with serving(generator) as address:
        config = TektronixAfg3000Config.model_validate(
            {"kind": "tektronix_afg3000", "address": address, "outputs": outputs}
        )
        with config.build() as driver:
            # The frequency has a resolution of 1 µHz.
            assert driver.load(volts, rate) == 49.9975 * 20_001
            assert generator.memory.names == ["USER1", "EMEM"]
            driver.arm()
            generator.bench.log.events.clear()
            driver.trigger()
            driver.finish("the burst", 5.0)
            begun = [event for event in generator.bench.log.events if event["event"] == "burst begins"]
            assert [event["channel"] for event in begun] == [1, 2]
            assert begun[0]["time_s"] == begun[1]["time_s"]
            # 3.0002 V become 3.001 V.
            for number, amplitude, rest in ((1, 3.001, safe), (2, 2.0, 0.0)):
                output = generator.bench.output(number)
                half_a_step = amplitude / 16382 / 2 * (1 + 1e-9)
                assert output.on
                assert output.load_ohm == (None if number == 1 else 50.0)
                assert abs(output.rest_v - rest) <= half_a_step
                assert output.waveform is not None
                assert output.waveform.cycles == 1
                assert output.waveform.rate_hz == pytest.approx(49.9975 * 20_001)
                assert abs(output.waveform.volts[0] - rest) <= half_a_step
                np.testing.assert_allclose(output.waveform.volts[1:], volts[number], rtol=0, atol=half_a_step)
            # The next waveform is for one output only: the other one stays silent, and no user memory is written.
            stored = generator.memory["USER1"].copy()
            driver.load({1: volts[1][:7]}, 250e6)
            driver.arm()
            generator.bench.log.events.clear()
            driver.trigger()
            assert {event["channel"] for event in generator.bench.log.events} == {1}
            np.testing.assert_array_equal(generator.memory["USER1"], stored)
            driver.stop()
            assert generator.bench.log.events[-1]["event"] == "off"
            assert not any(generator.bench.output(number).on for number in (1, 2))
            driver.check_errors()


def test_our_driver_refuses_before_it_sends_and_tells_every_fault(generator):
    def config(address, **output):
        outputs = {1: {"range_v": (-1.0, 1.0), **output}}
        return TektronixAfg3000Config.model_validate(
            {"kind": "tektronix_afg3000", "address": address, "outputs": outputs, "memory_samples": 200_000}
        )

    for output, problem in (
        ({"range_v": (-6.0, 1.0), "load_ohm": 50.0}, "reaches ±5 V at 50 ohm"),
        ({"range_v": (0.0, 1e-2)}, "smallest range of the instrument is 0.02 V"),
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
            (wave[:1], 1e6, "has 2 to 199999 samples, not 1"),
            (wave, 251e6, "exceed highest_sample_rate_hz"),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                driver.load({1: volts}, rate)
        assert repr(generator.channels[1]) == channel
        assert len(generator.memory["EMEM"]) == 1000, "nothing was sent"
        driver.load({1: wave}, 1e6)
        # This instrument has less memory than its configuration says, and less range; and it is not so slow.
        with pytest.raises(DeviceFault, match='-223,"Too much data'):
            driver.load({1: np.zeros(131_072)}, 1e6)
        with pytest.raises(DeviceFault, match="-222"):
            driver.load({1: wave}, 1e-3)
        with config(address, range_v=(0.0, 0.03)).build() as other, pytest.raises(DeviceFault, match="-222"):
            other.load({1: wave}, 1e6)
        # What was refused is not switched on.
        driver.arm()
        assert not generator.bench.output(1).on
        driver.load({1: wave}, 1e6)
        generator.execute(b"BURS:STAT OFF;:SOUR2:BURS:STAT OFF")
        with pytest.raises(DeviceFault, match="Trigger ignored"):
            driver.trigger()
        driver.arm()
        assert generator.bench.output(1).on
        driver.stop()
        assert not generator.bench.output(1).on


def test_an_upload_that_is_lost_does_not_play_the_waveform_before(generator):
    lost = Ignored(kind="ignored", instrument="generator", at="DATA:DATA EMEM", occurrence=2)
    outputs = {1: {"range_v": (-1.0, 1.0)}}
    with serving_socket(FaultyInstrument(generator, [lost])) as address:
        config = {"kind": "tektronix_afg3000", "address": address, "outputs": outputs}
        with TektronixAfg3000Config.model_validate(config).build() as driver:
            driver.load({1: np.ones(100)}, 1e6)
            with pytest.raises(DeviceFault, match=r"DATA:POIN\? EMEM says 2, and 101 was set"):
                driver.load({1: -np.ones(100)}, 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_a_driver_that_nobody_here_wrote(generator, serving, tmp_path):
    with serving(generator) as address:
        run_witness("pymeasure_afg3152c.py", address, tmp_path)
    events = generator.bench.log.events
    assert [event["event"] for event in events] == ["on", "burst begins", "burst ends", "off"]
    # A sine of 1 V from peak to peak around -0.5 V.
    assert (events[1]["low_v"], events[1]["high_v"]) == pytest.approx((-1.0, 0.0), abs=1e-9)
