"""`reservoir-hw emulate`."""

from __future__ import annotations

import json as json_module
import math
import sys
import textwrap
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.files import replace_file
from reservoir_hw.core.interrupts import StopOnSignals

if TYPE_CHECKING:
    from reservoir_hw.core.configuration import ConfigT
    from reservoir_hw.emulators.bench import BenchConfig
    from reservoir_hw.emulators.lab import Dialect, Lab
    from reservoir_hw.emulators.physics.devices import FilmConfig, Model
    from reservoir_hw.emulators.smu.lab import FilmLab
    from reservoir_hw.emulators.smu.source import Clock

app = typer.Typer(help="Emulated instruments, where there is no bench.", no_args_is_help=True)

# The reservoir file that is suggested. Inputs of all built-in tasks lie within the range.
NODES, THETA_S = 50, 10e-6
INPUT_RANGE, GAIN = (-6.0, 6.0), 0.5
# What drives the film: 0.2 to 0.8 volts.
FILM_RANGE, FILM_GAIN, FILM_OFFSET = (-1.0, 1.0), 0.3, 0.5
# Volts added to the inputs, where a device remembers longest.
WORKING_POINT_V = {"ikeda": 0.35}
# So much more of a range than was seen.
SPARE = 0.2
# States are less noisy than samples: in them the device is seen to remember longer.
SPARE_MEMORY = 0.1


FaultsOption: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What goes wrong, and when (docs/virtual-lab.md says how).")
]
OutOption: TypeAlias = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write the reservoir file there.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a line of JSON instead of text.")]


