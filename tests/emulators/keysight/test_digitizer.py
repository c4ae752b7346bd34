"""The oscilloscope by its language, by our driver, and by somebody else's."""

import json
import threading

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.keysight_infiniivision import KeysightInfiniiVision, KeysightInfiniiVisionConfig
from reservoir_hw.drivers.visa.roles import Input, Trigger
from reservoir_hw.emulators.bench import BenchConfig, Cable, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.servers.hislip import serving_hislip
from reservoir_hw.emulators.servers.socket import serving_socket

NO_ERROR = b'+0,"No error"'
RAMP = np.linspace(-1.0, 1.0, 5000)


@pytest.fixture
def bench():
    """Inputs 1 and 2 show outputs 1 and 2, and nothing lies between."""
    config = BenchConfig(inputs={1: Cable(output=1), 2: Cable(output=2)}, digitizer_ppm=0.0)
    with VirtualBench(config) as bench:
        bench.set_output(1, OutputSettings(on=True, waveform=Waveform(RAMP, 1e6)))
        bench.set_output(2, OutputSettings(on=True, waveform=Waveform(-2 * RAMP, 1e6, interpolation="linear")))
        yield bench


@pytest.fixture
def scope(bench):
    return InfiniiVision(bench)


def driver(address, **others):
    inputs = {1: Input(range_v=(-2.0, 2.0)), 2: Input(range_v=(-1.0, 1.5), impedance_ohm=50)}
    config = {"kind": "keysight_infiniivision", "address": address, "inputs": inputs, "acquisition": "normal", **others}
    return KeysightInfiniiVision(KeysightInfiniiVisionConfig(**config))


@pytest.mark.parametrize(
    ("message", "answer", "error"),
    [
        (b"*IDN?", b"KEYSIGHT TECHNOLOGIES,MSO-X 3054T,MY00000002,07.50.2021102830", 0),
        (b":CHAN1:DISP?;:CHAN2:DISP?;:CHAN1:RANG?;PROB?;IMP?", b"1;0;+4.0E+01;+1.0E+01;ONEM", 0),
        (b":channel2:probe 1;scale 100mv;range?;offset 0.1;offset?", b"+8.0E-01;+1.0E-01", 0),
        (b":CHAN2:PROB 1;OFFS 1e3;OFFS?;RANG 0.8;OFFS?", b"+5.0E+01;+2.0E+00", 0),
        (b":CHAN1:PROB 1;RANG?;IMP FIFT;RANG 8.1;RANG?", b"+4.0E+00;+4.0E+00", -222),
        (b":CHAN1:COUP AC;COUP?", b"DC", -241),
        (b":CHAN5:RANG 1", b"", -114),
        (b":TIM:MODE XY;MODE?", b"MAIN", -224),
        (b":TIM:REF RIGHT;REF?;RANG 2 MS;SCAL?;POS -1us;POS?", b"RIGH;+2.0E-04;-1.0E-06", 0),
        (b":TIM:RANG 1e-9", b"", -222),
        (b":TIM:RANG 20NS;:ACQ:SRAT?;POIN?", b"+5.0E+09;+100", 0),
        (b":TIM:RANG 1;:ACQ:SRAT?;POIN?", b"+1.0E+06;+1000000", 0),
        (b":TIM:RANG 0.7;:ACQ:SRAT?;POIN?", b"+1.0E+06;+700000", 0),
        (b":TIM:RANG 0.3;:ACQ:SRAT?;POIN?", b"+2.5E+06;+750000", 0),
        (b":TRIG:SWE AUTO;SWE?;MODE EDGE;:TRIG:EDGE:SOUR EXT;SLOP NEG;SOUR?;SLOP?", b"AUTO;EXT;NEG", 0),
        (b":TRIG:MODE GLIT", b"", -224),
        (b":TRIG:EDGE:LEV 1,CHAN2;LEV 2,EXT;LEV?;LEV? CHAN2;LEV? EXT", b"+0.0E+00;+1.0E+00;+2.0E+00", 0),
        (b":TRIG:EDGE:LEV 31;LEV?", b"+0.0E+00", -222),
        (b":ACQ:TYPE HRES;TYPE?;COUN 4;COUN?", b"HRES;4", 0),
        (b":ACQ:TYPE PEAK", b"", -224),
        (b":WAV:SOUR?;FORM?;BYT?;UNS?;POIN:MODE?", b"CHAN1;BYTE;MSBF;1;NORM", 0),
        (b":WAV:POIN:MODE RAW;:WAV:POIN MAX;POIN:MODE?;MODE RAW;MODE?", b"MAX;RAW", 0),
        (b":WAV:POIN 10", b"", -222),
        (b":WAV:FORM LONG", b"", -224),
        # Without a record, or without one of this channel.
        (b":WAV:POIN?;DATA?", b"+0", -230),
        (b":WAV:FORM WORD;PRE?", b"+1,+0,+0,+1,+0.0E+00,+0.0E+00,+0,+0.0E+00,+0.0E+00,+32768", 0),
        (b":SING;:TRIG:FORC;:WAV:SOUR CHAN2;DATA?", b"", -230),
        (b":SING;:OPER:COND?;:AER?;:AER?;:TER?;:TRIG:FORC;:OPER:COND?;:TER?;:TER?", b"40;1;0;0;0;1;0", 0),
        (b":SING;:STOP;:OPER:COND?;:WAV:DATA?", b"0", -230),
        (b":SING;:WAV:DATA?", b"", -230),
        (b":RUN;:OPER:COND?;:TRIG:FORC;:OPER:COND?;:WAV:POIN?;:STOP;:WAV:POIN?", b"40;40;+1000;+1000", 0),
        (b":RUNS", b"", -113),
    ],
)  # fmt: skip
def test_messages(scope, message, answer, error):
    scope.execute(b"*RST;:TRIG:SWE NORM;:STOP;*CLS;:AER?")
    answered = scope.execute(message)
    assert [_short(part) for part in answered.split(b";")] == answer.split(b";")
    assert scope.execute(b"SYST:ERR?").startswith(b"%+d," % error)
    assert scope.execute(b"SYST:ERR?") == NO_ERROR


