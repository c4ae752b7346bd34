"""Elman's grammar with its exact next-word probabilities (Tong et al. 2007, Table 1 and section 4).

A sentence comes about in three steps. A *skeleton* says where nouns, verbs and "who" stand; there are
114 of at most 11 tokens. A *schema* adds the number of each noun and the kind of each verb; there are
6144. The words of a schema are independent and uniform within their class, so the enumerated schemas
give the probability of every next word after every beginning of a sentence, exactly.
"""

from __future__ import annotations

import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator

LONGEST = 11
"""Tokens of the longest sentence, the stop included."""

DISTANCES = (1, 2, 3, 4, 6, 7, 9)
"""Every distance from a noun to its verb that fits in `LONGEST` tokens; 1 means that the verb follows at once."""

# Words in the order of their token numbers. Plural and singular are separate classes because every rule
# of agreement is a rule between classes.
CLASSES: dict[str, tuple[str, ...]] = {
    "common_singular": ("boy", "girl", "cat", "dog"),
    "common_plural": ("boys", "girls", "cats", "dogs"),
    "proper": ("john", "mary"),
    "transitive_plural": ("chase", "feed"),
    "optional_plural": ("see", "hear"),
    "intransitive_plural": ("walk", "live"),
    "transitive_singular": ("chases", "feeds"),
    "optional_singular": ("sees", "hears"),
    "intransitive_singular": ("walks", "lives"),
    "who": ("who",),
    "stop": (".",),
}
VOCABULARY: tuple[str, ...] = tuple(itertools.chain.from_iterable(CLASSES.values()))
CLASS_NAMES = tuple(CLASSES)
CLASS_SIZE = np.array([len(words) for words in CLASSES.values()])
CLASS_START = np.cumsum(CLASS_SIZE) - CLASS_SIZE
STOP = VOCABULARY.index(".")

_CLASS = {name: number for number, name in enumerate(CLASSES)}
_PADDING = -1


@dataclass(frozen=True)
class Productions:
    """The free probabilities of Table 1's rules; the paper does not print them.

    The defaults bring the shares of verbs by distance (Table 4), the mean length (section 3.2) and the
    share of verbs whose number follows from the two words before (section 4.3) close to the paper's.
    `examples/elman_grammar/fit_grammar.py` fitted them and prints what they give.
    """

    proper: float = 0.1602
    """NP is a proper noun."""
    relative_on_subject: float = 0.6012
    """A common noun has a relative clause, where the noun is the subject of the main verb."""
    relative_on_inner_subject: float = 0.7818
    """The same where the noun is the subject within a relative clause."""
    relative_on_object: float = 0.7231
    """The same where the noun is an object."""
    subject_relative: float = 0.6052
    """A relative clause is "who VP" rather than "who NP V", outside any other relative clause."""
    subject_relative_nested: float = 0.8182
    """The same inside another relative clause."""
    bare: float = 0.4938
    """VP is a verb without an object."""


class Skeleton(NamedTuple):
    """A piece of a sentence with the probability of its productions.

    `symbols` are "N", "P", "who", "." and three sorts of verbs: "V" without object, "VO" with the object
    behind it, "VR" with the object as its relative clause's head. `distances` holds, for each verb, how
    many words it stands behind the noun it agrees with, and 0 for everything else.
    """

    symbols: tuple[str, ...]
    distances: tuple[int, ...]
    probability: float

    def then(self, other: Skeleton) -> Skeleton:
        """This piece followed by another."""
        symbols, distances = self.symbols + other.symbols, self.distances + other.distances
        return Skeleton(symbols, distances, self.probability * other.probability)


