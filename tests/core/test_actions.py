"""What `hil:` names is done: functions are called, commands run in their folder, failures are one sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceFault
from reservoir_hw.core.reservoir_config import ReservoirConfig, parse_reservoir, perform
from reservoir_hw.testing.prerequisites import recover

BENCH = """\
from reservoir_hw.core.errors import DeviceBusy

def label(config):
    return config.name

def breaks(config):
    return 1 / 0

def leaves(config):
    raise SystemExit("gone")

def busy(config):
    raise DeviceBusy("bob has it")

number = 5
"""


@pytest.fixture
def config() -> ReservoirConfig:
    return parse_reservoir(Document.from_mapping({"kind": "esn", "nodes": 7}, "here"))


def test_a_function_gets_the_configuration(
    config: ReservoirConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hil_bench.py").write_text(BENCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert perform("hil_bench:label", config, "elsewhere", 1.0) == "ESN(7)"
    for name, error, message in (
        ("breaks", DeviceFault, "hil_bench:breaks: ZeroDivisionError: division by zero"),
        ("leaves", DeviceFault, "hil_bench:leaves: SystemExit: gone"),
        ("busy", DeviceBusy, "bob has it"),
        ("number", ConfigurationError, "hil: 'hil_bench:number' is not a function"),
        ("nothing", ConfigurationError, "hil: hil_bench has no function 'nothing'"),
    ):
        with pytest.raises(error, match=message):
            perform(f"hil_bench:{name}", config, tmp_path, 1.0)


def test_a_command_runs_in_its_folder_and_its_status_is_the_answer(
    config: ReservoirConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "laser").write_text("off")
    assert perform(["grep", "-q", "off", "laser"], config, tmp_path, 30.0) is True
    with caplog.at_level("INFO"):
        assert perform(("sh", "-c", "echo the laser is on >&2; exit 3"), config, tmp_path, 30.0) is False
    assert "ended with status 3: the laser is on" in caplog.text
    with pytest.raises(ConfigurationError, match=r"'no-such-program -x' cannot be started in .*: No such file"):
        perform(["no-such-program", "-x"], config, tmp_path, 30.0)
    with pytest.raises(ConfigurationError, match="cannot be started in"):
        perform(["true"], config, tmp_path / "nowhere", 30.0)


def test_a_device_that_was_not_recovered_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hil_power.py").write_text(
        "def cycle(config): pass\ndef refuse(config): return False\ndef busy(config): return 5\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def recovered_by(action: str | list[str]) -> None:
        recover(parse_reservoir(Document.from_mapping({"kind": "esn", "nodes": 7, "hil": {"recover": action}}, "here")))

    for done in ("hil_power:cycle", "hil_power:busy", ["true"]):
        recovered_by(done)
    with pytest.raises(DeviceFault, match=r"not recovered: hil_power:refuse returned False"):
        recovered_by("hil_power:refuse")
    with pytest.raises(DeviceFault, match=r"not recovered: \"sh -c 'echo no; exit 3'\" ended with status 3: no"):
        recovered_by(["sh", "-c", "echo no; exit 3"])


def test_a_command_that_takes_too_long_is_killed_with_what_it_has_started(
    config: ReservoirConfig, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "alive")
    # Nobody writes there any more when the grandchild, too, is dead.
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    try:
        script = "exec 3> alive; echo going home >&3; sleep 600 & echo slowly; wait"
        with pytest.raises(DeviceFault, match=r"did not end within 0.5 s and was killed: slowly; hil.timeout_s"):
            perform(["sh", "-c", script], config, tmp_path, 0.5)
        os.set_blocking(reader, True)
        assert os.read(reader, 100) == b"going home\n"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
