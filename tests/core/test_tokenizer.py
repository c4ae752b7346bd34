from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from reservoir_hw.core.tokenizer import BpeTokenizer, CharTokenizer, Tokenizer, WordTokenizer, load_tokenizer


def test_characters() -> None:
    tokenizer = CharTokenizer.from_text("hello world")
    assert tokenizer.vocabulary == 8
    assert tokenizer.characters == sorted(set("hello world"))
    tokens = tokenizer.encode("hello")
    assert tokens.dtype == np.uint16
    np.testing.assert_array_equal(tokens, [" dehlorw".index(character) for character in "hello"])
    assert tokenizer.decode(tokens) == "hello"
    assert tokenizer.encode("").shape == (0,)


def test_words() -> None:
    text = "the cat saw the dog, and the dog saw it."
    tokenizer = WordTokenizer.from_text(text)
    assert tokenizer.vocabulary == 8
    assert tokenizer.words[0] == "the"
    assert tokenizer.decode(tokenizer.encode(text)) == "the cat saw the dog , and the dog saw it ."


@pytest.fixture(scope="module")
def gpt2() -> BpeTokenizer:
    if not (Path(os.environ.get("RESERVOIR_HW_DATA", ".")) / "gpt2" / "encoder.json").exists():
        pytest.skip("GPT-2's encoder.json and vocab.bpe are not in $RESERVOIR_HW_DATA/gpt2")
    return BpeTokenizer.gpt2()


TEXTS = ["Hello world", "  The reservoir's states, 42 of them!\n\n", "naïve 漢字 🎵", ""]


def test_byte_pairs_are_those_of_gpt2(gpt2: BpeTokenizer) -> None:
    assert gpt2.vocabulary == 50257
    # Numbers that GPT-2's own encoder gives for this text.
    np.testing.assert_array_equal(gpt2.encode("Hello world"), [15496, 995])
    assert gpt2.encode(gpt2.END).tolist() == [50256]
    assert gpt2.encode(f"a{gpt2.END}b").tolist() == [64, 50256, 65]
    for text in TEXTS:
        assert gpt2.decode(gpt2.encode(text)) == text
    assert gpt2.encode("x").dtype == np.uint16


def test_byte_pairs_equal_an_independent_merge(gpt2: BpeTokenizer) -> None:
    folder = Path(os.environ["RESERVOIR_HW_DATA"]) / "gpt2"
    numbers = json.loads((folder / "encoder.json").read_text(encoding="utf-8"))
    merges = (folder / "vocab.bpe").read_text(encoding="utf-8").splitlines()[1:]
    rank = {tuple(line.split()): place for place, line in enumerate(merges) if line}

    def encoded(word: str) -> list[int]:
        """One word: the pair of the lowest rank is merged until none is left (Sennrich et al. 2016)."""
        # A blank is the byte 32, which GPT-2 writes as the letter 256 + 32.
        pieces = list(word.replace(" ", chr(256 + 32)))
        while True:
            pairs = [(rank.get(pair, len(rank)), at) for at, pair in enumerate(pairwise(pieces))]
            best = min(pairs, default=(len(rank), 0))
            if best[0] == len(rank):
                return [numbers[piece] for piece in pieces]
            at = best[1]
            pieces[at : at + 2] = ["".join(pieces[at : at + 2])]

    for words in (["Unbelievable", " reservoirs", " echo", " antidisestablishmentarianism", "!"],):
        assert gpt2.encode("".join(words)).tolist() == [number for word in words for number in encoded(word)]


@pytest.mark.slow
def test_files(tmp_path: Path, gpt2: BpeTokenizer) -> None:
    text = "Ein Reservoir rechnet."
    kinds: list[Tokenizer] = [
        CharTokenizer.from_text(text, lowercase=True),
        CharTokenizer.from_text(text, unknown="�"),
        WordTokenizer.from_text(text, unknown="?"),
        WordTokenizer.from_text(text, lowercase=True),
        gpt2,
    ]
    for tokenizer in kinds:
        path = tmp_path / f"{tokenizer.kind}.json"
        tokenizer.save(path)
        loaded = load_tokenizer(path)
        assert type(loaded) is type(tokenizer)
        assert loaded.vocabulary == tokenizer.vocabulary
        np.testing.assert_array_equal(loaded.encode(text), tokenizer.encode(text))
    assert not list(tmp_path.glob("*.partial"))
