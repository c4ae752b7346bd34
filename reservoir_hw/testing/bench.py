"""The device that a run of the suite drives, and how it is compared with itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from reservoir_hw.core.errors import DeviceError, ReservoirError
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import Action, HilConfig, ReservoirConfig, build_reservoir, perform
from reservoir_hw.core.seeds import generator
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.devices.memory import unlike_pasts
from reservoir_hw.measures.comparison import (
    REPEATS,
    ROUNDING,
    WORTH_SEEING,
    Comparison,
    compare,
    spread_of,
)
from reservoir_hw.testing.plan import Plan, Statement, failed, inconclusive, not_offered
from reservoir_hw.testing.prerequisites import recover

MARGIN = 0.1
"""Part of the range at each end that is kept for the group `range`."""

# At one step and one node.
_WORTH_SEEING_SOMEWHERE = 3 * WORTH_SEEING

Drive = Callable[[], np.ndarray]
"""Drives the device from rest and returns states (time, nodes)."""


@dataclass(frozen=True)
class Pair:
    """Repeats under two conditions, each (repeats, time, nodes), taken in turn."""

    reference: np.ndarray
    other: np.ndarray
    spread: float

    @classmethod
    def of(cls, reference: np.ndarray, other: np.ndarray) -> Self:
        """Of these drives; `spread` is the standard deviation of their states."""
        return cls(reference, other, spread_of(np.concatenate([reference, other])))

    def rows(self, rows: slice) -> Pair:
        """Some of the time steps, in units of the whole drive."""
        return Pair(self.reference[:, rows], self.other[:, rows], self.spread)


class Bench:
    """A device under test.

    `deterministic` is what it declares, until the suite has seen otherwise. `statement` is what is being looked at.
    """

    def __init__(self, config: ReservoirConfig, *, seed: int = 0) -> None:
        self.config = config
        self.hil = config.hil or HilConfig()
        self.seed = seed
        self.plan: Plan
        self.deterministic = False
        self.statement = Statement("", "")
        self.early: np.ndarray | None = None
        """Responses to the standard drive from the beginning of the run, (repeats, time, nodes)."""
        self._driven_before = 0
        self._rewound: Mapping[str, np.ndarray] | None = None

    # ---- the device -----------------------------------------------------------------------------

    @cached_property
    def reservoir(self) -> Reservoir:
        """The device, made when it is first needed: a machine may lack what it takes."""
        return build_reservoir(self.config)

    def open(self) -> None:
        """Take the device."""
        before = self.reservoir.counters
        try:
            self.reservoir.open()
        finally:
            if self.reservoir.counters is not before:
                self._driven_before += before.steps
        # It would play the next repetition of a drive each time.
        if self.reservoir.known_inputs() is not None:
            self._rewound = self.reservoir.snapshot()

    def close(self) -> None:
        """Bring it to its safe state."""
        self.reservoir.close()

    def reopen(self) -> None:
        """After a fault: bring it to its safe state, recover it, and take it again."""
        with contextlib.suppress(DeviceError):
            self.close()
        recover(self.config)
        self.open()

    def perform(self, action: Action) -> Any:
        """What an action of the section `hil:` answers."""
        return perform(action, self.config, self.hil.folder, self.hil.timeout_s)

    def lend(self, u: np.ndarray | None) -> None:
        """Give the device away and take it again; meanwhile somebody else drives it with `u`, if that is given."""
        self.close()
        try:
            if u is not None:
                with build_reservoir(self.config) as other:
                    other.run(u)
                    self._driven_before += other.counters.steps
        finally:
            self.open()

    @property
    def spec(self) -> ReservoirSpec:
        """What the device declares."""
        return self.reservoir.spec

    @property
    def device_steps(self) -> int:
        """What it was driven with since the bench was made, summed over sequences, replays and resets."""
        return self._driven_before + self.reservoir.counters.steps

    @property
    def limits(self) -> tuple[float, float]:
        """Lowest and highest input of all drives but those that look at the range itself.

        They keep a tenth of the range away from its ends, so that a wrong range fails where ranges are looked at, and
        nowhere else. -1 and 1 where nothing is declared. Behind a mask nothing leaves the range of the device.
        """
        if self.reservoir.known_range is None:
            return self.reservoir.safe_range
        low, high = self.reservoir.known_range
        return low + MARGIN * (high - low), high - MARGIN * (high - low)

    # ---- drives ---------------------------------------------------------------------------------

    def inputs(self, name: str = "standard", *, steps: int | None = None, batch: int = 1) -> np.ndarray:
        """Inputs (batch, steps, inputs), drawn uniformly over `limits`; each name has its own.

        A recording answers its own inputs alone: it is given those, and other names are "not offered".
        """
        steps = self.plan.steps if steps is None else steps
        known = self.reservoir.known_inputs()
        if known is not None:
            if name != "standard":
                not_offered("a recording answers the inputs alone that it was recorded with")
            return known[None, :steps]
        low, high = self.limits
        shape = batch, steps, self.spec.inputs
        return generator(self.seed, f"conform/{name}").uniform(low, high, shape).astype(self.spec.numpy_dtype)

    def level(self, value: float | np.ndarray, steps: int) -> np.ndarray:
        """Constant inputs (1, steps, inputs): one value, or one for each input."""
        if self.reservoir.known_inputs() is not None:
            not_offered("a recording answers the inputs alone that it was recorded with")
        return np.full((1, steps, self.spec.inputs), value, self.spec.numpy_dtype)

    def beyond(self, part: float, steps: int) -> list[np.ndarray]:
        """Constant inputs (1, steps, inputs) that leave the range of the device at either end, by so much of it."""
        limits, mask = self.reservoir.device_spec.input_range, self.reservoir.input_mask
        assert limits is not None, "was looked at"
        low, high = limits
        ends = low - part * (high - low), high + part * (high - low)
        if mask is None:
            return [self.level(end, steps) for end in ends]
        # Behind the mask: the input of the device that reaches furthest, by what reaches it most directly.
        row = int(np.linalg.norm(mask.matrix, axis=1).argmax())
        weights = mask.matrix[row]
        return [self.level((end - mask.bias[row]) * weights / (weights @ weights), steps) for end in ends]

    def outside(self, u: np.ndarray) -> int:
        """How many numbers of inputs (batch, time, inputs) lie outside the range of the device, behind its mask."""
        limits, mask = self.reservoir.device_spec.input_range, self.reservoir.input_mask
        assert limits is not None, "was looked at"
        inner = u if mask is None else mask.apply(u)
        return int(np.count_nonzero((inner < limits[0]) | (inner > limits[1])))

    def pasts(self) -> tuple[np.ndarray, np.ndarray]:
        """Two pasts that leave other states behind."""
        if self.reservoir.known_inputs() is not None:
            not_offered("a recording answers the inputs alone that it was recorded with")
        one, another = unlike_pasts(*self.limits, steps=self.plan.past, inputs=self.spec.inputs)
        return one.astype(self.spec.numpy_dtype), another.astype(self.spec.numpy_dtype)

    def rest(self, batch: int = 1) -> None:
        """Bring the device to rest; a recording to its beginning."""
        if self._rewound is not None:
            self.reservoir.restore(self._rewound)
        self.reservoir.reset(batch)

    def drive(
        self, u: np.ndarray, pieces: Sequence[int] = (), between: Callable[[], object] | None = None
    ) -> np.ndarray:
        """States (batch, time, nodes) of a drive from rest, in one piece or in several."""
        self.rest(len(u))
        if not pieces:
            return np.asarray(self.reservoir.run(u))
        parts, begin = [], 0
        for steps in pieces:
            if begin and between is not None:
                between()
            parts.append(np.asarray(self.reservoir.run(u[:, begin : begin + steps])))
            begin += steps
        return np.concatenate(parts, axis=1)

    def refused(self, drive: Callable[[], object], error: type[ReservoirError], what: str) -> bool:
        """Whether a drive gets this error. Fails where it does, but the device was driven."""
        before = self.device_steps
        try:
            drive()
        except error:
            if self.device_steps != before:
                failed(f"{what} was refused, but after the device had been driven")
            return True
        return False

    def repeated(self, u: np.ndarray) -> np.ndarray:
        """Responses (repeats, time, nodes) to inputs (1, time, inputs)."""
        return np.stack([self.drive(u)[0] for _ in range(self.repeats)])

    def pair(self, reference: Drive, other: Drive) -> Pair:
        """Both as often as a comparison needs, in turn: A B, B A, A B, ..."""
        taken: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for number in range(self.repeats):
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                taken[which].append((reference, other)[which]())
        return Pair.of(np.stack(taken[0]), np.stack(taken[1]))

    @property
    def repeats(self) -> int:
        """Drives under each condition."""
        return 1 if self.deterministic else REPEATS

    # ---- comparisons ----------------------------------------------------------------------------

    def compare(self, pair: Pair, *, rounds: bool = False) -> Comparison:
        """What differs. `rounds`: the arithmetic may round otherwise, as with another number of sequences."""
        return compare(pair.reference, pair.other, spread=pair.spread, tolerance=ROUNDING if rounds else 0.0)

    def noted(self, pair: Pair, *, rounds: bool = False) -> Comparison:
        """What differs, in the statement, too."""
        found, statement = self.compare(pair, rounds=rounds), self.statement
        statement.comparisons.append(asdict(found))
        statement.value, statement.unit = found.difference, "standard deviations"
        statement.low, statement.high = max(0.0, found.difference - found.smallest), found.difference + found.smallest
        return found

    def expect_same(
        self, pair: Pair, what: str, *, rounds: bool = False, wanders: bool = False, fades: bool = False
    ) -> None:
        """Fail where the two conditions give other states; inconclusive where that could not have been seen.

        `wanders`: the conditions were not taken in turn, and so much as `WORTH_SEEING` may have changed meanwhile.
        `fades`: what they differ by fades away, so that a difference counts that would have been seen in any case.
        """
        found = self.noted(pair, rounds=rounds)
        small = found.difference <= WORTH_SEEING and found.largest <= _WORTH_SEEING_SOMEWHERE
        faint = fades and found.p is not None and found.difference <= found.smallest
        if found.differs and not (wanders and small) and not faint:
            failed(f"{what}: {found}")
        if not found.conclusive:
            inconclusive(
                f"{what}: a difference below {found.smallest:.2g} standard deviations of the states could not have "
                f"been seen, and {WORTH_SEEING:g} matters: the device scatters too much"
            )
        self.statement.text = str(found)

    def provenance(self) -> dict[str, Any]:
        """Who was tested."""
        return {"identity": self.spec.identity.model_dump(), "spec": self.spec.model_dump(mode="json")}