@app.command("bench")
def bench(
    dialect: Annotated[
        str,
        typer.Option(metavar="NAME", help="What the instruments understand: keysight, tektronix, red_pitaya, smu."),
    ] = "keysight",
    dut: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="The device under test: ikeda (by default), mackey_glass, linear, or a YAML file of the bench; "
            "of smu a YAML file of the film.",
        ),
    ] = None,
    generator: Annotated[
        str | None, typer.Option(metavar="NAME", help="A generator of another dialect than the digitizer.")
    ] = None,
    hislip: Annotated[bool, typer.Option("--hislip", help="HiSLIP instead of raw sockets.")] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65533, help="Of the generator; the digitizer has the next. 0: any that are free.")
    ] = 5025,
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of smu: with `steps` (by default) the film lives a step whenever the source is set, with `wall` "
            "all the time.",
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append what the outputs do to this file, as JSON lines.")
    ] = None,
    faults: FaultsOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Emulate a generator, a device under test and a digitizer, and print the reservoir file for them (`kind: visa`).

    `--dialect smu`: a source-measure unit and a switch matrix on a memristive film (`kind: commands`).
    Ctrl-C or SIGTERM ends it.
    """
    if dialect == "smu":
        if generator is not None or hislip:
            raise ConfigurationError(
                "--dialect smu has no generator, and no HiSLIP: leave out --generator and --hislip"
            )
        _film(dut, clock, port, log, faults, out, json)
        return
    if clock is not None:
        raise ConfigurationError("--clock is for --dialect smu")
    from reservoir_hw.emulators.faults import FaultPlan
    from reservoir_hw.emulators.lab import dialect_named, virtual_lab

    spoken = dialect_named(dialect, generator)
    config, plan = _bench_of(dut or "ikeda", spoken), _read(FaultPlan, faults)
    names = dialect if generator is None else f"{dialect}, with a generator of {generator}"
    with virtual_lab(spoken, config, hislip=hislip, port=port, log=log, faults=plan) as lab:
        where = {"generator": lab.generator, "digitizer": lab.digitizer}
        said = f"Emulated instruments ({names}): generator at {lab.generator}, digitizer at {lab.digitizer}"
        _show_until_asked("bench", said, where, _reservoir_file(spoken, lab), log, out, json=json)
    bursts = sum(event["event"] == "burst begins" for event in lab.bench.log.events)
    typer.echo(f"The bench has ended after {bursts} bursts.", err=json)


def _film(
    dut: str | None, clock: str | None, port: int, log: Path | None, faults: Path | None, out: Path | None, json: bool
) -> None:
    from reservoir_hw.emulators.faults import FaultPlan
    from reservoir_hw.emulators.physics.devices import FilmConfig
    from reservoir_hw.emulators.smu.lab import film_lab

    clocks: dict[str | None, Clock] = {None: "steps", "steps": "steps", "wall": "wall"}
    if clock not in clocks:
        raise ConfigurationError(f"--clock {clock}: it is steps or wall")
    config = _read(FilmConfig, dut) or FilmConfig()
    with film_lab(config, clock=clocks[clock], port=port, log=log, faults=_read(FaultPlan, faults)) as lab:
        where = {"source": lab.source, "switch": lab.switch, "supply": lab.supply}
        said = (
            f"Emulated instruments on a film: source at {lab.source}, switch at {lab.switch}, "
            f"supply of its gate at {lab.supply}"
        )
        _show_until_asked("bench", said, where, _film_file(lab, config, clocks[clock]), log, out, json=json)
    levels = sum(event["event"] == "level" for event in lab.bench.log.events)
    typer.echo(f"The bench has ended after {levels} levels.", err=json)


def _film_file(lab: FilmLab, config: FilmConfig, clock: Clock) -> list[str]:
    """A reservoir on this film."""
    channels = ", ".join(str(101 + electrode) for electrode in range(config.electrodes))
    # What it forgets when it is off is the clock's matter.
    rest = ", ".join(f'{{to: source, write: "OUTP {state}"}}' for state in ("OFF", "ON"))
    pace = ["period_s: 0.05"] if clock == "wall" else []
    settle = [f"reset: {{kind: idle, settle_s: {10 * config.slowest_s:g}}}"] if clock == "wall" else []
    return [
        "kind: commands",
        "device_name: emulated film",
        "simulated: true",
        "instruments:",
        f'  source: {{address: "{lab.source}", identify: "*IDN?", setup: ["*RST", "FORM:ELEM CURR,STAT", '
        '"SENS:CURR:PROT 1e-3", "OUTP ON"], errors: "SYST:ERR?"}',
        f'  switch: {{address: "{lab.switch}", identify: "*IDN?", errors: "SYST:ERR?"}}',
        f"nodes: {config.electrodes}",
        f"input_range: {[*FILM_RANGE]}",
        f"scaling: {{gain: {FILM_GAIN:g}, offset: {FILM_OFFSET:g}}}",
        "state_scale: 1.0e+5",
        *pace,
        "step:",
        '  - {to: source, write: "SOUR:VOLT {u[0]:.4f}"}',
        f"  - for: {{k: [{channels}]}}",
        "    to: switch",
        '    write: "ROUT:CLOS (@{k})"',
        '    then: {to: source, ask: "READ?", reads: [state, status], saturated_if: "status & 8"}',
        'safe: [{to: source, write: "SOUR:VOLT 0"}, {to: source, write: "OUTP OFF"}]',
        f"rest: [{rest}]",
        *settle,
        f"continuity: {'held' if clock == 'steps' else 'free_running'}",
    ]


@app.command("board")
def board(
    nodes: Annotated[int, typer.Option(min=1, help="Its virtual nodes.")] = 50,
    inputs: Annotated[int, typer.Option(min=1, help="Numbers in a step.")] = 1,
    text: Annotated[
        bool, typer.Option("--text", help="It is told lines of text (`kind: commands`), and not the serial protocol.")
    ] = False,
    link: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Make a symbolic link to its port, with a name that stays.")
    ] = None,
    baud: Annotated[int, typer.Option(help="Its rate. At another one its host sends and gets garbage.")] = 115200,
    frame_bytes: Annotated[int, typer.Option(min=256, max=65535, help="Its buffer: the longest frame.")] = 4095,
    lease_ms: Annotated[
        int, typer.Option(min=100, max=65535, help="It goes to its safe state if its host is silent for so long.")
    ] = 2000,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append what its drive does to this file, as JSON lines.")
    ] = None,
    faults: FaultsOption = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Emulate a board at the end of a serial line, and print the reservoir file for it (`kind: serial`).

    With `--text` it is told lines of text (`kind: commands`). Its port is a pty of this computer. Ctrl-C or SIGTERM
    ends it.
    """
    from reservoir_hw.emulators.board.faults import BoardFaultPlan
    from reservoir_hw.emulators.board.line import emulated_board

    plan = _read(BoardFaultPlan, faults)
    settings = {"baud": baud, "link": link, "frame_bytes": frame_bytes, "lease_ms": lease_ms, "log": log}
    with emulated_board(nodes, inputs, text=text, faults=plan, **settings) as line:
        serial = ["kind: serial", f"port: {line.port}", f"baud: {baud}"]
        file = _text_file(line.port, nodes, inputs, baud) if text else serial
        said = f"Emulated board with {nodes} virtual nodes at {line.port}, {baud} baud"
        _show_until_asked("board", said, {"port": line.port}, file, log, out, json=json)
    struck = ", ".join(f"{kind} {count}" for kind, count in line.faults.struck.items() if count)
    typer.echo(
        f"The board has ended. {line.board.said}" + (f"; faults: {struck}" if struck else "") + ".",
        err=json,
    )


