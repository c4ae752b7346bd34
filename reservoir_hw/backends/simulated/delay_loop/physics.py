"""The nonlinear nodes of delay loops: the equation of each, its numbers, and what follows from it."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Field, PositiveFloat

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.spec import DType

# The numbers by which the kernels know the equations.
MACKEY_GLASS, IKEDA, PAQUOT = range(3)


class Equation(NamedTuple):
    """x_j = decay x_(j-1) + rise f(delayed value, masked input), with f by its `code`, in numbers."""

    code: int
    feedback_gain: float
    input_gain: float
    phase: float
    exponent: float
    decay: float
    rise: float

    @property
    def numbers(self) -> tuple[float, ...]:
        """All but the code."""
        return tuple(self[1:])


class _Physics(Config):
    kind: Any
    feedback_gain: float
    input_gain: float

    code: ClassVar[int]
    """The number by which the kernels know the equation."""

    responds_at_once: ClassVar[bool] = False
    """Whether the node has no response time, so that nothing but the delay couples virtual nodes."""

    state_range: ClassVar[tuple[float, float] | None] = None
    """Where all states lie, where the equation bounds them."""

    def equation(self, theta: float) -> Equation:
        """The loop for nodes of this length; phase and exponent are 0 and 1 where the equation has no such number."""
        # Without a response time the whole way to the new value is gone at once.
        decay, rise = (0.0, 1.0) if self.responds_at_once else (math.exp(-theta), -math.expm1(-theta))
        return Equation(
            code=self.code,
            feedback_gain=self.feedback_gain,
            input_gain=self.input_gain,
            phase=getattr(self, "phase", 0.0),
            exponent=getattr(self, "exponent", 1.0),
            decay=decay,
            rise=rise,
        )

    def delay_nodes(self, nodes: int) -> int:
        """The delay in virtual nodes unless another is given: one round, or what couples the nodes."""
        return nodes + int(self.responds_at_once)

    def check_precision(self, dtype: DType) -> None:
        """Raise `ConfigurationError` for a number that is infinite in this precision."""
        for name, value in self.model_dump(exclude={"kind"}).items():
            if abs(value) > float(np.finfo(dtype).max):
                raise ConfigurationError(f"physics.{name} = {value:g} is more than {dtype} holds")


class MackeyGlass(_Physics):
    """T_R x' = -x + η z / (1 + |z|^p), z = x_(τ) + γ J (Appeltant et al. 2011)."""

    kind: Literal["mackey_glass"] = "mackey_glass"
    feedback_gain: float = Field(default=0.5, description="η")
    input_gain: float = Field(default=0.05, description="γ")
    exponent: PositiveFloat = Field(default=1.0, description="p; whole numbers are faster")

    code = MACKEY_GLASS


class Ikeda(_Physics):
    """T_R x' = -x + β sin²(x_(τ) + ρ J + φ) (Larger et al. 2012)."""

    kind: Literal["ikeda"] = "ikeda"
    feedback_gain: float = Field(default=0.8, description="β")
    input_gain: float = Field(default=0.5, description="ρ")
    phase: float = Field(default=0.2, description="φ")

    code = IKEDA


class Paquot(_Physics):
    """x = sin(α x_(τ) + β J + φ), a node without a response time (Paquot et al. 2012)."""

    kind: Literal["paquot"] = "paquot"
    feedback_gain: float = Field(default=0.8, description="α")
    input_gain: float = Field(default=0.3, description="β")
    phase: float = Field(default=0.0, description="φ")

    code = PAQUOT
    responds_at_once = True
    state_range = (-1.0, 1.0)


def _by_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


Model: TypeAlias = MackeyGlass | Ikeda | Paquot

Physics = Annotated[
    Model,
    Field(discriminator="kind"),
    BeforeValidator(_by_name, json_schema_input_type=Model | Literal["mackey_glass", "ikeda", "paquot"]),
]
