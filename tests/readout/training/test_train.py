from __future__ import annotations

import csv
import json
import math
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_case import VOCABULARY, SmallModel, digest, facts, options, text

from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.interrupts import StopRequests, stop_if_asked
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.seeds import generator
from reservoir_hw.readout.training import (
    NotFinite,
    Progress,
    TrainingOptions,
    load_weights,
    save_weights,
    train,
)

TRAIN, VALID = text(3000), text(500, "valid")


class Bigram:
    """Logits are the row of a matrix: no module, but it has what a training needs."""

    def __init__(self, scale: float = 0.0) -> None:
        drawn = generator(1, "bigram").standard_normal((VOCABULARY, VOCABULARY)) * scale
        self.matrix = nn.Parameter(torch.from_numpy(drawn))
        self.seen: list[Tensor] = []

    def parameters(self) -> Iterator[nn.Parameter]:
        yield self.matrix

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        self.seen.append(tokens)
        return nn.functional.cross_entropy(self.matrix[tokens].flatten(0, 1), targets.flatten(), ignore_index=-1)


def bigram_reference(start: np.ndarray, given: TrainingOptions, steps: int) -> tuple[np.ndarray, list[float]]:
    """The same training in float64 numpy: gradient of softmax and cross-entropy, clipping, schedule, AdamW."""
    matrix, first, second = start.copy(), np.zeros_like(start), np.zeros_like(start)
    windows = (len(TRAIN) - 1) // given.context
    per_step = given.batch * given.accumulate
    order = np.concatenate([generator(given.seed, f"windows epoch {e}").permutation(windows) for e in range(9)])
    losses = []
    for step in range(steps):
        starts = order[step * per_step : (step + 1) * per_step] * given.context
        tokens = np.concatenate([TRAIN[s : s + given.context] for s in starts])
        targets = np.concatenate([TRAIN[s + 1 : s + 1 + given.context] for s in starts])
        logits = matrix[tokens]
        probability = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses.append(-np.log(probability[np.arange(len(targets)), targets]).mean())
        probability[np.arange(len(targets)), targets] -= 1
        gradient = np.zeros_like(matrix)
        np.add.at(gradient, tokens, probability / len(targets))
        norm = np.sqrt((gradient**2).sum())
        if given.clip is not None and norm > given.clip:
            gradient *= given.clip / (norm + 1e-6)
        rate = given.learning_rate * given.rate_factor(step, steps)
        # Loshchilov & Hutter 2019, algorithm 2.
        beta1, beta2 = given.betas
        matrix *= 1 - rate * given.weight_decay
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        corrected = first / (1 - beta1 ** (step + 1)), second / (1 - beta2 ** (step + 1))
        matrix -= rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    return matrix, losses