def _text_file(port: str, nodes: int, inputs: int, baud: int) -> list[str]:
    """A reservoir on the board that is told lines of text."""
    numbers = ",".join(f"{{u[{channel}]:.6f}}" for channel in range(inputs))
    return [
        "kind: commands",
        "device_name: text board",
        "simulated: true",
        f"address: {port}",
        f"baud: {baud}",
        "identify: ID",
        f'step: {{ask: "S {numbers} {{n}}", answer: "(?P<state>.*) {{n}}"}}',
        f"nodes: {nodes}",
        "rest: {ask: R, answer: OK}",
        'safe: {ask: "OFF", answer: OK}',
        "continuity: held",
        "deterministic: true",
    ]


@app.command("check")
def check(log: Annotated[Path, typer.Argument(metavar="LOG", help="What `emulate ... --log` wrote.")]) -> None:
    """Look whether all outputs of an emulated bench or board are off now. Exits with 0 if they are, 1 if one is on.

    It is a `safe_check` for the section `hil:` of a reservoir: it does not ask the driver of the instruments.
    """
    from reservoir_hw.emulators.bench import outputs_on

    on = outputs_on(log)
    if on:
        typer.echo(f"on: output {', '.join(map(str, on))}")
        raise typer.Exit(1)
    typer.echo("all outputs are off")


def _bench_of(dut: str, dialect: Dialect) -> BenchConfig:
    """The dialect's bench with a device that has a name, or the bench of a file."""
    from reservoir_hw.emulators.bench import BenchConfig
    from reservoir_hw.emulators.physics.devices import Ikeda, Linear, MackeyGlass

    known: dict[str, type[Model]] = {"ikeda": Ikeda, "mackey_glass": MackeyGlass, "linear": Linear}
    if dut not in known and not Path(dut).exists():
        raise ConfigurationError(f"--dut {dut}: there is no such file, and the devices are {', '.join(known)}")
    return dialect.bench.with_device(known[dut]()) if dut in known else _read(BenchConfig, dut) or BenchConfig()


def _read(model: type[ConfigT], path: str | Path | None) -> ConfigT | None:
    """What stands in a file; None where none is named."""
    from reservoir_hw.core.configuration import Document, validate

    return None if path is None else validate(model, Document.from_file(path))


