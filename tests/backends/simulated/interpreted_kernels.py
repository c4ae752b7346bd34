"""The Triton kernels of networks under triton's interpreter, beside the numba kernels: errors in units of the scale.

    TRITON_INTERPRET=1 python tests/backends/simulated/interpreted_kernels.py             # the table
    TRITON_INTERPRET=1 python tests/backends/simulated/interpreted_kernels.py --faults    # planted faults

With `--json` it prints what the tests read.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array, issparse

from reservoir_hw import open_reservoir
from reservoir_hw.backends import simulated
from reservoir_hw.backends.simulated.esn import cpu_loop
from reservoir_hw.backends.simulated.gated import cpu_loop as gated_cpu_loop
from reservoir_hw.backends.simulated.nonidealities.noise import ROUNDINGS, LoopTerms
from reservoir_hw.networks import EsnWeights, draw_weights
from reservoir_hw.networks.weights import draw_gated_weights

TOLERANCE = 2e-6
"""Largest difference from the numba kernel, as a share of the largest state, or of 1 where that is smaller."""

SIMULATED = "reservoir_hw.backends.simulated"
KINDS = ("esn", "gated_esn")
NONIDEALITIES = ("ideal", "saturation", "bandwidth", "mismatch", "dead nodes", "noise", "all of these", "bits")
INPUTS = 3


class Kernel(NamedTuple):
    """A kernel in one form: blocks so small that a network of 37 nodes meets their edges."""

    name: str
    form: tuple[bool, int, int, int, int] | None
    sequences: int
    sparse: bool = False


KERNELS = (
    Kernel("resident", None, 2),
    Kernel("streamed", (False, 1, 32, 32, 4), 2),
    Kernel("streamed, tiles", (False, 16, 32, 16, 4), 17),
    Kernel("streamed, CSR", (False, 1, 32, 16, 4), 2, sparse=True),
)


def as_csr(weights: EsnWeights) -> EsnWeights:
    """One weight in five, so that rows differ in length; one row in seven is empty."""
    W = np.where(np.random.default_rng(9).uniform(size=weights.W.shape) < 0.2, weights.recurrent(), 0.0)
    W[3::7] = 0
    return EsnWeights.from_arrays(csr_array(W), weights.W_in, weights.bias, weights.leak)


class Loop(NamedTuple):
    """The modules of a kind, imported when they are asked for: a planted fault replaces them."""

    kind: str

    @property
    def triton(self) -> Any:
        folder = "esn" if self.kind == "esn" else "gated"
        return importlib.import_module(f"{SIMULATED}.{folder}.triton_loop")

    @property
    def form(self) -> Any:
        return importlib.import_module(f"{SIMULATED}.kernels.triton_launch").Form

    def draw(self, nodes: int, seed: int = 1, *, sparse: bool = False, leak: Any = (0.3, 0.9)) -> Any:
        if self.kind == "esn":
            weights = draw_weights(nodes, INPUTS, seed=seed, bias_scaling=0.3, leak_rate=leak)
            return as_csr(weights) if sparse else weights
        weights = draw_gated_weights(nodes, INPUTS, seed=seed, bias_scaling=0.3, reset_bias=0.2, update_bias=-0.4)
        if not sparse:
            return weights
        return replace(weights, **{name: as_csr(part) for name, part in weights.parts().items()})

    def on_cpu(self, weights: Any, u: Any, state: Any, terms: LoopTerms | None, **how: Any) -> Any:
        loop: Any = cpu_loop if self.kind == "esn" else gated_cpu_loop
        return loop.run(loop.prepare(weights), u, state.copy(), loop=terms, **how)


def terms_of(name: str, shape: tuple[int, int, int], seed: int = 5) -> LoopTerms | None:
    """`LoopTerms` of one non-ideality for states (batch, time, nodes)."""
    if name == "ideal":
        return None
    numbers = np.random.default_rng(seed)
    nodes = shape[-1]
    one = np.ones(nodes, np.float32)
    some = {
        "saturation": {"saturation": np.float32(0.5)},
        "bandwidth": {"keep": 0.3 * one, "gain": 0.7 * one},
        "mismatch": {"gain": (1 + 0.1 * numbers.standard_normal(nodes)).astype(np.float32)},
        "dead nodes": {"gain": (numbers.uniform(size=nodes) > 0.2).astype(np.float32)},
        "noise": {"additive": (0.05 * numbers.standard_normal(shape)).astype(np.float32)},
        "bits": {"lsb": np.float32(2 * 0.9 / 256), "limit": np.float32(0.9)},
    }
    scalars: Any = map(np.float32, (np.inf, 0, 1))
    saturation, lsb, limit = scalars
    ideal = LoopTerms(saturation, 0 * one, one, np.zeros(shape, np.float32), lsb, limit)
    # Rounding stands alone: it would hide small errors of the others.
    together = [change for other, change in some.items() if other != "bits"]
    for change in together if name == "all of these" else [some[name]]:
        ideal = ideal._replace(**change)
    return ideal


def drive(loop: Loop, weights: list[Any], u: Any, states: Any, terms: Any, form: Any, **how: Any) -> tuple[Any, Any]:
    """States and last states of a population, by the Triton kernel."""
    storage = {"storage": how.pop("storage")} if "storage" in how else {}
    prepared = loop.triton.prepare(weights, "cpu", **storage)
    form = None if form is None else loop.form(*form)
    given = torch.from_numpy(u), torch.from_numpy(states)
    out, last = loop.triton.run_members(prepared, *given, terms, form=form, **how)
    np.testing.assert_array_equal(last.numpy(), out[:, :, -1].numpy())
    return out.numpy(), last


def case(batch: int, steps: int, nodes: int, members: int = 1) -> tuple[Any, Any]:
    numbers = np.random.default_rng(nodes + batch)
    u = numbers.uniform(-1, 1, (members, batch, steps, INPUTS)).astype(np.float32)
    return u, numbers.uniform(-0.5, 0.5, (members, batch, nodes)).astype(np.float32)


def error(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


def beside_numba(
    loop: Loop, kernel: Kernel, *, nodes: int = 37, batch: int = 0, steps: int = 4, name: str = "ideal",
    rounding: str | None = None, leak: Any = (0.3, 0.9), **how: Any,
) -> float:  # fmt: skip
    """The error of one run."""
    weights = loop.draw(nodes, sparse=kernel.sparse, leak=leak)
    if rounding is not None:
        weights = weights.rounded(ROUNDINGS[rounding])
    u, states = case(batch or kernel.sequences, steps, nodes)
    terms = terms_of(name, (u.shape[1], steps, nodes))
    storage = {} if rounding is None else {"storage": rounding}
    found, _ = drive(loop, [weights], u, states, [terms], kernel.form, **storage, **how)
    return error(found[0], loop.on_cpu(weights, u[0], states[0], terms, **how))


def chunks(loop: Loop, kernel: Kernel) -> float:
    """1 where chunks differ from a run in one piece in a single bit, else 0."""
    weights = loop.draw(37, sparse=kernel.sparse)
    u, states = case(kernel.sequences, 5, 37)
    terms = terms_of("all of these", (u.shape[1], 5, 37))
    assert terms is not None
    whole, _ = drive(loop, [weights], u, states, [terms], kernel.form)
    parts, last = [], torch.from_numpy(states)
    for part in (slice(0, 1), slice(1, 5)):
        here = terms._replace(additive=terms.additive[:, part])
        found, last = drive(loop, [weights], u[:, :, part].copy(), last.numpy(), [here], kernel.form)
        parts.append(found)
    return float(not np.array_equal(np.concatenate(parts, 2), whole))


def population(loop: Loop, kernel: Kernel, *, own_inputs: bool) -> float:
    """The error of three members with weights and terms of their own, one without terms; 1 where single runs differ."""
    nodes, steps = 20, 4
    weights = [loop.draw(nodes, seed, sparse=kernel.sparse) for seed in (1, 2, 3)]
    u, states = case(kernel.sequences, steps, nodes, members=3)
    u = u if own_inputs else u[:1]
    shape = (u.shape[1], steps, nodes)
    terms = [terms_of("all of these", shape, 5), None, terms_of("bits", shape)]
    found, _ = drive(loop, weights, u, states, terms, kernel.form)
    worst = 0.0
    for k, member in enumerate(weights):
        given = u[k if own_inputs else 0]
        worst = max(worst, error(found[k], loop.on_cpu(member, given, states[k], terms[k])))
        alone, _ = drive(loop, [member], given[None], states[k : k + 1], [terms[k]], kernel.form)
        # A member without terms passes through ideal ones, which changes no bit either.
        worst = max(worst, float(not np.array_equal(alone[0], found[k])))
    return worst


def as_a_reservoir(kind: str, sparse: bool) -> float:
    """The error behind the contract, with noise, a snapshot, and steps after it."""
    loop = {"noise": 0.02, "saturation": 0.8, "bandwidth": 0.7, "mismatch": 0.05, "drift": 0.01, "dead_nodes": 0.1}
    config = {"kind": kind, "nodes": 30, "inputs": INPUTS, "nonidealities": {"loop": loop, "readout": {"noise": 0.01}}}
    if sparse:
        config |= {"nodes": 100, "connections_per_node": 4}
    u = case(2, 6, 30)[0][0]
    states = []
    for engine in ("numba", "triton"):
        with open_reservoir({**config, "engine": engine}) as opened:
            network: Any = opened
            assert network.provenance()["engine"] == engine
            assert issparse(getattr(network.weights, "reset", network.weights).W) == sparse
            network.reset(2)
            first = np.asarray(network.run(u[:, :5]))
            snapshot = network.snapshot()
            network.run(u[:, 5:])
            network.restore(snapshot)
            states.append(np.concatenate([first, np.asarray(network.run(u[:, 5:]))], 1))
    return error(states[1], states[0])


def checks_of(kind: str, kernel: Kernel) -> Iterator[tuple[str, float]]:
    """All checks of a kernel of a kind, by name, with their errors."""
    loop = Loop(kind)
    for name in NONIDEALITIES:
        yield name, beside_numba(loop, kernel, name=name)
    yield "one node, one step", beside_numba(loop, kernel, nodes=1, steps=1)
    yield "40 steps", beside_numba(loop, kernel, nodes=19, batch=1, steps=40)
    yield "130 nodes", beside_numba(loop, kernel, nodes=130, batch=1, steps=2)
    yield "batch 33", beside_numba(loop, kernel, nodes=18, batch=33, steps=1)
    yield "chunks, to the bit", chunks(loop, kernel)
    yield "members", population(loop, kernel, own_inputs=True)
    yield "members, same inputs", population(loop, kernel, own_inputs=False)
    if kind == "esn":
        yield "no leak", beside_numba(loop, kernel, leak=1.0)
        for activation in ("relu", "identity"):
            yield activation, beside_numba(loop, kernel, activation=activation)
        for storage in ROUNDINGS:
            yield storage, beside_numba(loop, kernel, rounding=storage)


def every_check() -> dict[str, dict[str, float]]:
    """The errors of all checks: kind and kernel, then the name of the check."""
    found = {f"{kind}, {kernel.name}": dict(checks_of(kind, kernel)) for kernel in KERNELS for kind in KINDS}
    for kind in KINDS:
        for sparse in (False, True):
            found[f"{kind}, {'streamed, CSR' if sparse else 'resident'}"]["a reservoir"] = as_a_reservoir(kind, sparse)
    return found


class Fault(NamedTuple):
    """A fault that is planted into the text of a module: what is written instead of what."""

    module: str
    changes: tuple[tuple[str, str], ...]
    kind: str
    kernel: int


FAULTS = {
    "a mask that is one too wide at the edge of a tile": Fault(
        "kernels.triton_functions", (("inside = columns < width", "inside = columns < width + 1"),), "esn", 1
    ),
    "a state that is read after it was overwritten": Fault(
        "esn.triton_loop", (("1 - t % 2", "0"), ("t % 2", "0")), "esn", 2
    ),
    "a bias that is forgotten": Fault("esn.triton_loop", (("x = b + tl.sum", "x = tl.sum"),), "esn", 0),
    "the terms of the first member for all": Fault(
        "gated.triton_loop", (("limits + 3 * member", "limits"),), "gated_esn", 0
    ),
    "the reset gate in place of the update gate": Fault(
        "gated.triton_loop", (("3 * member + 1,", "3 * member,"),), "gated_esn", 3
    ),
    "the rest of a long row of CSR left out": Fault(
        "kernels.triton_functions", (("range(0, longest, GROUP)", "range(0, GROUP, GROUP)"),), "esn", 3
    ),
    "saturation by its square": Fault(
        "kernels.triton_functions", (("rational_tanh(x / bound)", "rational_tanh(x / (bound * bound))"),), "esn", 0
    ),
}  # fmt: skip


def plant(fault: Fault, folder: str) -> None:
    """Put the changed module in the place of the true one; whatever imported that is imported anew."""
    name = f"{SIMULATED}.{fault.module}"
    text = Path(simulated.__file__).parent.joinpath(*f"{fault.module}.py".split(".", 1)).read_text()
    for old, new in fault.changes:
        assert old in text, f"{fault.module} has no {old!r} to plant a fault into"
        text = text.replace(old, new)
    place = Path(folder, f"{fault.module}.py")
    place.write_text(text)
    for imported in [other for other in sys.modules if other.startswith(SIMULATED) and "triton_" in other]:
        del sys.modules[imported]
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def every_fault() -> dict[str, str | None]:
    """For each planted fault the first check that saw it, or None."""
    found: dict[str, str | None] = {}
    for name, fault in FAULTS.items():
        with tempfile.TemporaryDirectory() as folder:
            plant(fault, folder)
            checks = checks_of(fault.kind, KERNELS[fault.kernel])
            # NaN is an error, too.
            found[name] = next((check for check, size in checks if not size <= TOLERANCE), None)
    return found


def as_markdown(errors: dict[str, dict[str, float]]) -> str:
    """Rows of kinds and kernels, columns of non-idealities, and the worst of all other checks."""
    lines = ["| kind, kernel | " + " | ".join([*NONIDEALITIES, "other checks"]) + " |", "|---" * 10 + "|"]
    for row, found in errors.items():
        others = [size for name, size in found.items() if name not in NONIDEALITIES]
        cells = [f"{found[name]:.0e}" for name in NONIDEALITIES] + [f"{len(others)}: {max(others):.0e}"]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(
    text: str | None,
    checks: Callable[[], dict[str, dict[str, float]]],
    faults: Callable[[], dict[str, str | None]],
) -> None:
    """The command line of this script, and of those like it."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", action="store_true", help="plant faults instead of checking")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.faults:
        caught = faults()
        lines = [f"{name}: {'NOT SEEN' if check is None else f'seen by {check}'}" for name, check in caught.items()]
        print(json.dumps(caught) if arguments.json else "\n".join(lines))
        return
    errors = checks()
    print(json.dumps(errors) if arguments.json else as_markdown(errors))


if __name__ == "__main__":
    report(__doc__, every_check, every_fault)
