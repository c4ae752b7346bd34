"""Tokens of long texts: archives, pieces, trained byte pairs, and what is kept for the next run."""

from __future__ import annotations

import io
import itertools
import logging
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from emulators.foreign import run_witness

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, WordTokenizer, joined
from reservoir_hw.tasks.text import corpus as kept
from reservoir_hw.tasks.text.corpus import encoded, pieces
from reservoir_hw.tasks.text.task import Text

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
