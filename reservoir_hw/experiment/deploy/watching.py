"""Which answers of a model can be used: warm-up, the range of training, and reservoirs that do not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

import numpy as np

from reservoir_hw.core.errors import ConfigurationError, StreamStopped
from reservoir_hw.readout.edge import EdgeRunner
from reservoir_hw.readout.edge.manifest import Extent, Manifest

Outside = Literal["pass", "nan", "stop"]

STILL = 5
"""Steps with other inputs and the same states, after which a reservoir is taken for frozen."""
_SHARE = 0.01
"""Of the range of training."""
_FIGURES = {"input": "inputs lay outside the range of training", "answer": "answers lay outside the range of training",
            "frozen": "rows came from a frozen reservoir"}  # fmt: skip


class Watch:
    """Looks at inputs, states and answers of a runner, and puts nan in the place of answers that cannot be used.

    `begin` at rest with the inputs of series, then `answered` with their outputs, in pieces as they come. A live series
    calls `begin` without inputs, and `taken` for each row.

    Parameters
    ----------
    outside
        What is done with an input or an answer outside the range of training, and with a frozen reservoir. "pass":
        they are counted, and the first is told. "nan": the answers are nan, and the warm-up begins again after such an
        input or reservoir. Such an input is not driven: the last one inside is, so that each row stays one step.
        "stop": `StreamStopped`, before such an input is driven.
    tell
        Gets the sentences.
    """

    def __init__(
        self, runner: EdgeRunner, outside: Outside = "pass", tell: Callable[[str], None] = lambda said: None
    ) -> None:
        manifest, series, ranges = runner.manifest, runner.manifest.series, runner.manifest.ranges
        (width,) = manifest.input.shape
        classes = series is not None and bool(series.classes)
        if outside == "nan" and (classes or manifest.reads_last):
            raise ConfigurationError(f"{manifest.model} answers once for a series, not for each row: no --outside nan")
        if ranges is None and outside != "pass":
            tell(f"nobody knows the range of training, as the bundle has none: --outside {outside} sees less")
        self.outside, self.tell = outside, tell
        self.washout = 0
        """So many answers from rest are nan."""
        self.warmup = np.zeros((0, width))
        """Inputs (time, inputs) that drive each series first. Their answers are dropped."""
        self.name, self.line = "stdin", 0
        """The series, and the line of the next row; 0 where rows are counted."""
        self._inputs = _Limits(ranges and ranges.inputs, width, series and series.input_names)
        # Scores of classes are no targets.
        targets = None if ranges is None or classes else ranges.targets
        self._answers = _Limits(targets, manifest.output.shape[0], series and series.output_names)
        # A device that several layers share answers them in turn, and what they ask for is not one series.
        uses = Counter(id(runner.reservoirs[one.slot]) for one in manifest.crossings)
        devices = {one.slot: runner.reservoirs[one.slot] for one in manifest.crossings if one.state is None}
        self._still = {slot: (_Still(_least(manifest)), one) for slot, one in devices.items() if uses[id(one)] == 1}
        self._known = {"input": ranges, "answer": targets, "frozen": self._still or None}
        self.rows, self.read, self._counts, self._told = 0, 0, Counter[str](), set[str]()

    @contextmanager
    def observing(self) -> Iterator[None]:
        """While the states of the devices are looked at."""
        with ExitStack() as stack:
            for still, reservoir in self._still.values():
                stack.enter_context(reservoir.observed_by(still))
            yield

    def begin(self, inputs: np.ndarray | None = None) -> np.ndarray:
        """Series (batch, time, inputs) at rest; returns the warm-up and them, as they are to be driven."""
        missing = self.washout - len(self.warmup)
        if missing > 0 and "warm-up" not in self._told:
            why = f"the warm-up takes {self.washout} rows, and its file has {len(self.warmup)}"
            none = "they follow from rest (--warmup FILE drives a series first, --warmup none shows them)"
            self.tell(f"the first {missing} answers are nan: {why if len(self.warmup) else none}")
            self._told.add("warm-up")
        given = self.warmup[None, :0] if inputs is None else inputs
        batch, self._row = len(given), -len(self.warmup)
        # Rows since the one that began the warm-up.
        self._good = np.zeros(batch, np.int64)
        self.held = np.tile(self._inputs.middle, (batch, 1))
        """The input (batch, inputs) that was driven last."""
        return self.taken(np.concatenate([np.tile(self.warmup, (batch, 1, 1)), given], 1))

    def taken(self, inputs: np.ndarray) -> np.ndarray:
        """What is to be driven for the next inputs (batch, time, inputs). Raises `StreamStopped`."""
        self._bad, self._at = self._inputs.outside(inputs), 0
        self.read += self._bad[:, max(0, -self._row) :].size
        if self._bad.any():
            _, said = self._found("input", self._bad, lambda *at: self._inputs.said("input", inputs[at]))
            if self.outside == "stop":
                raise StreamStopped(said)
            if self.outside == "nan":
                kept = np.maximum.accumulate(np.where(self._bad, 0, np.arange(1, inputs.shape[1] + 1)), 1)
                inputs = np.take_along_axis(np.concatenate([self.held[:, None], inputs], 1), kept[..., None], 1)
        if inputs.shape[1]:
            self.held = inputs[:, -1]
        return inputs

    def answered(self, outputs: np.ndarray, kept: list[np.ndarray]) -> None:
        """Answers (batch, steps, outputs) to the rows that are next; `kept` gets those after the warm-up series.

        Raises `StreamStopped`, and has kept those before the one that stops the series.
        """
        first, end = max(0, -self._row), outputs.shape[1]
        bad, off = self._bad[:, self._at : self._at + end], self._answers.outside(outputs)
        frozen = {slot: still.taken(bad.shape) for slot, (still, _) in self._still.items()}
        said = ""
        # Nearly always there is nothing to mark, and a step should not wait for that.
        if bad.any() or off.any() or any(own.any() for own in frozen.values()) or (self._good < self.washout).any():
            outputs, end, said = self._marked(outputs, bad, off, frozen)
        else:
            self._good = self._good + end
        kept.append(outputs[:, first:end])
        self.rows += kept[-1].shape[1] * len(outputs)
        if said:
            raise StreamStopped(said)
        self._at, self._row = self._at + end, self._row + end

    def _marked(
        self, outputs: np.ndarray, bad: np.ndarray, off: np.ndarray, frozen: dict[int, np.ndarray]
    ) -> tuple[np.ndarray, int, str]:
        """The outputs with nan in them; how many come before the one that stops the series, and why it does."""
        rows, found = np.arange(outputs.shape[1]), []
        still = np.zeros_like(bad)
        for slot, own in frozen.items():
            if own.any():
                why = f"reservoir {slot} gives the same states for {STILL} steps while its input changes"
                found.append(self._found("frozen", own & ~still, lambda *at, why=why: why))
                still |= own
        again = (bad | still) & (self.outside == "nan")
        since = rows - np.maximum.accumulate(np.where(again, rows, -1 - self._good[:, None]), 1)
        unusable = since <= self.washout
        off = off & ~unusable
        if off.any():
            found.append(self._found("answer", off, lambda *at: self._answers.said("answer", outputs[at])))
        self._good = since[:, -1] if len(rows) else self._good
        unusable |= off & (self.outside == "nan")
        marked = np.where(unusable[..., None], np.array(np.nan, outputs.dtype), outputs) if unusable.any() else outputs
        end, said = min(found) if found and self.outside == "stop" else (len(rows), "")
        return marked, end, said

    def refused(self, before: np.ndarray, why: str) -> np.ndarray:
        """A device has refused the input of the next row, which is outside then; `before` is driven in its place."""
        self._bad, self.held = np.ones_like(self._bad), before
        self._found("input", self._bad, lambda *at: why)
        return before

    def _found(self, kind: str, where: np.ndarray, said: Callable[[int, int], str]) -> tuple[int, str]:
        """Count these rows (batch, steps) and tell the first of the first time; returns its step, and the sentence."""
        self._counts[kind] += int(where[:, max(0, -self._row) :].sum())
        step = int(where.any(0).argmax())
        sequence = int(where[:, step].argmax())
        row, name = self._row + step, self.name + (f", sequence {sequence}" if len(where) > 1 else "")
        row, name = (row, name) if row >= 0 else (row + len(self.warmup), "the warm-up")
        place = f"{name}:{self.line}" if self.line else f"{name}, row {row} (0 is the first)"
        sentence = f"{place}: {said(sequence, step)}"
        if kind not in self._told and self.outside != "stop":
            self.tell(sentence)
        self._told.add(kind)
        return step, sentence

    def figures(self) -> dict[str, int | None]:
        """Rows that were answered and that were read, and how many had what; None where nobody can know."""
        counts = {kind: None if known is None else self._counts[kind] for kind, known in self._known.items()}
        return {"rows": self.rows, "read": self.read, **counts}

    def lines(self) -> list[str]:
        """The same in sentences, where there is something to tell."""
        counts, of = self._counts, {"input": self.read}
        return [
            f"{counts[kind]:,} of {of.get(kind, self.rows):,} {what}" for kind, what in _FIGURES.items() if counts[kind]
        ]


def _least(manifest: Manifest) -> np.ndarray | float:
    """What an input has to move by until states that stay the same tell: a coarse converter shows no less."""
    ranges, series, input_ = manifest.ranges, manifest.series, manifest.crossings[0].drive if manifest.crossings else ""
    if ranges is None or input_ != manifest.input.name:
        return 0.0
    width = np.subtract(ranges.inputs.high, ranges.inputs.low)
    return _SHARE * (width if series is None else width * series.input_scale.gain)


class _Limits:
    """Beyond these, by half of what training had, a channel is outside. A constant channel has a step of float32."""

    def __init__(self, extent: Extent | None, width: int, names: Sequence[str] | None) -> None:
        self._extent, self._names = extent, names or [str(number) for number in range(width)]
        self.middle = np.zeros(width)
        self.high = np.full(width, np.finfo(float).max)
        self.low = -self.high
        if extent is not None:
            if len(extent.low) != width:
                raise ConfigurationError(f"the bundle has ranges of {len(extent.low)} channels, not {width}: damaged")
            low, high = np.array(extent.low), np.array(extent.high)
            step = np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
            margin = np.maximum((high - low) / 2, step)
            self.low, self.high, self.middle = low - margin, high + margin, (low + high) / 2

    def outside(self, values: np.ndarray) -> np.ndarray:
        """Which rows (batch, steps) of the values are; what is not finite is."""
        inside = (values >= self.low) & (values <= self.high)
        # Of all at once is quicker than of each row, and nearly always enough.
        return np.zeros(values.shape[:2], bool) if inside.all() else np.asarray(~inside.all(-1))

    def said(self, what: str, row: np.ndarray) -> str:
        """A sentence about a row (channels,) that is outside."""
        channel = int((~((row >= self.low) & (row <= self.high))).argmax())
        name, one = self._names[channel], self._extent
        known = "" if one is None else f", training had {one.low[channel]:.9g} to {one.high[channel]:.9g}"
        return f"{what} {name if name.isdecimal() else repr(name)} is {row[channel]:.9g}{known}"


class _Still:
    """Sees a device driven, and which of its states stay the same to the bit while its inputs go away by `least`."""

    def __init__(self, least: np.ndarray | float) -> None:
        self._least = least
        self.was_reset(from_rest=True)

    def was_reset(self, *, from_rest: bool) -> None:
        """Another series begins."""
        self._last: tuple[np.ndarray, ...] = ()
        self._count = np.zeros((1, 1), int)
        self._seen: list[np.ndarray] = []

    def was_driven(self, inputs: np.ndarray, states: np.ndarray | None, seconds: float) -> None:
        """Count the steps of each stretch of equal states whose input is away from where it was when that began."""
        if states is None:
            return
        if not self._last:
            # A step that differs from the first.
            self._last = states[:, :1] + 1, inputs[:, :1]
        last, anchor = self._last
        # The first node nearly always tells.
        if states.shape[1] == 1 and (states[:, 0, 0] != last[:, 0, 0]).all():
            self._last, self._count = (states.copy(), inputs.copy()), np.zeros((len(states), 1), int)
            self._seen.append(np.zeros(states.shape[:2], bool))
            return
        before = np.concatenate([last, states], 1)
        same = (before[:, 1:] == before[:, :-1]).all(-1)
        # Of each step, the one that began its stretch: 0 was before this call.
        began = np.maximum.accumulate(np.where(same, 0, np.arange(1, same.shape[1] + 1)), 1)
        anchors = np.take_along_axis(np.concatenate([anchor, inputs], 1), began[..., None], 1)
        away = np.cumsum((np.abs(inputs - anchors) > self._least).any(-1), 1)
        carried = np.broadcast_to(self._count, (len(states), 1))
        count = away - np.take_along_axis(np.concatenate([-carried, away], 1), began, 1)
        self._last, self._count = (states[:, -1:].copy(), anchors[:, -1:]), count[:, -1:]
        self._seen.append(count >= STILL)

    def taken(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which of the rows (batch, steps) since the last call came from a frozen device."""
        seen, self._seen = self._seen, []
        found = seen[0] if len(seen) == 1 else np.concatenate([*seen, np.zeros(shape, bool)], 1)
        return found[:, : shape[1]]
