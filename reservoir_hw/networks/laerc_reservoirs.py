"""The reservoirs of a LAERC: as the paper describes them, and as the authors' published code draws them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from reservoir_hw.core.seeds import generator
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.networks.drawing import draw_weights


def radius_schedule(layers: int) -> list[float]:
    """Spectral radius of each layer's reservoir (Köster & Uchida 2026, eq. A5): from 0.95 up to 0.99."""
    layers = whole_number("layers", layers)
    return [0.95 + 0.04 * layer / max(1, layers - 1) for layer in range(layers)]


def reservoir_configurations(
    width: int,
    layers: int,
    *,
    nodes: int | None = None,
    spectral_norm: float | None = None,
    bias_scaling: float = 0.0,
    seed: int = 0,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Reservoir configurations (`kind: esn`) for a LAERC of this width D (eq. A3-A5, R = 4 D unless given).

    The paper leaves the distributions open. Those of the authors' published code are taken: normal recurrent
    weights, here scaled to the spectral radius, input weights of variance 1/D, no bias. With `spectral_norm`, each is
    scaled to this norm instead, as that code does (0.9). Layer l is drawn with the seed `seed` + l. `changes` are
    further keys of every configuration, such as `gradients` or `dtype`.
    """
    width, seed = whole_number("width", width), whole_number("seed", seed, least=0)
    nodes = 4 * width if nodes is None else whole_number("nodes", nodes)
    radii = radius_schedule(layers)
    if spectral_norm is not None:
        radii = [spectral_norm / _norm_at_radius_1(nodes, seed + layer) for layer in range(layers)]
    return [
        {
            "kind": "esn",
            "inputs": width,
            "nodes": nodes,
            "spectral_radius": radius,
            "weight_distribution": "normal",
            "input_distribution": "normal",
            "input_scaling": width**-0.5,
            "bias_scaling": bias_scaling,
            "seed": seed + layer,
            **changes,
        }
        for layer, radius in enumerate(radii)
    ]


@cache
def _norm_at_radius_1(nodes: int, seed: int) -> float:
    """The spectral norm of the W that such a configuration draws, scaled to the spectral radius 1."""
    drawn = draw_weights(nodes, 1, seed=seed, distribution="normal", spectral_radius=1.0)
    return float(np.linalg.norm(drawn.recurrent(), 2))


def norm_scaled_weights(
    width: int, layers: int, *, nodes: int | None = None, norm: float = 0.9, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """Reservoir weights as the authors' published code draws them, for `Reservoir.upload`: W, W_in and bias.

    Normal weights of variance 1/R in W (R × R), scaled to the spectral norm `norm`, the same in all layers, and of
    variance 1/D in W_in (R × D); no bias. (The paper scales the spectral radius, which is about half the norm of such
    a matrix.)
    """
    width, layers = whole_number("width", width), whole_number("layers", layers)
    nodes = 4 * width if nodes is None else whole_number("nodes", nodes)
    norm = number_in("norm", norm, 0.0, float("inf"))
    weights = []
    for layer in range(layers):
        random = generator(whole_number("seed", seed, least=0) + layer, "laerc reservoir")
        W = random.standard_normal((nodes, nodes))
        W_in = random.standard_normal((nodes, width)) * width**-0.5
        weights.append({"W": W * (norm / np.linalg.norm(W, 2)), "W_in": W_in, "bias": np.zeros(nodes)})
    return weights
