"""`hil:` of a reservoir: what it takes, where its paths begin, and that it decides about nothing kept or sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from served import ipc_address, served

from reservoir_hw import Experiment, open_reservoir
from reservoir_hw.backends.zeromq import ZmqReservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir, parse_reservoir
from reservoir_hw.experiment.states.harvest import store_path

HIL = {
    "not_offered": {"identity": "xyzzy: it is never the same twice"},
    "recover": ["xyzzy", "--on"],
    "safe_check": "xyzzy:laser_is_off",
    "fault": "xyzzy:pull_the_plug",
    "twin": "xyzzy.yaml",
    "golden": "xyzzy_trace",
    "timeout_s": 5.0,
}


def parsed(path: Path) -> ReservoirConfig:
    return parse_reservoir(Document.from_file(path))


def test_paths_belong_to_the_file_in_which_hil_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("lab", "desk"):
        (tmp_path / name).mkdir()
    lab, twin = tmp_path / "lab", str(tmp_path / "lab" / "film.yaml")
    (lab / "bench.yaml").write_text("kind: esn\nnodes: 5\nhil:\n  twin: film.yaml\n  golden: s3://lab/trace\n")
    (tmp_path / "desk" / "mine.yaml").write_text("extends: ../lab/bench.yaml\nnodes: 6\n")
    (tmp_path / "desk" / "task.yaml").write_text(
        "task: {kind: narma}\nreservoir: {kind: esn, nodes: 3}\nreadout: {kind: ridge}\n"
    )
    experiment = Experiment.from_file("desk/task.yaml", reservoir="lab/bench.yaml")
    for config in (parsed(Path("lab/bench.yaml")), parsed(Path("desk/mine.yaml")), experiment.config.reservoir):
        assert config.hil is not None
        assert (config.hil.folder, config.hil.twin, config.hil.golden) == (lab, twin, "s3://lab/trace")
    assert experiment.points[0].config.reservoir.hil == experiment.config.reservoir.hil
    (lab / "both.yaml").write_text(
        "kind: parallel\ndevices:\n  - reservoir: {kind: esn, nodes: 5, hil: {twin: film.yaml}}\n"
    )
    both: Any = parsed(Path("lab/both.yaml"))
    assert both.devices[0].reservoir.hil.twin == twin
    here = parse_reservoir(Document.from_mapping({"kind": "esn", "nodes": 5, "hil": {"twin": "film.yaml"}}, "test"))
    assert here.hil is not None
    assert (here.hil.folder, here.hil.twin) == (tmp_path, str(tmp_path / "film.yaml"))


@pytest.mark.parametrize(
    ("hil", "message"),
    [
        ("not_offered: {memori: it has none}", r"lab.yaml:4: hil.not_offered.memori.*should be 'repeatability', .*"),
        ("not_offered: {memory: '  '}", r"lab.yaml:4: hil.not_offered.memory = '  ': say why"),
        ("recover: plug", r"lab.yaml:4: hil.recover = 'plug': it must be module:function, or a command as a list"),
        ("recover: []", r"lab.yaml:4: hil.recover: it must be module:function, or a command as a list"),
        ("safe_check: [power, 3]", r"lab.yaml:4: hil.safe_check: it must be module:function, or a command"),
        ("timeout_s: 0", r"lab.yaml:4: hil.timeout_s = 0: input should be greater than 0"),
        ("timeout: 3", r"lab.yaml:4: unknown key 'hil.timeout'; did you mean 'timeout_s'"),
    ],
)
def test_mistakes_are_one_sentence_with_their_line(tmp_path: Path, hil: str, message: str) -> None:
    (tmp_path / "lab.yaml").write_text(f"kind: esn\nnodes: 5\nhil:\n  {hil}\n")
    with pytest.raises(ConfigurationError, match=message) as caught:
        parsed(tmp_path / "lab.yaml")
    assert "\n" not in str(caught.value)


def test_it_decides_about_nothing_that_is_kept_or_sent(tmp_path: Path) -> None:
    def experiment(hil: dict[str, Any]) -> Experiment:
        return Experiment(
            {
                "task": {"kind": "narma", "train_steps": 300, "test_steps": 100},
                "reservoir": {"kind": "esn", "nodes": 5, **hil},
                "readout": {"kind": "ridge"},
                "run": {"folder": str(tmp_path), "states": str(tmp_path / "states")},
            }
        )

    without, with_it = experiment({}), experiment({"hil": HIL})
    assert with_it.config.reservoir.hil is not None
    keys = [store_path(each.points[0], each.config.task.build()) for each in (without, with_it)]
    assert keys[0] == keys[1]
    device = with_it.config.reservoir.for_inputs(1)
    with open_reservoir({"kind": "esn", "nodes": 5, "inputs": 1}) as bare, build_reservoir(device) as reservoir:
        assert reservoir.spec.identity.fingerprint == bare.spec.identity.fingerprint
        assert "xyzzy" not in repr(reservoir.provenance())
    with ipc_address() as address, served(build_reservoir(device), address):
        far = open_reservoir({"kind": "zmq", "address": address, "hil": HIL})
        assert isinstance(far, ZmqReservoir)
        with far:
            told = [far._connection.welcome, far._declaration, far.status(), far.provenance()]
            assert far.spec.nodes == 5
    assert "xyzzy" not in repr(told)
