from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.baselines.ngram import BigramConfig, TrigramConfig
from reservoir_hw.tasks.elman_grammar.grammar import DISTANCES, VOCABULARY, Productions, language
from reservoir_hw.tasks.elman_grammar.report import AGREEMENT_ERROR, VERB_SHARES
from reservoir_hw.tasks.elman_grammar.task import PROBE, ElmanGrammar, auc, roc
from reservoir_hw.tasks.task import Row, Split

NOUNS = {"boy", "girl", "cat", "dog", "john", "mary"}
PLURAL_NOUNS = {"boys", "girls", "cats", "dogs"}
VERBS = {"chase", "feed", "see", "hear", "walk", "live"}


FIRST_SENTENCES = (
    "girls who see see dog who john sees . dog feeds boys who feed boys . cats who boys who hear feed walk ."
)


class Recogniser:
    """Table 1 by recursive descent; it knows nothing of how the sentences were made.

    `distances` maps the position of each verb to its distance from the noun it agrees with.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.at = 0
        self.distances: dict[int, int] = {}
        subject = self.noun_phrase()
        self.verb_phrase(subject)
        self.expect(".")
        assert self.at == len(words)

    def peek(self) -> str:
        return self.words[self.at]

    def expect(self, word: str) -> None:
        assert self.peek() == word, f"{word} expected at {self.at} in {self.words}"
        self.at += 1

    def noun_phrase(self) -> int:
        head = self.at
        noun = self.peek()
        assert noun in NOUNS | PLURAL_NOUNS, f"noun expected at {head} in {self.words}"
        self.at += 1
        if self.peek() == "who":
            assert noun not in ("john", "mary")
            self.at += 1
            if self.peek() in NOUNS | PLURAL_NOUNS:
                stem = self.verb(self.noun_phrase())
                assert stem not in ("walk", "live")
            else:
                self.verb_phrase(head)
        return head

    def verb(self, subject: int) -> str:
        verb = self.peek()
        stem = verb if self.words[subject] in PLURAL_NOUNS else verb.removesuffix("s")
        assert stem in VERBS, f"{verb} does not agree with {self.words[subject]} in {self.words}"
        assert self.words[subject] in PLURAL_NOUNS or verb.endswith("s")
        self.distances[self.at] = self.at - subject
        self.at += 1
        return stem

    def verb_phrase(self, subject: int) -> None:
        stem = self.verb(subject)
        if self.peek() in NOUNS | PLURAL_NOUNS:
            assert stem not in ("walk", "live")
            self.noun_phrase()
        else:
            assert stem not in ("chase", "feed")


def sentences(symbols: np.ndarray) -> list[list[str]]:
    words = [VOCABULARY[number] for number in symbols]
    ends = [place + 1 for place, word in enumerate(words) if word == "."]
    return [words[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def all_symbols(split: Split) -> np.ndarray:
    """The words of a split, its last target included."""
    assert split.symbols is not None
    return np.append(split.symbols[0], split.targets[0, -1].argmax())


@cache
def task(dataset: int = 0) -> ElmanGrammar:
    return ElmanGrammar(dataset=dataset)


def split_sentences(one: ElmanGrammar) -> tuple[list[list[str]], list[list[str]]]:
    """Training and test sentences, without the probe."""
    test = sentences(all_symbols(one.test))
    assert test[-1] == list(PROBE)
    return sentences(all_symbols(one.train)), test[:-1]


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    dataset=st.integers(0, 4),
    seed=st.integers(0, 2**40),
    size=st.integers(20, 400),
    share=st.floats(0.05, 1.0),
)
def test_every_sentence_follows_the_rules(dataset: int, seed: int, size: int, share: float) -> None:
    one = ElmanGrammar(dataset=dataset, seed=seed, sentences=size, complex_share=share)
    train, test = split_sentences(one)
    assert (len(train), len(test)) == (size - round(size / 10), round(size / 10))
    for words in train + test:
        assert len(words) <= 11
        Recogniser(words)


@pytest.mark.parametrize(
    ("sentence", "distance"),
    [
        ("dogs live .", 1),
        ("dogs who walk live .", 3),
        ("dogs who chase cats live .", 4),
        ("dogs who cats chase live .", 4),
        ("dogs who chase cats who walk live .", 6),
        ("dogs who boys who walk feed live .", 6),
        ("dogs who chase boys who feed cats live .", 7),
        ("dogs who boys who feed cats chase live .", 7),
        ("dogs who chase cats who boys who walk feed live .", 9),
        ("dogs who cats who boys who walk feed see live .", 9),
    ],
)
def test_distances_of_table_3(sentence: str, distance: int) -> None:
    words = sentence.split()
    assert Recogniser(words).distances[len(words) - 2] == distance


def test_distances_are_those_of_the_recogniser() -> None:
    one = task()
    expected = []
    for words in sentences(all_symbols(one.test)):
        found = Recogniser(words).distances
        expected.extend(found.get(place, 0) for place in range(len(words)))
    np.testing.assert_array_equal(one._distances, expected[1:])


def test_probabilities_sum_to_one_and_allow_what_happens() -> None:
    for dataset in range(5):
        one = task(dataset)
        assert one.probabilities is not None
        np.testing.assert_allclose(one.probabilities.sum(axis=1), 1, rtol=0, atol=1e-12)
        assert (one.probabilities[np.arange(len(one._following)), one._following] > 0).all()
    np.testing.assert_allclose(language().next_word.sum(axis=1), 1, rtol=0, atol=1e-12)


def sample(rng: np.random.Generator, is_complex: bool) -> list[str]:
    """One sentence straight from the productions, by rejection."""
    p = Productions()

    def noun_phrase(relative: float, nested: bool) -> tuple[list[str], bool]:
        if rng.random() < p.proper:
            return [str(rng.choice(["john", "mary"]))], False
        plural = rng.random() < 0.5
        head = [str(rng.choice(["boy", "girl", "cat", "dog"])) + "s" * plural]
        if rng.random() >= relative:
            return head, plural
        if rng.random() < (p.subject_relative_nested if nested else p.subject_relative):
            return [*head, "who", *verb_phrase(plural, True)], plural
        inner, inner_plural = noun_phrase(p.relative_on_inner_subject, True)
        return [*head, "who", *inner, verb(["chase", "feed", "see", "hear"], inner_plural)], plural

    def verb(stems: list[str], plural: bool) -> str:
        return str(rng.choice(stems)) + "s" * (not plural)

    def verb_phrase(plural: bool, nested: bool) -> list[str]:
        if rng.random() < p.bare:
            return [verb(["see", "hear", "walk", "live"], plural)]
        target, _ = noun_phrase(p.relative_on_object, nested)
        return [verb(["chase", "feed", "see", "hear"], plural), *target]

    while True:
        try:
            subject, plural = noun_phrase(p.relative_on_subject, False)
            words = [*subject, *verb_phrase(plural, False), "."]
        except RecursionError:
            continue
        if len(words) <= 11 and ("who" in words) == is_complex:
            return words


@pytest.mark.slow
def test_probabilities_are_the_frequencies_of_an_independent_sampler() -> None:
    exact: dict[tuple[str, ...], np.ndarray] = {}
    for dataset in range(5):
        one = task(dataset)
        assert one.probabilities is not None
        rows = iter(np.concatenate([language().next_word[:1], one.probabilities]))
        for words in sentences(all_symbols(one.test)):
            exact.update((tuple(words[:length]), next(rows)) for length in range(len(words)))
    rng = np.random.default_rng(1)
    seen: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for _ in range(30_000):
        words = sample(rng, bool(rng.random() < 0.75))
        for place, word in enumerate(words):
            seen[tuple(words[:place])][word] += 1
    compared = 0
    worst = 0.0
    for prefix, counts in seen.items():
        total = counts.total()
        if prefix in exact and total >= 200:
            expected = exact[prefix]
            found = np.array([counts[word] for word in VOCABULARY]) / total
            assert not found[expected == 0].any()
            error = np.sqrt(np.maximum(expected * (1 - expected) / total, 1e-12))
            worst = max(worst, float((np.abs(found - expected) / error).max()))
            compared += len(VOCABULARY)
    assert compared > 1000
    # Rare words have skewed counts, so this is wider than the normal distribution asks for.
    assert worst < 5.5


def test_corpus_is_that_of_the_paper() -> None:
    spoken = language()
    length = float(spoken.probability @ (spoken.classes >= 0).sum(axis=1))
    assert length == pytest.approx(6.37, abs=0.01)
    assert spoken.probability @ spoken.is_complex == pytest.approx(0.75)
    verbs = np.array([spoken.probability @ (spoken.distances == distance).sum(axis=1) for distance in DISTANCES])
    assert set(np.unique(spoken.distances)) == {0, *DISTANCES}
    np.testing.assert_allclose(100 * verbs / verbs.sum(), VERB_SHARES, atol=0.3)


def test_same_arguments_same_data() -> None:
    # Pinned, so that another version of numpy or another machine is noticed.
    first = " ".join(word for words in sentences(all_symbols(task().train))[:3] for word in words)
    assert first == FIRST_SENTENCES


def test_true_probabilities_are_judged_perfect() -> None:
    one = task()
    assert one.probabilities is not None
    evaluation = one.evaluate(one.probabilities[np.newaxis], "probabilities")
    metrics = evaluation.metrics
    for name in ("cosine", "max_prediction", "agreement", "auc", "auc/nouns", "auc/intransitive", "auc/who"):
        assert metrics[name] == pytest.approx(1), name
    assert all(metrics[f"agreement_error/{distance}"] == 0 for distance in DISTANCES)
    shifted = one.evaluate(one.probabilities[np.newaxis] - 0.5, "scores")
    assert shifted.metrics["cosine"] == pytest.approx(1)
    np.testing.assert_allclose(evaluation.arrays["probe/outputs"], evaluation.arrays["probe/probabilities"])


def test_probe_is_figure_2_and_enters_no_metric() -> None:
    one = task()
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=one.test.targets.shape)
    changed = outputs.copy()
    changed[:, -6:] += 3 + rng.normal(size=changed[:, -6:].shape)
    before, after = one.evaluate(outputs), one.evaluate(changed)
    assert before.metrics == after.metrics
    assert not np.array_equal(before.arrays["probe/outputs"], after.arrays["probe/outputs"])
    possible = before.arrays["probe/probabilities"] > 0
    # After "boy who walks": the singular verbs of the main clause, and nothing else.
    assert {VOCABULARY[n] for n in np.flatnonzero(possible[2])} == {verb + "s" for verb in VERBS}
    assert one.test.symbols is not None
    assert [VOCABULARY[number] for number in one.test.symbols[0, -5:]] == list(PROBE[:-1])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_auc_is_that_of_scikit_learn(pairs: list[tuple[int, bool]]) -> None:
    scores = np.array([score for score, _ in pairs], dtype=float)
    positive = np.array([label for _, label in pairs])
    if positive.all() or not positive.any():
        assert np.isnan(auc(scores, positive))
        return
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    false_alarm, hit = roc(scores, positive)
    assert np.trapezoid(hit, false_alarm) == pytest.approx(auc(scores, positive))


@cache
def baseline_rows() -> list[Row]:
    rows = []
    for dataset in range(5):
        one = task(dataset)
        for model in (BigramConfig(kind="bigram"), TrigramConfig(kind="trigram")):
            rows.append(Row(model.label, {"dataset": dataset}, model.evaluate(one)))
    return rows


@pytest.mark.parametrize("label", ["bigram", "trigram"])
def test_baselines_are_within_the_error_of_the_paper(label: str) -> None:
    """Within the combined binomial error at 95 %, at each distance.

    The two numbers of verbs are ours, and our total times the paper's share. At distances where an n-gram has to
    guess our expected error is 0.50 (trigram at distance 4: 0.25), while the paper has 0.53 (bigram at 2, 2.5
    errors away) and 0.42 (trigram at 9), so most other seeds than the default miss one of the nine; all but a few
    stay within 3.3 errors.
    """
    evaluations = [row.evaluation for row in baseline_rows() if row.label == label]
    verbs = np.sum([one.arrays["verbs/count"] for one in evaluations], axis=0)
    errors = np.sum([one.arrays["verbs/errors"] for one in evaluations], axis=0)
    ours, paper = errors / verbs, np.array(AGREEMENT_ERROR[label])
    paper_verbs = verbs.sum() * np.array(VERB_SHARES) / 100
    pooled = (errors + paper * paper_verbs) / (verbs + paper_verbs)
    error = np.sqrt(pooled * (1 - pooled) * (1 / verbs + 1 / paper_verbs))
    assert (np.abs(ours - paper) <= 1.96 * error).all(), (ours, paper, error)


def corpus(folder: Path, content: bytes) -> Path:
    path = folder / "corpus.txt"
    path.write_bytes(content)
    return path


def test_corpus_is_read_and_divided(tmp_path: Path) -> None:
    lines = [f"a{number % 30} b{number % 7} c" for number in range(300)]
    path = corpus(tmp_path, ("\n".join(lines) + " .\n").encode())
    one = ElmanGrammar(corpus=path)
    assert len(one.words) == 30 + 7 + 2
    train, test = (
        " ".join(one.words[number] for number in all_symbols(split)).removesuffix(" .").split(" . ")
        for split in (one.train, one.test)
    )
    assert len(train) + len(test) == 300
    assert not set(train) & set(test)
    assert len(set(test)) == 21
    assert {*train, *test} == set(lines)
    assert one.probabilities is None
    assert one.test.targets.shape[2] == one.outputs == len(one.words)


def files_of(folder: Path, train: Sequence[Sequence[str]], test: Sequence[Sequence[str]]) -> dict[str, str]:
    paths = {"train": folder / "train.txt", "test": folder / "test.txt"}
    for path, part in zip(paths.values(), (train, test), strict=True):
        path.write_text("".join(" ".join(words) + "\n" for words in part))
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.parametrize("scale", ["scores", "probabilities"])
def test_files_with_words_of_the_grammar_are_judged_like_generated_sentences(
    tmp_path: Path, scale: Literal["scores", "probabilities"]
) -> None:
    generated = ElmanGrammar(sentences=400)
    train, test = split_sentences(generated)
    one = ElmanGrammar(corpus=files_of(tmp_path, train, test))
    assert one.remark == ""
    assert one.words == tuple(sorted(VOCABULARY))
    order = [VOCABULARY.index(word) for word in one.words]
    np.testing.assert_array_equal(one.train.inputs, generated.train.inputs[..., order])
    steps = one.test.inputs.shape[1]
    np.testing.assert_array_equal(one.test.inputs, generated.test.inputs[:, :steps, order])
    outputs = np.random.default_rng(0).random(generated.test.targets.shape)
    theirs = generated.evaluate(outputs, scale)
    ours = one.evaluate(outputs[:, :steps, order], scale)
    words = {"cross_entropy_bits", "perplexity", "accuracy"}
    assert set(ours.metrics) == {*theirs.metrics, *words} - {"cosine"}
    for name in set(ours.metrics) - words:
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], abs=1e-12), name
    np.testing.assert_array_equal(ours.arrays["verbs/errors"], theirs.arrays["verbs/errors"])
    # Paper's figures belong to the paper's sentences.
    _, *tables = one.tables([Row("ESN(300)", {}, ours)])
    assert not any("(" in cell for table in tables for row in table.rows for cell in row[1:])


def test_what_the_grammar_does_not_have_is_left_out_and_named(tmp_path: Path) -> None:
    train, test = split_sentences(ElmanGrammar(sentences=400))
    wrong = ["boys", "chases", "cats", "."]
    mixed = ElmanGrammar(corpus=files_of(tmp_path, train, [*test, wrong]))
    assert "is not judged in 1 of 41 test sentences" in mixed.remark
    assert "the first is 'boys chases cats .'" in mixed.remark
    nothing = ElmanGrammar(corpus=files_of(tmp_path, train, [wrong]))
    strange = ElmanGrammar(corpus=files_of(tmp_path, train, [*test, ["a", "boy", "walks"]]))
    assert "does not have 1 of the 25 words; the first is 'a'" in strange.remark
    for one in (nothing, strange):
        evaluation = one.evaluate(one.test.targets)
        assert set(evaluation.metrics) == {"cross_entropy_bits", "perplexity", "accuracy"}
        rows = [Row("ESN(300)", {}, evaluation)]
        (table,) = one.tables(rows)
        assert table.note == one.remark
        assert one.figures(rows) == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"a b .\n\nc d .\n", ":2: no words"),
        (b"a b .\n.\n", ":2: no words"),
        (b"a b .\nc nan d\n", ":2: 'nan'"),
        (b"a b .\nc -Inf d\n", ":2: '-Inf'"),
        (b"a b .\nc \xff d\n", r":2: not UTF-8 \(byte 3"),
        (b"a b\nc . d .\n", ':2: a "." before the end'),
        (b"a b\nc \x00 d\n", ":2: .*control character"),
        (b"a b .\na b\n", "1 distinct sentence"),
    ],
)
def test_unusable_corpus(tmp_path: Path, content: bytes, message: str) -> None:
    path = corpus(tmp_path, content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        ElmanGrammar(corpus=path)
    assert str(path) in str(caught.value)


def test_training_words_of_another_share_hold_no_test_sentence() -> None:
    task = ElmanGrammar(sentences=3000)
    test = split_sentences(task)[1]
    for share in (0, 0.25, 0.75):
        drawn = sentences(task.training_words(share))
        assert len(drawn) == 2700
        assert np.mean(["who" in one for one in drawn]) == pytest.approx(share, abs=0.03)
        assert not {*map(tuple, test)} & {*map(tuple, drawn)}
    np.testing.assert_array_equal(task.training_words(0.75), task.tokens.tokens_train)
    with pytest.raises(ConfigurationError, match=r"task\.complex_share below 1"):
        ElmanGrammar(sentences=100, complex_share=1).training_words(0.5)
