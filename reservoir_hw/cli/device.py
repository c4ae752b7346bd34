"""`reservoir-hw device`."""

from __future__ import annotations

import re
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from reservoir_hw.cli.options import DEVICE, InputRangeOption, InputsOption, JsonOption, SetOption
from reservoir_hw.cli.show import own_stdout, print_facts, print_json, progress_bar, say
from reservoir_hw.core.errors import ConfigurationError, extra

app = typer.Typer(help="A device: what it is, how fast it answers, keys.", no_args_is_help=True)


@app.command("info")
def info(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")],
    inputs: InputsOption = None,
    set_: SetOption = None,
    drive: Annotated[bool, typer.Option(help="Drive it, to see how fast it answers.")] = True,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only drive it twice with N steps; describe its states.")
    ] = None,
    input_range: InputRangeOption = None,
    json: JsonOption = False,
) -> None:
    """Say what a device is, and how fast it answers: round trip of a step, steps and bytes per second.

    It is driven for a few seconds with random inputs within its range, from rest, and left at rest; --no-drive
    only asks it. The same inputs are driven twice: of each node the range, the noise, and what casts doubt on it.
    """
    from reservoir_hw.experiment.devices.info import look_at, reservoir_from_file

    with own_stdout(json):
        config, reservoir = reservoir_from_file(file, set=set_ or [], inputs=inputs)
        with reservoir:
            found = look_at(
                reservoir, config.kind, label=config.label, drive=drive, steps=steps, input_range=input_range
            )
    if json:
        print_json(found.as_dict())
        return
    for title, facts in found.sections():
        typer.echo(title)
        print_facts(facts, indent="  ")


@app.command("memory")
def memory(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")],
    steps: Annotated[int, typer.Option(metavar="N", min=10, help="Look at so many steps after two pasts.")] = 200,
    inputs: InputsOption = None,
    set_: SetOption = None,
    input_range: InputRangeOption = None,
    json: JsonOption = False,
) -> None:
    """Measure after how many steps a device has forgotten what was before, for `memory_steps` of its file.

    It is driven 32 times from rest with random inputs, after unlike pasts; one that is deterministic 4 times. With the
    value go an interval and what would have been seen. `reservoir-hw conform` compares in the same way.
    """
    from reservoir_hw.experiment.devices.info import reservoir_from_file
    from reservoir_hw.experiment.devices.memory import memory_of

    with own_stdout(json), progress_bar() as progress:
        _, reservoir = reservoir_from_file(file, set=set_ or [], inputs=inputs)
        with reservoir:
            found = memory_of(reservoir, steps, input_range=input_range, progress=progress)
    if json:
        print_json(found.as_dict())
    else:
        typer.echo(str(found))


@app.command("find")
def find(
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ADDRESS]...", help="Of VISA (TCPIP::…), served devices (tcp://…, unix://…), serial ports."
        ),
    ] = None,
    serial: Annotated[
        bool, typer.Option("--serial", help="Ask all serial ports of this computer, not only those given.")
    ] = False,
    baud: Annotated[int, typer.Option(metavar="N", min=1, help="Rate at which serial ports are asked.")] = 115200,
    library: Annotated[
        str, typer.Option(metavar="NAME", help='VISA library: @py, or "" for that of a vendor.')
    ] = "@py",
    timeout: Annotated[float, typer.Option(metavar="S", min=0.01, help="The longest wait for an answer.")] = 2.0,
    json: JsonOption = False,
) -> None:
    """Say who answers at these addresses, or else what shows itself: VISA resources and serial ports.

    For each there is a part of a reservoir file. Served devices, and instruments on raw sockets, are found by their
    addresses alone. Exits with 3 if nobody answers at an address that was given.

    A serial port that is given, or any with --serial, is asked as a board of docs/serial-protocol.md. Mind what is
    behind it: some boards begin anew when their port is opened, and an instrument may take the question for something
    else. Without --serial the ports are listed and nothing is sent.
    """
    from reservoir_hw.experiment.devices import find as finding

    if addresses and serial:
        raise typer.BadParameter("--serial asks all serial ports, and addresses say whom to ask: give one of the two")
    with own_stdout(json):
        if addresses:
            remarks = []
            found = [finding.ask(one, library=library, baud=baud, timeout_s=timeout) for one in addresses]
        else:
            found, remarks = finding.look_around(library=library, ask_ports=serial, baud=baud, timeout_s=timeout)
    if json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            said = one.problem.removeprefix(f"{one.address}: ") or one.identity or "not asked"
            typer.echo(f"{one.address} ({one.way}): {said}\n{textwrap.indent(one.snippet, '    ')}")
        if not found:
            typer.echo("nothing was found; instruments on raw sockets and served devices are asked by their address")
    for remark in remarks:
        say(remark)
    if addresses and any(one.problem for one in found):
        raise typer.Exit(DEVICE)


