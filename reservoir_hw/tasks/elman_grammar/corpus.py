"""Sentences drawn from Elman's grammar, and sentences read from a file, divided into training and test."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator
from reservoir_hw.tasks.elman_grammar.grammar import CLASS_SIZE, CLASS_START, LONGEST, VOCABULARY, Language

Words = tuple[str, ...]
"""A sentence, the final "." included."""

TEST_SHARE = 10
"""One of this many sentences goes to the test."""


@dataclass(frozen=True)
class Sentences:
    """Sentences one after the other.

    `symbols` (words,): token numbers. `distances` (words,): for each verb the words between it and its
    noun, else 0. `following` (words,): the row of `Language.next_word` that holds what can follow.
    """

    symbols: np.ndarray
    distances: np.ndarray
    following: np.ndarray

    def then(self, other: Sentences) -> Sentences:
        """These followed by others."""
        return Sentences(
            np.concatenate([self.symbols, other.symbols]),
            np.concatenate([self.distances, other.distances]),
            np.concatenate([self.following, other.following]),
        )


def draw(
    spoken: Language, sentences: int, seed: int, dataset: int, probe: Sequence[str]
) -> tuple[Sentences, Sentences, Sentences]:
    """Nine tenths of `sentences` for training, one tenth for testing, and the sentence `probe`.

    Which sentences may be used for testing is settled before any is drawn. The 6.5 million sentences of
    the language stand in a fixed order in which neighbours differ in their last words only; of every ten
    neighbours, one, chosen by a hash of the seed and the data set, belongs to the test side. Sentences
    are then drawn from the language until both sides have enough. So no test sentence occurs in
    training, frequent sentences still come several times, and lengths, distances and numbers are
    distributed on both sides as in the language: a free choice of one sentence in ten would not keep
    them, because 40 sentences such as "john walks ." make up an eighth of the corpus. `probe` is put on
    the test side whatever the hash says.
    """
    random = generator(seed, f"elman_grammar/{dataset}")
    key = random.integers(2**64, dtype=np.uint64)
    test_size = round(sentences / TEST_SHARE)
    wanted = {False: sentences - test_size, True: test_size}
    found: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {False: [], True: []}
    probe_schema, probe_words = _parse(spoken, probe)
    probe_type = _type_numbers(spoken, probe_schema, probe_words)
    cumulative = np.cumsum(spoken.probability)
    while any(sum(len(schema) for schema, _ in found[side]) < wanted[side] for side in wanted):
        at = random.random(sentences) * cumulative[-1]
        schema = np.searchsorted(cumulative, at, side="right")
        words = np.floor(random.random((sentences, LONGEST)) * CLASS_SIZE[spoken.classes[schema]])
        words = words.astype(np.int64)
        number = _type_numbers(spoken, schema, words)
        for_test = _on_test_side(number, key) | (number == probe_type)
        for side, chosen in ((True, for_test), (False, ~for_test)):
            found[side].append((schema[chosen], words[chosen]))
    train, test = (
        _sentences_of(spoken, *(np.concatenate(parts)[: wanted[side]] for parts in zip(*found[side], strict=True)))
        for side in (False, True)
    )
    return train, test, _sentences_of(spoken, probe_schema, probe_words)


def _type_numbers(spoken: Language, schema: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The place (n,) of each sentence in the fixed order of the language's sentences."""
    number = np.zeros(len(schema), dtype=np.int64)
    used = spoken.classes[schema] >= 0
    for position in range(LONGEST):
        size = np.where(used[:, position], CLASS_SIZE[spoken.classes[schema, position]], 1)
        number = number * size + np.where(used[:, position], words[:, position], 0)
    return number + (np.cumsum(spoken.types) - spoken.types)[schema]


def _on_test_side(number: np.ndarray, key: np.uint64) -> np.ndarray:
    block, place = np.divmod(number.astype(np.uint64), np.uint64(TEST_SHARE))
    return _splitmix64(block + key) % np.uint64(TEST_SHARE) == place


