"""Every training goes on bit for bit where it died, and refuses the checkpoint of another one."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_case import VOCABULARY, SmallModel, digest, facts, options, text
from training_models import (
    Death,
    Deep,
    InBatches,
    Ups,
    by_examples,
    classifier,
    dies_at,
    epochs,
    language_model,
    network,
)

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout import LinearReadout
from reservoir_hw.readout.baselines.recurrent import RecurrentLM
from reservoir_hw.readout.training import (
    HarvestedShards,
    Shard,
    TrainingResult,
    load_weights,
    save_weights,
    train,
)

TRAIN, VALID = text(3000), text(500, "valid")
DRAWN = np.random.default_rng(0)
DOCUMENTS = [DRAWN.integers(7, size=DRAWN.integers(2, 12)) for _ in range(27)]
Trained = tuple[nn.Module, TrainingResult]


class Frozen(SmallModel):
    """With something that is not trained, something that moves by itself, and a number that is no weight."""

    table: Tensor

    def __init__(self, table: float = 1.0, gain: float = 1.0, trained: bool = True) -> None:
        super().__init__(dropout=0.0)
        self.gain = gain
        self.register_buffer("table", torch.tensor([1.0, table]))
        self.register_buffer("seen", torch.zeros(()))
        self.norm.requires_grad_(trained)

    def constants(self) -> dict[str, Any]:
        return {"gain": self.gain}

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        return super().loss(tokens, targets) * self.gain


def gru(seed: int) -> RecurrentLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return RecurrentLM(7, cell="gru", hidden=5)


def on_corpus(
    folder: Path | None, progress: Any = None, model: Any = None, corpus: Any = TRAIN, valid: Any = VALID, **keys: Any
) -> Trained:
    model = SmallModel(seed=0 if progress or folder is None else 9) if model is None else model
    return model, train(model, corpus, valid, options=options(**keys), folder=folder, progress=progress)


def on_documents(folder: Path | None, progress: Any = None, documents: Any = DOCUMENTS[:21]) -> Trained:
    given = options(context=11, batch=4, accumulate=2, steps=12, evaluation_steps=4, log_steps=5, checkpoint_steps=1)
    model = gru(3 if progress or folder is None else 4)
    return model, train(model, documents, DOCUMENTS[21:], options=given, folder=folder, progress=progress)


def on_examples(folder: Path | None, progress: Any = None, count: int = 90, made: Any = Ups) -> Trained:
    model = classifier(0 if progress or folder is None else 9)
    data, valid = made(count), made(33, "valid")
    return model, train(model, data, valid, options=by_examples(), folder=folder, progress=progress)


def in_batches(folder: Path | None, progress: Any = None) -> Trained:
    model, result = on_examples(folder, progress, 81, lambda *given: InBatches(Ups(*given)))
    # 14 batches in each of 6 epochs, whatever the options say of their size.
    assert result.steps == 6 * 14
    return model, result


def on_harvested(
    folder: Path | None, progress: Any = None, shards: int = 3, valid: Any = VALID, noise: float = 0.0
) -> Trained:
    given = epochs(epochs=4, shard_epochs=2, checkpoint_steps=10, batch=20)
    with network(noise=noise) as device:
        model = language_model(device)
        kept = None if folder is None or noise else folder.parent / "states"
        data = HarvestedShards(model, TRAIN, options=given, shards=shards, folder=kept)
        held_out = HarvestedShards(model, valid, options=given, shards=1)
        result = train(model.readout, data, held_out, options=given, folder=folder, progress=progress)
        # What follows, such as a test, has the noise that follows.
        device.reset()
        model.register_buffer("after", torch.from_numpy(np.asarray(device.run(np.zeros((1, 5, 4))))))
    return model, result


def through(
    folder: Path | None, progress: Any = None, made: Any = language_model, noise: float = 0.1, **keys: Any
) -> Trained:
    """`train` drives the device in every step; where its noise is stands in the checkpoint."""
    seed = keys.pop("network", 0)
    with network(noise=noise, seed=seed) as device:
        model = made(device, **keys)
        given = options(checkpoint_steps=10, steps=24)
        return model, train(model, TRAIN, VALID, options=given, folder=folder, progress=progress)


def by_twin(folder: Path | None, progress: Any = None, seed: int = 3, made: Any = language_model) -> Trained:
    with network() as device, network(seed=seed, gradients=True) as twin:
        model = made(device, gradient="twin", twin=twin)
        return model, train(model, TRAIN, options=options(steps=3), folder=folder, progress=progress)


def drawn_shards() -> list[Shard]:
    drawn = np.random.default_rng(0)
    return [Shard(drawn.random((4, 16, 3), np.float32), drawn.integers(0, 2, (4, 16))) for _ in range(2)]


def on_shards(folder: Path | None, progress: Any = None, data: Any = None, valid: Any = None) -> Trained:
    model, given = LinearReadout(3, 2), epochs(epochs=None, steps=5)
    data, valid = data or drawn_shards(), valid or drawn_shards()
    return model, train(model, data, valid, options=given, folder=folder, progress=progress)


TRAININGS: dict[str, tuple[Callable[..., Trained], int]] = {
    "a corpus": (on_corpus, 18),
    "documents": (on_documents, 5),
    "examples": (on_examples, 30),
    "examples in batches": (in_batches, 30),
    "shards that are harvested": (on_harvested, 23),
    # Of 40 steps: in the first visit of a shard, and in the second.
    "noisy shards, first": (partial(on_harvested, noise=0.1, shards=2), 5),
    "noisy shards, second": (partial(on_harvested, noise=0.1, shards=2), 26),
    "a noisy device": (through, 15),
    "a noisy device in any attribute": (partial(through, made=Deep), 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    training, death = TRAININGS[name]
    expected = facts(*training(None))
    with pytest.raises(Death):
        training(tmp_path / "run", dies_at(death))
    assert facts(*training(tmp_path / "run")) == expected


def with_a_gate() -> nn.Module:
    model: Any = SmallModel()
    model.gate = nn.Linear(2, 2)
    return model


def without_a_bias() -> nn.Module:
    model = SmallModel()
    model.readout = nn.Linear(12, VOCABULARY, bias=False)
    return model


def changed(which: int, what: str) -> list[Shard]:
    """The last value of all is another."""
    shards = drawn_shards()
    array = getattr(shards[which], what)
    array[-1, -1] = 1 - array[-1, -1]
    return shards


LONG = np.tile(TRAIN, 20)
OTHER = LONG.copy()
OTHER[50_001] = (OTHER[50_001] + 1) % VOCABULARY
FROZEN = partial(on_corpus, valid=None, steps=5)
REFUSED: dict[str, tuple[Callable[[Path], Any], list[tuple[Callable[[Path], Any], str]]]] = {
    "a corpus": (
        lambda folder: on_corpus(folder, steps=5),
        [
            (lambda f: on_corpus(f, model=SmallModel(width=13)),
             r"checkpoint\.safetensors is of another model: its 'embedding\.weight' is \(11, 12\) of float32, this "
             r"model's \(11, 13\)"),
            (lambda f: on_corpus(f, model=with_a_gate()), r"it has no 'gate\.weight' \(2, 2\)"),
            (lambda f: on_corpus(f, model=without_a_bias()), r"has 'readout\.bias' \(11,\), which this model does not"),
            (lambda f: on_corpus(f, model=SmallModel().double()), r"float32, this model's .* of float64"),
            (lambda f: on_corpus(f, corpus=TRAIN[1:]), r"corpus_train 3000:.*, now it is 2999:.*resume=False"),
            (lambda f: on_corpus(f, batch=4), "was written with batch = 8, now it is 4"),
            (lambda f: on_corpus(f, corpus=TRAIN[1:]), r"name another folder, or begin anew"),
        ],
    ),
    "a long corpus": (
        lambda folder: on_corpus(folder, corpus=LONG, steps=2),
        [(lambda f: on_corpus(f, corpus=OTHER, steps=3), "was written with corpus_train 60000:")],
    ),
    "what is frozen": (
        lambda folder: FROZEN(folder, model=Frozen()),
        [
            (lambda f: FROZEN(f, model=Frozen(table=2.0), steps=9),
             r"another model: its 'table', which is frozen, has other values; .*resume=False"),
            (lambda f: FROZEN(f, model=Frozen(gain=0.5), steps=9), r"its model\.gain is 1\.0, this model's is 0\.5"),
            (lambda f: FROZEN(f, model=Frozen(trained=False), steps=9), r"'norm\.bias' is frozen now, and was not"),
        ],
    ),
    "documents": (on_documents, [(lambda f: on_documents(f, documents=DOCUMENTS[1:21]), "corpus_train")]),
    "examples": (on_examples, [(lambda f: on_examples(f, count=91), "was written with corpus_train")]),
    "harvested shards": (
        on_harvested,
        [
            (lambda f: on_harvested(f, shards=2), r"was written with corpus_train\.shards 3, now it is 2"),
            (lambda f: on_harvested(f, valid=VALID[::-1].copy()), r"was written with corpus_valid\.corpus 500:"),
        ],
    ),
    "shards": (
        on_shards,
        [
            *((lambda f, at=at: on_shards(f, None, changed(*at)), rf"was written with corpus_train\.shards\.{at[0]} ")
              for at in ((0, "states"), (1, "states"), (1, "targets"))),
            *((lambda f, at=at: on_shards(f, None, None, changed(*at)), rf"with corpus_valid\.shards\.{at[0]} ")
              for at in ((0, "states"), (1, "states"), (1, "targets"))),
            (lambda f: on_shards(f, None, drawn_shards()[:1]), r"was written with corpus_train\.shards "),
            (lambda f: on_shards(f, None, [Shard(np.asarray(one.states, float), one.targets)
                                           for one in drawn_shards()]), r"was written with corpus_train\.shards\.0 "),
        ],
    ),
    "a device": (
        through,
        [
            (lambda f: through(f, noise=0.2), "was written with reservoirs"),
            (lambda f: through(f, scale=0.1), r"another model: its layer\.scale is 1\.0, this model's is 0\.1"),
            (lambda f: through(f, seed=7), r"its 'embedding\.weight', which is frozen, has other values"),
        ],
    ),
    "a device in any attribute": (
        partial(through, made=Deep),
        [
            (lambda f: through(f, made=Deep, network=7), r"was written with reservoirs\.0 "),
            (lambda f: through(f, made=Deep, scale=0.5), r"its parts\.0\.film\.1\.scale is 1\.0"),
        ],
    ),
    "a twin": (by_twin, [(lambda f: by_twin(f, seed=4), r"was written with layers\.0\.twin ")]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_another_training_is_refused_and_leaves_the_folder_as_it_was(name: str, tmp_path: Path) -> None:
    first, others = REFUSED[name]
    folder = tmp_path / "run"
    first(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for other, message in others:
        with pytest.raises(ConfigurationError, match=message):
            other(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    if name == "a twin":
        # For use, it does not matter how the weights were found.
        with network() as device:
            load_weights(language_model(device), folder / "weights.safetensors")


def test_what_is_frozen_belongs_to_the_weights(tmp_path: Path) -> None:
    _, result = FROZEN(tmp_path, model=Frozen())
    assert result.weights is not None
    other = Frozen(table=2.0)
    load_weights(other, result.weights)
    assert other.table[1] == 1.0
    wrong = Frozen(gain=2.0)
    before = digest(wrong)
    with pytest.raises(ConfigurationError, match=r"weights\.safetensors is of another model: its model\.gain is 1\.0"):
        load_weights(wrong, result.weights)
    assert digest(wrong) == before
    # A fresh model and one that has moved go on alike: what moves by itself is no part of it.
    for start in (5, 9):
        moved = Frozen()
        assert train(moved, TRAIN, options=options(steps=start + 4), folder=tmp_path).steps == start + 4
        assert moved.seen == 2 * (start + 4)


def test_constants_that_cannot_be_kept(tmp_path: Path) -> None:
    """Known before the first step, not at the first checkpoint."""
    for constants, said in (
        (lambda: {"gain": torch.ones(2)}, "Object of type Tensor is not JSON serializable"),
        (lambda: {"gain": math.nan}, "Out of range float values"),
        (lambda scale: {"scale": scale}, r".* missing 1 required positional argument"),
    ):
        model: Any = Frozen()
        model.norm.constants = constants
        message = rf"constants\(\) of norm \(LayerNorm\) cannot be kept: {said}.*; let it give a mapping"
        with pytest.raises(ConfigurationError, match=message):
            train(model, TRAIN, options=options(steps=2), folder=tmp_path / "run")
        assert model.seen == 0
        assert not (tmp_path / "run" / "training.json").exists()
        with pytest.raises(ConfigurationError, match=message):
            save_weights(model, tmp_path / "weights")
    # A part of that name is no method.
    model = SmallModel()
    model.constants = nn.Linear(2, 2)
    assert train(model, TRAIN, options=options(steps=2), folder=tmp_path / "run").steps == 2
