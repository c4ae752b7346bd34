"""`kind: visa` on an emulated Red Pitaya, which is generator and digitizer at one address."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ikeda_reference
import numpy as np
import pytest
from emulated_lab import Lab, emulated_lab
from ruamel.yaml import YAML

from reservoir_hw import open_reservoir
from reservoir_hw.cli import emulate
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected, DeviceError, DeviceFault
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.drivers.visa.links import resource_of
from reservoir_hw.drivers.visa.red_pitaya import RedPitayaDigitizerConfig, RedPitayaGeneratorConfig
from reservoir_hw.emulators.faults import FaultPlan
from reservoir_hw.emulators.lab import DIALECTS, virtual_lab
from reservoir_hw.emulators.physics.devices import Ikeda

UPLOAD = {"instrument": "generator", "at": "TRAC:DATA:DATA "}
TRIGGER = {"instrument": "generator", "at": "SOUR1:TRIG:INT"}
FETCH = {"instrument": "digitizer", "at": "DATA:OLD:N?"}
# What depends on the dialect: faults of any connection are tried elsewhere.
FAULTS: list[tuple[dict[str, Any], type[DeviceError], str | None]] = [
    ({**UPLOAD, "kind": "ignored"}, DeviceFault, r"TRAC:DATA:DATA\? has \d+ samples, and \d+ were sent"),
    ({**TRIGGER, "kind": "ignored"}, DeviceFault, "trigger not met within"),
    ({**TRIGGER, "kind": "disconnect"}, DeviceDisconnected, None),
    ({**FETCH, "kind": "wrong_length"}, DeviceFault, "samples was due"),
]


@contextmanager
def red_pitaya(faults: list[dict[str, Any]] | None = None) -> Iterator[Lab]:
    """With volts and memories that suit it. Its amplifier has a gain of 5."""
    plan = FaultPlan.model_validate_json(json.dumps({"faults": faults or []}), strict=True)
    with emulated_lab(dialect="red_pitaya", faults=plan) as lab:
        lab.config.update(scaling={"gain": 0.16}, marker_v=-0.2, points_per_node=2, samples_per_node=3.2)
        lab.config["generator"]["outputs"] = {"1": {"range_v": [-0.2, 0.2]}}
        lab.config["digitizer"]["inputs"]["2"] = {"range_v": [-1.0, 1.0]}
        yield lab


def inputs(steps: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (1, steps, 1))


def nrmse(found: Any, expected: Any) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


@pytest.mark.slow
def test_states_are_those_of_the_equation_by_one_connection() -> None:
    u = inputs(60)
    with red_pitaya() as lab:
        with open_reservoir(lab.config) as reservoir:
            config = reservoir._config  # pyright: ignore[reportAttributeAccessIssue]
            assert isinstance(config.generator, RedPitayaGeneratorConfig)
            assert isinstance(config.digitizer, RedPitayaDigitizerConfig)
            states = reservoir.run(u)[0]
            settings = reservoir.provenance()
            layout = reservoir._layout  # pyright: ignore[reportAttributeAccessIssue]
            bench = reservoir._bench  # pyright: ignore[reportAttributeAccessIssue]
            assert bench.generator._connection is bench.digitizer._connection
            assert len(bench.resources) == 1
        assert not lab.on()
    device = Ikeda(gain_per_v=5 * Ikeda().gain_per_v)
    truth = ikeda_reference.states(layout, u[0], device, config.read_at, 0.2, held=True)
    slower = ikeda_reference.states(layout, u[0], device, config.read_at, 0.2, tau_s=1.05 * device.tau_s, held=True)
    bound = np.hypot(device.noise_v, 2**-13 / np.sqrt(12)) / truth.std()
    assert nrmse(states, truth) < bound < nrmse(states, slower)
    assert settings["counters"]["saturations"] == 0
    assert settings["instruments"] == dict.fromkeys(("generator", "digitizer"), "REDPITAYA,INSTR2024,0,01-16")


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTS, ids=lambda case: f"{case[0]['kind']} {case[0]['at']}")
def test_each_fault_in_each_phase(case: tuple[dict[str, Any], type[DeviceError], str | None]) -> None:
    fault, kind, said = case
    # Two bursts; in each, codes and volts of two inputs are fetched.
    second = 5 if fault["at"] == FETCH["at"] else 2
    u = inputs(80)
    with red_pitaya([{**fault, "occurrence": second}]) as lab:
        for role in ("generator", "digitizer"):
            lab.config[role]["timeout_s"] = 0.3
        with open_reservoir(lab.config) as reservoir:
            with pytest.raises(kind, match=said) as raised:
                reservoir.run(u)
            assert not lab.on()
            states = raised.value.states
            assert states is not None
            assert 30 < raised.value.steps_done == states.shape[1] < 80
            reservoir.reset()
            again = reservoir.run(u)
            assert np.abs(again[:, : states.shape[1]] - states).max() < 0.05 * again.std()
        assert not lab.on()


@pytest.mark.slow
def test_the_file_that_emulate_prints_suits_it() -> None:
    dialect, u = DIALECTS["red_pitaya"], 6 * inputs(100)
    with virtual_lab(dialect) as lab:
        config = YAML(typ="safe", pure=True).load("\n".join(emulate._reservoir_file(dialect, lab)))
        with open_reservoir({**config, "inputs": 1}) as reservoir:
            states = reservoir.run(u)
            assert reservoir.counters.saturations == 0
        low_v, high_v = config["digitizer"]["inputs"][1]["range_v"]
        assert 0.5 * (high_v - low_v) < np.ptp(states) < high_v - low_v
        bursts = [event for event in lab.bench.log.events if event["event"] == "burst begins"]
        # 93 steps fit into one, of which 39 are rest and 39 are repeated in all but the first.
        assert len(bursts) == 5
        # The outputs reach 1 V, and the modulator needs more: there is an amplifier.
        assert 0.6 < bursts[0]["high_v"] < 1.0


OWNER = """
import json, sys
import numpy as np
from reservoir_hw import open_reservoir

with open_reservoir(json.loads(sys.argv[1])) as reservoir:
    reservoir.run(np.zeros((1, 5, 1)))
    print("played", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_the_guard_speaks_its_language() -> None:
    with red_pitaya() as lab:
        command = [sys.executable, "-c", OWNER, json.dumps(lab.config)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"played\n"
            assert lab.on()
            owner.send_signal(signal.SIGKILL)
        locks = HostLocks([resource_of(lab.config["generator"]["address"])])
        locks.acquire(20.0)
        assert not lab.on()
        locks.release()


def test_what_is_refused() -> None:
    with red_pitaya() as lab, emulated_lab() as other:
        for role in ("generator", "digitizer"):
            swapped = {**lab.config, role: {**lab.config[role], "address": other.config[role]["address"]}}
            swapped[role]["timeout_s"] = 0.5
            with pytest.raises(ConfigurationError, match=r"is .K(?i:eysight technologies),.*is no RedPitaya"):
                open_reservoir(swapped)
        wrong = {**lab.config["digitizer"], "outputs": {}}
        with pytest.raises(ConfigurationError, match=r"digitizer\.outputs: unknown key; did you mean 'inputs'"):
            parse_reservoir(Document.from_mapping({**lab.config, "digitizer": wrong}, "test"))
        assert lab.events() == []
