from __future__ import annotations

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.linear.ridge import RidgeReadout
from reservoir_hw.tasks.japanese_vowels import UTTERANCES, JapaneseVowels, utterances
from reservoir_hw.tasks.task import Row


def test_reading() -> None:
    line = " ".join(f"{value:.6f}" for value in range(12)) + " "
    first, second = utterances(f"{line}\n{line}\n\n{line}\n\n")
    assert first.shape == (2, 12)
    assert second.tolist() == [list(range(12))]
    for text in ("", "hello\n\n", "1 2 3\n\n", f"{line}\n1 2 3\n\n"):
        with pytest.raises(ConfigurationError, match="no file of the Japanese vowels"):
            utterances(text)


def test_the_data_set(shared_data: None) -> None:
    one = JapaneseVowels()
    assert (one.inputs, one.outputs) == (12, 9)
    for split, name, steps in ((one.train, "train", 26), (one.test, "test", 29)):
        total = sum(UTTERANCES[name])
        assert split.inputs.shape == (total, steps, 12)
        assert split.lengths is not None
        assert (split.lengths.min(), split.lengths.max()) == (7, steps)
        assert not split.inputs[~split.valid].any()
        assert not split.targets[~split.valid].any()
        assert (split.targets[split.valid].sum(axis=1) == 1).all()
        assert np.abs(split.inputs[split.valid]).max(axis=1).min() > 0
        counts = np.bincount(split.targets[:, 0].argmax(axis=1))
        assert tuple(counts) == UTTERANCES[name]
    assert one.train.inputs[0, 0, :3].tolist() == pytest.approx([1.860936, -0.207383, 0.261557])
    assert one.train.valid.sum() == 4274
    assert one.test.valid.sum() == 5687


def test_metrics(shared_data: None) -> None:
    one = JapaneseVowels()
    right = one.test.targets.astype(float)
    outputs = right.copy()
    # What stands in the padding does not count, not even if it is no number.
    outputs[~one.test.valid] = np.nan
    # Speaker 1 in the first utterance: a few strong steps for another speaker outweigh the rest.
    outputs[0, :2, 4] = 100.0
    # In the second, one weak step does not.
    outputs[1, :1, 4] = 1.5
    judged = one.evaluate(outputs)
    assert judged.metrics["error_rate"] == pytest.approx(1 / 370)
    assert judged.metrics["error_rate/low"] < 1 / 370 < judged.metrics["error_rate/high"]
    assert judged.metrics["error_rate/step"] == pytest.approx(3 / 5687)
    assert judged.arrays["confusion"].sum() == 370
    assert judged.arrays["confusion"][0, 4] == 1


def test_a_linear_readout_of_the_coefficients(shared_data: None) -> None:
    one = JapaneseVowels()
    readout = RidgeReadout(1.0).fit(one.train.inputs[one.train.valid], one.train.targets[one.train.valid])
    judged = one.evaluate(readout.predict(one.test.inputs))
    assert 0.1 < judged.metrics["error_rate"] < 0.2
    (table,) = one.tables([Row("linear", {}, judged)])
    assert len(table.rows) == 2
