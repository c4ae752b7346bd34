from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.readout import TokenModel
from reservoir_hw.readout.baselines.recurrent import SRN, STAGES, LogisticReadout, RecurrentLM, train_in_stages
from reservoir_hw.readout.baselines.transformer import CharTransformer, Gpt
from reservoir_hw.readout.training import TrainingOptions, train
from reservoir_hw.tasks.elman_grammar.task import ElmanGrammar

VOCABULARY = 11


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def text(batch: int = 3, steps: int = 20, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(vocabulary, (batch, steps))


def arrays(module: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def trained(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


MODELS: dict[str, Any] = {
    "lstm": lambda: RecurrentLM(VOCABULARY, 7, embedding=5, layers=2),
    "gru": lambda: RecurrentLM(VOCABULARY, 7, cell="gru"),
    "srn": lambda: SRN(VOCABULARY, 16),
    "srn softmax": lambda: SRN(VOCABULARY, 6, outputs="softmax", gradient="through"),
    "gpt": lambda: Gpt(VOCABULARY, width=16, layers=2, context=8),
    "transformer": lambda: CharTransformer(VOCABULARY, hidden=24, layers=2, context=8),
    "transformer without a mask": lambda: CharTransformer(VOCABULARY, hidden=24, layers=2, context=8, causal=False),
}

# ---- counts


@pytest.mark.parametrize(
    ("hidden", "heads", "layers", "count"),
    [(64, 4, 4, 15067), (72, 8, 8, 30299), (128, 8, 8, 45083), (356, 8, 8, 105275), (256, 16, 16, 155803)],
)
def test_transformers_have_the_parameters_of_the_paper(hidden: int, heads: int, layers: int, count: int) -> None:
    model = CharTransformer(59, hidden=hidden, heads=heads, layers=layers)
    assert trained(model) == sum(parameter.numel() for parameter in model.parameters()) == count
    V, d = 59, 16
    assert count == V * d + V * d + V + layers * (4 * (d * d + d) + 2 * d * hidden + hidden + d + 4 * d)


@pytest.mark.slow
def test_gpt_has_the_parameters_of_gpt2_and_its_equations() -> None:
    with torch.device("meta"):
        assert trained(Gpt(50257, width=768, layers=12, heads=12, context=1024)) == 124_439_808
    model = Gpt(VOCABULARY, width=12, layers=2, heads=3, context=9).double()
    assert trained(model) == 12 * VOCABULARY + 12 * 9 + 2 * (12 * 144 + 13 * 12) + 24
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    # Torch's own layer, in its other order, with a GELU that has no tanh in it.
    layers = [torch.nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "ab"]
    tokens = text(2, 9)
    x = model.embedding(tokens) + model.positions
    mask = torch.ones(9, 9, dtype=torch.bool).triu(1)
    for layer, block in zip(layers, model.blocks, strict=True):
        block.gelu = torch.nn.GELU()
        names = {
            "self_attn.in_proj_": "projected.", "self_attn.out_proj.": "attended.", "linear1.": "grow.",
            "linear2.": "shrink.", "norm1.": "norm_attention.", "norm2.": "norm_hidden.",
        }  # fmt: skip
        ours = block.state_dict()
        layer.double().load_state_dict(
            {f"{a}{k}": ours[f"{b}{k}"] for a, b in names.items() for k in ("weight", "bias")}
        )
        x = layer(x, src_mask=mask)
    expected = torch.nn.functional.layer_norm(x, (12,), model.norm.weight, model.norm.bias) @ model.embedding.weight.T
    assert (model(tokens) - expected).abs().max() < 1e-12


def test_counts_of_the_recurrent_models() -> None:
    V, E, N = VOCABULARY, 5, 7
    readout = N * V + V
    assert trained(RecurrentLM(V, N, embedding=E)) == V * E + 4 * (E * N + N * N + 2 * N) + readout
    assert trained(RecurrentLM(V, N, cell="gru")) == 3 * (V * N + N * N + 2 * N) + readout
    assert trained(SRN(24)) == 24 * 70 + 70 * 70 + 70 * 24 + 24 == 8284


# ---- equations


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def transformer(p: dict[str, np.ndarray], tokens: np.ndarray, heads: int, layers: int, mask: bool) -> np.ndarray:
    """Vaswani et al. 2017, an encoder with post-norm, one text (time,) at a time: logits (time, vocabulary)."""
    width, steps = p["embedding.weight"].shape[1], len(tokens)
    x = p["embedding.weight"][tokens].copy()
    for t in range(steps):
        for i in range(width // 2):
            x[t, 2 * i] += np.sin(t / 10000 ** (2 * i / width))
            x[t, 2 * i + 1] += np.cos(t / 10000 ** (2 * i / width))
    for number in range(layers):
        w = {name.removeprefix(f"layers.{number}."): a for name, a in p.items() if name.startswith(f"layers.{number}.")}
        joined = x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"]
        size, mixed = width // heads, np.zeros_like(x)
        for head in range(heads):
            q, k, v = (joined[:, part * width + head * size : part * width + (head + 1) * size] for part in range(3))
            for t in range(steps):
                seen = t + 1 if mask else steps
                score = np.exp(q[t] @ k[:seen].T / np.sqrt(size))
                mixed[t, head * size : (head + 1) * size] = score / score.sum() @ v[:seen]
        attended = mixed @ w["self_attn.out_proj.weight"].T + w["self_attn.out_proj.bias"]
        x = layer_norm(x + attended, w["norm1.weight"], w["norm1.bias"])
        inner = np.maximum(x @ w["linear1.weight"].T + w["linear1.bias"], 0)
        x = layer_norm(x + inner @ w["linear2.weight"].T + w["linear2.bias"], w["norm2.weight"], w["norm2.bias"])
    return x @ p["readout.weight"].T + p["readout.bias"]


@pytest.mark.parametrize(("heads", "causal"), [(1, True), (4, False)])
def test_transformer_equals_its_equations(causal: bool, heads: int) -> None:
    context = 8
    model = (
        CharTransformer(VOCABULARY, hidden=24, layers=3, heads=heads, context=context, causal=causal).double().eval()
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    tokens = text(2, 20)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            logits = model(tokens).detach().numpy()
        for row in range(2):
            for t in range(20):
                window = tokens[row, max(0, t + 1 - context) : t + 1].numpy()
                expected = transformer(arrays(model), window, heads, 3, causal)[-1]
                assert np.abs(logits[row, t] - expected).max() < 1e-6


def lstm_step(w: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    joined = x @ w["weight_ih"].T + h @ w["weight_hh"].T + w["bias_ih"] + w["bias_hh"]
    i, f, g, o = np.split(joined, 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru_step(w: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    ri, zi, ni = np.split(x @ w["weight_ih"].T + w["bias_ih"], 3, axis=1)
    rh, zh, nh = np.split(h @ w["weight_hh"].T + w["bias_hh"], 3, axis=1)
    z = sigmoid(zi + zh)
    return (1 - z) * np.tanh(ni + sigmoid(ri + rh) * nh) + z * h, c


@pytest.mark.parametrize(("cell", "step", "embedding"), [("lstm", lstm_step, 5), ("gru", gru_step, None)])
def test_recurrent_models_equal_their_equations(cell: Any, step: Any, embedding: int | None) -> None:
    model = RecurrentLM(VOCABULARY, 7, cell=cell, layers=2, embedding=embedding).double()
    tokens, p = text(), arrays(model)
    layer = np.eye(VOCABULARY)[tokens] if embedding is None else p["embedding.weight"][tokens]
    for number in range(2):
        w = {name: p[f"recurrence.{name}_l{number}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        h = c = np.zeros((3, 7))
        above = []
        for t in range(20):
            h, c = step(w, layer[:, t], h, c)
            above.append(h)
        layer = np.stack(above, 1)
    expected = layer @ p["readout.weight"].T + p["readout.bias"]
    assert np.abs(model(tokens).detach().numpy() - expected).max() < 1e-12


def srn(p: dict[str, np.ndarray], tokens: np.ndarray, given: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Hidden units and outputs of section 3.1; with `given` (batch, time, units) as the context layers."""
    words = np.eye(VOCABULARY)[tokens] - 0.5
    h, units = np.zeros((len(tokens), p["recurrence.weight_hh_l0"].shape[0])), []
    for t in range(tokens.shape[1]):
        context = h if given is None or t == 0 else given[:, t - 1]
        h = np.tanh(words[:, t] @ p["recurrence.weight_ih_l0"].T + context @ p["recurrence.weight_hh_l0"].T)
        units.append(h)
    hidden = np.stack(units, 1)
    return hidden, sigmoid(hidden @ p["readout.weight"].T + p["readout.bias"])


def logistic_cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Mean over the counted targets of the sum over outputs."""
    one_hot = np.eye(VOCABULARY)[targets]
    each = -(one_hot * np.log(outputs) + (1 - one_hot) * np.log(1 - outputs)).sum(-1)
    return float(each[targets != -1].mean())


@pytest.mark.parametrize("gradient", ["previous_step", "through"])
def test_srn_equals_its_equations_and_gradients(gradient: Any) -> None:
    model = SRN(VOCABULARY, 6, gradient=gradient).double()
    tokens, targets = text(), text()
    targets[1, 4:9] = -1
    p = {name: array.copy() for name, array in arrays(model).items()}
    hidden, outputs = srn(p, tokens.numpy())
    normalised = outputs / outputs.sum(-1, keepdims=True)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert np.abs(model(tokens).softmax(-1).detach().numpy() - normalised).max() < 1e-12
    loss = model.loss(tokens, targets)
    assert float(loss.detach()) == pytest.approx(logistic_cross_entropy(outputs, targets.numpy()), abs=1e-12)
    loss.backward()
    # The context layers are inputs like any other where the gradient stops at the previous step.
    held = hidden if gradient == "previous_step" else None
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name in ("recurrence.weight_hh_l0", "recurrence.weight_ih_l0", "readout.weight", "readout.bias"):
        numerical = np.zeros_like(p[name])
        for index in np.ndindex(p[name].shape):
            values = []
            for step in (1e-6, -1e-6):
                p[name][index] += step
                values.append(logistic_cross_entropy(srn(p, tokens.numpy(), held)[1], targets.numpy()))
                p[name][index] -= step
            numerical[index] = (values[0] - values[1]) / 2e-6
        found = gradients[name]
        assert found is not None
        np.testing.assert_allclose(found.numpy(), numerical, atol=1e-8)


def test_srn_with_softmax_has_the_loss_of_the_other_models() -> None:
    model = SRN(VOCABULARY, 6, outputs="softmax").double()
    tokens, targets = text(), text()
    expected = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets)
    assert float(model.loss(tokens, targets).detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    assert not isinstance(model.readout, LogisticReadout)


# ---- as language models


@pytest.mark.parametrize("name", MODELS)
def test_a_text_in_chunks_and_token_by_token_gives_the_same_features(name: str) -> None:
    model: TokenModel = MODELS[name]().double().eval()
    tokens = text(2, 30)
    whole = model.features(tokens)
    for cuts in ([0, 0, 1, 5, 8, 9, 9, 21, 30], list(range(31))):
        with torch.no_grad():
            model.begin(2)
            parts = [model.advance(tokens[:, a:b]) for a, b in pairwise(cuts)]
        assert (torch.cat(parts, 1) - whole).abs().max() < 1e-12
    assert whole.shape[:2] == (2, 30)
    assert model.reservoir_layers == []
    assert model.trainable_upstream
    for steps in (3, 8, 11):
        last = model.last_features(tokens[:, :steps])
        torch.testing.assert_close(last, model.features(tokens[:, :steps])[:, -1], rtol=1e-12, atol=1e-12)
    # The future is not known.
    changed = tokens.clone()
    changed[:, 13] = (changed[:, 13] + 1) % VOCABULARY
    difference = (model(tokens) - model(changed)).abs().amax((0, 2))
    assert difference[:13].max() == 0
    assert difference[13] > 1e-9
    changed[1, 3] = VOCABULARY
    for given, error, message in (
        ((changed, tokens), InputRangeError, r"\(1, 3\) is outside the vocabulary of 11"),
        ((tokens, changed), InputRangeError, "targets"),
        ((tokens, tokens[:, 1:]), ShapeError, "same shape"),
    ):
        with pytest.raises(error, match=message):
            model.loss(*given)


SLOW = ("transformer without a mask", "gru", "srn softmax")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in MODELS]
)
def test_training_and_generation_work_on_them(name: str) -> None:
    model: TokenModel = MODELS[name]()
    corpus = np.tile(np.arange(VOCABULARY), 60)
    options = TrainingOptions(steps=120, batch=16, context=8, windows="random", learning_rate=0.02, log_steps=10)
    history = train(model, corpus, options=options).history
    assert history[-1].loss < 0.25 * history[0].loss
    generated = list(model.generate([4, 5, 6], 15, temperature=0))
    assert generated == [(7 + i) % VOCABULARY for i in range(15)]
    assert list(model.generate([4], 9, seed=1)) == list(model.generate([4], 9, seed=1))
    assert model.training


def test_a_window_without_a_mask_takes_one_pass_where_its_end_is_all_that_counts() -> None:
    model = CharTransformer(VOCABULARY, hidden=24, layers=2, context=8, causal=False).double().eval()
    tokens = text(4, 8)
    targets = torch.full_like(tokens, -1)
    targets[:, -1] = tokens[:, 0]
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.layers[0].register_forward_hook(count)
    loss = model.loss(tokens, targets)
    assert passes == 1
    expected = torch.nn.functional.cross_entropy(model(tokens)[:, -1], targets[:, -1])
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
    assert passes == 9
    targets[0, 2] = -1
    targets[0, 3] = 1
    both = torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets, ignore_index=-1)
    assert float(model.loss(tokens, targets).detach()) == pytest.approx(float(both.detach()), abs=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CharTransformer(59, heads=3), "heads"),
        (lambda: CharTransformer(59, dropout=1.0), "dropout"),
        (lambda: CharTransformer(59, layers=0), "layers"),
        (lambda: RecurrentLM(59, 7, cell="rnn"), "cell"),  # type: ignore[arg-type]
        (lambda: RecurrentLM(59, 7, dropout=-0.1), "dropout"),
        (lambda: SRN(59, outputs="tanh"), "outputs"),  # type: ignore[arg-type]
        (lambda: SRN(59, gradient="stop"), "gradient"),  # type: ignore[arg-type]
        (lambda: SRN(59, 0), "hidden"),
        (lambda: train_in_stages(SRN(59), {}), "corpora is empty"),
    ],
)
def test_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


# ---- the stages of the SRN


def corpus_of(share: float, sentences: int) -> np.ndarray:
    """Training sentences of which `share` have a relative clause: the complex ones of 0 are left out."""
    symbols = ElmanGrammar(sentences=sentences, complex_share=share or 0.01).train.symbols
    assert symbols is not None
    stop, who = 23, 22
    pieces = np.split(symbols[0], np.flatnonzero(symbols[0] == stop) + 1)
    return np.concatenate([piece for piece in pieces if share or who not in piece])


@pytest.mark.slow
def test_stages_are_learned_from_simple_to_complex(tmp_path: Path) -> None:
    corpora = {share: corpus_of(share, 100) for share in reversed(STAGES)}
    model = SRN(24, 20)
    options = TrainingOptions(epochs=10, context=32, batch=8, learning_rate=0.01, weight_decay=0.0)
    results = train_in_stages(model, corpora, options=options, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"stage-{share:g}" for share in STAGES]
    # Each stage goes on from the one before.
    first, *others = [result.history[0].loss for result in results]
    assert len(others) == 3
    assert max(others) < 0.6 * first


@pytest.mark.slow
def test_an_srn_of_70_units_learns_the_grammar() -> None:
    model = SRN(24)
    options = TrainingOptions(epochs=60, context=64, batch=32, learning_rate=3e-3, weight_decay=0.0)
    train_in_stages(model, {share: corpus_of(share, 2000) for share in STAGES}, options=options)
    task = ElmanGrammar(sentences=2000)
    with torch.no_grad():
        outputs = model(torch.as_tensor(task.test.symbols).long()).softmax(-1).numpy()
    # Elman's network had 0.852 (Tong et al. 2007, section 4.1).
    assert task.evaluate(outputs, "probabilities").metrics["cosine"] > 0.9
