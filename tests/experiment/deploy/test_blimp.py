"""Language models judged on minimal pairs."""

from __future__ import annotations

import itertools
import json
import math
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from command_line import call_here
from shared import narma

from reservoir_hw import Experiment
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.experiment.deploy.blimp import BIGRAM, SHORTER, UNIGRAM, UNTRAINED, blimp, read_blimp

PAIRS = {
    "order": [("the cat saw it.", "cat the saw it."), ("the dog saw it.", "dog the saw it.")],
    "length": [("it saw.", "it saw the dog."), ("the dog saw the cat.", "it."), ("dog.", "cat.")],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blimp")
    words = np.random.default_rng(0).integers(3, size=400)
    text = "".join(["the cat saw it.\n", "the dog saw the cat.\n", "it saw the dog.\n"][word] for word in words)
    (folder / "text.txt").write_text(text)
    document = {
        "task": {"kind": "text", "corpus": str(folder / "text.txt"), "validation": 0.0, "test": 0.1},
        "readout": {"kind": "esn_lm", "nodes": 16, "weights": "dense", "train_input": True, "dropout": 0.0},
        "training": {"gradient": {"epochs": 2, "context": 16, "batch": 16, "learning_rate": 0.02}},
        "baselines": ["bigram", {"kind": "lstm", "hidden": 4}],
        "run": {"folder": str(folder / "runs")},
    }
    with zipfile.ZipFile(folder / "BLiMP.zip", "w") as archive:
        for uid, pairs in PAIRS.items():
            lines = [
                json.dumps({
                    "UID": uid, "field": "syntax/semantics", "linguistics_term": "s-selection", "sentence_good": good,
                    "sentence_bad": bad,
                })
                for good, bad in pairs
            ]  # fmt: skip
            archive.writestr(f"data/{uid}.jsonl", "\n".join(lines) + "\n")
        archive.writestr("__MACOSX/data/._order.jsonl", b"\x00")
    (folder / "models_summary.jsonl").write_text(
        "".join(json.dumps({"UID": uid, "ngram": 0.5, "lstm": 0.6, "txl": 0.7, "gpt2": 0.8}) + "\n" for uid in PAIRS)
    )
    return Experiment(document).run().folder


@pytest.mark.slow
def test_accuracies_against_independent_counts(pictures: None, run: Path) -> None:
    folder = run.parent.parent
    result = blimp(run, data=folder)
    text = (folder / "text.txt").read_text()
    training = text[: len(text) - round(0.1 * len(text))]
    letters = sorted(set(training))
    ones, pairs, contexts = (
        Counter(training),
        Counter(itertools.pairwise(training)),
        Counter(training[:-1]),
    )

    def by_bigrams(sentence: str) -> float:
        both = zip(f"\n{sentence}", sentence, strict=False)
        return math.fsum(np.log((1 + pairs[a, b]) / (len(letters) + contexts[a])) for a, b in both)

    def by_unigrams(sentence: str) -> float:
        return math.fsum(np.log((1 + ones[a]) / (len(letters) + len(training))) for a in sentence)

    for name, score in ((BIGRAM, by_bigrams), (UNIGRAM, by_unigrams), (SHORTER, lambda sentence: -len(sentence))):
        for uid, given in PAIRS.items():
            expected = [1.0 if score(a) > score(b) else 0.5 if score(a) == score(b) else 0.0 for a, b in given]
            np.testing.assert_array_equal(result.scores[name][uid], expected)
    assert result.scores[SHORTER]["order"].tolist() == [0.5, 0.5]
    # After a newline, no sentence of the text begins with "cat" or "dog".
    assert result.scores["ESN+i(16)"]["order"].tolist() == [1.0, 1.0]
    assert set(result.scores) == {"ESN+i(16)", UNTRAINED, BIGRAM, UNIGRAM, SHORTER}
    accuracies, differences, phenomena = result.tables()
    assert accuracies.header == ["model", "all", "syntax_semantics"]
    assert ["published: GPT-2", "80.0 [80.0, 80.0]", "80.0"] in accuracies.rows
    assert [cells[0] for cells in phenomena.rows] == ["argument_structure"]
    assert len(differences.rows) == 4
    assert {path.name for path in (result.folder / "figures").iterdir()} == {"by_phenomenon.png", "by_phenomenon.pdf"}
    done = call_here("blimp", run, "--data", folder, "--most", "2", "--json", cwd=folder)
    assert json.loads(done.stdout)["pairs"] == 4
    other = blimp(run, baseline=0, data=folder)
    assert set(other.scores) == {"lstm(4)", UNTRAINED, BIGRAM, UNIGRAM, SHORTER}
    np.testing.assert_array_equal(other.scores[BIGRAM]["order"], result.scores[BIGRAM]["order"])
    with pytest.raises(ConfigurationError, match=r"no trained baseline 1; it has\n  0  lstm\(4\)"):
        blimp(run, baseline=1, data=folder)


def test_what_cannot_be_judged(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no .*BLiMP\.zip"):
        blimp(run, data=tmp_path)
    monkeypatch.delenv("RESERVOIR_HW_DATA", raising=False)
    with pytest.raises(ConfigurationError, match="RESERVOIR_HW_DATA, which is not set"):
        blimp(run)
    (tmp_path / "BLiMP.zip").write_bytes(b"PK")
    with pytest.raises(ConfigurationError, match="is damaged"):
        blimp(run, data=tmp_path)
    with zipfile.ZipFile(tmp_path / "BLiMP.zip", "w") as archive:
        one = {"UID": "a", "field": "b", "linguistics_term": "c", "sentence_good": "Zoë.", "sentence_bad": "it."}
        archive.writestr("data/a.jsonl", json.dumps(one))
    assert [one.published for one in read_blimp(tmp_path)] == [{}]
    with pytest.raises(ConfigurationError, match=r"cannot be encoded: the character 'Z'"):
        blimp(run, data=tmp_path)
    with pytest.raises(ConfigurationError, match="readout ridge is no language model"):
        blimp(narma(tmp_path).run().folder)
