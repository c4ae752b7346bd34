"""One nonlinear node with delayed feedback as a reservoir: a mask makes virtual nodes of one round of the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.backends.simulated.delay_loop.physics import MackeyGlass, Model, Physics
from reservoir_hw.backends.simulated.engines import Engine, EngineChoice, EngineName, engine_of
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir
from reservoir_hw.core import arrays
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.reservoir_config import Encoder
from reservoir_hw.core.signal import Mask, MaskConfig
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec

_ENGINES: tuple[EngineName, ...] = ("numba", "torch", "triton")
# Virtual nodes in one delay.
_LONGEST = 100_000_000
Time = Annotated[float, Field(ge=1e-9, le=1e9)]
# Part of theta by which rounding may move tau from a multiple of it.
_ROUNDING = 1e-6
# Numbers in one block of inputs that are tried on the DAC before the loop sees any of them.
_BLOCK = 1 << 20


class DelayLoopConfig(SimulatedConfig):
    """One nonlinear node with delayed feedback, whose response in each round is read as `nodes` virtual nodes.

    J = mask u + bias is held for theta at each virtual node, x_(τ) is the response one delay earlier. Times are in
    units of the response time T_R of the node; where it has none, only the number of thetas in tau counts.
    """

    never = frozenset({"differentiable"})

    kind: Literal["delay_loop"]
    nodes: PositiveInt = Field(description="virtual nodes in one round")
    physics: Physics = Field(
        default=MackeyGlass(), description="mackey_glass, ikeda or paquot; the name alone takes the defaults"
    )
    theta: Time = Field(default=0.2, description="time of one virtual node")
    tau: Time | None = Field(
        default=None,
        description="delay, a multiple of theta. With nodes·theta (synchronised) each virtual node drives itself, with "
        "(nodes + k)·theta the k-th after it. By default nodes·theta; for paquot, whose nodes nothing else couples, "
        "(nodes + 1)·theta",
    )
    mask: MaskConfig = MaskConfig()
    seed: NonNegativeInt = Field(default=0, description="of the mask, if that has none of its own")

    @model_validator(mode="after")
    def _delay_is_whole(self) -> Self:
        delay = self.delay_nodes
        if self.tau is not None and not abs(self.tau / self.theta - delay) <= _ROUNDING * delay:
            raise ValueError(
                f"tau {self.tau:g} is {self.tau / self.theta:g} times theta {self.theta:g}, but must be a multiple of "
                f"it, such as {max(1, delay) * self.theta:g}"
            )
        if delay > _LONGEST:
            raise ValueError(f"tau holds {delay} virtual nodes; {_LONGEST} are the most that are simulated")
        _check_device(self.physics, self.dtype, self.nonidealities)
        EngineChoice(self.engine, self.kind, self.device, self.dtype, offers=_ENGINES).check()
        return self

    @property
    def delay_nodes(self) -> int:
        """The delay tau in virtual nodes."""
        return self.physics.delay_nodes(self.nodes) if self.tau is None else round(self.tau / self.theta)

    @property
    def ideal_name(self) -> str:
        """physics(nodes)."""
        return f"{self.physics.kind}({self.nodes})"

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels; the scaling of the mask must fit too."""
        if not isinstance(self.input_mask, MaskConfig):
            self.mask.check_inputs(self.inputs or Channels.of(inputs).count, "mask")
        return super().for_inputs(inputs)

    @property
    def encoded_width(self) -> int:
        """One number for each virtual node."""
        return self.nodes

    def encoder(self) -> Encoder:
        """mask u + bias, as the DAC converts it."""
        mask = self.mask.build(self.nodes, self.required_inputs(), seed=self.seed)
        return lambda u: self.converted(mask.apply(u))

    def build(self) -> DelayLoop:
        """Draw the mask and lay the loop out."""
        return DelayLoop(
            self.mask.build(self.nodes, self.required_inputs(), seed=self.seed),
            self.physics,
            theta=self.theta,
            delay_nodes=self.delay_nodes,
            **self.options(),
        )


def _check_device(physics: Model, dtype: DType, nonidealities: Nonidealities) -> None:
    physics.check_precision(dtype)
    if nonidealities.loop.weight_bits is not None:
        raise ConfigurationError("nonidealities.loop.weight_bits is for networks: a delay loop has no weights")


