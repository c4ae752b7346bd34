"""Language models from an experiment file: trained, judged and kept, on simulations and on devices."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from command_line import started
from edge_runs import write_text
from safetensors.torch import load_file
from served import ipc_address, served
from shared import narma

from reservoir_hw import Experiment
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError, DeviceFault, InputRangeError
from reservoir_hw.core.reservoir_config import open_reservoir, parse_reservoir
from reservoir_hw.core.tokenizer import Documents
from reservoir_hw.experiment.compare.sides import point_of
from reservoir_hw.experiment.deploy.export import export_run
from reservoir_hw.experiment.deploy.trained import trained_baseline
from reservoir_hw.experiment.devices.info import reservoir_from_file
from reservoir_hw.experiment.run.by_gradients import ByGradients, opened_model
from reservoir_hw.experiment.sweeps.sweep import sweep
from reservoir_hw.readout.baselines.configuration import GptConfig
from reservoir_hw.readout.baselines.recurrent import SRN
from reservoir_hw.readout.models.configuration import EsnLmConfig
from reservoir_hw.readout.models.token_model import log_probabilities
from reservoir_hw.readout.training import NotFinite, load_tokenizer, load_weights
from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar

pytestmark = pytest.mark.usefixtures("one_thread")

FILE = """\
task: {kind: text, corpus: TEXT, validation: 0.1, test: 0.1}
reservoir:
  kind: esn
  nodes: 12
readout:
  kind: linear
  embedding: {kind: random, width: 4}
training:
  gradient: {epochs: 2, context: 8, batch: 16, learning_rate: 1e-2, accelerator: cpu}
run: {folder: RUNS}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_text(tmp_path)
    path = tmp_path / "experiment.yaml"
    path.write_text(FILE.replace("TEXT", str(tmp_path / "text.txt")).replace("RUNS", str(tmp_path / "runs")))
    return path


