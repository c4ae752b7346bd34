"""One run of the suite on one device: the plan, the bench, and what was found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reservoir_hw.core.hil import GROUPS, Group
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.testing.bench import Bench
from reservoir_hw.testing.outcomes import Statement
from reservoir_hw.testing.plan import STEPS, DeviceSteps, Plan, fit

BUDGET = 20_000
"""Device steps of a run, unless somebody says otherwise."""


@dataclass(frozen=True)
class Planned:
    """A statement before it is looked at."""

    group: Group
    name: str
    device_steps: DeviceSteps


@dataclass
class SuiteRun:
    """Opens the device when it is first needed, plans, and keeps what was found.

    `budget_steps` bounds the device steps, `budget_s` the time that they take at the device's pace.
    """

    config: ReservoirConfig
    planned: Sequence[Planned]
    seed: int = 0
    budget_steps: int | None = BUDGET
    budget_s: float | None = None
    statements: list[Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(self.config, seed=self.seed)
        self.about: dict[str, Any] = {}

    def open(self) -> None:
        """Take the device and plan. Raises what opening raises, `ConfigurationError` for a budget that is too small."""
        bench = self.bench
        bench.open()
        try:
            bench.deterministic = bench.spec.deterministic
            waveform = bench.reservoir.reset_policy.waveform(bench.reservoir.device_spec)
            known = bench.reservoir.known_inputs()
            longest = STEPS if known is None else min(STEPS, len(known))
            plan = Plan(bench.spec, 0 if waveform is None else len(waveform), longest)
            self.step_s = self._pace()
            budget = self.budget_steps or BUDGET
            if self.budget_s is not None:
                budget = int(self.budget_s / self.step_s)
            bench.plan = fit(plan, [one.device_steps for one in self.offered], budget)
            self.about = bench.provenance()
        except BaseException:
            bench.close()
            raise

    @property
    def offered(self) -> list[Planned]:
        """What is looked at."""
        return [one for one in self.planned if one.group not in self.bench.hil.not_offered]

    def _pace(self) -> float:
        """Seconds for a step: declared, or from a short drive where a budget in time asks for it."""
        spec = self.bench.spec
        if spec.step_period_s and not spec.identity.simulated:
            return spec.step_period_s
        u = self.bench.inputs(steps=STEPS // 4)
        self.bench.drive(u)
        started = time.perf_counter()
        self.bench.drive(u)
        return (time.perf_counter() - started) / u.shape[1]

    def steps_by_group(self) -> dict[str, int]:
        """Device steps that are planned."""
        found: dict[str, int] = {}
        for one in sorted(self.offered, key=lambda one: GROUPS.index(one.group)):
            found[one.group] = found.get(one.group, 0) + one.device_steps(self.bench.plan)
        return found

    @property
    def device_steps(self) -> int:
        """All that are planned."""
        return sum(self.steps_by_group().values())

    @property
    def weaker(self) -> str:
        """What the budget took away, or nothing."""
        steps = self.bench.plan.steps
        if steps == STEPS:
            return ""
        factor = (STEPS / steps) ** 0.5
        noisy = (
            "" if self.bench.deterministic else f"; comparisons see only differences that are {factor:.1f} times larger"
        )
        return f"drives have {steps} steps in the place of {STEPS}, to stay within the budget{noisy}"

    @property
    def plan_text(self) -> str:
        """How much the device will be driven, by group; what is weaker than usual."""
        groups = ", ".join(f"{group} {steps:,}" for group, steps in self.steps_by_group().items() if steps)
        seconds = self.device_steps * self.step_s
        time = f"{seconds / 3600:.1f} h" if seconds >= 360 else f"{seconds:.2g} s"
        text = f"{self.device_steps:,} device steps, {time}: {groups}"
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

    def ready(self) -> None:
        """Open, and in order whatever the last statement has left."""
        bench = self.bench
        if not self.about:
            self.open()
        elif bench.reservoir.unsafe or bench.reservoir.state_lost:
            bench.reopen()
        elif not bench.reservoir.is_open:
            bench.open()