def _splitmix64(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014), a hash of 64 bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _parse(spoken: Language, sentence: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The schema (1,) of a sentence and the places (1, 11) of its words within their classes."""
    symbols = np.array([VOCABULARY.index(word) for word in sentence])
    classes = _classes(symbols)
    padding = LONGEST - len(classes)
    row = np.pad(classes, (0, padding), constant_values=-1)
    schema = np.flatnonzero((spoken.classes == row).all(axis=1))
    return schema, np.pad(symbols - CLASS_START[classes], (0, padding))[np.newaxis]


def _classes(symbols: np.ndarray) -> np.ndarray:
    return np.searchsorted(CLASS_START, symbols, side="right") - 1


def _sentences_of(spoken: Language, schema: np.ndarray, words: np.ndarray) -> Sentences:
    classes = spoken.classes[schema]
    used = classes >= 0
    return Sentences(
        (CLASS_START[classes] + words)[used],
        spoken.distances[schema][used],
        spoken.state[schema][used],
    )


def divide(path: Path, seed: int, dataset: int) -> tuple[list[Words], list[Words]]:
    """Training sentences and test sentences of a file, as `sentences_of` reads it.

    One tenth of the *distinct* sentences, chosen by the seed and the data set, go to the test side with all
    their copies, so no test sentence occurs in training. Within a side the sentences keep the file's order.

    Raises `ConfigurationError` as `sentences_of`, and for a file with less than two distinct sentences.
    """
    sentences = sentences_of(path)
    distinct = list(dict.fromkeys(sentences))
    if len(distinct) < 2:
        raise ConfigurationError(
            f"{path}: {len(distinct)} distinct sentence(s); at least 2 are needed, one for training and "
            "one for the test. Give a file with more lines."
        )
    random = generator(seed, f"elman_grammar/corpus/{dataset}")
    order = np.argsort(random.random(len(distinct)), kind="stable")
    test_size = math.ceil(len(distinct) / TEST_SHARE)
    for_test = {distinct[number] for number in order[:test_size]}
    train, test = ([one for one in sentences if (one in for_test) == side] for side in (False, True))
    return train, test


def numbered(sentences: Iterable[Words], vocabulary: Sequence[str]) -> np.ndarray:
    """The sentences one after the other (words,), each word as its place in the vocabulary."""
    number_of = {word: number for number, word in enumerate(vocabulary)}
    return np.array([number_of[word] for sentence in sentences for word in sentence])


def recognised(spoken: Language, sentences: Sequence[Words]) -> tuple[Sentences, list[Words]]:
    """Sentences of words of the grammar one after the other, and those of them that are none of `spoken`.

    Within these, `following` is -1 and `distances` is 0.
    """
    number_of = {row[row >= 0].tobytes(): number for number, row in enumerate(spoken.classes)}
    following, distances, unknown = [], [], []
    for sentence in sentences:
        schema = number_of.get(_classes(numbered([sentence], VOCABULARY)).tobytes())
        if schema is None:
            unknown.append(sentence)
            following.append([-1] * (len(sentence) - 1) + [0])
            distances.append([0] * len(sentence))
        else:
            following.append(spoken.state[schema][: len(sentence)])
            distances.append(spoken.distances[schema][: len(sentence)])
    return Sentences(numbered(sentences, VOCABULARY), np.concatenate(distances), np.concatenate(following)), unknown


def sentences_of(path: Path) -> list[Words]:
    """The sentences of a file, one on each line.

    Words are separated by white space; a final "." is added where it is missing.

    Raises `ConfigurationError`, with file and line, for a file that cannot be read, is not UTF-8, or
    holds something else than one sentence per line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"corpus {path} cannot be read: {error.strerror}. Check the path; a relative one starts at "
            "the folder the program runs in."
        ) from error
    if not content.strip():
        raise ConfigurationError(f"corpus {path} is empty. Put one sentence on each line.")
    sentences: list[Words] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        try:
            words = line.decode("utf-8").split()
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"{path}:{number}: not UTF-8 (byte {error.start + 1} of the line). Save the file as UTF-8 text."
            ) from error
        if words and words[-1] == ".":
            words.pop()
        fault = _fault(words)
        if fault:
            raise ConfigurationError(f"{path}:{number}: {fault}")
        sentences.append((*words, "."))
    return sentences


def _fault(words: Sequence[str]) -> str:
    """What keeps these words from being a sentence, or nothing."""
    if not words:
        return "no words. Remove the line; each line holds one sentence."
    for word in words:
        if any(unicodedata.category(character) == "Cc" for character in word):
            return f"{word!r} holds a control character; is this a text file?"
        if word == ".":
            return 'a "." before the end. Put each sentence on a line of its own.'
        if word.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            return f"{word!r} is a number that went wrong, not a word. Remove the line or rename the word."
    return ""
