"""Trainings that cannot be, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training_case import VOCABULARY, SmallModel, options, text
from training_models import epochs, language_model, network

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.readout import LAERC, LinearReadout, ReservoirLayer, dense_esn_lm
from reservoir_hw.readout.training import HarvestedShards, Shard, TrainingOptions, train
from reservoir_hw.readout.training.examples import Windows
from reservoir_hw.readout.training.optimizer import parameter_groups

TRAIN, VALID = text(3000), text(500, "valid")
# What belongs to AdamW and its schedule is left out.
PLAIN: dict[str, Any] = {"learning_rate": 1e-3, "warmup": 0.0, "hold": 0.0, "final_rate": 1.0}
DOCUMENTS = [np.arange(5) % 3, np.arange(9) % 7]


class Foreign:
    def parameters(self) -> Any:
        return [torch.zeros(2, requires_grad=True)]

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (tokens - targets).double().mean()


class Odd(torch.optim.SGD):
    """Keeps something that no checkpoint can hold."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["history"] = [1, 2]


def known(**keys: Any) -> SmallModel:
    """A model that tells its vocabulary."""
    model: Any = SmallModel(**keys)
    model.vocabulary = VOCABULARY
    return model


def at(corpus: Any, place: int, token: int) -> np.ndarray:
    changed = corpus.copy()
    changed[place] = token
    return changed


def on(corpus: Any, *valid: Any, model: Any = None, **changes: Any) -> Any:
    return train(model or known(), corpus, *valid, options=options(**changes))


def hooked(steps: int = 3, folder: Path | None = None, given: Any = PLAIN, **hooks: Any) -> Any:
    return train(SmallModel(), TRAIN, options=options(**given, steps=steps), folder=folder, **hooks)


def harvested(corpus: Any = TRAIN, made: Any = language_model, shard: int | None = None, **keys: Any) -> Any:
    with network() as device:
        shards = HarvestedShards(made(device), corpus, options=epochs(), **keys)
        return shards.harvest() if shard is None else shards[shard]


def full(*shape: int, target: int = 0) -> Shard:
    return Shard(torch.zeros(*shape), torch.full(shape[:2], target))


def on_states(shards: Any, *valid: Any, features: int = 4, **keys: Any) -> Any:
    given = {"steps": 2, "accelerator": "cpu", **keys}
    return train(LinearReadout(features, 3), shards, *valid, options=TrainingOptions(**given))


def laerc(device: Any) -> LAERC:
    return LAERC(VOCABULARY, 4, [ReservoirLayer(device)])


ONCE = DataLoader(TensorDataset(torch.zeros(1, 3)), batch_size=2, drop_last=True)
EMPTY = [(full(3, 0, 4), "shard 0 to learn from is empty: it has 3 sequences of 0 steps"),
         (full(0, 5, 4), "shard 0 to learn from is empty: it has 0 sequences of 5 steps")]  # fmt: skip
