"""The emulated Keysight 33512B and Tektronix AFG3152C by their languages, and our drivers on them."""

import contextlib
import math
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.keysight import Keysight33500Config
from reservoir_hw.drivers.visa.tektronix import TektronixAfg3000Config
from reservoir_hw.emulators.bench import VirtualBench
from reservoir_hw.emulators.faults import FaultyInstrument, Struck
from reservoir_hw.emulators.keysight.generator import Keysight33512B
from reservoir_hw.emulators.servers import HislipServer, SocketServer
from reservoir_hw.emulators.tektronix.generator import Afg3152C

EIGHT = b"DATA:ARB:DAC r1,-8,-7,-6,-5,-4,-3,-2,32767"
LEVELS = "-1,-.5,0,.25,.5,.75,.875,1"
FOUR = b"DATA EMEM,#18\x00\x00\x1f\xff\x3f\xfe\x00\x01"
BURST = b"FUNC:ARB r1;:FUNC ARB;:BURS:NCYC 2;:BURS:STAT ON;:TRIG:SOUR BUS;:OUTP ON"
BURST_OF_FOUR = "FUNC EMEM;:FREQ 1E5;:BURS:NCYC 2;:BURS:STAT ON;:TRIG:SOUR EXT;:OUTP ON"

KEYSIGHT = [
    (["*IDN?"], ["Keysight Technologies,33512B,MY00000001,5.03-3.15-2.00-58-00"]),
    (["VOLT:HIGH 1;LOW -.5;:VOLT?;VOLT:OFFS?"], ["+1.500000000000000E+00;+2.500000000000000E-01"]),
    (["OUTP:LOAD INF;:OUTP:LOAD?;:VOLT?"], ["+9.9E+37;+2.000000000000000E-01"]),
    (["FREQ 2 MHZ;FREQ?;:FUNC RAMP;:FREQ?"], ["+2.000000000000000E+06;+2.000000000000000E+05", -221]),
    (["BURS:NCYC INF;:BURS:NCYC?;:TRIG:SOUR?"], ["+9.9E+37;BUS", -221]),
    (["TRIG1:SOUR BUS;:BURS:NCYC INF;:TRIG:SOUR IMM;:BURS:NCYC?"], ["+1.000000000000000E+00", -221]),
    (["TRIG:SOUR BUS;*TRG;*WAI;*OPC?"], ["1", -211]),
    (["BURS:STAT ON;:TRIG:SOUR EXT;:TRIG;*OPC?"], ["1"]),
    # Arbitrary waveforms.
    ([EIGHT, "DATA:VOL:CAT?;FREE?"], [r'"INT:\BUILTIN\EXP_RISE.ARB","R1";+1048568']),
    (
        [EIGHT, "FUNC:ARB R1;ARB?;ARB:POIN?;SRAT 1E3;FREQ?;PER 1;SRAT?"],
        ['"R1";8;+1.250000000000000E+02;+8.000000000000000E+00'],
    ),
    ([EIGHT, "DATA:VOL:CLE", EIGHT], []),
    ([EIGHT, "FUNC:ARB r1;:DATA:VOL:CLE;:FUNC:ARB?"], [r'"INT:\BUILTIN\EXP_RISE.ARB"']),
    ([f"DATA:ARB twelve_chars,{LEVELS};:DATA:ARB thirteen_char,{LEVELS}"], [783]),
    (["DATA:ARB:DAC a,1,2,3,4,5,6,7"], [-220]),
    (["DATA:ARB a,1,0,0,0,0,0,0,1.01"], [-222]),
    ([b"DATA:ARB:DAC a,#216" + bytes(14) + b"\x80\x00"], [-222]),
    ([b"DATA:ARB:DAC a,#217" + bytes(17)], [800]),
    ([b"DATA:ARB a,#232" + b"\x7f\xc0\x00\x00" * 8], [-222]),
    ([b"DATA:ARB:DAC a,#72097154" + bytes(2_097_154)], [781]),
    ([b"DATA:ARB:DAC a,#72097152" + bytes(2_097_152), EIGHT, "DATA:VOL:FREE?"], ["+0", 781]),
    # Limits: the value is set to the nearest that is possible.
    (["VOLT 11;VOLT?"], ["+1.000000000000000E+01", -222]),
    (["OUTP:LOAD INF;:VOLT 11;VOLT?;VOLT? MAX"], ["+1.100000000000000E+01;+2.000000000000000E+01"]),
    (["VOLT 1;VOLT:OFFS 4.6;OFFS?"], ["+4.500000000000000E+00", -222]),
    (["VOLT:OFFS 4;:VOLT 4;VOLT:OFFS?"], ["+3.000000000000000E+00", -221]),
    (["VOLT:HIGH -1;:VOLT:LOW?"], ["-1.001000000000000E+00", -221]),
    (["FUNC:ARB:SRAT 1E8;FILT OFF;SRAT?"], ["+6.250000000000000E+07", -221]),
    (["OUTP:LOAD 20000"], [-222]),
    (["OUTP ON;:FREQ 0;FREQ?"], ["+1.000000000000000E-06", -222]),
]
TEKTRONIX = [
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
]


