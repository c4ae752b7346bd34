"""One nonlinear node with delayed feedback as a reservoir: a mask makes virtual nodes of one round of the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reservoir_hw.backends.simulated.delay_loop.physics import MackeyGlass, Model, Physics
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities
from reservoir_hw.backends.simulated.reservoir import SimulatedConfig, SimulatedReservoir
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.reservoir import OutOfRange
from reservoir_hw.core.reservoir_config import Encoder
from reservoir_hw.core.signal import Mask, MaskConfig, Quantiser
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec

if TYPE_CHECKING:
    from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms

# Virtual nodes in one delay.
_LONGEST = 100_000_000
Time = Annotated[float, Field(ge=1e-9, le=1e9)]
# Part of theta by which rounding may move tau from a multiple of it.
_ROUNDING = 1e-6
# Node updates under which a second thread costs more than it brings.
_THREADED = 20_000
# Numbers in one block of inputs that are tried on the DAC before the loop sees any of them.
_BLOCK = 1 << 20


class DelayLoopConfig(SimulatedConfig):
    """One nonlinear node with delayed feedback, whose response in each round is read as `nodes` virtual nodes.

    J = mask u + bias is held for theta at each virtual node, x_(τ) is the response one delay earlier. Times are in
    units of the response time T_R of the node; where it has none, only the number of thetas in tau counts.
    """

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
    dtype: DType = "float32"

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
        return self

    @property
    def delay_nodes(self) -> int:
        """The delay tau in virtual nodes."""
        if self.tau is None:
            return self.physics.delay_nodes(self.nodes)
        return round(self.tau / self.theta)

    @property
    def ideal_name(self) -> str:
        """physics(nodes)."""
        return f"{self.physics.kind}({self.nodes})"

    def for_inputs(self, inputs: int) -> Self:
        """This configuration for a task with `inputs` channels; the scaling of the mask must fit too."""
        if self.input_mask is None:
            self.mask.check_inputs(inputs, "mask")
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
            dtype=self.dtype,
            nonidealities=self.seeded_nonidealities(),
            out_of_range=self.out_of_range,
        )


def _check_device(physics: Model, dtype: DType, nonidealities: Nonidealities) -> None:
    physics.check_precision(dtype)
    if nonidealities.loop.weight_bits is not None:
        raise ConfigurationError("nonidealities.loop.weight_bits is for networks: a delay loop has no weights")


class DelayLoop(SimulatedReservoir):
    """One nonlinear node with delayed feedback, computed by a numba kernel. At rest the loop is dark: all values 0.

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
        drive = nonidealities.drive
        dac = None
        if drive.bits is not None:
            dac = Quantiser(bits=drive.bits, range=drive.range, out_of_range=out_of_range)
        self._loop = _LoopEngine(mask, physics, theta, delay_nodes, np.dtype(dtype), dac, self._count_clipped)
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
                "differentiable": "its kernel computes no gradients",
            },
        )
        super().__init__(spec, self._loop, nonidealities=nonidealities, out_of_range=out_of_range)

    def _check_inputs(self, u: np.ndarray) -> None:
        self._loop.check(u)

    def _count_clipped(self, values: int) -> None:
        self.counters.clipped += values

    def _settings(self) -> dict[str, Any]:
        loop = {"theta": self._theta, "delay_nodes": self._delay_nodes, "mask": self.mask.digest()}
        return {**super()._settings(), "delay_loop": loop}


