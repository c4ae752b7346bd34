"""Nonlinear vector autoregression: products of the last inputs in the place of a reservoir."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator

from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange, Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec
from reservoir_hw.core.validation import whole_number

Array = NDArray[np.float64]

# Numbers in one block of monomials, so that an order is still in the cache when the next one is computed from it.
_BLOCK = 1 << 18


class Monomials:
    """Products of variables: for each order d, all Σ of d exponents, of the first `variables[d - 1]` variables.

    Parameters
    ----------
    variables
        How many variables each order takes, from order 1 on; never more than the order below.
    orders
        Which orders are wanted, ascending. Those between are computed and left out.
    constant
        Whether the order 0, which is 1, is the first of all.

    Within an order the monomials are sorted by their largest variable, then by the second largest, and so on: x0 x0,
    x0 x1, x1 x1, x0 x2, ... So those of order d in which x_j is the largest variable are x_j times the first monomials
    of order d - 1, which go up to x_j.
    """

    def __init__(self, variables: Sequence[int], orders: Sequence[int], *, constant: bool = False) -> None:
        self._variables, self._orders, self._constant = tuple(variables), frozenset(orders), constant

    @property
    def count(self) -> int:
        """How many there are: Σ C(n + d - 1, d) over the orders d, of n variables."""
        return self._constant + sum(_up_to(self._variables[order - 1] - 1, order) for order in self._orders)

    def exponents(self) -> NDArray[np.int64]:
        """The power of each variable in each monomial, (monomials, variables)."""
        one = np.eye(self._variables[0], dtype=np.int64)
        before, found = np.zeros((1, len(one)), np.int64), []
        found += [before] * self._constant
        for order, variables in enumerate(self._variables, 1):
            before = np.concatenate([before[: _up_to(j, order - 1)] + one[j] for j in range(variables)])
            found += [before] * (order in self._orders)
        return np.concatenate(found)

    def fill(self, variables: Array, out: Array) -> None:
        """From values (variables, rows) to monomials `out` (rows, monomials)."""
        rows = variables.shape[1]
        size = max(1, min(rows, _BLOCK // out.shape[1]))
        # Row after row of `out` would make short inner loops; so each monomial is computed for many rows at once.
        block = np.empty((out.shape[1], size))
        skipped = [
            np.empty((_up_to(n - 1, d), size)) for d, n in enumerate(self._variables, 1) if d not in self._orders
        ]
        block[: self._constant] = 1.0
        for first in range(0, rows, size):
            x = variables[:, first : first + size]
            own, others = block[:, : x.shape[1]], iter(skipped)
            before, start = np.ones((1, x.shape[1])), int(self._constant)
            for order, number in enumerate(self._variables, 1):
                stop = start + _up_to(number - 1, order)
                here = own[start:stop] if order in self._orders else next(others)[:, : x.shape[1]]
                start = stop if order in self._orders else start
                at = 0
                for j in range(number):
                    below = _up_to(j, order - 1)
                    np.multiply(before[:below], x[j], out=here[at : at + below])
                    at += below
                before = here
            out[first : first + size] = own.T


def _up_to(j: int, order: int) -> int:
    """How many monomials of an order have no variable beyond x_j."""
    return math.comb(j + order, order)


MOST_FEATURES = 20_000
"""The normal equations of a ridge regression on so many are 3.2 GB."""


HIGHEST_ORDER = 100
"""A power of it is 0 or overflows for all inputs but those near 1."""


class RegisterConfig(ReservoirConfig):
    """Products of what a shift register holds."""

    is_computed = True
    never = frozenset({"settable", "differentiable"})

    constant: bool = Field(
        default=False, description="a first feature that is always 1, for readouts without a bias of their own"
    )

    @property
    @abstractmethod
    def lags_by_order(self) -> list[int]:
        """How many lags the products of each order are made of, from order 1 on."""

    @property
    def wanted_orders(self) -> list[int]:
        """The orders, ascending; all that have lags."""
        return list(range(1, len(self.lags_by_order) + 1))

    @property
    def past_steps(self) -> int:
        """How far back the oldest lag lies."""
        return (self.lags_by_order[0] - 1) * self._spacing

    @property
    def nodes(self) -> int | None:
        """The number of features; None as long as the number of inputs is not known."""
        if self.inputs is None:
            return None
        variables = [lags * self.inputs for lags in self.lags_by_order]
        return Monomials(variables, self.wanted_orders, constant=self.constant).count

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels. Raises `ConfigurationError` for too many features."""
        config = super().for_inputs(inputs)
        _refuse_too_many(config.required_inputs(), self.lags_by_order, self.wanted_orders, config.nodes or 0)
        return config

    def build(self) -> Nvar:
        """An `Nvar` with these settings."""
        return Nvar(
            self.required_inputs(),
            self.lags_by_order,
            self.wanted_orders,
            spacing=self._spacing,
            constant=self.constant,
            out_of_range=self.out_of_range,
        )

    @property
    def _spacing(self) -> int:
        return getattr(self, "spacing", 1)


