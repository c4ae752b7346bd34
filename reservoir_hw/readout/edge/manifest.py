"""What a bundle says about itself: `manifest.json`, checked before anything else in the bundle is used.

The file is strict JSON, and a problem with it is one sentence.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    model_validator,
)

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.series_format import SeriesFormat, Text

# Portable to every file system, and nothing that means "elsewhere" on any of them.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}(/[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}){0,3}", re.ASCII)


class Refused(Exception):
    """What is wrong; the place is added by `about`."""


@contextmanager
def about(bundle: str, file: str | None = None, *, reading: bool = True) -> Iterator[None]:
    """Turn `Refused` into ConfigurationError, and errors of the operating system while a bundle is read."""
    where = f"bundle {bundle}" if file is None else f"bundle {bundle}: {file}"
    try:
        yield
    except Refused as refused:
        raise ConfigurationError(f"{where}: {refused}") from refused
    except OSError as error:
        if not reading:
            raise
        raise ConfigurationError(f"{where}: cannot be read: {error.strerror or error}") from error


def shown(text: str | bytes) -> str:
    """A name from a foreign file, fit for a terminal."""
    said = ascii(text)
    return said if len(said) <= 80 else said[:77] + "..."


def check_name(name: str) -> None:
    """Refuse what is no plain relative path: parts of letters, digits, `_`, `-` and `.`, with `/` between them."""
    if not _NAME.fullmatch(name) or any(part.endswith(".") for part in name.split("/")):
        raise Refused(
            f"holds a file called {shown(name)}; a name is a relative path of at most four parts that are made of "
            "letters, digits, '_', '-' and '.' and do not begin or end with '.'"
        )


def check_names(names: list[str]) -> None:
    """Refuse names as `check_name`, and names that are one file where upper and lower case are the same."""
    seen: dict[str, str] = {}
    for name in names:
        check_name(name)
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise Refused(f"holds {shown(name)} twice" if other == name else f"holds both {other} and {name}")
    for name in seen:
        for folder in accumulate(name.split("/")[:-1], "{}/{}".format):
            if folder in seen:
                raise Refused(f"holds {shown(seen[folder])} as a file and as a folder")


FORMAT = "reservoir_hw.bundle"
VERSION = 4
MANIFEST = "manifest.json"
WEIGHTS = "graphs/weights.safetensors"
"""Beside the graphs, as ONNX allows a graph's external data in its own folder only."""

DType = Literal["float32", "float64"]
Precision = Literal["fp32", "int8"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]{1,200}$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Part):
    """A file of the bundle, as it was written."""

    bytes: NonNegativeInt
    sha256: Digest


Axis = Annotated[int, Field(ge=1, le=1 << 31)]


class Value(_Part):
    """An array between the parts of a model: (batch, time, *shape).

    Tokens have the shape () and the dtype int64. An integer without axes, such as a count, has `scalar`.
    """

    name: Name
    shape: tuple[Axis, ...] = Field(default=(), max_length=4)
    dtype: Literal["float32", "float64", "int64"] = "float32"
    scalar: bool = False


class Segment(_Part):
    """Everything that is computed between two crossings of a reservoir: one ONNX graph."""

    graph: FileName
    reads: tuple[Value, ...]
    gives: tuple[Value, ...]


class Crossing(_Part):
    """A reservoir is driven with the value `drive` and answers with the value `states`.

    `state` names the value from which a `settable` reservoir makes one `transition`; None: it is driven as it is.
    `after` is the number of segments that come before.
    """

    slot: NonNegativeInt
    after: NonNegativeInt
    drive: Name
    states: Name
    state: Name | None = None


class Carried(_Part):
    """A value that goes on from step to step, as zeros at the beginning: (batch, *shape)."""

    reads: Name
    gives: Name
    shape: tuple[PositiveInt, ...]
    dtype: DType = "float32"

    @property
    def read(self) -> Value:
        """As a step reads it."""
        return Value(name=self.reads, shape=self.shape, dtype=self.dtype)

    @property
    def given(self) -> Value:
        """As a step gives it."""
        return Value(name=self.gives, shape=self.shape, dtype=self.dtype)


class Slot(_Part):
    """A reservoir that the model was trained on.

    `fingerprint` is that of its identity, `repetitions` how often each input was played to it and averaged.
    """

    inputs: PositiveInt
    nodes: PositiveInt
    dtype: DType
    fingerprint: Digest
    identity: dict[str, Any]
    repetitions: int = Field(default=1, ge=1, le=1_000_000)
    input_range: tuple[float, float] | None = None
    input_mask: dict[str, Any] | None = Field(
        default=None, description="the mask in front of the device, as section `input_mask` of a reservoir takes it"
    )
    probe: FileName | None = Field(default=None, description="file of the golden probe response")


