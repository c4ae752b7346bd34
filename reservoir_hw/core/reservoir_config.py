"""From a configuration (file, mapping or object) to an open reservoir."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    PositiveInt,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    WithJsonSchema,
)

from reservoir_hw.core import registry
from reservoir_hw.core.axes import Dimension, Vary, expand, refuse_vary
from reservoir_hw.core.channels import Channels, chosen_mask
from reservoir_hw.core.configuration import NO_INFLUENCE_ON_STATES, Config, Document, validate
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.hil import HilConfig, place_hil
from reservoir_hw.core.lazy import missing_extra
from reservoir_hw.core.reservoir import OutOfRange, Reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import Continuity, Identity, ReservoirSpec
from reservoir_hw.core.validation import whole_number

Encoder: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""From inputs (batch, time, inputs) to what the input chain of a device makes of them, (batch, time, width)."""


class ReservoirConfig(Config):
    """What every kind of reservoir can be told. A kind adds `kind: Literal["..."]` and its own fields."""

    is_computed: ClassVar[bool] = False
    """Whether it is computed wherever it is opened, so that no device is needed, and trying it costs nothing else."""

    never: ClassVar[frozenset[str]] = frozenset()
    """Capabilities of a spec that no device of this kind has, so that they need not be asked for."""
    most_at_once: ClassVar[int | None] = None
    """Sequences that any device of this kind is driven with at once; None: any number, or the device says it."""
    declares_inputs: ClassVar[bool] = False
    """Whether the device itself says how many inputs it has, when it is opened."""

    kind: Any
    inputs: PositiveInt | None = Field(default=None, description="number of input channels; by default the task's")
    label: Annotated[str, NO_INFLUENCE_ON_STATES] = Field(default="", description="what tables and figures call it")
    out_of_range: OutOfRange = Field(
        default="error", description="inputs outside the device's range: refuse them, or clip and count them"
    )

    input_mask: MaskConfig | Literal["none"] | None = Field(
        default=None,
        description="a matrix from the task's channels to the inputs of the device; by default drawn from the seed "
        "where their numbers differ, `none` refuses that",
    )
    vary: Annotated[Vary, NO_INFLUENCE_ON_STATES] = Field(
        default={},
        exclude_if=lambda axes: not axes,
        description="key of this section -> values, one point of an experiment for each; or a list of rows",
    )
    search: Annotated[dict[str, Dimension], NO_INFLUENCE_ON_STATES] = Field(
        default={},
        exclude_if=lambda axes: not axes,
        description="key of this section -> what a sweep tries: {low, high} with log: true or step, or choices",
    )
    # Excluded: what is kept of a configuration, and hashed, does not change with what tests need to know.
    hil: Annotated[HilConfig | None, NO_INFLUENCE_ON_STATES] = Field(
        default=None, exclude=True, description="what tests with hardware in the loop need to know"
    )
    _channels: Channels | None = PrivateAttr(default=None)
    _kept_mask: MaskConfig | None = PrivateAttr(default=None)

    @abstractmethod
    def build(self) -> Reservoir:
        """Make the reservoir, not yet open. Heavy imports belong in here."""

    @property
    def name(self) -> str:
        """What tables and figures call it: `label`, or else `kind_name`."""
        return self.label or self.kind_name

    @property
    def kind_name(self) -> str:
        """A name by kind and size."""
        nodes = getattr(self, "nodes", None)
        return self.kind.upper() + (f"({nodes})" if nodes else "")

    def learn_name(self, label: str, units: Mapping[str, str] | None = None) -> None:
        """What the device calls itself, and the units of its knobs, for kinds that know them only when it is open."""

    def with_own_name(self, label: str) -> str:
        """A label that was made before the device was opened, with the name that the device gave itself."""
        return label

    @property
    def knob_values(self) -> dict[str, float]:
        """What the knobs are to be set to, by name."""
        return {name: getattr(knob, "value", knob) for name, knob in getattr(self, "knobs", {}).items()}

    @property
    def knob_units(self) -> dict[str, str]:
        """The units of the knobs, by name, as far as the file gives them."""
        return {name: getattr(knob, "unit", "") for name, knob in getattr(self, "knobs", {}).items()}

    def apart_from_knobs(self) -> str:
        """A text that is the same for configurations that differ in the values of their knobs alone."""
        described = self.model_dump(mode="json", serialize_as_any=True, exclude={"label", "vary", "search"})
        knobs = described.get("knobs", {})
        described["knobs"] = {
            name: {**knob, "value": 0} if isinstance(knob, dict) else 0 for name, knob in knobs.items()
        }
        return json.dumps(described, sort_keys=True)

    @property
    def declared_continuity(self) -> Continuity:
        """What the device will declare of the time between two calls, as far as its file says."""
        return getattr(self, "continuity", "held")

    @property
    def driven_with(self) -> Channels | None:
        """What drives it, where a task has said so (`for_inputs`)."""
        return self._channels

    @property
    def past_steps(self) -> int:
        """How far back the oldest input lies that every state is made of: 0 for all that is no shift register."""
        return 0

    @property
    def encoded_width(self) -> int:
        """How many numbers `encoder` makes of one input."""
        return self.required_inputs()

    def encoder(self) -> Encoder:
        """What the device's own input chain makes of its inputs, behind `input_mask`, without the device.

        By default the inputs themselves. Raises `ConfigurationError` for a kind that has no input chain of its own.
        """
        return np.array

    def bursts(self, steps: int, *, continued: bool) -> int:
        """How many bursts instruments play for a run of so many steps, which goes on from others or begins at rest."""
        del steps, continued
        return 0

    def played_steps(self, steps: int) -> int:
        """How many steps a device is driven for one run of so many: more where it takes several bursts, or a mean."""
        return steps

    def check_machine(self) -> None:
        """Raise `ConfigurationError` where this machine lacks what opening would need. Opens and calls nothing."""

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels.

        A device with another number of inputs gets a mask in front (`core.channels`). Raises `ConfigurationError` where
        that is known not to be possible.
        """
        channels = Channels.of(inputs)
        whole_number("inputs", channels.count)
        open_yet = self.inputs is None and not self.declares_inputs and not channels.states
        taken = open_yet and not isinstance(self.input_mask, MaskConfig)
        told = self.model_copy(update={"inputs": channels.count} if taken else None)
        told._channels = channels
        if isinstance(self.input_mask, MaskConfig):
            self.input_mask.check_inputs(channels.count, "input_mask")
        told.planned_mask()
        return told

    def keeping_mask(self, drawn: Mapping[str, Any] | None) -> Self:
        """This configuration with the mask of a training (`spec.input_mask`), where one is needed."""
        told = self.model_copy()
        told._kept_mask = None if drawn is None else MaskConfig.model_validate(dict(drawn))
        return told

    def planned_mask(self) -> MaskConfig | None:
        """The mask that will stand in front of the device, as far as it is known before it is opened.

        Raises `ConfigurationError` where one is needed and none is possible.
        """
        if self._channels is None or self.inputs is None or self._channels.states or self.declares_inputs:
            return self.input_mask if isinstance(self.input_mask, MaskConfig) else None
        seen = ReservoirSpec(
            inputs=self.inputs,
            nodes=1,
            input_range=getattr(self, "input_range", None),
            identity=Identity(vendor="", model=self.name, simulated=getattr(self, "simulated", self.is_computed)),
        )
        return chosen_mask(
            self.input_mask,
            self._channels,
            seen,
            clips=self.out_of_range == "clip",
            seed=getattr(self, "seed", 0),
            kept=self._kept_mask,
        )

    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """One for each of `layers` layers of a model that drive it with `width` channels, or one that all share.

        None where there is no model to say it. Raises `ConfigurationError` where it has to be known.
        """
        del width, layers
        return [self]

    def required_inputs(self) -> int:
        """`inputs`, or an error where neither the file nor a task gave it."""
        if self.inputs is None and isinstance(self.input_mask, MaskConfig):
            raise ConfigurationError("`input_mask:` needs to know `inputs`: how many has the device?")
        if self.inputs is None:
            raise ConfigurationError(f"a reservoir of kind {self.kind!r} needs `inputs` when no task gives it")
        return self.inputs


def _of_its_kind(value: Any) -> Any:
    for axes in ("vary", "search"):
        if isinstance(value, dict) and value.get(axes):
            raise ConfigurationError(f"`{axes}` stands in the section `reservoir` itself, not in a reservoir within it")
    return registry.of_its_kind("backends", value, ReservoirConfig)


AnyReservoirConfig = Annotated[
    SerializeAsAny[ReservoirConfig],
    BeforeValidator(_of_its_kind),
    WithJsonSchema({"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}),
]
"""A reservoir of any kind as a field of another configuration."""


def parse_reservoir(document: Document, *, varies: bool = False) -> ReservoirConfig:
    """The configuration in a reservoir file, or in the `reservoir` section of an experiment file.

    Raises `ConfigurationError` where it varies, unless `varies` allows that.
    """
    section = reservoir_section(document)
    place_hil(section)
    expand(section.data)
    if not varies:
        refuse_vary(section)
    kind = section.data.get("kind")
    if not isinstance(kind, str):
        raise ConfigurationError(f"{section.origin(())}: a reservoir needs `kind:`, for instance kind: esn")
    try:
        model = registry.find("backends", kind).load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{section.origin(('kind',))}: {error}") from None
    if not issubclass(model, ReservoirConfig):
        raise ConfigurationError(f"the class of kind {kind!r} must derive from ReservoirConfig")
    return validate(model, section)


def reservoir_section(document: Document) -> Document:
    """The part of a document that describes the reservoir: the whole of it if `kind:` is at its top."""
    if "kind" in document.data or "reservoir" not in document.data:
        return document
    section = document.data["reservoir"]
    if not isinstance(section, dict):
        raise ConfigurationError(f"{document.origin(('reservoir',))}: reservoir must be a mapping with `kind:`")
    origins = {place[1:]: origin for place, origin in document.origins.items() if place[:1] == ("reservoir",)}
    return Document(section, origins)


def build_reservoir(config: ReservoirConfig) -> Reservoir:
    """`config.build()`, with a spec that contradicts itself reported as the `ConfigurationError` that it is."""
    try:
        reservoir = config.build()
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    except ValidationError as error:
        problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise ConfigurationError(f"reservoir ({config.kind}): {problems}") from error
    reservoir.label = reservoir.label or config.name
    reservoir.configuration = config
    if config._channels is None and isinstance(config.input_mask, MaskConfig):
        raise ConfigurationError(
            "`input_mask:` needs the number of channels to spread: a task gives it, or open_reservoir(..., inputs=)"
        )
    if config._channels is not None:
        seed = getattr(config, "seed", 0)
        reservoir.spread_inputs(config.input_mask, config._channels, seed=seed, kept=config._kept_mask)
    return reservoir


def reservoir_config(config: ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str]) -> ReservoirConfig:
    """The configuration that an object, a mapping with `kind`, or a reservoir or experiment file describes."""
    if isinstance(config, ReservoirConfig):
        return config
    if isinstance(config, Mapping):
        return parse_reservoir(Document.from_mapping(config, "open_reservoir"))
    document = Document.from_file(config)
    document.set_environment(prefix=("reservoir",) if "kind" in document.data else ())
    return parse_reservoir(document)


def open_reservoir(
    config: ReservoirConfig | Mapping[str, Any] | str | os.PathLike[str], *, inputs: int | None = None
) -> Reservoir:
    """Build and open a reservoir; close it, or use it in a `with` block.

    Parameters
    ----------
    config
        A configuration object, a mapping with `kind`, or the path of a reservoir or experiment file.
    inputs
        Number of input channels, for kinds that take it from their task.
    """
    config = reservoir_config(config)
    if inputs is not None:
        config = config.for_inputs(inputs)
    return build_reservoir(config).open()