def _reservoir_file(dialect: Dialect, lab: Lab) -> list[str]:
    """A reservoir that suits the device of this bench."""
    from reservoir_hw.emulators.physics.devices import behaviour

    config = lab.bench.config
    found = next(((n, c, c.device) for n, c in config.inputs.items() if c.device is not None), None)
    if found is None:
        raise ConfigurationError("none of the inputs of this bench has a device: give one of them `device:`")
    answer, cable, device = found
    monitor = next((n for n, c in config.inputs.items() if c.device is None and c.output == cable.output), None)
    offset_v = WORKING_POINT_V.get(device.kind, 0.0)
    low_v, high_v = (offset_v + GAIN * end for end in INPUT_RANGE)
    seen = behaviour(device, low_v, offset_v, high_v, THETA_S)
    # All of these are volts at the device.
    amplification = cable.amplification
    reach_v = math.ceil(max(-low_v, high_v)) / amplification
    inputs = [f"{answer}: {{range_v: {_range(*seen.range_v, dialect)}}}"]
    channels = [f"output: {cable.output}", f"answer: {answer}"]
    if monitor is not None:
        inputs.append(f"{monitor}: {{range_v: {_range(-reach_v, reach_v, dialect)}}}")
        channels.append(f"monitor: {monitor}")
    # Left out, it means high impedance.
    load = "" if config.termination_ohm is None else f", load_ohm: {config.termination_ohm:g}"
    samples = [] if dialect.samples_per_node is None else [f"samples_per_node: {dialect.samples_per_node}"]
    return [
        "kind: visa",
        f"device_name: emulated {device.kind}",
        "simulated: true",
        "inputs: 1                      # a task with more channels gets a mask",
        f"nodes: {NODES}",
        f"theta_s: {THETA_S!r}",
        f"points_per_node: {dialect.points_per_node:<11}# samples of the generator",
        "mask: {kind: uniform}",
        f"scaling: {{gain: {GAIN / amplification:g}, offset: {offset_v / amplification:g}}}",
        f"input_range: {[*INPUT_RANGE]}",
        f"memory_steps: {math.ceil((1 + SPARE_MEMORY) * seen.memory_s / (NODES * THETA_S)) + 1}",
        "generator:",
        f"  kind: {dialect.generator_kind}",
        f"  address: {lab.generator}",
        f"  outputs: {{{cable.output}: {{range_v: [-{reach_v:g}, {reach_v:g}]{load}}}}}",
        "digitizer:",
        f"  kind: {dialect.digitizer_kind}",
        f"  address: {lab.digitizer}",
        f"  inputs: {{{', '.join(inputs)}}}",
        f"channels: {{{', '.join(channels)}}}",
        *samples,
    ]


def _range(low: float, high: float, dialect: Dialect) -> list[float]:
    """Wider than what was seen, as far as the digitizer has such a range."""
    spare = SPARE * (high - low)
    wider = [math.floor(100 * (low - spare)) / 100, math.ceil(100 * (high + spare)) / 100]
    full_v = next((volts for volts in dialect.full_scales_v if max(-low, high) < volts), math.inf)
    return [max(wider[0], -full_v), min(wider[1], full_v)]


def _show_until_asked(
    what: str, said: str, where: dict[str, str], lines: list[str], log: Path | None, out: Path | None, *, json: bool
) -> None:
    """Write and print the reservoir file, and where instruments are reached; until a signal asks to end."""
    from ruamel.yaml import YAML

    if log is not None:
        # How to look whether all outputs are off.
        command = [sys.executable, "-m", "reservoir_hw.cli", "emulate", "check", str(log.resolve())]
        lines = [*lines, "hil:", f"  safe_check: {json_module.dumps(command)}"]
    text = "\n".join([*lines, ""])
    if out is not None:
        replace_file(out, text)
    # Its `put` may be called by the handler of a signal.
    asked: SimpleQueue[None] = SimpleQueue()
    with StopOnSignals(lambda: asked.put(None), lambda: True):
        if json:
            place = None if log is None else str(log.resolve())
            typer.echo(json_module.dumps({**where, "log": place, "reservoir": YAML(typ="safe", pure=True).load(text)}))
        else:
            typer.echo(said)
            if log is not None:
                typer.echo(f"What the {what} gives is written to {log}; `reservoir-hw emulate check {log}` reads it.")
            if out is not None:
                typer.echo(f"The reservoir file is {out} (Ctrl-C ends the {what}).")
            else:
                typer.echo(f"A reservoir file (Ctrl-C ends the {what}):\n\n" + textwrap.indent(text, "    "))
        asked.get()