class Extent(_Part):
    """Smallest and largest number of each channel in training, in the user's numbers.

    `low_point` and `high_point` lie 0.1 % from the ends of what was seen: one glitch moves the ends alone.
    """

    low: tuple[FiniteFloat, ...]
    high: tuple[FiniteFloat, ...]
    low_point: tuple[FiniteFloat, ...]
    high_point: tuple[FiniteFloat, ...]


class Ranges(_Part):
    """What inputs and targets were in training."""

    inputs: Extent
    targets: Extent


class Loss(_Part):
    """What int8 costs on the run's test, step by step after the washout.

    `error` is the root mean square of the output that loses most, in its spreads; `cross_entropy` the growth in nats,
    `accuracy` what is lost of it. `accepted`: it is more than an export takes for harmless.
    """

    judged_on: Literal["test", "stored outputs", "nothing"]
    error: NonNegativeFloat | None = None
    cross_entropy: FiniteFloat | None = None
    accuracy: FiniteFloat | None = None
    accepted: bool = False

    def __str__(self) -> str:
        """A sentence for people."""
        if self.judged_on == "nothing":
            return "Nobody judged what int8 costs."
        if self.error is None:
            cost = f"int8 raises the cross-entropy by {self.cross_entropy or 0.0:.3g} nats"
        else:
            cost = f"int8 changes an output by a root mean square of {self.error:.3g} of its standard deviation"
        on = ", on random states as large as in training" if self.judged_on == "stored outputs" else ""
        more = ": more than is harmless, accepted at the export (--accept-loss)" if self.accepted else ""
        return f"{cost}{on}{more}."


class Certified(_Part):
    """How far a segment is from the model it was made of, in spreads: standard deviations of the output.

    Of all inputs that were tried it is that `channel` of that `value` whose error is largest in units of its limit.
    """

    segment: NonNegativeInt
    value: Name
    channel: NonNegativeInt
    error: NonNegativeFloat
    limit: NonNegativeFloat | None = Field(description="None: quantised, which `loss` judges")
    spread: NonNegativeFloat
    random_shapes: tuple[tuple[int, ...], ...]
    recorded_steps: NonNegativeInt


class Certificate(_Part):
    """The comparison of the exported graphs with the model, made when the bundle was written."""

    reference: str
    runtime: str
    segments: tuple[Certified, ...]
    metrics: dict[str, dict[str, float]] = Field(
        default={}, description="of the task: name of the metric -> before and after"
    )


