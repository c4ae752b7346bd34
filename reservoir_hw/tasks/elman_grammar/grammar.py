"""Elman's grammar with its exact next-word probabilities (Tong et al. 2007, Table 1 and section 4).

A sentence comes about in three steps. A *skeleton* says where nouns, verbs and "who" stand; there are
114 of at most 11 tokens. A *schema* adds the number of each noun and the kind of each verb; there are
6144. The words of a schema are independent and uniform within their class, so the enumerated schemas
give the probability of every next word after every beginning of a sentence, exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

LONGEST = 11
"""Tokens of the longest sentence, the stop included."""

DISTANCES = (1, 2, 3, 4, 6, 7, 9)
"""Every distance, in words, that can lie between a verb and its noun in at most `LONGEST` tokens."""

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
        return Skeleton(
            self.symbols + other.symbols,
            self.distances + other.distances,
            self.probability * other.probability,
        )


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
    return np.where(
        is_complex,
        complex_share * probability / probability[is_complex].sum(),
        (1 - complex_share) * probability / probability[~is_complex].sum(),
    )


@dataclass(frozen=True)
class Language:
    """The enumerated schemas. Rows of schemas are padded with -1 to `LONGEST` tokens.

    `classes` (schemas, 11): the class of each token. `distances` (schemas, 11): for each verb the words
    between it and its noun, else 0. `probability` (schemas,). `state` (schemas, 11): what has been read
    up to and including this token, as a row of `next_word` (states, 24), the distribution of the word
    that follows.
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
