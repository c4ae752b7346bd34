"""The emulated Keysight and Tektronix oscilloscopes by their languages, by our drivers, and by somebody else's."""

import json
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, DeviceFault
from reservoir_hw.drivers.visa.keysight import KeysightInfiniiVisionConfig
from reservoir_hw.drivers.visa.roles import Input, Output, Trigger
from reservoir_hw.drivers.visa.tektronix import TektronixAfg3000Config, TektronixMsoConfig
from reservoir_hw.emulators.bench import BenchConfig, Cable, OutputSettings, VirtualBench, Waveform
from reservoir_hw.emulators.keysight.digitizer import InfiniiVision
from reservoir_hw.emulators.servers import HislipServer, SocketServer
from reservoir_hw.emulators.tektronix.digitizer import Mso54
from reservoir_hw.emulators.tektronix.generator import Afg3152C

NO_ERROR = b'+0,"No error"'
NOTHING = b'0,"No events to report - queue empty"'
RAMP = np.linspace(-1.0, 1.0, 5000)
EXTERNAL = Trigger(source="external")
KEYSIGHT = [
    (b"*IDN?", b"KEYSIGHT TECHNOLOGIES,MSO-X 3054T,MY00000002,07.50.2021102830", 0),
    (b":CHAN1:DISP?;:CHAN2:DISP?;:CHAN1:RANG?;PROB?;IMP?", b"1;0;+4.0E+01;+1.0E+01;ONEM", 0),
    (b":channel2:probe 1;scale 100mv;range?;offset 0.1;offset?", b"+8.0E-01;+1.0E-01", 0),
    (b":CHAN2:PROB 1;OFFS 1e3;OFFS?;RANG 0.8;OFFS?", b"+5.0E+01;+2.0E+00", 0),
    (b":CHAN1:PROB 1;RANG?;IMP FIFT;RANG 8.1;RANG?", b"+4.0E+00;+4.0E+00", -222),
    (b":CHAN1:COUP AC;COUP?", b"DC", -241),
    (b":TIM:MODE XY;MODE?", b"MAIN", -224),
    (b":TIM:REF RIGHT;REF?;RANG 2 MS;SCAL?;POS -1us;POS?", b"RIGH;+2.0E-04;-1.0E-06", 0),
    (b":TIM:RANG 20NS;:ACQ:SRAT?;POIN?", b"+5.0E+09;+100", 0),
    (b":TIM:RANG 1;:ACQ:SRAT?;POIN?", b"+1.0E+06;+1000000", 0),
    (b":TIM:RANG 0.7;:ACQ:SRAT?;POIN?", b"+1.0E+06;+700000", 0),
    (b":TIM:RANG 0.3;:ACQ:SRAT?;POIN?", b"+2.5E+06;+750000", 0),
    (b":TRIG:SWE AUTO;SWE?;MODE EDGE;:TRIG:EDGE:SOUR EXT;SLOP NEG;SOUR?;SLOP?", b"AUTO;EXT;NEG", 0),
    (b":TRIG:EDGE:LEV 1,CHAN2;LEV 2,EXT;LEV?;LEV? CHAN2;LEV? EXT", b"+0.0E+00;+1.0E+00;+2.0E+00", 0),
    (b":TRIG:EDGE:LEV 31;LEV?", b"+0.0E+00", -222),
    (b":ACQ:TYPE HRES;TYPE?;COUN 4;COUN?", b"HRES;4", 0),
    (b":WAV:SOUR?;FORM?;BYT?;UNS?;POIN:MODE?", b"CHAN1;BYTE;MSBF;1;NORM", 0),
    (b":WAV:POIN:MODE RAW;:WAV:POIN MAX;POIN:MODE?;MODE RAW;MODE?", b"MAX;RAW", 0),
    (b":WAV:POIN 10", b"", -222),
    # Without a record, or without one of this channel.
    (b":WAV:POIN?;DATA?", b"+0", -230),
    (b":WAV:FORM WORD;PRE?", b"+1,+0,+0,+1,+0.0E+00,+0.0E+00,+0,+0.0E+00,+0.0E+00,+32768", 0),
    (b":SING;:TRIG:FORC;:WAV:SOUR CHAN2;DATA?", b"", -230),
    (b":SING;:OPER:COND?;:AER?;:AER?;:TER?;:TRIG:FORC;:OPER:COND?;:TER?;:TER?", b"40;1;0;0;0;1;0", 0),
    (b":SING;:STOP;:OPER:COND?;:WAV:DATA?", b"0", -230),
    (b":SING;:WAV:DATA?", b"", -230),
    (b":RUN;:OPER:COND?;:TRIG:FORC;:OPER:COND?;:WAV:POIN?;:STOP;:WAV:POIN?", b"40;40;+1000;+1000", 0),
]  # fmt: skip
TEKTRONIX = [
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
    # Records.
    (b"DAT:SOU:AVAIL?;:DAT:SOU CH2;SOU?;:CURV?", b"NONE;CH2", 2244),
    (b"DAT:WID 4;WID?;:WFMO:BYT_N 2;BIT_N?;:DAT:WID?", b"1;16;2", 222),
    (b"ACQ:STOPA SEQ;STATE RUN;:TRIG:STATE?;:BUSY?;:TRIG FORC;:ACQ:STATE?;NUMAC?;:TRIG:STATE?",
     b"READY;1;0;1;SAVE", 0),
    (b"ACQ:STOPA SEQ;STATE 1;:TRIG FORC;:DAT:SOU:AVAIL?;:WFMO:NR_P?;:DAT:STAR 24990;STOP 3E4;:WFMO:NR_P?;PT_O?",
     b"CH1;2500;11;-12489", 0),
    (b"ACQ:STATE ON;:TRIG FORC;:ACQ:NUMAC?;STATE?;:TRIG FORC;:ACQ:NUMAC?;STATE OFF;STATE?", b"1;1;2;0", 0),
    (b"SYST:ERR?", b"", 113),
]  # fmt: skip


