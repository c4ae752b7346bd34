"""What a reservoir declares about itself before any data is sent to it."""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.seeds import generator

Continuity = Literal["held", "replayed", "free_running"]
Clock = Literal["device", "host", "external"]
DType = Literal["float32", "float64"]
# Of a step of a knob: what a value in decimals may lie beside a multiple of it.
_ON_GRID = 1e-3
_NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {"float32": np.dtype("float32"), "float64": np.dtype("float64")}


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KnobSpec(_Frozen):
    """What a device declares of a setting that is turned while it is open."""

    limits: tuple[float, float]
    unit: str = ""
    resolution: PositiveFloat | None = None

    def problem_of(self, value: float) -> str | None:
        """Why this value may not be set, or None."""
        low, high = self.limits
        if not math.isfinite(value):
            return f"{value} is not finite"
        if not low <= value <= high:
            return f"{value:g} lies beyond limits [{low:g}, {high:g}]"
        if self.resolution is not None:
            nearest = round(value / self.resolution) * self.resolution
            if abs(nearest - value) > _ON_GRID * self.resolution:
                return f"{value:g} is no multiple of its resolution {self.resolution:g}: take {nearest:g}"
        return None


class MonitorSpec(_Frozen):
    """What a device declares of a reading beside its states: its unit, and between which values all is well."""

    unit: str = ""
    limits: tuple[float, float] | None = None


class Identity(_Frozen):
    """Which device this is. `simulated` answers "am I on hardware?".

    The fingerprint is a sha256 over all other fields. `content` is a digest of what the device was asked for:
    weights, mask, settings. `knobs` are the values that its knobs were asked for. Transport, address and calibration
    are not part of it: a device keeps its fingerprint when its cable moves, and when it is calibrated again.
    """

    vendor: str
    model: str
    serial: str = ""
    firmware: str = ""
    simulated: bool
    content: str = ""
    knobs: Mapping[str, float] = Field(default_factory=dict, exclude_if=lambda knobs: not knobs)
    fingerprint: str = ""

    @model_validator(mode="before")
    @classmethod
    def _set_fingerprint(cls, data: Any) -> Any:
        """Fill the fingerprint where it is not given (a server reports that of what it serves)."""
        if not isinstance(data, dict) or data.get("fingerprint"):
            return data
        fields = {
            name: data.get(name, "") for name in ("vendor", "model", "serial", "firmware", "simulated", "content")
        }
        if data.get("knobs"):
            fields["knobs"] = {name: float(value) for name, value in data["knobs"].items()}
        text = json.dumps(fields, sort_keys=True, default=str)
        return {**data, "fingerprint": hashlib.sha256(text.encode()).hexdigest()}

    @property
    def name(self) -> str:
        """Vendor, model and serial number, for messages."""
        return f"{self.vendor} {self.model} {self.serial}".strip()

    def turned(self, knobs: Mapping[str, float]) -> Identity:
        """The same device with knobs at these values, the others as they were."""
        return Identity(**{**self.model_dump(exclude={"fingerprint"}), "knobs": {**self.knobs, **knobs}})

    def behind(self, what: str) -> Identity:
        """The same device behind something that decides about its states, such as a mask."""
        described = self.model_dump(exclude={"fingerprint", "content"})
        return Identity(**described, content=f"{self.fingerprint} behind {what}")


