"""One run of the suite on one device: the plan, the bench, and what was found."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reservoir_hw.core.errors import ConfigurationError, text_of
from reservoir_hw.core.reservoir_config import GROUPS, Group, ReservoirConfig
from reservoir_hw.core.words import duration
from reservoir_hw.testing import prerequisites
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.plan import STEPS, DeviceSteps, Plan, Statement, fit, inconclusive, least_steps

BUDGET = 20_000
"""Device steps of a run, unless somebody says otherwise."""

OnPlan = Callable[[str], None]
"""Is told a plan in words."""

Share = Callable[[int, int], int]
"""Is told the fewest device steps that a run needs, and its usual budget; says the budget of this run."""


@dataclass(frozen=True)
class Planned:
    """A statement before it is looked at."""

    group: Group
    name: str
    device_steps: DeviceSteps


@dataclass
class SuiteRun:
    """Opens the device when it is first needed, plans, and keeps what was found.

    `budget_steps` bounds the device steps; `budget_s` takes its place where it is given: the time that they take at the
    device's pace, and `share` where somebody else drives the same device within one budget. `on_plan` is told the plan
    before the device is driven, and again where it had to change.
    """

    config: ReservoirConfig
    to_look_at: Sequence[Planned]
    seed: int = 0
    budget_steps: int = BUDGET
    budget_s: float | None = None
    statements: list[Statement] = field(default_factory=list)
    on_plan: OnPlan = lambda plan: None
    share: Share | None = None

    def __post_init__(self) -> None:
        self.bench = Bench(self.config, seed=self.seed)
        self.planned = False
        self.about: dict[str, Any] = {}
        self.step_s: float | None = None
        """Seconds for a step: declared, or found out for a budget in time."""
        self._pace_steps = 0
        self._looked_at: dict[tuple[str, str], int] = {}
        self._spent = ""

    def open(self) -> None:
        """Take the device and plan.

        Raises what opening raises, and `ConfigurationError` for a budget that is too small and what `hil:` names and is
        not there.
        """
        bench = self.bench
        bench.open()
        try:
            spec = bench.spec
            bench.deterministic = spec.deterministic
            golden_steps = prerequisites.check(bench.hil, spec)
            waveform = bench.reservoir.reset_policy.waveform(bench.reservoir.device_spec)
            known = bench.reservoir.known_inputs()
            longest = STEPS if known is None else min(STEPS, len(known))
            if spec.step_period_s and not spec.identity.simulated:
                self.step_s = spec.step_period_s
            if self.budget_s is not None:
                if self.step_s is None:
                    self.step_s = self._pace()
                self.budget_steps = int(min(self.budget_s / self.step_s, sys.maxsize))
            played = bench.reservoir.played_steps
            reset_steps = 0 if waveform is None else played(len(waveform))
            limited = bench.reservoir.known_range is not None
            plan = Plan(spec, reset_steps, longest, golden_steps=golden_steps, limited=limited, played=played)
            if self.share is not None:
                least = least_steps(plan, [one.device_steps for one in self.offered])
                self.budget_steps = self.share(least + bench.device_steps, BUDGET)
            self._plan(plan)
            self.about = bench.provenance()
            self.planned = True
        except BaseException:
            bench.close()
            raise

    def _pace(self) -> float:
        """Seconds for a step, from two short drives: nothing else says how many steps a time is."""
        u = self.bench.inputs(steps=STEPS // 4)
        self.on_plan(
            f"its pace is not declared: two drives of {u.shape[1]} steps find out how many fit into {self.budget_s:g} s"
        )
        before = self.bench.device_steps
        self.bench.drive(u)
        started = time.perf_counter()
        self.bench.drive(u)
        seconds = time.perf_counter() - started
        self._pace_steps = self.bench.device_steps - before
        return seconds / u.shape[1]

    def _plan(self, plan: Plan) -> None:
        """For the statements to come and what is left of the budget; `plan` has the longest drives."""
        self._looked_at = {
            (one.group, one.name): one.device_steps for one in self.statements if one.outcome != "not looked at"
        }
        to_come = [one.device_steps for one in self.offered if (one.group, one.name) not in self._looked_at]
        self.bench.plan = fit(plan, to_come, self.budget_steps - self.bench.device_steps)
        self.on_plan(self.plan_text)

    @property
    def offered(self) -> list[Planned]:
        """What is looked at."""
        return [one for one in self.to_look_at if one.group not in self.bench.hil.not_offered]

    def steps_by_group(self) -> dict[str, int]:
        """Device steps that are planned; of what was looked at before the plan was made, those that it took."""
        found = {"pace": self._pace_steps} if self._pace_steps else {}
        for one in sorted(self.offered, key=lambda one: GROUPS.index(one.group)):
            steps = self._looked_at.get((one.group, one.name))
            found[one.group] = found.get(one.group, 0) + (one.device_steps(self.bench.plan) if steps is None else steps)
        return found

    @property
    def device_steps(self) -> int:
        """All that are planned."""
        return sum(self.steps_by_group().values())

    @property
    def weaker(self) -> str:
        """What the budget took away, or nothing."""
        steps = self.bench.plan.steps
        if self._spent or steps == STEPS:
            return self._spent
        factor = (STEPS / steps) ** 0.5
        noisy = (
            "" if self.bench.deterministic else f"; comparisons see only differences that are {factor:.1f} times larger"
        )
        return f"drives have {steps} steps in the place of {STEPS}, to stay within the budget{noisy}"

    @property
    def plan_text(self) -> str:
        """How much the device will be driven, by group; what is weaker than usual."""
        groups = ", ".join(f"{group} {steps:,}" for group, steps in self.steps_by_group().items() if steps)
        time = "its pace is not declared" if self.step_s is None else duration(self.device_steps * self.step_s)
        text = f"{self.device_steps:,} device steps ({time}): {groups}"
        return f"{text}\nweaker than usual: {self.weaker}" if self.weaker else text

    @contextlib.contextmanager
    def statement(self, group: str, name: str) -> Iterator[Statement]:
        """What is looked at now; its steps and its time are counted."""
        bench = self.bench
        found = Statement(group, name)
        self.statements.append(found)
        bench.statement = found
        reason = next((reason for name, reason in bench.hil.not_offered.items() if name == group), None)
        if reason is not None:
            found.outcome, found.text = "not offered", reason
        before, started = bench.device_steps, time.perf_counter()
        try:
            yield found
        finally:
            found.device_steps = bench.device_steps - before
            found.seconds = time.perf_counter() - started
        if self.planned and bench.plan.spec.deterministic and not bench.deterministic:
            self._plan_repeats()

    def _plan_repeats(self) -> None:
        """The device scatters, and did not say so: all that is still to come needs repeats."""
        plan = self.bench.plan
        plan = replace(plan, spec=plan.spec.model_copy(update={"deterministic": False}))
        try:
            self._plan(plan)
        except ConfigurationError:
            self.bench.plan = plan
            # Nothing more is driven.
            self._looked_at = dict.fromkeys([(one.group, one.name) for one in self.offered], 0) | self._looked_at
            self._spent = (
                f"the budget of {self.budget_steps:,} device steps is too small for a device that scatters and does "
                "not declare it; raise --budget, or declare deterministic: false"
            )
            self.on_plan(self._spent)

    def ready(self) -> None:
        """Open, and in order whatever the last statement has left."""
        bench = self.bench
        if self._spent:
            inconclusive(self._spent)
        if not self.planned:
            self.open()
        elif bench.reservoir.unsafe or bench.reservoir.state_lost:
            bench.reopen()
        elif not bench.reservoir.is_open:
            bench.open()

    def close(self) -> None:
        """Bring the device to its safe state for good; where that fails, it is a statement of its own."""
        try:
            self.bench.close()
        except BaseException as error:
            why = f"{type(error).__name__}: {text_of(error)}"
            self.statements.append(Statement("safety", "last close", "failed", why))
            raise
