"""Export of a readout that was trained on the states of a series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.deploy.export_result import ExportResult
from reservoir_hw.experiment.deploy.header import ranges_of, used_ranges, write_header
from reservoir_hw.experiment.deploy.job import (
    RECORDED_STEPS,
    ExportJob,
    carried_at_rest,
    check_devices,
    simulated_networks,
)
from reservoir_hw.experiment.deploy.quantised import (
    Metrics,
    QuantisedReadout,
    check_loss,
    random_loss,
    series_loss,
    session_computes,
)
from reservoir_hw.experiment.deploy.stored import Stored
from reservoir_hw.readout.configuration import StateReadoutConfig
from reservoir_hw.readout.edge.manifest import Loss

if TYPE_CHECKING:
    from reservoir_hw.readout.export.plan import Values


def export_readout(work: ExportJob, *, offline: bool) -> ExportResult:
    """Export a readout; unless offline, its device is opened and driven."""
    row, config = work.row, work.row.point.config
    settings = cast(StateReadoutConfig, config.readout)
    readout: Any = settings.load(row.weights)
    stored = Stored(row)
    if settings.keeps_learning:
        stored.notes.append("The readout went on learning in the test; what is exported has its last weights.")
    if offline:
        (spec,) = row.reservoirs
        return _write_readout(work, readout, spec, None, None, stored, ranges_of(spec, None, None))
    from reservoir_hw.readout.export.recording import record_series

    task = row.task()
    work.say("opening")
    with work.device.of(row.point, task) as device:
        check_devices(row, [device])
        tested = bool(task.test.targets.shape[1])
        split = task.test if tested else task.train
        whole = split.steps_of(slice(1))

        def record(steps: int) -> Values:
            work.say(f"driving {steps} steps from rest")
            return record_series(device, split.inputs[:1, :steps])

        steps = min(stored.washout + RECORDED_STEPS, whole)
        recorded = record(steps)
        if steps <= stored.washout:
            stored.notes.append(
                f"The washout of {stored.washout} steps is longer than what there is to drive: {steps}."
            )
        if tested and not (task.closed_loop or settings.keeps_learning):
            stored.settles(
                lambda steps: _answers(readout, record(steps)),
                _answers(readout, recorded),
                deterministic=device.spec.deterministic,
            )
            if min(stored.washout + RECORDED_STEPS, whole) > steps:
                recorded = record(min(stored.washout + RECORDED_STEPS, whole))
        ranges = ranges_of(device.spec, recorded, task)
        metrics, loss = {}, None
        if work.precision == "int8" and tested:
            quantised = _quantised_readout(work, readout, device.spec, ranges)
            driven = len(task.test.inputs) * task.test.inputs.shape[1] * config.training.repetitions
            add = work.say("driving the test", driven)
            metrics, loss = series_loss(row.point, task, device, readout, quantised, stored, add)
            loss = check_loss(loss, metrics, stored.spread, accept=work.accept_loss)
        return _write_readout(work, readout, device.spec, device, recorded, stored, ranges, metrics, loss)


def _answers(readout: Any, recorded: Values) -> np.ndarray:
    """Of a readout to what was recorded."""
    return np.asarray(readout.predict(recorded["states_0"], recorded["inputs"] if readout.input_connection else None))


def _write_readout(
    work: ExportJob,
    readout: Any,
    spec: ReservoirSpec,
    device: Reservoir | None,
    recorded: Values | None,
    stored: Stored,
    ranges: dict[str, tuple[float, float]],
    metrics: Metrics | None = None,
    loss: Loss | None = None,
) -> ExportResult:
    metrics = metrics or {}
    if work.precision == "int8" and loss is None:
        loss = Loss(judged_on="nothing")
    repetitions = work.row.point.config.training.repetitions
    if work.target == "c":
        exported = write_header(work, readout, [spec], ranges, recorded, stored, loss)
    else:
        from reservoir_hw.readout.export.segments import plan_of_states
        from reservoir_hw.readout.export.whole_model import whole_plan

        devices = [] if device is None else [device]
        if work.target == "whole":
            if repetitions > 1:
                raise ConfigurationError(
                    f"training.repetitions is {repetitions}, and a network without noise has nothing to average: run "
                    "the experiment with 1, or export the segments"
                )
            plan = whole_plan(readout, simulated_networks(devices), work.precision, reservoir=device)
            recorded = carried_at_rest(plan, recorded)
        else:
            plan = plan_of_states(readout, spec, work.precision, recorded=recorded, spread=stored.spread)
        if loss is not None and loss.judged_on == "nothing":
            coded = plan_of_states(readout, spec, work.precision)
            if stored.spread is not None and (spec.state_range is not None or coded.state_scale is not None):
                loss = random_loss(plan_of_states(readout, spec, spread=stored.spread), coded, stored.spread)
                loss = check_loss(loss, {}, stored.spread, accept=work.accept_loss)
        exported = work.write_bundle(
            plan, devices, recorded, metrics,
            repetitions=repetitions, spread=stored.spread, washout=stored.washout, ranges=stored.ranges, loss=loss,
        )  # fmt: skip
    exported.notes += stored.notes
    exported.metrics, exported.loss = metrics, loss
    return exported


def _quantised_readout(
    work: ExportJob, readout: Any, spec: ReservoirSpec, ranges: dict[str, tuple[float, float]]
) -> QuantisedReadout:
    """The readout in int8 as it will be exported."""
    if work.target == "c":
        from reservoir_hw.readout.export.c_header import int8_readout

        coded = int8_readout(readout, **used_ranges(readout, ranges))
        return QuantisedReadout(readout.input_connection, lambda states, inputs: coded.predict(states, inputs)[0])
    from reservoir_hw.readout.export.segments import plan_of_states

    (compute,) = session_computes(plan_of_states(readout, spec, "int8"))

    def outputs(states: np.ndarray, inputs: np.ndarray | None) -> np.ndarray:
        given = {"states_0": states.astype(spec.dtype)}
        if inputs is not None:
            given["inputs"] = inputs.astype(spec.dtype)
        return compute(given)["outputs"]

    return QuantisedReadout(readout.input_connection, outputs)
