from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reservoir_hw import Experiment
from reservoir_hw.cli import app
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.bench.bench import Bench, bench
from reservoir_hw.experiment.bench.standard import ALPHAS, standard_tasks
from reservoir_hw.experiment.run.folder import write_yaml

ESN = {"kind": "esn", "nodes": 50, "spectral_radius": 0.7, "input_scaling": 2.0, "bias_scaling": 0.3}


@pytest.fixture
def esn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "esn.yaml", ESN)
    return tmp_path / "esn.yaml"


def runs_in(folder: Path) -> dict[str, int]:
    """The run folders, with the time at which each was written for the last time."""
    return {
        str(run.relative_to(folder)): (run / "metrics.json").stat().st_mtime_ns
        for run in folder.glob("*/*-*")
        if (run / "metrics.json").exists()
    }


def test_every_standard_task_can_be_planned(esn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESERVOIR_HW_DATA", "")
    names = [name for name, one in standard_tasks().items() if not one.of_recordings]
    without_data = [name for name in names if name not in {"santa_fe", "japanese_vowels"}]
    made = Bench(esn, only=without_data, quick=True)
    assert list(made.planned) == without_data
    for name, plan in made.planned.items():
        models = {one.model for one in plan.candidates}
        assert models == {"device", "register", "polynomial", "encoder only"}, name
        # As many penalties for each.
        assert all(
            sum(one.reservoir == tried for one in plan.candidates) == len(ALPHAS)
            for tried in [one.reservoir for one in plan.candidates]
        )


def test_scores_are_those_of_the_experiment_with_the_chosen_settings(esn: Path) -> None:
    result = bench(esn, only=["parity"], quick=True, folder="out")
    score = result.scores["parity"]
    task = {"kind": "parity", "bits": 3, "train_steps": 1000, "test_steps": 1000}

    def by_hand(of: dict[str, Any], alpha: float, reservoir: dict[str, Any]) -> dict[str, float]:
        readout = {"kind": "ridge", "washout": 100, "alpha": alpha}
        file = {"task": of, "reservoir": reservoir, "readout": readout, "training": {"continuous": True}}
        return Experiment({**file, "run": {"folder": "by_hand"}}).run(report=False).rows[0].evaluation.metrics

    validation = {"kind": "validation", "task": task}
    losses = [by_hand(validation, alpha, ESN)["nmse"] for alpha in ALPHAS]
    device = score.models["device"]
    assert device.alpha == ALPHAS[int(np.argmin(losses))]
    assert device.metrics == [by_hand(task, device.alpha, ESN)]
    assert (device.tried, device.weights) == (5, 50)
    polynomial = score.models["polynomial"]
    assert polynomial.metrics[0]["error_rate"] == 0
    assert polynomial.tried == 15
    assert score.models["register"].metrics[0]["error_rate"] > 0.3
    page = (result.folder / "report.html").read_text()
    assert "Parity of 3 bits" in page
    assert "@media print" in page
    assert (result.folder / "figures" / "scores.png").stat().st_size > 5000
    kept = json.loads((result.folder / "metrics.json").read_text())
    assert kept["tasks"]["parity"]["models"]["device"]["mean"] == device.metrics[0]["error_rate"]


def test_after_an_interruption_only_what_is_missing_is_run(esn: Path) -> None:
    def stop(what: str, at: int, total: int) -> None:
        if what.startswith("parity"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        bench(esn, only=["parity", "memory"], quick=True, progress=stop)
    assert "1 of 2 tasks are in runs/bench-esn" in stopped.value.__notes__[-1]
    folder = Path("runs/bench-esn")
    assert json.loads((folder / "metrics.json").read_text())["status"] == "interrupted"
    before = {name: time for name, time in runs_in(folder).items() if name.startswith("memory")}
    assert len(before) == 2
    result = bench(esn, only=["parity", "memory"], quick=True)
    after = runs_in(folder)
    assert {name: after[name] for name in before} == before
    assert list(result.scores) == ["memory", "parity"]
    # A test that was cut off is run again, and what was chosen for it is not.
    cut = next(folder.glob("parity/test-*/provenance.json"))
    cut.write_text(cut.read_text().replace('"complete"', '"running"'))
    assert bench(esn, only=["parity", "memory"], quick=True).scores == result.scores
    new = set(runs_in(folder)) - set(after)
    assert [name.partition("-")[0] for name in new] == ["parity/test"]
    # Other settings of the device are another bench.
    chosen = len(list(folder.glob("parity/choose-*")))
    bench(esn, only=["parity"], quick=True, set={"nodes": 40})
    assert len(list(folder.glob("parity/choose-*"))) == chosen + 1


def test_a_baseline_that_does_not_suit_is_left_out_and_said(esn: Path) -> None:
    write_yaml(
        Path("two.yaml"), {"kind": "parallel", "devices": [{"reservoir": ESN}, {"reservoir": {**ESN, "seed": 1}}]}
    )
    result = bench("two.yaml", only=["parity"], quick=True)
    assert list(result.scores["parity"].models) == ["device", "register", "polynomial"]
    assert any("encoder_only was left out: " in warning for warning in result.warnings)


def test_a_budget(esn: Path) -> None:
    full, quick = Bench(esn, only=["parity"]), Bench(esn, only=["parity"], quick=True)
    assert full.device_steps == 3000 + 3 * 6000
    assert quick.device_steps == 1000 + 2000
    assert Bench(esn, only=["parity"], budget="21000").device_steps == 21000
    once = Bench(esn, only=["parity"], budget="20_000")
    assert (once.device_steps, once.planned["parity"].quick) == (9000, False)
    assert Bench(esn, only=["parity"], budget="3000").device_steps == 3000
    with pytest.raises(ConfigurationError, match="budget 2999 is too small: at least 3,000 device steps are needed"):
        Bench(esn, only=["parity"], budget="2999")
    with pytest.raises(ConfigurationError, match=r"is a time, but .* declares no step_period_s"):
        Bench(esn, only=["parity"], budget="10m")


def test_of_a_recording_what_its_inputs_allow(esn: Path) -> None:
    """A trace of the inputs of a task is worth what the device was that it was recorded on."""
    live = bench(esn, only=["parity"], quick=True)
    task = {"kind": "parity", "bits": 3, "train_steps": 1000, "test_steps": 1000}
    readout = {"kind": "ridge", "washout": 100}
    file = {"task": task, "reservoir": ESN, "readout": readout, "training": {"continuous": True}}
    Experiment({**file, "run": {"record": "trace"}}).run(report=False)
    write_yaml(Path("replay.yaml"), {"kind": "replay", "trace": "trace"})
    made = Bench("replay.yaml", quick=True)
    assert set(made.planned) == {"parity", "trace_recall", "trace_forecast", "trace_narma2", "trace_product"}
    assert "does not hold the inputs" in made.not_run["narma10"]
    result = bench("replay.yaml", quick=True, only=["parity", "trace_recall"])
    replayed, device = (one.scores["parity"].models["device"] for one in (result, live))
    assert replayed.metrics == device.metrics
    assert result.scores["trace_recall"].models["register"].metrics[0]["nrmse/3"] < 1e-3
    with pytest.raises(ConfigurationError, match="narma10: the trace trace does not hold the inputs of this task"):
        bench("replay.yaml", quick=True, only=["narma10"])


def test_inputs_outside_the_range_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the open device knows: the task is left out, and one that is named is refused."""
    monkeypatch.chdir(tmp_path)
    Path("benched_lab.py").write_text("import numpy as np\ndef call(u):\n    return np.tanh(np.repeat(u, 5, axis=1))\n")
    monkeypatch.syspath_prepend(tmp_path)
    device = {"kind": "python", "call": "benched_lab:call", "nodes": 5, "simulated": True, "continuity": "free_running"}
    device |= {"reset": {"kind": "none", "reason": "it has no memory"}}
    write_yaml(Path("lab.yaml"), {**device, "input_range": [-1.0, 1.0]})
    with pytest.raises(ConfigurationError, match=r"channel_equalisation: input at .* outside the range \[-1, 1\]"):
        bench("lab.yaml", only=["channel_equalisation"], quick=True)
    some = {name: standard_tasks()[name] for name in ("memory", "channel_equalisation", "henon")}
    monkeypatch.setattr("reservoir_hw.experiment.bench.bench.standard_tasks", lambda: some)
    result = bench("lab.yaml", quick=True)
    assert list(result.scores) == ["memory"]
    assert result.scores["memory"].models["encoder only"].weights == 1
    assert "outside the range [-1, 1]" in result.not_run["channel_equalisation"]
    assert set(result.not_run) == {"channel_equalisation", "henon"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nothing.yaml"], "nothing.yaml"),
        (["esn.yaml", "--only", "narma"], "there is no standard task 'narma'; there are: narma10, "),
        (["esn.yaml", "--only", "trace_recall"], "trace_recall: this task is for recordings"),
        (["esn.yaml", "--only", "parity", "--budget", "10"], "the budget 10 is too small"),
        (["esn.yaml", "--budget", "soon"], "'soon' is no budget"),
        (["esn.yaml", "--set", "nodes=-1"], "nodes"),
        (["replay.yaml", "--only", "parity"], "missing"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_driven(esn: Path, arguments: list[str], problem: str) -> None:
    write_yaml(esn.parent / "replay.yaml", {"kind": "replay", "trace": "missing"})
    found = CliRunner().invoke(app, ["bench", *arguments])
    assert found.exit_code == 2
    assert problem in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert not Path("runs").exists()


@pytest.mark.slow
def test_the_quick_page_of_a_network(esn: Path) -> None:
    found = CliRunner().invoke(app, ["bench", str(esn), "--quick", "--json"])
    assert found.exit_code == 0, found.stderr
    tasks = json.loads(found.stdout)["tasks"]
    assert len(tasks) >= 10
    means = {name: {model: one["mean"] for model, one in task["models"].items()} for name, task in tasks.items()}
    # What the autoregression of the same system must reach, whatever the network does.
    assert means["henon"]["polynomial"] > 8
    assert means["lorenz"]["polynomial"] > 5
    assert means["narma10"]["polynomial"] < means["narma10"]["register"] < means["narma10"]["encoder only"]
    assert means["memory"]["register"] == pytest.approx(20, abs=0.01)