def _short(answer):
    """`+4.000000000000000E+01` as `+4.0E+01`."""
    return b",".join(
        b"%s%s" % (f"{float(part[:-4]):+.9}".encode(), part[-4:]) if b"." in part and b"E" in part else part
        for part in answer.split(b",")
    )


def values(scope, message, dtype):
    answer = scope.execute(message)
    assert answer[:2] == b"#8"
    assert int(answer[2:10]) == len(answer) - 10
    return np.frombuffer(answer[10:], dtype).astype(float)


def test_formats_agree_and_clip_as_the_guide_says(bench, scope):
    scope.execute(b"*RST;:STOP;:TRIG:SWE NORM;SOUR EXT;:CHAN1:PROB 1;RANG 2;OFFS 0.25;:TIM:RANG 5ms;REF LEFT;POS 0.5ms")
    scope.execute(b":SING")
    bench.start([1])
    scope.execute(b":WAV:FORM WORD;POIN MAX;POIN:MODE RAW")
    preamble = [float(part) for part in scope.execute(b":WAV:PRE?").split(b",")]
    points, step_s, first_s, step_v, middle_v, middle = (preamble[k] for k in (2, 4, 5, 7, 8, 9))
    assert preamble[:4] == [1, 0, 5e6 / 10, 1]
    assert (step_s, first_s, step_v, middle_v, middle) == pytest.approx((10e-9, 0, 2 / 65536, 0.25, 32768))
    words = values(scope, b":WAV:DATA?", ">u2")
    assert len(words) == points
    assert {words.min(), words.max()} == {1, np.floor((0.75 / 2 + 0.5) * 256) * 256}
    # The ramp rises by 2 V in 500,000 points. Its first 0.25 V lie below the screen, and steps 0 and 1 are told as 1.
    assert np.count_nonzero(words == 1) == pytest.approx((0.25 + 1.5 * 2 / 256) / 2 * points, abs=100)
    expected = np.repeat(RAMP, 100)[:-100]
    shown = (words - middle) * step_v + middle_v
    inside = words[: len(expected)] != 1
    assert np.abs(shown[: len(expected)] - expected)[inside].max() <= 0.5 * 256 * step_v + 2 / 5000
    np.testing.assert_array_equal(values(scope, b":WAV:BYT LSBF;DATA?", "<u2"), words)
    np.testing.assert_array_equal(values(scope, b":WAV:UNS 0;DATA?", "<i2"), words - 32768)
    assert scope.execute(b":WAV:PRE?").endswith(b",+0")
    np.testing.assert_array_equal(values(scope, b":WAV:UNS 1;FORM BYTE;DATA?", "u1"), np.maximum(words // 256, 1))
    text = scope.execute(b":WAV:POIN 1000;FORM ASC;DATA?")
    assert text[:10] == b"#800012999"
    np.testing.assert_allclose([float(v) for v in text[10:].split(b",")], shown[::500], atol=1e-5)
    assert scope.execute(b":WAV:POIN 300000;POIN?") == b"+250000"
    assert scope.execute(b":WAV:POIN:MODE NORM;:WAV:POIN?") == b"+62500"

    # Of the other end, and of 12 bits, which words show and bytes do not.
    scope.execute(b":CHAN1:OFFS -0.25;:ACQ:TYPE HRES;:WAV:FORM WORD;POIN MAX;:SING")
    bench.start([1])
    words = values(scope, b":WAV:DATA?", "<u2")
    assert scope.execute(b":WAV:PRE?").startswith(b"+1,+3,")
    assert words.max() == 65535
    assert {*(words[words < 65535] % 256)} == {*range(0, 256, 16)}
    assert values(scope, b":WAV:FORM BYTE;DATA?", "u1").max() == 255


def test_digitize_waits_until_it_is_cleared_or_triggers_itself(bench, scope):
    scope.execute(b"*RST;:TRIG:SWE NORM;:STOP")
    waiting = threading.Event()

    def cleared():
        waiting.set()
        return True

    assert scope.execute(b":DIG CHAN2;*OPC?", cleared) == b""
    assert waiting.is_set()
    assert scope.execute(b":OPER:COND?;:WAV:POIN?;:CHAN1:DISP?;:CHAN2:DISP?") == b"0;+0;0;1"

    asked = threading.Event()
    played = threading.Thread(target=lambda: (asked.wait(10), bench.start([2])))
    played.start()
    scope.execute(b":CHAN2:PROB 1;RANG 8;:TIM:RANG 10ms;:TRIG:SOUR CHAN2;LEV 0;SLOP NEG")
    # The trigger comes while it waits.
    assert scope.execute(b":DIG CHAN2;*OPC?", lambda: bool(asked.set())) == b"1"
    played.join()
    scope.execute(b":WAV:SOUR CHAN2;POIN MAX")
    shown = (values(scope, b":WAV:DATA?", "u1") - 128) * 8 / 256
    # 2 V fall to -2 V in 5 ms, and 0 V is in the middle.
    times = -5e-3 + 10e-9 * np.arange(1_000_000)
    inside = np.abs(times) < 2.4e-3
    assert np.abs(shown[inside] + times[inside] * 4 / 5e-3).max() < 0.55 * 8 / 256
    assert scope.execute(b":TRIG:SWE AUTO;:DIG;*OPC?;:TER?;:WAV:POIN?") == b"1;1;+1000000"
    assert scope.execute(b"SYST:ERR?") == NO_ERROR


def test_a_limited_bandwidth_slows_edges(bench, scope):
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(np.ones(100), 1e6)))
    scope.execute(b"*RST;:STOP;:TRIG:SWE NORM;SOUR EXT;:CHAN1:PROB 1;RANG 4;BWL ON;:TIM:RANG 1us;:ACQ:TYPE HRES;:SING")
    bench.start([1])
    shown = (values(scope, b":WAV:FORM WORD;POIN MAX;DATA?", ">u2") - 32768) * 4 / 65536
    assert shown[2400] == 0
    tau = 5e9 / (2 * np.pi * 20e6)
    assert np.argmax(shown > 1 - np.exp(-1)) == pytest.approx(2500 + tau, abs=2)


