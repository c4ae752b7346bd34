"""What must not change an experiment, and what must: files drawn from the schema, run in several ways.

Nothing here knows which number is right. It knows which numbers are equal.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from drawn_files import draw, draw_section, experiment_schema, kinds
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ReservoirError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.run import experiment as experiment_module
from reservoir_hw.experiment.run.in_one_pass import InOnePass
from reservoir_hw.experiment.run.on_workers import run_on
from reservoir_hw.experiment.run.result import Result
from reservoir_hw.experiment.states.harvest import store_path

TASKS = ("narma", "memory_recall", "parity", "channel_equalisation", "sine_square", "henon", "elman_grammar")
RESERVOIRS = ("esn", "esn", "gated_esn", "delay_loop", "nvar")
READOUTS = ("ridge", "ridge", "rls", "lms")

# On CI they are the same every time, elsewhere others.
MANY = settings(
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
randoms = st.randoms(use_true_random=False)


def drawn(random: Random, **sections: Any) -> dict[str, Any]:
    """A file of a simulation and a readout in one pass."""
    document: dict[str, Any] = {
        "task": draw_section(random, "task", random.choice(TASKS), more=0.1),
        "reservoir": draw_section(random, "reservoir", random.choice(RESERVOIRS), more=0.1),
        "readout": draw_section(random, "readout", random.choice(READOUTS), more=0.1),
        "training": draw(random, experiment_schema()["properties"]["training"], "training", 0.2),
        "run": {"chunk_steps": random.randint(5, 60)},
        **sections,
    }
    document["training"].pop("gradient", None)
    if document["readout"]["kind"] != "lms":
        # With less, what is found for nearly equal columns hangs on the last bit.
        document["readout"]["alpha"] = random.choice([1e-3, 0.1, 1.0])
    return document


def fit(document: dict[str, Any], folder: str = "nowhere") -> Experiment:
    """The experiment with its stores and runs in a folder; another one is drawn where it is refused."""
    run = {"folder": f"{folder}/runs", "states": f"{folder}/states", **document["run"]}
    try:
        found = Experiment({**copy.deepcopy(document), "run": run})
        found.estimate()
    except ReservoirError:
        assume(False)
    return found


def harvested(experiment: Experiment) -> list[dict[str, np.ndarray]]:
    """The states of each store; another experiment is drawn where a device fails, as one that diverges does."""
    try:
        stores = experiment.harvest()
    except ReservoirError:
        assume(False)
    return [states_in(store) for store in stores]


def states_in(store: StateStore) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([data.read_states(region).ravel() for region in data.regions()])
        for name, data in store.datasets.items()
    }


def same(one: Any, other: Any) -> bool:
    """Whether the arrays of stores, or of rows, are equal to the bit."""
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def found(result: Result) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """What was found, without what it took."""
    numbers = [{**row.evaluation.metrics, "outputs": result.outputs(n)} for n, row in enumerate(result.rows)]
    return [(row.label, dict(row.point), one) for row, one in zip(result.rows, numbers, strict=True)]


def in_torch(document: dict[str, Any]) -> bool:
    """Whether a readout sums states that are tensors: with torch, and those of a store with numpy."""
    reservoir = document["reservoir"]
    return reservoir.get("engine") == "torch" or bool(reservoir.get("gradients"))


def check_found(result: Result, wanted: Result, *, exact: bool = True) -> None:
    """The same rows in the same order, with the same numbers to the bit, or nearly the same outputs."""
    one, other = found(result), found(wanted)
    assert [row[:2] for row in one] == [row[:2] for row in other]
    if exact:
        assert same([row[2] for row in one], [row[2] for row in other])
    for row, its in zip(one, other, strict=True):
        np.testing.assert_allclose(row[2]["outputs"], its[2]["outputs"], rtol=1e-4, atol=1e-5)


def names(experiment: Experiment) -> tuple[str, str | None]:
    """The name of the store of its only point, and what it shares a drive by."""
    (point,) = experiment.points
    task = experiment.task_of(point)
    return store_path(point, task), InOnePass().drive_of(point, task)


@contextmanager
def folders() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        yield one, other


def changed_field(random: Random, document: dict[str, Any], section: str) -> dict[str, Any]:
    """The file with another value of one field of a section, or of a section in it."""
    node = kinds(section)[document[section]["kind"]] if section in ("task", "reservoir", "readout") else None
    properties = (node or experiment_schema()["$defs"][f"{section.capitalize()}Config"])["properties"]
    key = random.choice(sorted({*properties} - {"kind", "vary", "search", "hil", "states", "draws", "record", "point"}))
    value = draw(random, properties[key], key, 0.3)
    assume(value != document[section].get(key))
    note(f"{section}.{key}: {document[section].get(key)!r} -> {value!r}")
    return {**document, section: {**document[section], key: value}}


def redrawn(random: Random, document: dict[str, Any], section: str) -> dict[str, Any]:
    """The file with another readout, or with everything else in `run` that is not about where states lie."""
    if section == "readout":
        return {**document, section: draw_section(random, section, random.choice(READOUTS), more=0.3)}
    properties = experiment_schema()["$defs"]["RunConfig"]["properties"]
    keys = ("name", "chunk_steps", "sample", "operator", "notes")
    return {**document, section: {key: draw(random, properties[key], key, 1.0) for key in keys}}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["task", "reservoir", "training", "readout", "run"])
@MANY
@given(random=randoms)
def test_a_name_follows_the_states(section: str, random: Random) -> None:
    """Where the states differ, so do the names. Where what is driven cannot differ, the names are the same."""
    one = drawn(random)
    other = (redrawn if section in ("readout", "run") else changed_field)(random, one, section)
    note(str(one))
    with folders() as (here, there):
        first, second = fit(one, here), fit(other, here)
        equal_names = names(first) == names(second)
        inputs = [experiment.task_of(experiment.points[0]) for experiment in (first, second)]
        if section in ("readout", "run"):
            assert equal_names
            return
        if section == "task" and all(task.inputs_digest for task in inputs):
            assert equal_names == (inputs[0].inputs_digest == inputs[1].inputs_digest)
        if not equal_names:
            assert names(first)[0] != names(second)[0]
            # A closed loop shares its drive with nobody.
            assert names(first)[1] is None or names(first)[1] != names(second)[1]
            return
        # In another folder: what is in the first one would be taken.
        assert same(harvested(first), harvested(fit(other, there)))


def varied(random: Random) -> dict[str, Any]:
    """A file with two to four points that differ in what decides about the states, and in what does not."""
    document = drawn(random)
    key = "seed" if "seed" in kinds("reservoir")[document["reservoir"]["kind"]]["properties"] else "constant"
    document["reservoir"].pop(key, None)
    document["reservoir"]["vary"] = {key: random.sample([0, 1, 2], 2) if key == "seed" else [False, True]}
    document["vary"] = {"readout.washout": random.sample([0, 3, 7], random.choice([1, 1, 2]))}
    return document


Ran = tuple[Random, dict[str, Any], str]
"""A file that was run, with its folder, and who draws what else there is to draw."""


def merged(ran: Ran, whole: Result, workers: str) -> None:
    random, document, folder = ran
    points = range(len(fit(document, folder).points))
    parts = [fit(of_run(document, point=number), folder).run(report=False) for number in points]
    random.shuffle(parts)
    check_found(fit(document, folder).merge([part.folder for part in parts]), whole)


def on_two_workers(ran: Ran, whole: Result, workers: str) -> None:
    _, document, folder = ran
    check_found(run_on(fit(document, folder), workers), whole)


def turned_about(ran: Ran, whole: Result, workers: str) -> None:
    _, document, folder = ran
    back = copy.deepcopy(document)
    for axes in (back["vary"], back["reservoir"]["vary"]):
        for values in axes.values():
            values.reverse()
    result = fit(back, folder).run(report=False)
    result.rows.reverse()
    result.sources = {len(whole.rows) - 1 - number: source for number, source in result.sources.items()}
    check_found(result, whole)


def in_other_chunks(ran: Ran, whole: Result, workers: str) -> None:
    random, document, folder = ran
    other = of_run(document, chunk_steps=random.randint(5, 60))
    check_found(fit(other, folder).run(report=False), whole, exact=False)


def from_a_harvest(ran: Ran, whole: Result, workers: str) -> None:
    _, document, folder = ran
    harvested(fit(document, folder))
    result = fit(document, folder).run(report=False)
    assert result.notes
    check_found(result, whole, exact=not in_torch(document))


def from_an_interrupted_harvest(ran: Ran, whole: Result, workers: str) -> None:
    random, document, folder = ran
    stores = harvested(fit(document, folder))
    with tempfile.TemporaryDirectory() as there:
        interrupted(random, fit(document, there))
        # The chunks stay as they were begun. A store that was not begun takes the new ones: sums round in another way.
        begun = len([*Path(there, "states").glob("*")])
        again = fit(of_run(document, chunk_steps=random.randint(5, 60)), there)
        assert same(harvested(again), stores)
        check_found(again.run(report=False), whole, exact=begun == len(stores) and not in_torch(document))


def of_run(document: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {**document, "run": {**document["run"], **keys}}


def interrupted(random: Random, experiment: Experiment) -> None:
    """Begin to harvest, and be stopped somewhere in the middle."""
    share = random.uniform(0.1, 0.9)

    def progress(what: str, done: int, total: int) -> None:
        if done and done >= share * total:
            raise KeyboardInterrupt

    try:
        experiment.harvest(progress)
    except KeyboardInterrupt:
        return


@pytest.fixture(scope="module")
def workers() -> Iterator[str]:
    """The address of a scheduler with two workers, in this process. No figures are drawn, which would take longest."""
    distributed = pytest.importorskip("distributed")
    own = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**own) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment_module, "write_report", lambda result: None)
        yield cluster.scheduler_address


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [merged, on_two_workers, turned_about, in_other_chunks, from_a_harvest, from_an_interrupted_harvest]
)
@settings(MANY, max_examples=10)
@given(random=randoms)
def test_every_way_to_run_is_the_same(way: Callable[[Ran, Result, str], None], workers: str, random: Random) -> None:
    """What a way of running an experiment finds is what a run finds."""
    document = varied(random)
    note(str(document))
    with tempfile.TemporaryDirectory() as folder:
        try:
            whole = fit(document, folder).run(report=False)
        except ReservoirError:
            assume(False)
        way((random, document, folder), whole, workers)
