"""Sweeps from Python: what is searched, what is kept, and what a study refuses."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from reservoir_hw import Experiment
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.axes import Dimension
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceFault, MissingExtra
from reservoir_hw.core.interrupts import HeldInterrupts, StopRequests
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.provenance import without_password
from reservoir_hw.experiment.sweeps.sweep import Sweep, sweep

RADIUS = {"reservoir.spectral_radius": {"low": 0.1, "high": 1.5}}

Make = Callable[..., dict[str, Any]]


def apart(search: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is searched at the top of a file, and in its section `reservoir`."""
    own = {key: value for key, value in search.items() if key.startswith("reservoir.")}
    others = {key: value for key, value in search.items() if key not in own}
    return others, {key.removeprefix("reservoir."): value for key, value in own.items()}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A small experiment with a section `sweep`; keyword arguments go over that, `over` over the experiment.

    What is searched of the reservoir goes into its section.
    """
    monkeypatch.chdir(tmp_path)

    def made(search: dict[str, Any] = RADIUS, over: dict[str, Any] | None = None, **section: Any) -> dict[str, Any]:
        others, own = apart(search)
        document = Document.from_mapping(
            {
                "title": "small",
                "task": {"kind": "narma", "washout_steps": 20, "train_steps": 150, "test_steps": 100},
                "reservoir": {"kind": "esn", "nodes": 10, "search": own},
                "readout": {"kind": "ridge", "washout": 20},
                "sweep": {"metric": "nrmse", "trials": 3, "search": others, **section},
            },
            "here",
        )
        for key, value in (over or {}).items():
            document.set(key, value, "over")
        return document.data

    return made


@pytest.mark.parametrize(
    ("task", "directions"),
    [
        ("narma", {"nrmse": "minimize", "nmse": "minimize"}),
        ("memory_recall", {"recalled": "maximize", "r2/2": "maximize"}),
        ("sine_square", {"error_rate": "minimize", "error_rate/high": "minimize"}),
        ("mackey_glass", {"nrmse": "minimize"}),
        ("validation", {"nmse": "minimize"}),
    ],
)
def test_the_direction_is_what_the_task_says(make: Make, task: str, directions: dict[str, str]) -> None:
    of_task = {"kind": task, **({"task": {"kind": "narma"}} if task == "validation" else {})}
    for metric, direction in directions.items():
        wanted = Sweep(make(over={"task": of_task}, metric=metric))
        wanted.estimate()
        assert wanted.config.direction == direction
        other = Sweep(make(over={"task": of_task}, metric=metric, direction="maximize"))
        other.estimate()
        assert other.config.direction == "maximize"


def stored(name: str = "experiment") -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///runs/sweeps/{name}/study.db")


def diverges_when_large() -> dict[str, Any]:
    """Of three spectral radii one makes an identity network diverge."""
    return {"reservoir.activation": "identity"}


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_trial_is_a_run_and_the_best_is_a_file_that_runs(make: Make) -> None:
    search = {
        **RADIUS,
        "reservoir.topology": ["random", "ring", {"kind": "cycle_jumps", "jump": 3}],
        "readout.alpha": {"low": 1e-8, "high": 1e-2, "log": True},
    }
    document = make(search, trials=3, over={"reservoir.vary": {"seed": [0, 1]}, "baselines": ["fir"]})
    found = sweep(document)
    assert found.status == "complete"
    assert found.counts == {"complete": 3, "pruned": 0, "failed": 0, "died": 0, "running": 0}
    assert found.best is not None
    assert found.best.objective == min(trial.objective or math.inf for trial in found.trials)
    for trial in (found.trials[1], found.best):
        plain = {key: value for key, value in make().items() if key != "sweep"}
        experiment = Document.from_mapping(plain, "here")
        experiment.set("reservoir.vary", {"seed": [0, 1]}, "here")
        for key, value in trial.values.items():
            experiment.set(key, value, "here")
        rows = Experiment(experiment).run(report=False).rows
        assert [row["metrics"] for row in trial.rows] == [row.evaluation.metrics for row in rows]
        assert trial.objective == np.mean([row.evaluation.metrics["nrmse"] for row in rows])
        assert trial.metrics["nmse"] == np.mean([row.evaluation.metrics["nmse"] for row in rows])
    again = Experiment.from_file(found.best_file).run(report=False).rows
    assert [row.label.partition("(")[0] for row in again] == ["fir", "ESN", "ESN"]
    assert np.mean([row.evaluation.metrics["nrmse"] for row in again[1:]]) == found.best.objective
    assert found.best_file.read_text().startswith(f"# Trial {found.best.number} of the study experiment")
    assert found.importances == {}
    assert {path.name for path in found.folder.iterdir() if path.name[0] != "."} == {
        "best.yaml", "figures", "metrics.json", "provenance.json", "report.html", "study.db",
    }  # fmt: skip
    assert {path.stem for path in (found.folder / "figures").iterdir()} == {"history", "values"}
    known = json.loads((found.folder / "metrics.json").read_text())
    assert known["best"]["values"] == dict(found.best.values)
    assert len(known["trials"]) == 3
    page = (found.folder / "report.html").read_text()
    assert "3 result rows" in page
    assert "simulation: reservoir_hw esn" in page
    # The runs of the trials are thrown away: what is left are the three of this test.
    assert len(list(Path("runs").iterdir())) == 4


@pytest.mark.slow
def test_what_is_searched(make: Make) -> None:
    search = {
        "reservoir.nodes": {"low": 4, "high": 10, "step": 3},
        "reservoir.seed": {"low": 0, "high": 3},
        "reservoir.spectral_radius": {"low": 1, "high": 2},
        "reservoir.leak_rate": {"low": 0.25, "high": 1.0, "step": 0.25},
        "readout.alpha": {"low": 1e-8, "high": 1e-2, "log": True},
        "readout.input_connection": [False, True],
    }
    found = sweep(make(search, trials=16, sampler="random"))
    drawn = {key: [trial.values[key] for trial in found.trials] for key in search}
    assert set(drawn["reservoir.nodes"]) == {4, 7, 10}
    assert set(drawn["reservoir.seed"]) == {0, 1, 2, 3}
    assert set(drawn["reservoir.leak_rate"]) == {0.25, 0.5, 0.75, 1.0}
    assert set(drawn["readout.input_connection"]) == {False, True}
    radii = drawn["reservoir.spectral_radius"]
    assert min(radii) >= 1
    assert max(radii) <= 2
    assert len({round(radius, 3) for radius in radii}) > 12
    assert sum(alpha < 1e-5 for alpha in drawn["readout.alpha"]) in range(4, 13)


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_importances_and_their_figure(make: Make) -> None:
    search = {"readout.alpha": {"low": 1e-9, "high": 1e9, "log": True}, "readout.bias": [True, False]}
    found = sweep(make(search, trials=40))
    assert sum(found.importances.values()) == pytest.approx(1)
    assert found.importances["readout.alpha"] > 0.7
    assert (found.folder / "figures/importance.png").is_file()


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("random", marks=pytest.mark.slow)])
def test_continued_and_interrupted_are_uninterrupted(make: Make, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    """What was cut off is drawn again, also among the trials that learn from those before."""
    whole = sweep(make(trials=12, sampler=sampler), name="whole")
    sweep(make(trials=10, sampler=sampler), name="parts")
    continued = sweep(make(trials=12, sampler=sampler), name="parts")
    other = sweep(make(trials=1, sampler=sampler, seed=1), name="other")
    assert other.trials[0].values not in [trial.values for trial in whole.trials]
    # Nothing is left to do, and fewer are wanted than are there.
    again = sweep(make(), name="parts", trials=2)
    assert again.counts["complete"] == 12
    assert again.best == continued.best
    run, calls = Esn._run, []

    def interrupted(self: Esn, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) in (steps, 11 * steps):
            raise KeyboardInterrupt
        return run(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Esn, "_run", interrupted)
        steps = 10**9
        sweep(make(trials=1, sampler=sampler), name="counted")
        steps, calls[:] = len(calls), []
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                sweep(make(trials=12, sampler=sampler), name="cut")
    cut = sweep(make(trials=12, sampler=sampler), name="cut")
    assert cut.counts["died"] == 2
    for trials in (continued.trials, cut.complete):
        assert [trial.values for trial in trials] == [trial.values for trial in whole.trials]
        assert [trial.objective for trial in trials] == [trial.objective for trial in whole.trials]


@pytest.mark.slow
def test_fewer_trials_than_are_there(make: Make) -> None:
    sweep(make(trials=3))
    found = sweep(make(trials=2))
    said = "3 trials are there already, more than the 2 that are wanted in all: none was run"
    assert said in found.notes
    assert said not in sweep(make(trials=3)).notes


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\\b", ".."])
def test_a_name_is_one_folder(make: Make, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sweep\.name: .* is to be the name of a folder"):
        sweep(make(name=name))
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_maximize(make: Make) -> None:
    found = sweep(make(direction="maximize"))
    assert found.best is not None
    assert found.best.objective == max(trial.objective or 0 for trial in found.trials)


@pytest.mark.slow
def test_a_trial_that_fails_is_kept_with_its_reason(make: Make) -> None:
    radii = {"reservoir.spectral_radius": [0.5, 0.9, 99.0]}
    found = sweep(make(radii, trials=8, sampler="random", over=diverges_when_large()))
    assert found.status == "complete"
    assert found.counts["failed"] == sum(trial.values["reservoir.spectral_radius"] == 99 for trial in found.trials) > 0
    assert found.counts["failed"] + found.counts["complete"] == 8
    failed = next(trial for trial in found.trials if trial.status == "failed")
    assert "DeviceFault" in failed.problem
    assert "a simulation that diverges" in failed.problem
    assert found.tables()[1].rows[0] == [failed.problem, str(found.counts["failed"])]


def test_a_trial_that_fails_without_a_word_says_its_kind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Esn._run, []

    def fails(self: Esn, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        return run(self, *arguments)

    monkeypatch.setattr(Esn, "_run", fails)
    found = sweep(make(trials=2))
    assert found.tables()[1].rows == [["MemoryError", "1"]]


def test_ctrl_c_in_a_step_that_fails_ends_the_sweep(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a training has it: the failure is kept, and what was asked for is done."""

    def fails(self: Esn, *arguments: Any) -> Any:
        with StopRequests():
            signal.raise_signal(signal.SIGINT)
            raise DeviceFault("the lamp is out")

    monkeypatch.setattr(Esn, "_run", fails)
    with pytest.raises(KeyboardInterrupt, match="as was asked in the step that failed"):
        sweep(make(trials=2))
    known = json.loads(Path("runs/sweeps/experiment/metrics.json").read_text())
    assert known["status"] == "interrupted"
    assert [trial["problem"] for trial in known["trials"]] == ["DeviceFault: the lamp is out"]


