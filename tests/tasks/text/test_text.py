"""A text as a task: how it is read, cut and encoded, its vocabulary, and how outputs are judged."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import logging
import lzma
import math
import os
import tarfile
from pathlib import Path
from typing import Literal, cast

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, Documents, WordTokenizer, joined
from reservoir_hw.readout.baselines.ngram import BigramConfig, NGram, NGramConfig, TrigramConfig
from reservoir_hw.tasks.text import corpus as kept
from reservoir_hw.tasks.text import task as module
from reservoir_hw.tasks.text.corpus import encoded, one_a_line, pieces
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


# Where byte pairs may go wrong: contractions, runs of white space, marks that combine, other scripts, bytes alone.
PARTS = [
    "it's", "I'LL we've", "don't ' s", "  two", "tab\tand\n\nlines \n  ", " nbsp", "３ １２", "½ ²", "naïve café",
    "e\u0301 o\u0308", "Ελληνικά Σ", "русский", "中文字符", "日本語テスト", "한국어", "עברית", "العربية",
    "हिन्दी", "ไทย", "👩\u200d👩\u200d👧", "🇩🇪🇫🇷", "\u200bzero\u200d", "\ufeffbom", "\x00\x01",
    "\x7f", "a\u2028b\u2029c", "\r\n\r",
    "___", "$%&", "0x1F 1e-5 12,345.6",
    "<|endoftext|>", "<|endoftext|> again<|endoftext|>", "x" * 300, " " * 40 + "end",
]  # fmt: skip
HARD = [
    *PARTS,
    *(f"{a}{b}" for a, b in itertools.pairwise(PARTS)),
    *(f"{a} {b}" for a, b in zip(PARTS, PARTS[2:], strict=False)),
    "\n".join(PARTS),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(kept.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def gpt2() -> BpeTokenizer:
    if "RESERVOIR_HW_DATA" not in os.environ:
        pytest.skip("GPT-2's files are in no RESERVOIR_HW_DATA")
    return BpeTokenizer.gpt2()


@pytest.mark.parametrize("size", [1, 7, 100])
def test_tokens_of_pieces_are_those_of_the_whole(gpt2: BpeTokenizer, size: int) -> None:
    text = "\n".join(HARD)
    trained = BpeTokenizer.trained(pieces(text), 400)
    assert trained.vocabulary == 400
    assert trained.decode(trained.encode(text)) == text
    assert "".join(pieces(text, size)) == text
    for tokenizer in (gpt2, trained, WordTokenizer.from_text(text), CharTokenizer.from_text(text)):
        np.testing.assert_array_equal(tokenizer.encode_pieces(pieces(text, size)), tokenizer.encode(text))


def test_long_texts_are_encoded_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "LONG", 1000)
    text = 50 * "The cat saw the dog. "
    words = WordTokenizer.from_text(text)
    first = encoded(words, text)
    assert isinstance(first, np.memmap)
    np.testing.assert_array_equal(first, words.encode(text))
    (file,) = cache.rglob("*.npy")
    changed = np.load(file)
    changed[0] = 3
    np.save(file, changed)
    assert encoded(words, text)[0] == 3, "it comes from the file"
    file.write_bytes(file.read_bytes()[:-10])
    np.testing.assert_array_equal(encoded(words, text), words.encode(text))
    assert encoded(words, text[:-5]).tolist() == words.encode(text[:-5]).tolist()
    with pytest.raises(InputRangeError, match=r"'bird' \(number 300"):
        encoded(words, f"{text}bird")
    (tmp_path / "file").touch()
    monkeypatch.setenv(kept.CACHE_VARIABLE, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(encoded(words, text), words.encode(text))
    assert "every run will make them anew" in caplog.text


def archive(path: Path, **files: bytes) -> str:
    with tarfile.open(path, "w:xz") as made:
        for name, content in files.items():
            about = tarfile.TarInfo(name.replace("_", "."))
            about.size = len(content)
            made.addfile(about, io.BytesIO(content))
    return str(path)


def test_archives_and_given_vocabularies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LONG", 500)
    books = archive(tmp_path / "books.tar.xz", b_txt=60 * b"second\r\n", a_txt=80 * b"first ", INDEX_tsv=b"x\ty")
    text = 80 * "first " + "\n" + 60 * "second\n"
    task = Text(corpus=books, level="bpe", vocabulary=260)
    parts = [joined(task.tokens_train), joined(task.tokens_validation), joined(task.tokens_test)]
    assert task.tokenizer.decode(np.concatenate(parts)) == text
    assert task.vocabulary == 260
    again = Text(corpus=books, level="bpe", vocabulary=260)
    assert again.tokenizer.dump() == task.tokenizer.dump()
    one = Text(corpus=books, members="b*", characters=" abcdefghijklmnopqrstuvwxyz\n")
    assert one.vocabulary == 28
    assert len(one.tokens_train) + len(one.tokens_validation) + len(one.tokens_test) == 60 * len("second\n")
    with pytest.raises(InputRangeError, match=r"the vocabulary is that of task\.characters.*'f'"):
        Text(corpus=books, characters="second\n")
    with pytest.raises(ConfigurationError, match=r"no file in .*books\.tar\.xz fits members: '\*\.md'; it has INDEX"):
        Text(corpus=books, members="*.md")


@pytest.mark.slow
def test_byte_pairs_are_those_of_tiktoken(gpt2: BpeTokenizer, tmp_path: Path) -> None:
    books = Text(corpus="childscale_text/ChiLit_71_books.tar.xz", level="bpe", limit=1 << 20, validation=0.0)
    long = books.tokenizer.decode(np.concatenate([joined(books.tokens_train), joined(books.tokens_test)]))
    assert len(HARD) >= 100
    for number, text in enumerate([long, *HARD]):
        (tmp_path / f"{number:03d}.txt").write_bytes(text.encode())
        np.save(tmp_path / f"{number:03d}.npy", gpt2.encode(text))
    folder = Path(os.environ["RESERVOIR_HW_DATA"]) / "gpt2"
    run_witness(Path(__file__).with_name("tiktoken_witness.py"), folder, tmp_path)
