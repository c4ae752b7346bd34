"""Weights named and shaped as those of the authors' code for Köster & Uchida 2026; its LAERC is in test_laerc.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from published_weights import load_published, published_reservoirs
from torch import Tensor, nn

from reservoir_hw import open_reservoir
from reservoir_hw.readout import AttentionReadout, LinearReadout, ReservoirLayer, ReservoirLM, random_embedding
from reservoir_hw.readout.baselines import CharTransformer
from reservoir_hw.readout.models.softmax import NormalisedReadout

V, E, N, H, T = 11, 4, 7, 3, 9


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    torch.manual_seed(5)
    return {name: 0.4 * torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


EXTRACTOR = {
    "extractor.embed.weight": (V, E),
    "extractor.R": (N, N),
    "extractor.Win": (E, N),
    "extractor.norm.weight": (N,),
    "extractor.norm.bias": (N,),
}
RC = {**EXTRACTOR, "classifier.weight": (V, N), "classifier.bias": (V,)}
AERC = {
    **EXTRACTOR,
    "head.generate.0.weight": (H, N),
    "head.generate.0.bias": (H,),
    "head.generate.2.weight": (H * N, H),
    "head.generate.2.bias": (H * N,),
    "head.classifier.weight": (V, H),
    "head.classifier.bias": (V,),
}


def normalised_states(p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Of the last position."""
    state = torch.zeros(len(tokens), N, dtype=torch.float64)
    for t in range(tokens.shape[1]):
        state = torch.tanh(state @ p["extractor.R"] + p["extractor.embed.weight"][tokens[:, t]] @ p["extractor.Win"])
    return nn.functional.layer_norm(state, (N,), p["extractor.norm.weight"], p["extractor.norm.bias"])


def rc(p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    return normalised_states(p, tokens) @ p["classifier.weight"].T + p["classifier.bias"]


def aerc(p: dict[str, Tensor], tokens: Tensor) -> Tensor:
    r = normalised_states(p, tokens)
    h = torch.relu(r @ p["head.generate.0.weight"].T + p["head.generate.0.bias"])
    W = (h @ p["head.generate.2.weight"].T + p["head.generate.2.bias"]).reshape(-1, H, N)
    return torch.einsum("bhn,bn->bh", W, r) @ p["head.classifier.weight"].T + p["head.classifier.bias"]


@pytest.mark.parametrize(
    ("shapes", "readout", "published"), [(RC, LinearReadout(N, V), rc), (AERC, AttentionReadout(N, H, V), aerc)]
)
def test_a_published_reservoir_computer(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], readout: nn.Module, published: Any
) -> None:
    torch.save(drawn(shapes), tmp_path / "reservoir_0123abcd.pth")
    state = torch.load(tmp_path / "reservoir_0123abcd.pth", weights_only=True)
    tokens = torch.randint(V, (3, T))
    with open_reservoir({"kind": "esn", "nodes": N, "inputs": E, "dtype": "float64"}) as reservoir:
        (weights,) = published_reservoirs(state)
        reservoir.upload(weights)
        embedding = random_embedding(V, E, seed=0)
        model = ReservoirLM(embedding, ReservoirLayer(reservoir), NormalisedReadout(N, V, readout)).double()
        load_published(model, state)
        torch.testing.assert_close(model(tokens)[:, -1], published(state, tokens), rtol=0, atol=1e-12)


class PublishedTransformer(nn.Module):
    """From the names and shapes of its weights: positions are no weight, and there is no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, E)
        layer = nn.TransformerEncoderLayer(E, 2, 8, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 2)
        self.fc = nn.Linear(E, V)


def test_a_published_transformer() -> None:
    torch.manual_seed(1)
    theirs = PublishedTransformer().double().eval()
    state = drawn({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    theirs.load_state_dict(state)
    ours = CharTransformer(V, embedding=E, hidden=8, heads=2, layers=2, context=T, causal=False).double().eval()
    load_published(ours, state)
    tokens = torch.randint(V, (3, T))
    with torch.no_grad():
        encoded = theirs.transformer(theirs.embed(tokens) + ours.positions)
        torch.testing.assert_close(ours(tokens)[:, -1], theirs.fc(encoded[:, -1]), rtol=0, atol=1e-12)
