from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import ipc_address, served
from typer.testing import CliRunner

from reservoir_hw import Experiment
from reservoir_hw.cli import app
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir_config import parse_reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.experiment.bench.bench import Bench, bench
from reservoir_hw.experiment.bench.result import Cost, Ledger
from reservoir_hw.experiment.bench.standard import SETTINGS, penalties, standard_tasks
from reservoir_hw.experiment.run.result import write_yaml

ESN = {"kind": "esn", "nodes": 50, "spectral_radius": 0.7, "input_scaling": 2.0, "bias_scaling": 0.3}


@pytest.fixture
def esn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_yaml(tmp_path / "esn.yaml", ESN)
    return tmp_path / "esn.yaml"


@pytest.fixture
def few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not about choosing needs no fifteen settings."""
    monkeypatch.setattr("reservoir_hw.experiment.bench.standard.SETTINGS", 2)


def runs_in(folder: Path) -> dict[str, int]:
    """The run folders, with the time at which each was written for the last time."""
    return {
        str(run.relative_to(folder)): (run / "metrics.json").stat().st_mtime_ns
        for run in folder.glob("*/*-*")
        if (run / "metrics.json").exists()
    }


@pytest.mark.slow
def test_every_standard_task_can_be_planned(esn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESERVOIR_HW_DATA", "")
    names = [name for name, one in standard_tasks().items() if not one.of_recordings]
    without_data = [name for name in names if name not in {"santa_fe", "japanese_vowels"}]
    made = Bench(esn, only=without_data, quick=True)
    assert list(made.planned) == without_data
    for name, plan in made.planned.items():
        models = {one.model for one in plan.candidates}
        assert models == {"device", "register", "polynomial", "encoder only"}, name
        for model in models:
            tried = [one for one in plan.candidates if one.model == model]
            assert len({(str(one.reservoir), one.alpha) for one in tried}) == SETTINGS, (name, model)
            assert {max(one.alpha for one in tried), min(one.alpha for one in tried)} == {1.0, 1e-8}


@pytest.mark.slow
def test_scores_are_those_of_the_experiment_with_the_chosen_settings(pictures: None, esn: Path) -> None:
    result = bench(esn, only=["parity"], quick=True, folder="out")
    score = result.scores["parity"]
    task = {"kind": "parity", "bits": 3, "train_steps": 1000, "test_steps": 1000}

    def by_hand(of: dict[str, Any], alpha: float, reservoir: dict[str, Any]) -> dict[str, float]:
        readout = {"kind": "ridge", "washout": 100, "alpha": alpha}
        file = {"task": of, "reservoir": reservoir, "readout": readout, "training": {"continuous": True}}
        return Experiment({**file, "run": {"folder": "by_hand"}}).run(report=False).rows[0].evaluation.metrics

    validation = {"kind": "validation", "task": task}
    losses = [by_hand(validation, alpha, ESN)["nmse"] for alpha in penalties(15)]
    device = score.models["device"]
    assert device.alpha == penalties(15)[int(np.argmin(losses))]
    assert device.loss == min(losses)
    assert device.metrics == [by_hand(task, device.alpha, ESN)]
    assert (device.tried, device.weights) == (15, 50)
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


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_after_an_interruption_only_what_is_missing_is_run(esn: Path) -> None:
    def stop(what: str, at: int, total: int) -> None:
        if what.startswith("parity"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        bench(esn, only=["parity", "memory"], quick=True, progress=stop)
    assert "1 of 2 tasks are in runs/bench-esn/quick" in stopped.value.__notes__[-1]
    folder = Path("runs/bench-esn/quick")
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


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_a_bench_never_loses_the_page_of_another(esn: Path) -> None:
    first = bench(esn, only=["parity", "memory"], quick=True)
    assert first.folder == Path("runs/bench-esn/quick")
    # Fewer tasks: the others stay on the page.
    again = bench(esn, only=["parity"], quick=True)
    assert list(again.scores) == ["memory", "parity"]
    # Another reservoir, or a file of the same name elsewhere, has a folder of its own.
    assert bench(esn, only=["parity"], quick=True, set={"nodes": 40}).folder == Path("runs/bench-esn-2/quick")
    Path("lab").mkdir()
    write_yaml(Path("lab/esn.yaml"), ESN)
    assert bench("lab/esn.yaml", only=["parity"], quick=True).folder == Path("runs/bench-esn-3/quick")
    assert set(json.loads((first.folder / "metrics.json").read_text())["tasks"]) == {"memory", "parity"}


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_a_baseline_that_does_not_suit_is_left_out_and_said(esn: Path) -> None:
    write_yaml(
        Path("two.yaml"), {"kind": "parallel", "devices": [{"reservoir": ESN}, {"reservoir": {**ESN, "seed": 1}}]}
    )
    result = bench("two.yaml", only=["parity"], quick=True)
    assert list(result.scores["parity"].models) == ["device", "register", "polynomial"]
    assert any("encoder only was left out: " in warning for warning in result.warnings)


@pytest.mark.slow
def test_a_budget(esn: Path) -> None:
    full, quick = Bench(esn, only=["parity"]), Bench(esn, only=["parity"], quick=True)
    assert full.cost.steps == 3000 + 3 * 6000
    assert quick.cost.steps == 1000 + 2000
    assert Bench(esn, only=["parity"], budget="21000").cost.steps == 21000
    once = Bench(esn, only=["parity"], budget="20_000")
    assert (once.cost.steps, once.planned["parity"].form.quick) == (9000, False)
    assert Bench(esn, only=["parity"], budget="3000").cost.steps == 3000
    with pytest.raises(ConfigurationError, match="budget 2999 is too small: at least 3,000 device steps are needed"):
        Bench(esn, only=["parity"], budget="2999")
    with pytest.raises(ConfigurationError, match=r"is a time, but .* declares no step_period_s"):
        Bench(esn, only=["parity"], budget="10m")


@pytest.mark.slow
def test_no_closed_loop_of_a_device_that_runs_freely(esn: Path) -> None:
    device = {"kind": "python", "call": "operator:neg", "nodes": 1, "simulated": True, "continuity": "free_running"}
    write_yaml(esn, {**device, "reset": {"kind": "none", "reason": "no memory"}})
    made = Bench(esn, quick=True, only=["parity", "memory"])
    assert set(made.planned) == {"parity", "memory"}
    with pytest.raises(ConfigurationError, match="henon: a closed loop waits for each answer"):
        Bench(esn, quick=True, only=["parity", "henon"])


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_a_budget_holds_over_calls(esn: Path) -> None:
    """What was begun counts in full; what is complete counts once, and needs nothing more."""
    result = bench(esn, only=["parity"], quick=True)
    ledger = Ledger(result.folder.parent / "ledger.json")
    assert ledger.spent == Cost(3000, None)
    bench(esn, only=["parity"], quick=True, budget="1")
    assert ledger.spent.steps == 3000
    assert Bench(esn, only=["memory"], quick=True, budget="5500").cost.steps == 2500
    # An attempt that was killed: its folder says that it is running, and it was written down.
    ledger.begin("memory/choose", Cost(1000, None))
    told = r"too small: earlier calls took up to 4,000 device steps of it, and at least 2,500 device steps are needed"
    with pytest.raises(ConfigurationError, match=told):
        Bench(esn, only=["memory"], quick=True, budget="5500")
    bench(esn, only=["memory"], quick=True, budget="6500")
    assert ledger.spent.steps == 6500


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
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


LAB = """
import time
import numpy as np

