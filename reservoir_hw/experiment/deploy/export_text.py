"""Export of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from reservoir_hw.core.documents import joined
from reservoir_hw.core.errors import ConfigurationError, NotSupported
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import build_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.tokenizer import Tokenizer, load_tokenizer
from reservoir_hw.experiment.deploy.export_result import ExportResult
from reservoir_hw.experiment.deploy.header import ranges_of, used_ranges, write_header
from reservoir_hw.experiment.deploy.job import (
    RECORDED_STEPS,
    ExportJob,
    carried_at_rest,
    check_devices,
    simulated_networks,
)
from reservoir_hw.experiment.deploy.quantised import Metrics, check_loss, session_computes, text_loss
from reservoir_hw.experiment.deploy.trained import TrainedRow
from reservoir_hw.experiment.run.by_gradients import model_of, opened_model
from reservoir_hw.experiment.run.text_plan import gradient_of
from reservoir_hw.readout.edge.manifest import Loss
from reservoir_hw.tasks.task import Tokens

if TYPE_CHECKING:
    from reservoir_hw.readout.export.plan import Values
    from reservoir_hw.readout.models.token_model import TokenModel

# Tokens of the test that are shown as a prompt.
_PROMPT = 12


def export_model(work: ExportJob, *, offline: bool) -> ExportResult:
    """Export a model; unless offline, its devices are opened and driven."""
    from reservoir_hw.readout.training import load_weights

    row, config = work.row, work.row.point.config
    tokenizer = load_tokenizer(row.tokenizer)
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
        load_weights(model, row.weights)
        return _write_model(work, model, devices, task, tokenizer)


def _write_model(
    work: ExportJob, model: TokenModel, devices: Sequence[Reservoir] | None, task: Tokens | None, tokenizer: Tokenizer
) -> ExportResult:
    if work.target == "c":
        return _write_model_header(work, model, devices, task)
    from reservoir_hw.readout.export.segments import plan_of
    from reservoir_hw.readout.export.whole_model import whole_plan

    recorded = None if task is None else _recorded_text(work, model, task)
    metrics: Metrics = {}
    loss = None
    if work.precision == "int8":
        metrics, loss = _text_loss(work, model, task, lambda: session_computes(plan_of(model, (), "int8")))
    if work.target == "whole":
        networks = simulated_networks([layer.reservoir for layer in model.reservoir_layers])
        plan = whole_plan(model, networks, work.precision)
        recorded = carried_at_rest(plan, recorded)
    else:
        plan = plan_of(model, (), work.precision)
    exported = work.write_bundle(plan, devices or [], recorded, metrics, tokenizer=tokenizer, loss=loss)
    exported.loss = loss
    if task is not None:
        exported.prompt = tokenizer.decode(joined(task.tokens_test)[:_PROMPT]).split("\n")[0] or exported.prompt
    return exported


def _write_model_header(
    work: ExportJob, model: TokenModel, devices: Sequence[Reservoir] | None, task: Tokens | None
) -> ExportResult:
    if not model_of(work.row.point.config).reads_states_alone:
        raise ConfigurationError(
            f"target c is for linear and low-rank readouts of one reservoir, not for a {type(model).__name__}: "
            "export its segments"
        )
    (layer,) = model.reservoir_layers
    spec = layer.spec
    recorded = None if task is None else _recorded_text(work, model, task)
    ranges = ranges_of(spec, recorded, None)
    metrics: Metrics = {}
    loss = None
    if work.precision == "int8":

        def quantised() -> list[Any]:
            from reservoir_hw.readout.export.c_header import int8_readout
            from reservoir_hw.readout.export.segments import plan_of

            coded = int8_readout(model.readout, **used_ranges(model.readout, ranges))
            return [plan_of(model).references[0], lambda given: {"outputs": coded.predict(given["states_0"])[0]}]

        metrics, loss = _text_loss(work, model, task, quantised)
    specs = [device.spec for device in devices or []] or [spec]
    exported = write_header(work, model.readout, specs, ranges, recorded, loss=loss)
    exported.metrics, exported.loss = metrics, loss
    return exported


def _text_loss(
    work: ExportJob, model: TokenModel, task: Tokens | None, quantised: Callable[[], Sequence[Any]]
) -> tuple[Metrics, Loss]:
    """What int8 costs; nobody knows without a text."""
    if task is None:
        return {}, Loss(judged_on="nothing")
    from reservoir_hw.readout.export.segments import plan_of

    add = work.say("judging int8 on the test", len(joined(task.tokens_test)))
    options = gradient_of(work.row.point.config).options
    metrics, loss = text_loss(model, plan_of(model), quantised(), task, options, add)
    return metrics, check_loss(loss, metrics, None, accept=work.accept_loss)


def _recorded_text(work: ExportJob, model: TokenModel, task: Tokens) -> Values:
    from reservoir_hw.readout.export.recording import record_text

    tokens = joined(task.tokens_test)[None, :RECORDED_STEPS]
    work.say(f"recording {tokens.shape[1]} tokens")
    return record_text(model, tokens)


class DeclaredReservoir(Reservoir):
    """A device that is not there: it has a declaration, and cannot be driven."""

    def __init__(self, spec: ReservoirSpec) -> None:
        # What a device can do, but this does not.
        able = {"snapshot": False, "settable": False, "programmable": False}
        super().__init__(spec.model_copy(update=able))
        if spec.differentiable:
            self.native = "torch"

    def _reset(self, batch: int) -> None:
        pass

    def _run(self, u: Any, out: Any = None) -> Any:
        raise NotSupported("this model was loaded without its device: nothing can be driven")


@contextmanager
def model_without_devices(row: TrainedRow, tokenizer: Tokenizer) -> Iterator[tuple[TokenModel, None]]:
    """The untrained model around what the devices declared when it was trained."""
    settings = model_of(row.point.config)
    with ExitStack() as stack:
        absent = [stack.enter_context(DeclaredReservoir(spec)) for spec in row.reservoirs]
        twins = [stack.enter_context(build_reservoir(twin)) for twin in settings.twins(tokenizer.vocabulary)]
        yield settings.build(tokenizer.vocabulary, absent, twins), None
