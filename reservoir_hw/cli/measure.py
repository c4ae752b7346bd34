"""`reservoir-hw measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import InputRangeOption, JsonOption, ReservoirOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_result, progress_bar
from reservoir_hw.core.errors import ConfigurationError, MissingExtra


def measure(
    source: Annotated[
        str, typer.Argument(metavar="FILE|TRACE", help="Experiment or reservoir file, or the folder of a trace.")
    ],
    reservoir: ReservoirOption = None,
    set_: SetOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Take this measure alone, e.g. consistency. May be repeated."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the long drive of a device.")] = 20_000,
    washout: Annotated[
        int | None, typer.Option(min=0, help="First steps that do not count. (default: 200; less for a short trace)")
    ] = None,
    max_delay: Annotated[
        int | None, typer.Option("--max-delay", min=0, help="Longest delay. (default: twice the number of nodes)")
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, help="How often a device is driven with the same inputs.")] = 10,
    input_range: InputRangeOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
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
    from reservoir_hw.experiment.devices.measure import check_qualification
    from reservoir_hw.experiment.devices.measure import measure as take_measures

    given = parsed_axes(axes or [])
    if (axes or unchecked) and not qualify:
        raise ConfigurationError("--map and --unchecked belong to --qualify")
    with own_stdout(json), progress_bar() as progress:
        if qualify and not unchecked and not _is_trace(source):
            check_qualification(
                source, reservoir=reservoir, set=set_ or [], only=only, input_range=input_range, axes=given
            )
            _must_conform(source, reservoir, set_ or [])
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
            on_plan=lambda plan: typer.echo(plan, err=True),
            progress=progress,
        )
    print_result(result, json=json)


def parsed_axes(given: list[str]) -> dict[str, list[float]]:
    """Axes of a map from texts "AXIS=V1,V2"."""
    axes: dict[str, list[float]] = {}
    for text in given:
        name, _, values = text.partition("=")
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


def _is_trace(source: str) -> bool:
    return "://" in source or Path(source).is_dir()


def _must_conform(source: str, reservoir: Path | None, settings: list[str]) -> None:
    """Raise `ConfigurationError` where the conformance suite counts something against the device."""
    try:
        from reservoir_hw.testing.conformance import conform
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise MissingExtra(
            "a device is qualified after the conformance suite, which needs pytest: pip install 'reservoir-hw[test]', "
            "or --unchecked"
        ) from error
    from reservoir_hw.experiment.devices.reservoir_file import config_from_file

    report = conform(config_from_file(source if reservoir is None else reservoir, set=settings))
    typer.echo(f"conform: {report.summary}", err=True)
    if not report.passed:
        failed = "; ".join(f"{one.title}: {one.text}" for one in report.alarms[:3])
        raise ConfigurationError(
            f"the device does not conform, so it is not qualified: {failed}. `reservoir-hw conform` says more; "
            "--unchecked qualifies it all the same"
        )
