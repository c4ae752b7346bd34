"""`kind: visa`: the reservoir between a generator and a digitizer."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from reservoir_hw.backends.visa.bench import Bench
from reservoir_hw.backends.visa.burst import Array, BurstLayout
from reservoir_hw.backends.visa.calibration import Calibration
from reservoir_hw.backends.visa.configuration import BenchConfig
from reservoir_hw.core.errors import DeviceError, ReservoirError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.signal import Alignment, MaskConfig, average
from reservoir_hw.core.spec import Identity, ReservoirSpec, ResetByIdle
from reservoir_hw.drivers.visa.roles import Waveform


class VisaConfig(BenchConfig):
    """A generator plays masked inputs to a device; a digitizer takes down its answer, which is read as virtual nodes.

    Each burst is a marker, rest for `memory_steps`, the inputs, and the marker again. The markers tell where in the
    record the inputs lie.
    """

    never = frozenset({"settable", "differentiable"})
    most_at_once = 1

    kind: Literal["visa"]

    def bursts(self, steps: int, *, continued: bool) -> int:
        """How many bursts a run of so many steps takes. Before one that goes on, `memory_steps` are repeated."""
        return self.repetitions * self._pieces(steps + continued * self.memory_steps)

    def played_steps(self, steps: int) -> int:
        """Each burst but the first repeats `memory_steps`, and all of them are played `repetitions` times."""
        if not steps:
            return 0
        return self.repetitions * (steps + (self._pieces(steps) - 1) * self.memory_steps)

    def _pieces(self, steps: int) -> int:
        """How many bursts hold so many steps."""
        # How many inputs there are, and how they are spread, makes no difference.
        alike = self.model_copy(update={"inputs": 1, "mask": MaskConfig()})
        return sum(1 for _ in alike.layout(Bench(self).longest_burst).pieces(steps))

    def build(self) -> VisaReservoir:
        """Not yet open."""
        return VisaReservoir(self)


# For each burst: arming, triggering and transfers, on a slow line.
_INSTRUMENTS_S = 1.0


class VisaReservoir(Reservoir):
    """Plays bursts, and reads states (1, time, nodes) in volts of the device's answer."""

    def __init__(self, config: VisaConfig) -> None:
        self._config, self._bench = config, Bench(config)
        self._layout = config.layout(self._bench.longest_burst)
        # Each burst begins with a rest of its own.
        super().__init__(
            _declared(config, self._layout, self._bench.settle_s),
            reset=ResetByIdle(settle_s=0.0),
            out_of_range=config.out_of_range,
            resource=self._bench.resources,
            knobs=self._bench.auxiliaries.knobs,
            monitors=self._bench.auxiliaries.monitors,
        )
        self._calibration: Calibration | None = None
        self._aligned: Alignment | None = None

    def _open(self) -> None:
        config = self._config
        # Before anything is switched on.
        self._calibration = None if config.calibration is None else Calibration.load(config.calibration)
        self._bench.open()
        if self._calibration is not None:
            self._calibration.expect(self._bench.chain, config.max_calibration_age_h)

    def _close_knobs(self) -> None:
        self._bench.make_safe()

    def _close(self) -> None:
        self._bench.close()

    def played_steps(self, steps: int) -> int:
        """As the configuration says."""
        return self._config.played_steps(steps)

    def seconds_for(self, steps: int, period_s: float) -> float:
        """With the rest around each burst, and what instruments take to arm and to be read."""
        each = self._bench.settle_s + 2 * self._config.memory_steps * period_s + _INSTRUMENTS_S
        return self._config.bursts(steps, continued=False) * each + self.played_steps(steps) * period_s

    def _check_inputs(self, u: Any) -> None:
        range_v = self._config.generator.outputs[self._config.channels.output].range_v
        for sequence in u:
            self._layout.check(sequence, range_v)

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        states = np.empty((1, u.shape[1], self._config.nodes))
        done = 0
        try:
            for piece in self._layout.pieces(u.shape[1]):
                self.refuse_stopped()
                self.look_at_monitors(states[:, :done])
                driven = self._burst(u[0, piece.first - piece.overlap : piece.last])
                states[0, piece.first : piece.last] = driven[piece.overlap :]
                done = piece.last
        except BaseException as error:
            try:
                self._bench.switch_off()
            except ReservoirError as failed:
                error.add_note(f"the outputs could not be switched off: {failed}")
            if isinstance(error, DeviceError):
                error.steps_done, error.states = done, states[:, :done]
            raise
        return states

    def _burst(self, u: Array) -> Array:
        """Inputs (steps, inputs) from rest; states (steps, nodes)."""
        layout = self._layout.at_rate(self._bench.load(self._layout.between_markers(self._layout.driven(u))))
        return average(self._states(layout, self._bench.shot(), len(u)) for _ in range(self._config.repetitions)).mean

    def _states(self, layout: BurstLayout, record: dict[int, Waveform], steps: int) -> Array:
        config = self._config
        answer = record[config.channels.answer]
        self.counters.saturations += answer.clipped
        known = None if self._calibration is None else self._calibration.marker_answer
        self._aligned = self._bench.locate(layout, record, steps, known)
        return layout.states(answer, self._aligned, steps, position=config.read_at, average=config.average)

    def _emergency_stop(self) -> None:
        """The guard has connections of its own: it switches the outputs off."""
        self._bench.guard.abandon()

    def read_back(self) -> dict[str, Any]:
        """Which instruments there are. Knobs are judged when they are turned."""
        return self._bench.settings()["instruments"]

    def _settings(self) -> dict[str, Any]:
        calibration, aligned = self._calibration, self._aligned
        return {
            **self._bench.settings(),
            "calibration_id": "" if calibration is None else calibration.id,
            "calibration_age_h": None if calibration is None else round(calibration.age_h(), 2),
            "clock_ppm": None if aligned is None else round(1e6 * (aligned.clock_ratio - 1), 2),
            "residual": None if aligned is None else aligned.residual,
        }


def _declared(config: BenchConfig, layout: BurstLayout, settle_s: float) -> ReservoirSpec:
    read = (
        f"read {config.read_at!r} {config.average!r} knobs {[(name, knob.set) for name, knob in config.knobs.items()]}"
    )
    return ReservoirSpec(
        inputs=config.required_inputs(),
        nodes=config.nodes,
        dtype="float64",
        input_range=config.input_range,
        state_range=config.digitizer.inputs[config.channels.answer].range_v,
        max_batch=1,
        continuity="replayed",
        memory_steps=config.memory_steps,
        step_period_s=config.step_period_s,
        reset_time_s=settle_s,
        snapshot=True,
        state_unit="V",
        identity=Identity(
            vendor="bench",
            model=config.device_name,
            simulated=config.simulated,
            content=f"{layout.content()} {read}",
        ),
    )
