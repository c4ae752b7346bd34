"""Weights in the format of the authors' published code of Köster & Uchida 2026, of all four of its models.

RC, AERC and the character transformer are those of github.com/fekoester/Shakespeare_Res (commit 1e2ec0f), the LAERC
that of github.com/fekoester/LAERC (commit 5b046ea).

state = torch.load("reservoir_0123abcd.pth", weights_only=True)
(weights,) = published_reservoirs(state)
reservoir.upload(weights)
readout = NormalisedReadout(nodes, vocabulary, LinearReadout(nodes, vocabulary))
model = ReservoirLM(random_embedding(vocabulary, 16, seed=0), ReservoirLayer(reservoir), readout)
load_published(model, state)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError


@dataclass(frozen=True)
class _Design:
    """`only` is a weight that no other model has, `names` are modules and scalars here -> there."""

    only: str
    here: str
    names: Mapping[str, str]


_NORMALISED = {"embedding": "extractor.embed", "readout.norm": "extractor.norm"}

_DESIGNS = (
    _Design(
        "classifier.weight",
        "ReservoirLM(embedding, layer, NormalisedReadout(N, V, LinearReadout(N, V)))",
        {**_NORMALISED, "readout.readout": "classifier"},
    ),
    _Design(
        "head.classifier.weight",
        "ReservoirLM(embedding, layer, NormalisedReadout(N, V, AttentionReadout(N, H, V)))",
        {
            **_NORMALISED,
            "readout.readout.net": "head.generate.0",
            "readout.readout.attention": "head.generate.2",
            "readout.readout.out": "head.classifier",
        },
    ),
    _Design(
        "fc.weight",
        "CharTransformer(V, embedding=16, hidden=d_h, heads=h, layers=L, context=32, causal=False)",
        {"embedding": "embed", "layers": "transformer.layers", "readout": "fc"},
    ),
    _Design(
        "norm_f.weight",
        "LAERC(V, D, layers, reservoir_hidden=D, gate_hidden=D) with input_affine 'trained', or 'frozen' where no "
        "gradient passes the reservoirs",
        {"embedding": "embed", "norm": "norm_f", "readout": "out"},
    ),
)

# Of a LAERC, within blocks.N.
_BLOCK = {
    "norm_res": "ln_in",
    "norm_states": "res_mlp.0",
    "reservoir_mlp.0": "res_mlp.1",
    "reservoir_mlp.2": "res_mlp.3",
    "beta": "res_log_scale",
    "norm_mix": "mix_ln",
    "gate": "mix_gate",
    "norm_ffn": "ln_ffn",
    "ffn": "ffn",
    "alpha": "ffn_alpha",
}


def published_reservoirs(state: Mapping[str, Tensor]) -> list[dict[str, np.ndarray]]:
    """The reservoir of each layer for `Reservoir.upload`: W (R × R), W_in (R × D) and bias (R,), float64.

    RC and AERC have one. Raises `ConfigurationError` if the state holds no reservoir.
    """
    state = _plain(state)
    if "extractor.R" in state:
        # That code multiplies from the left, state @ R + x @ Win, and has no bias.
        W, W_in = (_entry(state, f"extractor.{name}").T.double() for name in ("R", "Win"))
        return [{"W": W.numpy().copy(), "W_in": W_in.numpy().copy(), "bias": np.zeros(len(W))}]
    count = sum(name.endswith(".rnn.weight_hh_l0") for name in state)
    if not count:
        raise ConfigurationError("the state holds no weights extractor.R or blocks.*.rnn.*: it has no reservoir")
    found = []
    for block in range(count):
        W, W_in, b_hh, b_ih = (
            _entry(state, f"blocks.{block}.rnn.{name}_l0") for name in ("weight_hh", "weight_ih", "bias_hh", "bias_ih")
        )
        arrays = {"W": W, "W_in": W_in, "bias": b_hh.double() + b_ih.double()}
        found.append({name: tensor.double().numpy() for name, tensor in arrays.items()})
    return found


def load_published(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load all weights of a published model but those of its reservoirs into `model`, which must have its shape.

    `model` is a `ReservoirLM`, a `CharTransformer` or a `LAERC`. The reservoirs are the devices' business
    (`published_reservoirs`). A LAERC's tied output weight may be left out. Raises `ConfigurationError` naming what is
    missing, left over, or of another shape; the model is then as it was.
    """
    state = {name: tensor for name, tensor in _plain(state).items() if not _of_a_reservoir(name)}
    design = next((one for one in _DESIGNS if one.only in state), None)
    if design is None:
        marks = ", ".join(one.only for one in _DESIGNS)
        raise ConfigurationError(f"the state is of none of the published models: it has none of {marks}")
    if "norm_f.weight" in state:
        embedding = _entry(state, "embed.weight")
        if not torch.equal(state.setdefault("out.weight", embedding), embedding):
            raise ConfigurationError("embed.weight and out.weight differ, but a LAERC has them tied")
    ours = model.state_dict()
    wanted = {name: _published_name(name, design) for name in ours}
    missing = sorted(set(wanted.values()) - set(state))
    left_over = sorted(set(state) - set(wanted.values()))
    if missing or left_over:
        raise ConfigurationError(
            f"the published weights and this model differ: missing there {_few(missing)}, without a place here "
            f"{_few(left_over)}; the published design is {design.here}"
        )
    for name, theirs in wanted.items():
        if state[theirs].shape != ours[name].shape:
            raise ConfigurationError(
                f"{theirs} has the shape {tuple(state[theirs].shape)}, this model's {name} {tuple(ours[name].shape)}"
            )
    model.load_state_dict({name: state[theirs] for name, theirs in wanted.items()})


def _published_name(name: str, design: _Design) -> str:
    """What our weight is called there; one that the design does not have keeps its name."""
    prefix, rest, table = "", name, design.names
    if name.startswith("blocks."):
        _, block, rest = name.split(".", 2)
        prefix, table = f"blocks.{block}.", _BLOCK
    for ours, theirs in table.items():
        if rest == ours or rest.startswith(f"{ours}."):
            return prefix + theirs + rest.removeprefix(ours)
    return name


def _of_a_reservoir(name: str) -> bool:
    return ".rnn." in name or name in ("extractor.R", "extractor.Win")


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # A model that went through torch.compile has its names behind this prefix.
    return {name.removeprefix("_orig_mod."): tensor.detach().cpu() for name, tensor in state.items()}


def _entry(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise ConfigurationError(f"the state holds no {name}: is the file complete?")
    return state[name]


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "nothing"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
