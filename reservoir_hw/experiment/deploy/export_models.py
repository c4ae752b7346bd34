"""Export of a readout of states, or of a language model, as a bundle or as a C header."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from reservoir_hw.core.arrays import limits_of
from reservoir_hw.core.errors import ConfigurationError, NotSupported
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.tokenizer import Tokenizer, joined, load_tokenizer
from reservoir_hw.experiment.deploy.job import (
    RECORDED_STEPS,
    Export,
    carried_at_rest,
    check_devices,
)
from reservoir_hw.experiment.deploy.quantised import (
    QuantisedReadout,
    check_loss,
    random_loss,
    series_loss,
    session_computes,
    text_loss,
)
from reservoir_hw.experiment.deploy.trained import Stored, TrainedRow
from reservoir_hw.experiment.run.by_gradients import model_of, opened_model
from reservoir_hw.experiment.run.text_training import gradient_of
from reservoir_hw.readout.configuration import StateReadoutConfig
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.readout.edge.verification import spread_of
from reservoir_hw.tasks.task import Task, Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.export.graph import Values
    from reservoir_hw.readout.models.token_model import TokenModel


LIMIT = 1e-3
"""Of the error of a header that computes in float32, in spreads of the output."""


def ranges_of(spec: ReservoirSpec, recorded: Values | None, task: Task | None) -> dict[str, tuple[float, float]]:
    """The range of states and inputs: as the device declares it, otherwise as recorded."""
    found = {}
    if spec.state_range is not None:
        found["state_range"] = spec.state_range
    elif recorded is not None:
        found["state_range"] = limits_of(recorded["states_0"])
    if spec.input_range is not None:
        found["input_range"] = spec.input_range
    elif task is not None:
        found["input_range"] = limits_of(task.train.inputs)
    return found


def used_ranges(readout: Any, ranges: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """Those that the header needs."""
    names = ("state_range", "input_range") if getattr(readout, "input_connection", False) else ("state_range",)
    return {name: ranges[name] for name in names if name in ranges}


def precision_note(readout: Any, recorded: Values, stored: Stored | None = None) -> str:
    """What float32 changes on recorded states behind the washout, in words.

    Raises `ConfigurationError` where an output loses more than `LIMIT` of what it moves by.
    """
    states = recorded["states_0"]
    inputs = recorded.get("inputs") if getattr(readout, "input_connection", False) else None
    # Overflow is an error of its own, found below.
    with np.errstate(over="ignore", invalid="ignore"):
        both = [header_outputs(readout, states, inputs, dtype) for dtype in (np.float32, np.float64)]
        single, exact = both if stored is None else map(stored.behind, both)
        spread = spread_of(exact) if stored is None or stored.spread is None else stored.spread
        errors = np.abs(single - exact).reshape(-1, len(spread)).max(axis=0) / spread
    # NaN loses all.
    lost = np.nan_to_num(errors, nan=np.inf)
    worst = int(lost.argmax())
    measured = (
        f"at most {errors[worst]:.2g} of what it moves by on {math.prod(exact.shape[:-1])} recorded steps (output "
        f"{worst}, whose standard deviation is {spread[worst]:.2g})"
    )
    if lost[worst] > LIMIT:
        raise ConfigurationError(
            f"a header that computes in float32 differs from this readout by {measured}: more than {LIMIT:g} of it. "
            "Large states and weights that cancel are lost in float32: train again on states that are scaled to about "
            "1 and have no large mean, or with a larger alpha; nothing was written"
        )
    return f"float32 changes an output by {measured}."


def header_outputs(readout: Any, states: np.ndarray, inputs: np.ndarray | None, dtype: Any) -> np.ndarray:
    """What the fp32 header computes, in its order of sums, in a dtype."""
    from reservoir_hw.readout.export.headers import matrices_of

    def dot(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
        weights = weights.astype(dtype)
        sums = np.zeros((4, *values.shape[:-1], len(weights)), dtype)
        in_fours = weights.shape[1] // 4 * 4
        for feature in range(weights.shape[1]):
            sums[feature % 4 if feature < in_fours else 0] += values[..., feature, None] * weights[:, feature]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    first, second, bias, widths = matrices_of(readout)
    found = dot(first[:, : widths.nodes], states.astype(dtype))
    outputs = bias.astype(dtype) + (found if second is None else dot(second, found))
    return outputs if inputs is None else outputs + dot(first[:, widths.nodes :], inputs.astype(dtype))


def write_header(
    work: Export,
    readout: Any,
    specs: Sequence[ReservoirSpec],
    ranges: Mapping[str, tuple[float, float]],
    recorded: Values | None,
    stored: Stored | None = None,
) -> None:
    """Write the header of a readout, with what was trained where in its comment."""
    from reservoir_hw.readout.export.headers import c_header

    name = re.sub(r"\W", "_", work.path.stem, flags=re.ASCII) or "readout"
    if name[0].isdigit():
        name = f"readout_{name}"
    provenance = {
        "trained in the run of": str(work.row.provenance.get("time", "")),
        "model": work.row.label,
        **{f"device {number}": spec.identity.fingerprint for number, spec in enumerate(specs)},
    }
    if work.loss is not None:
        provenance["precision"] = str(work.loss)
    used = used_ranges(readout, ranges) if work.precision == "int8" else {}
    work.notes += [f"{key.replace('_', ' ')} {low:g} to {high:g}" for key, (low, high) in used.items()]
    if recorded is not None and work.precision == "fp32":
        work.notes.append(precision_note(readout, recorded, stored))
    washout = 0 if stored is None else stored.washout
    text = c_header(
        readout, name=name, precision=work.precision, provenance=provenance, series=work.row.series, washout=washout,
        **used,
    )  # fmt: skip
    work.path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(work.path, text)
    work.bytes = work.path.stat().st_size


# ---- Export of a readout that was trained on the states of a series.


def export_readout(work: Export, *, offline: bool) -> None:
    """Export a readout; unless offline, its device is opened and driven."""
    row, config = work.row, work.row.point.config
    settings = cast(StateReadoutConfig, config.readout)
    readout: Any = settings.load(row.file())
    stored = Stored(row, work.notes)
    if settings.keeps_learning:
        work.notes.append("The readout went on learning in the test; what is exported has its last weights.")
    with ExitStack() as stack:
        device, recorded, task = None, None, None
        if not offline:
            task = row.task()
            work.say("opening")
            device = stack.enter_context(work.device.of(row.point, task))
            check_devices(row, [device])
            recorded = _recorded_series(work, settings, readout, task, device, stored)
        spec = row.reservoirs[0] if device is None else device.spec
        ranges = ranges_of(spec, recorded, task)
        if work.precision == "int8":
            work.loss = Loss(judged_on="nothing")
            if device is not None and task is not None and task.test.targets.shape[1]:
                quantised = _quantised_readout(work, readout, spec, ranges)
                driven = len(task.test.inputs) * task.test.inputs.shape[1] * config.training.repetitions
                add = work.say("driving the test", driven)
                work.metrics, loss = series_loss(row.point, task, device, readout, quantised, stored, add)
                work.loss = check_loss(loss, work.metrics, stored.spread, accept=work.accept_loss)
        if work.target == "c":
            write_header(work, readout, [spec], ranges, recorded, stored)
        else:
            _write_graphs(work, readout, spec, device, recorded, stored)


def _recorded_series(
    work: Export, settings: StateReadoutConfig, readout: Any, task: Task, device: Reservoir, stored: Stored
) -> Values:
    """What an open device answers to the beginning of the test, behind the washout, which may become longer."""
    from reservoir_hw.readout.export.recording import record_series

    tested = bool(task.test.targets.shape[1])
    split = task.test if tested else task.train
    whole = split.steps_of(slice(1))

    def record(steps: int) -> Values:
        work.say(f"driving {steps} steps from rest")
        return record_series(device, split.inputs[:1, :steps])

    def answers(recorded: Values) -> np.ndarray:
        inputs = recorded["inputs"] if readout.input_connection else None
        return np.asarray(readout.predict(recorded["states_0"], inputs))

    steps = min(stored.washout + RECORDED_STEPS, whole)
    recorded = record(steps)
    if steps <= stored.washout:
        work.notes.append(f"The washout of {stored.washout} steps is longer than what there is to drive: {steps}.")
    if not tested or task.closed_loop or settings.keeps_learning:
        return recorded
    stored.settles(lambda steps: answers(record(steps)), answers(recorded), deterministic=device.spec.deterministic)
    longer = min(stored.washout + RECORDED_STEPS, whole)
    return record(longer) if longer > steps else recorded


def _write_graphs(
    work: Export, readout: Any, spec: ReservoirSpec, device: Reservoir | None, recorded: Values | None, stored: Stored
) -> None:
    from reservoir_hw.readout.export.segments import plan_of_states, whole_plan

    repetitions = work.row.point.config.training.repetitions
    devices = [] if device is None else [device]
    if work.target == "whole":
        if repetitions > 1:
            raise ConfigurationError(
                f"training.repetitions is {repetitions}, and a network without noise has nothing to average: run "
                "the experiment with 1, or export the segments"
            )
        plan = whole_plan(readout, work.precision, reservoir=device)
        recorded = carried_at_rest(plan, recorded)
    else:
        plan = plan_of_states(readout, spec, work.precision, recorded=recorded, spread=stored.spread)
    if work.loss is not None and work.loss.judged_on == "nothing":
        coded = plan_of_states(readout, spec, work.precision)
        if stored.spread is not None and (spec.state_range is not None or coded.state_scale is not None):
            loss = random_loss(plan_of_states(readout, spec, spread=stored.spread), coded, stored.spread)
            work.loss = check_loss(loss, {}, stored.spread, accept=work.accept_loss)
    work.write_bundle(
        plan, devices, recorded,
        repetitions=repetitions, spread=stored.spread, washout=stored.washout, ranges=stored.ranges,
    )  # fmt: skip


def _quantised_readout(
    work: Export, readout: Any, spec: ReservoirSpec, ranges: dict[str, tuple[float, float]]
) -> QuantisedReadout:
    """The readout in int8 as it will be exported."""
    if work.target == "c":
        from reservoir_hw.readout.export.headers import int8_readout

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


# ---- Export of a language model.


# Tokens of the test that are shown as a prompt.
_PROMPT = 12


def export_model(work: Export, *, offline: bool) -> None:
    """Export a model; unless offline, its devices are opened and driven."""
    from reservoir_hw.readout.export.segments import plan_of, whole_plan
    from reservoir_hw.readout.training import load_weights

    row, config = work.row, work.row.point.config
    tokenizer = load_tokenizer(row.file("tokenizer"))
    with ExitStack() as stack:
        if offline:
            task = None
            model, devices = stack.enter_context(model_without_devices(row, tokenizer))
        else:
            task = model_of(config).tokens_of(row.task())
            if task.vocabulary != tokenizer.vocabulary:
                raise ConfigurationError(
                    f"the text has {task.vocabulary} different tokens now, and had {tokenizer.vocabulary} when the "
                    "model was trained: put back the text of the run, or export offline"
                )
            work.say("opening")
            model, devices = stack.enter_context(opened_model(row.point, task))
            check_devices(row, devices)
        load_weights(model, row.file())
        if work.target == "c":
            _write_model_header(work, model, devices, task)
            return
        recorded = None if task is None else _recorded_text(work, model, task)
        _judge_text(work, model, task, lambda: session_computes(plan_of(model, (), "int8")))
        if work.target == "whole":
            plan = whole_plan(model, work.precision)
            recorded = carried_at_rest(plan, recorded)
        else:
            plan = plan_of(model, (), work.precision)
        work.write_bundle(plan, devices, recorded, tokenizer=tokenizer)
        if task is not None:
            work.prompt = tokenizer.decode(joined(task.tokens_test)[:_PROMPT]).split("\n")[0] or work.prompt


def _write_model_header(work: Export, model: TokenModel, devices: Sequence[Reservoir], task: Tokens | None) -> None:
    if not model_of(work.row.point.config).reads_states_alone:
        raise ConfigurationError(
            f"target c is for linear and low-rank readouts of one reservoir, not for a {type(model).__name__}: "
            "export its segments"
        )
    recorded = None if task is None else _recorded_text(work, model, task)
    (layer,) = model.reservoir_layers
    ranges = ranges_of(layer.spec, recorded, None)

    def quantised() -> list[Any]:
        from reservoir_hw.readout.export.headers import int8_readout
        from reservoir_hw.readout.export.segments import plan_of

        coded = int8_readout(model.readout, **used_ranges(model.readout, ranges))
        return [plan_of(model).references[0], lambda given: {"outputs": coded.predict(given["states_0"])[0]}]

    _judge_text(work, model, task, quantised)
    write_header(work, model.readout, [device.spec for device in devices] or [layer.spec], ranges, recorded)


def _judge_text(work: Export, model: TokenModel, task: Tokens | None, quantised: Callable[[], Sequence[Any]]) -> None:
    """What int8 costs; nobody knows without a text."""
    if work.precision != "int8":
        return
    work.loss = Loss(judged_on="nothing")
    if task is None:
        return
    add = work.say("judging int8 on the test", len(joined(task.tokens_test)))
    options = gradient_of(work.row.point.config).options
    work.metrics, loss = text_loss(model, quantised(), task, options, add)
    work.loss = check_loss(loss, work.metrics, None, accept=work.accept_loss)


def _recorded_text(work: Export, model: TokenModel, task: Tokens) -> Values:
    from reservoir_hw.readout.export.recording import record_text

    tokens = joined(task.tokens_test)[None, :RECORDED_STEPS]
    work.say(f"recording {tokens.shape[1]} tokens")
    return record_text(model, tokens)


class DeclaredReservoir(Reservoir):
    """A device that is not there: it has a declaration, and cannot be driven."""

    def __init__(self, spec: ReservoirSpec) -> None:
        # What a device can do, but this does not.
        super().__init__(spec.model_copy(update={"snapshot": False, "settable": False, "programmable": False}))
        if spec.differentiable:
            self.native = "torch"

    def _reset(self, batch: int) -> None:
        pass

    def _run(self, u: Any, out: Any = None) -> Any:
        raise NotSupported("this model was loaded without its device: nothing can be driven")


@contextmanager
def model_without_devices(row: TrainedRow, tokenizer: Tokenizer) -> Iterator[tuple[TokenModel, list[Reservoir]]]:
    """The untrained model around what the devices declared when it was trained."""
    settings = model_of(row.point.config)
    with ExitStack() as stack:
        absent = [stack.enter_context(DeclaredReservoir(spec)) for spec in row.reservoirs]
        channels = settings.driven_with(tokenizer.vocabulary)
        twins = [stack.enter_context(build_reservoir(twin)) for twin in settings.twins(channels)]
        yield settings.build(tokenizer.vocabulary, absent, twins), []
