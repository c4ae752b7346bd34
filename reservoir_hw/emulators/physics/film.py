"""A memristive film: electrodes whose conductance remembers the volts that were applied.

For electrode k, with volts V at the common electrode,

    dw_k/dt = (1 - w_k) g_k - w_k / tau_k        g_k = (v_k / v0)^2 / tau_k,   v_k = V (1 + coupling w_(k-1))
    I_k     = V (G_off + (G_on - G_off) w_k) (1 + gate_gain p) (1 + drift t)

p is the polarisation of the gate. It follows the gate volts by a play of ± hysteresis_v. The film knows nothing of
masks, steps and nodes.
"""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.seeds import generator

# No step of the integration is longer, as a part of the shortest time constant.
_LARGEST_STEP = 0.25


class FilmConfig(Config):
    """Parameters of the film, and how it departs from its equations."""

    electrodes: PositiveInt = Field(default=8, description="channels 101, 102, ... of the switch matrix")
    fastest_s: PositiveFloat = Field(default=0.05, description="tau of the first electrode")
    slowest_s: PositiveFloat = Field(default=0.6, description="tau of the last; between them a geometric series")
    volts: PositiveFloat = Field(default=0.5, description="v0: the scale of the nonlinearity")
    off_s: PositiveFloat = Field(default=2e-5, description="conductance of an electrode at rest, siemens")
    on_s: PositiveFloat = Field(default=2e-4, description="the highest conductance, siemens")
    coupling: NonNegativeFloat = Field(default=0.6, description="how much the electrode before drives the next")
    gate_gain: float = Field(
        default=0.5, description="change of the conductance by a volt at the gate, as a part of it"
    )
    hysteresis_v: NonNegativeFloat = Field(default=0.0, description="the gate turns back only after so many volts")
    noise_a: NonNegativeFloat = Field(default=0.0, description="rms of a reading of the current")
    drift: float = Field(default=0.0, description="change of the conductance in a second, as a part of it")
    temperature_c: float = Field(default=22.5, description="of the film")
    seed: NonNegativeInt = Field(default=0, description="of the noise")


class Film:
    """The film with its state."""

    def __init__(self, config: FilmConfig) -> None:
        self.config = config
        self.age_s = 0.0
        """Since it was made."""
        self._tau_s = np.geomspace(config.fastest_s, config.slowest_s, config.electrodes)
        self._w = np.zeros(config.electrodes)
        self._gate = 0.0
        self._random = generator(config.seed, "film")

    def rest(self) -> None:
        """As after a long time without volts."""
        self._w[:] = 0.0

    def set_gate(self, volts: float) -> None:
        """The gate is at so many volts."""
        play = self.config.hysteresis_v
        self._gate = min(max(self._gate, volts - play), volts + play)

    def advance(self, volts: float, seconds: float) -> None:
        """So long with these volts at the common electrode."""
        if seconds <= 0:
            return
        pieces = max(1, math.ceil(seconds / (_LARGEST_STEP * self.config.fastest_s)))
        dt_s = seconds / pieces
        for _ in range(pieces):
            before = np.concatenate([[0.0], self._w[:-1]])
            driven = (volts * (1 + self.config.coupling * before) / self.config.volts) ** 2
            rate = (1 + driven) / self._tau_s
            held = driven / (1 + driven)
            self._w = held + (self._w - held) * np.exp(-rate * dt_s)
        self.age_s += seconds

    def conductance_s(self, electrode: int) -> float:
        """Of an electrode, counted from 0."""
        config = self.config
        remembered = config.off_s + (config.on_s - config.off_s) * float(self._w[electrode])
        return remembered * (1 + config.gate_gain * self._gate) * (1 + config.drift * self.age_s)

    def noise_a(self) -> float:
        """Of one reading."""
        return float(self._random.normal(0.0, self.config.noise_a)) if self.config.noise_a else 0.0
