"""What every language model shares: checked tokens, the loss, and the generation of text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError, StateLost
from reservoir_hw.readout import EsnLM, LinearReadout, TokenModel, dense_esn_lm
from reservoir_hw.readout.baselines.recurrent import RecurrentLM
from reservoir_hw.readout.models import token_model as module
from reservoir_hw.readout.models.token_model import log_probabilities
from reservoir_hw.readout.sampling import Sampler

VOCABULARY = 7
PROBABILITIES = np.array([0.05, 0.30, 0.02, 0.25, 0.18, 0.20])


class Chain(TokenModel):
    """A model with known probabilities: token i is followed by j with the probability in row i of a matrix.

    Remembers how it was driven.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__(len(matrix))
        self.rows = nn.Embedding.from_pretrained(torch.tensor(np.log(matrix)))
        self.noise = nn.Dropout(0.9)
        self.readout = nn.Identity()
        self.calls: list[Any] = []

    def begin(self, batch: int = 1) -> None:
        self.calls.append(batch)

    def advance(self, tokens: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.calls.append(tokens.tolist())
        return self.noise(self.rows(tokens))


def chain() -> Chain:
    matrix = np.random.default_rng(0).dirichlet(np.ones(6), 6)
    matrix[4] = PROBABILITIES
    return Chain(matrix)


def esn(**options: Any) -> EsnLM:
    return dense_esn_lm(12, VOCABULARY, train_input=True, seed=1, **options)


def tokens(*shape: int) -> Tensor:
    return torch.tensor(np.random.default_rng(3).integers(0, VOCABULARY, shape))


# ---- tokens and loss


@pytest.mark.parametrize("bad", [VOCABULARY, -1, 10**6])
@pytest.mark.parametrize("use", ["features", "forward", "loss"])
def test_a_token_outside_the_vocabulary(bad: int, use: str) -> None:
    model, given = esn(), tokens(2, 5)
    given[1, 3] = bad
    arguments = (given, tokens(2, 5)) if use == "loss" else (given,)
    with pytest.raises(InputRangeError, match=rf"token {bad} at \(text, position\) = \(1, 3\).*vocabulary of 7"):
        getattr(model, use)(*arguments)


def test_a_target_outside_the_vocabulary() -> None:
    targets = tokens(2, 5)
    targets[0, 4] = VOCABULARY
    with pytest.raises(InputRangeError, match=r"targets: token 7 at \(text, position\) = \(0, 4\)"):
        esn().loss(tokens(2, 5), targets)
    targets[0, 4] = -2
    with pytest.raises(InputRangeError, match="token -2"):
        esn().loss(tokens(2, 5), targets)


def test_shapes_and_types_of_tokens() -> None:
    model = esn()
    with pytest.raises(ShapeError, match=r"tokens must be a tensor \(batch, time\)"):
        model.features(tokens(5))
    with pytest.raises(ShapeError, match="whole numbers"):
        model.features(tokens(2, 5).float())
    with pytest.raises(ShapeError, match="same shape"):
        model.loss(tokens(2, 5), tokens(2, 4))
    assert model.features(tokens(2, 5).to(torch.int32)).shape == (2, 5, 12)


def test_nan_weights_are_one_clear_error() -> None:
    model = esn()
    with torch.no_grad():
        model.W_values[0, 0] = float("nan")
    with pytest.raises(InputRangeError, match="not finite"):
        model.loss(tokens(2, 5), tokens(2, 5))
    with pytest.raises(InputRangeError, match="logits of the next token are not finite"):
        list(model.generate([1, 2, 3], 2))


def test_what_is_trainable_upstream() -> None:
    assert esn().trainable_upstream
    assert not dense_esn_lm(12, VOCABULARY, train_input=False, seed=1).trainable_upstream
    tied = dense_esn_lm(12, VOCABULARY, train_input=True, seed=1)
    assert isinstance(tied.readout, LinearReadout)
    assert isinstance(tied.embedding, nn.Embedding)
    tied.readout.weight = tied.embedding.weight
    assert tied.trainable_upstream
    assert tied.reservoir_layers == []


# ---- sampling


def kept(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> dict[int, float]:
    logits = torch.tensor(np.log(PROBABILITIES)) + 3.0
    probabilities, numbers = Sampler(temperature, top_k, top_p, 0).probabilities(logits)
    return dict(zip(numbers.tolist(), probabilities.tolist(), strict=True))


def test_temperature_is_a_power_of_the_probabilities() -> None:
    for temperature in (0.5, 2.0):
        power = PROBABILITIES ** (1 / temperature)
        assert kept(temperature) == pytest.approx(dict(enumerate(power / power.sum())))
    assert kept(0.0) == {1: 1.0}
    assert kept(1e-300) == pytest.approx({1: 1.0, 0: 0, 2: 0, 3: 0, 4: 0, 5: 0})


def test_limits_keep_the_most_likely() -> None:
    assert kept() == pytest.approx(dict(enumerate(PROBABILITIES)))
    assert kept(top_k=1) == {1: 1.0}
    assert kept(top_k=3) == pytest.approx({1: 0.30 / 0.75, 3: 0.25 / 0.75, 5: 0.20 / 0.75})
    assert len(kept(top_k=100)) == 6
    assert kept(top_p=0.29) == {1: 1.0}
    assert kept(top_p=0.31) == pytest.approx({1: 0.30 / 0.55, 3: 0.25 / 0.55})
    assert set(kept(top_p=0.56)) == {1, 3, 5}
    assert set(kept(top_p=0.96)) == {0, 1, 3, 4, 5}
    assert set(kept(top_p=1.0)) == set(range(6))
    # Of the three that top_k leaves, 0.4 + 0.333 reaches 0.7; of all six 0.3 + 0.25 does not.
    assert set(kept(top_k=3, top_p=0.7)) == {1, 3}
    assert set(kept(top_p=0.7)) == {1, 3, 5}


@pytest.mark.parametrize("limits", [{}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 0.5}])
def test_tokens_are_drawn_with_these_probabilities(limits: dict[str, Any]) -> None:
    model, draws, truth = chain(), 3000, kept(**limits)
    sampler = Sampler(limits.get("temperature", 1.0), limits.get("top_k"), limits.get("top_p"), 11)
    logits = model.rows.weight[4]
    counts = np.bincount([sampler(logits) for _ in range(draws)], minlength=6)
    expected = np.array([truth.get(token, 0.0) for token in range(6)]) * draws
    assert not counts[expected == 0].any()
    possible = expected > 0
    chi2 = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    # The 99.9 % point for the five degrees of freedom at most.
    assert chi2 < 20.5


# ---- generation


def test_the_prompt_is_one_advance_then_each_token_one_of_its_own() -> None:
    model = chain()
    text = list(model.generate([1, 2, 3], 4, seed=0))
    assert model.calls == [1, [[1, 2, 3]], *([[token]] for token in text[:-1])]


def test_a_token_is_yielded_before_the_next_is_computed() -> None:
    model = chain()
    stream = model.generate([1, 2], 1000)
    assert model.calls == []
    next(stream)
    assert model.calls == [1, [[1, 2]]]


def test_the_same_seed_gives_the_same_text() -> None:
    model = esn()
    prompts: list[Any] = [[1, 2, 3], np.array([1, 2, 3], np.uint16), torch.tensor([1, 2, 3])]
    seeds = zip(prompts, (5, 5, 6), strict=True)
    texts = [list(model.generate(prompt, 30, seed=seed, temperature=1.5)) for prompt, seed in seeds]
    assert texts[0] == texts[1] != texts[2]
    assert all(0 <= token < VOCABULARY for text in texts for token in text)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert list(model.generate([1, 2, 3], 30, seed=5, temperature=1.5)) == texts[0]
    assert torch.equal(torch.get_rng_state(), state)


def test_greedy_text_is_the_argmax_of_the_whole_sequence() -> None:
    model, text = esn().double(), [3, 1]
    generated = list(model.generate(text, 12, temperature=0))
    model.eval()
    for token in generated:
        assert token == int(model(torch.tensor([text]))[0, -1].argmax())
        text.append(token)


def test_the_mode_of_every_part_is_left_as_it_was() -> None:
    model = esn(dropout=0.5)
    model.train()
    model.readout.eval()
    stream = model.generate([1], 3, temperature=0)
    texts = []
    for token in stream:
        texts.append(token)
        assert (model.training, model.dropout.training, model.readout.training) == (True, True, False)
        assert torch.is_grad_enabled()
    model.eval()
    assert list(model.generate([1], 3, temperature=0)) == texts


def test_another_use_of_the_model_ends_a_text() -> None:
    for use in (lambda m: list(m.generate([1], 2)), lambda m: m.features(tokens(1, 4))):
        model = esn()
        stream = model.generate([1, 2], 5)
        next(stream)
        use(model)
        with pytest.raises(StateLost, match="used for something else"):
            next(stream)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"temperature": -0.1}, ConfigurationError, "temperature"),
        ({"temperature": float("nan")}, ConfigurationError, "temperature"),
        ({"temperature": "hot"}, ConfigurationError, "temperature"),
        ({"top_k": 0}, ConfigurationError, "top_k"),
        ({"top_k": 2.5}, ConfigurationError, "top_k"),
        ({"top_p": 0.0}, ConfigurationError, "top_p"),
        ({"top_p": 1.1}, ConfigurationError, "top_p"),
        ({"seed": -1}, ConfigurationError, "seed"),
        ({"max_tokens": 0}, ConfigurationError, "max_tokens"),
        ({"prompt": []}, ShapeError, "prompt is empty"),
        ({"prompt": [[1, 2]]}, ShapeError, "prompt must be one sequence"),
        ({"prompt": "ab"}, ShapeError, "prompt must be a sequence of tokens"),
        ({"prompt": [1.5]}, ShapeError, "prompt must be a sequence of tokens"),
        ({"prompt": [1, VOCABULARY]}, InputRangeError, r"prompt: token 7 .* \(0, 1\)"),
    ],
)
def test_bad_arguments_are_refused_at_once(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        esn().generate(**{"prompt": [1, 2], "max_tokens": 3, **changes})


def test_sentences_side_by_side_have_the_probabilities_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = RecurrentLM(9, 5, embedding=4).double()
    draw = np.random.default_rng(0)
    sentences = [draw.integers(9, size=length) for length in (2, 7, 3, 7, 1, 12)]
    alone = []
    for sentence in sentences:
        tokens = torch.from_numpy(sentence)[None]
        levels = model(tokens[:, :-1]).log_softmax(-1)[0].detach()
        alone.append(sum(float(levels[t, token]) for t, token in enumerate(sentence[1:])))
    read: list[int] = []
    for most in (1 << 24, 60):
        monkeypatch.setattr(module, "_LOGITS", most)
        np.testing.assert_allclose(log_probabilities(model, sentences, read.append), alone, atol=1e-12)
    assert sum(read) == 2 * sum(map(len, sentences))