class Brand(NamedTuple):
    """An instrument, its driver, and how the two differ from the others."""

    instrument: type[Any]
    config: type[Any]
    memory: int
    """Samples that its configuration may promise; it has fewer."""
    fewest: int
    full_scale: dict[int, float]
    """For each output of the test, volts between the ends of the converter."""
    codes: int
    rate: float
    """What becomes of 1 MS/s."""
    left_behind: tuple[Any, ...]
    refused: tuple[tuple[dict[str, Any], str], ...]
    too_much: str

    def driver(self, address: str, outputs: dict[int, Any], **more: Any) -> Any:
        (kind,) = self.config.model_fields["kind"].annotation.__args__
        return self.config.model_validate({"kind": kind, "address": address, "outputs": outputs, **more})


BRANDS = {
    "keysight": Brand(
        Keysight33512B, Keysight33500Config, 2_000_000, 7, {1: 3.0002, 2: 2.0}, 65534, 1e6,
        ("VOLT 1;VOLT:OFFS 4.5;:OUTP ON;:SOUR2:BURS:STAT ON;:FOO", EIGHT, EIGHT),
        (({"range_v": (-11.0, 1.0)}, "reaches ±10 V at inf ohm"), ({"range_v": (0.0, 1e-3)}, "smallest range")),
        r"\+781",
    ),
    "tektronix": Brand(
        # The frequency has a resolution of 1 µHz, the amplitude one of 1 mV.
        Afg3152C, TektronixAfg3000Config, 200_000, 2, {1: 3.001, 2: 2.0}, 16382, 49.9975 * 20_001,
        ("FREQ 1E3;:VOLT .1;:VOLT:OFFS 4.9;:OUTP ON;:OUTP:POL INV;:PHAS 1;:SOUR2:BURS:NCYC 9", "FOO"),
        (({"range_v": (0.0, 1e-2)}, "smallest range of the instrument is 0.02 V"),),
        '-223,"Too much data',
    ),
}  # fmt: skip


@pytest.fixture(params=BRANDS)
def brand(request):
    return BRANDS[request.param]


@pytest.fixture
def generator(brand):
    with VirtualBench() as bench:
        yield brand.instrument(bench)


def say(generator, *messages):
    """The answers, and after them the numbers of all errors."""
    answers = [a.decode() for m in messages if (a := generator.execute(m.encode() if isinstance(m, str) else m))]
    while code := int(generator.execute(b"SYST:ERR?").split(b",")[0]):
        answers.append(code)
    return answers


@pytest.mark.parametrize(
    ("instrument", "messages", "expected"),
    [(Keysight33512B, *row) for row in KEYSIGHT] + [(Afg3152C, *row) for row in TEKTRONIX],
)
def test_what_is_accepted_and_refused(instrument, messages, expected):
    with VirtualBench() as bench:
        assert say(instrument(bench), *messages) == expected


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
def test_what_is_rounded_and_adjusted(message, expected):
    (answer,) = say(Afg3152C(VirtualBench()), message)
    assert [float(part) for part in answer.split(";")] == pytest.approx(expected, rel=1e-13, abs=1e-13)


def test_bursts_and_what_is_played_without_end():
    generator = Keysight33512B(VirtualBench())
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


def test_text_and_blocks_leave_the_same_samples():
    generator = Keysight33512B(VirtualBench())
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


