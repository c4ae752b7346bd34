"""What every task promises, for all kinds: shapes, ranges, seeds, judgement, validation, and what a report shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core import registry
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.tasks import ClosedLoop, Henon
from reservoir_hw.tasks.task import Evaluation, OutputScale, Row, Split, Task, TaskConfig

SHORT = {"train_steps": 600, "test_steps": 400}
LOOP = {"train_steps": 600, "closed_loop": {"starts": 4, "warmup_steps": 20, "forecast_steps": 90}}
WAVES = {"train_periods": 50, "test_periods": 20}
TASKS: list[tuple[str, dict[str, Any]]] = [
    ("narma", SHORT),
    ("memory_recall", {**SHORT, "delays": [0, 3, 1]}),
    ("parity", SHORT),
    ("sine_square", WAVES),
    ("channel_equalisation", SHORT),
    ("channel_equalisation", {**SHORT, "snr_db": 8}),
    ("mackey_glass", {**SHORT, "ahead_steps": 5}),
    ("mackey_glass", {**SHORT, "tau": 30, "scaling": "none"}),
    ("mackey_glass", {**LOOP, "scaling": "squash"}),
    ("lorenz", {**SHORT, "ahead_steps": 3}),
    ("lorenz", {**LOOP, "rho": 45.0}),
    ("henon", SHORT),
    ("henon", LOOP),
    ("kuramoto_sivashinsky", {"train_steps": 400, "test_steps": 100}),
    ("elman_grammar", {"sentences": 40}),
    ("santa_fe", SHORT),
    ("japanese_vowels", {}),
    ("trec", {"width": 4}),
    ("validation", {"task": {"kind": "narma", **SHORT}}),
]
every_task = pytest.mark.parametrize(("kind", "settings"), TASKS, ids=str)
KEPT: dict[str, Task] = {}
OF_DATA = ("santa_fe", "japanese_vowels", "trec")


@pytest.fixture
def task(kind: str, settings: dict[str, Any], request: pytest.FixtureRequest) -> Task:
    if kind in OF_DATA:
        request.getfixturevalue("shared_data")
    if repr((kind, settings)) not in KEPT:
        KEPT[repr((kind, settings))] = made(kind, settings)
    return KEPT[repr((kind, settings))]


def made(kind: str, settings: dict[str, Any]) -> Task:
    config = registry.find("tasks", kind).load()
    assert issubclass(config, TaskConfig)
    return config.of(None, settings).build()


@every_task
def test_splits_hold_what_the_task_declares(task: Task) -> None:
    channels = task.channels
    for split in (task.train, task.test):
        assert split.inputs.dtype == split.targets.dtype == np.float32
        assert (split.inputs.shape[2], split.targets.shape[2]) == (task.inputs, task.outputs)
        assert np.isfinite(split.inputs).all()
        assert np.isfinite(split.targets).all()
        padded = split.inputs.shape[1] == split.targets.shape[1]
        u = split.inputs[split.valid] if padded else split.inputs
        assert not padded or not split.inputs[~split.valid].any()
        if channels.range is not None:
            # A mask is made of the range, before any of the inputs is seen.
            assert channels.range[0] - 1e-6 <= u.min()
            assert u.max() <= channels.range[1] + 1e-6
        if channels.range is not None and channels.one_hot:
            np.testing.assert_array_equal(np.unique(u), np.asarray(channels.range, np.float32))
            np.testing.assert_array_equal((u == np.float32(channels.range[1])).sum(-1), 1)
    if channels.range is not None:
        # It is no wish: the inputs use more than half of it.
        assert np.ptp(task.train.inputs) > 0.5 * (channels.range[1] - channels.range[0])
    assert task.test_follows == (len(task.train.inputs) == 1 == len(task.test.inputs))


@every_task
def test_a_seed_and_a_number_are_one_data_set(kind: str, settings: dict[str, Any], task: Task) -> None:
    again = made(kind, settings)
    for one, other in ((task.train, again.train), (task.test, again.test)):
        np.testing.assert_array_equal(one.inputs, other.inputs)
        np.testing.assert_array_equal(one.targets, other.targets)
    for key in {"seed", "dataset"} & set(registry.find("tasks", kind).load().model_fields):
        other = made(kind, {**settings, key: 1}).train
        assert not np.array_equal(task.train.inputs[:, :100], other.inputs[:, :100]), key


@every_task
def test_outputs_are_judged(kind: str, task: Task) -> None:
    right = task.test.targets.astype(float)
    if kind == "elman_grammar":
        right = task.probabilities[None]  # pyright: ignore[reportAttributeAccessIssue]
    random = np.random.default_rng(0).normal(size=right.shape)
    best, worst = (task.evaluate(outputs).metrics for outputs in (right, random))
    ways = {name: task.direction_of(name) for name in best}
    assert ways[task.score] is not None
    for name, way in ways.items():
        if way == "minimize":
            assert best[name] == pytest.approx(0, abs=1e-6) or best[name] < worst[name], name
        elif way == "maximize":
            assert best[name] > worst.get(name, -np.inf), name
    assert all(np.isfinite([*best.values(), *worst.values()]))
    with pytest.raises(ShapeError, match=r"outputs have shape \(1, 7, 1\); the test split needs"):
        task.evaluate(np.zeros((1, 7, 1)))
    broken = right.copy()
    broken[np.nonzero(task.test.valid)[0][0], np.nonzero(task.test.valid)[1][0], 0] = np.nan
    if task.closed_loop:
        # One forecast that diverges does not spoil the others.
        judged = task.evaluate(broken).metrics
        assert (judged["diverged"], judged["whole"]) == (1, len(right) - 1)
        assert all(np.isfinite([*judged.values()]))
    elif kind != "trec":
        with pytest.raises(InputRangeError, match=f"1 of {right.size} outputs are not finite"):
            task.evaluate(broken)


@every_task
def test_tables_and_figures_can_be_shown(task: Task) -> None:
    judged = task.evaluate(task.test.targets)
    rows = [Row("a", {"task.dataset": 0}, judged), Row("a", {"task.dataset": 1}, judged), Row("b", {}, judged)]
    for table in task.tables(rows):
        assert {len(cells) for cells in table.rows} == {len(table.header)}
    for figure in task.figures(rows).values():
        figure.canvas.draw()


@every_task
def test_the_last_part_of_the_training_is_judged(kind: str, task: Task) -> None:
    if kind == "validation":
        pytest.skip("it is one already")
    if kind in ("trec", "elman_grammar"):
        with pytest.raises(ConfigurationError, match=r"has a validation (part )?of its own"):
            task.validation(0.25)
        return
    part = task.validation(0.25)
    assert np.isfinite(part.evaluate(part.test.targets).metrics[part.score])
    if len(task.train.inputs) > 1:
        assert len(part.train.inputs) + len(part.test.inputs) == len(task.train.inputs)
        return
    steps = part.train.inputs.shape[1]
    np.testing.assert_array_equal(part.train.inputs, task.train.inputs[:, :steps])
    if task.closed_loop:
        assert (part.test.inputs.shape, part.test.targets.shape) == (task.test.inputs.shape, task.test.targets.shape)
    else:
        np.testing.assert_array_equal(part.test.inputs, task.train.inputs[:, steps:])
        np.testing.assert_array_equal(part.test.targets, task.train.targets[:, steps:])
        assert part.evaluate(-2 * part.test.targets).metrics[part.score] > 0.3


NETWORK = {"kind": "esn", "nodes": 100, "spectral_radius": 0.8}
LIMITS: list[tuple[dict[str, Any], dict[str, Any], list[Any], list[tuple[float, float]], set[str]]] = [
    ({"kind": "narma"}, {"input_scaling": 1.0}, [{"kind": "fir", "taps": 20}], [(0.1, 0.45)] * 2, {"series", "nmse"}),
    ({"kind": "mackey_glass", "ahead_steps": 10}, {"spectral_radius": 0.9}, [], [(0, 0.2)], {"series", "nmse"}),
    ({"kind": "parity"}, {"spectral_radius": 0.7, "input_scaling": 2.0, "bias_scaling": 0.3},
     [{"kind": "fir", "taps": 10}], [(0.45, 0.55), (0, 0)], {"error_rate", "outputs"}),
    ({"kind": "sine_square"}, {"nodes": 50, "bias_scaling": 0.5}, [{"kind": "fir", "taps": 12}],
     [(0.2, 0.5), (0, 0)], {"answers", "error_by_step", "error_rate"}),
    ({"kind": "memory_recall", "delays": [*range(8)], "train_steps": 500, "test_steps": 2000},
     {"nodes": 20, "topology": "orthogonal", "activation": "identity"}, [{"kind": "fir", "taps": 4}],
     [(3.9, 4.1), (6, 8)], {"recall"}),
    ({"kind": "channel_equalisation", "test_steps": 5000, "snr_db": 40}, {"input_scaling": 0.2}, ["fir"],
     [(0, 0.05), (0, 0.05)], {"symbol_error_rate"}),
    ({"kind": "santa_fe"}, {"spectral_radius": 0.9, "input_scaling": 0.3, "bias_scaling": 0.3},
     [{"kind": "fir", "taps": 40}], [(0.31, 0.45), (0.03, 0.175)], {"series", "nmse"}),
    ({"kind": "japanese_vowels"}, {"spectral_radius": 0.5, "bias_scaling": 0.3}, [], [(0, 0.04)],
     {"error_rate", "confusion"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "reservoir", "baselines", "limits", "figures"), LIMITS, ids=[one[0]["kind"] for one in LIMITS]
)
def test_in_an_experiment(
    task: dict[str, Any],
    reservoir: dict[str, Any],
    baselines: list[Any],
    limits: list[tuple[float, float]],
    figures: set[str],
    tmp_path: Any,
    request: pytest.FixtureRequest,
) -> None:
    """Each task tells a network from a linear filter, and both from chance."""
    if task["kind"] in OF_DATA:
        request.getfixturevalue("shared_data")
    document = {
        "task": task,
        "reservoir": {**NETWORK, **reservoir},
        "readout": {"kind": "ridge", "washout": 0 if task["kind"] == "japanese_vowels" else 50},
        "baselines": baselines,
        "run": {"folder": str(tmp_path)},
    }
    result = Experiment(document).run(report=False)
    found = [row.evaluation.metrics[result.task.score] for row in result.rows]
    assert len(found) == len(limits)
    for score, (low, high) in zip(found, limits, strict=True):
        assert low <= score <= high, found
    assert set(result.figures()) == figures


def test_a_forecast_ends_with_the_first_large_error() -> None:
    """Errors of a known size from a known step on; one that comes back; starts that diverge."""
    loop = {"starts": 4, "warmup_steps": 30, "forecast_steps": 50}
    for kind, time_step, exponent in (("lorenz", 0.02, 0.9056), ("henon", 1.0, 0.41922)):
        task = made(kind, {"train_steps": 2000, "closed_loop": loop})
        known = task.test.targets.astype(float)
        outputs = known.copy()
        for start, (step, error) in enumerate([(10, 0.41), (20, 0.41), (30, 0.39), (40, 1.0)]):
            outputs[start, step:] += error
        judged = task.evaluate(outputs)
        # The channels are standardised, so an offset of d in all of them is an error of d.
        np.testing.assert_allclose(judged.arrays["error"][0, 10:], 0.41, rtol=1e-4)
        assert judged.arrays["valid_steps"].tolist() == [10, 20, 50, 40]
        metrics = judged.metrics
        assert (metrics["valid_steps"], metrics["valid_steps/q1"], metrics["valid_steps/q3"]) == (30, 17.5, 42.5)
        assert metrics["valid_lyapunov_times"] == pytest.approx(30 * time_step * exponent)
        assert (metrics["whole"], metrics["diverged"]) == (1, 0)
        outputs = known.copy()
        outputs[0, 5, 0] += 10
        outputs[1, 7:] = np.nan
        outputs[2, 9, -1] = np.inf
        judged = task.evaluate(outputs)
        assert judged.arrays["valid_steps"].tolist() == [5, 7, 9, 50]
        assert (judged.metrics["whole"], judged.metrics["diverged"]) == (1, 2)


FIRST: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("narma", {}, [0.26073131, 0.40380129, 0.33705720], [0.30450180, 0.38891792, 0.41369671]),
    ("lorenz", {}, [[-0.06588760, -0.18482931, -1.37633944]], [[-0.09775976, -0.24033169, -1.43719280]]),
    ("mackey_glass", {"scaling": "none"}, [1.12588954, 1.11787152, 1.11273289], [1.11787152, 1.11273289]),
    ("channel_equalisation", {"snr_db": 24.0}, [2.45401883, -1.71722531, -1.63930655], [3, -3, 3, -3, -1, -1, 3, 3]),
]


@pytest.mark.parametrize(("kind", "settings", "inputs", "targets"), FIRST, ids=[one[0] for one in FIRST])
def test_data_are_the_same_on_every_machine(
    kind: str, settings: dict[str, Any], inputs: list[Any], targets: list[Any]
) -> None:
    train = made(kind, settings).train
    for values, known in ((train.inputs, inputs), (train.targets, targets)):
        np.testing.assert_allclose(values[0, : len(known)].squeeze(), np.squeeze(known), rtol=1e-5)


@pytest.mark.parametrize("kind", ["mackey_glass", "lorenz", "henon", "kuramoto_sivashinsky"])
def test_targets_are_inputs_that_come_later(kind: str) -> None:
    """Standardised by the training; the forecasts of a closed loop follow one another behind it."""
    task = made(kind, {"train_steps": 400, "test_steps": 200, "ahead_steps": 3})
    for split in (task.train, task.test):
        np.testing.assert_array_equal(split.inputs[:, 3:], split.targets[:, :-3])
    np.testing.assert_array_equal(task.test.inputs[:, :3], task.train.targets[:, -3:])
    np.testing.assert_allclose(task.train.inputs.mean(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(task.train.inputs.std(axis=1), 1, atol=1e-4)
    loop = {"starts": 4, "warmup_steps": 30, "forecast_steps": 50}
    closed = made(kind, {"train_steps": 400, "closed_loop": loop})
    opened = made(kind, {"train_steps": 400, "test_steps": 400, "ahead_steps": 1})
    np.testing.assert_array_equal(closed.train.targets, opened.train.targets)
    pieces = np.concatenate([closed.test.inputs, closed.test.targets], axis=1)
    np.testing.assert_array_equal(pieces.reshape(320, -1), opened.test.targets[0, :320])


def test_forecasts_begin_within_the_judged_part() -> None:
    loop = ClosedLoop(starts=5, warmup_steps=10, forecast_steps=20)
    whole = Henon(train_steps=400, closed_loop=loop)
    part = whole.validation(0.25)
    assert (part.test.inputs.shape, part.test.targets.shape) == ((5, 10, 1), (5, 20, 1))
    series = whole.train.inputs[0]
    for start, first in enumerate([300, 317, 335, 352, 370]):
        np.testing.assert_array_equal(part.test.inputs[start], series[first : first + 10])
        np.testing.assert_array_equal(part.test.targets[start], series[first + 10 : first + 30])
    assert part.evaluate(part.test.targets).metrics["valid_steps"] == 20
    with pytest.raises(ConfigurationError, match="is 28 steps, but at least 30 are needed"):
        whole.validation(0.07)


class Sequences(Task):
    def __init__(self) -> None:
        u = np.arange(10 * 7, dtype=np.float32).reshape(10, 7, 1)
        self.train = self.test = Split(u, -u, lengths=np.arange(10) % 7 + 1)

    def evaluate(self, outputs: np.ndarray, scale: OutputScale = "scores") -> Evaluation:
        return Evaluation({"error": float(np.abs(outputs - self.test.targets).max())})


def test_a_share_of_the_sequences_is_held_back() -> None:
    part = Sequences().validation(0.25)
    firsts = part.test.inputs[:, 0, 0]
    assert len(firsts) == 2
    np.testing.assert_array_equal(part.test.lengths, firsts / 7 % 7 + 1)
    assert not set(firsts) & set(part.train.inputs[:, 0, 0])
    assert len(part.train.inputs) == 8
    assert part.evaluate(part.test.targets).metrics["error"] == 0


class Turns(Sequences):
    """Trials of four classes in turn."""

    def __init__(self) -> None:
        u = np.zeros((40, 5, 1), np.float32)
        self.train = self.test = Split(u, np.repeat(np.eye(4, dtype=np.float32)[np.arange(40) % 4, None], 5, axis=1))


def test_each_class_is_judged() -> None:
    part = Turns().validation(0.25)
    assert part.test.targets[:, 0].sum(axis=0).tolist() == pytest.approx([2, 2, 2, 2])
    assert part.train.targets[:, 0].sum(axis=0).tolist() == [8, 8, 8, 8]


def test_a_validation_within_a_validation() -> None:
    part = Henon(train_steps=400).validation(0.25).validation(0.5)
    assert (part.train.inputs.shape[1], part.test.inputs.shape[1]) == (150, 150)
    assert part.evaluate(part.test.targets).metrics["nmse"] == 0
