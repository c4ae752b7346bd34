"""`kind: pymeasure`: the file of docs/instruments.md, with PyMeasure's own classes on emulated instruments."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_lab import QUIET, configuration, emulated_lab
from emulators.foreign import run_witness

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, MissingExtra
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.drivers.visa.links import resource_of
from reservoir_hw.emulators.bench import BenchConfig

ROOT = Path(__file__).parents[3]
CHANNELS = {"generator": "outputs", "digitizer": "inputs"}


def documented(config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """With the instruments of docs/instruments.md, at the addresses and with the ranges of a bench."""
    page = (ROOT / "docs/instruments.md").read_text()
    found = copy.deepcopy(config)
    for role, channels in CHANNELS.items():
        (text,) = re.findall(rf"```yaml\n({role}:\n  kind: pymeasure\n.*?)```", page, flags=re.DOTALL)
        (tmp_path / "part.yaml").write_text(text)
        part = Document.from_file(tmp_path / "part.yaml").data[role]
        found[role] = {**part, "address": config[role]["address"], channels: config[role][channels]}
    # As JSON, which our classes read.
    return json.loads(json.dumps(found))


def changed(config: dict[str, Any], role: str, **more: Any) -> dict[str, Any]:
    return {**config, role: {**config[role], **more}}


NOWHERE = configuration("TCPIP::127.0.0.1::5025::SOCKET", "TCPIP::127.0.0.1::5026::SOCKET")


@pytest.mark.parametrize(
    ("role", "changes", "said"),
    [
        ("generator", {"upload": [{"call": "a", "arguments": ["{wave}"]}]}, r"upload has \{wave\}; known here are"),
        ("generator", {"upload": [{"call": "a", "set": {"b": 1}}]}, r"upload\.0.*a step has `set:` or `call:`"),
        ("generator", {"frequency_hz": "ch_1.frequency"}, "either sample_rate_hz or frequency_hz"),
        ("generator", {"safe": []}, "generator.safe"),
        ("generator", {"outputs": {"1": {"range_v": [0, 1]}, "2": {"range_v": [0, 1]}}}, "outputs.*at most 1"),
        ("generator", {"inputs": {}}, "generator.inputs: unknown key; did you mean 'outputs'"),
        ("digitizer", {"fetch": {"call": "a", "interval_s": [1]}}, "either times_s, or interval_s and start_s"),
        ("digitizer", {"done": {"value": 1}}, r"digitizer.done.*either `attr:` or `call:`"),
        ("digitizer", {"configure": [{"set": {"ch{output}.display": True}}]}, r"configure has \{output\}"),
    ],
)  # fmt: skip
def test_what_is_needed_and_not_given(role: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = documented(NOWHERE, tmp_path)
    parse_reservoir(Document.from_mapping(config, "test"))
    with pytest.raises(ConfigurationError, match=said):
        parse_reservoir(Document.from_mapping(changed(config, role, **changes), "test"))


@pytest.mark.skipif(importlib.util.find_spec("pymeasure") is not None, reason="PyMeasure is installed")
def test_without_pymeasure(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match="kind pymeasure needs PyMeasure: pip install pymeasure"):
        open_reservoir(documented(NOWHERE, tmp_path))


def driven(folder: Path, *configs: dict[str, Any]) -> list[dict[str, Any]]:
    """What a process with PyMeasure says about these reservoirs."""
    return [json.loads(line) for line in run_witness("pymeasure_bench.py", json.dumps(configs), folder).splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("hislip", [False, True])
def test_states_are_those_of_our_drivers(hislip: bool, tmp_path: Path) -> None:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 10, 1))
    with emulated_lab(BenchConfig().with_device(QUIET), hislip=hislip) as lab:
        with open_reservoir(lab.config) as reservoir:
            ours = reservoir.run(u)[0]
        theirs = documented(lab.config, tmp_path)
        both, mixed = driven(tmp_path, theirs, {**lab.config, "generator": theirs["generator"]})
        assert not lab.on()
        bursts = lab.events("burst begins")
    step_v = 0.2 / 4096
    for said in (both, mixed):
        assert "error" not in said, said
        assert said["saturations"] == 0
        assert np.abs(np.array(said["states"]) - ours).max() < 2 * step_v
        assert np.sqrt(np.mean((said["states"] - ours) ** 2)) < step_v
    # The same waveform, with the same levels, to the last digit of the converter.
    assert len({(one["samples"], round(one["rate_hz"])) for one in bursts}) == 1
    for name in ("low_v", "high_v"):
        assert {round(one[name], 4) for one in bursts} == {round(bursts[0][name], 4)}


@pytest.mark.slow
def test_what_goes_wrong(tmp_path: Path) -> None:
    with emulated_lab() as lab:
        good = documented(lab.config, tmp_path)
        upload = good["generator"]["upload"]
        cases = [
            (changed(good, "generator", upload=[{"set": {"ch_1.amplitud": 1}}]),
             r"ConfigurationError: ch_1.amplitud: Agilent33500Channel has no 'amplitud'; did you mean 'amplitude'"),
            (changed(good, "generator", instrument="pymeasure.instruments.agilent:Agilent33501"),
             "instrument: pymeasure.instruments.agilent has no class 'Agilent33501'; did you mean 'Agilent33500'"),
            (changed(good, "generator", instrument="json:JSONDecoder"), "is no class of PyMeasure's instruments"),
            (changed(good, "generator", connection={"speed": 1}), "(ConfigurationError|DeviceFault): .*speed"),
            (changed(good, "digitizer", address=good["generator"]["address"]),
             "ConfigurationError: .* is 'Keysight Technologies,33512B.*, which does not match identity"),
            (changed(good, "digitizer", address="TCPIP::127.0.0.1::1::SOCKET"), "DeviceDisconnected: .*nobody answers"),
            (changed(good, "generator", outputs={"1": {"range_v": [-0.5, 0.5], "load_ohm": 50}}),
             r"beyond range_v \[-0.5, 0.5\]"),
            (changed(good, "generator", outputs={"1": {"range_v": [-8, 8], "load_ohm": 1e4}}),
             r"ConfigurationError: ch_1.amplitude = 16.0 is refused by Agilent33500Channel: .*not in range"),
            (changed(good, "generator", tolerance=0, upload=[{"set": {"ch_1.frequency": 1000.1234567}}, *upload]),
             "DeviceFault: .*ch_1.frequency is 1000.123457, and 1000.1234567 was set"),
            (changed(good, "generator", upload=[{"call": "write", "arguments": ["NONSENSE"]}, *upload]),
             "DeviceFault: .*the instrument reports .*-113"),
            (changed(good, "generator", trigger=[{"call": "clear"}]), "DeviceFault: .*trigger not met within"),
            (changed(good, "digitizer", fetch={**good["digitizer"]["fetch"], "start_s": [1, "origin"]}),
             "ConfigurationError: .* the result of download_data has no 'origin'"),
            (changed(good, "digitizer", memory_samples=10_000_000, fetch={
                **good["digitizer"]["fetch"], "arguments": {"source": "channel{input}", "points": 5000}}),
             "DeviceFault: .*samples/s, and 1e\\+06 were asked for"),
        ]  # fmt: skip
        for config, _ in cases:
            config["digitizer"].setdefault("timeout_s", 1.0)
        answers = driven(tmp_path, *(config for config, _ in cases))
        for (_, expected), said in zip(cases, answers, strict=True):
            assert re.search(expected, said.get("error", "no error")), said.get("error", "no error")
        assert not lab.on()


@pytest.mark.slow
def test_the_guard_needs_no_pymeasure(tmp_path: Path) -> None:
    with emulated_lab() as lab:
        run_witness("pymeasure_killed.py", json.dumps(documented(lab.config, tmp_path)), tmp_path, status=-9)
        locks = HostLocks([resource_of(lab.config[role]["address"]) for role in CHANNELS])
        locks.acquire(20.0)
        was_on = lab.on()
        locks.release()
        assert not was_on
        assert [event["event"] for event in lab.events("on", "off")] == ["on", "off"]
