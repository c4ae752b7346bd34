"""Experiments from Python: whole runs with devices that fail in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw import Experiment
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError, DeviceDisconnected


def experiment(folder: Path) -> Experiment:
    return Experiment(
        {
            "task": {"kind": "elman_grammar", "sentences": 200},
            "reservoir": {"kind": "esn", "nodes": 10},
            "readout": {"kind": "ridge"},
            "run": {"folder": str(folder)},
        }
    )


def test_a_result_knows_its_rows_tables_and_figures(tmp_path: Path) -> None:
    result = experiment(tmp_path).run()
    assert result.status == "complete"
    assert result.metrics["rows"][0]["label"] == "ESN(10)"
    assert result.tables()
    assert set(result.figures()) == {"agreement_error", "probe", "roc"}


@pytest.mark.parametrize("failure", [DeviceDisconnected("cable pulled at tcp://10.0.0.7"), KeyboardInterrupt()])
def test_the_cause_survives_a_device_that_cannot_be_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: Any) -> Any:
        raise failure

    def dead(_: Any) -> Any:
        raise DeviceDisconnected("settings read-back failed")

    monkeypatch.setattr(Esn, "_run", fail)
    monkeypatch.setattr(Esn, "_settings", dead)
    with pytest.raises(type(failure)) as caught:
        experiment(tmp_path).run()
    assert caught.value is failure
    metrics = json.loads(next(tmp_path.glob("*/metrics.json")).read_text())
    assert metrics["status"] == ("interrupted" if isinstance(failure, KeyboardInterrupt) else "failed")
    assert "settings" not in metrics["problem"]


def test_baselines_say_where_they_cannot_be_run(tmp_path: Path) -> None:
    document = {
        **experiment(tmp_path).resolved(),
        "task": {"kind": "lorenz", "closed_loop": {"starts": 2}},
        "baselines": ["fir"],
    }
    with pytest.raises(ConfigurationError, match="baselines cannot be run in a closed loop"):
        Experiment(document).estimate()