def run(file: Path, lab: Path | None = None, **settings: Any) -> Any:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    return Experiment.from_file(file, reservoir=lab, set=changes, environment={}).run()


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was found, without what it took."""
    return [{name: row[name] for name in ("label", "point", "metrics", "readout")} for row in rows]


LAERC = {"kind": "laerc", "width": 4, "layers": 2}


@pytest.mark.slow
def test_a_model_is_trained_judged_and_kept(pictures: None, file: Path) -> None:
    result = run(file, run__generate={"tokens": 20, "overlap": [2, 4]}, baselines=["bigram"])
    assert [row.label for row in result.rows] == ["bigram", "ESN(12) linear"]
    bigram, model = (row.evaluation.metrics for row in result.rows)
    assert model["parameters"] == 12 * 5 + 5
    assert bigram["cross_entropy"] < model["cross_entropy"] < math.log(5)
    assert model["bits_per_character"] == pytest.approx(model["cross_entropy"] / math.log(2))
    folder = result.folder
    assert {path.name for path in folder.iterdir()} == {
        "experiment.yaml", "metrics.json", "provenance.json", "readout", "training", "samples", "figures",
        "report.html",
    }  # fmt: skip
    assert {"log.csv", "loss.png", "checkpoint.safetensors"} <= {
        path.name for path in (folder / "training/000").iterdir()
    }
    sample = (folder / "samples/000.txt").read_text(encoding="utf-8")
    assert len(sample.strip()) == 32 + 20 + 2
    assert sample.strip() in result.tables()[1].rows[0][0].replace("\n", "")
    written, tokens = sample[:-1].partition("⟧")[2], result.task.tokens
    assert tokens is not None
    test = tokens.tokenizer.decode(tokens.tokens_test)
    for n in (2, 4):
        grams = {written[i : i + n] for i in range(21 - n)}
        assert model[f"overlap/{n}"] == sum(gram in test for gram in grams) / len(grams)
    assert "4-gram overlap" in result.tables()[0].header
    assert set(result.figures()) == {"training"}
    record = json.loads((folder / "provenance.json").read_text())["rows"][0]
    assert record["reservoir"]["identity"]["simulated"] is True
    kept = json.loads((folder / "metrics.json").read_text())["rows"][1]
    assert kept["readout"]["kind"] == "linear"
    assert kept["processor_seconds"] > 0
    assert [at["validation_loss"] for at in kept["training"]["evaluations"]] == [
        kept["metrics"]["validation_cross_entropy"]
    ]
    assert 0 < kept["training"]["driving_seconds"] < kept["seconds"]
    assert 0 < kept["sample"]["driving_seconds"] < kept["sample"]["seconds"] < kept["seconds"]
    assert record["training"]["steps"] == 2 * math.ceil((2400 - 9) // 8 + 1) // 16 + 1


@pytest.mark.slow
def test_models_with_a_recurrence_of_their_own_need_no_reservoir(file: Path, tmp_path: Path) -> None:
    document = Document.from_file(file)
    document.remove(("reservoir",))
    sparse = {"kind": "esn_lm", "nodes": 12, "connections": 3, "rank": 4}
    dense = {"kind": "esn_lm", "nodes": 12, "weights": "dense", "train_input": True}
    document.set("readout", sparse, "test")
    document.set("vary", {"readout": [sparse, dense]}, "test")
    bare = Document.copy_of(document)
    result = Experiment(document).run()
    trained = [row.evaluation.metrics["parameters"] for row in result.rows]
    assert trained == [(12 + 5) * 4 + 5, 2 * 12 * 5 + 5]
    assert all("reservoir" not in row for row in result.provenance["rows"])
    bundle = export_run(result.folder, tmp_path / "esn.rhw", row=1)
    assert bundle.path.is_file()
    again = Experiment.from_file(result.folder / "experiment.yaml").run()
    assert [row.evaluation.metrics for row in again.rows] == [row.evaluation.metrics for row in result.rows]
    for changes, message in (
        ({"readout": {"kind": "linear"}}, "reservoir is missing"),
        ({"readout": {"kind": "linear"}, "reservoir": {"kind": "none"}}, "kind none is no reservoir"),
        ({"readout": {**dense, "rank": 3}}, "rank: not for dense weights"),
    ):
        wrong = Document.copy_of(bare)
        wrong.set("vary", {}, "test")
        for key, value in changes.items():
            wrong.set(key, value, "test")
        with pytest.raises(ConfigurationError, match=message):
            Experiment(wrong).run()


@pytest.mark.slow
def test_baselines_are_trained_on_the_same_windows(file: Path) -> None:
    models = [
        {"kind": "gpt", "width": 8, "layers": 1, "heads": 2},
        {"kind": "transformer", "embedding": 8, "hidden": 8, "heads": 2, "layers": 1},
        {"kind": "lstm", "hidden": 6},
        {"kind": "gru", "hidden": 6},
        {"kind": "srn", "hidden": 6},
    ]
    gradient = {"steps": 20, "context": 8, "batch": 16, "shards": 2, "shard_epochs": 1}
    settings: dict[str, Any] = {"baselines": ["bigram", *models], "run__generate": {"tokens": 5}}
    settings["training__gradient"] = gradient
    result = run(file, **settings)
    labels = ["bigram", "gpt(1×8)", "transformer(1×8)", "lstm(6)", "gru(6)", "SRN(6)", "ESN(12) linear"]
    assert [row.label for row in result.rows] == labels
    record = json.loads((result.folder / "provenance.json").read_text())
    (model,) = record["rows"]
    assert [one["label"] for one in record["baselines"]] == labels[1:6]
    assert {one["training"]["steps"] for one in record["baselines"]} == {model["training"]["steps"]}
    assert "reservoir" not in record["baselines"][0]
    assert (result.folder / "readout/baseline-003.safetensors").is_file()
    gpt = GptConfig(**models[0]).build(5, context=8)
    assert result.rows[1].evaluation.metrics["parameters"] == sum(p.numel() for p in gpt.parameters())
    again = run(file, **settings)
    assert [row.evaluation.metrics for row in again.rows] == [row.evaluation.metrics for row in result.rows]
    with pytest.raises(
        ConfigurationError, match="baselines: kind gpt learns from the tokens of a text, and the task narma"
    ):
        narma(file.parent, baselines=models[:1]).run()


def test_a_model_has_a_training_of_its_own(file: Path) -> None:
    own = {"steps": 3, "learning_rate": 1e-4}
    lstm = {"kind": "lstm", "hidden": 6}
    result = run(file, readout__training=own, baselines=[lstm, {**lstm, "hidden": 5, "training": {"epochs": 1}}])
    record = json.loads((result.folder / "provenance.json").read_text())
    shared = 2 * math.ceil((2400 - 9) // 8 + 1) // 16 + 1
    trained = [one["training"]["steps"] for one in [*record["baselines"], *record["rows"]]]
    assert trained == [shared, math.ceil(shared / 2), 3]
    linear = {"kind": "linear", "embedding": {"kind": "random", "width": 4}}
    varied = run(file, vary={"readout": [linear, {**linear, "training": own}]})
    assert [row.label for row in varied.rows] == ["ESN(12) linear", "ESN(12) linear steps=3 learning_rate=0.0001"]
    assert varied.rows[1].evaluation.metrics == result.rows[2].evaluation.metrics
    # Nothing but the model says how it is trained.
    alone = run(file, training={}, readout__training={"epochs": 1, "context": 8, "batch": 16})
    assert alone.rows[0].details["training"]["steps"] == math.ceil(shared / 2)


@pytest.mark.slow
def test_the_best_of_a_grid_on_the_validation_counts(pictures: None, file: Path) -> None:
    grid = {"learning_rate": [1e-5, 1e-2], "seed": 5}
    baselines = ["bigram", {"kind": "lstm", "hidden": 6, "seed": [0, 1], "training": grid}]
    experiment = Experiment.from_file(file, set={"baselines": baselines}, environment={})
    assert experiment.estimate().runs == 1 + 4
    result = experiment.run()
    assert [row.label for row in result.rows] == ["bigram", "lstm(6)", "lstm(6)", "ESN(12) linear"]
    first, second = result.rows[1:3]
    assert [row.details["readout"]["seed"] for row in (first, second)] == [0, 1]
    assert {row.details["readout"]["training"]["learning_rate"] for row in (first, second)} == {1e-2}
    slow, fast = first.details["tried"]
    assert (slow["training"], fast["training"]) == ({"learning_rate": 1e-5}, {"learning_rate": 1e-2})
    losses = [row.evaluation.metrics["validation_cross_entropy"] for row in (first, second)]
    assert fast["validation_cross_entropy"] == pytest.approx(np.mean(losses))
    assert fast["validation_cross_entropy"] < slow["validation_cross_entropy"]
    said = "lstm(6): learning_rate=0.01, the best of 2 by the validation loss (4 trainings)"
    assert said in result.notes
    assert said in (result.folder / "report.html").read_text()
    table = result.tables()[0]
    assert table.rows[1][:2] == ["lstm(6)", "2"]
    assert "±" in table.rows[1][table.header.index("nats per token")]
    kept = trained_baseline(result.folder, 1)
    assert (kept.label, kept.file().name) == ("lstm(6)", "baseline-003.safetensors")
    with pytest.raises(ConfigurationError, match=r"no trained baseline 2; it has\n  0  lstm\(6\)\n  1  lstm\(6\)$"):
        trained_baseline(result.folder, 2)
    # What the run folder holds is the same experiment.
    again = Experiment.from_file(result.folder / "experiment.yaml", environment={}).run(report=False)
    assert [row.evaluation.metrics for row in again.rows] == [row.evaluation.metrics for row in result.rows]


@pytest.mark.slow
def test_an_interrupted_grid_leaves_its_best(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = {"learning_rate": [1e-5, 1e-2, 1e-3]}
    settings = {"baselines": [{"kind": "lstm", "hidden": 6, "training": training}]}
    experiment = Experiment.from_file(file, set=settings, environment={})
    real = ByGradients.run

    def stopped(self: Any, run: Any) -> None:
        if run.point.number == 2:
            raise KeyboardInterrupt
        real(self, run)

    with monkeypatch.context() as patched:
        patched.setattr(ByGradients, "run", stopped)
        with pytest.raises(KeyboardInterrupt):
            experiment.run()
    assert experiment.result is not None
    (row,) = experiment.result.rows
    assert row.details["readout"]["training"] == {"learning_rate": 1e-2}
    folder = str(experiment.result.folder)
    on = Experiment.from_file(file, set={**settings, "run.resume": folder}, environment={}).run(report=False)
    assert [row.label for row in on.rows] == ["lstm(6)", "ESN(12) linear"]
    assert len(on.rows[0].details["tried"]) == 3


def test_sentences_are_learned_and_judged_each_from_rest(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["The cat saw it.", "The dog saw the old cat.", "It saw the dog."]
    (tmp_path / "text.txt").write_text(" ".join(lines[number] for number in random.integers(3, size=400)))
    document: dict[str, Any] = {
        "task": {
            "kind": "text", "corpus": str(tmp_path / "text.txt"), "level": "bpe", "vocabulary": 290,
            "unit": "sentence", "longest": 20,
        },
        "reservoir": {"kind": "esn", "nodes": 12},
        "readout": {"kind": "linear"},
        "training": {"gradient": {"steps": 8, "context": 19, "batch": 16, "learning_rate": 0.03}},
        "baselines": ["bigram", {"kind": "gpt", "width": 8, "layers": 1, "heads": 2}],
        "vary": {"readout": [{"kind": "linear"}, {"kind": "esn_lm", "nodes": 12, "rank": 4, "connections": 3}]},
        "run": {"folder": str(tmp_path / "runs"), "generate": {"tokens": 10, "overlap": [3]}},
    }  # fmt: skip
    result = Experiment(document).run()
    losses = [row.evaluation.metrics["cross_entropy"] for row in result.rows]
    assert len(losses) == 4
    assert max(losses) < np.log(290)
    task = result.task.tokens
    assert task is not None
    (weights,) = (result.folder / "readout").glob("001.safetensors")
    model = EsnLmConfig(kind="esn_lm", nodes=12, rank=4, connections=3).build(task.vocabulary)
    load_weights(model, weights)
    sentences = [np.array(one) for one in cast(Documents, task.tokens_test)]
    nats = -log_probabilities(model, [one.astype(np.int64) for one in sentences]).sum()
    assert nats / sum(len(one) - 1 for one in sentences) == pytest.approx(losses[-1], rel=1e-5)
    assert (result.folder / "samples/000.txt").read_text().startswith("⟦<|endoftext|>⟧")
    document["training"]["gradient"]["keep_states"] = True
    with pytest.raises(ConfigurationError, match="keep_states is for states that are computed beforehand"):
        Experiment(document).run()


def test_an_srn_learns_sentences_in_stages_beside_a_ridge_readout(file: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "task": {"kind": "elman_grammar", "sentences": 300},
        "reservoir": {"kind": "esn", "nodes": 20},
        "readout": {"kind": "ridge"},
        "training": {"priming_passes": 1, "gradient": {"epochs": 4, "context": 32, "batch": 8, "learning_rate": 0.01}},
        "baselines": [
            "bigram",
            {"kind": "srn", "hidden": 12, "stages": True},
            {"kind": "srn", "hidden": 12, "outputs": "softmax"},
        ],
        "run": {"folder": str(tmp_path)},
    }
    result = Experiment(settings).run(report=False)
    found = {row.label: row.evaluation.metrics for row in result.rows}
    assert list(found) == ["bigram", "SRN(12)", "SRN(12) softmax", "ESN(20)"]
    assert set(found["ESN(20)"]) | {"parameters"} == set(found["SRN(12)"])
    stages = sorted(path.name for path in (result.folder / "training/baseline-000").iterdir())
    assert stages == ["stage-0", "stage-0.25", "stage-0.5", "stage-0.75"]
    # The kept weights answer for the test as published: the activations of the output units, z-scored.
    task = ElmanGrammar(sentences=300)
    model = SRN(24, 12)
    load_weights(model, result.folder / "readout/baseline-000.safetensors")
    with torch.no_grad():
        features = model.features(torch.as_tensor(task.test.symbols))
        units = model.readout.activations(features).sigmoid().numpy()  # type: ignore[operator]
    again = task.evaluate(units - 0.5, "scores").metrics
    for name in ("cosine", "auc", "agreement"):
        assert found["SRN(12)"][name] == pytest.approx(again[name], abs=1e-6)
    # An interrupted run goes on: what is trained is not trained again.
    settings["run"]["resume"] = str(result.folder)
    resumed = Experiment(settings).run(report=False)
    assert [row.evaluation.metrics for row in resumed.rows] == [row.evaluation.metrics for row in result.rows]
    # Where the baselines are left out, so is their training.
    assert point_of(Document.from_mapping(settings, "")).config.training.gradient is None
    with pytest.raises(ConfigurationError, match=r"gradient: readout ridge is not trained by gradients; remove it"):
        Experiment({**settings, "baselines": []}).run()
    with pytest.raises(ConfigurationError, match="baselines: gradient is missing"):
        Experiment({**settings, "training": {}}).run()
    with pytest.raises(ConfigurationError, match="baselines: stages: only the task elman_grammar has simpler sent"):
        run(file, baselines=[{"kind": "srn", "stages": True}])


def test_the_kept_weights_and_tokenizer_make_the_same_model(file: Path) -> None:
    experiment = Experiment.from_file(file, environment={}, set={"readout.kind": "attention", "readout.hidden": 3})
    result = experiment.run()
    point, task = experiment.points[0], next(iter(experiment._tasks.values()))
    tokens = task.tokens_test  # type: ignore[attr-defined]
    with opened_model(point, task) as (model, _):  # type: ignore[arg-type]
        facts = load_weights(model, result.folder / "readout/000.safetensors")
        windows = torch.from_numpy(tokens[: len(tokens) // 9 * 9].astype(np.int64))
        read = torch.stack([windows[start : start + 9] for start in range(0, len(tokens) - 8, 8)])
        with torch.no_grad():
            loss = float(model.loss(read[:, :-1], read[:, 1:]))
    assert loss == pytest.approx(result.rows[0].evaluation.metrics["cross_entropy"], rel=1e-5)
    assert facts["vocabulary"] == 5
    tokenizer = load_tokenizer(result.folder / "readout" / facts["tokenizer"])
    np.testing.assert_array_equal(tokenizer.encode("edcba"), [4, 3, 2, 1, 0])


def test_precomputed_states_give_what_driving_in_every_step_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = run(file).rows[0].evaluation
    shards = run(file, training__gradient__shards=3, training__gradient__shard_epochs=1).rows[0].evaluation
    from reservoir_hw.readout.models.configuration import ReservoirModelConfig

    monkeypatch.setattr(ReservoirModelConfig, "harvests", False)
    driven = run(file).rows[0].evaluation
    np.testing.assert_allclose(computed.arrays["training/loss"], driven.arrays["training/loss"], rtol=1e-5)
    assert computed.metrics["cross_entropy"] == pytest.approx(driven.metrics["cross_entropy"], rel=1e-5)
    assert shards.metrics["cross_entropy"] == pytest.approx(driven.metrics["cross_entropy"], rel=0.1)


@pytest.mark.parametrize("readout", [{"kind": "linear", "embedding": {"kind": "random", "width": 4}}, LAERC])
def test_a_served_device_gives_the_same(file: Path, tmp_path: Path, readout: dict[str, Any]) -> None:
    here = run(file, readout=readout, training__gradient__epochs=1)
    reservoir = open_reservoir({"kind": "esn", "nodes": 12, "inputs": 4})
    with ipc_address() as address, served(reservoir, address):
        (tmp_path / "bench.yaml").write_text(f"kind: zmq\naddress: {address}\n")
        there = run(file, tmp_path / "bench.yaml", readout=readout, training__gradient__epochs=1)
    one, other = here.rows[0].evaluation, there.rows[0].evaluation
    assert one.metrics == other.metrics
    np.testing.assert_array_equal(one.arrays["training/loss"], other.arrays["training/loss"])
    identities = [r.provenance["rows"][0]["reservoir"]["identity"] for r in (here, there)]
    assert identities[0]["fingerprint"] == identities[1]["fingerprint"]


@pytest.mark.slow
def test_layers_with_reservoirs_of_their_own(pictures: None, file: Path) -> None:
    settings = {"readout": LAERC, "training__gradient__epochs": 1}
    shared = run(file, **settings)
    drawn = run(file, reservoir={"kind": "laerc_layers", "nodes": 12}, **settings)
    esn = {"kind": "esn", "nodes": 12}
    listed = run(file, reservoir={"kind": "layers", "reservoirs": [esn, {**esn, "nodes": 9}]}, **settings)
    rows = [result.provenance["rows"][0] for result in (shared, drawn, listed)]
    assert ["further_reservoirs" in row for row in rows] == [False, True, True]
    radii = [r["spec"]["nodes"] for r in (rows[2]["reservoir"], *rows[2]["further_reservoirs"])]
    assert radii == [12, 9]
    prints = [r["identity"]["fingerprint"] for r in (rows[1]["reservoir"], *rows[1]["further_reservoirs"])]
    assert len(set(prints)) == 2
    assert [result.rows[0].label for result in (shared, drawn, listed)] == [
        "ESN(12) laerc(2×4)", "LAERC(12) laerc(2×4)", "ESN(12) + ESN(9) laerc(2×4)",
    ]  # fmt: skip
    assert "ESN" not in drawn.rows[0].label
    scaled = parse_reservoir(Document.from_mapping({"kind": "laerc_layers", "nodes": 12, "spectral_norm": 0.9}, ""))
    for config in scaled.for_layers(4, 2):
        with open_reservoir(config) as reservoir:
            W = cast(Esn, reservoir).weights.recurrent()
            assert np.linalg.norm(np.asarray(W), 2) == pytest.approx(0.9, rel=1e-6)
    page = (drawn.folder / "report.html").read_text()
    assert page.count("<li>simulation") == 2


def test_models_beside_each_other(file: Path) -> None:
    models = [{"kind": "linear"}, {"kind": "attention", "hidden": 2}]
    seen = []
    result = Experiment.from_file(
        file,
        environment={},
        set={"vary": {"readout": models}, "reservoir.vary": {"nodes": [5, 8]}, "training.gradient.epochs": 1},
    ).run(lambda *now: seen.append(now))
    assert [row.label for row in result.rows] == [
        "ESN(5) linear", "ESN(5) attention(2)", "ESN(8) linear", "ESN(8) attention(2)",
    ]  # fmt: skip
    assert [row.evaluation.metrics["parameters"] for row in result.rows[::2]] == [30, 45]
    assert set(result.figures()) == {"training", "loss_by_weights"}
    assert {path.name for path in (result.folder / "training").iterdir()} == {"000", "001", "002", "003"}
    # The progress ends where it said that it would.
    assert seen[-1][1] == pytest.approx(seen[-1][2], rel=0.02)
    assert any("tokens/s" in what for what, _, _ in seen)
    # The bar beside it says so, for all models and their tests together.
    assert not any("left" in what for what, _, _ in seen)


def test_a_ridge_readout_reads_the_same_text(file: Path) -> None:
    result = run(file, readout={"kind": "ridge"}, training={}, baselines=["bigram"], reservoir__nodes=30)
    bigram, ridge = (row.evaluation.metrics for row in result.rows)
    assert ridge["accuracy"] == pytest.approx(bigram["accuracy"], abs=0.03)
    assert ridge["cross_entropy"] < math.log(5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"readout": {"kind": "ridge"}}, r"experiment\.yaml:9: training: gradient: readout ridge is not trained"),
        ({"task": {"kind": "narma"}}, r"experiment\.yaml:5: readout: kind linear learns from the tokens .* narma"),
        ({"training": {}}, r"training: gradient is missing"),
        ({"readout__training": {"learnin_rate": 1}}, r"readout\.training: .*'learnin_rate'; did you mean 'learn"),
        ({"baselines": ["bigram", {"kind": "gru", "hidden": 4, "training": {"batch": [8, 0]}}]},
         r"baselines\.2\.training: GradientConfig: batch = 0"),
        ({"task__validation": 0, "baselines": [{"kind": "gru", "hidden": 4, "training": {"batch": [8, 9]}}]},
         r"baselines: gru\(4\) is trained in 2 ways, and the task holds nothing out to choose by"),
        ({"training__repetitions": 3}, r"training: repetitions: not for readout linear"),
        ({"training__gradient__context": 300}, r"gradient\.context: a window takes 301 tokens, and the validation"),
        ({"training__gradient__steps": 5}, r"give either steps or epochs"),
        ({"reservoir__inputs": 3, "reservoir__input_mask": "none"},
         r"experiment\.yaml:2: reservoir: 4 channels for 3 inputs of .*`input_mask: none`"),
        ({"readout__reservoir_gradient": "twin"}, r"`twin:` and reservoir_gradient: twin belong together"),
        ({"readout__embedding__trainable": True}, r"a trainable embedding needs a gradient"),
        ({"readout__reservoir_gradient": "through", "reservoir": {"kind": "zmq", "address": "tcp://bench:5555"}},
         r"yaml:5: readout: reservoir_gradient is through, but no gradient passes the reservoir of kind zmq"),
        ({"readout__reservoir_gradient": "twin", "readout__twin": {"kind": "esn", "nodes": 12}},
         r"yaml:5: readout: reservoir_gradient is twin, but no gradient passes the twin of kind esn"),
        ({"readout": {**LAERC, "reservoir_gradient": "through"},
          "reservoir": {"kind": "zmq", "address": "tcp://bench:5555"}},
         r"no gradient passes the reservoir of kind zmq: take another policy"),
        ({"training__gradient__shards": 2},
         r"yaml:8: training: gradient\.epochs 2 must be a multiple of gradient\.shard_epochs 5"),
        ({"readout": LAERC, "reservoir": {"kind": "laerc_layers", "nodes": 4}, "training__gradient__shards": 2},
         r"training: gradient\.shards is for states that are computed beforehand, and readout laerc drives"),
        ({"readout": LAERC, "reservoir": {"kind": "laerc_layers", "nodes": 4}, "training__gradient__keep_states": True},
         r"training: gradient\.keep_states is for states that are computed beforehand"),
        ({"run__generate": {"tokens": 3, "overlap": [4]}}, r"overlap: a text of 3 tokens has no 4-grams"),
        ({"run__generate": {"prompt": "xyz"}}, r"run: generate\.prompt: the character 'x'"),
        ({"run__resume": "nowhere"}, r"run\.resume: nowhere is not the folder of a run"),
        ({"task__corpus": "nowhere.txt"}, r"there is no file nowhere\.txt"),
        ({"readout": LAERC, "reservoir": {"kind": "layers", "reservoirs": [{"kind": "esn", "nodes": 3}]}},
         r"reservoir: the model has 2 layers .* but reservoirs lists 1"),
    ],
)  # fmt: skip
def test_mistakes_are_one_message_with_their_origin(file: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(file, **settings)
    assert not (file.parent / "runs").exists()


def test_a_token_outside_the_vocabulary_and_an_empty_text(file: Path) -> None:
    text = file.parent / "text.txt"
    text.write_text(text.read_text() + "?")
    with pytest.raises(InputRangeError, match=r"in the test part the character '\?' at position 299"):
        run(file)
    text.write_text("")
    with pytest.raises(ConfigurationError, match=r"text\.txt is empty"):
        run(file)


def test_a_training_that_diverges(file: Path) -> None:
    settings = {"training__gradient__learning_rate": 1e38, "reservoir__activation": "relu"}
    with pytest.raises((NotFinite, InputRangeError), match=r"step \d+"):
        run(file, **settings)
    metrics = json.loads(next(file.parent.glob("runs/*/metrics.json")).read_text())
    assert metrics["status"] == "failed"
    record = json.loads(next(file.parent.glob("runs/*/provenance.json")).read_text())
    assert record["unfinished"]["reservoir"]["identity"]["model"] == "esn"


def melts(patch: pytest.MonkeyPatch, nodes: int) -> None:
    """Have networks of so many nodes die as they are driven."""
    ordinary = Esn._run

    def dying(self: Esn, u: Any, out: Any) -> Any:
        if self.spec.nodes == nodes:
            raise DeviceFault("the film has melted")
        return ordinary(self, u, out)

    patch.setattr(Esn, "_run", dying)


def test_a_device_that_dies_leaves_the_rows_before(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    melts(monkeypatch, 9)
    with pytest.raises(DeviceFault, match="melted"):
        run(file, reservoir__vary={"nodes": [8, 9]})
    metrics = json.loads(next(file.parent.glob("runs/*/metrics.json")).read_text())
    assert [row["label"] for row in metrics["rows"]] == ["ESN(8) linear"]


@pytest.mark.slow
def test_a_resume_that_fails_leaves_what_was_there(pictures: None, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: Any = {"nodes": [8, 9]}
    folder = run(file, reservoir__vary=sizes).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for melting in (8, 9):
        with monkeypatch.context() as patch:
            melts(patch, melting)
            with pytest.raises(DeviceFault, match="melted"):
                run(file, reservoir__vary=sizes, run__resume=str(folder))
        for name in ("metrics.json", "provenance.json", "report.html"):
            assert (folder / name).read_bytes() == before[folder / name]
    again = run(file, reservoir__vary=sizes, run__resume=str(folder))
    assert again.status == "complete"
    then, now = (json.loads(text) for text in (before[folder / "metrics.json"], (folder / "metrics.json").read_bytes()))
    assert {**now, "rows": judged(now["rows"])} == {**then, "rows": judged(then["rows"])}
    # What the training took is still known, but for the time of the devices.
    for row, former in zip(now["rows"], then["rows"], strict=True):
        assert row["training"] == former["training"] | {"driving_seconds": None}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [[], ["checkpoint.safetensors", "log.csv", "states-training"]])
def test_noise_goes_on_over_kept_states(file: Path, lost: list[str]) -> None:
    """The states of the validation part alone are there, or all, and the training has ended."""
    settings: dict[str, Any] = {
        "reservoir__nonidealities": {"readout": {"noise": 0.3}},
        "training__gradient__keep_states": True,
        "training__gradient__epochs": 6,
    }
    folder = run(file, **settings).folder
    whole = json.loads((folder / "metrics.json").read_text())["rows"]
    (training,) = folder.glob("training/*")
    assert (training / "states-validation").exists()
    for name in lost:
        (path,) = training.glob(f"{name}*")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    again = run(file, **settings, run__resume=str(folder))
    assert judged(again.metrics["rows"]) == judged(whole)


def test_a_harvest_is_refused_in_one_sentence(file: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"yaml:5: readout linear drives its reservoir itself while"):
        Experiment.from_file(file, environment={}).harvest()
    with pytest.raises(ConfigurationError, match="drives its reservoir itself"):
        Experiment.from_file(file, environment={}).estimate(harvest=True)


@pytest.mark.slow
def test_what_is_driven_is_what_was_estimated(file: Path) -> None:
    for settings in (
        {},
        {"training.gradient.shards": 2, "training.gradient.shard_epochs": 1},
        {"readout": LAERC},
        {"training.gradient.predict": "last", "training.gradient.stride": 3},
        {"run.generate": {"tokens": 5}},
    ):
        experiment = Experiment.from_file(file, environment={}, set=settings)
        cost = experiment.estimate()
        assert cost.training_steps == json.loads(json.dumps(asdict(cost)))["training_steps"] > 0
        counted = experiment.run().provenance["rows"][0]["reservoir"]["counters"]["steps"]
        assert counted == pytest.approx(cost.device_steps, rel=0.01), settings


@pytest.mark.slow
def test_a_recorded_run_and_a_served_file(file: Path) -> None:
    trace = file.parent / "trace"
    result = run(file, run__record=str(trace), training__gradient__epochs=1)
    with pytest.raises(ConfigurationError, match=r"drove its reservoir itself .*: set run\.record"):
        result.states()
    again = run(file, reservoir={"kind": "replay", "trace": str(trace)}, training__gradient__epochs=1)
    assert again.status == "complete"
    config, _ = reservoir_from_file(file)
    assert config.inputs == 4


@pytest.mark.slow
def test_a_sweep_goes_by_the_validation_part(file: Path) -> None:
    text = (
        file.read_text().replace("epochs: 2", "steps: 3")
        + """\
