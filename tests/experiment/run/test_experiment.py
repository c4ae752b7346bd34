"""Experiments from Python: whole runs with devices that fail in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared import narma

from reservoir_hw import Experiment, open_reservoir
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


def test_a_result_is_short_in_words_and_gives_its_arrays(tmp_path: Path) -> None:
    vary = {"readout.alpha": [1e-6, 1.0]}
    one = narma(tmp_path, reservoir={"nodes": 20}, baselines=[{"kind": "fir", "taps": 5}], vary=vary)
    (store,) = one.harvest()
    result = one.run()
    assert one.result is result
    assert repr(one) == "<Experiment 'experiment': narma on ESN(20), 2 points>"
    assert repr(result) == f"<Result 'experiment': complete, in {result.folder}>"
    assert repr(store) == f"<StateStore {store.path}: complete, test (1, 200, 20), train (1, 400, 20)>"
    page = result._repr_html_()
    assert page.startswith("<table><caption>NARMA")
    assert "ESN(20) alpha=1" in page
    assert len(page) < 4000
    for row in (1, 2):
        metrics = one.points[0].config.task.build().evaluate(result.outputs(row)).metrics
        assert metrics == result.rows[row].evaluation.metrics
    np.testing.assert_array_equal(result.outputs(), result.outputs(1))
    assert result.targets().shape == result.outputs().shape
    assert result.states()["train"].shape == (1, 400, 20)
    frame = result.to_frame()
    assert list(frame["model"]) == [row.label for row in result.rows]
    assert list(frame["nrmse"]) == [row.evaluation.metrics["nrmse"] for row in result.rows]
    assert result.plot(2).axes[0].get_title() == "ESN(20) alpha=1"
    with pytest.raises(ConfigurationError, match=r"row 0 is not that of a readout; there are: 1 \(ESN\(20\) alpha"):
        result.outputs(0)
    with open_reservoir({"kind": "esn", "nodes": 20, "inputs": 1}) as reservoir:
        assert repr(reservoir) == "<Esn reservoir_hw esn (simulation): 1 inputs -> 20 nodes, open>"


@pytest.mark.slow
def test_keys_that_vary_have_a_figure_and_the_report_says_settings_and_durations(
    pictures: None, tmp_path: Path
) -> None:
    document: dict[str, Any] = {
        "task": {"kind": "narma", "train_steps": 300, "test_steps": 100},
        "reservoir": {"kind": "esn", "nodes": 20, "vary": {"seed": [0, 1], "leak_rate": [0.5, 1.0]}},
        "readout": {"kind": "ridge", "washout": 20},
        "run": {"folder": str(tmp_path), "states": None},
        "vary": {"readout.alpha": [1e-6, 1e-3, 10.0]},
    }
    result = Experiment(document).run()
    (axes, _) = result.figures()["vary"].axes
    scores = {(row.point["readout.alpha"], row.point["reservoir.leak_rate"]): [] for row in result.rows}
    for row in result.rows:
        scores[row.point["readout.alpha"], row.point["reservoir.leak_rate"]].append(row.evaluation.metrics["nrmse"])
    drawn = np.asarray(axes.images[0].get_array()).ravel()
    np.testing.assert_allclose(drawn, [np.mean(scores[key]) for key in sorted(scores)])
    assert f"the best, {drawn.min():.3g}" in axes.get_title(loc="left")
    assert {path.name for path in (result.folder / "figures").glob("vary.*")} == {"vary.png", "vary.pdf"}
    page = (result.folder / "report.html").read_text()
    assert "train_steps: 300" in page
    assert "out_of_range" not in page.partition("How to repeat this")[0]
    assert "Duration of each row" in page
    del document["reservoir"]["vary"]["leak_rate"]
    curve = Experiment(document).run(report=False).figures()["vary"].axes[0]
    assert curve.get_xscale() == "log"
    assert curve.get_title(loc="left").startswith("nrmse by readout.alpha")
    pairs = [{"reservoir.nodes": 10}, {"reservoir.nodes": 20, "readout.kind": "rls"}]
    del document["reservoir"]["vary"]
    rows = {**document, "readout": {"kind": "ridge"}, "vary": pairs}
    assert "vary" not in Experiment(rows).run(report=False).figures()


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
    with pytest.raises(ConfigurationError, match="baseline fir cannot be run in a closed loop: take nvar"):
        Experiment(document).estimate()
