"""What all simulated kinds share: the engine that computes, and the non-idealities of the device it stands for."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import Field, NonNegativeInt

from reservoir_hw.backends.simulated import memory
from reservoir_hw.backends.simulated.engines import Device, Engine, EngineName, JointLoop
from reservoir_hw.backends.simulated.nonidealities.configuration import IDEAL_DEVICE, Nonidealities, NonidealitiesField
from reservoir_hw.backends.simulated.nonidealities.noise import DrawnNonidealities, Numbers
from reservoir_hw.core import arrays
from reservoir_hw.core.channels import Channels
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import OutOfRange, Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.signal import MaskConfig, Quantiser
from reservoir_hw.core.spec import DType, Identity, ReservoirSpec

# Numbers in one array of noise.
_CHUNK = memory.NOISE_NUMBERS
# Steps from which on the spread of the states is worth comparing with the noise, how many of one chunk suffice for it,
# and the ratio that is worth a word.
_STEPS_COMPARED, _SAMPLES_ENOUGH, _DROWNED_BELOW = 100, 1000, 3

log = logging.getLogger(__name__)


class SimulatedConfig(ReservoirConfig):
    """What every simulated kind can be told."""

    is_computed = True

    nonidealities: NonidealitiesField = Field(
        default=IDEAL_DEVICE, description="how the device departs from its equations; by default not at all"
    )
    seed: NonNegativeInt = 0
    dtype: DType = "float32"
    device: Device = "cpu"
    engine: EngineName | None = Field(
        default=None, description="numba, torch, cuda_graphs or triton; by default the quickest that fits"
    )

    @property
    def ideal_name(self) -> str:
        """A name by kind and size."""
        return super().kind_name

    @property
    def kind_name(self) -> str:
        """That of the ideal device and the preset of its non-idealities."""
        return f"{self.ideal_name} {self.nonidealities.label}".strip()

    def for_inputs(self, inputs: int | Channels) -> Self:
        """This configuration for a task with these channels."""
        if isinstance(self.input_mask, MaskConfig) and getattr(self, "weights", None) is None:
            self.required_inputs()
        return super().for_inputs(inputs)

    def converted(self, encoded: np.ndarray) -> np.ndarray:
        """What the DAC of `nonidealities.drive` makes of a signal, if there is one. Raises `InputRangeError`."""
        drive = self.nonidealities.drive
        if drive.bits is None:
            return encoded
        return Quantiser(bits=drive.bits, range=drive.range, out_of_range=self.out_of_range).apply(encoded)[0]

    def weight_bytes(self) -> int:
        """Of the weights on the device, for the number of inputs that is configured; about, where they are drawn."""
        return 0

    def drive_memory(self) -> memory.DriveMemory:
        """What a drive takes on the device. Reads a file of weights."""
        return memory.DriveMemory(
            self.encoded_width,
            self._number_of_inputs(),
            np.dtype(self.dtype).itemsize,
            noisy=not self.nonidealities.ideal,
            # Of the engines that are chosen by a table, the one that needs most.
            graphs=self.device != "cpu" and self.engine in {None, "cuda_graphs"},
        )

    def _number_of_inputs(self) -> int:
        return self.required_inputs()

    def options(self) -> dict[str, Any]:
        """What a simulation of any kind takes beside its equations."""
        nonidealities = self.nonidealities
        if nonidealities.seed is None:
            # Drawn by the seed of the device unless they have one of their own.
            nonidealities = nonidealities.model_copy(update={"seed": self.seed})
        return {
            "dtype": self.dtype,
            "device": self.device,
            "engine": self.engine,
            "nonidealities": nonidealities,
            "out_of_range": self.out_of_range,
        }


class SimulatedReservoir(Reservoir):
    """A reservoir that is computed.

    Noise is keyed by (seed, sequence, step). Each `reset` begins new sequences, so repeated drives meet new noise,
    while chunks, a restored snapshot and the whole program run once more meet the same.

    Parameters
    ----------
    spec
        What the ideal device declares; non-idealities take back what no longer holds.
    engine
        Computes the ideal equations and lets `LoopTerms` act in them.
    """

    inputs_are_converted = True
    """Whether the DAC of `nonidealities.drive` converts the inputs themselves."""

    def __init__(
        self,
        spec: ReservoirSpec,
        engine: Engine,
        *,
        nonidealities: Nonidealities = IDEAL_DEVICE,
        out_of_range: OutOfRange = "error",
    ) -> None:
        self.engine: Engine = engine
        """What computes it; another one after an upload."""
        self.native = "numpy" if engine.name == "numba" else "torch"
        self._nonidealities = nonidealities
        self._drawn = None
        self.is_ideal = nonidealities.ideal
        """Whether it follows its equations without any of the non-idealities."""
        if not self.is_ideal:
            numbers = Numbers(spec.numpy_dtype)
            if self.native == "torch":
                from reservoir_hw.backends.simulated.nonidealities.torch_noise import TorchNumbers

                numbers = TorchNumbers(spec.numpy_dtype, self.device)
            self._drawn = DrawnNonidealities(nonidealities, spec.nodes, numbers)
        super().__init__(self._declared(spec), out_of_range=out_of_range)

    def joint_loop(self, members: Sequence[Any]) -> JointLoop | None:
        """A loop of one launch for the tensors of several devices like this one, where their engines have one."""
        return None

    def _declared(self, spec: ReservoirSpec) -> ReservoirSpec:
        """The spec of the ideal device, less what its non-idealities take."""
        if self.is_ideal:
            return spec
        changes: dict[str, Any] = {
            "input_bits": self._nonidealities.drive.bits,
            "output_bits": self._nonidealities.readout.bits,
            "state_range": None,
            "identity": marked(spec.identity, self._nonidealities),
        }
        if self._nonidealities.drive.bits is not None and self.inputs_are_converted:
            changes["input_range"] = self._nonidealities.drive.range
        refused = dict(spec.not_supported)
        if self._nonidealities.varies:
            changes["deterministic"] = False
            changes["settable"] = False
            refused["settable"] = "its noise belongs to the steps of its sequences, not to a given state"
        if self._nonidealities.rounds:
            changes["differentiable"] = False
        return spec.model_copy(update={**changes, "not_supported": refused})

    def _open(self) -> None:
        self._next_sequence = 0
        self._age = 0
        # States that are compared with the noise; None as soon as that is done.
        self._compared: list[np.ndarray] | None = [] if self._nonidealities.loop.noise else None
        self._last_input: np.ndarray | None = None

    def _reset(self, batch: int) -> None:
        self.engine.reset(batch)
        self._sequences = np.arange(self._next_sequence, self._next_sequence + batch)
        self._next_sequence += batch
        self._position = 0

    def _run(self, u: Any, out: Any) -> Any:
        batch, steps = u.shape[:2]

        def sentence() -> str:
            return memory.does_not_fit(self._drive_memory(), batch, steps, memory.free_bytes(self.device), self.device)

        with memory.out_of_memory_said(sentence):
            return self._driven(u, out)

    def _drive_memory(self) -> memory.DriveMemory:
        spec = self.device_spec
        return memory.DriveMemory(
            spec.nodes,
            spec.inputs,
            spec.numpy_dtype.itemsize,
            noisy=self._drawn is not None,
            graphs=self.engine.name == "cuda_graphs",
        )

    def _driven(self, u: Any, out: Any) -> Any:
        if self._drawn is None:
            return self.engine.run(u, out, None)
        batch, steps = u.shape[:2]
        chunk = max(1, _CHUNK // (batch * self.spec.nodes))
        if self.spec.differentiable:
            # In one piece: gradients reach back to the start of a call. Autograd needs more memory than the noise.
            chunk = steps
        if steps <= chunk:
            return self._run_chunk(self._drawn, u)
        if out is None:
            shape = (batch, steps, self.spec.nodes)
            out = u.new_empty(shape) if arrays.is_tensor(u) else np.empty(shape, self.spec.numpy_dtype)
        for t in range(0, steps, chunk):
            part = slice(t, t + chunk)
            out[:, part] = self._run_chunk(self._drawn, arrays.contiguous(u[:, part]))
        return out

    def _run_chunk(self, drawn: DrawnNonidealities, u: Any) -> Any:
        steps = u.shape[1]
        loop = drawn.loop_terms(self._sequences, self._position, self._age, steps)
        states = self.engine.run(self._converted(u), None, loop)
        self._compare_noise(u, states)
        states, saturated, lost = drawn.measure(states, self._sequences, self._position)
        self.counters.saturations += saturated
        self.counters.lost += lost
        self._position += steps
        self._age += steps
        return states

    def _compare_noise(self, u: Any, states: Any) -> None:
        """Say so, once, where the inputs hardly show in the states of the loop for noise."""
        if self._compared is None:
            return
        samples = self._where_inputs_change(u, states)
        if len(samples):
            self._compared.append(samples)
        if sum(map(len, self._compared)) < _STEPS_COMPARED:
            return
        # A diverging network is refused later on.
        with np.errstate(invalid="ignore", over="ignore"):
            variances = np.concatenate(self._compared).var(axis=0)
        # Over the nodes that are not dead.
        spread = np.sqrt(variances.sum() / max(1, np.count_nonzero(variances)))
        noise, self._compared = self._nonidealities.loop.noise, None
        if spread < _DROWNED_BELOW * noise:
            log.warning(
                "%s: with a loop noise of %g the states spread by no more than %.2g over time (standard deviation), "
                "noise included: lower nonidealities.loop.noise, which is in units of the states, or drive it harder",
                self.name, noise, spread,
            )  # fmt: skip

    def _where_inputs_change(self, u: Any, states: Any) -> np.ndarray:
        """States (samples, nodes) at steps whose input is another one than before, of as many sequences as it takes."""
        steps = u.shape[1]
        given = arrays.as_numpy(u[: 1 + _STEPS_COMPARED // steps]).reshape(-1, u.shape[2])
        before = given[:1] if self._last_input is None else self._last_input
        changed = np.flatnonzero((given != np.concatenate([before, given[:-1]])).any(axis=1))
        self._last_input = given[-1:].copy()
        sequence, step = np.divmod(changed[:: 1 + len(changed) // _SAMPLES_ENOUGH], steps)
        return arrays.as_numpy(states[sequence, step]).astype(np.float64)

    def _converted(self, u: Any) -> Any:
        """What the DAC makes of inputs that are within its range."""
        if self._drawn is None or self._drawn.dac is None or not self.inputs_are_converted:
            return u
        return self._drawn.dac.apply(u)[0]

    def _transition(self, u: Any, states: Any) -> Any:
        if (drawn := self._drawn) is None:
            return self.engine.transition(u, states, None)
        # Settable devices have no noise and no drift: any sequence and step give the same terms.
        sequences = np.zeros(len(u), dtype=np.int64)
        after = self.engine.transition(self._converted(u), states, drawn.loop_terms(sequences, 0, 0, 1))
        states, saturated, _ = drawn.measure(after[:, None], sequences, 0)
        self.counters.saturations += saturated
        return states[:, 0]

    def _snapshot(self) -> dict[str, np.ndarray]:
        state = self.engine.get_state()
        if self._drawn is not None:
            state["noise.sequence"] = self._sequences.copy()
            state["noise.step"] = np.full(len(self._sequences), self._position)
            state["noise.age"] = np.full(len(self._sequences), self._age)
            state["noise.next"] = np.full(len(self._sequences), self._next_sequence)
        return state

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        expected = self._snapshot()
        if set(state) != set(expected):
            raise ConfigurationError(
                f"restore: the snapshot holds {sorted(state)}, this device needs {sorted(expected)}"
            )
        for name, array in expected.items():
            given = np.asarray(state[name])
            if (given.shape[1:], given.dtype) != (array.shape[1:], array.dtype):
                raise ConfigurationError(
                    f"restore: {name} is {given.dtype} of shape {given.shape} in the snapshot, this device needs "
                    f"{array.dtype} (sequences, {', '.join(map(str, array.shape[1:]))})"
                )
        for name in set(state) & {"noise.step", "noise.age", "noise.next"}:
            if len(np.unique(state[name])) > 1:
                raise ConfigurationError(
                    f"restore: {name} differs between the sequences of the snapshot; those of a noisy device advance "
                    "together, so that snapshots taken at different steps cannot be joined"
                )
        self.engine.set_state({name: array for name, array in state.items() if not name.startswith("noise.")})
        if self._drawn is not None:
            self._sequences = np.array(state["noise.sequence"])
            self._position, self._age = int(state["noise.step"][0]), int(state["noise.age"][0])
            self._next_sequence = int(state["noise.next"][0])

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"engine": self.engine.name}
        if self._drawn is not None:
            settings["nonidealities"] = self._nonidealities.model_dump(mode="json")
        return settings


def marked(identity: Identity, nonidealities: Nonidealities) -> Identity:
    """The identity of an ideal device with these non-idealities, if there are any: another fingerprint."""
    if nonidealities.ideal:
        return identity
    content = f"{identity.content} {nonidealities.effective.model_dump_json(exclude={'preset'})}"
    return Identity(**identity.model_dump(exclude={"fingerprint", "content"}), content=content)
