"""A model of scaled columns, from its run to `infer`: the user's numbers in and out, and the same data alone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import call_here
from edge_runs import bound, run_of
from measured_task import CLASSES, INPUTS, TARGET, TRAIN, WARMUP, known, trials, write_table

from reservoir_hw.core.errors import ConfigurationError, NotSupported
from reservoir_hw.core.series_format import SeriesFormat
from reservoir_hw.experiment.deploy.evaluate import evaluate
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.readout.edge import EdgeRunner

EXPERIMENT = """\
task: {kind: measured, file: FOLDER/table.csv}
reservoir: {kind: esn, nodes: 40, spectral_radius: 0.6, input_scaling: 0.3}
readout: {kind: ridge, alpha: 1e-4, washout: 20, input_connection: true}
run: {folder: FOLDER/runs, states: null}
"""


@pytest.fixture(scope="module", autouse=True)
def kind() -> Any:
    with known():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and bundles of each mode: values.rhw, values.run, ..."""
    folder = tmp_path_factory.mktemp("measured")
    write_table(folder / "table.csv")
    for mode in ("values", "forecast", "classes"):
        run = run_of(folder, EXPERIMENT, task__mode=mode, readout__washout=20 if mode == "values" else 0)
        run.rename(folder / f"{mode}.run")
        export_run(folder / f"{mode}.run", folder / f"{mode}.rhw")
    return folder


def table(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "table.csv")


def format_of(folder: Path, mode: str) -> SeriesFormat:
    record = json.loads((folder / f"{mode}.run/provenance.json").read_text())["rows"][0]
    return SeriesFormat.model_validate(record["series"])


def infer(folder: Path, mode: str, *options: object, code: int = 0, text: str = "") -> subprocess.CompletedProcess[str]:
    given = [folder / f"{mode}.rhw", "--warmup", "none", "--reservoir", folder / f"{mode}.run/experiment.yaml"]
    done = call_here("infer", *given, *options, text=text)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def numbers(said: str, header: str = TARGET) -> np.ndarray:
    first, *lines = said.splitlines()
    assert first == header
    return np.array([[float(word) for word in line.split(",")] for line in lines])


def expected(folder: Path) -> np.ndarray:
    """What the run has answered to the test, in the user's numbers."""
    outputs = np.load(folder / "values.run/outputs/000.npy")[0]
    return format_of(folder, "values").user_outputs(outputs)


def agree(folder: Path, found: np.ndarray) -> None:
    """Of the whole table from rest; the run was warmed up with less than its training."""
    wanted, series = expected(folder), format_of(folder, "values")
    assert found.shape == (800, 1)
    scaled = series.model_targets(wanted)
    assert np.abs(series.model_targets(found[TRAIN:]) - scaled).max() <= bound(scaled)
    # No number of the model is so far from 0.
    assert found.min() > 1e4


# ---- values


def test_steps_and_pieces_and_float64(folder: Path) -> None:
    u = table(folder)[INPUTS].to_numpy()[None]
    for target in ("segments", "whole"):
        export_run(folder / "values.run", folder / "other.rhw", target=target, force=True)  # type: ignore[arg-type]
        given = None if target == "whole" else folder / "values.run/experiment.yaml"
        with EdgeRunner(folder / "other.rhw", given) as runner:
            outputs = runner.run(u)
            runner.reset()
            steps = np.stack([runner.step(u[:, step]) for step in range(20)], 1)
            assert runner.run(u[:, :0]).dtype == outputs.dtype == steps.dtype == np.float64
        agree(folder, outputs[0])
        np.testing.assert_allclose(steps, outputs[:, :20], rtol=1e-7)