class DelayLoop(SimulatedReservoir):
    """One nonlinear node with delayed feedback, simulated. At rest the loop is dark: all values 0.

    Parameters
    ----------
    mask
        From inputs to virtual nodes.
    physics
        `MackeyGlass`, `Ikeda` or `Paquot`.
    theta
        Time of one virtual node in units of the response time.
    delay_nodes
        Delay of the feedback in virtual nodes; by default one round, for `Paquot` one node more.
    engine
        "numba", "torch" or "triton"; without one `engines.py` chooses, and the provenance says which.
    """

    inputs_are_converted = False

    def __init__(
        self,
        mask: Mask,
        physics: Model,
        *,
        theta: float = 0.2,
        delay_nodes: int | None = None,
        dtype: DType = "float32",
        device: str = "cpu",
        engine: EngineName | None = None,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        if delay_nodes is None:
            delay_nodes = physics.delay_nodes(mask.nodes)
        if delay_nodes < 1 or not theta > 0:
            raise ConfigurationError(f"a loop needs a delay and a theta above 0, not {delay_nodes} and {theta}")
        _check_device(physics, dtype, nonidealities)
        largest = max(np.abs(mask.matrix).max(), np.abs(mask.bias).max())
        if largest > float(np.finfo(dtype).max):
            raise ConfigurationError(f"the mask reaches {largest:g}, more than {dtype} holds: lower its scaling")
        self.mask, self.physics = mask, physics
        self._delay_nodes, self._theta = delay_nodes, theta
        self.device = device
        self._has_dac = nonidealities.drive.bits is not None
        name = EngineChoice(engine, "delay_loop", device, dtype, offers=_ENGINES).made(on_gpu="triton")
        content = f"{physics.model_dump_json()} theta {theta!r} delay {delay_nodes} {mask.digest()}"
        spec = ReservoirSpec(
            inputs=mask.inputs,
            nodes=mask.nodes,
            dtype=dtype,
            state_range=physics.state_range,
            snapshot=True,
            settable=delay_nodes <= mask.nodes,
            deterministic=True,
            identity=Identity(vendor="reservoir_hw", model="delay_loop", simulated=True, content=content),
            not_supported={
                "settable": f"its delay holds {delay_nodes} values, more than the {mask.nodes} node states",
                "programmable": "its mask is drawn with the configuration",
                "differentiable": "its time loops compute no gradients",
            },
        )
        super().__init__(spec, self._new_engine(name, dtype), nonidealities=nonidealities, out_of_range=out_of_range)

    def _new_engine(self, name: EngineName, dtype: DType) -> Engine:
        equation = self.physics.equation(self._theta)
        columns, bias = np.ascontiguousarray(self.mask.matrix.T, dtype), self.mask.bias.astype(dtype)
        if name == "numba":
            from reservoir_hw.backends.simulated.delay_loop import cpu_loop

            self._masked: Callable[..., Any] = partial(cpu_loop.masked, columns, bias)
            loop = partial(cpu_loop.run, columns, bias, equation, self._drive_of if self._has_dac else None)
        else:
            from reservoir_hw.backends.simulated.delay_loop import torch_loop

            self._masked = torch_loop.masking(columns, bias, self.device)
            if name == "torch":
                loop = torch_loop.prepare(equation, np.dtype(dtype))
            else:
                from reservoir_hw.backends.simulated.delay_loop import triton_loop

                loop = triton_loop.prepare(equation, self.device)
            loop = partial(torch_loop.driven, loop, self._drive_of)
        return engine_of(name, loop, self._delay_nodes, dtype, self.device)

    def _drive_of(self, u: Any, out: Any = None) -> Any:
        """What drives the virtual nodes, (batch, time, nodes): masked inputs, behind the DAC if there is one."""
        drive = self._masked(u, out)
        if self._drawn is None or self._drawn.dac is None:
            return drive
        drive, clipped = self._drawn.dac.apply(drive)
        self.counters.clipped += clipped
        return drive

    def _check_inputs(self, u: Any) -> None:
        """Refuse masked inputs beyond the DAC's range before the loop has seen any of them."""
        if not self._has_dac or self.out_of_range == "clip":
            return
        low, high = self._nonidealities.drive.range
        steps = max(1, _BLOCK // (len(u) * self.mask.nodes))
        for first in range(0, u.shape[1], steps):
            drive = self._masked(u[:, first : first + steps])
            outside = (drive < low) | (drive > high)
            if outside.any():
                sequence, step, node = arrays.first_true(arrays.as_numpy(outside))
                raise InputRangeError(
                    f"the masked input at (sequence, step, node) = {(sequence, first + step, node)} is "
                    f"{float(drive[sequence, step, node]):g}, beyond the range [{low:g}, {high:g}] of the DAC; lower "
                    "mask.scaling (and raise physics.input_gain), widen nonidealities.drive.range, or set "
                    "out_of_range: clip to have it clipped and counted"
                )

    def _settings(self) -> dict[str, Any]:
        loop = {"theta": self._theta, "delay_nodes": self._delay_nodes, "mask": self.mask.digest()}
        return {**super()._settings(), "delay_loop": loop}
