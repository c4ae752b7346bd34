"""A reservoir inside a torch model, with an explicit policy for the gradient.

layer = ReservoirLayer(device, gradient="twin", twin=simulation)
states = layer(u)       # the states of the device; gradients reach u through the simulation
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.sharing import Share
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.validation import whole_number


@dataclass(frozen=True)
class Stage:
    """What a model computes between two reservoirs: x and the states of the reservoir before -> (y, carried).

    y drives the next reservoir; that of the last stage is the output. `carried` passes by the reservoir and is the
    next stage's x, or None. The first stage has the input of the model as x, and None as states.
    """

    compute: Callable[[Any, Any], tuple[Tensor, Tensor | None]]
    """In torch."""

    emit: Callable[[Any, Any, Any], tuple[str, str | None]]
    """The same as nodes of a graph, its first argument; of names of tensors."""


@dataclass(frozen=True)
class Series:
    """What a model for series of numbers makes of its states (batch, time, nodes): outputs (batch, time, width)."""

    name: str
    width: int
    compute: Callable[[Tensor], Tensor]
    emit: Callable[[Any, str], str]
    meaning: Literal["values", "logits"] = "values"
    reads_last: bool = False
    """Whether the output of the last step alone counts."""


Gradient = Literal["stop", "through", "twin"]


class OverSequences(nn.Module, ABC):
    """What goes along sequences: u (batch, time, inputs) -> states (batch, time, nodes). Abstract base."""

    inputs: int
    nodes: int

    @property
    def label(self) -> str:
        """What it is, for the name of an exported model."""
        return type(self).__name__

    @abstractmethod
    def begin(self, batch: int = 1) -> None:
        """Begin `batch` new sequences."""

    @abstractmethod
    def advance(self, u: Tensor) -> Tensor:
        """Go on with the sequences."""

    def forward(self, u: Tensor) -> Tensor:
        """The states (batch, time, nodes) of new sequences u (batch, time, inputs)."""
        self._check(u)
        self.begin(u.shape[0])
        return self.advance(u)

    def _check(self, u: Tensor, begun: int | None = None) -> None:
        """Raise `ShapeError` for another number of channels, or of sequences than were begun."""
        if u.ndim != 3 or u.shape[2] != self.inputs:
            raise ShapeError(
                f"a {self.label} with {self.inputs} inputs takes u (batch, time, {self.inputs}), not {tuple(u.shape)}"
            )
        if begun is not None and u.shape[0] != begun:
            raise ShapeError(f"u holds {u.shape[0]} sequences, but {begun} were begun: call begin({u.shape[0]}) first")


class ReservoirLayer(OverSequences):
    """An open reservoir as a module: inputs (batch, time, inputs) -> states (batch, time, nodes).

    The inputs pass a fixed map into the range of the device first, u -> clip(scale u + offset, offset - limit,
    offset + limit), computed in the reservoir's dtype; what it clips is counted in `saturations`. The states come
    back in the dtype of the inputs. Under autocast they stay as the reservoir gave them: what follows casts as it
    needs, and twelve bits of a converter do not fit into bfloat16.

    Sequences begin with `begin` and go on with `advance`; `forward` does both. Layers may share one reservoir: whole
    sequences follow each other with a reset between. To go on with a sequence after another layer had the device,
    the device needs `snapshot`, or must be `replayed`; else `StateLost` is raised.

    Parameters
    ----------
    reservoir
        Open; whoever opened it closes it. It is no part of the module's `state_dict`.
    gradient
        "stop": none passes the reservoir (Köster & Uchida 2026, appendix A). "through": the reservoir is a
        differentiable simulation. "twin": physics-aware training (Wright et al. 2022, Nature 601, 549), the states
        are those of the device, the gradient is that of `twin`. Where the twin is `settable`, each step is
        differentiated at the measured states, s_t = twin(u_t, s_(t-1)) + (device_t - twin(u_t, s_(t-1))) with no
        gradient through the bracket, so that errors of the twin do not add up over time; else along its own run.
        Gradients reach back to the start of a call of `advance`.
    twin
        An open, differentiable reservoir with the inputs and nodes of the device; for "twin" only. It is driven
        only where a gradient is wanted.
    scale, offset, limit
        Of the input map, dimensionless. Without a limit, the largest that fits into `spec.input_range` around the
        offset; none where the device has no range.

    Raises
    ------
    NotOpen
        A reservoir is not open.
    ConfigurationError
        The reservoir, the twin and the policy, or the map and the device's range, do not fit together.
    """

    exported_methods = ("begin", "forward", "advance", "map_inputs")

    def __init__(
        self,
        reservoir: Reservoir,
        *,
        gradient: Gradient = "stop",
        twin: Reservoir | None = None,
        scale: float = 1.0,
        offset: float = 0.0,
        limit: float | None = None,
    ) -> None:
        super().__init__()
        _check_policy(gradient, reservoir, twin)
        self.reservoir = reservoir
        self.inputs, self.nodes = reservoir.spec.inputs, reservoir.spec.nodes
        self.gradient: Gradient = gradient
        self.twin = twin
        self.scale, self.offset = float(scale), float(offset)
        if not (math.isfinite(self.scale) and self.scale != 0 and math.isfinite(self.offset)):
            raise ConfigurationError(f"scale {scale} and offset {offset} must be finite, and scale not 0")
        self.limit = _limit_within(reservoir.spec.input_range, self.offset, limit)
        self._asked_limit = None if limit is None else float(limit)
        self.saturations = 0
        """Input values that the map has clipped since the layer was made."""
        self._device = Share(reservoir)
        self._simulation = None if twin is None else Share(twin)
        self._last: Tensor | None = None

    @property
    def spec(self) -> ReservoirSpec:
        """What the reservoir declares."""
        return self.reservoir.spec

    def begin(self, batch: int = 1) -> None:
        """Begin `batch` new sequences, at rest. Nothing is sent to the device before it is driven."""
        batch = whole_number("the number of sequences", batch, error=ShapeError)
        self._device.begin(batch)
        if self._simulation is not None:
            self._simulation.begin(batch)
        self._last = None

    def advance(self, u: Tensor) -> Tensor:
        """Go on with the sequences: inputs (batch, time, inputs) -> states (batch, time, nodes).

        Raises
        ------
        ShapeError
            u has another number of channels, or of sequences than `begin` was told.
        InputRangeError
            u holds NaN or infinity, or without a limit, values beyond the device's range.
        StateLost
            The device cannot go on with these sequences.
        """
        self._check(u, self._device.batch)
        mapped = self.map_inputs(u)
        if self.gradient == "through":
            states = self._device.run(mapped)
        elif self.gradient == "twin":
            states = self._run_beside_twin(mapped)
        else:
            states = self._measure(mapped)
        if torch.is_autocast_enabled(u.device.type):
            # Autocast leaves float64 as it is. The layers behind could not multiply it with their weights.
            return states.float() if states.dtype == torch.float64 else states
        return states if not u.is_floating_point() else states.to(u.dtype)

    def map_inputs(self, u: Tensor) -> Tensor:
        """What the device is driven with, in its own dtype; counts the values that the map clips."""
        mapped = u.to(getattr(torch, self.spec.dtype))
        if self.scale != 1:
            mapped = mapped * self.scale
        if self.offset:
            mapped = mapped + self.offset
        if not mapped.numel():
            return mapped
        low, high = (float(bound) for bound in mapped.detach().aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            where = tuple(int(i) for i in (~mapped.detach().isfinite()).nonzero()[0])
            raise InputRangeError(
                f"the input of a reservoir at (sequence, step, channel) = {where} is {float(mapped.detach()[where])}: "
                "what lies before the reservoir gave it, so look at the data, or lower the learning rate if the "
                "weights have diverged"
            )
        if self.limit is None:
            return mapped
        # The bounds as this dtype has them, as the device will compare.
        bounds = [float(mapped.new_tensor(self.offset + sign * self.limit)) for sign in (-1, 1)]
        if bounds[0] <= low and high <= bounds[1]:
            return mapped
        self.saturations += int(((mapped < bounds[0]) | (mapped > bounds[1])).sum())
        return mapped.clamp(*bounds)

    def cut(self, cutter: Any, series: Series) -> Any:
        """The reservoir | what a model makes of its states."""
        first = Stage(lambda u, _: (u, None), lambda graph, u, _: (u, None))
        last = Stage(
            lambda _, states: (series.compute(states), None),
            lambda graph, _, states: (series.emit(graph, states), None),
        )
        return cutter.chain(series.name, [self], [first, last], series=series)

    def constants(self) -> dict[str, Any]:
        """The input map as it was configured. No weight shows it; see `training.identity`."""
        return {"scale": self.scale, "offset": self.offset, "limit": self._asked_limit}

    def extra_repr(self) -> str:
        """What the layer is, for `print(model)`."""
        around = f"scale={self.scale}, offset={self.offset}, limit={self.limit}"
        return f"{self.inputs} -> {self.nodes} nodes, gradient={self.gradient!r}, {around}"

    def _measure(self, mapped: Tensor) -> Tensor:
        with torch.no_grad():
            return self._device.run(mapped.detach())

    def _run_beside_twin(self, mapped: Tensor) -> Tensor:
        done, before = self._device.steps, self._last
        measured = self._measure(mapped)
        if not measured.shape[1]:
            return measured
        self._last = measured[:, -1]
        if not (torch.is_grad_enabled() and mapped.requires_grad):
            return measured
        simulation = self._simulation
        assert simulation is not None
        if not simulation.reservoir.spec.settable:
            if simulation.steps != done:
                raise ConfigurationError(
                    f"the twin is not settable, and was not driven in the {done} steps before, where no gradient was "
                    "wanted: give whole sequences at once, or a twin whose states can be set"
                )
            return _ValuesOf.apply(simulation.run(mapped), measured)
        rows = []
        for step in range(measured.shape[1]):
            if before is None:
                # How the twin rests is known to the twin alone.
                predicted = simulation.run(mapped[:, :1])[:, 0]
            else:
                predicted = simulation.reservoir.transition(mapped[:, step], before)
            before = _ValuesOf.apply(predicted, measured[:, step])
            rows.append(before)
        return torch.stack(rows, 1)


def layers_in(module: nn.Module) -> list[ReservoirLayer]:
    """The reservoirs in a module, whatever its class, in the order in which they were registered."""
    return [part for part in module.modules() if isinstance(part, ReservoirLayer)]


class _ValuesOf(torch.autograd.Function):
    """The measured values, with the gradient of the predicted values."""

    @staticmethod
    def forward(ctx: Any, predicted: Tensor, measured: Tensor) -> Tensor:
        ctx.dtype = predicted.dtype
        return measured.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].to(ctx.dtype), None


def _check_policy(gradient: str, reservoir: Reservoir, twin: Reservoir | None) -> None:
    spec = reservoir.spec
    if gradient not in get_args(Gradient):
        raise ConfigurationError(f"gradient must be one of {', '.join(get_args(Gradient))}, not {gradient!r}")
    if (twin is not None) != (gradient == "twin"):
        raise ConfigurationError(
            f"gradient {gradient!r} {'needs' if twin is None else 'does not use'} a twin, the simulation through "
            "which gradients pass"
        )
    if gradient == "through" and not spec.differentiable:
        reason = spec.not_supported.get("differentiable", "")
        raise ConfigurationError(
            f"no gradient passes through {spec.identity.model}{reason and f' ({reason})'}: take a differentiable "
            "simulation (esn: gradients: true), or the policy stop, or twin"
        )
    if twin is None:
        return
    if twin is reservoir:
        raise ConfigurationError("a reservoir cannot be its own twin: the policy through is what this asks for")
    if not twin.spec.differentiable:
        raise ConfigurationError(
            f"no gradient passes through the twin {twin.spec.identity.model}: make it differentiable (esn: gradients: "
            "true)"
        )
    if (twin.spec.inputs, twin.spec.nodes) != (spec.inputs, spec.nodes):
        raise ConfigurationError(
            f"the twin has {twin.spec.inputs} inputs and {twin.spec.nodes} nodes, the device {spec.inputs} and "
            f"{spec.nodes}"
        )


def _limit_within(input_range: tuple[float, float] | None, offset: float, limit: float | None) -> float | None:
    """The limit of the map, from the device's range unless it is given; what is given must fit into the range."""
    if limit is not None and not (math.isfinite(limit) and limit > 0):
        raise ConfigurationError(f"limit must be a finite number above 0, or None, not {limit}")
    if input_range is None:
        return None if limit is None else float(limit)
    low, high = input_range
    room = min(offset - low, high - offset)
    if room <= 0 or (limit is not None and limit > room):
        asked = f"offset {offset}" + ("" if limit is None else f" ± limit {limit}")
        raise ConfigurationError(
            f"{asked} does not lie within the device's input range [{low:g}, {high:g}]: set offset to "
            f"{(low + high) / 2:g}, its middle, and limit to at most {(high - low) / 2:g}"
        )
    found = room if limit is None else float(limit)
    # The sums may round to a number just outside the range, which the device would refuse.
    while offset - found < low or offset + found > high:
        found = math.nextafter(found, 0.0)
    return found
