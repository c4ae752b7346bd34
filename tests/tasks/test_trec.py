from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.states.plan import plan, steps_of
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.datasets import contents
from reservoir_hw.tasks.task import Split
from reservoir_hw.tasks.trec import CLASSES, Trec, questions, word_vectors


def test_reading() -> None:
    data = b"NUM:date When was the sister\xf0city born ?\nHUM:ind Who ?\n"
    first, second = questions(data)
    assert first.words == ("When", "was", "the", "sister\xf0city", "born", "?")
    assert [CLASSES[first.label], CLASSES[second.label]] == ["NUM", "HUM"]
    for text in (b"What is this ?\n", b"NUM:date\n"):
        with pytest.raises(ConfigurationError, match="line 1"):
            questions(text)


@pytest.mark.slow
def test_the_data_set(shared_data: None) -> None:
    task = Trec(validation=0, width=4)
    assert (len(task.train.inputs), len(task.test.inputs)) == (5452, 500)
    assert task.held_out is None
    counts = np.bincount(task.train.targets[:, 0].argmax(axis=1)).tolist()
    assert dict(zip(CLASSES, counts, strict=True)) == {
        "ABBR": 86, "DESC": 1162, "ENTY": 1250, "HUM": 1223, "LOC": 835, "NUM": 896
    }  # fmt: skip
    assert task.train.lengths is not None
    assert (np.diff(task.train.lengths) >= 0).all()
    assert not task.train.inputs[~task.train.valid].any()
    # Ten questions of the test are learned from: right answers to them alone are worth nothing without them.
    outputs = np.zeros(task.test.targets.shape)
    learned = {question.words for question in questions(contents("trec_train"))}
    asked = sorted(questions(contents("trec_test")), key=lambda question: len(question.words))
    ends = task.test.ends
    for row, question in enumerate(asked):
        outputs[row, ends[row], (question.label + (question.words not in learned)) % 6] = 1
    found = task.evaluate(outputs).metrics
    assert found["accuracy"] == 10 / 500
    assert found["accuracy/unseen"] == 0
    assert found["accuracy/low"] < 0.02 < found["accuracy/high"]
    # What is said before the end does not count.
    outputs[:, 0, :] += 5 * (ends > 0)[:, None] * np.eye(6)[0]
    assert task.evaluate(outputs).metrics == found


@pytest.mark.slow
def test_what_is_held_out(shared_data: None) -> None:
    final, search = Trec(width=4), Trec(width=4, judge="validation")
    other = Trec(width=4, seed=1)
    assert final.held_out is not None
    assert other.held_out is not None
    assert len(final.held_out.inputs) == len(search.test.inputs) == 1090
    assert len(final.train.inputs) == len(search.train.inputs) == 4362
    assert np.array_equal(final.held_out.inputs, search.test.inputs)
    assert not np.array_equal(final.held_out.inputs[:, 0], other.held_out.inputs[:, 0])
    assert len(Trec(width=4, limit=100).train.inputs) == 100


def test_vectors_of_a_file(tmp_path: Path) -> None:
    lines = ["4 3", "who 1 2 3", "new york 7 8 9", "Who 0 0 1", "is 4 5 6"]
    plain, packed, cut = (tmp_path / name for name in ("a.vec", "b.txt.xz", "c.txt"))
    plain.write_text("\n".join(lines))
    packed.write_bytes(lzma.compress("\n".join(lines[1:]).encode()))
    cut.write_text("\n".join([*lines[1:], "he 1 2"]))
    for path in (plain, packed, cut):
        found = word_vectors(["Who", "Is", "it", "new york"], str(path), 0)
        assert found["Who"].tolist() == [0, 0, 1]
        assert found["Is"].tolist() == [4, 5, 6]
        assert found["new york"].tolist() == [7, 8, 9]
        assert found["it"].shape == (3,)
    cut.write_text("\n".join(["who 1 2 3", "he 1 2", "is 4 5 6"]))
    with pytest.raises(ConfigurationError, match=r"line 2 of .* does not hold a word and 3 numbers"):
        word_vectors(["is"], str(cut), 0)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ConfigurationError, match="cannot be unpacked"):
        word_vectors(["is"], str(packed), 0)
    with pytest.raises(ConfigurationError, match="none of the 1 words"):
        word_vectors(["nothing"], str(plain), 0)
    with pytest.raises(ConfigurationError, match="vectors: there is no file"):
        word_vectors(["is"], str(tmp_path / "none.txt"), 0)


@pytest.mark.slow
def test_truncated_glove(shared_data: None, caplog: pytest.LogCaptureFixture) -> None:
    task = Trec(vectors="glove50_truncated/glove.6B.50d.first2445.txt.xz", validation=0)
    assert task.inputs == 50
    assert "words of the questions; the others are random" in caplog.text
    # "What" is that of the file, in lower case.
    what = np.array([0.45323, 0.059811, -0.10577])
    (row, *_), (step, *_) = np.nonzero(np.isclose(task.train.inputs[:, :, 0], what[0]))
    assert task.train.inputs[row, step, :3] == pytest.approx(what)


def settings(tmp_path: Path, **readout: Any) -> dict[str, Any]:
    return {
        "task": {"kind": "trec", "width": 5, "limit": 150, "validation": 0.02, "judge": "validation"},
        "reservoir": {"kind": "esn", "nodes": 20, "input_scaling": 0.1},
        "readout": {"kind": "ridge", "alpha": 1.0, **readout},
        "run": {"folder": str(tmp_path), "states": str(tmp_path / "states"), "chunk_steps": 256},
    }


@pytest.mark.slow
def test_ridge_learns_the_ends(shared_data: None, tmp_path: Path) -> None:
    """By hand, with every question on its own; and on states of a harvest."""
    experiment = Experiment(settings(tmp_path))
    (row,) = experiment.run(report=False).rows
    task = Trec(width=5, limit=150, validation=0.02, judge="validation")
    config = experiment.points[0].config
    with config.reservoir.for_inputs(5).build() as reservoir:

        def ends(split: Split) -> np.ndarray:
            found = []
            for u, end in zip(split.inputs, split.ends, strict=True):
                reservoir.reset()
                found.append(np.asarray(reservoir.run(u[None, : end + 1]))[0, -1])
            return np.stack(found)

        readout = RidgeReadout(1.0)
        readout.fit(ends(task.train)[:, None], task.train.targets[:, :1])
        answers = readout.predict(ends(task.test)[:, None])[:, 0].argmax(axis=1)
    accuracy = float((answers == task.test.targets[:, 0].argmax(axis=1)).mean())
    assert row.evaluation.metrics["accuracy"] == pytest.approx(accuracy, abs=0.01)
    (store,) = experiment.harvest()
    assert isinstance(store, StateStore)
    again = Experiment(settings(tmp_path)).run(report=False)
    assert any("states were read from" in note for note in again.notes)
    assert again.rows[0].evaluation.metrics == row.evaluation.metrics
    # Groups of like length are driven no further than their longest.
    bursts = plan(task, config.training, chunk_steps=256)
    assert steps_of(bursts) < 0.75 * (task.train.inputs[..., 0].size + task.test.inputs[..., 0].size)
