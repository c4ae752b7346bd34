"""What varies in a section: the order of the points, what is refused, and what nothing changes for."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from command_line import call_here
from hypothesis import given, settings
from hypothesis import strategies as st

from reservoir_hw import open_reservoir
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.configuration.document import load_document
from reservoir_hw.experiment.configuration.experiment import grid, parse_experiment
from reservoir_hw.experiment.run.swapped import points_text

SECTIONS: dict[str, Any] = {
    "task": {"kind": "narma", "train_steps": 60, "test_steps": 40},
    "reservoir": {"kind": "esn", "nodes": 5},
    "readout": {"kind": "ridge"},
}
FILE = """\
task: {kind: narma, train_steps: 60, test_steps: 40}
readout:
  kind: ridge
reservoir:
  kind: esn
  nodes: 5
"""
OWN = {"seed": [3, 1], "leak_rate": [0.5, 1.0], "nonidealities.loop.noise": [0.0, 0.1, 0.2]}
OTHERS = {"readout.alpha": [1e-6, 1e-2], "task.dataset": [2, 0, 1], "training.priming_passes": [0, 1]}


def experiment(top: Any = None, /, **reservoir: Any) -> Document:
    sections = {**SECTIONS, "reservoir": {**SECTIONS["reservoir"], **reservoir}, "vary": {} if top is None else top}
    return Document.from_mapping(sections, "here")


def written(folder: Path, text: str, name: str = "file.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def points(document: Document) -> list[dict[str, Any]]:
    return [dict(point.values) for point in grid(document)]


def said(file: Path, **over: Any) -> str:
    """The one sentence that refuses a file."""
    with pytest.raises(ConfigurationError) as caught:
        grid(load_document(file, **{"environment": {}, **over}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@settings(deadline=None, max_examples=10)
@given(st.permutations(list(OWN)), st.integers(0, 3), st.permutations(list(OTHERS)), st.integers(0, 3))
def test_the_last_key_turns_fastest_and_the_reservoir_slowest(
    own: list[str], of_own: int, others: list[str], of_others: int
) -> None:
    """A bench would otherwise change its settings at every point."""
    slow = {key: OWN[key] for key in own[:of_own]}
    fast = {key: OTHERS[key] for key in others[:of_others]}
    keys = [*(f"reservoir.{key}" for key in slow), *fast]
    expected = [dict(zip(keys, values, strict=True)) for values in product(*slow.values(), *fast.values())]
    found = grid(experiment(fast, vary=slow))
    assert [dict(point.values) for point in found] == expected
    assert [list(point.values) for point in found] == [keys] * len(expected)
    assert not any(point.config.reservoir.vary or point.config.reservoir.search for point in found)


def test_rows_turn_with_the_grid_of_the_other_place() -> None:
    own = [{"seed": 1}, {"nodes": 7, "leak_rate": 0.5}]
    rows = [{"readout.alpha": 1.0}, {"readout": {"kind": "rls"}}]
    expected = [
        {"reservoir.seed": 1, "readout.alpha": 1.0},
        {"reservoir.seed": 1, "readout": {"kind": "rls"}},
        {"reservoir.nodes": 7, "reservoir.leak_rate": 0.5, "readout.alpha": 1.0},
        {"reservoir.nodes": 7, "reservoir.leak_rate": 0.5, "readout": {"kind": "rls"}},
    ]
    assert points(experiment(rows, vary=own)) == expected
    assert points_text(parse_experiment(experiment(rows, vary=own))) == "2 rows × 2 rows"


def test_extends_merges_both_places_and_null_removes_an_axis(tmp_path: Path) -> None:
    more = "  vary: {seed: [0, 1], leak_rate: [0.5]}\nvary: {readout.alpha: [1, 2], task.dataset: [0, 1]}\n"
    written(tmp_path, FILE + more, "base.yaml")
    child = "extends: base.yaml\nreservoir:\n  vary: {seed: null, nodes: [5, 6]}\nvary: {readout.alpha: null}\n"
    found = points(load_document(written(tmp_path, child), environment={}))
    own = {"reservoir.leak_rate": 0.5}
    expected = [own | {"reservoir.nodes": nodes, "task.dataset": data} for nodes in (5, 6) for data in (0, 1)]
    assert found == expected
    # A child that removes a key may set it again.
    again = "extends: base.yaml\nreservoir:\n  seed: 4\n  vary: {seed: null}\nvary: {}\n"
    first: Any = grid(load_document(written(tmp_path, again), environment={}))[0]
    assert first.config.reservoir.seed == 4


NVAR = "{kind: nvar, lags: 2, orders: 2, vary: {lags: [1, 2]}}"
LOOP = "{kind: delay_loop, nodes: 3, vary: {seed: [0]}}"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("vary:\n  readout.alpha: [1]\n  reservoir.seed: [0, 1]\n", 9, "reservoir.seed belongs into the section"),
        ("sweep:\n  metric: nrmse\n  search:\n    reservoir.seed: [0, 1]\n", 10, "as search: {seed: ...}"),
        ("  vary: {seed: [0]}\nvary:\n  - {reservoir.seed: 1}\n", 9, "stands here and in reservoir.vary"),
        ("  vary:\n    seed: [0]\nvary: {reservoir: [{kind: esn, nodes: 3}]}\n", 9, "reservoir stands here and in"),
        (
            "  vary: {nonidealities.loop.noise: [0]}\nvary:\n  - {reservoir.nonidealities: {readout: {noise: 0.1}}}\n",
            9,
            "reservoir.nonidealities stands here and in reservoir.vary",
        ),
        ("  vary: {seed: []}\n", 7, "reservoir.vary.seed: .*at least 1"),
        ("  vary: {nodez: [1]}\n", 7, "unknown key 'reservoir.nodez'; did you mean 'nodes'"),
        ("  vary: {nodes: [5, -5]}\n", 7, "reservoir.nodes = -5"),
        ("  vary: [seed]\n", 7, "reservoir.vary.0"),
        ("  vary: seed\n", 7, "reservoir.vary"),
        (f"baselines:\n  - bigram\n  - {NVAR}\n", 9, "a baseline does not vary"),
        ("baselines:\n  - {kind: esn, nodes: 3, search: {nodes: [1, 2]}}\n", 8, "a baseline does not vary"),
        (f"baselines:\n  - kind: encoder_only\n    of: {LOOP}\n", 9, "not in a reservoir within it"),
    ],
)
def test_each_mistake_is_one_sentence_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    assert re.search(rf"file\.yaml:{line}: .*{words}", said(written(tmp_path, FILE + text)))


@pytest.mark.parametrize(
    "text",
    [
        f"kind: parallel\ndevices:\n  - reservoir: {{kind: esn, nodes: 3}}\n  - reservoir:\n      {LOOP}\n",
        f"kind: encoder_only\ninputs: 1\n\n\nof: {LOOP}\n",
    ],
)
def test_a_reservoir_within_another_does_not_vary(tmp_path: Path, text: str) -> None:
    device, file = written(tmp_path, text, "device.yaml"), written(tmp_path, FILE)
    with pytest.raises(ConfigurationError) as caught:
        open_reservoir(device, inputs=1)
    for sentence in (str(caught.value), said(file, reservoir=device)):
        assert re.search(r"device\.yaml:[45]: .*not in a reservoir within it", sentence)
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("vary", "key"),
    [
        ("  vary: {seed: [0, 1]}\n", "reservoir.seed"),
        ("  vary: {nonidealities.loop.noise: [0, 0.1]}\n", "reservoir.nonidealities.loop.noise"),
        ("  vary: [{seed: 0}, {seed: 1}]\n", "reservoir.seed"),
        ("vary: {readout.alpha: [1, 2]}\n", "readout.alpha"),
        ("vary: {readout: [{kind: ridge}, {kind: rls}]}\n", "readout.alpha"),
        ("vary: [{reservoir.seed: 0, readout.alpha: 1}, {reservoir.seed: 1}]\n", "reservoir.seed"),
    ],
)
def test_a_value_for_a_key_that_varies_would_have_no_effect(tmp_path: Path, vary: str, key: str) -> None:
    file = written(tmp_path, FILE + vary)
    assert "would have no effect" in said(file, set=[f"{key}=1"])
    assert said(file, set=[f"{key}=1"]).startswith(f"--set {key}: ")
    assert "would have no effect" in said(file, set={key: 1})
    name = f"RESERVOIR_HW__{key.replace('.', '__').upper()}"
    assert said(file, environment={name: "1"}).startswith(f"environment variable {name}: ")


def test_the_axis_itself_can_be_set(tmp_path: Path) -> None:
    file = written(tmp_path, FILE + "  vary: {seed: [0, 1], nonidealities.loop.noise: [0, 0.1]}\n")
    for axis in ("reservoir.vary.nonidealities.loop.noise=[0.2]", "reservoir.vary.nonidealities.loop.noise=null"):
        assert len(grid(load_document(file, set=[axis], environment={}))) == 2
    assert len(grid(load_document(file, set=["reservoir.vary={}"], environment={}))) == 1
    name = "RESERVOIR_HW__RESERVOIR__VARY__SEED"
    assert len(grid(load_document(file, environment={name: "[0, 1, 2]"}))) == 6
    # What the file itself says of a key that varies is what a reader begins with: no mistake.
    assert (
        len(grid(load_document(written(tmp_path, FILE + "  seed: 3\n  vary: {seed: [0, 1]}\n"), environment={}))) == 2
    )
    # A row that does not name the key takes the value.
    some = written(tmp_path, FILE + "vary: [{readout.alpha: 1}, {task.dataset: 1}]\n")
    changed: list[Any] = grid(load_document(some, set=["readout.alpha=3"], environment={}))
    alphas = [point.config.readout.alpha for point in changed]
    assert alphas == [1, 3]


@pytest.mark.slow
def test_where_one_reservoir_is_meant_a_file_that_varies_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "kind: esn\nnodes: 5\ninputs: 1\nvary: {seed: [0, 1]}\n", "lab.yaml")
    written(tmp_path, FILE + "  vary: [{seed: 0}, {nodes: 7}]\n", "whole.yaml")
    words = r"`vary` gives .* several values, and one reservoir is meant here"
    for line, file, *command in ((4, "lab.yaml", "device", "info"), (7, "whole.yaml", "serve")):
        done = call_here(*command, file)
        assert done.returncode == 2, (command, done.stderr)
        assert len(done.stderr.strip().splitlines()) == 1
        assert f"{file}:{line}: `vary` gives" in done.stderr
        with pytest.raises(ConfigurationError, match=words):
            open_reservoir(file, inputs=1)
    assert call_here("check", "lab.yaml").returncode == 0
    assert call_here("device", "info", "lab.yaml", "--set", "vary={}").returncode == 0
