"""A user's own data as a task: what is read, how it is split and scaled, and how it is judged; tables at random."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError, ReservoirError
from reservoir_hw.tasks import Data
from reservoir_hw.tasks.task import Split

RNG = np.random.default_rng(40)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lagged(u: np.ndarray, gain: float = 1.0) -> np.ndarray:
    """What a slow device answers: y(t) = 0.5 y(t - 1) + gain u(t - 1)."""
    y = np.zeros(len(u))
    for t in range(1, len(u)):
        y[t] = 0.5 * y[t - 1] + gain * u[t - 1, 0]
    return y[:, None]


def write_csv(path: Path, columns: dict[str, Any], separator: str = ",") -> str:
    rows = zip(*columns.values(), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def run(task: dict[str, Any], *, nodes: int = 40, washout: int = 20, **sections: Any) -> Any:
    given = {
        "task": {"kind": "data", **task},
        "reservoir": {"kind": "esn", "nodes": nodes},
        "readout": {"kind": "ridge", "washout": washout, "alpha": 1e-8},
        "run": {"states": None},
        **sections,
    }
    return Experiment(given).run(report=False)


def test_a_table_is_learned_in_its_own_units(tmp_path: Path) -> None:
    u = RNG.uniform(15, 25, (1200, 1))
    y = 1000 + lagged(u - 20)
    file = write_csv(
        tmp_path / "run.csv",
        {"time": np.arange(1200) * 0.5, "who": ["anna"] * 1200, "temperature": u[:, 0], "flow": y[:, 0]},
    )
    task = {"files": file, "inputs": {"columns": ["temperature"]}, "targets": {"columns": ["flow"]}}
    result = run({**task, "time": {"column": "time"}, "metrics": ["sklearn.metrics:median_absolute_error"]})
    found = result.rows[0].evaluation.metrics
    assert found["nrmse"] < 0.1
    outputs = result.task.series.user_outputs(np.load(result.folder / "outputs/000.npy"))[0, :, 0]
    np.testing.assert_allclose(found["mae"], np.abs(outputs - y[900:, 0]).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["r2"], r2_score(y[900:, 0], outputs), atol=1e-5)
    np.testing.assert_allclose(found["median_absolute_error"], np.median(np.abs(outputs - y[900:, 0])), rtol=1e-3)
    # Statistics are those of the training alone.
    scale = result.task.series.inputs[0]
    assert scale.name == "temperature"
    assert scale.zero == pytest.approx((u[:900].min() + u[:900].max()) / 2, abs=1e-12)
    assert result.task.facts["rows"] == {"train": 900, "test": 300}


def test_another_test_changes_no_statistic() -> None:
    u = RNG.uniform(15, 25, (400, 2))
    one = Data(inputs=u, targets=u[:, :1], test={"rows": (300, 400)})
    spoiled = u.copy()
    spoiled[300:] *= 100
    other = Data(inputs=spoiled, targets=spoiled[:, :1], test={"rows": (300, 400)})
    assert one.series == other.series
    np.testing.assert_array_equal(one.train.inputs, other.train.inputs)
    assert any("standard deviations" in remark for remark in other.remarks)


def test_trials_begin_at_rest_whatever_their_lengths(tmp_path: Path) -> None:
    """The first row of what was found: a test trial was driven behind an unrelated trial of the training."""
    trials = [np.linspace(0, 1, 120)[:, None] ** (1 + number % 3) for number in range(12)]
    equal = run({"inputs": trials, "targets": [0.2 * np.cumsum(u, axis=0) for u in trials]}, washout=0)
    assert equal.rows[0].evaluation.metrics["nrmse"] < 0.2
    assert not equal.task.test_follows
    # A plug-in that says nothing of lengths means the same.
    task = equal.task
    task.train, task.test = (Split(one.inputs, one.targets) for one in (task.train, task.test))
    assert not task.test_follows
    assert Split(task.train.inputs, task.train.targets, continues=True).continues


class Film:
    """A device of 8 nodes that remember for a while."""

    def __init__(self) -> None:
        self.rates, self.state, self.steps = np.linspace(0.2, 0.95, 8), np.zeros(8), 0

    def reset(self) -> None:
        self.state = np.zeros(8)

    def step(self, u: np.ndarray) -> np.ndarray:
        self.steps += 1
        self.state = self.rates * self.state + (1 - self.rates) * np.tanh(u[0])
        return self.state.copy()

    def file(self, **more: Any) -> dict[str, Any]:
        device = {"kind": "python", "mode": "step", "call": self.step, "reset_call": self.reset, "nodes": 8}
        return {**device, "inputs": 1, "continuity": "held", "simulated": True, **more}


def test_a_device_is_driven_with_the_real_rows_alone(tmp_path: Path) -> None:
    trials = [RNG.uniform(-1, 1, (length, 1)) for length in (4000, *range(50, 70))]
    task = {"kind": "data", "inputs": trials, "targets": [lagged(u) for u in trials]}
    film = Film()
    given = {"task": task, "reservoir": film.file(), "readout": {"kind": "ridge"}, "run": {"chunk_steps": 500}}
    experiment = Experiment(given)
    result = experiment.run(report=False)
    rows = sum(map(len, trials))
    assert sum(result.task.facts["rows"].values()) == rows
    assert result.provenance["rows"][0]["reservoir"]["counters"]["steps"] == rows
    assert experiment.estimate().device_steps == rows == film.steps


def test_steps_before_the_washout_are_neither_learned_nor_judged(tmp_path: Path) -> None:
    trials = [RNG.uniform(-1, 1, (150, 1)) for _ in range(12)]
    targets = [lagged(u) for u in trials]
    for one in targets:
        one[:40] = 99
    result = run({"inputs": trials, "targets": targets, "scale": {"targets": "none"}}, washout=40, nodes=80)
    assert result.rows[0].evaluation.metrics["nrmse"] < 0.1
    with pytest.raises(ConfigurationError, match="has 150 steps, and the first 200"):
        run({"inputs": trials, "targets": targets}, washout=200)


def test_two_outputs_count_alike(tmp_path: Path) -> None:
    u = RNG.uniform(-1, 1, (900, 1))
    targets = np.hstack([100 * lagged(u), 0.01 * RNG.standard_normal((900, 1))])
    metrics = run({"inputs": u, "targets": targets}).rows[0].evaluation.metrics
    assert metrics["nmse/y0"] < 0.01
    assert metrics["nmse/y1"] > 0.9
    assert metrics["nmse"] == pytest.approx((metrics["nmse/y0"] + metrics["nmse/y1"]) / 2)


def test_rows_without_a_target_are_passed_over(tmp_path: Path) -> None:
    u = RNG.uniform(-1, 1, (2000, 1))
    y = [repr(float(value)) if t % 10 == 0 else "" for t, value in enumerate(lagged(u)[:, 0])]
    file = write_csv(tmp_path / "sparse.csv", {"u": u[:, 0], "y": y})
    task = {"files": file, "targets": {"columns": ["y"]}}
    with pytest.raises(ConfigurationError, match=r"sparse\.csv.*line 3.*'y'.*empty.*missing: skip"):
        run(task)
    result = run({**task, "targets": {"columns": ["y"], "missing": "skip"}})
    assert result.rows[0].evaluation.metrics["nrmse"] < 0.15
    assert result.task.facts["rows"] == {"train": 1500, "test": 500}
    assert any("1,800 rows have no target" in remark for remark in result.warnings)
    with pytest.raises(ConfigurationError, match=r"baseline fir learns from every step.*take nvar"):
        run({**task, "targets": {"columns": ["y"], "missing": "skip"}}, baselines=[{"kind": "fir"}])


@pytest.mark.slow
def test_labels_of_files(tmp_path: Path) -> None:
    names, labels = [], []
    for number in range(40):
        rate, length = (0.9, 0.2)[number % 2], 80 + number
        u = np.zeros((length, 1))
        for t in range(1, length):
            u[t] = rate * u[t - 1] + RNG.standard_normal()
        write_csv(tmp_path / f"trial{number:02d}.csv", {"u": u[:, 0], "u2": u[:, 0] ** 2})
        names.append(f"trial{number:02d}.csv")
        labels.append(("NA", "01")[number % 2])
    write_csv(
        tmp_path / "labels.csv", {"file": names, "label": labels, "person": [number // 4 for number in range(40)]}
    )
    task = {"files": "trial*.csv", "labels": {"file": "labels.csv", "group": "person"}}
    result = run(task, nodes=60)
    assert result.task.classes == ("01", "NA")
    assert result.rows[0].evaluation.metrics["accuracy"] > 0.85
    counts = result.task.facts["classes"]
    assert counts["test"] == {"NA": sum(counts["test"].values()) / 2, "01": sum(counts["test"].values()) / 2}
    # Nobody is on both sides.
    people = [{int(name[5:7]) // 4 for name in result.task.sequences[part]} for part in ("train", "test")]
    assert not people[0] & people[1]
    last = run({**task, "decide": "last"}, nodes=60, washout=0)
    assert last.task.test.at_end
    folds = run({**task, "folds": {"count": 5}}, nodes=60)
    judged = sorted(name for row in folds.sources.values() for name in row.task.sequences["test"])
    assert judged == sorted(names)


def test_folds_of_one_series_leave_a_gap() -> None:
    u = np.arange(1000.0)[:, None]
    seen = []
    for fold in range(5):
        task = Data(inputs=u, targets=u, folds={"count": 5, "gap_steps": 30}, fold=fold, scale={"inputs": "none"})
        test = task.test.inputs[0, :, 0]
        seen += test.tolist()
        for row, length in enumerate(task.train.ends + 1):
            learned = task.train.inputs[row, :length, 0]
            assert learned.max() < test.min() - 29 or learned.min() > test.max() + 29
    assert seen == list(range(1000))
    for fold in range(4):
        task = Data(inputs=u, targets=u, folds={"count": 4, "order": "time"}, fold=fold)
        assert task.series is not None
        assert task.series.user_inputs(task.train.inputs).max() < task.series.user_inputs(task.test.inputs).min()


def test_equal_to_ridge_on_the_same_lags(tmp_path: Path) -> None:
    u = RNG.uniform(-1, 1, (800, 1))
    y = lagged(u) + 0.01 * RNG.standard_normal((800, 1))
    task = {"inputs": u, "targets": y, "scale": {"inputs": "none", "targets": "none"}}
    register = {"kind": "nvar", "lags": 5, "orders": [1], "constant": False}
    readout = {"kind": "ridge", "washout": 10, "alpha": 1e-3, "standardise": False}
    result = run(task, reservoir=register, readout=readout)
    u32, y32 = u.astype(np.float32).astype(float), y.astype(np.float32).astype(float)
    lags = np.hstack([np.roll(u32, lag, axis=0) for lag in range(5)])
    theirs = Ridge(alpha=1e-3).fit(lags[10:600], y32[10:600]).predict(lags[600:])
    np.testing.assert_allclose(np.load(result.folder / "outputs/000.npy")[0, :, 0], theirs.ravel(), atol=1e-6)


def test_the_harvest_of_other_targets_is_the_same(tmp_path: Path) -> None:
    u = RNG.uniform(-1, 1, (400, 1))

    def stores(inputs: np.ndarray, targets: np.ndarray, **more: Any) -> list[str]:
        task = {"kind": "data", "inputs": inputs, "targets": targets, **more}
        given = {"task": task, "reservoir": {"kind": "esn", "nodes": 10}, "readout": {"kind": "ridge", "washout": 5}}
        return [store.path for store in Experiment(given).harvest()]

    first = stores(u, lagged(u))
    assert stores(u, 2 * lagged(u), scale={"targets": "none"}, judge_from=7) == first
    changed = u.copy()
    changed[17] += 1e-3
    assert stores(changed, lagged(u)) != first


def test_the_same_rows_with_a_reset_between_them_are_another_drive(tmp_path: Path) -> None:
    u = RNG.uniform(-1, 1, 400)
    for name, rows in (("whole", slice(400)), ("a", slice(300)), ("b", slice(300, 400))):
        write_csv(tmp_path / f"{name}.csv", {"u": u[rows], "y": u[rows]})
    targets = {"columns": ["y"]}
    whole = Data(files="whole.csv", targets=targets, test={"rows": (300, 400)})
    apart = Data(files="a.csv", targets=targets, test={"files": "b.csv"})
    assert (whole.goes_on, apart.goes_on) == (True, False)
    np.testing.assert_array_equal(whole.test.inputs, apart.test.inputs)
    assert whole.facts["inputs_sha256"] == apart.facts["inputs_sha256"]
    assert whole.inputs_digest != apart.inputs_digest
    ahead = Data(files="a.csv", targets={"ahead_steps": 1}, test={"files": "b.csv"})
    assert ahead.facts["rows"] == {"train": 299, "test": 99}


def test_given_arrays_lie_in_the_run_folder() -> None:
    u = RNG.uniform(-1, 1, (300, 1))
    result = run({"inputs": u, "targets": lagged(u)})
    again = Experiment.from_file(result.folder / "experiment.yaml").run(report=False)
    assert again.rows[0].evaluation.metrics == result.rows[0].evaluation.metrics


def test_a_function_returns_the_same_twice(tmp_path: Path) -> None:
    (tmp_path / "own_data.py").write_text(
        "import numpy as np\n\n\ndef make(steps, seed=None):\n"
        "    u = np.random.default_rng(seed).uniform(-1, 1, (steps, 1))\n    return u, np.roll(u, 2, axis=0)\n"
    )
    task = {"call": "own_data:make", "params": {"steps": 400, "seed": 1}}
    assert run(task).rows[0].evaluation.metrics["nrmse"] < 0.3
    with pytest.raises(ConfigurationError, match="returned other data when it was called again"):
        run({"call": "own_data:make", "params": {"steps": 400}})


U = RNG.uniform(-1, 1, (300, 1))
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"inputs": U, "targets": U[:-1]}, "targets have 299 rows, inputs 300"),
    "not finite": ({"inputs": np.where(U > 0.99, np.inf, U), "targets": U}, "row .* column 'u0' is inf"),
    "axes": ({"inputs": U.T.repeat(2, 0), "targets": U[:2]}, "more channels than steps"),
    "one class": ({"inputs": [U, U], "labels": ["a", "a"]}, "all series are of the class 'a'"),
    "class of the test": (
        {"inputs": [U] * 3, "labels": ["a", "b", "c"], "folds": {"count": 3}, "fold": 0},
        "in the test only",
    ),
    "text": ({"inputs": np.array([["a"], ["b"]]), "targets": U[:2]}, "numbers, not text"),
    "float32": ({"inputs": 101325 + 1e-4 * U, "targets": U, "scale": {"inputs": "none"}}, "float32 can hardly tell"),
    "whole": ({"inputs": np.arange(300)[:, None] * 10**6, "targets": U, "scale": {"inputs": "none"}}, "whole numbers"),
    "two sources": ({"inputs": U, "targets": U, "files": "a.csv"}, "give one of files, call, trace"),
    "no targets": ({"inputs": U}, "give `targets`"),
    "test and folds": ({"inputs": U, "targets": U, "test": 0.5, "folds": {"count": 3}}, "`test` or `folds`, not both"),
    "one row": (
        {"inputs": U, "targets": U, "test": {"rows": (200, 201)}},
        "rows 200 to 201 are fewer than the 2 rows that a test needs",
    ),
    "beyond": ({"inputs": U, "targets": U, "test": {"rows": (200, 400)}}, "do not lie within the 300 rows"),
    "short": (
        {"inputs": U, "targets": {"ahead_steps": 1}, "closed_loop": {"starts": 3}},
        "need 3600 rows behind the training",
    ),
    "glob": ({"files": "nothing*.csv", "targets": {"columns": ["y"]}}, "no file matches"),
    "missing file": ({"files": "nothing.csv", "targets": {"columns": ["y"]}}, "there is no file nothing.csv"),
    "short folds": (
        {"inputs": U, "targets": U, "folds": {"count": 200}, "fold": 0},
        "fold 0 of 200 has 1 step to judge.*fewer folds",
    ),
    "folds": ({"inputs": U, "targets": U, "folds": {"count": 200, "gap_steps": 299}, "fold": 3}, "steps to learn from"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_one_sentence(name: str) -> None:
    task, said = BAD[name]
    with pytest.raises(ReservoirError, match=said):
        run(task, washout=0)


FILES: dict[str, tuple[str, dict[str, Any], str]] = {
    "text as a number": ("u,y\n1,2\nx,3\n4,5\n", {}, r"a\.csv.*line 3.*column 'u'.*'x'"),
    "both": ("u,y\n1,2\n2,3\n", {"inputs": {"columns": ["u", "y"]}}, "'y' is among the inputs, too"),
    "unknown": ("u,z\n1,2\n2,3\n", {}, r"^task\.targets: a\.csv has no column 'y'"),
    "unknown time": ("u,y\n1,2\n2,3\n", {"time": {"column": "t"}}, r"^task\.time: a\.csv has no column 't'"),
    "time goes back": ("t,u,y\n0,1,2\n1,2,3\n0.5,1,1\n", {"time": {"column": "t"}}, "row 2 .* not later"),
    "the same time": ("t,u,y\n0,1,2\n1,2,3\n1,1,1\n", {"time": {"column": "t"}}, "row 2 .* is the same"),
    "gap": (
        "t,u,y\n" + "".join(f"{t},{t % 3},{t % 5}\n" for t in [*range(9), *range(12, 20)]),
        {"time": {"column": "t"}},
        "row 9: 4 behind the row before it.*gaps: split",
    ),
    "one row": ("u,y\n1,2\n", {}, "has 1 rows"),
    "no row": ("u,y\n", {}, "."),
    "short row": ("u,y\n1,2\n3\n4,5\n", {}, "line 3"),
    "blank line": ("u,y\n1,2\n\n4,5\n3,3\n", {}, "line 3"),
    "infinite": ("u,y\n1,2\ninf,3\n4,5\n", {}, r"a\.csv.*line 3.*'u'.*not a finite number"),
    # What could be read in two ways is asked.
    "thousands": ('u;y\n"1,524";1\n999;2\n"2,626";3\n5;4\n', {}, "1,524 may be a whole number of thousands"),
    "equal names": ("u,u,y\n1,2,3\n2,3,4\n3,4,5\n4,5,6\n", {}, "several columns are called 'u'"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_wrong_in_a_file_is_named(name: str, tmp_path: Path) -> None:
    text, more, said = FILES[name]
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        Data(files="a.csv", targets={"columns": ["y"]}, **more)


def test_a_gap_begins_a_new_series(tmp_path: Path) -> None:
    times = np.concatenate([np.arange(100) * 2.0, 500 + np.arange(60) * 2.0, 900 + np.arange(40) * 2.0])
    write_csv(tmp_path / "a.csv", {"t": times, "u": np.sin(times), "y": np.cos(times)})
    task = Data(files="a.csv", targets={"columns": ["y"]}, time={"column": "t", "gaps": "split"})
    assert sorted([*(task.train.ends + 1), *(task.test.ends + 1)]) == [40, 60, 100]
    assert task.series is not None
    assert [one.name for one in task.series.inputs] == ["u"]


def test_rows_beyond_a_device_are_told_before_it_is_driven(tmp_path: Path) -> None:
    film, u = Film(), RNG.uniform(-1, 1, (600, 1))
    u[590] = 7
    with pytest.raises(ConfigurationError, match=r"the series, row 590 .* leave the range -1 to 1 .* \(1 such rows"):
        run({"inputs": u, "targets": u}, reservoir=film.file(input_range=(-1, 1)))
    assert film.steps == 0
    clipped = run({"inputs": u, "targets": u}, reservoir=film.file(input_range=(-1, 1), out_of_range="clip"))
    assert any("1 of 600 input values were clipped" in warning for warning in clipped.warnings)


def test_files_belong_together_by_their_names(tmp_path: Path) -> None:
    for folder in ("u", "y", "z"):
        (tmp_path / folder).mkdir()
    for number in range(11):
        write_csv(tmp_path / f"u/run{number}.csv", {"u": np.full(20, number)})
        np.save(tmp_path / f"y/run{number}.npy", np.full(20, number) + RNG.uniform(-0.1, 0.1, 20))
        np.save(tmp_path / f"z/run{number:02d}.npy", np.full(20, number))
    task = Data(files="u/*.csv", targets={"file": "y/*.npy"}, scale={"inputs": "none", "targets": "none"})
    np.testing.assert_allclose(task.train.inputs, task.train.targets, atol=0.11)
    with pytest.raises(ConfigurationError, match="told by their names, and run0 is not there"):
        Data(files="u/*.csv", targets={"file": "z/*.npy"})
    for rows, said in (
        ((("run0.csv", "a"), ("run1.csv", " ")), "an empty label for run1.csv"),
        ((("run0.csv", "a"), ("run0.csv", "b")), "names run0.csv more than once"),
        ((("run0.csv", "a"), ("run99.csv", "b")), "'run99.csv' stands for one file, and here it is none"),
        ((("run0.csv", "a"),), "has no label for u/run1.csv"),
    ):
        write_csv(tmp_path / "labels.csv", dict(zip(("file", "label"), zip(*rows, strict=True), strict=True)))
        with pytest.raises(ConfigurationError, match=said):
            Data(files="u/run[01].csv", labels={"file": "labels.csv"})
    (tmp_path / "v").mkdir()
    write_csv(tmp_path / "v/run0.csv", {"u": np.arange(20)})
    write_csv(tmp_path / "labels.csv", {"file": ["u/run0.csv", "v/run0.csv"], "label": ["a", "b"]})
    assert Data(files="?/run0.csv", labels={"file": "labels.csv"}, test="none").classes == ("a", "b")


NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(repr)
CELLS = st.one_of(
    NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "nan", "inf", "1,5", "x", "01", "1e400", "-0", "9.91e37"])
)
NAMES = st.one_of(
    st.sampled_from(["u", "y", "t", "Température (°C)", "力", "u", "1", " y ", '"a, b"']),
    st.text(st.characters(categories=("Lu", "Ll", "Lo")), min_size=1, max_size=6),
)


@st.composite
def tables(draw: Any) -> tuple[list[str], str]:
    names = draw(st.lists(NAMES, min_size=draw(st.integers(1, 2)), max_size=4, unique=draw(st.booleans())))
    rows = draw(st.sampled_from([0, 1, 2, 3, 40, 40, 40]))
    damaged = draw(st.booleans())
    cells = CELLS if damaged else NUMBERS
    body = [draw(st.lists(cells, min_size=len(names), max_size=len(names))) for _ in range(rows)]
    if damaged and body and draw(st.booleans()):
        body[draw(st.integers(0, rows - 1))] = draw(st.sampled_from([[], ["1"], ["1"] * 6]))
    separator = draw(st.sampled_from([",", ";"]))
    lines = [separator.join(row) for row in (names, *body)]
    return names, "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n"]))


RUNS: list[bool] = []


@pytest.mark.slow
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(tables(), st.sampled_from(["refuse", "skip"]), st.sampled_from(["range", "standard", "none"]))
def test_a_run_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, table: tuple[list[str], str], missing: str, scale: str
) -> None:
    names, text = table
    folder: Path = tmp_path_factory.mktemp("table")
    (folder / "a.csv").write_text(text, encoding="utf-8")
    targets = {"columns": [names[-1].strip().strip('"')], "missing": missing}
    task = {"kind": "data", "files": str(folder / "a.csv"), "targets": targets, "scale": {"inputs": scale}}
    run = {"folder": str(folder), "states": None}
    try:
        result = Experiment(
            {"task": task, "reservoir": {"kind": "esn", "nodes": 4}, "readout": {"kind": "ridge"}, "run": run}
        ).run(report=False)
    except ReservoirError:
        RUNS.append(False)
        return
    RUNS.append(True)
    assert not math.isnan(result.rows[0].evaluation.metrics["nrmse"])


@pytest.mark.slow
def test_some_of_them_run() -> None:
    assert 10 < sum(RUNS) < len(RUNS)
