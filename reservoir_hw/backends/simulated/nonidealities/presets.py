"""Sets of non-idealities of real devices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Values for the sections of `nonidealities:`, and where they come from."""

    source: str
    values: Mapping[str, Mapping[str, Any]]


PRESETS: dict[str, Preset] = {
    "photonic_delay_loop": Preset(
        source="Optoelectronic delay loops are limited by the signal-to-noise ratio in the loop (Soriano et al. 2013, "
        "Optics Express 21, 12) and by the resolution of the converters (Soriano et al. 2015, IEEE Trans. Neural "
        "Netw. Learn. Syst. 26, 388). 40 dB under full scale and 12 bits stand for such a bench; they are typical "
        "figures, not those of one.",
        values={"loop": {"noise": 0.01}, "readout": {"bits": 12}},
    ),
    "fixed_point_fpga": Preset(
        source="A small echo state core in gateware: weights Q2.13 (16 bits within ±4), states Q0.15 (16 bits within "
        "±1); clocked logic has no noise.",
        values={"loop": {"bits": 16, "weight_bits": 16}, "readout": {"bits": 16}},
    ),
    "memristive_film": Preset(
        source="Estimated from the recordings 011 and 074 of memristive nanowire networks that come with RCbench (D. "
        "Pilati 2024), relative to the drive of 0.2 V rms: quiet electrodes show 0.2 mV rms, readings come in steps "
        "of 78 µV (3.9e-4: 13 bits within ±1.6), about one electrode in ten, the ground electrode counted, gets less "
        "than 1 % of the drive, and what the drive and the other electrodes do not explain is 1 % (median over "
        "electrodes of recording 011).",
        values={
            "loop": {"noise": 0.01, "dead_nodes": 0.1},
            "readout": {"noise": 0.001, "bits": 13, "range": (-1.6, 1.6)},
        },
    ),
}
