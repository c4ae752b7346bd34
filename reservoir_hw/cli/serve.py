"""`reservoir-hw serve`, and with `--check` what a server does, rule by rule of docs/protocol.md."""

from __future__ import annotations

import logging
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reservoir_hw.cli.options import InputsOption, JsonLines, SetOption
from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.files import must_be_writable
from reservoir_hw.core.interrupts import StopOnSignals

if TYPE_CHECKING:
    from reservoir_hw.drivers.zeromq import Allowed
    from reservoir_hw.serving import Server
    from reservoir_hw.testing.protocol.device import Device


# Of each frame of a broken rule; JSON and JUnit XML have more.
_SHOWN_BYTES = 96
# What goes together with --check.
_WITH_CHECK = {"check", "control", "junit", "json"}


def must_be_alone(ctx: typer.Context) -> None:
    """Raise `ConfigurationError` if something was given that only says how to serve."""
    given = [
        "FILE" if name == "file" else parameter.opts[0]
        for parameter in ctx.command.params
        if (name := parameter.name or "") not in _WITH_CHECK
        and getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ConfigurationError(
            f"--check looks at a server that is running already, and serves nothing: leave out {', '.join(given)}"
        )


def look(address: str, control: str | None, junit: Path | None, *, as_json: bool) -> None:
    """Look at the server that listens there, rule by rule, and print what was found.

    Exits with 1 if a rule is broken. Raises as `testing.protocol.check.check`.
    """
    from reservoir_hw.cli.show import print_facts, print_json, print_tables, progress_bar, say

    with extra("zmq", "looking at a server needs pyzmq"):
        from reservoir_hw.testing.protocol import lease
        from reservoir_hw.testing.protocol.check import check
        from reservoir_hw.testing.protocol.ledger import Broken
    if junit is not None:
        # Before the device is driven: what is found must have a place.
        must_be_writable(junit, "the JUnit XML")

    def begin(device: Device, rules: int) -> None:
        try:
            told = f"; the leases of {device.lease_s:g} s take {lease.seconds_of(device):.0f} s of it"
        except Broken:
            told = ""
        say(f"Looking at {device.address}: {rules} rules{told}.")

    with progress_bar() as progress:
        report = check(address, control=control, on_start=begin, progress=progress)
    if junit is not None:
        report.write_junit(junit)
    if as_json:
        print_json(report.as_dict())
    else:
        print_tables(report.tables())
        for row in report.broken:
            typer.echo(f"\nbroken: {row.rule.group}: {row.rule.title}")
            frames = [("frame", frame) for frame in row.frames_in_hex(_SHOWN_BYTES)]
            print_facts([("what", row.detail), ("the page", row.page), *frames], indent="  ")
        typer.echo(f"\n{report.summary()}")
    if report.interrupted:
        raise KeyboardInterrupt
    if report.broken:
        raise typer.Exit(1)


# ---- `reservoir-hw serve`.


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def serve(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Reservoir or experiment file (YAML or JSON).")
    ] = None,
    *,
    bind: Annotated[
        str, typer.Option(metavar="ADDRESS", help="tcp://host:port, or ipc://path or unix://path for this host.")
    ] = "tcp://127.0.0.1:5555",
    control: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of the control socket. (default: next port, or path + .control)"),
    ] = None,
    inputs: InputsOption = None,
    set_: SetOption = None,
    lease: Annotated[float, typer.Option(help="Seconds. A client that is silent for longer has lost the device.")] = 10,
    credits: Annotated[int, typer.Option(help="Chunks that a client may have under way at once.")] = 8,
    max_message: Annotated[str, typer.Option(metavar="BYTES", help="Largest message, for instance 64M.")] = "256M",
    secret_key: Annotated[Path | None, typer.Option(metavar="FILE", help="The server's own .key_secret file.")] = None,
    clients: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the .key files of the clients that may connect.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen to other hosts without keys: anybody may drive the device.")
    ] = False,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Payloads have checksums at a unix address, too.")
    ] = False,
    watchdog: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            min=0,
            help="A request that takes longer hangs: emergency stop, and no client until `device release ADDRESS`. "
            "0: never. (default: 3 times what the device declares, and the lease)",
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve nothing: look at the server that listens there, rule by rule of docs/protocol.md. It drives "
            "the device.",
        ),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="With --check: write JUnit XML.")] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Log JSON, one object on each line of standard error. With --check: print the rules as JSON."
        ),
    ] = False,
) -> None:
    """Offer a reservoir to experiments on this or another host (`kind: zmq`).

    The reservoirs of a layered model are offered each at an address of its own: every second port, or the path + .1.
    One client has it at a time; between clients the device is in its safe state. Ctrl-C or SIGTERM ends it after the
    request at hand, a second one at once; with status 3 if the device could not be brought to its safe state.

    With --check, the device of another server is looked at. Exits with 0 if no rule is broken, 1 if one is, 2 for a
    wrong address, 3 if there is no device.
    """
    if check is not None:
        must_be_alone(ctx)
        look(check, control, junit, as_json=json)
        return
    if file is None:
        raise ConfigurationError("name what to serve, FILE, or a server to look at, --check ADDRESS")
    if junit is not None:
        raise ConfigurationError("--junit is what --check ADDRESS writes; without it nothing is looked at")
    from reservoir_hw.experiment.devices.info import reservoirs_from_file

    with extra("zmq", "serving needs pyzmq"):
        from reservoir_hw.drivers.zeromq.addresses import layer_address
        from reservoir_hw.serving import Server
        from reservoir_hw.serving.server import run_together
    _log(as_json=json)
    allowed = _allowed(secret_key, clients)
    largest = _bytes(max_message)
    reservoirs = reservoirs_from_file(file, set=set_ or [], inputs=inputs)
    if len(reservoirs) > 1 and control is not None:
        raise ConfigurationError(f"{file} names {len(reservoirs)} reservoirs: leave out --control")
    servers = [
        Server(
            reservoir, layer_address(bind, layer), control=control, lease_s=lease, credits=credits,
            max_frame_bytes=largest, allowed=allowed, insecure=insecure, watchdog_s=watchdog, checksums=checksums,
        )
        for layer, reservoir in enumerate(reservoirs)
    ]  # fmt: skip
    say = None if json else lambda: _say(servers, allowed)
    if len(servers) > 1:
        run_together(servers, say)
        return
    (server,) = servers
    # As `run` does, but until the process has ended: nothing comes after it.
    StopOnSignals(server.stop, lambda: server.closing).__enter__()
    server.run(say)


