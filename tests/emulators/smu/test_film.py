"""The emulated source-measure unit on its film: what it refuses, its clock, and a driver of others on it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw import open_reservoir
from reservoir_hw.emulators.physics.devices import Film, FilmConfig
from reservoir_hw.emulators.smu.lab import Supply, SwitchMatrix, film_lab
from reservoir_hw.emulators.smu.source import FilmBench, SourceMeter

VOLTS = [round(float(volts), 4) for volts in np.random.default_rng(3).uniform(0.2, 0.8, 30)]
CHANNELS = [101, 104, 108]


@pytest.fixture
def bench() -> FilmBench:
    return FilmBench(FilmConfig())


def said(device: SourceMeter | SwitchMatrix | Supply, *messages: str) -> list[str]:
    return [device.execute(message.encode()).decode() for message in messages]


def errors_of(device: SourceMeter | SwitchMatrix | Supply) -> list[str]:
    found = []
    while not (entry := said(device, "SYST:ERR?")[0]).startswith("0"):
        found.append(entry)
    return found


def test_words_in_short_and_long_form(bench: FilmBench) -> None:
    smu, switch = SourceMeter(bench), SwitchMatrix(bench)
    said(switch, "ROUT:CLOS (@101)")
    said(smu, ":SOURCE:VOLTAGE 0.5", ":SENSE:CURRENT:PROTECTION 1e-3", "OUTPUT ON", ":FORMAT:ELEMENTS CURRENT, VOLTAGE")
    assert said(smu, "OUTP?", ":SOUR:VOLT?", ":SENS:CURR:PROT?") == ["1", "+5.000000E-01", "+1.000000E-03"]
    # The order of the elements is the instrument's. What is not measured has no number.
    volts, amperes = said(smu, ":MEASURE:CURRENT?")[0].split(",")
    assert (volts, float(amperes)) == ("+5.000000E-01", pytest.approx(1e-5))
    assert said(smu, ":MEAS:VOLT?")[0].split(",")[1] == "+9.910000E+37"
    assert said(switch, "ROUTE:CLOSE?", "TEMP?") == ["(@101)", "22.5000"]
    assert errors_of(smu) == errors_of(switch) == []


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        (["OUTP OFF", "READ?"], '803,"Not permitted with OUTPUT off"'),
        (["SOUR:VOLT 211"], '-222,"Data out of range"'),
        (["SOUR:FUNC CURR"], '-221,"Settings conflict; this bench has no source of current"'),
        (["SOUR:VOLT 0.1;READ?"], '-113,"Undefined header"'),
        ([f"SOUR:LIST:VOLT {','.join(['0'] * 101)}"], '-223,"Too much data"'),
    ],
)
def test_what_the_source_refuses(bench: FilmBench, messages: list[str], error: str) -> None:
    smu = SourceMeter(bench)
    assert "".join(said(smu, *messages)) == ""
    assert errors_of(smu) == [error]


def test_a_list_is_as_single_levels() -> None:
    answers = []
    for is_list in (True, False):
        bench = FilmBench(FilmConfig())
        smu = SourceMeter(bench)
        said(SwitchMatrix(bench), "ROUT:CLOS (@103)")
        said(smu, "SENS:CURR:PROT 1", "FORM:ELEM CURR", "OUTP ON")
        if is_list:
            said(smu, f"SOUR:LIST:VOLT {','.join(map(str, VOLTS))}", "SOUR:VOLT:MODE LIST", f"TRIG:COUN {len(VOLTS)}")
            answers.append(said(smu, "READ?")[0])
        else:
            answers.append(
                ",".join(answer for volts in VOLTS for answer in said(smu, f"SOUR:VOLT {volts}", "READ?")[1:])
            )
    assert answers[0] == answers[1]


def test_the_film_remembers_on_the_clock_of_steps_and_forgets_when_it_is_off(bench: FilmBench) -> None:
    bench.connect([5])
    bench.switch(True)
    fresh = bench.measure()[1]
    bench.set_source(0.8)
    assert bench.measure()[1] > fresh
    bench.switch(False)
    assert bench.measure()[1] == fresh
    events = [(event["event"], event["volts"]) for event in bench.log.events]
    assert events == [("off", 0.0), ("on", 0.0), ("level", 0.8), ("off", 0.0)]


def test_the_film_on_the_wall_is_that_of_the_equation() -> None:
    # One electrode that nothing drives but the source: the equation has a solution.
    config = FilmConfig(electrodes=1, fastest_s=0.2, slowest_s=0.2)
    film = Film(config)
    for _ in range(7):
        film.advance(0.4, 0.03)
    driven = (0.4 / config.volts) ** 2
    w = driven / (1 + driven) * (1 - np.exp(-(1 + driven) / 0.2 * 0.21))
    assert film.conductance_s(0) == pytest.approx(config.off_s + (config.on_s - config.off_s) * w, rel=1e-12)


@pytest.mark.slow
def test_pymeasure_sees_what_the_lines_of_a_file_see(tmp_path: Path) -> None:
    with film_lab() as lab:
        asked = {"source": lab.source, "switch": lab.switch, "volts": VOLTS, "channels": CHANNELS}
        seen = json.loads(run_witness("pymeasure_2400.py", json.dumps(asked), tmp_path))
        assert lab.bench.log.events[-1]["event"] == "off"
    assert seen["source_voltage"] == 0.0
    with film_lab() as lab, open_reservoir(of_lab(lab.source, lab.switch)) as reservoir:
        states = reservoir.run(np.array(VOLTS)[None, :, None])
    assert states[0].tolist() == seen["currents"]


def of_lab(source: str, switch: str) -> dict[str, object]:
    setup = ["*RST", "FORM:ELEM CURR", "SENS:CURR:PROT 1e-3", "OUTP ON"]
    read = {"to": "source", "ask": "READ?"}
    return {
        "kind": "commands",
        "instruments": {"source": {"address": source, "setup": setup}, "switch": {"address": switch}},
        "step": [
            {"to": "source", "write": "SOUR:VOLT {u[0]:.6g}"},
            {"for": {"k": CHANNELS}, "to": "switch", "write": "ROUT:CLOS (@{k})", "then": read},
        ],
        "nodes": len(CHANNELS),
        "continuity": "held",
        "simulated": True,
    }
