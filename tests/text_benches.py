"""Emulated instruments that are told lines of text, and the configurations that belong to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reservoir_hw.core.configuration import Document, validate
from reservoir_hw.emulators.bench import EventLog
from reservoir_hw.emulators.board.board import ONE, SCALE, VirtualNodes
from reservoir_hw.emulators.board.faults import BoardFaultPlan
from reservoir_hw.emulators.board.line import Line, emulated_board
from reservoir_hw.emulators.board.text import TextBoard
from reservoir_hw.emulators.faults import FaultPlan
from reservoir_hw.emulators.physics.devices import Film, FilmConfig
from reservoir_hw.emulators.smu.lab import FilmLab, film_lab
from reservoir_hw.emulators.smu.source import STEP_S, Clock

NODES = 5
DIGITS = 5
CHANNELS = [101, 103, 108]
GAIN, OFFSET = 1.2, 0.2
Config = dict[str, Any]


def board_config(port: str, *, nodes: int = NODES, counted: bool = True, **more: Any) -> Config:
    """A text board at a port. If `counted`, it sends a number back."""
    step: dict[str, str] = {"ask": f"S {{u[0]:.{DIGITS}f}}"}
    if counted:
        step = {"ask": f"{step['ask']} {{n}}", "answer": "(?P<state>.*) {n}"}
    return {
        "kind": "commands",
        "address": port,
        "step": step,
        "nodes": nodes,
        "rest": {"ask": "R", "answer": "OK"},
        "safe": {"ask": "OFF", "answer": "OK"},
        "continuity": "held",
        "simulated": True,
        **more,
    }


@contextlib.contextmanager
def text_board(
    *faults: dict[str, Any], nodes: int = NODES, log: Path | None = None, **more: Any
) -> Iterator[tuple[Line[TextBoard], Config]]:
    """The board on its pty, and its configuration."""
    plan = validate(BoardFaultPlan, Document.from_mapping({"faults": list(faults)}, "a test"))
    with emulated_board(nodes, text=True, faults=plan, log=log) as line:
        yield line, board_config(line.port, nodes=nodes, **more)


def board_states(u: np.ndarray, nodes: int = NODES) -> np.ndarray:
    """States (1, time, nodes) of the board from rest, for inputs (1, time, 1) as they are written."""
    counts = np.rint(np.round(u[0], DIGITS) * ONE).astype(np.int64)
    return (VirtualNodes(nodes).run(counts) * SCALE)[None]


def film_config(lab: FilmLab, **more: Any) -> Config:
    """The film between source and switch."""
    setup = ["*RST", "FORM:ELEM CURR,STAT", "SENS:CURR:PROT 1e-3", "OUTP ON"]
    read = {"to": "source", "ask": "READ?", "reads": ["state", "status"], "saturated_if": "status & 8"}
    return {
        "kind": "commands",
        "device_name": "film",
        "instruments": {
            "source": {"address": lab.source, "identify": "*IDN?", "setup": setup, "errors": "SYST:ERR?"},
            "switch": {"address": lab.switch, "errors": "SYST:ERR?"},
        },
        "step": [
            {"to": "source", "write": "SOUR:VOLT {u[0]:.4f}"},
            {"for": {"k": CHANNELS}, "to": "switch", "write": "ROUT:CLOS (@{k})", "then": read},
        ],
        "nodes": len(CHANNELS),
        "input_range": [0, 0.5],
        "scaling": {"gain": GAIN, "offset": OFFSET},
        "state_scale": 1e5,
        "rest": [{"to": "source", "write": "OUTP OFF"}, {"to": "source", "write": "OUTP ON"}],
        "safe": [{"to": "source", "write": "SOUR:VOLT 0"}, {"to": "source", "write": "OUTP OFF"}],
        "continuity": "held",
        "simulated": True,
        **more,
    }


@contextlib.contextmanager
def film(
    config: FilmConfig | None = None,
    *,
    clock: Clock = "steps",
    log: Path | None = None,
    faults: FaultPlan | None = None,
    **more: Any,
) -> Iterator[tuple[FilmLab, Config]]:
    """The film with its instruments, and its configuration."""
    with film_lab(config, clock=clock, log=log, faults=faults) as lab:
        yield lab, film_config(lab, **more)


def film_states(u: np.ndarray) -> np.ndarray:
    """States (1, time, electrodes) of the film from rest, for inputs (1, time, 1), with the instrument's digits."""
    made, states = Film(FilmConfig()), []
    for step in u[0, :, 0]:
        volts = float(f"{GAIN * step + OFFSET:.4f}")
        made.advance(volts, STEP_S)
        states.append([1e5 * float(f"{volts * made.conductance_s(channel - 101):.6E}") for channel in CHANNELS])
    return np.array(states)[None]


def levels(log: EventLog, channel: int = 1) -> list[float]:
    """The volts that an output was set to."""
    return [event["volts"] for event in log.events if event["event"] == "level" and event["channel"] == channel]