def _allowed(secret_key: Path | None, clients: Path | None) -> Allowed | None:
    if (secret_key is None) != (clients is None):
        raise ConfigurationError("--secret-key (the server's own key) and --clients (whom it lets in) belong together")
    if secret_key is None or clients is None:
        return None
    from reservoir_hw.drivers.zeromq import Allowed

    return Allowed.from_files(secret_key, clients)


def _log(*, as_json: bool) -> None:
    """Who comes and goes is shown even if nobody asked for a log."""
    root = logging.getLogger()
    if root.level == logging.WARNING:
        logging.getLogger("reservoir_hw.serving").setLevel(logging.INFO)
    if as_json:
        for handler in root.handlers:
            handler.setFormatter(JsonLines())


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)\s*([KMG]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    if found is None:
        raise ConfigurationError(f"--max-message {text!r}: write a number of bytes, or 64K, 256M, 2G")
    return int(found[1]) * _UNITS[found[2].upper()]


def _say(servers: list[Server], allowed: Allowed | None) -> None:
    """What is served, and what has to stand in a reservoir file on the other side."""
    lines = []
    for server in servers:
        spec = server.spec
        assert spec is not None
        identity = spec.identity
        kind = "simulation" if identity.simulated else "hardware"
        lines += [
            f"Serving {identity.name} ({kind}), {spec.inputs} inputs -> {spec.nodes} nodes, fingerprint "
            f"{identity.fingerprint[:12]}",
            f"at {server.address}.",
        ]
    lines[-1] += " A reservoir file for the other side (Ctrl-C ends the server):"
    entries = [_entry(server, allowed) for server in servers]
    if len(entries) == 1:
        file = entries[0]
    else:
        file = ["kind: layers", "reservoirs:"]
        for first, *others in entries:
            file += [f"  - {first}", *(f"    {line}" for line in others)]
    typer.echo("\n".join([*lines, "", *(f"    {line}" for line in file), ""]))


def _entry(server: Server, allowed: Allowed | None) -> list[str]:
    """The lines of a reservoir file."""
    from reservoir_hw.drivers.zeromq.addresses import control_address

    lines = ["kind: zmq", f"address: {_reachable(server.address)}"]
    if server.control_address != control_address(server.address):
        lines.append(f"control: {_reachable(server.control_address)}")
    if allowed is not None:
        lines += ["security:", f'  server_key: "{allowed.server.public.decode()}"', "  key: YOURS.key_secret"]
    return lines


def _reachable(address: str) -> str:
    """The address under which others find what is bound to all of this host's."""
    return re.sub(r"^tcp://(\*|0\.0\.0\.0|\[::\]):", f"tcp://{platform.node()}:", address)
