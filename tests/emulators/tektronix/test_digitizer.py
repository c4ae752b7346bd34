"""The emulated Tektronix oscilloscope by its language and by our driver, and both instruments on one bench."""

import json
import threading

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.roles import Input, Output, Trigger
from reservoir_hw.drivers.visa.tektronix_afg3000 import TektronixAfg3000Config
from reservoir_hw.drivers.visa.tektronix_mso import TektronixMsoConfig
from reservoir_hw.emulators.bench import BenchConfig, Cable, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.servers.hislip import serving_hislip
from reservoir_hw.emulators.servers.socket import serving_socket
from reservoir_hw.emulators.tektronix.digitizer import Mso54
from reservoir_hw.emulators.tektronix.generator import Afg3152C

NOTHING = b'0,"No events to report - queue empty"'
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
    scope = Mso54(bench)
    scope.execute(b"HEAD OFF;:ACQ:STATE STOP;:TRIG:A:MOD NORM;*CLS")
    return scope


def driver(address, **others):
    inputs = {1: Input(range_v=(-2.0, 2.0)), 2: Input(range_v=(-1.0, 1.5), impedance_ohm=50)}
    return TektronixMsoConfig(**{"kind": "tektronix_mso", "address": address, "inputs": inputs, **others}).build()


@pytest.mark.parametrize(
    ("message", "answer", "error"),
    [
        (b"*IDN?", b"TEKTRONIX,MSO54,C000002,CF:91.1CT FV:2.0.3.950", 0),
        # Headers and the length of words.
        (b"HEAD ON;:CH2:SCA 20E-3;:CH2:SCA?;OFFS?", b":CH2:SCALE 20.0000E-3;:CH2:OFFSET 0.0E+0", 0),
        (b"HEAD ON;VERB OFF;:ACQ:STOPA?;:TRIG:A:EDGE:SLO?;:*ESR?", b":ACQ:STOPA RUNST;:TRIG:A:EDGE:SLO RIS;0", 0),
        (b"HEAD ON;:DIS:WAVEV:CH3:STATE ON;STATE?;:SEL:CH3?", b":DISPLAY:WAVEVIEW1:CH3:STATE 1;:SELECT:CH3 1", 0),
        (b"ACQ:STOPA SEQ;STOPA?;MOD HIR;MOD?;:DAT:ENC SRI;ENC?", b"SEQUENCE;HIRES;SRIBINARY", 0),
        # Channels.
        (b"CH1:SCA 2;OFFS 150;OFFS?;POS 6;POS?", b"100.0000E+0;5.0000E+0", 222),
        (b"CH1:SCA 2;OFFS 100;SCA .01;OFFS?;TER 50;SCA 5;SCA?", b"1.0000E+0;1.0000E+0", 222),
        (b"CH1:TER 75;TER?", b"1.0000E+6", 224),
        (b"CH1:COUP AC;COUP?", b"DC", 224),
        (b"CH5:SCA 1", b"", 114),
        # Time base: of 40 us, and without another one that is asked for.
        (b"HOR:MOD?;SCA?;SAMPLER?;RECO?;POS?", b"AUTO;400.0000E-9;6.2500E+9;25000;50.0000E+0", 0),
        (b"HOR:SCA 1E-3;SAMPLER?;RECO?", b"62.5000E+6;625000", 0),
        (b"HOR:MOD:RECO 5000;SAMPLER 1E6;RECO?", b"25000", 221),
        (b"HOR:MOD MAN;MOD:SAMPLER 9E6;SAMPLER?;RECO 5E4;:HOR:SCA?;POS 10;POS?",
         b"12.5000E+6;400.0000E-6;50.0000E+0", 0),
        (b"HOR:DEL:MOD OFF;:HOR:POS 10;POS?;DEL:TIM 1E-3;TIM?", b"10.0000E+0;1.0000E-3", 0),
        (b"HOR:MOD MAN;MOD:MAN:CONFIG RECORDL;:HOR:SAMPLER 3.125E9;RECO?;MOD AUTO;SAMPLER?", b"12500;6.2500E+9", 0),
        (b"HOR:MOD MAN;RECO 10;RECO?", b"1000", 222),
        # Trigger.
        (b"TRIG:A:EDGE:SOU CH2;SLO FALL;SOU?;SLO?;:TRIG:A:LEV:CH2 .2;CH2?", b"CH2;FALL;200.0000E-3", 0),
        (b"TRIG:A:LEV:CH1 1;CH1?", b"500.0000E-3", 222),
        (b"TRIG:A:EDGE:SOU AUX;SOU?", b"CH1", 224),
        (b"TRIG:AUXL 1", b"", 241),
        (b"TRIG:A:TYP WID", b"", 224),
        # Records.
        (b"DAT:SOU:AVAIL?;:DAT:SOU CH2;SOU?;:CURV?", b"NONE;CH2", 2244),
        (b"WFMO:YMU?", b"", 2244),
        (b"DAT:WID 4;WID?;:WFMO:BYT_N 2;BIT_N?;:DAT:WID?", b"1;16;2", 222),
        (b"ACQ:STOPA SEQ;STATE RUN;:TRIG:STATE?;:BUSY?;:TRIG FORC;:ACQ:STATE?;NUMAC?;:TRIG:STATE?",
         b"READY;1;0;1;SAVE", 0),
        (b"ACQ:STOPA SEQ;STATE 1;:TRIG FORC;:DAT:SOU:AVAIL?;:WFMO:NR_P?;:DAT:STAR 24990;STOP 3E4;:WFMO:NR_P?;PT_O?",
         b"CH1;2500;11;-12489", 0),
        (b"ACQ:STATE ON;:TRIG FORC;:ACQ:NUMAC?;STATE?;:TRIG FORC;:ACQ:NUMAC?;STATE OFF;STATE?", b"1;1;2;0", 0),
        (b"SYST:ERR?", b"", 113),
    ],
)  # fmt: skip
def test_messages(scope, message, answer, error):
    assert scope.execute(message) == answer
    scope.execute(b"HEAD OFF;VERB ON")
    status = int(scope.execute(b"*ESR?"))
    assert status == (0x10 if error >= 200 else 0x20 if error else 0)
    assert scope.execute(b"ALLE?").startswith(b"%d," % error)