@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_our_driver_takes_down_what_the_bench_plays(bench, scope, serving):
    with serving(scope) as address, driver(address) as ours:
        rate = ours.configure([1, 2], Trigger(source=1, level_v=0.25, before_s=1e-3), 20e6, 100_000)
        assert rate == 100e6
        for _ in range(2):
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            played = {1: np.repeat(RAMP, 100), 2: -2 * RAMP}
            # The ramp crosses the level with the sample 3125, 3.125 ms after its begin.
            for number, lsb in ((1, 4.0 / 256), (2, 2.5 / 256)):
                taken = record[number]
                assert taken.sample_rate_hz == pytest.approx(100e6)
                assert taken.start_s == pytest.approx(-1e-3)
                assert len(taken.volts) == 500_000
                since = 3.125e-3 + taken.start_s + np.arange(0.5, 280_000) / taken.sample_rate_hz
                if number == 1:
                    expected = played[1][(since * 100e6).astype(int)]
                else:
                    expected = np.interp(since * 1e6, np.arange(5000), played[2])
                inside = np.abs(expected - 0.25) < 124 * lsb
                assert np.abs(taken.volts[: len(since)] - expected)[inside].max() < 0.5 * lsb + 0.0005
            assert record[1].clipped == 0
            # It falls by 4 V in 500,000 samples. The last of them lie below -1 V, or in steps 0 and 1.
            assert record[2].clipped == pytest.approx((1 + 1.5 * 2.5 / 256) / 4 * 500_000, abs=100)
        assert scope.execute(b"SYST:ERR?") == NO_ERROR

        ours.arm()
        with pytest.raises(DeviceFault, match=r"trigger not met within 0\.05 s"):
            ours.wait(0.05)
        with pytest.raises(DeviceFault, match="a record of 100000 samples was due, 0 came"):
            ours.fetch()
        # A falling edge of the other input, and a trigger from outside.
        for trigger in (Trigger(source=2, level_v=1.0, slope="falling"), Trigger(source="external")):
            ours.configure([1], trigger, 20e6, 100_000)
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            assert {*record} == {1}
            level = -0.5 if trigger.source == 2 else -1.0
            assert record[1].volts[0] == pytest.approx(level, abs=4.0 / 256)