def call(u):
    x, states = np.zeros(5), []
    with open("steps.log", "a") as log:
        for row in u:
            assert np.abs(row).max() <= 1
            x = np.tanh(0.5 * np.roll(x, 1) + np.linspace(0.5, 1, 5) * row.mean())
            states.append(x)
            log.write(".")
            log.flush()
            time.sleep(SLEEP)
    return np.array(states)

def reset():
    pass
"""


def lab_device(folder: Path, sleep: float = 0.0, **more: Any) -> Path:
    """The file of a function with a range of inputs, which logs every step that it is driven."""
    (folder / "benched_lab.py").write_text(LAB.replace("SLEEP", str(sleep)))
    device = {"kind": "python", "call": "benched_lab:call", "reset_call": "benched_lab:reset", "nodes": 5}
    device |= {"simulated": True, "continuity": "replayed", "memory_steps": 2, "input_range": [-1.0, 1.0], **more}
    write_yaml(folder / "lab.yaml", device)
    return folder / "lab.yaml"


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_inputs_are_brought_into_the_range_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    some = {name: standard_tasks()[name] for name in ("memory", "channel_equalisation", "henon")}
    short = {"train_steps": 800, "closed_loop": {"starts": 2, "forecast_steps": 20, "warmup_steps": 20}}
    some["henon"] = some["henon"].model_copy(update={"quick": short})
    monkeypatch.setattr("reservoir_hw.experiment.bench.bench.standard_tasks", lambda: some)
    washout = {"kind": "washout", "steps": 3}
    result = bench(lab_device(tmp_path, reset_call=None, reset=washout), quick=True)
    assert set(result.scores) == set(some)
    assert not result.not_run
    # What lies within is left as it is; what does not is scaled, what a loop feeds back as well (see `LAB`).
    assert set(result.inputs) == {"channel_equalisation", "henon"} == set(result.provenance["inputs"])
    assert "u " in result.inputs["henon"]
    masks = [row["reservoir"]["input_mask"] for row in result.provenance["rows"]]
    assert sum(mask is None for mask in masks) == 1
    assert "Inputs outside the range of the device" in [table.title for table in result.tables()]
    # Every step is one that was counted before: resets, replays of the memory and forecasts.
    assert len(Path("steps.log").read_text()) == Ledger(Path("runs/bench-lab/ledger.json")).spent.steps


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_what_a_device_says_only_when_it_is_opened_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed device behind a server, whose resets are probed: openings, probes and replays are in the ledger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    some = {"henon": standard_tasks()["henon"]}
    short = {"train_steps": 800, "closed_loop": {"starts": 2, "forecast_steps": 20, "warmup_steps": 20}}
    some["henon"] = some["henon"].model_copy(update={"quick": short})
    monkeypatch.setattr("reservoir_hw.experiment.bench.bench.standard_tasks", lambda: some)
    probed = {"kind": "command", "probe_steps": 10}
    device = parse_reservoir(Document.from_file(lab_device(tmp_path, inputs=1))).build()
    with ipc_address() as address, served(device, address):
        write_yaml(tmp_path / "far.yaml", {"kind": "zmq", "address": address, "reset": probed})
        bench("far.yaml", quick=True)
    driven = len(Path("steps.log").read_text())
    assert driven == Ledger(Path("runs/bench-far/ledger.json")).spent.steps


@pytest.mark.slow
@pytest.mark.usefixtures("few_settings")
def test_another_label_needs_nothing_new(esn: Path) -> None:
    first = bench(esn, only=["parity"], quick=True)
    again = bench(esn, only=["parity"], quick=True, set={"label": "film"}, budget="1")
    assert again.folder == first.folder
    assert again.scores["parity"].models["device"].metrics == first.scores["parity"].models["device"].metrics


@pytest.mark.slow
def test_a_mask_of_the_file_is_scaled_or_said_to_be_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    drawn = {"kind": "uniform", "scaling": 5.0, "seed": 1}
    made = Bench(lab_device(tmp_path, inputs=2, input_mask=drawn), only=["henon"], quick=True)
    mask = made.planned["henon"].reservoir.section.data["input_mask"]
    assert (MaskConfig(**mask).kind, MaskConfig(**mask).seed) == ("uniform", 1)
    assert 0 < mask["scaling"] < 5
    MaskConfig(**drawn).build(2, 1).save("mask.safetensors")
    with pytest.raises(ConfigurationError, match=r"henon: its inputs are .* behind the mask in mask.safetensors"):
        Bench(lab_device(tmp_path, inputs=2, input_mask={"file": "mask.safetensors"}), only=["henon"], quick=True)


@pytest.mark.slow
def test_a_budget_holds_over_deaths(tmp_path: Path) -> None:
    lab_device(tmp_path, sleep=0.002)
    command = [sys.executable, "-c", "from reservoir_hw.cli import app; app()", "bench", "lab.yaml", "--quick"]
    command += ["--only", "memory", "--budget", "4500"]
    log = tmp_path / "steps.log"
    for times in (1, 2):
        killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begun = log.stat().st_size if log.exists() else 0
        while not (log.exists() and log.stat().st_size > begun + 100):
            time.sleep(0.05)
            assert killed.poll() is None
        killed.kill()
        killed.wait()
        assert Ledger(tmp_path / "runs/bench-lab/ledger.json").spent.steps > 1000 * times
    driven = log.stat().st_size
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "the budget 4500 is too small: earlier calls took up to 2,004" in refused.stderr
    assert log.stat().st_size == driven
    last = subprocess.run([*command[:-1], "4600"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    assert log.stat().st_size <= Ledger(tmp_path / "runs/bench-lab/ledger.json").spent.steps <= 4600


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
def test_the_quick_page_of_a_network(esn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reservoir_hw.experiment.bench.standard.SETTINGS", 6)
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
