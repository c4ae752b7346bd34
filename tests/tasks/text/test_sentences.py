"""Texts cut into sentences."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.tokenizer import BpeTokenizer, Documents, joined
from reservoir_hw.readout.baselines.ngram import NGram
from reservoir_hw.tasks.text.corpus import one_a_line
from reservoir_hw.tasks.text.task import Text

MARKS = Path(__file__).with_name("sentence_marks.json")


def test_one_a_line() -> None:
    text = 'Mr. Brown  saw\nit. "Where?" he asked.\n\nCHAPTER II\n \n\nNot here, i.e. not now. Why?\n'
    assert one_a_line(text).splitlines() == [
        "Mr. Brown saw it.",
        '"Where?" he asked.',
        "CHAPTER II",
        "Not here, i.e. not now.",
        "Why?",
    ]


def test_sentences_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text(40 * "The cat saw the dog. Why? The old dog ran\naway from it.\n\n")
    corpus = str(tmp_path / "book.txt")
    task = Text(corpus=corpus, level="bpe", vocabulary=300, unit="sentence", shortest=5, validation=0.1, test=0.1)
    parts = [cast(Documents, part) for part in (task.tokens_train, task.tokens_validation, task.tokens_test)]
    sentences = [task.tokenizer.decode(one) for part in parts for one in part]
    end = BpeTokenizer.END
    kept = {f"{end}The cat saw the dog.{end}", f"{end}The old dog ran away from it.{end}"}
    assert set(sentences) == kept, "Why? has four tokens"
    assert len(sentences) == 80
    longest = int(max(part.lengths.max() for part in parts))
    less = Text(corpus=corpus, level="bpe", vocabulary=300, unit="sentence", longest=longest - 1)
    assert all(cast(Documents, part).lengths.max() < longest for part in (less.tokens_train, less.tokens_test))
    with pytest.raises(ConfigurationError, match="is for models that learn from tokens"):
        _ = task.test
    with pytest.raises(ConfigurationError, match="has 0 sentences of 3 to 3 tokens; give more text, other lengths"):
        Text(corpus=corpus, level="bpe", vocabulary=300, unit="sentence", longest=3, shortest=3, test=0.3)


@pytest.mark.parametrize("order", [2, 3])
def test_tokens_are_counted_within_documents(order: int) -> None:
    documents = Documents.of([[1, 2, 3, 1], [2, 2], [3, 1, 2]])
    counts = NGram(documents, 4, order)  # pyright: ignore[reportArgumentType]
    judged = [counts.judged(one) for one in documents]
    together = counts.judged(documents)
    for own, parts in zip(together, zip(*judged, strict=True), strict=True):
        assert sorted(own.tolist()) == sorted(np.concatenate(parts).tolist())
    # 2 follows 1 twice, and nothing else does: 3 begins a document.
    bigram = NGram(documents, 4, 2)
    assert bigram.judged(np.array([1, 2]))[0][0] == pytest.approx(3 / 6)
    assert len(joined(documents)) == 9


@pytest.mark.slow
def test_sentences_marked_by_hand() -> None:
    """253 sentences of 15 books."""
    folder = Path(os.environ.get("RESERVOIR_HW_DATA", "")) / "childscale_text"
    passages = json.loads(MARKS.read_text())
    archives = {passage["archive"] for passage in passages}
    if not all((folder / name).is_file() for name in archives):
        pytest.skip("childscale_text is in no RESERVOIR_HW_DATA")
    books = {}
    for name in archives:
        with tarfile.open(folder / name) as archive:
            for book in archive:
                if book.name in {passage["member"] for passage in passages}:
                    books[book.name] = archive.extractfile(book).read().decode("utf-8-sig")  # pyright: ignore
    marked = wrong = 0
    for passage in passages:
        text = books[passage["member"]].replace("\r\n", "\n")[passage["begin"] : passage["end"]]
        letters = [place for place, letter in enumerate(text) if not letter.isspace()]
        lengths = [len("".join(sentence.split())) for sentence in one_a_line(text).splitlines()]
        found = {letters[begin] for begin in np.cumsum([0, *lengths[:-1]])}
        marked += len(passage["sentences"])
        wrong += len(found ^ set(passage["sentences"]))
    assert marked == 253
    assert wrong / marked < 0.05