class Manifest(_Part):
    """The whole of `manifest.json`.

    The model's value `input` (tokens or inputs) goes through segments and crossings to its value `output`.
    A model with `stepwise` needs the output of a step before the next can begin.
    """

    format: Literal["reservoir_hw.bundle"]
    version: Literal[4]
    manifest_sha256: Digest | None = Field(default=None, description="of everything else in the manifest")
    model: Text
    precision: Precision
    target: Literal["segments", "whole"]
    input: Value
    output: Value
    output_meaning: Literal["values", "logits"]
    series: SeriesFormat | None = Field(
        default=None, description="what the user's numbers are; None: they are those of the model"
    )
    reads_last: bool = Field(default=False, description="the answer is the output of a sequence's last step")
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    crossings: tuple[Crossing, ...] = ()
    carried: tuple[Carried, ...] = ()
    stepwise: bool = False
    washout: NonNegativeInt = Field(
        default=0, description="so many answers from rest are not to be used: what the reservoir was is in them"
    )
    ranges: Ranges | None = Field(default=None, description="None: nobody knows")
    loss: Loss | None = Field(default=None, description="of int8")
    whole_sequences: bool = Field(default=False, description="an answer depends on other steps than those before it")
    slots: tuple[Slot, ...] = ()
    tokenizer: FileName | None = None
    golden: FileName | None = None
    certificate: Certificate
    provenance: dict[str, Any]
    files: dict[str, FileRecord]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.input.scalar or self.output.scalar or len(self.output.shape) != 1:
            raise ValueError("input and output of a model are arrays, and its output has one axis")
        if self.series is not None:
            widths = (len(self.series.input_names),), (len(self.series.output_names),)
            if self.input.dtype == "int64" or widths != (self.input.shape, self.output.shape):
                raise ValueError("series does not name the channels of the input and the output, each once")
        known = {self.input.name: self.input}
        for one in self.carried:
            _add(known, one.read)
        pending = list(self.crossings)
        for number, segment in enumerate((*self.segments, None)):
            while pending and pending[0].after == number:
                crossing = pending.pop(0)
                if crossing.slot >= len(self.slots):
                    raise ValueError(f"crossing of reservoir {crossing.slot}, but there are {len(self.slots)}")
                slot = self.slots[crossing.slot]
                self._check_crossing(crossing, slot, known)
                _add(known, Value(name=crossing.states, shape=(slot.nodes,), dtype=slot.dtype))
            if segment is None:
                break
            missing = {value.name for value in segment.reads} - set(known)
            if missing:
                raise ValueError(f"{segment.graph} reads {', '.join(sorted(missing))} before it is computed")
            for value in segment.reads:
                if value != known[value.name]:
                    raise ValueError(f"{segment.graph} reads {value.name} in another shape or dtype than it has")
            for value in segment.gives:
                _add(known, value)
        if pending:
            raise ValueError("the crossings are not in the order of the segments")
        ends = {self.output.name} | {carried.gives for carried in self.carried}
        if not ends <= set(known):
            raise ValueError(f"nothing computes {', '.join(sorted(ends - set(known)))}")
        for one in self.carried:
            if known[one.gives] != one.given:
                raise ValueError(f"{one.gives} has another shape or dtype than {one.reads}, which it becomes")
        if known[self.output.name] != self.output:
            raise ValueError(f"the output {self.output.name} has another shape or dtype where it is computed")
        named = {segment.graph for segment in self.segments} | {slot.probe for slot in self.slots}
        named |= {self.tokenizer, self.golden}
        absent = sorted(name for name in named if name is not None and name not in self.files)
        if absent:
            raise ValueError(f"files does not list {', '.join(absent)}")
        return self

    def _check_crossing(self, crossing: Crossing, slot: Slot, known: dict[str, Value]) -> None:
        wanted = {crossing.drive: slot.inputs, **({crossing.state: slot.nodes} if crossing.state else {})}
        for name, width in wanted.items():
            value = known.get(name)
            if value is None:
                raise ValueError(f"a crossing needs {name} before it is computed")
            if (value.shape, value.dtype, value.scalar) != ((width,), slot.dtype, False):
                raise ValueError(f"{name} does not fit the reservoir that it drives")


def _add(known: dict[str, Value], value: Value) -> None:
    if value.name in known:
        raise ValueError(f"{value.name} is computed twice")
    known[value.name] = value


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in a file. Raises `Refused` for anything that is none, or of a version that is not known."""
    found = strict_json(data)
    if found.get("format") != FORMAT:
        raise Refused(f"has the format {shown(str(found.get('format')))}, not {FORMAT!r}: it is something else")
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise Refused(f"has the version {shown(str(version))}, which is no version of the format")
    if version > VERSION:
        raise Refused(
            f"has version {version} of the format: it was made by a newer version of reservoir-hw, and this one reads "
            f"version {VERSION}; update reservoir-hw, or export the model with this version"
        )
    if version < VERSION:
        raise Refused(
            f"has version {version} of the format, and this reservoir-hw reads version {VERSION}: export it again"
        )
    manifest = _validated(data)
    if manifest.manifest_sha256 != digest_of(found):
        raise Refused("does not have the SHA-256 that it names: it is damaged or was changed")
    return manifest


def strict_json(data: bytes, what: str = "") -> dict[str, Any]:
    """The object in a JSON text without infinities, in which no name occurs twice. Raises `Refused` for any other."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise Refused(f"{what}is nested too deeply") from None
    except ValueError as error:
        raise Refused(f"{what}is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(f"{what}is no JSON object")
    return found


def digest_of(facts: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, without `manifest_sha256` itself; spaces and the order of names do not count."""
    content = {name: fact for name, fact in facts.items() if name != "manifest_sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_text(facts: Mapping[str, Any]) -> bytes:
    """The file for these fields, which may be pydantic models or what JSON knows."""
    try:
        text = json.dumps(dict(facts), indent=1, sort_keys=True, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise Refused(f"cannot be described in JSON: {error}") from error
    content = _validated(text).model_dump(mode="json")
    content["manifest_sha256"] = digest_of(content)
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def _validated(data: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(data, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise Refused(f"{shown(where)[1:-1] + ': ' if where else ''}{problem['msg']}{more}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")
