"""Many simulated reservoirs of one shape, driven side by side: a small one alone leaves most of a machine idle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from reservoir_hw.backends.simulated.engine_choice import have_numba
from reservoir_hw.backends.simulated.reservoir import SimulatedReservoir
from reservoir_hw.core import arrays
from reservoir_hw.core.arrays import Array
from reservoir_hw.core.errors import ConfigurationError, ShapeError


def run_population(members: Sequence[SimulatedReservoir], u: Array, out: Array | None = None) -> Array:
    """Drive open simulated reservoirs of one shape; return the states (members, batch, time, nodes).

    Each member is driven as by its own `run`: its state goes on, and so do its noise, counters and latency. `reset`,
    `snapshot` and everything else stay with the members. On the CPU they share the threads, and the states are those
    of single runs to the bit. Observers are told in the thread that drives their reservoir.

    Parameters
    ----------
    members
        Reservoirs of one kind, size, precision and device that were reset for equally many sequences. Weights, seeds
        and settings are their own.
    u
        Inputs (batch, time, inputs) for all of them, or (members, batch, time, inputs): each its own.
    out
        Filled and returned if it is given.

    Raises
    ------
    NotOpen, ConfigurationError, ShapeError
        Before anything is driven, where members do not fit together or arrays do not fit them.
    ReservoirError
        What the `run` of a member has raised, of the first if there are several. The other members were driven.
    """
    _check_members(members)
    u = u if arrays.is_tensor(u) else np.asarray(u)
    if u.ndim not in (3, 4) or (u.ndim == 4 and len(u) != len(members)):
        raise ShapeError(
            f"inputs of {len(members)} reservoirs must be (batch, time, inputs) for all of them, or "
            f"({len(members)}, batch, time, inputs), not {tuple(u.shape)}"
        )
    shape = (len(members), *u.shape[-3:-1], members[0].spec.nodes)
    if out is not None and tuple(out.shape) != shape:
        raise ShapeError(f"out must be {shape} (members, batch, time, nodes), not {tuple(out.shape)}")
    in_torch = members[0].native == "torch"
    states: Any = out
    if out is None and not in_torch:
        states = np.empty(shape, members[0].spec.numpy_dtype)
    parts: list[Any] = [None] * len(members)
    failures: dict[int, Exception] = {}

    def drive(number: int) -> None:
        given = u if u.ndim == 3 else u[number]
        try:
            parts[number] = members[number].run(given, None if states is None else states[number])
        except Exception as failure:
            failures[number] = failure

    # Torch has threads of its own.
    (_in_turn if in_torch else on_threads)(drive, len(members))
    if failures:
        number, failure = min(failures.items())
        failure.add_note(f"this was reservoir {number} of {len(members)} that were driven together")
        raise failure
    if out is not None:
        return out
    if states is None:
        return arrays.concatenate([part[None] for part in parts], 0)
    return arrays.like(states, u)


def on_threads(work: Callable[[int], object], members: int) -> None:
    """Call `work` with the number of each member, on as many threads as this process may use.

    The threads are those of the compiled loops; without numba the calls come in turn.
    """
    if not have_numba():
        _in_turn(work, members)
        return
    from reservoir_hw.backends.simulated.kernels.threads import available_threads, share_out

    share_out(work, range(members), available_threads())


def _in_turn(work: Callable[[int], object], members: int) -> None:
    for number in range(members):
        work(number)


def _check_members(members: Sequence[SimulatedReservoir]) -> None:
    if not members:
        raise ConfigurationError("a population needs at least one reservoir")
    if len({id(member) for member in members}) < len(members):
        raise ConfigurationError("a reservoir stands twice in the population: it has one state, so build another one")
    first = _shape(members[0])
    for number, member in enumerate(members):
        here = _shape(member)
        for name, value in here.items():
            if value != first[name]:
                raise ConfigurationError(
                    f"reservoir {number} of the population does not fit the first: {name} {value} instead of "
                    f"{first[name]}; drive it by its own run()"
                )


def _shape(member: SimulatedReservoir) -> dict[str, Any]:
    """What the members of a population have in common, by the names that people know."""
    spec = member.spec
    return {
        "kind": spec.identity.model,
        "nodes": spec.nodes,
        "inputs": spec.inputs,
        "dtype": spec.dtype,
        "library": member.native,
        "device": member.device,
        "sequences": member.batch,
    }