def test_events_wait_until_the_register_is_read(scope):
    assert scope.execute(b"FOO") == b""
    assert scope.execute(b"ALLE?;:EVQ?") == b'1,"No events to report - new events pending *ESR?";0'
    assert scope.execute(b"CH1:SCA -1;:DAT:WID 7") == b""
    assert (
        scope.execute(b"*ESR?;:EVQ?;:EVM?;:EVENT?;:EVQ?;:ALLE?")
        == b'48;3;113,"Undefined header";222;1;222,"Data out of range"'
    )
    assert scope.execute(b"FOO") == b""
    assert scope.execute(b"*ESR?;*ESR?;:ALLE?") == b"32;0;" + NOTHING, "what was not read is forgotten"
    assert scope.execute(b"*OPC;*ESR?;:ALLE?") == b'1;402,"Operation complete"'
    assert scope.status_byte() == 0


def test_formats_agree_and_clip(bench, scope):
    scope.execute(b"CH1:SCA .2;OFFS .25;POS 1;:HOR:MOD MAN;:HOR:SAMPLER 125E6;RECO 625000;DEL:MOD OFF;:HOR:POS 50")
    scope.execute(b"TRIG:A:LEV:CH1 0;:ACQ:MOD HIR;STOPA SEQ;STATE RUN")
    bench.start([1])
    answers = scope.execute(
        b"*OPC?;:WFMO:BYT_N 2;NR_P?;XIN?;XZE?;YMU?;YOF?;YZE?;:DAT:STOP 1E9;:WFMO:NR_P?;PT_O?;:CH1:CLIP?"
    )
    # 0.05 V stand in the middle of the screen.
    assert answers == b"1;2500;8.0000E-9;0.0E+0;31.2500E-6;0.0E+0;50.0000E-3;625000;312500;1"
    words = binary(scope, b"DAT:ENC RIB;:CURV?", ">i2").astype(float)
    assert len(words) == 625_000
    assert (words.min(), words.max()) == (-32768, (1.0 - 0.05) * 6400 / 0.2)
    # 0 V is crossed in the middle of the ramp, so the record begins with it. At -0.974 V it is clipped.
    inside = words > -32768
    assert np.abs(words * 31.25e-6 + 0.05 - np.repeat(RAMP, 125))[inside].max() <= 2 / 5000
    assert np.count_nonzero(~inside) == pytest.approx((1 - 0.974) / 2 * 625_000, abs=150)
    np.testing.assert_array_equal(binary(scope, b"DAT:ENC SRI;:CURV?", "<i2"), words)
    np.testing.assert_array_equal(binary(scope, b"DAT:WID 1;:CURV?", "i1"), words // 256)
    assert scope.execute(b"WFMO:YMU?;:DAT:STAR 312501;STOP 312503;ENC ASCI;:CURV?") == b"8.0000E-3;-7,-7,-7"
    # Of twelve bits, and of eight.
    for message, step in ((b"ACQ:MOD SAM;STATE RUN", 16), (b"HOR:SAMPLER 6.25E9;:ACQ:STATE RUN", 256)):
        scope.execute(message)
        bench.start([1])
        scope.execute(b"DAT:STAR 1;STOP 1E6;WID 2;ENC RIB")
        words = binary(scope, b"CURV?", ">i2")
        assert np.gcd.reduce(words) == step


def binary(scope, message, dtype):
    answer = scope.execute(message)
    digits = int(answer[1:2])
    assert int(answer[2 : 2 + digits]) == len(answer) - 2 - digits
    return np.frombuffer(answer[2 + digits :], dtype)


def test_a_single_acquisition_is_waited_for(bench, scope):
    asked = threading.Event()
    played = threading.Thread(target=lambda: (asked.wait(10), bench.start([1])))
    played.start()
    assert scope.execute(b"ACQ:STOPA SEQ;STATE RUN;*OPC?", lambda: bool(asked.set())) == b"1"
    played.join()
    assert scope.execute(b"ACQ:STATE RUN;*OPC?", lambda: True) == b"", "who clears it gets no answer"
    assert scope.execute(b"TRIG:A:MOD AUTO;:ACQ:STATE RUN;*OPC?") == b"1", "it triggers itself"


@pytest.mark.parametrize("serving", [serving_socket, serving_hislip])
def test_our_driver_takes_down_what_the_bench_plays(bench, serving):
    # With headers and running, as it is after power on, and as somebody left it.
    scope = Mso54(bench, auxiliary_input=True)
    scope.execute(b"CH1:POS 4;:FOO")
    with serving(scope) as address, driver(address) as ours:
        # The nearest rate to 7 MHz is below, and the next one above is 12.5 MHz.
        rate = ours.configure([1, 2], Trigger(source=1, level_v=0.25, before_s=1e-3), 7e6, 42_000)
        assert rate == 12.5e6
        assert scope.execute(b"CH1:TER?;:CH2:TER?") == b"1.0000E+6;50.0000E+0"
        for _ in range(2):
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            played = {1: np.repeat(RAMP, 100), 2: -2 * RAMP}
            # The ramp crosses the level with the sample 3125, 3.125 ms after its begin. Of 16 bits, the noise of the
            # trigger is more than the steps.
            for number in (1, 2):
                taken = record[number]
                assert taken.sample_rate_hz == pytest.approx(12.5e6)
                assert taken.start_s == pytest.approx(-1e-3)
                assert len(taken.volts) == 75_000
                since = 3.125e-3 + taken.start_s + np.arange(0.5, 35_000) / taken.sample_rate_hz
                if number == 1:
                    expected = played[1][(since * 100e6).astype(int)]
                else:
                    expected = np.interp(since * 1e6, np.arange(5000), played[2])
                inside = np.abs(expected - 0.25) < 1.25
                assert np.abs(taken.volts[: len(since)] - expected)[inside].max() < 0.0005
            assert record[1].clipped == 0
            # It falls by 4 V in 62,500 samples. The last of them lie below the 10.24 divisions of 0.25 V, or in the
            # last of their 256 steps.
            assert record[2].clipped == pytest.approx((2 + 0.25 - 1.28 + 0.01) / 4 * 62_500, abs=15)
        ours.check_errors()

        ours.arm()
        with pytest.raises(DeviceFault, match=r"trigger not met within 0\.05 s"):
            ours.wait(0.05)
        # The record before is still there.
        assert scope.execute(b"DAT:SOU:AVAIL?") == b"CH1,CH2"
        with pytest.raises(DeviceFault, match="a record of 75000 samples was due, 0 came"):
            ours.fetch()
        # A falling edge of the other input, and a trigger from outside.
        for trigger in (Trigger(source=2, level_v=1.0, slope="falling"), Trigger(source="external")):
            ours.configure([1], trigger, 20e6, 100)
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            assert {*record} == {1}
            assert record[1].volts[0] == pytest.approx(-0.5 if trigger.source == 2 else -1.0, abs=0.001)


def test_our_driver_refuses_before_it_sends_anything(scope):
    external = Trigger(source="external")
    with serving_socket(scope) as address, driver(address, memory_samples=3000) as ours:
        scope.execute(b"FOO")
        with pytest.raises(ConfigurationError, match=r"has no input 3 \(inputs: \[1, 2\]\)"):
            ours.configure([1, 3], external, 1e6, 1000)
        with pytest.raises(ConfigurationError, match="has no input 4"):
            ours.configure([1], Trigger(source=4), 1e6, 1000)
        with pytest.raises(ConfigurationError, match="at most 3000 samples, 3001 are needed"):
            ours.configure([1], external, 1e6, 3001)
        with pytest.raises(ConfigurationError, match=r"MSO54.* is no TektronixAfg3000"):
            TektronixAfg3000Config(
                kind="tektronix_afg3000", address=address, outputs={1: Output(range_v=(-1.0, 1.0))}
            ).build().open()
        # Nobody has sent *CLS.
        assert scope.execute(b"*ESR?") == b"32"
        with pytest.raises(ConfigurationError, match="at most 3000 samples, 3125 are needed"):
            ours.configure([1], external, 1e6, 2500)
        with pytest.raises(ConfigurationError, match=r"takes 6\.25e\+09 samples/s at most, and 7e\+09 are needed"):
            ours.configure([1], external, 7e9, 1000)
        with pytest.raises(DeviceFault, match="reports 224"):
            ours.configure([1], external, 1e6, 1000)
        with pytest.raises(DeviceFault, match="reports 222"):
            ours.configure([1], Trigger(source=1, level_v=5.0), 1e6, 1000)
    inputs = {1: Input(range_v=(-2.0, 2.0), coupling="ac")}
    with (
        serving_socket(scope) as address,
        driver(address, inputs=inputs) as ours,
        pytest.raises(DeviceFault, match="reports 224"),
    ):
        ours.configure([1], Trigger(source=1), 1e6, 1000)


def test_a_waveform_goes_through_both_instruments(bench):
    """Generator, bench and oscilloscope with their drivers: volts come back within the steps of both converters."""
    outputs = {1: Output(range_v=(-0.8, 1.2), safe_v=0.1, load_ohm=50.0)}
    inputs = {1: Input(range_v=(-1.0, 1.5))}
    random = np.random.default_rng(3)
    # Each level lasts 10 samples, and the first one triggers.
    volts = np.repeat(np.concatenate(([1.0], random.uniform(-0.8, 1.2, 1999))), 10)
    with (
        serving_socket(Afg3152C(bench)) as generator_at,
        serving_socket(Mso54(bench)) as scope_at,
        TektronixAfg3000Config(kind="tektronix_afg3000", address=generator_at, outputs=outputs).build() as generator,
        TektronixMsoConfig(kind="tektronix_mso", address=scope_at, inputs=inputs).build() as scope,
    ):
        rate = generator.load({1: volts}, 1e6)
        taken_hz = scope.configure([1], Trigger(source=1, level_v=0.5, before_s=1e-4), 10e6, 210_000)
        generator.arm()
        scope.arm()
        generator.trigger()
        scope.wait(5.0)
        generator.stop()
        record = scope.fetch()[1]
    assert record.clipped == 0
    # The middle of each level. The trigger comes with the first sample of the waveform, after the one at safe_v.
    middles = (np.arange(2000) * 10 + 5) / rate - record.start_s
    seen = record.volts[np.rint(middles * taken_hz).astype(int)]
    half_steps = (2.0 / 16382 + 2.5 * 1.024 / 65536) / 2
    assert np.abs(seen - volts[::10]).max() <= half_steps * 1.01
    assert np.abs(record.volts[: int(0.9e-4 * taken_hz)] - 0.1).max() <= half_steps * 1.01
    assert not bench.output(1).on


@pytest.mark.slow
def test_drivers_that_nobody_here_wrote(bench, tmp_path):
    """tm_devices takes no port, so that each instrument has a host of its own."""
    bench.set_output(2, OutputSettings())
    seen_at = tmp_path / "seen.json"
    with (
        serving_hislip(Mso54(bench), "127.0.0.1", 4880),
        serving_hislip(Afg3152C(bench), "127.0.0.2", 4880),
    ):
        run_witness("tm_devices_afg3k_mso5.py", seen_at, tmp_path)
    seen = json.loads(seen_at.read_text())
    preamble, codes = seen["preamble"], np.array(seen["codes"])
    times = preamble["XZERO"] + (np.arange(len(codes)) - preamble["PT_OFF"]) * preamble["XINCR"]
    volts = codes * preamble["YMULT"] + preamble["YZERO"]
    assert (len(codes), preamble["YMULT"], times[0]) == (2500, 0.02, pytest.approx(-2e-3))
    # A sine of 1 kHz around 0.5 V, that crosses 0.6 V when it triggers. Bytes lose what is behind their codes.
    played = times > 2e-6
    expected = 0.5 + np.sin(2e3 * np.pi * times + np.arcsin(0.1))
    assert np.abs(volts + 0.01 - expected)[played].max() < 0.01 + 2e3 * np.pi * 2e-6
    assert np.abs(volts[times < -2e-4] - 0.5).max() <= 0.02
    kinds = [(event["event"], event["channel"]) for event in bench.log.events[-3:]]
    assert kinds == [("on", 2), ("burst begins", 2), ("burst ends", 2)]