@pytest.mark.slow
def test_too_many_failures_in_a_row(make: Make) -> None:
    radii = {"reservoir.spectral_radius": [98.0, 99.0]}
    with pytest.raises(DeviceFault, match=r"4 trials in a row failed, the last one with: .*a simulation that diverges"):
        sweep(make(radii, trials=12, stop_after_failures=4, over=diverges_when_large()))
    with pytest.raises(ConfigurationError, match="none of the 6 trials came to its end: DeviceFault"):
        sweep(make(radii, trials=6, stop_after_failures=None, over=diverges_when_large()))
    known = json.loads(Path("runs/sweeps/experiment/metrics.json").read_text())
    assert known["status"] == "failed"
    assert known["counts"]["failed"] == 6
    assert known["best"] is None


@pytest.mark.slow
def test_keys_that_need_each_other(make: Make) -> None:
    search = {
        "reservoir.nodes": {"low": 20, "high": 30},
        "reservoir.connections_per_node": {"low": 12, "high": 20},
    }
    found = sweep(make(search))
    assert found.counts["complete"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": {"reservoir.nodez": [1]}}, r"FILE:7: unknown key 'reservoir.nodez'; did you mean 'nodes'"),
        (
            {"search": {"reservoir.nodes": {"low": 0, "high": 9}}},
            r"FILE:7: reservoir.nodes = 0: input should be",
        ),
        ({"search": {"reservoir.nodes": {"low": 1.5, "high": 9.5}}}, r"FILE:7: reservoir.nodes = 1.5: .*valid integer"),
        ({"search": {"reservoir.activation": ["tanh", "cosh"]}}, r"FILE:7: reservoir.activation = 'cosh'"),
        ({"search": {"run.notes": ["a"]}}, r"FILE:11: sweep.search: 'run.notes' must lie in task, readout or training"),
        ({"search": {"reservoir.seed": [1, 2]}}, r"FILE:7: 'reservoir.seed' is searched and varied"),
        ({"search": {"reservoir.nodes": {"low": 9, "high": 3}}}, r"FILE:7: .*low is 9, it must be less than high, 3"),
        ({"search": {"reservoir.nodes": {"low": 9}}}, r"FILE:7: .*give low and high, or a list"),
        ({"search": {"reservoir.nodes": {"low": 3, "high": 9, "lag": 1}}}, r"FILE:7: unknown key .*did you mean 'log'"),
        ({"search": {"reservoir.nodes": {"low": 3, "high": 9, "step": 4}}}, r"steps of 4 from 3 end at 7, not at 9"),
        ({"search": {"readout.alpha": {"low": 0.0, "high": 9, "log": True}}}, r"log: true needs a low above 0"),
        ({"search": {"reservoir.seed": {"choices": [1], "low": 3}}}, r"give choices, or low and high, not both"),
        ({"search": {"reservoir.nodes": [5, "5"]}}, r"two of the choices are the same: 5, 5"),
        ({"search": {}}, r"FILE:8: nothing is searched: .*are empty"),
        ({"metric": "accuracy"}, r"FILE:9: sweep.metric: the task has no metric 'accuracy'; it has: nrmse, nmse"),
        ({"direction": "down"}, r"FILE:10: sweep.direction = 'down'"),
        ({"storage": "study.db"}, r"'study.db' is no database URL; write sqlite:///PATH"),
        ({"storage": "nonsense:hidden"}, r"'nonsense:\*\*\*' is no database URL"),
        ({"storage": "sqlite:///no/such/folder/x.db"}, r"sweep.storage: sqlite:.* cannot be used: unable to open"),
        ({"storage": "spaceship://x"}, r"sweep.storage: spaceship://x cannot be used: .*spaceship"),
    ],
)
def test_mistakes_stop_it_before_the_first_trial(make: Make, change: dict[str, Any], message: str) -> None:
    section = {**make()["sweep"], "search": RADIUS, **change}
    others, own = apart(section["search"])
    lines = [
        "task: {kind: narma, washout_steps: 20, train_steps: 150, test_steps: 100}",
        "readout: {kind: ridge, washout: 20}",
        "reservoir:",
        "  kind: esn",
        "  nodes: 10",
        "  vary: {seed: [0, 1]}",
        f"  search: {json.dumps(own)}",
        "sweep:",
        *(f"  {key}: {json.dumps(section.get(key))}" for key in ("metric", "direction")),
        f"  search: {json.dumps(others)}",
        f"  storage: {json.dumps(section.get('storage'))}",
    ]
    Path("file.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match=message.replace("FILE", "file.yaml")) as caught:
        sweep("file.yaml")
    assert "\n" not in str(caught.value)
    assert not list(Path.cwd().rglob("trials"))
    assert not list(Path.cwd().rglob("best.yaml"))


def test_more_mistakes(make: Make) -> None:
    with pytest.raises(ConfigurationError, match="there is no section `sweep:`"):
        sweep(
            {
                **{key: value for key, value in make().items() if key != "sweep"},
                "reservoir": {"kind": "esn", "nodes": 5},
            }
        )
    with pytest.raises(ConfigurationError, match="vary a seed, or set pruning: none"):
        sweep(make(pruning="median"))
    with pytest.raises(ConfigurationError, match=r"run\.record: a sweep records nothing"):
        sweep(make(over={"run.record": "here"}))
    with pytest.raises(ConfigurationError, match=r"reservoir\.nodes = -3"):
        sweep(make(over={"reservoir.nodes": -3}))
    with pytest.raises(ConfigurationError, match="a mapping can be changed beforehand"):
        sweep(make(), set=["reservoir.nodes=3"])
    Path("runs").write_text("")
    with pytest.raises(ConfigurationError, match="runs/sweeps/experiment cannot be made"):
        sweep(make())


OTHERS: list[tuple[dict[str, Any], str]] = [
    (
        {"over": {"reservoir.leak_rate": 0.5}},
        r"mapping: reservoir\.leak_rate is 0\.5, but the study 'experiment' in ",
    ),
    ({"over": {"task.dataset": 1}}, r"task\.dataset is 1, but .* was begun with 0; change it back, or .*--name"),
    ({"search": {"reservoir.spectral_radius": {"low": 0.1, "high": 1.4}}}, r"radius\.high is 1\.4, .* begun with 1\.5"),
    ({"search": {**RADIUS, "readout.alpha": [1, 2]}}, r"readout\.alpha is not there, but .* begun with 1e-06"),
    ({"metric": "nmse"}, r"sweep\.metric is 'nmse', .* 'nrmse'"),
    ({"direction": "maximize"}, r"sweep\.direction is 'maximize', .* 'minimize'"),
]


@pytest.mark.slow
def test_a_study_of_another_experiment_is_refused(make: Make) -> None:
    sweep(make(trials=1))
    for change, message in OTHERS:
        with pytest.raises(ConfigurationError, match=message):
            sweep(make(**change))
    assert len(stored().trials) == 1


@pytest.mark.slow
def test_what_does_not_decide_may_change(make: Make) -> None:
    sweep(make(trials=1))
    over = {"reservoir.spectral_radius": 0.3, "title": "another", "run.notes": "x", "baselines": ["fir"]}
    found = sweep(make(trials=2, sampler="random", seed=5, over=over))
    assert found.counts["complete"] == 2


@pytest.mark.slow
def test_a_file_that_changed_is_refused(make: Make) -> None:
    Path("corpus.txt").write_text("boy walks .\ndogs live .\n" * 20)
    task = {"kind": "elman_grammar", "corpus": "corpus.txt"}
    asked: dict[str, Any] = {"metric": "perplexity", "over": {"task": task, "readout.washout": 0}, "trials": 1}
    sweep(make(**asked))
    with Path("corpus.txt").open("a") as corpus:
        corpus.write("cats see dogs .\n")
    with pytest.raises(ConfigurationError, match=r"the content of corpus\.txt has changed since the study"):
        sweep(make(**asked))


@pytest.mark.slow
def test_a_study_that_somebody_else_made(make: Make) -> None:
    storage = "sqlite:///other.db"
    optuna.create_study(storage=storage, study_name="mine").optimize(lambda trial: trial.suggest_float("x", 0, 1), 1)
    with pytest.raises(ConfigurationError, match=r"'mine' in sqlite:///other\.db was not made by a sweep"):
        sweep(make(), storage=storage, name="mine")
    assert sweep(make(trials=1), storage=storage, name="ours").counts["complete"] == 1
    Path("text.db").write_text("no database, but a text that is longer than the header of one" * 20)
    with pytest.raises(ConfigurationError, match="cannot be used: file is not a database"):
        sweep(make(), storage="sqlite:///text.db")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg2://anna:se%2Fcret@bench:5432/x", "postgresql+psycopg2://anna:***@bench:5432/x"),
        ("--storage=mysql://anna:@bench/x", "--storage=mysql://anna:***@bench/x"),
        ("postgresql:///x?user=anna&password=secret&host=h", "postgresql:///x?user=anna&password=***&host=h"),
        ("sqlite:///C:/a@b/x.db", "sqlite:///C:/a@b/x.db"),
        ("postgresql://anna@bench/x", "postgresql://anna@bench/x"),
        ("postgresql://anna:se/c ret@bench/x", "postgresql://anna:***@bench/x"),
        ("postgresql://anna:se@cret@bench/x?a=b@c", "postgresql://anna:***@bench/x?a=b@c"),
        ("mysql://h/x?passwd=a b&x=1", "mysql://h/x?passwd=***&x=1"),
        ("postgresql://anna@server:secret@bench/x", "postgresql://anna@server:***@bench/x"),
        ("postgresql://anna@server:se@cret:@bench:5432/x", "postgresql://anna@server:***@bench:5432/x"),
        ("postgresql://anna@bench:5432/x", "postgresql://anna@bench:5432/x"),
        ("mssql+pyodbc:///?odbc_connect=UID%3Danna%3BPWD%3Dsecret", "mssql+pyodbc:///?odbc_connect=***"),
        ("mssql+pyodbc:///?x=1&odbc_connect=UID=anna;PWD={se;cret}&y=2", "mssql+pyodbc:///?x=1&odbc_connect=***&y=2"),
        ("postgresql://h/x?ssl_key_password=secret", "postgresql://h/x?ssl_key_password=***"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_password_is_not_shown(make: Make) -> None:
    with pytest.raises((ConfigurationError, MissingExtra)) as caught:
        sweep(make(), storage="postgresql+psycopg2://anna:secret@localhost:1/none")
    assert "anna:***@localhost" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"anna:\*\*\*@bench/x' is no database URL; .*%40 for an @") as caught:
        sweep(make(), storage="postgresql://anna:se@cret:secret@bench/x")
    assert "cret" not in str(caught.value)


@pytest.mark.slow
def test_a_password_is_written_nowhere(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a run of the same file either, which needs no database, nor from the command."""
    monkeypatch.setattr(sys, "argv", ["reservoir-hw", "--set", "sweep.storage=postgresql://anna:secret@bench/x"])
    document = make(storage="postgresql://anna@server:secret@bench/x")
    found = Experiment(document).run(report=False)
    assert "postgresql://anna@server:***@bench/x" in (found.folder / "experiment.yaml").read_text()
    for path in found.folder.rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()
    sweep(make(trials=1), storage="sqlite:///file:x.db?uri=true&password=secret")
    for path in Path("runs/sweeps").rglob("*"):
        assert path.is_dir() or b"secret" not in path.read_bytes()


def test_without_optuna(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'reservoir-hw\[train\]'"):
        sweep(make())


@pytest.mark.slow
def test_ctrl_c_keeps_everything_and_the_next_goes_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Esn._run, []

    def interrupted(self: Esn, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(Esn, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        sweep(make(trials=5))
    said = "1 of 5 trials are in sqlite:///runs/sweeps/experiment/study.db; the same command goes on"
    assert caught.value.__notes__ == [said]
    known = json.loads(Path("runs/sweeps/experiment/metrics.json").read_text())
    assert known["status"] == "interrupted"
    assert known["counts"] == {"complete": 1, "pruned": 0, "failed": 0, "died": 1, "running": 0}
    assert Path("runs/sweeps/experiment/best.yaml").is_file()
    found = sweep(make(trials=5))
    assert found.counts == {"complete": 5, "pruned": 0, "failed": 0, "died": 1, "running": 0}
    assert not list(found.folder.glob("*.alive"))


@pytest.mark.slow
@pytest.mark.usefixtures("pictures")
def test_a_device_that_another_process_has(make: Make) -> None:
    Path("film.py").write_text("def measure(u):\n    return u.repeat(3, axis=1)\n")
    film = {"kind": "python", "call": "film:measure", "nodes": 3, "simulated": False, "continuity": "held"}
    film |= {"reset": {"kind": "none", "reason": "no memory"}, "resource": "film-7"}
    document = make({"readout.alpha": [1e-3, 1e-2, 1e-1]}, over={"reservoir": film})
    owner = HostLocks(["film-7"])
    owner.acquire()
    with pytest.raises(DeviceBusy, match="'film-7' is in use by process"):
        sweep(document)
    owner.release()
    found = sweep(document)
    assert found.counts == {"complete": 3, "pruned": 0, "failed": 0, "died": 1, "running": 0}
    assert "hardware: " in (found.folder / "report.html").read_text()


@pytest.mark.slow
def test_harvested_states_are_used(make: Make) -> None:
    Path("wire.py").write_text(
        "calls = []\n\ndef measure(u):\n    calls.append(len(u))\n    return u.repeat(3, axis=1)\n"
    )
    wire = {"kind": "python", "call": "wire:measure", "nodes": 3, "simulated": False, "continuity": "held"}
    wire |= {"reset": {"kind": "none", "reason": "no memory"}}
    document = make({"readout.alpha": {"low": 1e-8, "high": 1e-2, "log": True}}, over={"reservoir": wire})
    Experiment({key: value for key, value in document.items() if key != "sweep"}).harvest()
    driven = len(sys.modules["wire"].calls)
    assert driven > 0
    found = sweep(document)
    assert found.counts["complete"] == 3
    assert len(sys.modules["wire"].calls) == driven
    assert len([note for note in found.notes if "states were read from" in note]) == 1


@pytest.mark.slow
def test_pruning_gives_bad_trials_up(make: Make) -> None:
    radii = {"reservoir.spectral_radius": {"low": 0.1, "high": 8.0}}
    over = {"reservoir.vary": {"seed": [0, 1, 2, 3]}, "reservoir.nodes": 30}
    found = sweep(make(radii, trials=10, sampler="random", pruning="median", over=over))
    pruned = [trial for trial in found.trials if trial.status == "pruned"]
    assert pruned
    assert found.counts["pruned"] + found.counts["complete"] == 10
    assert found.best is not None
    for trial in pruned:
        assert len(trial.rows) < 4
        assert trial.objective == pytest.approx(np.mean([row["metrics"]["nrmse"] for row in trial.rows]))
        earlier = [
            np.mean([row["metrics"]["nrmse"] for row in known.rows[: len(trial.rows)]])
            for known in found.trials[: trial.number]
            if known.status == "complete" and len(known.rows) >= len(trial.rows)
        ]
        assert trial.objective is not None
        assert trial.objective > np.median(earlier) or len(earlier) < 5
    assert min(trial.number for trial in pruned) >= 5


@pytest.mark.slow
def test_a_trial_that_another_process_gave_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run, given_up = Esn._run, []

    def overtaken(self: Esn, *arguments: Any) -> Any:
        if not given_up:
            study = stored()
            given_up.append(study.trials[-1].number)
            study.tell(given_up[0], state=optuna.trial.TrialState.FAIL)
        return run(self, *arguments)

    monkeypatch.setattr(Esn, "_run", overtaken)
    found = sweep(make(trials=3))
    assert given_up == [0]
    assert found.counts == {"complete": 3, "pruned": 0, "failed": 0, "died": 1, "running": 0}


@pytest.mark.slow
def test_runs_can_be_kept(make: Make) -> None:
    found = sweep(make(keep_runs=True))
    folders = sorted((found.folder / "trials").iterdir())
    assert [folder.name[:4] for folder in folders] == ["0000", "0001", "0002"]
    for folder, trial in zip(folders, found.trials, strict=True):
        known = json.loads((folder / "metrics.json").read_text())
        assert known["rows"][0]["metrics"]["nrmse"] == trial.objective
        assert (folder / "readout/000.safetensors").is_file()
        assert not (folder / "report.html").exists()


@pytest.mark.slow
def test_a_trial_that_was_enqueued_by_hand(make: Make) -> None:
    sweep(make(trials=1))
    stored().enqueue_trial({"reservoir.spectral_radius": 0.75})
    found = sweep(make(trials=3))
    assert [trial.values["reservoir.spectral_radius"] == 0.75 for trial in found.trials] == [False, True, False]


@pytest.mark.slow
def test_a_process_that_died_on_another_machine(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, the same database: only the missing signs of life tell."""
    monkeypatch.setattr("reservoir_hw.experiment.sweeps.storage.HEARTBEAT_S", 1)
    monkeypatch.setattr("reservoir_hw.experiment.sweeps.storage.GRACE_S", 3)
    monkeypatch.setattr("reservoir_hw.experiment.sweeps.study.HEARTBEAT_S", 1)
    storage = f"sqlite:///{Path.cwd()}/shared.db"
    run, begun = Esn._run, []

    def dies(self: Esn, *arguments: Any) -> Any:
        begun.append(1)
        if len(begun) > 1:
            raise SystemExit
        return run(self, *arguments)

    here = make(over={"run.folder": "here"})
    with monkeypatch.context() as patch:
        patch.setattr(Esn, "_run", dies)
        # The end of a process whose books stay open.
        patch.setattr("reservoir_hw.experiment.sweeps.study.Study._tell", lambda *_: None)
        with pytest.raises(SystemExit):
            sweep(here, storage=storage)
    there = make(over={"run.folder": "there"})
    assert sweep(there, storage=storage).counts == {"complete": 2, "pruned": 0, "failed": 0, "died": 0, "running": 1}
    deadline = time.monotonic() + 30
    while (found := sweep(there, storage=storage)).status != "complete":
        assert time.monotonic() < deadline
    assert found.counts == {"complete": 3, "pruned": 0, "failed": 0, "died": 1, "running": 0}


def test_interrupts_wait_until_they_may() -> None:
    seen: list[str] = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("interrupted"))
    try:
        with HeldInterrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            seen.append("begun")
            with interrupts.allowed():
                seen.append("at work")
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            seen.append("written")
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["begun", "interrupted", "at work", "interrupted", "written", "interrupted", "interrupted"]


def test_steps_are_decimals() -> None:
    assert Dimension(low=0.1, high=0.7, step=0.1).extremes() == [0.1, 0.7]
    random = np.random.default_rng(0)
    drawn = [Dimension(low=0.1, high=0.7, step=0.3).draw(random) for _ in range(50)]
    assert {round(value, 9) for value in drawn} == {0.1, 0.4, 0.7}
    assert {Dimension(low=1, high=3).draw(random) for _ in range(50)} == {1, 2, 3}


def test_the_estimate_is_that_of_a_trial(make: Make) -> None:
    document = make(over={"reservoir.vary": {"seed": [0, 1]}})
    plain = {key: value for key, value in document.items() if key != "sweep"}
    assert Sweep(document).estimate() == Experiment(plain).estimate()


@pytest.mark.slow
def test_progress_goes_on_over_all_trials(make: Make) -> None:
    seen: list[tuple[str, int, int]] = []
    sweep(make(trials=1))
    sweep(make(trials=3), progress=lambda *at: seen.append(at))
    steps = Experiment({key: value for key, value in make().items() if key != "sweep"}).estimate().device_steps
    assert {total for _, _, total in seen} == {3 * steps}
    done = [done for _, done, _ in seen]
    assert done == sorted(done)
    assert done[0] == steps
    assert done[-1] == 3 * steps
    assert seen[0][0].startswith("trial 2 of 3, best 0.")


def test_torchrun_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would train one trial together, and each have another one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigurationError, match="start the workers of a sweep one by one"):
        sweep(make())