def skeletons(productions: Productions) -> Iterator[Skeleton]:
    """Every skeleton of at most `LONGEST` tokens with its probability, not yet conditioned on the length."""
    p = productions

    def noun_phrase(room: int, relative: float, nested: bool) -> Iterator[Skeleton]:
        if room < 1:
            return
        yield Skeleton(("P",), (0,), p.proper)
        yield Skeleton(("N",), (0,), (1 - p.proper) * (1 - relative))
        head = Skeleton(("N",), (0,), (1 - p.proper) * relative)
        for clause in relative_clause(room - 1, nested):
            yield head.then(clause)

    def relative_clause(room: int, nested: bool) -> Iterator[Skeleton]:
        subject_relative = p.subject_relative_nested if nested else p.subject_relative
        who = Skeleton(("who",), (0,), subject_relative)
        for phrase in verb_phrase(room - 1, distance=2, nested=True):
            yield who.then(phrase)
        who = who._replace(probability=1 - subject_relative)
        for subject in noun_phrase(room - 2, p.relative_on_inner_subject, nested=True):
            yield who.then(subject).then(Skeleton(("VR",), (len(subject.symbols),), 1.0))

    def verb_phrase(room: int, distance: int, nested: bool) -> Iterator[Skeleton]:
        if room < 1:
            return
        yield Skeleton(("V",), (distance,), p.bare)
        verb = Skeleton(("VO",), (distance,), 1 - p.bare)
        for target in noun_phrase(room - 1, p.relative_on_object, nested):
            yield verb.then(target)

    stop = Skeleton((".",), (0,), 1.0)
    for subject in noun_phrase(LONGEST - 2, p.relative_on_subject, nested=False):
        length = len(subject.symbols)
        for phrase in verb_phrase(LONGEST - 1 - length, length, nested=False):
            yield subject.then(phrase).then(stop)


def conditioned(probability: np.ndarray, is_complex: np.ndarray, complex_share: float) -> np.ndarray:
    """Probabilities (n,) rescaled so that those of complex sentences sum to `complex_share`, all to 1."""
    with_clause = complex_share * probability / probability[is_complex].sum()
    simple = (1 - complex_share) * probability / probability[~is_complex].sum()
    return np.where(is_complex, with_clause, simple)


@dataclass(frozen=True)
class Language:
    """The enumerated schemas.

    Each row is padded to `LONGEST` tokens: `classes` with -1, `distances` and `state` with 0.

    `classes` (schemas, 11): the class of each token. `distances` (schemas, 11): for each verb, how many words
    it stands behind its noun (1: right behind it); 0 for other tokens. `probability` (schemas,). `state`
    (schemas, 11): what has been read up to and including this token, as a row of `next_word` (states, 24),
    the distribution of the word that follows.
    """

    classes: np.ndarray
    distances: np.ndarray
    probability: np.ndarray
    state: np.ndarray
    next_word: np.ndarray

    @cached_property
    def is_complex(self) -> np.ndarray:
        """(schemas,), whether a schema has a relative clause."""
        return (self.classes == _CLASS["who"]).any(axis=1)

    @cached_property
    def types(self) -> np.ndarray:
        """The number of different sentences (schemas,) of each schema."""
        return np.where(self.classes != _PADDING, CLASS_SIZE[self.classes], 1).prod(axis=1, dtype=np.int64)


@lru_cache(maxsize=4)
def language(complex_share: float = 0.75, productions: Productions | None = None) -> Language:
    """Enumerate the grammar with the given share of sentences that have a relative clause."""
    classes: list[tuple[int, ...]] = []
    distances: list[tuple[int, ...]] = []
    weights: list[float] = []
    for skeleton in skeletons(productions or Productions()):
        padding = (_PADDING,) * (LONGEST - len(skeleton.symbols))
        variants = list(_variants(skeleton))
        classes.extend(variant + padding for variant in variants)
        distances.extend([skeleton.distances + (0,) * len(padding)] * len(variants))
        weights.extend([skeleton.probability / len(variants)] * len(variants))
    schema = np.array(classes)
    is_complex = (schema == _CLASS["who"]).any(axis=1)
    probability = conditioned(np.array(weights), is_complex, complex_share)
    # A share of 1 leaves schemas that cannot occur; nothing can follow what cannot be read.
    possible = probability > 0
    schema, probability = schema[possible], probability[possible]
    state, next_class = _prefixes(schema, probability)
    next_word = np.repeat(next_class / CLASS_SIZE, CLASS_SIZE, axis=1)
    return Language(schema, np.array(distances)[possible], probability, state, next_word)