class NvarConfig(RegisterConfig):
    """Nonlinear vector autoregression: all products, up to an order, of the inputs at some lags.

    With a linear readout this is the next-generation reservoir computer of Gauthier et al. 2021 (Nature Communications
    12:5564), whose k is `lags` and whose s is `spacing`.
    """

    kind: Literal["nvar"]
    lags: PositiveInt = Field(default=2, description="how many inputs of the series, the present one included")
    spacing: PositiveInt = Field(default=1, description="steps from one lag to the next")
    orders: PositiveInt | Annotated[list[PositiveInt], Field(min_length=1)] = Field(
        default=2, description="all monomials from order 1 to this one; or a list of the orders that are wanted"
    )

    @property
    def lags_by_order(self) -> list[int]:
        """The same for all."""
        return [self.lags] * max(self.wanted_orders)

    @property
    def wanted_orders(self) -> list[int]:
        """The orders, ascending."""
        return _orders(self.orders)


class VolterraConfig(RegisterConfig):
    """A Volterra filter: linear, quadratic and perhaps cubic kernels over a shift register of the last inputs."""

    kind: Literal["volterra"]
    taps: PositiveInt | Annotated[list[PositiveInt], Field(min_length=2, max_length=3)] = Field(
        default=13,
        description="how many inputs the register holds, the present one included; a list has those of the linear "
        "kernel, the quadratic and the cubic one, none longer than the one before",
    )
    order: Literal[2, 3] | None = Field(default=None, description="of the highest kernel; by default 2")

    @model_validator(mode="after")
    def _kernels_fit(self) -> Self:
        if isinstance(self.taps, list):
            if self.order not in (None, len(self.taps)):
                raise ValueError(f"taps lists {len(self.taps)} kernels, and order is {self.order}: remove order")
            if sorted(self.taps, reverse=True) != self.taps:
                raise ValueError(f"taps {self.taps}: a kernel is longer than that of the order below")
        return self

    @property
    def kind_name(self) -> str:
        """Volterra(features)."""
        return "Volterra" + (f"({self.nodes})" if self.nodes else "")

    @property
    def lags_by_order(self) -> list[int]:
        """The taps of each kernel."""
        return [self.taps] * (self.order or 2) if isinstance(self.taps, int) else self.taps


