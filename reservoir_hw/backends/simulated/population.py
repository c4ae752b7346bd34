"""Many simulated reservoirs of one shape, driven side by side: a small one alone leaves most of a machine idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np

from reservoir_hw.backends.simulated.engines import JointLoop, TorchEngine
from reservoir_hw.backends.simulated.nonidealities.noise import LoopTerms
from reservoir_hw.backends.simulated.reservoir import SimulatedReservoir
from reservoir_hw.core import arrays, threads
from reservoir_hw.core.arrays import Array
from reservoir_hw.core.errors import ConfigurationError, ShapeError

# Updates of nodes for each member under which threads wait longer for the interpreter than they compute.
_THREADED = 40_000


def run_population(members: Sequence[SimulatedReservoir], u: Array, out: Array | None = None) -> Array:
    """Drive open simulated reservoirs of one shape; return the states (members, batch, time, nodes).

    Each member is driven as by its own `run`: its state goes on, and so do its noise, counters and latency. `reset`,
    `snapshot` and everything else stay with the members. On the CPU they share the threads, and the states are those
    of single runs to the bit. Tensors go through one launch for all where the engine has such a loop, and the states
    agree within rounding; else the members take turns. Observers are told in the thread that drives their reservoir.

    Where the same members are driven again and again on a GPU, keep a `Population` of them: it keeps their weights in
    one piece.

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
    return Population(members).run(u, out)


class Population:
    """Open simulated reservoirs of one shape that are driven as one; see `run_population`."""

    def __init__(self, members: Sequence[SimulatedReservoir]) -> None:
        self._members = list(members)
        self._engines: list[Any] = []
        self._joint_loop: JointLoop | None = None

    def run(self, u: Array, out: Array | None = None) -> Array:
        """As `run_population`."""
        members = self._members
        _check_members(members)
        u = u if arrays.is_tensor(u) else np.asarray(arrays.as_numpy(u))
        if u.ndim not in (3, 4) or (u.ndim == 4 and len(u) != len(members)):
            raise ShapeError(
                f"inputs of {len(members)} reservoirs must be (batch, time, inputs) for all of them, or "
                f"({len(members)}, batch, time, inputs), not {tuple(u.shape)}"
            )
        shape = (len(members), *u.shape[-3:-1], members[0].spec.nodes)
        if out is not None and tuple(out.shape) != shape:
            raise ShapeError(f"out must be {shape} (members, batch, time, nodes), not {tuple(out.shape)}")
        in_torch = members[0].native == "torch"
        # One copy of inputs and states on their way to a GPU and back.
        given: Any = arrays.to_tensor(u, members[0].spec.numpy_dtype, members[0].device, "inputs") if in_torch else u
        states: Any = None if in_torch else out
        if not in_torch and out is None:
            states = np.empty(shape, members[0].spec.numpy_dtype)
        parts: list[Any] = [None] * len(members)
        failures: dict[int, Exception] = {}

        def drive(number: int) -> None:
            one = given if given.ndim == 3 else given[number]
            try:
                parts[number] = members[number].run(one, None if states is None else states[number])
            except Exception as failure:
                failures[number] = failure

        joint_loop = self._loop() if in_torch else None
        if joint_loop is not None:
            _in_one_launch(drive, members, joint_loop)
        else:
            # Torch has threads of its own; compiled loops release the interpreter.
            in_turn = in_torch or shape[1] * shape[2] * shape[3] < _THREADED
            threads.share_out(drive, range(len(members)), 1 if in_turn else threads.cores())
        if failures:
            number, failure = min(failures.items())
            failure.add_note(f"this was reservoir {number} of {len(members)} that were driven together")
            raise failure
        if states is None:
            states = arrays.concatenate([part[None] for part in parts], 0)
        if out is None:
            return arrays.like(states, u)
        if states is not out:
            cast(Any, out)[...] = arrays.like(states, out)
        return out

    def _loop(self) -> JointLoop | None:
        """The loop of one launch, made anew when a member has other weights."""
        if (engines := [member.engine for member in self._members]) != self._engines:
            # Noise is drawn in pieces: ideal devices and noisy ones do not ask their engines equally often.
            alike = len({member.is_ideal for member in self._members}) == 1
            self._joint_loop = self._members[0].joint_loop(self._members) if alike else None
            self._engines = engines
        return self._joint_loop


def _in_one_launch(drive: Callable[[int], None], members: Sequence[SimulatedReservoir], loop: JointLoop) -> None:
    """Call `drive` for each member in a thread of its own; all that their engines compute is computed by `loop`."""
    launches = _Launches(loop, len(members))

    def drive_and_leave(number: int) -> None:
        try:
            with cast(TorchEngine, members[number].engine).through(partial(launches.ask, number)):
                drive(number)
        finally:
            launches.leave()

    with ThreadPoolExecutor(len(members), "population") as pool:
        list(pool.map(drive_and_leave, range(len(members))))


class _Launches:
    """Lets members wait until all of them have asked, and answers them with one launch."""

    def __init__(self, loop: JointLoop, members: int) -> None:
        self._loop, self._members, self._present = loop, members, members
        self._asked: dict[int, tuple[Any, Any, LoopTerms | None, Future[tuple[Any, Any]]]] = {}
        self._lock = threading.Lock()

    def ask(self, number: int, u: Any, state: Any, terms: LoopTerms | None) -> tuple[Any, Any]:
        """The states and the last of them of one member, as the loop of its engine would give."""
        answer: Future[tuple[Any, Any]] = Future()
        with self._lock:
            self._asked[number] = u, state, terms, answer
            self._launch_if_all_asked()
        return answer.result()

    def leave(self) -> None:
        """Do not wait for a member that is done, or has failed."""
        with self._lock:
            self._present -= 1
            self._launch_if_all_asked()

    def _launch_if_all_asked(self) -> None:
        if not self._asked or len(self._asked) < self._present:
            return
        asked, self._asked = self._asked, {}
        # A member that has left is computed in vain.
        anybody = next(iter(asked.values()))
        inputs, states, terms, _ = zip(*(asked.get(number, anybody) for number in range(self._members)), strict=True)
        try:
            u = inputs[0][None] if all(one is inputs[0] for one in inputs) else _stacked(inputs)
            found, last = self._loop(u, _stacked(states), terms)
        except Exception as failure:
            for *_, answer in asked.values():
                answer.set_exception(failure)
            return
        for number, (*_, answer) in asked.items():
            answer.set_result((found[number], last[number]))


def _stacked(tensors: Sequence[Any]) -> Any:
    return arrays.concatenate([tensor[None] for tensor in tensors], 0)


def _check_members(members: Sequence[SimulatedReservoir]) -> None:
    if not members:
        raise ConfigurationError("a population needs at least one reservoir")
    if len({id(member) for member in members}) < len(members):
        raise ConfigurationError("a reservoir stands twice in the population: it has one state, so build another one")
    first = _shape(members[0])
    for number, member in enumerate(members):
        for name, value in _shape(member).items():
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