def _variants(skeleton: Skeleton) -> Iterator[tuple[int, ...]]:
    """The skeleton with every choice of noun numbers and verb kinds, all equally likely.

    Equally likely because stems are uniform and each kind has two: a verb without object is optional or
    intransitive, a verb with one is transitive or optional.
    """
    kinds = {"V": ("optional", "intransitive"), "VO": ("transitive", "optional")}
    kinds["VR"] = kinds["VO"]
    choices: dict[str, tuple[str, ...]] = {"N": ("singular", "plural"), "P": ("singular",), **kinds}
    for chosen in itertools.product(*(choices.get(symbol, (symbol,)) for symbol in skeleton.symbols)):
        names: list[str] = []
        for position, (symbol, choice) in enumerate(zip(skeleton.symbols, chosen, strict=True)):
            if symbol == "N":
                names.append(f"common_{choice}")
            elif symbol in kinds:
                names.append(f"{choice}_{chosen[position - skeleton.distances[position]]}")
            else:
                names.append({"P": "proper", ".": "stop"}.get(symbol, symbol))
        yield tuple(_CLASS[name] for name in names)


def _prefixes(schema: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the beginnings of sentences: (state of each schema's token, next-class probabilities).

    State 0 is the beginning of a sentence, which is also where a stop leads.
    """
    count = len(CLASSES)
    state = np.zeros_like(schema)
    code = np.zeros(len(schema), dtype=np.int64)
    first: np.ndarray = np.bincount(schema[:, 0], probability, count)
    following = [first[np.newaxis]]
    states = 1
    for position in range(LONGEST - 1):
        going_on = np.flatnonzero(schema[:, position + 1] != _PADDING)
        code = code * count + schema[:, position]
        prefixes, row = np.unique(code[going_on], return_inverse=True)
        state[going_on, position] = states + row
        step = np.zeros((len(prefixes), count))
        np.add.at(step, (row, schema[going_on, position + 1]), probability[going_on])
        following.append(step)
        states += len(prefixes)
    weight = np.concatenate(following)
    return state, weight / weight.sum(axis=1, keepdims=True)


# ---- Sentences drawn from Elman's grammar, and sentences read from a file, divided into training and test.


Words = tuple[str, ...]
"""A sentence, the final "." included."""

TEST_SHARE = 10
"""One of this many sentences goes to the test."""


class Sentences(NamedTuple):
    """Sentences one after the other.

    `symbols` (words,): token numbers. `distances` (words,): for each verb, how many words it stands behind
    its noun (1: right behind it); 0 for other tokens. `following` (words,): the row of `Language.next_word`
    that holds what can follow.
    """

    symbols: np.ndarray
    distances: np.ndarray
    following: np.ndarray

    def then(self, other: Sentences) -> Sentences:
        """These followed by others."""
        return Sentences(*(np.concatenate(parts) for parts in zip(self, other, strict=True)))


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
        schema = np.searchsorted(cumulative, random.random(sentences) * cumulative[-1], side="right")
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
    """By a hash of 64 bits, the output function of SplitMix64 (Steele, Lea and Flood 2014)."""
    block, place = np.divmod(number.astype(np.uint64), np.uint64(TEST_SHARE))
    x = block + key
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) % np.uint64(TEST_SHARE) == place


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
    symbols = (CLASS_START[classes] + words)[used]
    return Sentences(symbols, spoken.distances[schema][used], spoken.state[schema][used])


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
    order = np.argsort(generator(seed, f"elman_grammar/corpus/{dataset}").random(len(distinct)), kind="stable")
    test_size = math.ceil(len(distinct) / TEST_SHARE)
    for_test = {distinct[number] for number in order[:test_size]}
    train, test = ([one for one in sentences if (one in for_test) == side] for side in (False, True))
    return train, test


def numbered(sentences: Iterable[Words], vocabulary: Sequence[str]) -> np.ndarray:
    """The sentences one after the other (words,), each word as its place in the vocabulary."""
    number_of = {word: number for number, word in enumerate(vocabulary)}
    return np.array([number_of[word] for sentence in sentences for word in sentence])


def recognised(spoken: Language, sentences: Sequence[Words]) -> tuple[Sentences, list[Words]]:
    """All sentences, one after the other, and a list of those that `spoken` does not contain.

    Every word must be in `VOCABULARY`. In an unknown sentence `distances` is 0. `following` is -1, except at the stop,
    where it is 0 (a new sentence begins).
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