class ReservoirSpec(_Frozen):
    """The capability declaration of a reservoir.

    Inputs and states are dimensionless across the contract; `input_unit` and `state_unit` say what one
    unit stands for at the device. Ranges are (lowest, highest), or None where there is no limit.
    """

    inputs: PositiveInt
    nodes: PositiveInt
    identity: Identity
    dtype: DType = "float32"
    input_range: tuple[float, float] | None = None
    state_range: tuple[float, float] | None = None
    max_batch: PositiveInt | None = Field(default=None, description="sequences driven at once; None: any number")
    continuity: Continuity = "held"
    memory_steps: NonNegativeInt = Field(default=0, description="steps after which an input no longer matters")
    latency_steps: NonNegativeInt = 0
    step_period_s: NonNegativeFloat | None = None
    clock: Clock = "host"
    held_for_s: PositiveFloat | None = Field(
        default=None, description="held: how long the state waits for the next drive; None: for ever"
    )
    reset_time_s: NonNegativeFloat = 0.0
    snapshot: bool = False
    settable: bool = False
    programmable: bool = False
    deterministic: bool = False
    differentiable: bool = False
    input_bits: PositiveInt | None = None
    output_bits: PositiveInt | None = None
    input_unit: str = "1"
    state_unit: str = "1"
    input_names: tuple[str, ...] = ()
    node_names: tuple[str, ...] = ()
    knobs: Mapping[str, KnobSpec] = Field(
        default_factory=dict, description="settings that `Reservoir.set` turns, by name"
    )
    monitors: Mapping[str, MonitorSpec] = Field(
        default_factory=dict, description="what is read beside the states, by name"
    )
    input_mask: Mapping[str, Any] | None = Field(
        default=None, description="how the mask was drawn that spreads these inputs over those of the device itself"
    )
    not_supported: Mapping[str, str] = Field(
        default_factory=dict, description="capability -> why the device does not have it"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in ("input_range", "state_range"):
            limits = getattr(self, name)
            if limits is not None and not limits[0] < limits[1]:
                raise ValueError(f"{name} {limits} must be (lowest, highest)")
        if self.continuity == "replayed" and self.memory_steps == 0:
            raise ValueError("a replayed device must declare memory_steps: how many inputs each call replays")
        if self.continuity == "free_running" and self.snapshot:
            raise ValueError("a free_running device cannot be frozen, so it cannot offer snapshot")
        check_held_for(self.held_for_s, self.continuity, self.step_period_s)
        for name, width in (("input_names", self.inputs), ("node_names", self.nodes)):
            names = getattr(self, name)
            if names and len(names) != width:
                raise ValueError(f"{name} has {len(names)} entries for a width of {width}")
        return self

    def turned(self, knobs: Mapping[str, float]) -> ReservoirSpec:
        """The same device with knobs at these values."""
        return self.model_copy(update={"identity": self.identity.turned(knobs)})

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype in which inputs and states cross the contract."""
        return _NUMPY_DTYPES[self.dtype]


def check_held_for(held_for_s: float | None, continuity: Continuity, step_period_s: float | None) -> None:
    """Raise `ValueError` where a device cannot hold its state for so long: between drives, and for a step at least."""
    if held_for_s is None:
        return
    if continuity != "held":
        raise ValueError(f"held_for_s is for continuity held: a {continuity} device holds nothing between two drives")
    if step_period_s is not None and held_for_s < step_period_s:
        raise ValueError(
            f"held_for_s is {held_for_s:g} s, shorter than a step of {step_period_s:g} s: such a device holds nothing; "
            "declare continuity replayed or free_running"
        )


@dataclass
class Counters:
    """What happened since `open()`.

    `steps` counts what the device was driven with, summed over sequences, replays and washouts included;
    `clipped` inputs, `saturations` and `lost` samples of the read-out; `underruns` and `overruns` of a device with
    its own clock: inputs that were not there when they were due, states that were not taken in time.
    """

    steps: int = 0
    clipped: int = 0
    saturations: int = 0
    lost: int = 0
    underruns: int = 0
    overruns: int = 0
    retries: int = 0
    faults: int = 0

    def as_dict(self) -> dict[str, int]:
        """Plain numbers, for provenance and `--json`. A count that is not a number becomes a text."""
        return {name: _plain(count) for name, count in asdict(self).items()}


def _plain(count: Any) -> Any:
    try:
        return int(count)
    except (TypeError, ValueError, OverflowError):
        return f"no number: {str(count)[:40]}"


@dataclass
class Latency:
    """Wall time of the calls that reached the device, in seconds."""

    calls: int = 0
    total_s: float = 0.0
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=4096))

    def record(self, seconds: float) -> None:
        """Add one call."""
        self.calls += 1
        self.total_s += seconds
        self.recent_s.append(seconds)

    def summary(self) -> dict[str, float | int]:
        """Number of calls, total time, median and 99th percentile of the recent calls."""
        if not self.calls:
            return {"calls": 0}
        p50, p99 = np.percentile(self.recent_s, [50, 99])
        return {"calls": self.calls, "total_s": self.total_s, "p50_s": float(p50), "p99_s": float(p99)}


# ---- How a device is brought back to its rest state.


class _Reset(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    probe_steps: NonNegativeInt = Field(
        default=0, description="measure at open() how far two resets are apart, with a probe of this many steps"
    )

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """What is played to bring the device to rest, (steps, inputs); None: nothing."""

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return 0

    def opening_steps(self, played: Callable[[int], int]) -> int:
        """Device steps of `Reservoir.open`: a reset and, with `probe_steps`, three probes and four resets.

        `played` says how many steps a run of so many takes: `Reservoir.played_steps`.
        """
        reset = played(self.length)
        return reset + (4 * reset + 3 * played(self.probe_steps) if self.probe_steps else 0)


class ResetByCommand(_Reset):
    """The device has a reset of its own."""

    kind: Literal["command"] = "command"


class ResetByIdle(_Reset):
    """The device forgets by itself: wait."""

    kind: Literal["idle"] = "idle"
    settle_s: NonNegativeFloat


class ResetByWashout(_Reset):
    """Drive the device with seeded noise over its whole input range until it has forgotten the rest."""

    kind: Literal["washout"] = "washout"
    steps: PositiveInt
    seed: int = 0

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """(steps, inputs), uniform over the input range (over ±1 where there is no limit)."""
        low, high = spec.input_range or (-1.0, 1.0)
        return generator(self.seed, "washout").uniform(low, high, (self.steps, spec.inputs))

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return self.steps


class ResetByWaveform(_Reset):
    """Play a given waveform: one row of input values per step."""

    kind: Literal["waveform"] = "waveform"
    values: list[list[float]] = Field(min_length=1)

    def waveform(self, spec: ReservoirSpec) -> np.ndarray | None:
        """(steps, inputs), as given."""
        if any(len(row) != spec.inputs for row in self.values):
            raise ConfigurationError(
                f"reset.values: every row needs {spec.inputs} numbers, one per input of the device"
            )
        return np.array(self.values)

    @property
    def length(self) -> int:
        """Steps of the waveform."""
        return len(self.values)


class NoReset(_Reset):
    """The device cannot be reset, and `reason` says why that does no harm."""

    kind: Literal["none"] = "none"
    reason: str = Field(min_length=1)


ResetPolicy = Annotated[
    ResetByCommand | ResetByIdle | ResetByWashout | ResetByWaveform | NoReset, Field(discriminator="kind")
]
