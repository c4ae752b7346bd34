"""Weights in the format of the authors' published LAERC code (github.com/fekoester/LAERC, commit 5b046ea).

state = torch.load("model_step400.pt", weights_only=True)["model"]
for reservoir, weights in zip(reservoirs, published_reservoirs(state), strict=True):
    reservoir.upload(weights)
layers = [ReservoirLayer(reservoir, gradient="through") for reservoir in reservoirs]
model = LAERC(vocabulary, width, layers, reservoir_hidden=width, gate_hidden=width)
load_published(model, state)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.readout.models.laerc import LAERC

# Modules and scalars here -> there.
_MODEL = {"embedding": "embed", "norm": "norm_f", "readout": "out"}
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
    """The reservoir of each block for `Reservoir.upload`: W (R × R), W_in (R × D) and bias (R,), float64.

    Raises `ConfigurationError` if the state holds no reservoir.
    """
    state = _plain(state)
    count = sum(name.endswith(".rnn.weight_hh_l0") for name in state)
    if not count:
        raise ConfigurationError("the state holds no weights blocks.*.rnn.*: it is not one of the published LAERC")
    found = []
    for block in range(count):
        W, W_in, b_hh, b_ih = (
            _entry(state, f"blocks.{block}.rnn.{name}_l0") for name in ("weight_hh", "weight_ih", "bias_hh", "bias_ih")
        )
        arrays = {"W": W, "W_in": W_in, "bias": b_hh.double() + b_ih.double()}
        found.append({name: tensor.double().numpy() for name, tensor in arrays.items()})
    return found


def load_published(model: LAERC, state: Mapping[str, Tensor]) -> None:
    """Load everything that is trained in the published model into `model`, which must have its shape.

    The reservoirs are the devices' business (`published_reservoirs`). Raises `ConfigurationError` naming what is
    missing, left over, or of another shape; the model is then as it was.
    """
    state = {name: tensor for name, tensor in _plain(state).items() if ".rnn." not in name}
    ours = model.state_dict()
    wanted = {name: _published_name(name) for name in ours}
    missing = sorted(set(wanted.values()) - set(state))
    left_over = sorted(set(state) - set(wanted.values()))
    if missing or left_over:
        raise ConfigurationError(
            f"the published weights and this model differ: missing there {_few(missing)}, without a place here "
            f"{_few(left_over)}; the published design is LAERC(V, D, layers, reservoir_hidden=D, gate_hidden=D) with "
            "input_affine 'trained', or 'frozen' where no gradient passes the reservoirs"
        )
    for name, theirs in wanted.items():
        if state[theirs].shape != ours[name].shape:
            raise ConfigurationError(
                f"{theirs} has the shape {tuple(state[theirs].shape)}, this model's {name} {tuple(ours[name].shape)}"
            )
    if not torch.equal(state["embed.weight"], state["out.weight"]):
        raise ConfigurationError("embed.weight and out.weight differ, but a LAERC has them tied")
    model.load_state_dict({name: state[theirs] for name, theirs in wanted.items()})


def _published_name(name: str) -> str:
    prefix, rest, table = "", name, _MODEL
    if name.startswith("blocks."):
        _, block, rest = name.split(".", 2)
        prefix, table = f"blocks.{block}.", _BLOCK
    for ours, theirs in table.items():
        if rest == ours or rest.startswith(f"{ours}."):
            return prefix + theirs + rest.removeprefix(ours)
    raise ConfigurationError(f"a LAERC has no weight {name}")


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