class Nvar(Reservoir):
    """A reservoir whose states are monomials of the last inputs. At rest the register holds zeros.

        z = (u(t), u(t - s), ..., u(t - (k-1) s)),    states: the monomials of z of the orders that are wanted

    (Gauthier et al. 2021). Nothing in it is drawn or fed back: it remembers its lags and nothing else. `monomials` says
    which state is which.

    Parameters
    ----------
    inputs
        Number of input channels.
    lags
        k, how many inputs of the series, the present one included; or a list, one for each order from 1 on, none larger
        than the one before.
    orders
        The highest order, or a list of the orders that are wanted.
    spacing
        s, steps from one lag to the next.
    constant
        A first state that is always 1.

    Raises `ConfigurationError` for arguments out of range.
    """

    def __init__(
        self,
        inputs: int,
        lags: int | Sequence[int] = 2,
        orders: int | Sequence[int] = 2,
        *,
        spacing: int = 1,
        constant: bool = False,
        out_of_range: OutOfRange = "error",
    ) -> None:
        wanted = _orders(orders)
        by_order = [whole_number("lags", n) for n in ([lags] * wanted[-1] if isinstance(lags, int) else lags)]
        if len(by_order) != wanted[-1] or sorted(by_order, reverse=True) != by_order:
            raise ConfigurationError(
                f"lags {by_order} must be one number for each order up to {wanted[-1]}, none larger than the one before"
            )
        inputs, spacing = whole_number("inputs", inputs), whole_number("spacing", spacing)
        self.lags, self.spacing = by_order[0], spacing
        self._monomials = Monomials([n * inputs for n in by_order], wanted, constant=constant)
        _refuse_too_many(inputs, by_order, wanted, self._monomials.count)
        self._past_steps = (self.lags - 1) * spacing
        content = f"lags {by_order} spacing {spacing} orders {wanted} constant {constant}"
        spec = ReservoirSpec(
            inputs=inputs,
            nodes=self._monomials.count,
            dtype="float64",
            memory_steps=self._past_steps,
            snapshot=True,
            deterministic=True,
            identity=Identity(vendor="reservoir_hw", model="nvar", simulated=True, content=content),
            not_supported={
                "settable": "its state is the last inputs, not the nodes that are made of them",
                "programmable": "there is nothing in it to program",
                "differentiable": "it is computed by numpy, without gradients",
            },
        )
        super().__init__(spec, out_of_range=out_of_range)

    @property
    def monomials(self) -> np.ndarray:
        """The power of each input at each lag in each state: (nodes, lags, inputs), the present input first."""
        return self._monomials.exponents().reshape(-1, self.lags, self.device_spec.inputs)

    def _reset(self, batch: int) -> None:
        self._past = np.zeros((batch, self._past_steps, self.device_spec.inputs))

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        batch, steps = u.shape[:2]
        longer = np.concatenate([self._past, u], axis=1)
        self._past = longer[:, steps:].copy()
        # A lag after the other, each with its channels: (lags, inputs, batch, time).
        starts = range(self._past_steps, -1, -self.spacing)
        register = np.stack([longer[:, start : start + steps].transpose(2, 0, 1) for start in starts])
        states = np.empty((batch, steps, self.spec.nodes)) if out is None else out
        self._monomials.fill(register.reshape(-1, batch * steps), states.reshape(batch * steps, -1))
        return states

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {"register": self._past.copy()}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        expected = self._past.shape[1:]
        if set(state) != {"register"} or np.shape(state["register"])[1:] != expected:
            shapes = {name: np.shape(array) for name, array in state.items()}
            raise ConfigurationError(
                f"restore: this register needs `register` (sequences, {expected[0]}, {expected[1]}), not {shapes}"
            )
        self._past = np.array(state["register"], np.float64)


def _orders(orders: int | Sequence[int]) -> list[int]:
    """All from 1 to `orders`, or those of a list, ascending."""
    given = [orders] if isinstance(orders, int) else orders
    if not len(given):
        raise ConfigurationError("orders is empty: list at least one")
    wanted = sorted({whole_number("orders", order) for order in given})
    if wanted[-1] > HIGHEST_ORDER:
        raise ConfigurationError(f"orders: {wanted[-1]:,} is above {HIGHEST_ORDER}, the highest order that is offered")
    return list(range(1, wanted[0] + 1)) if isinstance(orders, int) else wanted


def _listed(orders: Sequence[int]) -> str:
    all_up_to = len(orders) > 1 and list(orders) == list(range(1, len(orders) + 1))
    return f"1 to {len(orders)}" if all_up_to else ", ".join(map(str, orders))


def _refuse_too_many(inputs: int, lags: Sequence[int], orders: Sequence[int], features: int) -> None:
    if features > MOST_FEATURES:
        said = f"{lags[0]}" if len(set(lags)) == 1 else " and ".join(map(str, lags))
        raise ConfigurationError(
            f"{inputs} {'input' if inputs == 1 else 'inputs'} x {said} lags, "
            f"{'order' if len(orders) == 1 else 'orders'} {_listed(orders)}: {features:,} features; "
            f"at most {MOST_FEATURES:,} are offered: take fewer lags or a lower order"
        )