@app.command("calibrate")
def calibrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="CALIBRATION", help="The file to write. (default: `calibration:` of the reservoir)"
        ),
    ] = None,
    inputs: InputsOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Measure a bench (kind: visa): gain, offset, delay, time constant, noise, ranges and memory, with intervals.

    Its output plays small steps, levels over its whole range, and random inputs, for up to a minute. Writes a
    calibration (JSON) and a figure beside it (PNG), and says what to change in the reservoir file.
    """
    from reservoir_hw.experiment.devices.calibrate import calibrate_file

    with own_stdout(json), progress_bar() as progress:
        found = calibrate_file(file, out, set=set_ or [], inputs=inputs, progress=progress)
    if json:
        print_json(found.as_dict())
        return
    print_facts(found.facts())
    figure = f", its figure in {found.figure}" if found.figure else ""
    typer.echo(f"calibration {found.calibration.id} is in {found.file}{figure}")
    for remark in found.remarks:
        typer.echo(remark)


@app.command("reserve")
def reserve(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")],
    until: Annotated[
        str, typer.Option(metavar="TIME", help="18:00 (today, or tomorrow if that has passed), or 2026-01-31 18:00.")
    ],
    note: Annotated[str, typer.Option(metavar="TEXT", help="What for. Whoever is turned away reads it.")] = "",
    inputs: InputsOption = None,
    set_: SetOption = None,
) -> None:
    """Keep a device of this host for yourself until a time.

    Other users are told so, also clients of `serve`. Who has the device now keeps it until they close it.
    """
    from reservoir_hw.core import locks as reservations

    resources = _resources(file, inputs, set_)
    kept = reservations.reserve(resources, reservations.read_end(until), note)
    typer.echo(f"{', '.join(map(repr, resources))}: {kept}")


@app.command("release")
def release(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE|ADDRESS", help="Reservoir or experiment file; or a served device (tcp://...)."),
    ],
    inputs: InputsOption = None,
    set_: SetOption = None,
) -> None:
    """End your reservation of a device before its time; or give a served device back to clients after it was hanging.

    A served device that needs keys is given back by a restart of its server.
    """
    from reservoir_hw.core import locks as reservations

    if "://" in file:
        from reservoir_hw.drivers.zeromq import release_hung

        release_hung(file)
        typer.echo(f"{file}: clients get the device again")
        return
    resources = _resources(Path(file), inputs, set_)
    was_reserved = reservations.release(resources)
    typer.echo(f"{', '.join(map(repr, resources))}: {'free for everybody' if was_reserved else 'was not reserved'}")


def _resources(file: Path, inputs: int | None, set_: list[str] | None) -> tuple[str, ...]:
    """What can be reserved of a device, or `ConfigurationError`."""
    from reservoir_hw.experiment.devices.info import reservoir_from_file

    config, reservoir = reservoir_from_file(file, set=set_ or [], inputs=inputs)
    if not reservoir.resources:
        raise ConfigurationError(
            f"{file}: kind {config.kind} locks nothing on this host, so nothing can be reserved: a simulation is there "
            "for everybody, and a served device is reserved beside its server, with the file that `serve` was given"
        )
    return reservoir.resources


@app.command("keys")
def keys(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose keys: of a device, or of somebody who drives it.")],
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the two files are made.")] = Path(),
) -> None:
    """Make a CURVE key pair for `serve` or `kind: zmq`, in two files. An existing file is never replaced."""
    with extra("zmq", "keys need pyzmq"):
        from reservoir_hw.drivers.zeromq import make_keys
    if re.fullmatch(r"\w[\w.-]*", name) is None:
        raise ConfigurationError(
            f"{name!r} is no name (letters, digits, - and .); --folder says where the keys are made"
        )
    public, secret = make_keys(folder, name)
    typer.echo(
        f"{secret} stays on this machine, readable by its owner alone:\n"
        f"    for a device   reservoir-hw serve ... --secret-key {secret} --clients DIR\n"
        f"    for a client   security.key: {secret}\n"
        f"{public} may be read by everybody:\n"
        "    of a device    security.server_key: of each client names this file, or the key in it\n"
        "    of a client    goes into the folder DIR that the server is given with --clients"
    )