@pytest.fixture
def bench():
    """Inputs 1 and 2 show outputs 1 and 2, and nothing lies between."""
    config = BenchConfig(inputs={1: Cable(output=1), 2: Cable(output=2)}, digitizer_ppm=0.0)
    with VirtualBench(config) as bench:
        bench.set_output(1, OutputSettings(on=True, waveform=Waveform(RAMP, 1e6)))
        bench.set_output(2, OutputSettings(on=True, waveform=Waveform(-2 * RAMP, 1e6, interpolation="linear")))
        yield bench


def quiet_mso(bench):
    scope = Mso54(bench)
    scope.execute(b"HEAD OFF;:ACQ:STATE STOP;:TRIG:A:MOD NORM;*CLS")
    return scope


@pytest.mark.parametrize(("message", "answer", "error"), KEYSIGHT)
def test_messages_of_keysight(bench, message, answer, error):
    scope = InfiniiVision(bench)
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


@pytest.mark.parametrize(("message", "answer", "error"), TEKTRONIX)
def test_messages_of_tektronix(bench, message, answer, error):
    scope = quiet_mso(bench)
    assert scope.execute(message) == answer
    scope.execute(b"HEAD OFF;VERB ON")
    status = int(scope.execute(b"*ESR?"))
    assert status == (0x10 if error >= 200 else 0x20 if error else 0)
    assert scope.execute(b"ALLE?").startswith(b"%d," % error)


def values(scope, message, dtype):
    answer = scope.execute(message)
    assert answer[:2] == b"#8"
    assert int(answer[2:10]) == len(answer) - 10
    return np.frombuffer(answer[10:], dtype).astype(float)


def test_formats_agree_and_clip_as_the_guide_says(bench):
    scope = InfiniiVision(bench)
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


def test_digitize_waits_until_it_is_cleared_or_triggers_itself(bench):
    scope = InfiniiVision(bench)
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


def test_events_wait_until_the_register_is_read(bench):
    scope = quiet_mso(bench)
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


def test_formats_agree_and_clip(bench):
    scope = quiet_mso(bench)
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


def test_a_single_acquisition_is_waited_for(bench):
    scope = quiet_mso(bench)
    asked = threading.Event()
    played = threading.Thread(target=lambda: (asked.wait(10), bench.start([1])))
    played.start()
    assert scope.execute(b"ACQ:STOPA SEQ;STATE RUN;*OPC?", lambda: bool(asked.set())) == b"1"
    played.join()
    assert scope.execute(b"ACQ:STATE RUN;*OPC?", lambda: True) == b"", "who clears it gets no answer"
    assert scope.execute(b"TRIG:A:MOD AUTO;:ACQ:STATE RUN;*OPC?") == b"1", "it triggers itself"


