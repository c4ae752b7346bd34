"""Weights of the authors' published code of Köster & Uchida 2026 in our models: the names of both sides.

RC, AERC and the character transformer are those of github.com/fekoester/Shakespeare_Res (commit 1e2ec0f), the LAERC
that of github.com/fekoester/LAERC (commit 5b046ea).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor, nn

_RC = {
    "embedding": "extractor.embed",
    "readout.norm": "extractor.norm",
    "readout.readout": "classifier",
    "readout.readout.net": "head.generate.0",
    "readout.readout.attention": "head.generate.2",
    "readout.readout.out": "head.classifier",
}
_TRANSFORMER = {"embedding": "embed", "layers": "transformer.layers", "readout": "fc"}
_LAERC = {"embedding": "embed", "norm": "norm_f", "readout": "out"}
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
    """The reservoir of each layer for `Reservoir.upload`."""
    if "extractor.R" in state:
        # That code multiplies from the left, state @ R + x @ Win, and has no bias.
        W, W_in = (state[f"extractor.{name}"].T.numpy().copy() for name in ("R", "Win"))
        return [{"W": W, "W_in": W_in, "bias": np.zeros(len(W))}]
    layers = [name.removesuffix("weight_hh_l0") for name in state if name.endswith(".rnn.weight_hh_l0")]
    return [
        {
            "W": state[f"{layer}weight_hh_l0"].numpy(),
            "W_in": state[f"{layer}weight_ih_l0"].numpy(),
            "bias": (state[f"{layer}bias_hh_l0"] + state[f"{layer}bias_ih_l0"]).numpy(),
        }
        for layer in layers
    ]


def load_published(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load all weights but those of the reservoirs; each has one place in the model, and each place one."""
    names = _TRANSFORMER if "fc.weight" in state else _LAERC if "norm_f.weight" in state else _RC
    wanted = {name: _published_name(name, names) for name in model.state_dict()}
    assert set(wanted.values()) == {name for name in state if ".rnn." not in name} - {"extractor.R", "extractor.Win"}
    model.load_state_dict({name: state[theirs] for name, theirs in wanted.items()})


def _published_name(name: str, names: Mapping[str, str]) -> str:
    prefix, rest = "", name
    if name.startswith("blocks."):
        _, block, rest = name.split(".", 2)
        prefix, names = f"blocks.{block}.", _BLOCK
    ours = max((one for one in names if rest == one or rest.startswith(f"{one}.")), key=len)
    return prefix + names[ours] + rest.removeprefix(ours)