def test_the_scale_is_applied_before_float32(folder: Path) -> None:
    """A pressure that differs by less than a step of float32 differs in the model."""
    u = np.full((1, 30, 2), [101325.0, 273.0])
    near = u + np.array([0.001, 0.0])
    assert (u.astype(np.float32) == near.astype(np.float32)).all()
    with EdgeRunner(folder / "values.rhw", folder / "values.run/experiment.yaml") as runner:
        assert (runner.checked(u)[..., 0] != runner.checked(near)[..., 0]).all()


def test_offline_needs_no_data(folder: Path) -> None:
    export_run(folder / "values.run", folder / "offline.rhw", offline=True, force=True)
    with EdgeRunner(folder / "offline.rhw", folder / "values.run/experiment.yaml") as runner:
        agree(folder, runner.run(table(folder)[INPUTS].to_numpy()[None])[0])


FORMS: dict[str, Any] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "swapped.csv": lambda frame, path: frame[[TARGET, *INPUTS[::-1]]].to_csv(path, index=False),
    "comma.csv": lambda frame, path: frame[INPUTS].to_csv(path, index=False, sep=";", decimal=","),
    "bare.csv": lambda frame, path: frame[INPUTS].to_csv(path, index=False, header=False),
    "npy": lambda frame, path: np.save(path, frame[INPUTS].to_numpy()),
    "npz": lambda frame, path: np.savez(path, u=frame[INPUTS].to_numpy()),
    "parquet": lambda frame, path: frame[[INPUTS[1], TARGET, INPUTS[0]]].to_parquet(path),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file(form: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / f"table.{form}"
    FORMS[form](table(folder), path)
    agree(folder, numbers(infer(folder, "values", "--input", path).stdout))


@pytest.mark.slow
def test_what_the_look_of_a_file_does_not_say(folder: Path, tmp_path: Path) -> None:
    frame, several, marked = table(folder), tmp_path / "several.npz", tmp_path / "marked.csv"
    np.savez(several, u=frame[INPUTS].to_numpy(), y=frame[[TARGET]].to_numpy())
    frame[INPUTS].to_csv(marked, index=False, sep="|", decimal=",")
    agree(folder, numbers(infer(folder, "values", "--input", several, "--array", "u").stdout))
    agree(folder, numbers(infer(folder, "values", "--input", marked, "--delimiter", "|", "--decimal", ",").stdout))
    for options, said in (
        ([several], "several.npz holds several arrays"),
        ([several, "--array", "y"], "has 1 columns, and RidgeReadout takes 2 (pressure (Pa), temperature)"),
        ([marked, "--decimal", "x"], "decimal"),
    ):
        done = infer(folder, "values", "--input", *options, code=2)
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_lines(folder: Path) -> None:
    frame = table(folder)
    bare, headed = (
        frame[columns].to_csv(index=False, header=header)
        for columns, header in ((INPUTS, False), ([TARGET, *INPUTS[::-1]], True))
    )
    for text in (bare, headed):
        agree(folder, numbers(infer(folder, "values", text=text).stdout))
    said = infer(folder, "values", text=f"{INPUTS[0]},other\n1,2\n", code=2).stderr
    assert said == f"error: stdin:1: 'temperature' must stand there once; it has ['{INPUTS[0]}', 'other']\n"
    assert "stdin:2: 1 numbers, and the first line names 2" in infer(
        folder, "values", text=f"{INPUTS[0]},{INPUTS[1]}\n1\n", code=2
    ).stderr  # fmt: skip


REFUSED: dict[str, tuple[Any, str]] = {
    "a column is missing": (lambda text: text.replace("temperature", "temp", 1), "has no column 'temperature', which"),
    "a blank line": (lambda text: text.replace("\n", "\n\n", 3).replace("\n\n", "\n", 2), "line 4"),
    "an empty cell": (lambda text: text.replace("\n", "\n,", 1), "line 2"),
    "a cell of text": (lambda text: text + "x,1,2\n", "line 802"),
    "no header and another width": (lambda text: text.partition("\n")[2], "has 3 columns, and RidgeReadout takes 2"),
    "nan": (lambda text: text + "1,nan,2\n", "line 802"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    change, said = REFUSED[case]
    (tmp_path / "bad.csv").write_text(change((folder / "table.csv").read_text()))
    done = infer(folder, "values", "--input", tmp_path / "bad.csv", code=2)
    assert "bad.csv" in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.slow
def test_a_folder(folder: Path, tmp_path: Path) -> None:
    frame, place = table(folder), tmp_path / "series"
    place.mkdir()
    frame[:90].to_csv(place / "b, second.csv", index=False)
    frame[:40].to_parquet(place / "a.parquet")
    found = pd.read_csv(_written(infer(folder, "values", "--input", place).stdout, tmp_path))
    assert list(found.columns) == ["file", TARGET]
    assert list(found["file"]) == ["a.parquet"] * 40 + ["b, second.csv"] * 90
    np.testing.assert_allclose(found[TARGET][:40], found[TARGET][40:80], rtol=1e-7)
    said = json.loads(infer(folder, "values", "--input", place, "--json").stdout)["files"]
    assert [(one["file"], np.shape(one["outputs"])) for one in said] == [
        ("a.parquet", (1, 40, 1)), ("b, second.csv", (1, 90, 1)),
    ]  # fmt: skip
    assert "npy holds series of one length" in infer(
        folder, "values", "--input", place, "--output", tmp_path / "o.npy", code=2
    ).stderr  # fmt: skip
    (place / "notes.md").write_text("what was measured\n")
    assert "notes.md" in infer(folder, "values", "--input", place, code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "is a folder without files" in infer(folder, "values", "--input", tmp_path / "empty", code=2).stderr


def _written(text: str, place: Path) -> Path:
    (place / "found.csv").write_text(text)
    return place / "found.csv"


@pytest.mark.slow
def test_columns_by_number(tmp_path: Path) -> None:
    """What had no names in the run has none here: its own file is taken as it is, and its columns alone, too."""
    table = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    np.save(tmp_path / "table.npy", table)
    text = "\n".join(",".join(map(str, row)) for row in table)
    (tmp_path / "table.csv").write_text(f"measured today, 3\n{text}\n")
    columns = "inputs: {columns: [2, 0]}, targets: {columns: [1]}"
    task = "{kind: data, files: FOLDER/table.csv, read: {skip_lines: 1}, " + columns + "}"
    run = run_of(tmp_path, EXPERIMENT.replace("{kind: measured, file: FOLDER/table.csv}", task))
    run.rename(tmp_path / "chosen.run")
    export_run(tmp_path / "chosen.run", tmp_path / "chosen.rhw")
    np.save(tmp_path / "alone.npy", table[:, [2, 0]])
    found = [
        infer(tmp_path, "chosen", *options, text=text).stdout
        for options in (
            ["--input", tmp_path / "table.csv", "--skip-lines", 1],
            ["--input", tmp_path / "table.npy"],
            ["--input", tmp_path / "alone.npy"],
            [],
        )
    ]
    answers = [numbers(one, "1") for one in found]
    assert answers[0].shape == (200, 1)
    for other in answers[1:]:
        np.testing.assert_allclose(other, answers[0], rtol=1e-5)
    np.save(tmp_path / "narrow.npy", table[:, :1])
    said = infer(tmp_path, "chosen", "--input", tmp_path / "narrow.npy", code=2).stderr
    assert "has 1 columns, and RidgeReadout takes 2 (2, 0)" in said
    assert "--skip-lines is for a file" in infer(tmp_path, "chosen", "--skip-lines", 1, text=text, code=2).stderr


# ---- classes and forecasts


def test_classes(folder: Path, tmp_path: Path) -> None:
    outputs = np.load(folder / "classes.run/outputs/000.npy")
    labels = [CLASSES[best] for best in outputs[:, 5:].mean(1).argmax(1)]
    assert labels == [CLASSES[number % 2] for number in range(8)]
    place = tmp_path / "trials"
    place.mkdir()
    for number, trial in enumerate(trials()[16:]):
        pd.DataFrame(trial[:, ::-1], columns=INPUTS[::-1]).to_csv(place / f"{number}.csv", index=False)
    said = infer(folder, "classes", "--input", place).stdout
    assert said.splitlines() == ["file,label"] + [
        f'{number}.csv,"{label}"' if "," in label else f"{number}.csv,{label}" for number, label in enumerate(labels)
    ]
    assert infer(folder, "classes", "--input", place / "1.csv").stdout == "falling\n"
    assert infer(folder, "classes", text=(place / "1.csv").read_text()).stdout == "falling\n"
    found = json.loads(infer(folder, "classes", "--input", place, "--json").stdout)["files"]
    scores = np.array([one["scores"][0] for one in found])
    assert np.abs(scores - outputs[:, 5:].mean(1)).max() <= bound(outputs)
    assert [one["labels"] for one in found] == [[label] for label in labels]
    with EdgeRunner(folder / "classes.rhw", folder / "classes.run/experiment.yaml") as runner:
        assert runner.answers(runner.run(trials()[16:])) == labels
    with (
        EdgeRunner(folder / "values.rhw", folder / "values.run/experiment.yaml") as runner,
        pytest.raises(NotSupported, match="with no classes"),
    ):
        runner.answers(np.zeros((1, 3, 1)))


@pytest.mark.slow
def test_a_forecast(folder: Path, tmp_path: Path) -> None:
    outputs, series = np.load(folder / "forecast.run/outputs/000.npy"), format_of(folder, "forecast")
    wanted, frame = series.user_outputs(outputs), table(folder)
    for number, start in enumerate((TRAIN - WARMUP, TRAIN - WARMUP + 50)):
        frame[start : start + WARMUP].to_csv(tmp_path / "past.csv", index=False)
        said = infer(folder, "forecast", "--input", tmp_path / "past.csv", "--forecast", 40).stdout
        found = numbers(said, ",".join(INPUTS))
        assert found.shape == (40, 2)
        assert np.abs(series.model_targets(found) - outputs[number]).max() <= bound(outputs)
        np.testing.assert_allclose(found, wanted[number], rtol=1e-4)
        text = (tmp_path / "past.csv").read_text()
        assert infer(folder, "forecast", "--forecast", 40, text=text).stdout == said
    for mode in ("values", "classes"):
        done = infer(folder, mode, "--input", tmp_path / "past.csv", "--forecast", 3, code=2)
        assert "does not say its own next inputs" in done.stderr


# ---- the same data alone


@pytest.mark.parametrize(("column", "said"), [(0, "inputs"), (2, "targets")])
def test_data_that_changed_since_the_run(column: int, said: str, folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.csv"
    shutil.copy(folder / "table.csv", kept)
    frame = table(folder)
    frame.iloc[700, column] += 1
    try:
        frame.to_csv(folder / "table.csv", index=False)
        for work in (
            lambda: evaluate(folder / "values.run"),
            lambda: export_run(folder / "values.run", tmp_path / "model.rhw"),
            lambda: export_run(folder / "values.run", tmp_path / "model.h", target="c"),
        ):
            with pytest.raises(
                ConfigurationError, match=rf"^table.csv has changed since the run of .*: {said} differ;"
            ):
                work()
    finally:
        shutil.copy(kept, folder / "table.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"kept.csv"}
    found = evaluate(folder / "values.run")
    assert found.differences["there - here"]["nmse"].value == 0


def test_a_header(folder: Path, tmp_path: Path) -> None:
    export_run(folder / "values.run", tmp_path / "model.h", target="c")
    text = (tmp_path / "model.h").read_text()
    assert "static inline void model_predict(const float *states, const double *inputs, double *outputs)" in text
    assert f"/* inputs: {', '.join(INPUTS)} */" in text
