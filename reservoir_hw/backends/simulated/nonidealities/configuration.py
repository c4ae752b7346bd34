"""How a simulated device departs from its equations: what can be configured, and the presets.

Every field says what it does and is "ideal" by default. `drive` acts on what drives the nodes, `loop` on every
new state before it is fed back, `readout` on what is measured alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from reservoir_hw.core.configuration import Config

# Values for the sections of `nonidealities:`, by the name of the preset.
PRESETS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    # Optoelectronic delay loops are limited by the signal-to-noise ratio in the loop (Soriano et al. 2013, Optics
    # Express 21, 12) and by the resolution of the converters (Soriano et al. 2015, IEEE Trans. Neural Netw. Learn.
    # Syst. 26, 388). 40 dB under full scale and 12 bits stand for such a bench; they are typical figures, not those of
    # one.
    "photonic_delay_loop": {"loop": {"noise": 0.01}, "readout": {"bits": 12}},
    # A small echo state core in gateware: weights Q2.13 (16 bits within ±4), states Q0.15 (16 bits within ±1); clocked
    # logic has no noise.
    "fixed_point_fpga": {"loop": {"bits": 16, "weight_bits": 16}, "readout": {"bits": 16}},
    # Estimated from the recordings 011 and 074 of memristive nanowire networks that come with RCbench (D. Pilati 2024),
    # relative to the drive of 0.2 V rms: quiet electrodes show 0.2 mV rms, readings come in steps of 78 µV (3.9e-4: 13
    # bits within ±1.6), about one electrode in ten, the ground electrode counted, gets less than 1 % of the drive, and
    # what the drive and the other electrodes do not explain is 1 % (median over electrodes of recording 011).
    "memristive_film": {
        "loop": {"noise": 0.01, "dead_nodes": 0.1},
        "readout": {"noise": 0.001, "bits": 13, "range": (-1.6, 1.6)},
    },
}


Bits = Annotated[int, Field(ge=2, le=24)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _pair(limits: Any) -> Any:
    return tuple(limits) if isinstance(limits, list) else limits


def _ordered(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1]:
        raise ValueError(f"{list(limits)} must be [lowest, highest]")
    return limits


# Expanding a preset makes Python objects of the file's lists, where strict validation would want a tuple.
Range = Annotated[tuple[float, float], BeforeValidator(_pair), AfterValidator(_ordered)]


class DriveNonidealities(Config):
    """The converter in front of the nodes."""

    bits: Bits | None = Field(
        default=None, description="DAC: inputs (of a delay loop: masked inputs) are rounded to 2^bits levels of `range`"
    )
    range: Range = Field(default=(-1.0, 1.0), description="of the DAC; beyond it `out_of_range` decides")


class LoopNonidealities(Config):
    """What acts on each new state x before it is stored, measured and fed back.

    y = b(1 + mismatch g_i) L tanh(x / L) + (1 - b) y_before + noise + drift, rounded to `bits`; 0 at a dead node.
    y_before is the node's value one step earlier, in a delay loop the virtual node before it.
    """

    noise: NonNegativeFloat = Field(default=0.0, description="standard deviation of normal noise on each new state")
    saturation: PositiveFloat | None = Field(default=None, description="L of a soft limit L tanh(x / L)")
    bandwidth: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="b of a one-pole low-pass: the share of the way to its new value that a state gets"
    )
    mismatch: NonNegativeFloat = Field(
        default=0.0, description="relative standard deviation of a constant gain error of each node"
    )
    dead_nodes: Share = Field(
        default=0.0, description="share of the nodes (to whole nodes), drawn once, that stay at 0"
    )
    drift: NonNegativeFloat = Field(
        default=0.0, description="standard deviation over nodes of the amplitude of a slow sinusoidal offset"
    )
    drift_period_steps: PositiveInt = Field(default=100_000, description="period of the drift, counted since open()")
    bits: Bits | None = Field(default=None, description="states are rounded to 2^bits levels within ±`limit`")
    limit: PositiveFloat = Field(default=1.0, description="range of `bits`; states beyond it stay at its end (counted)")
    weight_bits: Bits | None = Field(
        default=None, description="weights of a network are rounded to 2^weight_bits levels within ±`weight_limit`"
    )
    weight_limit: PositiveFloat = Field(default=4.0, description="range of `weight_bits`; larger weights are an error")


class ReadoutNonidealities(Config):
    """What acts on the measured states alone: offset, noise, converter, stuck channels, lost samples, in this order."""

    offset: NonNegativeFloat = Field(
        default=0.0, description="standard deviation over channels of a constant offset, drawn once"
    )
    noise: NonNegativeFloat = Field(default=0.0, description="standard deviation of normal noise on each sample")
    bits: Bits | None = Field(
        default=None,
        description="ADC: samples are rounded to 2^bits levels of `range`, and saturate beyond it (counted)",
    )
    range: Range = Field(default=(-1.0, 1.0), description="of the ADC")
    stuck_nodes: Share = Field(
        default=0.0, description="share of the channels, drawn once, that always read one value within `range`"
    )
    lost_samples: Share = Field(default=0.0, description="probability that a sample is lost: it reads 0 (counted)")


class Nonidealities(Config):
    """Departures from the ideal device; a preset's name alone, or `preset:` with changes, also works."""

    preset: str | None = Field(default=None, description=f"start from one of: {', '.join(PRESETS)}")
    drive: DriveNonidealities = DriveNonidealities()
    loop: LoopNonidealities = LoopNonidealities()
    readout: ReadoutNonidealities = ReadoutNonidealities()
    seed: NonNegativeInt | None = Field(
        default=None, description="of the noise and of everything that is drawn once; by default that of the reservoir"
    )

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"preset": data}
        if not isinstance(data, dict) or data.get("preset") is None:
            return data
        name = data["preset"]
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
        # What is given stands, all of it too: a resolved configuration names every field.
        expanded = dict(data)
        for section, values in PRESETS[name].items():
            given = data.get(section, {})
            if isinstance(given, type(cls.model_fields[section].default)):
                given = {name: getattr(given, name) for name in given.model_fields_set}
            if isinstance(given, dict):
                expanded[section] = {**values, **given}
        return expanded

    @property
    def label(self) -> str:
        """The preset, and whether something in it was changed; empty where there is none."""
        if self.preset is None:
            return ""
        as_it_is = Nonidealities.model_validate({"preset": self.preset, "seed": self.seed})
        return self.preset if self.effective == as_it_is.effective else f"{self.preset} (changed)"

    @property
    def effective(self) -> Nonidealities:
        """The same, with the default for every range, limit and period that nothing uses, and for an unused seed."""
        drive, loop, readout = self.drive, self.loop, self.readout
        used = {
            "drive": {"range": drive.bits},
            "loop": {"limit": loop.bits, "weight_limit": loop.weight_bits, "drift_period_steps": loop.drift},
            "readout": {"range": readout.bits or readout.stuck_nodes},
        }
        update: dict[str, Any] = {
            section: _with_defaults(getattr(self, section), [name for name, user in of.items() if not user])
            for section, of in used.items()
        }
        if not (self.varies or any((loop.mismatch, loop.dead_nodes, readout.offset, readout.stuck_nodes))):
            update["seed"] = None
        return self.model_copy(update=update)

    @property
    def varies(self) -> bool:
        """Whether a repeated drive gives other states."""
        return any((self.loop.noise, self.loop.drift, self.readout.noise, self.readout.lost_samples))

    @property
    def rounds(self) -> bool:
        """Whether something is rounded on its way, so that no gradient passes."""
        return any((self.drive.bits, self.loop.bits, self.readout.bits))

    @property
    def ideal(self) -> bool:
        """Whether nothing departs from the equations."""
        return self.effective.model_copy(update={"preset": None}) == IDEAL_DEVICE


def _with_defaults(section: Config, names: Iterable[str]) -> Config:
    return section.model_copy(update={name: type(section).model_fields[name].default for name in names})


IDEAL_DEVICE = Nonidealities()

# A preset's name is a text where the schema of the model alone would want a mapping.
NonidealitiesField = Annotated[
    Nonidealities, BeforeValidator(lambda value: value, json_schema_input_type=Nonidealities | Literal[tuple(PRESETS)])
]