def test_what_tektronix_plays():
    generator: Any = Afg3152C(VirtualBench())
    events, volts = generator.bench.log.events, lambda: generator.bench.output(1).waveform.volts
    assert say(generator, FOUR, BURST_OF_FOUR, "VOLT 2;VOLT:OFFS 0.5;*TRG;*OPC?") == ["1"]
    begun = [event for event in events if event["event"] == "burst begins"][-1]
    assert (begun["samples"], begun["rate_hz"], begun["cycles"]) == (4, 4e5, 2)
    np.testing.assert_allclose(volts(), [-0.5, 0.5, 1.5, -0.5 + 1 / 8191], atol=1e-12)
    assert generator.bench.output(1).rest_v == -0.5
    say(generator, "OUTP:POL INV;:PHAS 1.5707963")
    np.testing.assert_allclose(volts(), [0.5, -0.5, 1.5 - 1 / 8191, 1.5], atol=1e-12)
    # The edit memory changes while it is played; 100,000 points at 10 kHz would be 1 GSa/s.
    ramp = (np.arange(100_000) % 16383).astype(">u2")
    assert say(generator, "*RST", b"DATA EMEM,#6200000" + ramp.tobytes(), "FREQ 1E4", BURST_OF_FOUR, "FREQ 1E4") == []
    assert (len(volts()), generator.bench.output(1).waveform.rate_hz) == (25_000, 250e6)
    np.testing.assert_allclose(volts(), (ramp[::4].astype(float) - 8191) / 8191 / 2)
    say(generator, FOUR)
    assert len(volts()) == 4

    say(generator, "*RST")
    events.clear()
    assert say(generator, "BURS:STAT ON;NCYC INF;:TRIG:SOUR EXT;:OUTP ON;:TRIG;*TRG;:ABOR;:TRIG:SOUR TIM") == [-211]
    kinds = ["on", "burst begins", "burst ends", "burst begins"]
    assert [event["event"] for event in events] == kinds, "the timer triggers by itself"


@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
def test_our_driver_plays_what_it_was_given(brand, generator, serving):
    low, high, safe = -0.5001, 2.5, 0.3
    outputs = {1: {"range_v": (low, high), "safe_v": safe}, 2: {"range_v": (-1.0, 1.0), "load_ohm": 50.0}}
    random = np.random.default_rng(2)
    volts = {1: random.uniform(low, high, 20_000), 2: random.uniform(-1, 1, 20_000)}
    volts[1][:2] = low, high
    # What somebody left behind must not be in the way.
    say(generator, *brand.left_behind)
    generator.execute(b"FOO")
    bench = generator.bench
    with serving(generator) as address, brand.driver(address, outputs).build() as driver:
        assert driver.load(volts, 1e6) == brand.rate
        driver.arm()
        bench.log.events.clear()
        driver.trigger()
        driver.finish("the burst", 5.0)
        begun = [event for event in bench.log.events if event["event"] == "burst begins"]
        assert [event["channel"] for event in begun] == [1, 2]
        assert begun[0]["time_s"] == begun[1]["time_s"]
        for number, rest in ((1, safe), (2, 0.0)):
            output = bench.output(number)
            half_a_step = brand.full_scale[number] / brand.codes / 2 * (1 + 1e-9)
            assert (output.on, output.load_ohm) == (True, None if number == 1 else 50.0)
            assert abs(output.rest_v - rest) <= half_a_step
            assert (output.waveform.rate_hz, output.waveform.cycles) == (pytest.approx(brand.rate), 1)
            assert abs(output.waveform.volts[0] - rest) <= half_a_step
            np.testing.assert_allclose(output.waveform.volts[1:], volts[number], rtol=0, atol=half_a_step)
        # The next waveform is for one output only; the other one stays silent.
        driver.load({1: volts[1][:7]}, 250e6)
        driver.arm()
        bench.log.events.clear()
        driver.trigger()
        assert {event["channel"] for event in bench.log.events} == {1}
        driver.stop()
        assert bench.log.events[-1]["event"] == "off"
        assert not any(bench.output(number).on for number in (1, 2))
        driver.check_errors()