def test_equals_a_float64_reference() -> None:
    given = options(weight_decay=0.3, betas=(0.8, 0.95), clip=0.05, log_steps=1, steps=25)
    model = Bigram(scale=0.5)
    expected, losses = bigram_reference(model.matrix.detach().numpy().copy(), given, 25)
    result = train(model, TRAIN, options=given)
    np.testing.assert_allclose(result.losses, losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(model.matrix.detach().numpy(), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_repeats_itself_and_leaves_random_numbers_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, second, other = SmallModel(), SmallModel(), SmallModel()
    a = train(first, TRAIN, VALID, options=options())
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    b = train(second, TRAIN, VALID, options=options())
    assert facts(first, a) == facts(second, b)
    train(other, TRAIN, VALID, options=options(seed=1))
    assert digest(other) != digest(first)


def test_evaluation_is_the_mean_over_all_windows() -> None:
    model = SmallModel(dropout=0.5)
    # 500 tokens make 31 windows: the last batch is not full.
    result = train(model, TRAIN, VALID, options=options(steps=3, evaluation_steps=None))
    assert result.validation_losses[:, 0].tolist() == [3]
    tokens = torch.from_numpy(VALID[: 31 * 16].astype(np.int64)).view(31, 16)
    targets = torch.from_numpy(VALID[1 : 31 * 16 + 1].astype(np.int64)).view(31, 16)
    assert model.training
    model.eval()
    assert result.best_loss == pytest.approx(float(model.loss(tokens, targets).detach()), abs=1e-6)
    fewer = train(SmallModel(), TRAIN, VALID, options=options(steps=1, evaluation_windows=5))
    assert fewer.best_loss is not None


@pytest.mark.slow
def test_stops_early_and_keeps_the_best(tmp_path: Path) -> None:
    given = options(steps=400, evaluation_steps=5, patience=2, learning_rate=0.2, keep="best", final_rate=1.0)
    for folder in (None, tmp_path / "run"):
        model = SmallModel(width=40)
        result = train(model, text(300), VALID, options=given, folder=folder)
        assert result.stopped_early
        assert result.steps < 400
        losses = result.validation_losses
        assert result.best_loss == losses[:, 1].min()
        assert result.best_step is not None
        assert result.best_step == losses[losses[:, 1].argmin(), 0]
        assert result.best_step is not None
        assert result.steps == result.best_step + 2 * 5
        again = train(model, text(300), VALID, options=options(steps=1, learning_rate=1e-30))
        assert again.best_loss == pytest.approx(result.best_loss, abs=1e-6)
    assert result.best is not None
    fresh = SmallModel(width=40)
    assert load_weights(fresh, result.best) == {"step": result.best_step, "validation_loss": result.best_loss}
    assert digest(fresh) == digest(model)
    # It is over: the same call does nothing more.
    resumed = train(SmallModel(width=40), text(300), VALID, options=given, folder=tmp_path / "run")
    assert resumed.stopped_early
    assert (resumed.steps, resumed.tokens_per_s) == (result.steps, 0.0)
    assert resumed.losses.tolist() == result.losses.tolist()


@pytest.mark.parametrize("damage", ["cut", pytest.param("gone", marks=pytest.mark.slow)])
def test_best_weights_that_are_lost(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = options(steps=400, evaluation_steps=5, patience=2, learning_rate=0.2, keep="best", final_rate=1.0)
    result = train(SmallModel(width=40), text(300), VALID, options=given, folder=tmp_path)
    assert result.best is not None
    if damage == "gone":
        result.best.unlink()
    else:
        result.best.write_bytes(result.best.read_bytes()[:-9])
    # Nothing is left to do, and the weights in the end were those.
    assert result.weights is not None
    kept = result.weights.read_bytes()
    with pytest.raises(ConfigurationError, match=r"best\.safetensors"):
        train(SmallModel(width=40), text(300), VALID, options=given, folder=tmp_path)
    assert result.weights.read_bytes() == kept
    assert "are lost" not in caplog.text
    # With more patience the first evaluation is the best so far.
    more = given.model_copy(update={"patience": 3})
    later = train(SmallModel(width=40), text(300), VALID, options=more, folder=tmp_path)
    assert f"the weights of the best step, {result.best_step}, are lost" in caplog.text
    assert later.best_step is not None
    assert later.best_step > result.steps
    assert later.best is not None
    assert load_weights(SmallModel(width=40), later.best)["step"] == later.best_step


@pytest.mark.slow
def test_more_patience_goes_on_after_an_early_stop(tmp_path: Path) -> None:
    """As if there had been that much from the beginning; with less it stops at once."""
    # With a constant rate, the number of steps decides about nothing before them.
    given = options(steps=400, evaluation_steps=5, patience=2, learning_rate=0.2, warmup=0.0, hold=0.0, final_rate=1.0)
    stopped = train(SmallModel(width=40), text(300), VALID, options=given, folder=tmp_path)
    assert stopped.stopped_early
    for patience, steps in ((4, 400), (None, stopped.steps + 20)):
        patient = given.model_copy(update={"patience": patience, "steps": steps})
        model, reference = SmallModel(width=40), SmallModel(width=40)
        result = train(model, text(300), VALID, options=patient, folder=tmp_path)
        expected = train(reference, text(300), VALID, options=patient)
        assert stopped.steps < result.steps == expected.steps
        assert result.stopped_early == expected.stopped_early == (patience is not None)
        assert facts(model, result) == facts(reference, expected)
    again = train(SmallModel(width=40), text(300), VALID, options=given, folder=tmp_path)
    assert again.stopped_early
    assert again.steps == result.steps


@pytest.mark.slow
def test_folder(pictures: None, tmp_path: Path) -> None:
    rows: list[Progress] = []
    model = SmallModel()
    result = train(model, TRAIN, VALID, options=options(), folder=tmp_path / "deep" / "run", progress=rows.append)
    folder = tmp_path / "deep" / "run"
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.safetensors",
        "checkpoint.safetensors",
        "log.csv",
        "loss.png",
        "training.json",
        "weights.safetensors",
    ]
    with open(folder / "log.csv", newline="") as file:
        table = list(csv.DictReader(file))
    # Every third step, every seventh with an evaluation, and the last.
    assert [int(row["step"]) for row in table] == [3, 6, 7, 9, 12, 14, 15, 18, 21, 24, 27, 28, 30]
    assert [float(row["loss"]) for row in table] == result.losses.tolist()
    assert [row["step"] for row in table if row["validation_loss"]] == ["7", "14", "21", "28", "30"]
    assert [int(row["tokens"]) for row in table] == [int(row["step"]) * 2 * 8 * 16 for row in table]
    assert [now.row for now in rows] == result.history
    assert rows[-1].seconds_left == 0
    assert "step 30 of 30: loss" in str(rows[-1])
    assert "tokens/s" in str(rows[0])
    assert result.tokens_per_s > 0
    told = json.loads((folder / "training.json").read_text())
    assert told["parameters"] == {"trained": 1235, "all": 1235}
    assert told["configuration"]["training"]["batch"] == 8
    fresh = SmallModel(seed=5)
    assert result.weights is not None
    load_weights(fresh, result.weights)
    assert digest(fresh) == digest(model)
    assert (folder / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


class Diverging(SmallModel):
    """Gives something that is no number for one token."""

    def __init__(self, value: float = math.nan) -> None:
        super().__init__(dropout=0.0)
        self.value = value

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        loss = super().loss(tokens, targets)
        return loss * self.value if bool((tokens == 10).any()) else loss


def corpus_with_trouble_in_window(window: int) -> np.ndarray:
    corpus = text(3000) % 10
    corpus[window * 16 + 3] = 10
    return corpus


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_loss_that_is_not_finite(tmp_path: Path, value: float) -> None:
    windows = generator(0, "windows epoch 0").permutation(2999 // 16)
    corpus = corpus_with_trouble_in_window(int(windows[7 * 16 + 5]))
    with pytest.raises(NotFinite, match=r"step 7: the loss is (nan|inf)\. .*lower learning_rate") as caught:
        train(Diverging(value), corpus, options=options(), folder=tmp_path)
    assert caught.value.step == 7
    assert isinstance(caught.value, FloatingPointError)
    assert "the weights before it are in" in str(caught.value)
    with pytest.raises(NotFinite, match=r"step 7.*no checkpoint was written before"):
        train(Diverging(value), corpus, options=options(steps=20))
    with pytest.raises(NotFinite, match=r"step 6: the validation loss after it is (nan|inf)"):
        train(Diverging(value), text(3000) % 10, corpus_with_trouble_in_window(7)[:500], options=options())


def test_other_numbers_that_are_not_finite() -> None:
    class Root(Bigram):
        def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
            # √x has no finite slope at 0, where the matrix begins.
            return super().loss(tokens, targets) + self.matrix.sqrt().sum()

    root, model = Root(), SmallModel()
    with pytest.raises(NotFinite, match=r"step 0: a gradient is (nan|inf)"):
        train(root, TRAIN, options=options())
    assert not root.matrix.any()
    with torch.no_grad():
        model.norm.weight[2] = math.nan
    with pytest.raises(InputRangeError, match=r"step 0: features at .* nan"):
        train(model, TRAIN, options=options())


def test_ctrl_c_in_a_step_that_fails(tmp_path: Path) -> None:
    """The failure is told, and so is what was asked for."""

    class Failing(SmallModel):
        def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
            signal.raise_signal(number)
            return super().loss(tokens, targets) * math.nan

    for number, end in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with pytest.raises(NotFinite, match="step 0") as caught:
            train(Failing(dropout=0), TRAIN, options=options(accumulate=1), folder=tmp_path)
        assert caught.value.__notes__ == [f"{number.name} had asked to stop after the step that failed"]
        with pytest.raises(end) as stopped:
            stop_if_asked(caught.value)
        assert stopped.value.__cause__ is caught.value
        stop_if_asked(ValueError("nobody asked"))


def test_a_signal_after_the_last_step_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), StopRequests():
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_gradients_that_somebody_left(tmp_path: Path) -> None:
    expected = train(SmallModel(), TRAIN, options=options()).losses
    model = SmallModel()
    tokens = torch.arange(11)[None]
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    assert train(model, TRAIN, options=options()).losses.tolist() == expected.tolist()
    corpus = corpus_with_trouble_in_window(int(generator(0, "windows epoch 0").permutation(2999 // 16)[0]))
    model = Diverging()
    before = digest(model)
    with pytest.raises(NotFinite, match="step 0"):
        train(model, corpus, options=options())
    assert digest(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    train(model, text(3000) % 10, options=options())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_evaluation_stops(tmp_path: Path, number: int) -> None:
    class Interrupted(SmallModel):
        asked = False

        def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
            if not self.training and not self.asked:
                self.asked = True
                signal.raise_signal(number)
            return super().loss(tokens, targets)

    given = options(steps=6, evaluation_steps=None)
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
        train(Interrupted(), TRAIN, VALID, options=given, folder=tmp_path)
    model, whole = SmallModel(seed=3), SmallModel()
    resumed = train(model, TRAIN, VALID, options=given, folder=tmp_path)
    assert facts(model, resumed) == facts(whole, train(whole, TRAIN, VALID, options=given))


@pytest.mark.slow
def test_the_best_weights_are_those_that_are_told_of(tmp_path: Path) -> None:
    """After a divergence, with a learning rate at which nothing better comes."""
    given = options(steps=30, checkpoint_steps=30, evaluation_steps=4, keep="best", final_rate=1.0, warmup=0.0)

    class Diverges(SmallModel):
        calls = 0

        def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
            self.calls += self.training
            loss = super().loss(tokens, targets)
            return loss * math.nan if self.calls > 2 * 14 else loss

    with pytest.raises(NotFinite, match="step 14"):
        train(Diverges(), TRAIN, VALID, options=given, folder=tmp_path)
    wild = given.model_copy(update={"learning_rate": 3.0})
    model = SmallModel()
    result = train(model, TRAIN, VALID, options=wild, folder=tmp_path)
    assert result.best is not None
    assert load_weights(SmallModel(), result.best) == {"step": 12, "validation_loss": result.best_loss}
    assert result.best_step == 12
    again = train(model, TRAIN, VALID, options=options(steps=1, learning_rate=1e-30))
    assert again.best_loss == pytest.approx(result.best_loss, abs=1e-6)


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    train(SmallModel(), TRAIN, options=options(steps=5), folder=tmp_path)
    checkpoint = tmp_path / "checkpoint.safetensors"
    flipped = bytearray(checkpoint.read_bytes())
    flipped[-20] ^= 1
    checkpoint.write_bytes(flipped)
    with pytest.raises(ConfigurationError, match=r"checkpoint\.safetensors is damaged: .* SHA-256"):
        train(SmallModel(), TRAIN, options=options(), folder=tmp_path)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    with pytest.raises(ConfigurationError, match=r"checkpoint\.safetensors cannot be read"):
        train(SmallModel(), TRAIN, options=options(), folder=tmp_path)
    with pytest.raises(ConfigurationError, match="there is no file"):
        load_weights(SmallModel(), tmp_path / "none")
    save_weights(SmallModel(), tmp_path / "w", note="mine")
    assert load_weights(SmallModel(), tmp_path / "w") == {"note": "mine"}
    (tmp_path / "w").replace(checkpoint)
    with pytest.raises(ConfigurationError, match="but no checkpoint: it names its format 'file of weights'"):
        train(SmallModel(), TRAIN, options=options(), folder=tmp_path)
    checkpoint.unlink()
    (tmp_path / "log.csv").write_text("step,loss\na,b\n")
    with pytest.raises(ConfigurationError, match="is not the log of a training"):
        train(SmallModel(), TRAIN, options=options(), folder=tmp_path)


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    save_weights(nn.Linear(2, 2), tmp_path / "w", note="before")
    before = (tmp_path / "w").read_bytes()
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, largest[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failed:
            save_weights(nn.Linear(100, 100), tmp_path / "w", note="after")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, largest)
    assert failed.value.strerror == f"cannot write {tmp_path / 'w'}: File too large"
    assert {file.name for file in tmp_path.iterdir()} == {"w"}
    assert (tmp_path / "w").read_bytes() == before


def test_folder_that_cannot_be_used(tmp_path: Path) -> None:
    lock = HostLocks([f"training {tmp_path.resolve()}"])
    lock.acquire()
    try:
        with pytest.raises(ConfigurationError, match="belongs to a training that is running"):
            train(SmallModel(), TRAIN, options=options(), folder=tmp_path)
    finally:
        lock.release()
