"""The Triton kernel of delay loops under triton's interpreter, beside the numba kernel: errors in units of the scale.

    TRITON_INTERPRET=1 python tests/backends/simulated/interpreted_delay_kernels.py             # the table
    TRITON_INTERPRET=1 python tests/backends/simulated/interpreted_delay_kernels.py --faults    # planted faults

With `--json` it prints what the tests read.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from interpreted_kernels import NONIDEALITIES, SIMULATED, TOLERANCE, Fault, error, plant, report, terms_of

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.delay_loop import cpu_loop
from reservoir_hw.backends.simulated.delay_loop.physics import Ikeda, MackeyGlass, Paquot
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms

PHYSICS = {
    "mackey_glass": MackeyGlass(feedback_gain=0.9, input_gain=0.7, exponent=7),
    "mackey_glass, any exponent": MackeyGlass(feedback_gain=1.3, input_gain=0.7, exponent=2.6),
    "ikeda": Ikeda(feedback_gain=0.8, input_gain=0.6, phase=0.3),
    "paquot": Paquot(feedback_gain=0.8, input_gain=0.5, phase=0.2),
}
THETA = 0.2


def kernel() -> Any:
    """The module, imported when it is asked for: a planted fault replaces it."""
    return importlib.import_module(f"{SIMULATED}.delay_loop.triton_loop")


def by_numba(equation: Any, drive: Any, history: Any, terms: LoopTerms | None) -> Any:
    """States of several sequences by the compiled loop, from what drives the nodes."""
    out = drive.copy()
    nothing = np.zeros((1, 1, 1), np.float32)
    ideal = (False, np.float32(np.inf), nothing[0, 0], nothing[0, 0], nothing, np.float32(0), np.float32(0))
    scratch = np.empty((len(out), 3, out.shape[2]), np.float32)
    masks = np.zeros((1, out.shape[2]), np.float32), np.zeros(out.shape[2], np.float32)
    numbers = [*map(np.float32, equation.numbers)]
    more: Any = ideal if terms is None else (True, *terms)
    for b, u in enumerate(drive[..., :1].copy()):
        of_loop = (*more[:4], more[4][b * more[0]], *more[5:])
        cpu_loop.sequence(*masks, u, history[b], scratch[b], out[b], True, equation.code, *numbers, *of_loop)
    return out


def by_triton(equation: Any, drive: Any, history: Any, terms: LoopTerms | None) -> Any:
    """States of several sequences by the Triton kernel."""
    out = torch.from_numpy(drive.copy())
    kernel().prepare(equation, "cpu")(out, torch.from_numpy(history.copy()), terms)
    return out.numpy()


def case(batch: int, steps: int, nodes: int, delay: int) -> tuple[Any, Any]:
    numbers = np.random.default_rng(nodes + batch)
    drive = numbers.uniform(-1, 1, (batch, steps, nodes)).astype(np.float32)
    return drive, numbers.uniform(-0.5, 0.5, (batch, delay)).astype(np.float32)


def beside_numba(
    name: str, *, nodes: int = 23, batch: int = 2, steps: int = 4, shift: int = 1, terms: str = "ideal"
) -> float:
    """The error of one run, with a delay of `shift` nodes more than a round."""
    equation = PHYSICS[name].equation(THETA)
    drive, history = case(batch, steps, nodes, nodes + shift)
    loop = terms_of(terms, (batch, steps, nodes))
    return error(by_triton(equation, drive, history, loop), by_numba(equation, drive, history, loop))


def cut_blocks(name: str, terms: str) -> float:
    """As `beside_numba`, with blocks that are shorter than the delay."""
    module = kernel()
    longest, module._LONGEST = module._LONGEST, 16
    try:
        return beside_numba(name, nodes=37, shift=3, terms=terms)
    finally:
        module._LONGEST = longest


def chunks(name: str, shift: int) -> float:
    """1 where chunks differ from a run in one piece in a single bit, else 0."""
    equation = PHYSICS[name].equation(THETA)
    drive, history = case(2, 5, 20, 20 + shift)
    terms = terms_of("mismatch", (2, 5, 20))
    assert terms is not None
    whole = by_triton(equation, drive, history, terms)
    first = by_triton(equation, drive[:, :2], history, terms._replace(additive=terms.additive[:, :2]))
    line = np.concatenate([history, first.reshape(2, -1)], 1)[:, -history.shape[1] :]
    rest = by_triton(equation, drive[:, 2:], line, terms._replace(additive=terms.additive[:, 2:]))
    return float(not np.array_equal(np.concatenate([first, rest], 1), whole))


def as_a_reservoir(name: str) -> float:
    """The error behind the contract, with noise, a converter, a snapshot, and a transition; 1 where counts differ."""
    loop = {"noise": 0.02, "bandwidth": 0.7, "mismatch": 0.05, "drift": 0.01, "dead_nodes": 0.1}
    noisy = {"drive": {"bits": 10}, "loop": loop, "readout": {"noise": 0.01}}
    still = {"loop": {"saturation": 0.8, "bandwidth": 0.7}}
    shared = {"kind": "delay_loop", "nodes": 20, "inputs": 3, "out_of_range": "clip", "theta": THETA, "tau": 20 * THETA}
    config = {**shared, "physics": PHYSICS[name].model_dump(), "mask": {"scaling": 0.6}}
    u = np.random.default_rng(0).uniform(-1, 1, (2, 6, 3)).astype(np.float32)
    states, counts = [], []
    for engine in ("numba", "triton"):
        with open_reservoir({**config, "engine": engine, "nonidealities": noisy}) as device:
            assert device.provenance()["engine"] == engine
            device.reset(2)
            first = np.asarray(device.run(u[:, :5]))
            snapshot = device.snapshot()
            device.run(u[:, 5:])
            device.restore(snapshot)
            rest = np.asarray(device.run(u[:, 5:]))
            counts.append(device.counters.clipped)
        with open_reservoir({**config, "engine": engine, "nonidealities": still}) as device:
            after = np.asarray(device.transition(u[:, 0], 0.3 * first[:, 0]))
        states.append(np.concatenate([first, rest, after[:, None]], 1))
    return max(error(states[1], states[0]), float(counts[0] != counts[1] or not counts[0]))


def checks_of(name: str) -> Iterator[tuple[str, float]]:
    """All checks of a physics, by name, with their errors."""
    for terms in NONIDEALITIES:
        yield terms, beside_numba(name, terms=terms)
    yield "one node, one step", beside_numba(name, nodes=1, steps=1, shift=0)
    yield "one node, longer delay", beside_numba(name, nodes=1, steps=9, shift=3)
    yield "delay of one node", beside_numba(name, nodes=5, shift=-4)
    yield "shorter delay", beside_numba(name, shift=-9)
    yield "longer delay", beside_numba(name, shift=30, terms="mismatch")
    yield "cut blocks", cut_blocks(name, "ideal")
    yield "cut blocks, all", cut_blocks(name, "all of these")
    yield "40 steps", beside_numba(name, nodes=19, batch=1, steps=40)
    yield "130 nodes", beside_numba(name, nodes=130, batch=1, steps=3, terms="bandwidth")
    yield "batch 33", beside_numba(name, nodes=18, batch=33, steps=2)
    yield "chunks, to the bit", max(chunks(name, shift) for shift in (0, 1, 25, -4))
    yield "a reservoir", as_a_reservoir(name)


def every_check() -> dict[str, dict[str, float]]:
    """The errors of all checks: physics, then the name of the check."""
    return {f"delay_loop, {name}": dict(checks_of(name)) for name in PHYSICS}


FAULTS = {
    "the history read one place too far": (
        Fault("delay_loop.triton_loop", (("(place < delay)", "(place <= delay)"),), "", 0), "ikeda"
    ),
    "blocks that do not know the value before them": (
        Fault("delay_loop.triton_loop", (("x += factor * value", "x += 0.0 * value"),), "", 0), "mackey_glass"
    ),
    "maps composed in the wrong order": (
        Fault("delay_loop.triton_loop", (("next_factor * term + next_term", "factor * next_term + term"),), "", 0),
        "ikeda",
    ),
    "a low-pass that is left out where nodes come in turn": (
        Fault("delay_loop.triton_loop", (("x_i = decay * value + tl", "x_i = tl"),), "", 0), "ikeda"
    ),
}  # fmt: skip


def every_fault() -> dict[str, str | None]:
    """For each planted fault the first check that saw it, or None."""
    found: dict[str, str | None] = {}
    for fault, (planted, name) in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            plant(planted, folder)
            found[fault] = next((check for check, size in checks_of(name) if not size <= TOLERANCE), None)
    return found


if __name__ == "__main__":
    report(__doc__, every_check, every_fault)
