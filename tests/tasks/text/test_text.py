"""A text as a task: how it is read and cut, its vocabulary, and how outputs are judged."""

from __future__ import annotations

import gzip
import lzma
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.tokenizer import joined
from reservoir_hw.readout.baselines.ngram import BigramConfig, NGram, NGramConfig, TrigramConfig
from reservoir_hw.tasks.text import task as module
from reservoir_hw.tasks.text.task import Text

SENTENCE = "The cat saw the dog. The dog saw it.\n"


def written(folder: Path, content: str, name: str = "text.txt") -> str:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_parts_are_contiguous_and_the_test_is_the_end(tmp_path: Path) -> None:
    content = "".join(chr(ord("a") + (7 * i * i) % 26) for i in range(1000))
    task = Text(corpus=written(tmp_path, content), validation=0.1, test=0.2)
    parts = [joined(task.tokens_train), joined(task.tokens_validation), joined(task.tokens_test)]
    assert [len(part) for part in parts] == [700, 100, 200]
    assert task.tokenizer.decode(np.concatenate(parts)) == content
    assert len(Text(corpus=written(tmp_path, content), validation=0, test=0.2).tokens_validation) == 0


def test_files_packed_in_several_and_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = joined(Text(corpus=written(tmp_path, 20 * SENTENCE)).tokens_train)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt.xz").write_bytes(lzma.compress((12 * SENTENCE).encode()))
    (tmp_path / "data" / "b.gz").write_bytes(gzip.compress((8 * SENTENCE).replace("\n", "\r\n").encode("utf-8-sig")))
    monkeypatch.setenv("RESERVOIR_HW_DATA", str(tmp_path / "data"))
    np.testing.assert_array_equal(Text(corpus=["a.txt.xz", "b.gz"]).tokens_train, plain)
    np.testing.assert_array_equal(joined(Text(corpus="a.txt.xz", limit=100).tokens_train), plain[:90])
    # From the end of the first file into the second.
    sentences = 11 * len(SENTENCE)
    part = Text(corpus=["a.txt.xz", "b.gz"], offset=sentences, limit=100)
    assert part.tokenizer.decode(part.tokens_train) == (3 * SENTENCE)[:90]
    rest = Text(corpus=["a.txt.xz", "b.gz"], offset=sentences, validation=0.0)
    assert len(rest.tokens_train) + len(rest.tokens_test) == 9 * len(SENTENCE)
    length = 12 * len(SENTENCE)
    with pytest.raises(ConfigurationError, match=f"offset: {length} characters .* only {length} in a.txt.xz$"):
        Text(corpus="a.txt.xz", offset=length)


def test_what_the_training_part_does_not_have(tmp_path: Path) -> None:
    path = written(tmp_path, 99 * "ab" + "ax")
    with pytest.raises(InputRangeError, match=r"in the test part the character 'x' at position 9 .*task\.unknown"):
        Text(corpus=path)
    task = Text(corpus=path, unknown="token")
    assert task.vocabulary == 3
    assert task.tokenizer.decode(joined(task.tokens_test)[-2:]) == "a" + module.UNKNOWN["char"]
    rare = Text(corpus=written(tmp_path, 20 * SENTENCE), level="word", most=3, unknown="token")
    assert rare.vocabulary == 4
    assert int((joined(rare.tokens_train) == 0).sum()) > 0


