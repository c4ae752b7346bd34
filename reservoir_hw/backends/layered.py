"""Several reservoirs in one section `reservoir`: one for each layer of a layered model."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal, NoReturn, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.configuration import Document
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import AnyReservoirConfig, ReservoirConfig, parse_reservoir
from reservoir_hw.core.spec import DType


class LayeredReservoirConfig(ReservoirConfig):
    """Several reservoirs, the first for the first layer."""

    @model_validator(mode="after")
    def _no_mask_of_its_own(self) -> Self:
        if self.input_mask is not None:
            raise ValueError(f"kind {self.kind} has no input_mask: give one to each reservoir of kind: layers")
        return self

    @abstractmethod
    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """One for each of `layers` layers of this width."""

    def build(self) -> Reservoir:
        """Raises `ConfigurationError`: these are several."""
        raise ConfigurationError(
            f"a reservoir of kind {self.kind!r} is one for each layer of a model (readout kind laerc), and no single "
            "device"
        )


class LayersConfig(LayeredReservoirConfig):
    """A reservoir of any kind for each layer of a model."""

    kind: Literal["layers"]
    reservoirs: Annotated[list[AnyReservoirConfig], Field(min_length=1)] = Field(
        description="each with its own `kind:`, the first for the first layer"
    )

    @property
    def kind_name(self) -> str:
        """The distinct names of the reservoirs."""
        return " + ".join(dict.fromkeys(reservoir.name for reservoir in self.reservoirs))

    @property
    def nodes(self) -> int | None:
        """The mean over the reservoirs; None where a configuration leaves it open."""
        nodes = [getattr(reservoir, "nodes", None) for reservoir in self.reservoirs]
        known = [number for number in nodes if number is not None]
        return round(sum(known) / len(known)) if len(known) == len(nodes) else None

    def check_machine(self) -> None:
        """That of every reservoir."""
        for reservoir in self.reservoirs:
            reservoir.check_machine()

    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """`reservoirs`. Raises `ConfigurationError` for another number of layers."""
        if layers not in (None, len(self.reservoirs)):
            raise ConfigurationError(
                f"the model has {layers} layers and needs a reservoir for each, but reservoirs lists "
                f"{len(self.reservoirs)}"
            )
        return list(self.reservoirs)


class LaercReservoirsConfig(LayeredReservoirConfig):
    """An echo state network for each layer of a LAERC (Köster & Uchida 2026, eq. A3-A5): radii from 0.95 to 0.99.

    With `spectral_norm` as the authors' published code scales them.
    """

    is_computed = True

    kind: Literal["laerc_layers"]
    nodes: PositiveInt | None = Field(default=None, description="of each; null: four times the width of the model")
    spectral_norm: PositiveFloat | None = Field(
        default=None, description="of every W, in the place of the radii; 0.9 in the authors' code"
    )
    bias_scaling: NonNegativeFloat = 0.0
    seed: NonNegativeInt = Field(default=0, description="of the first; each further one is drawn with the next")
    dtype: DType = "float32"
    gradients: bool = Field(default=False, description="compute with torch, so that gradients pass through")

    @property
    def kind_name(self) -> str:
        """LAERC(nodes)."""
        return "LAERC" + (f"({self.nodes})" if self.nodes else "")

    def for_layers(self, width: int | None, layers: int | None) -> list[ReservoirConfig]:
        """The networks of `reservoir_configurations`. Raises `ConfigurationError` where no model says how many."""
        if width is None or layers is None:
            raise ConfigurationError(
                f"a reservoir of kind {self.kind!r} has as many networks as its model has layers: give the experiment "
                "file, which says how many"
            )
        # Networks need scipy, which is not there where devices behind sockets are the layers.
        from reservoir_hw.networks.language_weights import reservoir_configurations

        own = {"nodes", "spectral_norm", "bias_scaling", "seed", "dtype", "gradients", "out_of_range"}
        drawn = reservoir_configurations(width, layers, **self.model_dump(include=own))
        return [parse_reservoir(Document.from_mapping(one, "reservoir")) for one in drawn]


# ---- No reservoir: for models that bring their own recurrence (`readout: {kind: esn_lm}`).


class NoReservoirConfig(ReservoirConfig):
    """No reservoir: for readouts that have their own."""

    is_computed = True

    kind: Literal["none"]

    def for_inputs(self, inputs: int | Channels) -> NoReturn:
        """Raises `ConfigurationError`: who asks needs a reservoir."""
        raise ConfigurationError(
            f"kind none is no reservoir, and {Channels.of(inputs).count} inputs have nowhere to go: name one"
        )

    def build(self) -> NoReturn:
        """Raises `ConfigurationError`."""
        raise ConfigurationError("kind none is no reservoir: there is nothing to open")