settings = TrainingOptions
Refused = tuple[Callable[[], Any], type[Exception], str]
REFUSED: list[Refused] = [
    (lambda: settings(), ConfigurationError, "either steps or epochs"),
    (lambda: settings(steps=1, epochs=1), ConfigurationError, "either steps or epochs"),
    (lambda: settings(steps=1, warmup=0.6, hold=0.6), ConfigurationError, "more than the whole"),
    (lambda: settings(steps=1, windows="random", stride=2), ConfigurationError, "stride belongs to consecutive"),
    (lambda: settings(steps=1, patience=2), ConfigurationError, "set evaluation_steps"),
    (lambda: settings(steps=0), ConfigurationError, "TrainingOptions: steps = 0: input should be greater than 0"),
    (lambda: settings(steps=1, rate=0.1), ConfigurationError, "unknown key 'rate'; .known: accelerator, "),  # type: ignore[call-arg]
    (lambda: settings(stesp=3), ConfigurationError, "unknown key 'stesp'; did you mean 'steps'"),  # type: ignore[call-arg]
    (lambda: settings(steps=1, precision="16-mixed"), ConfigurationError, "bf16-mixed"),  # type: ignore[arg-type]
    (lambda: settings(steps=1, learning_rate=float("inf")), ConfigurationError, "finite"),
    (lambda: settings.preset("gpt"), ConfigurationError, "no preset 'gpt'; there are: aerc"),
    (lambda: parameter_groups(nn.Linear(2, 2).requires_grad_(False), settings(steps=1)), ConfigurationError,
     "nothing to train"),
    (lambda: Windows([], 4, name="corpus_train"), ConfigurationError, "corpus_train is empty"),
    (lambda: Windows(np.arange(4), 4), ConfigurationError, "has 4 tokens; a window of context 4 takes 5"),
    (lambda: Windows(np.zeros((2, 9), int), 4), ShapeError, "one sequence of tokens"),
    (lambda: Windows(np.zeros(9), 4), ShapeError, r"whole numbers, not .* float64"),
    (lambda: on(np.array([], np.uint16)), ConfigurationError, "corpus_train is empty"),
    (lambda: on(TRAIN, VALID[:16]), ConfigurationError, "corpus_valid has 16 tokens; a window of context 16 takes 17"),
    (lambda: on(TRAIN.astype(float)), ShapeError, "corpus_train must be one sequence"),
    (lambda: on(at(TRAIN, 1234, 11)), InputRangeError,
     "corpus_train has token 11 at position 1234, outside the model's vocab"),
    (lambda: on(TRAIN, model=Foreign()), ConfigurationError, r"parameters\(\) of Foreign must give torch\.nn\.Param"),
    (lambda: on(TRAIN, model=SmallModel().requires_grad_(False)), ConfigurationError, "nothing to train"),
    (lambda: on([*DOCUMENTS, np.zeros(18, int)]), ConfigurationError,
     r"a document of 18 tokens; with context 16 .* set context to 17"),
    (lambda: on(DOCUMENTS, stride=2), ConfigurationError, "stride is 2, but documents are read whole"),
    (lambda: on([*DOCUMENTS, np.zeros(1, int)]), ConfigurationError, "a document of 1 tokens: a prediction needs two"),
    (lambda: on([DOCUMENTS[0], np.zeros(3)]), ShapeError, "document 1 of corpus_train"),
    (lambda: on([np.array([0, 1, 11])], batch=1), InputRangeError,
     "corpus_train has token 11 at position 2 of document 0"),
    (lambda: on(iter([(torch.zeros(2, 3), torch.zeros(2))])), ConfigurationError, "corpus_train can be read only once"),
    (lambda: on(ONCE), ConfigurationError, "corpus_train is empty"),
    (lambda: on([("a word", 1)]), ConfigurationError, "example 0 must be a tuple of arrays"),
    (lambda: hooked(optimizer=lambda parameters: None), ConfigurationError, r"optimizer\(parameters\) gave None"),
    (lambda: hooked(optimizer=lambda _: torch.optim.SGD([torch.zeros(1)], lr=1.0)), ConfigurationError,
     "without any parameter of the model"),
    (lambda: hooked(schedule=lambda step, steps: None), ConfigurationError, r"schedule\(0, 3\) gave None"),
    (lambda: hooked(schedule=lambda step, steps: -1.0), ConfigurationError,
     r"gave -1.0; a factor on the learning rate is a number from 0"),
    (lambda: hooked(evaluate=lambda model, step: 0.5), ConfigurationError, r"evaluate\(model, 3\) gave 0.5; a mapping"),
    (lambda: hooked(given={**PLAIN, "weight_decay": 0.1}, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
     ConfigurationError, r"options\.weight_decay has no effect beside optimizer="),
    (lambda: hooked(given={}, schedule=lambda step, steps: 1.0), ConfigurationError,
     r"options\.warmup has no effect beside schedule="),
    (lambda: harvested(made=laerc), ConfigurationError, r"cannot be computed beforehand: .*; use train\(\)"),
    (lambda: harvested(made=partial(language_model, trainable=True)), ConfigurationError, "cannot be computed before"),
    (lambda: harvested(made=lambda _: dense_esn_lm(9, VOCABULARY, train_input=True, seed=0)), ConfigurationError,
     r"cannot be computed beforehand: .*; use train\(\)"),
    (lambda: harvested(made=lambda _: dense_esn_lm(9, VOCABULARY, train_input=False, seed=0)), ConfigurationError,
     "dropout changes them in every step"),
    (lambda: harvested(shards=188), ConfigurationError, "187 sequences of 16 steps, which cannot make 188 shards"),
    (lambda: harvested(sequence=40), ConfigurationError, "a sequence of 40 steps must be a multiple of context 16"),
    (lambda: harvested(washout=16), ConfigurationError, "washout 16 must be less than the 16 steps"),
    (lambda: harvested(TRAIN[:0]), ConfigurationError, "corpus is empty"),
    (lambda: harvested(), ConfigurationError, "give a folder"),
    (lambda: harvested(at(TRAIN, 2000, 11), shards=3, shard=2, name="corpus_train"), InputRangeError,
     "corpus_train has token 11 at position 2000"),
    (lambda: on_states([full(3, 16, 4)], epochs=3, steps=None, shard_epochs=2), ConfigurationError,
     "epochs 3 must be a multiple of shard_epochs 2"),
    (lambda: on_states([]), ConfigurationError, "corpus_train is empty"),
    (lambda: on_states([full(3, 5, 4)], []), ConfigurationError, "corpus_valid is empty"),
    (lambda: on_states([full(3, 5, 4)], [full(3, 5, 4), full(0, 5, 4)]), ConfigurationError,
     "shard 1 to validate with is empty"),
    (lambda: on_states([full(3, 5, 4)], features=6), ShapeError,
     "the states of the shards have 4 features, the readout takes 6"),
    (lambda: on_states([full(3, 5, 4)], patience=1, evaluation_steps=1), ConfigurationError,
     "go by the loss of validation data, and there is none"),
    (lambda: on_states([full(3, 5, 4)], keep="best", evaluation_steps=1), ConfigurationError,
     "go by the loss of validation data, and there is none"),
    (lambda: Shard(np.zeros((3, 4)), np.zeros((3, 4), int)), ShapeError, r"not \(3, 4\) and \(3, 4\)"),
    (lambda: full(3, 4, 2, target=-1), ConfigurationError, "none of these counts"),
    *((partial(on_states, [shard]), ConfigurationError, message) for shard, message in EMPTY),
]  # fmt: skip
for wrong in (-1, 5):
    odd = Windows(np.array([0, 1, 2, 3, 4, 0, wrong, 1, 2], dtype=np.int32), 2, stride=1, vocabulary=5)
    odd.read(np.array([0, 3]))
    message = f"token {wrong} at position 6, outside the model's vocabulary of 5"
    REFUSED.append((partial(odd.read, np.array([0, 4])), InputRangeError, message))


@pytest.mark.parametrize(("use", "error", "message"), REFUSED)
def test_refused(use: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


def test_what_needs_a_folder_or_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Odd keeps 'history' as a list"):
        hooked(30, tmp_path / "odd", optimizer=lambda p: Odd(p, lr=0.1))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        hooked(folder=tmp_path / "file" / "run")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match="accelerator is cuda"):
        on(TRAIN, accelerator="cuda")