def test_files_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESERVOIR_HW_DATA", raising=False)
    with pytest.raises(ConfigurationError, match=r"there is no file nowhere\.txt here .*RESERVOIR_HW_DATA names no"):
        Text(corpus="nowhere.txt")
    monkeypatch.setenv("RESERVOIR_HW_DATA", str(tmp_path))
    with pytest.raises(ConfigurationError, match=f"nor in RESERVOIR_HW_DATA={tmp_path}"):
        Text(corpus="nowhere.txt")
    for name, content, message in (
        ("latin.txt", "naïve".encode("latin-1"), r"not text in UTF-8: byte 0xef at position 2"),
        ("cut.xz", lzma.compress(b"abc" * 100)[:-20], "cannot be unpacked"),
        ("books.tar.gz", gzip.compress(b"abc"), "cannot be unpacked"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=message):
            Text(corpus=str(tmp_path / name))


def test_splits_are_one_hot_and_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Text(corpus=written(tmp_path, 30 * "abcab"), test=0.2)
    for split, tokens in ((task.train, joined(task.tokens_train)), (task.test, joined(task.tokens_test))):
        assert split.symbols is not None
        np.testing.assert_array_equal(split.symbols[0], tokens[:-1])
        np.testing.assert_array_equal(split.inputs[0].argmax(-1), tokens[:-1])
        np.testing.assert_array_equal(split.targets[0].argmax(-1), tokens[1:])
        assert float(split.inputs.sum()) == len(tokens) - 1
    assert (task.inputs, task.outputs) == (3, 3)
    monkeypatch.setattr(module, "_LARGEST", 300)
    large = Text(corpus=written(tmp_path, 30 * "abcab"), test=0.2)
    with pytest.raises(ConfigurationError, match=r"112 tokens of 3 kinds: one-hot.* 333 numbers, of which 300"):
        _ = large.train
    assert large.test.inputs.shape == (1, 29, 3)


def test_metrics_against_their_formulas(tmp_path: Path) -> None:
    task = Text(corpus=written(tmp_path, 40 * "abcab"), test=0.1)
    following = joined(task.tokens_test)[1:]
    outputs = np.random.default_rng(0).dirichlet([1, 1, 1], size=(1, len(following)))
    metrics = task.evaluate(outputs, "probabilities").metrics
    chosen = [outputs[0, t, token] for t, token in enumerate(following)]
    nats = -sum(math.log(p) for p in chosen) / len(chosen)
    assert metrics["cross_entropy"] == pytest.approx(nats)
    assert metrics["bits_per_character"] == pytest.approx(nats / math.log(2))
    assert metrics["perplexity"] == pytest.approx(math.exp(nats))
    assert metrics["accuracy"] == np.mean([outputs[0, t].argmax() == token for t, token in enumerate(following)])
    scores = task.evaluate(task.test.targets, "scores").metrics
    assert scores["accuracy"] == 1
    assert scores["cross_entropy"] == pytest.approx(math.log(1 + 2e-4), rel=1e-6)
    assert (
        "bits_per_character"
        not in Text(corpus=written(tmp_path, 20 * SENTENCE), level="word").evaluation_of(1, 0.5).metrics
    )


def test_a_bigram_is_the_entropy_of_a_chain(tmp_path: Path) -> None:
    """Of a Markov chain, the loss of a bigram is the entropy rate (Cover & Thomas 2006, eq. 4.27)."""
    random = np.random.default_rng(1)
    chain = np.array([[0.1, 0.9], [0.6, 0.4]])
    state, letters = 0, []
    for draw in random.random(60_000):
        state = int(draw > chain[state, 0])
        letters.append("ab"[state])
    task = Text(corpus=written(tmp_path, "".join(letters)), validation=0, test=0.5)
    assert task.test.symbols is not None
    counts = NGram(joined(task.tokens_train), task.vocabulary, 2)
    found = task.evaluate(counts.probabilities(task.test.symbols), "probabilities").metrics
    stationary = np.array([0.4, 0.6])
    rate = -float((stationary[:, None] * chain * np.log(chain)).sum())
    assert found["cross_entropy"] == pytest.approx(rate, abs=0.01)


@pytest.mark.parametrize(("order", "config"), [(2, BigramConfig), (3, TrigramConfig)])
def test_counts_of_tokens_are_those_of_one_hot_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Literal[2, 3], config: type[NGramConfig]
) -> None:
    random = np.random.default_rng(2)
    content = "".join(chr(97 + min(int(x), 12)) for x in random.exponential(3, 3000))
    task = Text(corpus=written(tmp_path, content), validation=0, test=0.3, characters="abcdefghijklmnop")
    assert task.test.symbols is not None
    counts = NGram(joined(task.tokens_train), task.vocabulary, order, 0.5)
    outputs = counts.probabilities(task.test.symbols)[0]
    following = joined(task.tokens_test)[1:]
    chosen, right = counts.judged(task.tokens_test)
    np.testing.assert_allclose(chosen, outputs[np.arange(len(following)), following], rtol=1e-12)
    np.testing.assert_array_equal(right, outputs.argmax(axis=1) == following)
    monkeypatch.setattr(module, "_LARGEST", 10)
    large = Text(corpus=written(tmp_path, content), validation=0, test=0.3)
    baseline = config(kind={2: "bigram", 3: "trigram"}[order], smoothing=0.5)  # type: ignore[arg-type]
    assert 1 < baseline.evaluate(large).metrics["cross_entropy"] < 3
