"""Another reservoir in an experiment: what is kept, what is left out, and what `check` says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call_here

from reservoir_hw import Experiment
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import grid
from reservoir_hw.experiment.run.result import write_yaml
from reservoir_hw.experiment.run.swapped import swapped

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PHOTONIC = EXAMPLES / "reservoirs" / "photonic.yaml"
ONE_INPUT: dict[str, Any] = {
    "kind": "python", "call": "numpy:tanh", "nodes": 1, "inputs": 1, "simulated": False, "continuity": "held",
    "input_range": [-0.5, 0.5], "reset": {"kind": "none", "reason": "no memory"}, "label": "my film",
}  # fmt: skip

KEPT_WHOLE = [
    "classification/sine_square.yaml",
    "delay_loop/adc_narma.yaml",
    "delay_loop/narma.yaml",
    "elman_grammar/quick.yaml",
    "forecasting/lorenz_short.yaml",
    "sweep/narma10.yaml",
    "virtual_bench/narma.yaml",
]


def lab(folder: Path, name: str = "lab.yaml", **changes: Any) -> Path:
    write_yaml(folder / name, {**ONE_INPUT, **changes})
    return folder / name


def load(file: Path | str, reservoir: Path | None = None, *, strict: bool = False, over: Any = None) -> Document:
    return load_document(file, reservoir=reservoir, set=over or {}, environment={}, strict=strict)


@pytest.fixture(autouse=True)
def _nothing_is_opened(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "tmp_path_of_runs" not in request.fixturenames:
        monkeypatch.setattr(Reservoir, "open", lambda self: pytest.fail("it was opened"))


@pytest.fixture
def tmp_path_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For tests that drive something."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("example", KEPT_WHOLE)
def test_the_section_itself_as_a_file_changes_nothing(tmp_path: Path, example: str) -> None:
    """With all that varies and is searched in it: the points are the same ones, in the same order."""
    own = load(EXAMPLES / example)
    write_yaml(tmp_path / "own.yaml", own.data["reservoir"])
    other = load(EXAMPLES / example, tmp_path / "own.yaml", strict=True)
    assert other.left_out == []
    assert [(dict(point.values), point.label) for point in grid(other)] == [
        (dict(point.values), point.label) for point in grid(own)
    ]
    assert Experiment(other).resolved() == Experiment(own).resolved()


@pytest.mark.parametrize("example", KEPT_WHOLE)
def test_what_varies_goes_and_comes_with_the_reservoir(tmp_path: Path, example: str) -> None:
    own = load(EXAMPLES / example)
    file = lab(tmp_path, vary={"params.bias": [0.1, 0.2], "label": ["a"]}, search={"params.gain": [1, 2]})
    other = load(EXAMPLES / example, file)
    points = grid(other)
    kept = {str({key: own for key, own in point.values.items() if key[:9] != "reservoir"}) for point in grid(own)}
    assert len(points) == 2 * len(kept)
    assert {key for point in points for key in point.values if key.startswith("reservoir")} == {
        "reservoir.params.bias", "reservoir.label",
    }  # fmt: skip
    assert {point.config.reservoir.kind for point in points} == {"python"}
    assert list(other.data["reservoir"]["search"]) == ["params.gain"]


def test_rows_that_become_equal_are_one(tmp_path: Path) -> None:
    text = "\n".join([
        "task: {kind: narma, train_steps: 60, test_steps: 40}",
        "reservoir: {kind: esn, nodes: 5}",
        "readout: {kind: ridge}",
        "vary:",
        "  - {reservoir.nodes: 7, readout.alpha: 1}",
        "  - {readout.alpha: 2}",
        "  - {readout.alpha: 1, reservoir.nodes: 9, reservoir.seed: 3}",
        "  - {reservoir: {kind: esn, nodes: 3}, readout.alpha: 2}",
        "  - {reservoir.seed: 4}",
    ])  # fmt: skip
    (tmp_path / "rows.yaml").write_text(text)
    document = load(tmp_path / "rows.yaml", PHOTONIC)
    assert [dict(point.values) for point in grid(document)] == [{"readout.alpha": 1}, {"readout.alpha": 2}, {}]
    (sentence,) = document.left_out
    assert sentence == (
        f"{tmp_path / 'rows.yaml'}:4: vary: reservoir, reservoir.nodes, reservoir.seed belonged to the replaced "
        "reservoir; 5 rows become 3"
    )
    # Of rows that name nothing else, one point is left, and no empty row.
    alone = "  - {reservoir.nodes: 7}\n  - {reservoir.nodes: 8}\n"
    (tmp_path / "rows.yaml").write_text(text.partition("  - ")[0] + alone)
    document = load(tmp_path / "rows.yaml", PHOTONIC)
    assert [dict(point.values) for point in grid(document)] == [{}]
    assert "2 rows become 1" in document.left_out[0]


def test_rows_that_name_nothing_of_the_reservoir_stay_as_they_are(tmp_path: Path) -> None:
    rows = [{"readout.alpha": 1}, {"readout.alpha": 2}]
    write_yaml(tmp_path / "rows.yaml", {**load(EXAMPLES / "virtual_bench/narma.yaml").data, "vary": rows})
    document = load(tmp_path / "rows.yaml", PHOTONIC, strict=True)
    assert len(grid(document)) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"vary": {"reservoir": [{"kind": "esn", "nodes": 3}], "task.dataset": [0, 1]}},
            "vary.reservoir: whole reservoirs in the place of the one that is there now",
        ),
        (
            {"sweep": {"metric": "nrmse", "search": {"reservoir": [{"kind": "esn", "nodes": 3}]}}},
            "sweep.search.reservoir: whole reservoirs in the place of the one that is there now",
        ),
        (
            {"baselines": [{"kind": "fir", "taps": 3}, {"kind": "encoder_only", "of": {"kind": "esn", "nodes": 3}}]},
            "baselines.1.of: encoder_only takes the encoder of the reservoir that is there",
        ),
        (
            {"vary": [{"reservoir.nodes": 3, "task.dataset": 1}]},
            "vary: reservoir.nodes belonged to the replaced reservoir",
        ),
    ],
)  # fmt: skip
def test_what_is_left_out_is_said_with_its_place_and_strict_refuses_it(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    file = tmp_path / "file.yaml"
    write_yaml(file, {**load(EXAMPLES / "virtual_bench/narma.yaml").data, **change})
    document = load(file, PHOTONIC)
    said = document.left_out[0]
    assert said.startswith(f"{file}:")
    assert said.endswith(sentence)
    assert grid(document)
    assert Experiment(document).left_out == document.left_out
    with pytest.raises(ConfigurationError) as caught:
        load(file, PHOTONIC, strict=True)
    assert str(caught.value).startswith(f"--strict: {said}")
    # Without another reservoir nothing is left out, strict or not.
    assert load(file, strict=True).left_out == []


def test_mistakes_in_the_other_file_have_its_lines(tmp_path: Path) -> None:
    example = EXAMPLES / "delay_loop/narma.yaml"
    (tmp_path / "lab.yaml").write_text("kind: esn\nvary:\n  seed: [0]\n  nodez: [1]\nnodes: 5\n")
    with pytest.raises(ConfigurationError, match=r"lab\.yaml:4: unknown key 'reservoir\.nodez'"):
        grid(load(example, tmp_path / "lab.yaml"))
    (tmp_path / "lab.yaml").write_text("kind: esn\nvary: {seed: [0, 1]}\nnodes: 5\n")
    with pytest.raises(ConfigurationError, match=r"reservoir\.seed varies \(\S*lab\.yaml:2\)"):
        load(example, tmp_path / "lab.yaml", over={"reservoir.seed": 3})


def test_the_encoder_that_is_a_baseline_follows(tmp_path_of_runs: Path) -> None:
    short = {"task.train_steps": 200, "task.test_steps": 100, "vary": {}, "run.states": None, "readout.washout": 20}
    given = load(EXAMPLES / "delay_loop/narma.yaml", over=short).data
    given["baselines"] = [{"kind": "encoder_only", "of": {"kind": "delay_loop", "nodes": 4}}]
    given["vary"] = [{"reservoir.nodes": 20}, {"reservoir.nodes": 30}]
    given["reservoir"].pop("vary")
    write_yaml(tmp_path_of_runs / "file.yaml", given)
    write_yaml(tmp_path_of_runs / "lab.yaml", {"kind": "delay_loop", "nodes": 7})
    experiment = Experiment(load("file.yaml", Path("lab.yaml")))
    result = experiment.run(report=False)
    assert [row.label for row in result.rows] == ["encoder only(7)", "mackey_glass(7)"]
    assert [warning for warning in result.warnings if warning.startswith("left out: ")] == [
        f"left out: {sentence}" for sentence in experiment.left_out
    ]
    assert len(experiment.left_out) == 2


@pytest.mark.slow
def test_check_says_what_a_swap_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("film_of_a_swap.py").write_text("def film(u, bias):\n    return u + bias\n")
    film = {"call": "film_of_a_swap:film", "step_period_s": 1e-3, "params": {"bias": 0}}
    file = lab(tmp_path, vary={"params.bias": [0.1, 0.2]}, **film)
    example = EXAMPLES / "delay_loop/narma.yaml"
    done = call_here("check", example, "--reservoir", file, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {row[0]: row[1:] for row in found["rows"]}
    before, after = Experiment(load(example)), Experiment(load(example, file))
    assert list(rows) == ["kind", "inputs", "nodes", "points", "device steps", "device time"]
    assert rows["kind"] == ["paquot(50)", "my film"]
    assert rows["inputs"] == ["1", "1"]
    assert rows["nodes"] == ["50", "1"]
    assert rows["points"] == ["3 seed × 10 dataset", "2 bias × 10 dataset"]
    assert rows["device steps"] == [f"{one.estimate().device_steps:,}" for one in (before, after)]
    assert rows["device time"][0] == "unknown"
    assert rows["device time"][1].endswith(" h")
    assert (found["left_out"], found["points"]) == ([], 20)
    assert found["rows"] == [list(row) for row in swapped(before, after)]
    printed = call_here("check", example, "--reservoir", file).stdout
    for text in ("the file's own", "my film", "2 bias × 10 dataset"):
        assert text in printed
    assert "left out" not in printed
    assert "rows" not in json.loads(call_here("check", example, "--json").stdout)


def test_check_says_how_channels_meet_the_other_device(tmp_path: Path) -> None:
    """Twenty-four of a grammar for one input in [-0.5, 0.5], and three of a flow that go further than it takes."""
    file = lab(tmp_path)
    grammar = Experiment(load(EXAMPLES / "elman_grammar/quick.yaml", file))
    (inputs,) = (row[2] for row in swapped(grammar, grammar) if row[0] == "inputs")
    assert inputs.startswith("24 channels are spread over 1 input of my film by a mask (uniform, seed 0, times ")
    three = lab(tmp_path, inputs=3)
    loop = {"task.closed_loop": None}
    lorenz = Experiment(load(EXAMPLES / "forecasting/lorenz_short.yaml", three, over=loop))
    (inputs,) = (row[2] for row in swapped(lorenz, lorenz) if row[0] == "inputs")
    assert inputs == "inputs are scaled into the range of my film (times 0.113, plus 0)"


def test_strict_and_left_out_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    given = load(EXAMPLES / "virtual_bench/narma.yaml").data
    write_yaml(file, {**given, "vary": [{"reservoir.nodes": 3, "task.dataset": 1}]})
    done = call_here("check", file, "--reservoir", PHOTONIC)
    assert done.returncode == 0, done.stderr
    assert f"left out: {file}:" in done.stdout
    for command in ("check", "run"):
        done = call_here(command, file, "--reservoir", PHOTONIC, "--strict")
        assert done.returncode == 2
        assert done.stderr.startswith("error: --strict: ")
        assert len(done.stderr.strip().splitlines()) == 1
    assert call_here("check", file, "--strict").returncode == 0


def test_a_sweep_goes_on_over_what_is_left_and_what_the_other_file_searches(tmp_path: Path) -> None:
    done = call_here("check", EXAMPLES / "sweep/narma10.yaml", "--reservoir", PHOTONIC)
    assert done.returncode == 0, done.stderr
    assert "over alpha, " in done.stdout
    file = lab(tmp_path, search={"step_period_s": [1e-3, 2e-3]})
    done = call_here("check", EXAMPLES / "sweep/narma10.yaml", "--reservoir", file)
    assert done.returncode == 0, done.stderr
    assert "over step_period_s, alpha, " in done.stdout