@pytest.mark.slow
def test_tm_devices_on_both_instruments(bench, tmp_path):
    """tm_devices takes no port, so that each instrument has a host of its own."""
    bench.set_output(2, OutputSettings())
    seen_at = tmp_path / "seen.json"
    with (
        HislipServer(Mso54(bench), "127.0.0.1", 4880),
        HislipServer(Afg3152C(bench), "127.0.0.2", 4880),
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


class Brand(NamedTuple):
    """An oscilloscope, its driver, and how the two differ from the others."""

    instrument: Any
    config: type[Any]
    more: dict[str, Any]
    asked: tuple[float, int]
    """Of a record: samples a second, and how many."""
    taken: tuple[float, int]
    lsb_v: dict[int, float]
    noise_v: float
    clipped: tuple[float, float]
    """Of channel 2 the share that lies beyond the screen, and how many samples it may be wrong by."""

    def driver(self, address: str, inputs: dict[int, Any] | None = None, **others: Any) -> Any:
        (kind,) = self.config.model_fields["kind"].annotation.__args__
        both = {1: Input(range_v=(-2.0, 2.0)), 2: Input(range_v=(-1.0, 1.5), impedance_ohm=50)}
        return self.config(kind=kind, address=address, inputs=inputs or both, **self.more, **others).build()


BRANDS = {
    # It falls by 4 V. The last samples lie below -1 V, or in steps 0 and 1.
    "keysight": Brand(
        InfiniiVision, KeysightInfiniiVisionConfig, {"acquisition": "normal"}, (20e6, 100_000), (100e6, 500_000),
        {1: 4.0 / 256, 2: 2.5 / 256}, 0.0005, ((1 + 1.5 * 2.5 / 256) / 4, 100),
    ),
    # The nearest rate to 7 MHz is below, and the next one above is 12.5 MHz. Of 16 bits, the noise of the trigger is
    # more than the steps; the last samples lie below the 10.24 divisions of 0.25 V, or in the last of their 256 steps.
    "tektronix": Brand(
        lambda bench: Mso54(bench, auxiliary_input=True), TektronixMsoConfig, {}, (7e6, 42_000), (12.5e6, 75_000),
        {1: 4.096 / 65536, 2: 2.56 / 65536}, 0.0005, ((2 + 0.25 - 1.28 + 0.01) / 4, 15),
    ),
}  # fmt: skip


@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
@pytest.mark.parametrize("name", BRANDS)
def test_our_driver_takes_down_what_the_bench_plays(bench, name, serving):
    brand = BRANDS[name]
    scope = brand.instrument(bench)
    # As somebody left it.
    scope.execute(b"CH1:POS 4;:FOO")
    with serving(scope) as address, brand.driver(address) as ours:
        rate, samples = brand.taken
        trigger = Trigger(source=1, level_v=0.25, before_s=1e-3)
        assert ours.configure([1, 2], trigger, *brand.asked) == rate
        for _ in range(2):
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            # The ramp crosses the level with the sample 3125, 3.125 ms after its begin.
            for number, lsb in brand.lsb_v.items():
                taken = record[number]
                assert (taken.sample_rate_hz, taken.start_s) == (pytest.approx(rate), pytest.approx(-1e-3))
                assert len(taken.volts) == samples
                since = 3.125e-3 + taken.start_s + np.arange(0.5, 2.8e-3 * rate) / taken.sample_rate_hz
                held = np.repeat(RAMP, 100)[(since * 100e6).astype(int)]
                joined = np.interp(since * 1e6, np.arange(5000), -2 * RAMP)
                expected = {1: held, 2: joined}[number]
                inside = np.abs(expected - 0.25) < (1.25 if number == 1 else 1.2)
                assert np.abs(taken.volts[: len(since)] - expected)[inside].max() < 0.5 * lsb + brand.noise_v
            assert record[1].clipped == 0
            share, wrong = brand.clipped
            assert record[2].clipped == pytest.approx(share * 5e-3 * rate, abs=wrong)
        ours.check_errors()
        ours.arm()
        with pytest.raises(DeviceFault, match=r"trigger not met within 0\.05 s"):
            ours.wait(0.05)
        with pytest.raises(DeviceFault, match=f"a record of {brand.asked[1] if name == 'keysight' else samples} sampl"):
            ours.fetch()
        # A falling edge of the other input, and a trigger from outside.
        for trigger, level in ((Trigger(source=2, level_v=1.0, slope="falling"), -0.5), (EXTERNAL, -1.0)):
            ours.configure([1], trigger, 20e6, 100)
            ours.arm()
            bench.start([1, 2])
            ours.wait(5.0)
            record = ours.fetch()
            assert {*record} == {1}
            assert record[1].volts[0] == pytest.approx(level, abs=brand.lsb_v[1] + 0.001)


REFUSED = {
    "keysight": [
        (
            {"memory_samples": 2_000_000},
            EXTERNAL,
            1e6,
            1_100_000,
            ConfigurationError,
            "500000 samples/s .* short",
        ),
        ({}, Trigger(source=1, level_v=5.0), 1e6, 1000, DeviceFault, "Data out of range"),
        ({"inputs": {1: Input(range_v=(99.0, 101.0))}}, EXTERNAL, 1e6, 1000, DeviceFault, "50 V, and 100 V was set"),
    ],
    "tektronix": [
        ({"memory_samples": 3000}, EXTERNAL, 1e6, 2500, ConfigurationError, "at most 3000 samples, 3125 are needed"),
        ({}, EXTERNAL, 7e9, 1000, ConfigurationError, r"takes 6\.25e\+09 samples/s at most, and 7e\+09 are needed"),
        ({}, EXTERNAL, 1e6, 1000, DeviceFault, "reports 224"),
        ({}, Trigger(source=1, level_v=5.0), 1e6, 1000, DeviceFault, "reports 222"),
        ({"inputs": {1: Input(range_v=(-2.0, 2.0), coupling="ac")}}, Trigger(source=1), 1e6, 1000, DeviceFault, "224"),
    ],
}


@pytest.mark.parametrize("name", BRANDS)
def test_our_driver_refuses_before_it_sends_anything(bench, name):
    brand = BRANDS[name]
    scope = InfiniiVision(bench) if name == "keysight" else quiet_mso(bench)
    with SocketServer(scope) as address:
        with brand.driver(address, memory_samples=1000) as ours:
            scope.execute(b"FOO")
            for inputs, trigger, samples, said in (
                ([1, 3], EXTERNAL, 1000, r"has no input 3 \(inputs: \[1, 2\]\)"),
                ([1], Trigger(source=4), 1000, "has no input 4"),
                ([1], EXTERNAL, 1001, "at most 1000 samples, 1001 are needed"),
            ):
                with pytest.raises(ConfigurationError, match=said):
                    ours.configure(inputs, trigger, 1e6, samples)
            outputs = {1: Output(range_v=(-1.0, 1.0))}
            other = TektronixAfg3000Config(kind="tektronix_afg3000", address=address, outputs=outputs).build()
            with pytest.raises(ConfigurationError, match=r"is no TektronixAfg3000"):
                other.open()
            # Nobody has sent *CLS.
            assert int(scope.execute(b"*ESR?")) & 32
        for settings, trigger, rate, samples, error, said in REFUSED[name]:
            with brand.driver(address, **settings) as ours, pytest.raises(error, match=said):
                ours.configure([1], trigger, rate, samples)


def test_a_waveform_goes_through_both_instruments(bench):
    """Generator, bench and oscilloscope with their drivers: volts come back within the steps of both converters."""
    outputs = {1: Output(range_v=(-0.8, 1.2), safe_v=0.1, load_ohm=50.0)}
    inputs = {1: Input(range_v=(-1.0, 1.5))}
    random = np.random.default_rng(3)
    # Each level lasts 10 samples, and the first one triggers.
    volts = np.repeat(np.concatenate(([1.0], random.uniform(-0.8, 1.2, 1999))), 10)
    with (
        SocketServer(Afg3152C(bench)) as generator_at,
        SocketServer(Mso54(bench)) as scope_at,
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
@pytest.mark.parametrize("serving", [SocketServer, HislipServer])
def test_pymeasure_reads_the_same(bench, serving, tmp_path):
    scope = InfiniiVision(bench)
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