class _LoopEngine:
    name = "numba"

    def __init__(
        self,
        mask: Mask,
        physics: Model,
        theta: float,
        delay_nodes: int,
        dtype: np.dtype[Any],
        dac: Quantiser | None,
        count_clipped: Callable[[int], None],
    ) -> None:
        from reservoir_hw.backends.simulated.delay_loop import cpu_loop
        from reservoir_hw.backends.simulated.kernels import threads as thread_pool

        self._kernels, self._threads = cpu_loop, thread_pool
        self._dtype, self._delay, self._dac = dtype, delay_nodes, dac
        self._columns = np.ascontiguousarray(mask.matrix.T, dtype)
        self._bias = mask.bias.astype(dtype)
        # Without a response time the whole way to the new value is gone at once.
        decay, rise = (0.0, 1.0) if physics.responds_at_once else (math.exp(-theta), -math.expm1(-theta))
        self._equation = (physics.code, *(dtype.type(number) for number in (*physics.numbers(), decay, rise)))
        self._count_clipped = count_clipped

    def reset(self, batch: int) -> None:
        self._history = np.zeros((batch, self._delay), self._dtype)

    def get_state(self) -> dict[str, np.ndarray]:
        return {"loop": self._history.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._history = np.array(state["loop"], self._dtype, order="C")

    def run(self, u: np.ndarray, out: np.ndarray | None, loop: LoopTerms | None) -> np.ndarray:
        return self._advance(u, self._history, out, loop)

    def transition(self, u: np.ndarray, states: np.ndarray, loop: LoopTerms | None) -> np.ndarray:
        history = states[:, states.shape[1] - self._delay :].copy()
        return self._advance(np.ascontiguousarray(u[:, None]), history, None, loop)[:, 0]

    def check(self, u: np.ndarray) -> None:
        """Raise `InputRangeError`, before the loop has seen any of it, if masked inputs are beyond the DAC's range."""
        if self._dac is None or self._dac.out_of_range == "clip":
            return
        low, high = self._dac.range
        steps = max(1, _BLOCK // (len(u) * len(self._bias)))
        for first in range(0, u.shape[1], steps):
            drive = self._masked(np.ascontiguousarray(u[:, first : first + steps]), None)
            outside = (drive < low) | (drive > high)
            if outside.any():
                sequence, step, node = (int(axis[0]) for axis in np.nonzero(outside))
                raise InputRangeError(
                    f"the masked input at (sequence, step, node) = {(sequence, first + step, node)} is "
                    f"{drive[sequence, step, node]:g}, beyond the range [{low:g}, {high:g}] of the DAC; lower "
                    "mask.scaling (and raise physics.input_gain), widen nonidealities.drive.range, or set "
                    "out_of_range: clip to have it clipped and counted"
                )

    def _masked(self, u: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        masked = np.empty((*u.shape[:2], len(self._bias)), self._dtype) if out is None else out
        for given, driven in zip(u, masked, strict=True):
            self._kernels.mask_inputs(self._columns, self._bias, given, driven)
        return masked

    def _advance(
        self, u: np.ndarray, history: np.ndarray, out: np.ndarray | None, loop: LoopTerms | None
    ) -> np.ndarray:
        """States (batch, time, nodes) from the values in the loop (batch, delay), which are brought up to date."""
        batch, steps = u.shape[:2]
        nodes = len(self._bias)
        u = np.ascontiguousarray(u)
        if out is None:
            out = np.empty((batch, steps, nodes), self._dtype)
        if self._dac is not None:
            out[...], clipped = self._dac.apply(self._masked(u, out))
            self._count_clipped(clipped)
        scratch = np.empty((batch, 3, nodes), self._dtype)
        fixed = (self._columns, self._bias)
        then = (self._dac is not None, *self._equation)
        terms = self._terms(loop)
        if batch == 1:
            more = (*terms[:4], terms[4][0], *terms[5:])
            self._kernels.sequence(*fixed, u[0], history[0], scratch[0], out[0], *then, *more)
        else:
            # The same kernel whatever the number of steps, so that no bit depends on it.
            threads = self._threads.available_threads() if out.size >= _THREADED else 1
            with self._threads.numba_threads(min(threads, batch)):
                self._kernels.sequences(*fixed, u, history, scratch, out, *then, *terms)
        flat = out.reshape(batch, -1)
        kept = max(0, self._delay - flat.shape[1])
        history[:, :kept] = history[:, self._delay - kept :].copy()
        history[:, kept:] = flat[:, flat.shape[1] - (self._delay - kept) :]
        return out

    def _terms(self, loop: LoopTerms | None) -> tuple[Any, ...]:
        number = self._dtype.type
        if loop is None:
            nothing = np.zeros((1, 1, 1), self._dtype)
            return False, number(np.inf), nothing[0, 0], nothing[0, 0], nothing, number(0), number(0)
        return (True, *loop)
