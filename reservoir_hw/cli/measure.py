"""`reservoir-hw measure`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reservoir_hw.cli.options import InputRangeOption, JsonOption, OnlyOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar, say
from reservoir_hw.core.errors import ConfigurationError, extra

if TYPE_CHECKING:
    from reservoir_hw.core.reservoir_config import ReservoirConfig
    from reservoir_hw.experiment.devices.measure import Share
    from reservoir_hw.experiment.states.progress import Progress
    from reservoir_hw.testing.report import Report


def measure(
    source: Annotated[
        str, typer.Argument(metavar="FILE|TRACE", help="Experiment or reservoir file, or the folder of a trace.")
    ],
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    only: OnlyOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the long drive of a device.")] = 20_000,
    washout: Annotated[
        int | None, typer.Option(min=0, help="First steps that do not count. (default: 200; less for a short trace)")
    ] = None,
    max_delay: Annotated[
        int | None,
        typer.Option(
            min=0, help="Longest delay. (default: twice the number of nodes, but at most a tenth of the steps)"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, help="How often a device is driven with the same inputs.")] = 10,
    input_range: InputRangeOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="STEPS|TIME", help="Of a device: take fewer repeats, e.g. 20000 or 20m. (default: no limit)"
        ),
    ] = None,
    qualify: Annotated[
        bool,
        typer.Option(
            "--qualify", help="Say what a device is good for, and where it is lost; after conform has passed it."
        ),
    ] = False,
    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="AXIS=V1,V2,...",
            help="Axis of the operating map: amplitude, bias, hold, or a key, e.g. reservoir.leak_rate=0.2,0.5,1. May "
            "be repeated.",
        ),
    ] = None,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Qualify a device that was not looked at by conform, or fails it.")
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where the folder with the results is made.")] = Path("runs"),
    json: JsonOption = False,
) -> None:
    """Say what a reservoir is worth: memory, processing capacity, consistency, Lyapunov exponent and more.

    A device is driven with random inputs; of a trace, what it holds is measured. Prints a table with intervals and the
    reason for whatever could not be measured, and writes a folder with figures and a self-contained report.html.

    With --qualify: a noise budget (linear, nonlinear, lost to noise), an operating map, the coverage of a behaviour
    space, the Lyapunov spectrum, and the climate of a closed loop.
    """
    from reservoir_hw.experiment.devices.measure import measure as take_measures

    given = parsed_axes(axes or [])
    if (axes or unchecked) and not qualify:
        raise ConfigurationError("--map and --unchecked belong to --qualify")
    with own_stdout(json), progress_bar() as progress:
        result = take_measures(
            source,
            reservoir=reservoir,
            set=set_ or [],
            only=only,
            steps=steps,
            washout=washout,
            repeats=repeats,
            max_delay=max_delay,
            input_range=input_range,
            seed=seed,
            qualify=qualify,
            axes=given,
            folder=folder,
            budget=budget,
            conform=None if unchecked else _conform,
            on_plan=say,
            progress=progress,
        )
    print_result(result, json=json)


def parsed_axes(given: list[str]) -> dict[str, list[float]]:
    """Axes of a map from texts "AXIS=V1,V2"."""
    axes: dict[str, list[float]] = {}
    for text in given:
        name, _, values = text.partition("=")
        if name in axes:
            raise ConfigurationError(f"--map {name} is given twice: put all its values into one, {name}=V1,V2,...")
        try:
            axes[name] = [_number(value) for value in values.split(",")]
        except ValueError:
            raise ConfigurationError(f"--map {text}: write AXIS=V1,V2,... with numbers") from None
    return axes


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _conform(config: ReservoirConfig, *, budget: Share, progress: Progress | None) -> Report:
    """The conformance suite, whose result is said."""
    with extra("test", "a device is qualified after the conformance suite (or --unchecked), which needs pytest"):
        from reservoir_hw.testing.conformance import conform
    report = conform(config, budget=budget, progress=progress)
    say(f"conform: {report.summary}")
    return report