def test_our_driver_refuses_before_it_sends_and_tells_every_fault(brand, generator):
    def config(address, **output):
        return brand.driver(address, {1: {"range_v": (-1.0, 1.0), **output}}, memory_samples=brand.memory)

    for output, problem in (
        ({"range_v": (-6.0, 1.0), "load_ohm": 50.0}, "reaches ±5 V at 50 ohm"),
        ({"load_ohm": 20e3}, "must be 1 to 10000"),
        *brand.refused,
    ):
        with pytest.raises(ValueError, match=problem):
            config("TCPIP::127.0.0.1::1::SOCKET", **output)
    wave, bench = np.zeros(100), generator.bench
    with SocketServer(generator) as address, config(address).build() as driver:
        before = repr(generator.channels[1])
        for volts, rate, problem in (
            (wave + 1.01, 1e6, "beyond range_v"),
            (wave * math.nan, 1e6, "not finite"),
            (wave[: brand.fewest - 1], 1e6, f"has {brand.fewest} to {brand.memory - 1} samples, not"),
            (wave, 251e6, "exceed highest_sample_rate_hz"),
        ):
            with pytest.raises(ConfigurationError, match=problem):
                driver.load({1: volts}, rate)
        assert repr(generator.channels[1]) == before, "something was sent"
        # This instrument has less memory than its configuration says. What was refused is not switched on.
        with pytest.raises(DeviceFault, match=brand.too_much):
            driver.load({1: np.zeros(brand.memory * 2 // 3)}, 1e6)
        if brand.instrument is Afg3152C:
            driver.arm()
            assert not bench.output(1).on
        driver.load({1: wave}, 1e6)
        generator.execute(b"BURS:STAT OFF;:SOUR2:BURS:STAT OFF")
        with pytest.raises(DeviceFault, match="Trigger ignored"):
            driver.trigger()
        driver.stop()
        assert not bench.output(1).on


def test_what_tektronix_cannot_play_is_told():
    """It is not so slow, it has no such small range, and an upload that is lost does not play the one before."""
    lost = Struck(kind="ignored", instrument="generator", at="DATA:DATA EMEM", occurrence=2)
    with VirtualBench() as bench, SocketServer(FaultyInstrument(Afg3152C(bench), [lost])) as address:
        for range_v, rate, said in (
            ((-1.0, 1.0), 1e-3, "-222"),
            ((-1.0, 1.0), 1e6, r"DATA:POIN\? EMEM says .*, and 51 was set"),
            ((0.0, 0.03), 1e6, "-222"),
        ):
            driver = BRANDS["tektronix"].driver(address, {1: {"range_v": range_v}}).build()
            with driver, pytest.raises(DeviceFault, match=said):
                driver.load({1: np.zeros(50)}, rate)


WITNESSED = {
    "pymeasure_33500.py": Keysight33512B,
    "qcodes_33512b.py": Keysight33512B,
    "pymeasure_afg3152c.py": Afg3152C,
}


@pytest.mark.slow
@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
@pytest.mark.parametrize("witness", WITNESSED)
def test_drivers_that_nobody_here_wrote(serving, witness, tmp_path):
    with VirtualBench() as bench, serving(generator := WITNESSED[witness](bench)) as address:
        run_witness(witness, address, tmp_path)
        events = [event["event"] for event in generator.bench.log.events]
        if witness == "qcodes_33512b.py":
            assert events == ["on", "burst begins", "burst ends", "level", "off"]
            return
        if witness == "pymeasure_afg3152c.py":
            assert events == ["on", "burst begins", "burst ends", "off"]
            # A sine of 1 V from peak to peak around -0.5 V.
            begun = bench.log.events[1]
            assert (begun["low_v"], begun["high_v"]) == pytest.approx((-1.0, 0.0), abs=1e-9)
            return
        assert events == ["on", "burst begins", "burst ends", "burst begins", "burst ends", "off"]
        # Our binary upload leaves the samples that their text left. At ±1 V, full scale is one volt.
        theirs = generator.memories[1]["WITNESS"]
        outputs = {1: {"range_v": (-1.0, 1.0), "safe_v": theirs[0] / 32767}}
        ours = BRANDS["keysight"].driver(address, outputs)
        with contextlib.closing(ours.build().open()) as driver:
            driver.load({1: theirs[1:] / 32767}, 1e6)
        np.testing.assert_array_equal(generator.memories[1]["RHW1"], theirs)