sweep:
  metric: validation_cross_entropy
  trials: 2
  sampler: random
  search: {training.gradient.learning_rate: {low: 1e-3, high: 1e-1, log: true}}
"""
    )
    file.write_text(text)
    result = sweep(file)
    assert result.best is not None
    assert result.best.objective is not None
    assert 0 < result.best.objective < 3
    assert result.direction == "minimize"
    file.write_text(text.replace("validation_cross_entropy", "parameters"))
    with pytest.raises(ConfigurationError, match=r"not say which way parameters gets better: set sweep\.d"):
        sweep(file, name="other")
    file.write_text(text.replace("validation_cross_entropy", "accuracies"))
    with pytest.raises(ConfigurationError, match=r"no metric 'accuracies'; it has: .*validation_cross_entropy"):
        sweep(file, name="other")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nobody_is_sent_to_the_folder_of_a_trial(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    file.write_text(
        file.read_text() + "sweep:\n  {metric: accuracy, search: {training.gradient.learning_rate: [1, 2]}}\n"
    )
    from reservoir_hw.readout.training.loop import _Training

    ordinary = _Training._after_step

    def told(self: Any, norm: float) -> None:
        signal.raise_signal(number)
        ordinary(self, norm)

    monkeypatch.setattr(_Training, "_after_step", told)
    before = signal.getsignal(number)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as caught:
        sweep(file)
    assert signal.getsignal(number) == before
    said = [str(caught.value), *caught.value.__notes__, *(record.getMessage() for record in caplog.records)]
    assert [text for text in said if "reservoir_hw-trial-" in text] == []
    assert any(text.startswith("stopped after step ") for text in said)
    assert any("the same command goes on" in text for text in said)
    known = json.loads(next(file.parent.glob("runs/sweeps/*/metrics.json")).read_text())
    assert known["status"] == "interrupted"


def test_the_seed_of_a_sample_may_be_any_whole_number(file: Path) -> None:
    seeds = (2**64, 2**64 + 1, 2**64)
    samples = [run(file, run__generate={"tokens": 40, "seed": seed}) for seed in seeds]
    texts = [(result.folder / "samples/000.txt").read_text(encoding="utf-8") for result in samples]
    assert texts[0] == texts[2] != texts[1]


def test_the_settings_of_a_paper_lie_below() -> None:
    data = {
        "task": {"kind": "text", "corpus": "x"},
        "reservoir": {"kind": "laerc_layers"},
        "readout": LAERC,
        "training": {"gradient": {"paper": "laerc", "steps": 7, "betas": [0.8, 0.9]}},
    }
    gradient = Experiment(Document.from_mapping(data, "here")).config.training.gradient
    assert gradient is not None
    assert (gradient.windows, gradient.accumulate, gradient.clip) == ("random", 4, 1.0)
    assert (gradient.steps, gradient.betas) == (7, (0.8, 0.9))
    resolved = Experiment(data).resolved()
    assert Experiment(resolved).resolved() == resolved
    esn = {**data, "training": {"gradient": {"paper": "esn", "steps": 7}}}
    assert Experiment(esn).config.training.gradient.epochs is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("states", "number"),
    [
        pytest.param({"training.gradient.keep_states": True}, signal.SIGTERM, id="kept", marks=pytest.mark.slow),
        pytest.param(
            {"training.gradient.shards": 2, "reservoir.nonidealities": {"readout": {"noise": 0.3}}},
            signal.SIGINT,
            id="driven again, noisy",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_signal_keeps_rows_and_the_run_goes_on(file: Path, states: dict[str, Any], number: int) -> None:
    """A process that is interrupted in its second training is gone on with: the result of one that was not."""
    changes = {
        "reservoir.vary": {"nodes": [8, 12]},
        "training.gradient.epochs": 12,
        "training.gradient.shard_epochs": 3,
        "training.gradient.checkpoint_steps": 50,
        **states,
    }
    whole = Experiment.from_file(file, environment={}, set=changes).run()
    parent = file.parent / "interrupted"
    arguments = [f"--set={key}={json.dumps(value)}" for key, value in changes.items()]
    arguments += [f"--set=run.folder={parent}"]
    process = started("run", file, *arguments, stdout=None, env={**os.environ, "OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 120
    while not list(parent.glob("*/training/001/checkpoint.safetensors")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 128 + number, said
    folder = next(parent.iterdir())
    assert f"--set run.resume={folder}" in said
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "interrupted"
    assert metrics["problem"] == ("interrupted by Ctrl-C" if number == signal.SIGINT else "terminated")
    assert [row["label"] for row in metrics["rows"]] == ["ESN(8) linear"]
    changes["run.resume"] = str(folder)
    with pytest.raises(ConfigurationError, match="was begun with reservoir") as refused:
        Experiment.from_file(file, environment={}, set={**changes, "reservoir.seed": 3}).run()
    # The same command would be refused again.
    assert not getattr(refused.value, "__notes__", [])
    done = Experiment.from_file(file, environment={}, set=changes).run()
    assert done.folder == folder
    for one, other in zip(done.rows, whole.rows, strict=True):
        assert one.evaluation.metrics == pytest.approx(other.evaluation.metrics, rel=1e-6)
    for row in ("000", "001"):
        weights = [load_file(result.folder / f"readout/{row}.safetensors") for result in (done, whole)]
        for name, kept in weights[1].items():
            torch.testing.assert_close(weights[0][name], kept, rtol=1e-4, atol=1e-6)
