"""Torch modules, estimators and tasks of one's own in an experiment, down to its export."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from command_line import ended
from own_parts import Branching, Causal, Net, TrialsConfig
from torch import Tensor, nn

from reservoir_hw import Experiment, load_model, open_reservoir
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.deploy.evaluate import HOME, REFITTED, THERE, evaluate
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.linear.ridge import RidgeConfig, RidgeReadout
from reservoir_hw.tasks.task import Task

ESN: dict[str, Any] = {"kind": "esn", "nodes": 30, "seed": 1, "input_scaling": 0.3}
GRADIENT = {"epochs": 60, "context": 32, "batch": 8, "learning_rate": 1e-2, "weight_decay": 0.0, "accelerator": "cpu"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def experiment(readout: Any, **changes: Any) -> Experiment:
    changes = {"training": {"gradient": GRADIENT}, **changes} if "module" in dict(readout) else changes
    task = {"kind": "narma", "train_steps": 800, "test_steps": 300}
    return Experiment({"task": task, "reservoir": ESN, "readout": readout, **changes})


def outputs_of(result: Any) -> np.ndarray:
    return np.load(result.folder / "outputs/000.npy")


def error_on_training(result: Any, task: Task) -> float:
    readout = load_model(result.folder)
    with open_reservoir(ESN, inputs=1) as device:
        states = device.run(task.train.inputs)
    answers = readout.predict(states, task.train.inputs if readout.input_connection else None)
    return float(((answers - task.train.targets)[:, 50:] ** 2).mean())


def answers_of(bundle: Path, task: Task) -> np.ndarray:
    """Of the bundle on its own, over the test and what warms it up."""
    warmup = task.train.inputs[:, -200:] if task.test.lengths is None else task.test.inputs[:, :0]
    with EdgeRunner(bundle, ESN) as edge:
        return edge.run(np.concatenate([warmup, task.test.inputs], axis=1))[:, warmup.shape[1] :]


@pytest.mark.parametrize("connection", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_network_is_trained_exported_and_answers_as_in_the_run(connection: bool, tmp_path: Path) -> None:
    shared = {"washout": 50, "input_connection": connection}
    gradient = {**GRADIENT, "epochs": 300, "final_rate": 0.05}
    found = experiment({"kind": "torch", "module": Net, **shared}, training={"gradient": gradient})
    result = found.run(report=False)
    ridge = experiment({"kind": "ridge", "alpha": 1e-3, **shared}).run(report=False)
    task = found.task_of(found.points[0])
    # What the layers are for: a better fit of the training than a linear one.
    assert error_on_training(result, task) < 0.85 * error_on_training(ridge, task)
    export_run(result.folder, tmp_path / "net.rhw")
    np.testing.assert_allclose(answers_of(tmp_path / "net.rhw", task), outputs_of(result), atol=1e-5)
    readout = load_model(result.folder)
    with open_reservoir(ESN, inputs=1) as device:
        u = np.concatenate([task.train.inputs[:, -200:], task.test.inputs], axis=1)
        again = readout.predict(device.run(u), u if connection else None)[:, 200:]
    np.testing.assert_allclose(again, outputs_of(result), atol=1e-6)
    there = evaluate(result.folder, refit=True)
    assert there.scores[HOME] == there.scores[THERE]
    assert there.scores[REFITTED] == there.scores[HOME]


@pytest.mark.slow
def test_a_module_that_mixes_steps_sees_whole_sequences_whatever_the_chunks(tmp_path: Path) -> None:
    mixed, whole = (experiment({"kind": "torch", "module": Causal}, run={"chunk_steps": n}) for n in (50, 4096))
    result = mixed.run(report=False)
    np.testing.assert_allclose(outputs_of(result), outputs_of(whole.run(report=False)), atol=1e-5)
    export_run(result.folder, tmp_path / "model.rhw")
    # Only the first step of the test has nothing before it in the run.
    answers = answers_of(tmp_path / "model.rhw", mixed.task_of(mixed.points[0]))
    np.testing.assert_allclose(answers[:, 1:], outputs_of(result)[:, 1:], atol=1e-5)
    lorenz = {
        "kind": "lorenz",
        "train_steps": 300,
        "closed_loop": {"starts": 1, "warmup_steps": 20, "forecast_steps": 20},
    }
    with pytest.raises(ConfigurationError, match="a closed loop asks for each output by itself, and those of Causal"):
        experiment({"kind": "torch", "module": Causal}, task=lorenz).run(report=False)


@pytest.mark.slow
def test_a_training_goes_on_where_it_was(tmp_path: Path) -> None:
    class Death(BaseException):
        pass

    readout = {"kind": "torch", "module": Net, "validation": 0.2}
    gradient = {**GRADIENT, "epochs": 5, "checkpoint_steps": 3, "evaluation_steps": 4, "keep": "best"}
    whole = experiment(readout, training={"gradient": gradient}).run(report=False)
    begun = experiment(readout, training={"gradient": gradient})

    def die(what: str, done: int, total: int) -> None:
        if "step 10" in what:
            raise Death

    with pytest.raises(Death):
        begun.run(die, report=False)
    assert begun.result is not None
    resume = {"resume": str(begun.result.folder)}
    resumed = experiment(readout, training={"gradient": gradient}, run=resume).run(report=False)
    assert resumed.folder == begun.result.folder
    np.testing.assert_array_equal(outputs_of(resumed), outputs_of(whole))


LOGISTIC = "sklearn.linear_model:LogisticRegression"
CLASSIFIERS: list[tuple[dict[str, Any], bool]] = [
    ({"kind": "torch", "module": Net, "loss": "cross_entropy"}, False),
    ({"kind": "torch", "module": Causal, "loss": "cross_entropy"}, True),
    ({"kind": "gru", "nodes": 8}, False),
    ({"kind": "gates"}, True),
    ({"kind": "sklearn", "estimator": LOGISTIC, "params": {"max_iter": 2000}}, False),
    ({"kind": "sklearn", "estimator": "sklearn.svm:SVC"}, True),
]


@pytest.mark.parametrize(
    ("readout", "at_end"),
    [*CLASSIFIERS, *(pytest.param(one, not at_end, marks=pytest.mark.slow) for one, at_end in CLASSIFIERS)],
    ids=str,
)
def test_labelled_trials(readout: dict[str, Any], at_end: bool) -> None:
    changes: dict[str, Any] = {
        "task": TrialsConfig(at_end=at_end),
        "reservoir": {"kind": "esn", "nodes": 20, "seed": 1},
    }
    if readout["kind"] in ("gru", "gates"):
        changes |= {"training": {"gradient": {"epochs": 30, "batch": 9, "learning_rate": 0.03, "accelerator": "cpu"}}}
        changes |= {"reservoir": {"kind": "none"}} if readout["kind"] == "gru" else {}
    made = experiment(readout, **changes)
    result = made.run(report=False)
    # Guessing is wrong in two of three.
    assert result.rows[0].evaluation.metrics["error_rate"] < (0.45 if at_end else 0.25)
    if "SVC" in str(readout):
        return
    model, task = load_model(result.folder), made.task_of(made.points[0])
    if readout["kind"] in ("gru", "gates"):
        lengths = torch.from_numpy(np.asarray(task.test.lengths))
        with torch.no_grad():
            answers = model.eval()(torch.from_numpy(task.test.inputs), lengths).numpy()
        expected = outputs_of(result)[np.arange(len(answers)), task.test.ends]
        np.testing.assert_allclose(answers, expected, atol=1e-5)
        return
    with open_reservoir(changes["reservoir"], inputs=2) as device:
        for row, steps in enumerate(task.test.ends + 1):
            device.reset(1)
            answers = model.predict(device.run(task.test.inputs[row : row + 1, :steps]))[0]
            np.testing.assert_allclose(answers[-1], outputs_of(result)[row, steps - 1], atol=1e-4)


def test_labels_that_change_within_a_trial_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sequence 4 has another class at step 2 than at its end"):
        experiment({"kind": "gates"}, task=TrialsConfig(changes=True), training={"gradient": {"epochs": 1}}).run()
    with pytest.raises(ConfigurationError, match="there is one output"):
        experiment({"kind": "gates"}, training={"gradient": {"epochs": 1}}).run()


def test_ridge_of_scikit_learn_is_ours_and_is_exported(tmp_path: Path) -> None:
    settings = {"kind": "sklearn", "estimator": "sklearn.linear_model:Ridge", "params": {"alpha": 1e-3}, "washout": 50}
    theirs = experiment(settings)
    found = theirs.run(report=False)
    ours = experiment({"kind": "ridge", "alpha": 1e-3, "standardise": False, "washout": 50}).run(report=False)
    np.testing.assert_allclose(outputs_of(found), outputs_of(ours), atol=1e-6)
    export_run(found.folder, tmp_path / "ridge.rhw")
    task = theirs.task_of(theirs.points[0])
    np.testing.assert_allclose(answers_of(tmp_path / "ridge.rhw", task), outputs_of(found), atol=1e-5)


def test_what_is_not_linear_is_judged_and_not_exported(tmp_path: Path) -> None:
    readout = {"kind": "sklearn", "estimator": "sklearn.svm:SVR", "params": {"C": 10.0}, "washout": 50}
    result = experiment(readout).run(report=False)
    assert result.rows[0].evaluation.metrics["nmse"] < 1
    for use in (export_run, evaluate, load_model):
        with pytest.raises(ConfigurationError, match="SVR is no linear form: it cannot be exported"):
            use(result.folder)
    assert b"pickle" not in (result.folder / "readout/000.safetensors").read_bytes()


def test_what_cannot_be_exported_is_said_before_the_training() -> None:
    made = experiment({"kind": "torch", "module": Branching}, training={"gradient": {"epochs": 1}})
    (remark,) = made.about_export()
    assert "readout.module can be trained and judged, but not exported" in remark
    assert "Branching at own_parts.py, line" in remark
    assert "if y.sum() > 0" in remark
    assert any(remark in warning for warning in made.run(report=False).warnings)


@pytest.mark.parametrize(
    ("readout", "message"),
    [
        ({"module": "own_parts:Nett"}, "own_parts has no class 'Nett'; did you mean 'Net'"),
        ({"module": "own_parts:Net", "params": {"width": 3}}, "unexpected keyword argument 'width'"),
        ({"module": "own_parts:Net", "params": {"nodes": 3}}, r"does not take states \(batch, time, 30\)"),
        ({"module": "own_parts:Net", "params": {"outputs": 3}}, r"must give outputs \(2, 3, 1\)"),
        ({"module": "own_parts:huber"}, "cannot be made with"),
        ({"module": "own_parts:Net", "loss": "cross_entropy"}, "needs targets that are 1 for one class"),
        ({"module": "own_parts:Net", "loss": "own_parts:hubert"}, "did you mean 'huber'"),
        ({"module": "own_parts:Net", "washout": 800}, "nothing is left to learn from"),
        ({"estimator": "sklearn.svm:SVR", "params": {"D": 1}}, "cannot be made with {'D': 1}"),
        ({"estimator": "math:floor"}, "estimator: math:floor cannot be made"),
        ({"estimator": "collections:Counter"}, "no estimator of scikit-learn"),
    ],
)
def test_mistakes_are_told_before_the_device_is_driven(readout: dict[str, Any], message: str) -> None:
    kind = "torch" if "module" in readout else "sklearn"
    with pytest.raises(ConfigurationError, match=message):
        experiment({"kind": kind, **readout}).estimate()


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (None, "gradient is missing"),
        ({"epochs": 1, "shards": 2}, "gradient.shards: for texts"),
        ({"epochs": 1, "keep": "best"}, "set readout.validation"),
    ],
)
def test_what_a_training_needs(gradient: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        experiment({"kind": "torch", "module": Net}, training={"gradient": gradient}).estimate()


@pytest.mark.slow
def test_a_class_of_another_process_is_told_in_a_sentence(tmp_path: Path) -> None:
    class Inner(nn.Module):
        def __init__(self, nodes: int, outputs: int) -> None:
            super().__init__()
            self.read = nn.Linear(nodes, outputs)

        def forward(self, x: Tensor) -> Tensor:
            return self.read(x)

    result = experiment({"kind": "torch", "module": Inner}, training={"gradient": {"epochs": 1}}).run(report=False)
    load_model(result.folder)
    done = ended("export", result.folder, "-o", "x.rhw")
    assert done.returncode == 2
    assert "was given by a Python program, and this process does not have it; give the class again" in done.stderr


@pytest.mark.slow
def test_sections_may_be_objects(tmp_path: Path) -> None:
    class Halved(RidgeConfig):
        """Ridge regression whose outputs are halved."""

        kind: Literal["halved"] = "halved"  # pyright: ignore[reportIncompatibleVariableOverride]

        def build(self) -> RidgeReadout:
            return super().build()

    result = experiment(Halved(washout=50, alpha=1e-3)).run(report=False)
    plain = experiment(RidgeConfig(kind="ridge", washout=50, alpha=1e-3)).run(report=False)
    np.testing.assert_array_equal(outputs_of(result), outputs_of(plain))

    class Ridge(RidgeConfig):
        pass

    with pytest.raises(ConfigurationError, match="the readouts kind 'ridge' is that of reservoir_hw"):
        experiment(Ridge(kind="ridge"))
    done = ended("export", result.folder, "-o", "x.rhw")
    assert done.returncode == 2
    assert "one that a Python program has given is known to that program alone" in done.stderr