def test_our_driver_refuses_before_it_sends_anything(bench, scope):
    with serving_socket(scope) as address, driver(address, memory_samples=1000) as ours:
        scope.execute(b":FOO")
        external = Trigger(source="external")
        with pytest.raises(ConfigurationError, match=r"has no input 3 \(inputs: \[1, 2\]\)"):
            ours.configure([1, 3], external, 1e6, 1000)
        with pytest.raises(ConfigurationError, match="has no input 4"):
            ours.configure([1], Trigger(source=4), 1e6, 1000)
        with pytest.raises(ConfigurationError, match="at most 1000 samples, 1001 are needed"):
            ours.configure([1], external, 1e6, 1001)
        # Nobody has sent *CLS.
        assert scope.execute(b"SYST:ERR?").startswith(b"-113")
    inputs = {1: Input(range_v=(99.0, 101.0))}
    with (
        serving_socket(scope) as address,
        driver(address, inputs=inputs) as ours,
        pytest.raises(DeviceFault, match=r":CHAN1:OFFS is 50 V, and 100 V was set"),
    ):
        ours.configure([1], external, 1e6, 1000)
    with serving_socket(scope) as address, driver(address, memory_samples=2_000_000) as ours:
        with pytest.raises(ConfigurationError, match=r"it takes 500000 samples/s .* shorten the records"):
            ours.configure([1], external, 1e6, 1_100_000)
        with pytest.raises(DeviceFault, match="Data out of range"):
            ours.configure([1], Trigger(source=1, level_v=5.0), 1e6, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_pymeasure_reads_the_same(bench, scope, serving, tmp_path):
    bench.set_output(1, OutputSettings(on=True, waveform=Waveform(RAMP, 1e6, cycles=None, interpolation="linear")))
    bench.start([1])
    with serving(scope) as address:
        seen = json.loads(run_witness("pymeasure_dsox1102g.py", address, tmp_path))
    preamble = seen["preamble"]
    assert (preamble["format"], preamble["type"], preamble["points"]) == ("BYTE", "NORMAL", 1000)
    times = preamble["xorigin"] + preamble["xincrement"] * np.arange(1000)
    inside = np.abs(times) < 2.4e-3
    np.testing.assert_allclose(np.array(seen["volts"])[inside], times[inside] * 2 / 5e-3, atol=0.55 * 4 / 256)
    assert seen["errors"] == []
    assert scope.execute(b"SYST:ERR?") == NO_ERROR
