"""A bundle at work beside its reservoirs: numpy and onnxruntime, no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import (
    ConfigurationError,
    InputRangeError,
    MissingExtra,
    NotOpen,
    NotSupported,
    OutputFault,
    ShapeError,
    StateLost,
)
from reservoir_hw.core.tokenizer import Tokenizer, parse_tokenizer
from reservoir_hw.core.validation import whole_number
from reservoir_hw.readout.edge.bundle import Bundle
from reservoir_hw.readout.edge.devices import AnyReservoir, casts_of, check_device, check_repetitions, opened
from reservoir_hw.readout.edge.manifest import Value
from reservoir_hw.readout.edge.sessions import Bound, StageLatency, Stopwatch, make_session, stages_of
from reservoir_hw.readout.edge.verification import ProbeComparison, compare_probe
from reservoir_hw.readout.sampling import Sampler

# Twice what a character in UTF-8 can have.
_MOST_PENDING = 8
# Of a forecast, in one call.
_WARMUP_STEPS = 1024
_DOUBLE = np.dtype(np.float64)


class EdgeRunner:
    """A trained model that runs beside its reservoirs.

        with EdgeRunner("model.rhw", "bench.yaml") as runner:
            outputs = runner.run(inputs)                # (batch, time, inputs) -> (batch, time, outputs)
            for piece in runner.generate("Once ", 100): ...

    A sequence goes on from call to call until `reset`, as it does on a `Reservoir`. `step` works on arrays that are
    bound to the graphs once, and lets the reservoir write its states into them.

    Where the bundle says what the user's numbers are (`manifest.series`), inputs and outputs are these; they are scaled
    in float64, and outputs are float64.

    Parameters
    ----------
    bundle
        The path of a bundle, or an open one.
    reservoirs
        The device of each slot of the bundle, or the only one: open, or as a configuration (file, mapping or
        object), which is then opened here and closed by `close`. One configuration may name those of all layers (`kind:
        layers`, `kind: laerc_layers`). None for a model that holds its reservoirs.
    threads
        Of the graphs. One is quickest for small models.
    any_device
        Drive devices with other fingerprints than those that the model was trained on. Their states may have another
        precision, too (float32, float64): they are cast, which a warning tells with what it costs (`casts`).
    repetitions
        How often each input is played to the devices and averaged; must be as in training, which None means. With more
        than one, `run` takes whole sequences from rest and there is no `step`.
    expect
        The SHA-256 of the bundle that was sent, as `bundle info` shows it.

    Raises
    ------
    ConfigurationError
        The bundle is damaged, made for something else, or another one than expected; a device is another one, or does
        not fit.
    MissingExtra
        onnxruntime is not installed.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str] | Bundle,
        reservoirs: AnyReservoir | Sequence[AnyReservoir] | None = None,
        *,
        threads: int = 1,
        any_device: bool = False,
        repetitions: int | None = None,
        expect: str | None = None,
    ) -> None:
        threads = whole_number("threads", threads)
        with ExitStack() as stack:
            self.bundle = bundle if isinstance(bundle, Bundle) else stack.enter_context(Bundle.open(bundle, expect))
            if expect is not None:
                self.bundle.require(expect)
            manifest = self.manifest = self.bundle.manifest
            sessions = [make_session(self.bundle, number, threads) for number in range(len(manifest.segments))]
            if repetitions is None:
                repetitions = max((slot.repetitions for slot in manifest.slots), default=1)
            repetitions = self.repetitions = whole_number("repetitions", repetitions)
            check_repetitions(manifest.slots, repetitions)
            self.reservoirs = opened(reservoirs, manifest.slots, stack)
            for number, (device, slot) in enumerate(zip(self.reservoirs, manifest.slots, strict=True)):
                check_device(device, slot, number, any_device=any_device)
            self.casts = casts_of(self.reservoirs, self.bundle, sessions)
            """Of devices in another precision than that of the training: what is cast, and what it costs."""
            self.whole_sequences = repetitions > 1 or manifest.whole_sequences
            """Whether the model takes whole sequences from rest only."""
            self._resets = 0
            self._closed = False
            self._tokenizer: Tokenizer | None = None
            self._tokens = manifest.output.shape[0]
            # Asked for in every step.
            self._shape, self._dtype = manifest.input.shape, np.dtype(manifest.input.dtype)
            self._input_scale = None if manifest.series is None else manifest.series.input_scale
            self._output_scale = None if manifest.series is None else manifest.series.output_scale
            self._stages = stages_of(manifest, sessions, self.reservoirs)
            self.stopwatch = Stopwatch([stage.name for stage in self._stages])
            """The histograms behind `latency`."""
            self.clipped = 0
            """Values that the model's input maps have clipped into the range of a device, since the runner was made."""
            self._bound: Bound | None = None
            if manifest.tokenizer is not None and manifest.input.dtype == "int64":
                # Byte pairs need another package. A caller who gives tokens may not have it.
                with suppress(MissingExtra):
                    known = self.tokenizer.vocabulary
                    if known != self._tokens:
                        raise ConfigurationError(
                            f"bundle {self.bundle.name}: {manifest.tokenizer} has {known} tokens, the model "
                            f"{self._tokens}: it belongs to another model, export the bundle again"
                        )
            self.reset()
            self._stack = stack.pop_all()

    @property
    def washout(self) -> int:
        """How many answers from rest are not to be used, as the bundle says.

        0 for a text, and for a model that answers once for a series, or has seen it all before it answers.
        """
        manifest = self.manifest
        once = manifest.reads_last or (manifest.series is not None and bool(manifest.series.classes))
        return 0 if once or manifest.whole_sequences or self._dtype.kind == "i" else manifest.washout

    @property
    def warming(self) -> bool:
        """Whether the last answer lies within the washout; at rest, whether the next one will."""
        return max(self._steps, 1) <= self.washout

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the text that the model was trained on. Raises `NotSupported` if there is none."""
        if self._tokenizer is None:
            file = self.manifest.tokenizer
            if file is None:
                raise NotSupported(f"{self.manifest.model} has no tokenizer: give it tokens, or numbers, not a text")
            self._check_open()
            self._tokenizer = parse_tokenizer(self.bundle.read(file), f"{self.bundle.name}: {file}")
        return self._tokenizer

    @property
    def vocabulary(self) -> int:
        """How many tokens there are. Raises `NotSupported` for a model of series."""
        if self.manifest.input.dtype != "int64":
            raise NotSupported(f"{self.manifest.model} takes series, not tokens")
        return self.manifest.output.shape[0]

    def close(self) -> None:
        """Close what was opened here: reservoirs that came as configurations, and the bundle."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        # What was begun is not gone on with, so that a step need not ask.
        self._closed = self._unfinished = True
        # A device that does not answer cannot be closed either: what went wrong first is what the caller must learn.
        self._stack.__exit__(*error)

    def reset(self, batch: int = 1) -> None:
        """Begin `batch` new sequences, everything at rest."""
        self._check_open()
        self._batch = whole_number("batch", batch)
        self._steps = 0
        self._resets += 1
        self._unfinished = False
        for stage in self._stages:
            stage.begin(self._batch)
        self._carried = {
            one.reads: np.zeros((self._batch, *one.shape), one.dtype) for one in self.manifest.carried
        }  # fmt: skip
        self._take_up()

    def run(self, inputs: Any) -> np.ndarray:
        """Outputs (batch, time, outputs) of inputs (batch, time, inputs), or of tokens (batch, time).

        One series (time, inputs) alone has outputs (time, outputs). Goes on from where the last call ended; at rest,
        any number of sequences may begin.

        Raises
        ------
        ShapeError, InputRangeError
            Before anything is driven, and the sequences go on. Only where a device has taken a step of this call
            before a later one refuses what the model computes for it, nothing goes on before `reset`.
        StateLost
            A device cannot go on with these sequences.
        OutputFault
            An output is not finite; the error has those before it. Nothing goes on before `reset`.
        DeviceError
            A device failed; nothing goes on before `reset`.
        """
        if np.ndim(arrays.as_numpy(inputs)) == len(self._shape) + 1:
            return self.run(np.asarray(arrays.as_numpy(inputs))[None])[0]
        given = self.checked(inputs)
        self._begin_if_other(given.shape[0])
        if not given.shape[1]:
            return self._as_user(np.zeros((*given.shape[:2], *self.manifest.output.shape), self.manifest.output.dtype))
        return self._as_user(self._advance(given))

    def step(self, inputs: Any) -> np.ndarray:
        """Outputs (batch, outputs) of one step of inputs (batch, inputs), or of tokens (batch,)."""
        outputs = self._step(inputs)
        return outputs.copy() if self._output_scale is None else self._output_scale.to_user(outputs)

    def forecast(self, inputs: Any, steps: int) -> np.ndarray:
        """How series (batch, time, inputs) go on, of a model that says the next inputs: (batch, steps, outputs).

        Begins at rest. The answer to the last step given is step 0 of the result, and the next input; and so on.
        Raises as `run`, and `NotSupported` for a model or a device that cannot be fed with its own answers.
        """
        steps = whole_number("steps", steps)
        self._check_forecast()
        given = np.asarray(arrays.as_numpy(inputs))
        if not self.checked(given).shape[1]:
            raise ShapeError("a forecast goes on from a series of at least one step, and this one has none")
        self.reset(len(given))
        outputs = np.empty(0)
        for start in range(0, given.shape[1], _WARMUP_STEPS):
            outputs = self.run(given[:, start : start + _WARMUP_STEPS])[:, -1]
        found = [outputs]
        for step in range(1, steps):
            try:
                found.append(self.step(found[-1]))
            except OutputFault as fault:
                fault.outputs = np.stack(found, 1)
                raise
            except InputRangeError as error:
                raise OutputFault(
                    f"the forecast left the range of the reservoir at its step {step}: {error}",
                    outputs=np.stack(found, 1),
                ) from error
        return np.stack(found, 1)

    def answers(self, outputs: np.ndarray) -> list[str]:
        """The class of each series with these outputs (batch, time, classes). Raises `NotSupported` without classes."""
        series = self.manifest.series
        if series is None or not series.classes:
            raise NotSupported(f"{self.manifest.model} answers with numbers, and with no classes")
        return [series.class_of(one[-1:] if self.manifest.reads_last else one) for one in outputs]

    def generate(
        self,
        prompt: str | Sequence[int] | np.ndarray,
        max_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[Any]:
        """Continue a prompt from rest: a text by pieces of text, a sequence of tokens by tokens.

        The prompt crosses each reservoir once, then each token is one `step`. Arguments as those of
        `ReservoirLM.generate`; the same seed gives the same text as there.
        """
        self._check_open()
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else np.asarray(prompt)
        if tokens.ndim != 1 or not len(tokens):
            raise ShapeError("the prompt is empty: begin with at least one token" if not tokens.size else
                             f"the prompt must be one sequence of tokens (time,), not {tokens.shape}")  # fmt: skip
        given = self.checked(tokens[None])
        if self.manifest.output_meaning != "logits":
            raise NotSupported(f"{self.manifest.model} gives values, not the logits of tokens: use run or step")
        count = whole_number("max_tokens", max_tokens)
        drawn = self._generated(given, count, Sampler(temperature, top_k, top_p, seed))
        return self._as_text(tokens, drawn) if isinstance(prompt, str) else drawn

    def checked(self, inputs: Any) -> np.ndarray:
        """Inputs (batch, time, ...), or tokens (batch, time), as the model takes them: what `run` looks at first.

        Raises `ShapeError` and `InputRangeError`. A device may refuse inputs for other reasons.
        """
        given = np.asarray(arrays.as_numpy(inputs))
        shape = given.shape
        if len(shape) != len(self._shape) + 2 or shape[2:] != self._shape or not shape[0]:
            value = self.manifest.input
            raise ShapeError(f"{self.manifest.model} takes {_described(value, 'batch, time')}, not {shape}")
        if self._dtype.kind == "f":
            scale = self._input_scale
            scaled = given if scale is None else scale.to_model(arrays.to_numpy(given, _DOUBLE, "inputs"))
            numbers = _narrowed(scaled, self._dtype)
            if not arrays.all_finite(numbers):
                raise InputRangeError(_not_finite(arrays.first_true(~np.isfinite(numbers)), given, self._dtype))
            return numbers
        if given.dtype.kind not in "iu":
            raise ShapeError(f"tokens must be whole numbers, not {given.dtype}")
        # One token at a time is what a text is written with, and looking for extremes takes longer than a small graph.
        end = self._tokens
        known = 0 <= given.item() < end if given.size == 1 else given.min(initial=0) >= 0 and given.max(initial=0) < end
        if not known:
            where = arrays.first_true((given < 0) | (given >= end))
            raise InputRangeError(
                f"token {given[where]} at (text, position) = {where} is outside the vocabulary of {self._tokens}"
            )
        return given.astype(np.int64, copy=False)

    def latency(self) -> list[StageLatency]:
        """Durations of the calls of each segment and each crossing."""
        return self.stopwatch.summary()

    def verify_probe(self) -> list[ProbeComparison]:
        """Drive each device with the golden inputs and compare its response with the recorded one.

        Leaves the model at rest. Raises `ConfigurationError` where the bundle holds no response, or no device is
        beside it.
        """
        self._check_open()
        if not self.reservoirs:
            raise ConfigurationError(f"{self.manifest.model} holds its reservoirs: no device answers beside it")
        found = []
        for number, (device, slot) in enumerate(zip(self.reservoirs, self.manifest.slots, strict=True)):
            if slot.probe is None:
                raise ConfigurationError(
                    f"the bundle holds no golden response of reservoir {number}: export it while the device is there"
                )
            found.append(compare_probe(device, self.bundle.tensors(slot.probe)))
        self.reset()
        return found

    # ---- how

    def _step(self, inputs: Any) -> np.ndarray:
        """As `step`. The next call overwrites the returned array."""
        if self.whole_sequences:
            raise NotSupported(f"{self.manifest.model} cannot go step by step: give whole sequences to run")
        given = np.asarray(arrays.as_numpy(inputs))
        if given.ndim != len(self._shape) + 1:
            raise ShapeError(f"step takes {_described(self.manifest.input, 'batch')}, not {given.shape}")
        given = self.checked(given[:, None])
        self._begin_if_other(given.shape[0])
        bound = self._bound
        if bound is None or bound.batch != self._batch:
            self._check_open()
            bound = self._bound = Bound(self.manifest, self._stages, self.stopwatch, self._batch)
            bound.begin(self._carried)
        self._begin_call()
        bound.input[...] = given
        clock = time.perf_counter_ns
        try:
            for call, took in bound.calls:
                begun = clock()
                call()
                took(clock() - begun)
        except InputRangeError:
            self._unfinished = self._driven_since(self._steps)
            raise
        self.stopwatch.count(1)
        if bound.counts:
            self.clipped += sum(map(int, bound.counts))
        if self._carried:
            bound.carry(self._carried)
        self._steps += 1
        self._refuse_not_finite([bound.output[:, None]])
        self._unfinished = False
        return bound.output

    def _advance(self, given: np.ndarray, *, last: bool = False) -> np.ndarray:
        """The outputs of a whole piece of the sequences, or of its last step."""
        if self.whole_sequences and self._steps:
            raise StateLost(f"{self.manifest.model} takes whole sequences from rest: call reset before run")
        self._begin_call()
        begun = self._steps
        try:
            rows = []
            for part in np.split(given, given.shape[1], 1) if self.manifest.stepwise else [given]:
                rows.append(self._through(part, last=last))
                self._refuse_not_finite(rows)
        except InputRangeError:
            self._unfinished = self._driven_since(begun)
            raise
        self._unfinished = False
        return rows[-1] if last else np.concatenate(rows, 1)

    def _refuse_not_finite(self, rows: list[np.ndarray]) -> None:
        """Raise `OutputFault` where the newest outputs (batch, steps, outputs) of a call are not finite."""
        if arrays.all_finite(rows[-1]):
            return
        outputs = np.concatenate(rows, 1)
        bad = arrays.not_finite(outputs)
        step = int(bad.any((0, 2)).argmax())
        sequence, output = arrays.first_true(bad[:, step])
        raise OutputFault(
            f"{self.manifest.model} gives {outputs[sequence, step, output]} (sequence {sequence}, step "
            f"{self._steps - outputs.shape[1] + step}, output {output}): a reservoir answers with other states than in "
            "training (verify_probe, --verify-probe compares them), or the weights are too large",
            outputs=self._as_user(outputs[:, :step]),
        )

    def _as_user(self, outputs: np.ndarray) -> np.ndarray:
        return outputs if self._output_scale is None else self._output_scale.to_user(outputs)

    def _check_forecast(self) -> None:
        manifest = self.manifest
        series = manifest.series
        widths = self._shape == manifest.output.shape and self._dtype.kind == "f"
        if not widths or (series is not None and series.input_names != series.output_names):
            told = "" if series is None else f" ({', '.join(series.output_names)} of {', '.join(series.input_names)})"
            raise NotSupported(f"{manifest.model} does not say its own next inputs{told}, so it cannot go on alone")
        if self.whole_sequences or manifest.reads_last:
            raise NotSupported(f"{manifest.model} answers whole sequences, so it cannot go on alone")
        if any(device.spec.continuity == "free_running" for device in self.reservoirs):
            raise NotSupported("a free-running device does not wait for an answer, so it cannot be its next input")

    def _begin_if_other(self, batch: int) -> None:
        """At rest, any number of sequences may begin."""
        if batch != self._batch:
            if self._steps:
                raise ShapeError(f"{batch} sequences, but {self._batch} were begun: call reset first")
            self.reset(batch)

    def _driven_since(self, steps: int) -> bool:
        """Whether any device has taken a step since this count. An input may be refused before it is sent."""
        return self._steps != steps or any(stage.steps not in (None, steps) for stage in self._stages)

    def _check_open(self) -> None:
        if self._closed:
            raise NotOpen(f"this runner of {self.bundle.name} is closed: make another EdgeRunner")

    def _begin_call(self) -> None:
        """After a fault, or Ctrl-C, some devices have taken a step and some have not."""
        if self._unfinished:
            self._check_open()
            raise StateLost("the last call did not come to its end, so these sequences cannot go on: call reset")
        self._unfinished = True

    def _through(self, given: np.ndarray, *, last: bool) -> np.ndarray:
        manifest = self.manifest
        values = {manifest.input.name: given, **self._carried}
        for number, stage in enumerate(self._stages):
            if last and stage is self._stages[-1] and not manifest.carried:
                # Only the last step's output is wanted: that of a long prompt with a large vocabulary is huge.
                values |= {value.name: values[value.name][:, -1:] for value in manifest.segments[-1].reads}
            begun = time.perf_counter_ns()
            stage.run(values, self.repetitions)
            self.stopwatch.histograms[number].add(time.perf_counter_ns() - begun)
        self.stopwatch.count(given.shape[1])
        self.clipped += sum(int(value) for name, value in values.items() if name.startswith("clipped_"))
        self._check_shapes(values, (self._batch, 1 if last and not manifest.carried else given.shape[1]))
        for one in manifest.carried:
            self._carried[one.reads] = values[one.gives]
        self._steps += given.shape[1]
        self._take_up()
        return values[manifest.output.name]

    def _check_shapes(self, values: Mapping[str, np.ndarray], axes: tuple[int, int]) -> None:
        """A graph may give other shapes than the manifest says, which nobody knows before it is at work."""
        output = self.manifest.output
        promised = {output.name: (*axes, *output.shape)}
        promised |= {one.gives: (self._batch, *one.shape) for one in self.manifest.carried}
        for name, shape in promised.items():
            if values[name].shape != shape:
                raise ConfigurationError(
                    f"bundle {self.bundle.name}: a graph gives {name} {values[name].shape} where the manifest says "
                    f"{shape}: export it again"
                )

    def _take_up(self) -> None:
        """Let the next step go on from what is carried."""
        if self._bound is not None and self._bound.batch == self._batch:
            self._bound.begin(self._carried)

    def _generated(self, prompt: np.ndarray, count: int, sampler: Sampler) -> Iterator[int]:
        self.reset()
        logits = self._advance(prompt, last=True)[0, -1]
        mine, expected = self._resets, self._steps
        for number in range(count):
            if (self._resets, self._steps) != (mine, expected):
                raise StateLost("this text cannot go on: the runner was used for something else meanwhile")
            token = sampler(logits)
            yield token
            if number + 1 < count:
                logits = self._step([token])[0]
                expected += 1

    def _as_text(self, prompt: np.ndarray, tokens: Iterator[int]) -> Iterator[str]:
        """Pieces of text: what all tokens so far say, beyond what was said before."""
        decode = self.tokenizer.decode
        # What was said last is enough to know what stands between it and the next, such as a blank.
        said, pending = [int(prompt[-1])], []
        for token in tokens:
            pending.append(token)
            text = decode(said + pending)
            # A character may take several tokens. After this many tokens, they are not a character.
            if text.endswith("\N{REPLACEMENT CHARACTER}") and len(pending) < _MOST_PENDING:
                continue
            yield text[len(decode(said)) :]
            said, pending = pending, []
        if pending:
            yield decode(said + pending)[len(decode(said)) :]


def _narrowed(given: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """In this precision. What becomes infinite is refused next; to silence numpy takes time, where nothing is cast."""
    if given.dtype == dtype:
        return arrays.to_numpy(given, dtype, "inputs")
    with np.errstate(over="ignore"):
        return arrays.to_numpy(given, dtype, "inputs")


def _not_finite(where: tuple[int, ...], given: np.ndarray, dtype: np.dtype[Any]) -> str:
    sequence, step, channel = where
    at = f" at step {step}" if given.shape[1] > 1 else ""
    of = f" of sequence {sequence}" if len(given) > 1 else ""
    value = given[where]
    why = f"more than {dtype} can hold" if np.isfinite(value) else "no finite number"
    return f"channel {channel} of the input{at}{of} is {value:g}, {why}"


def _described(value: Value, axes: str) -> str:
    return f"tokens ({axes})" if value.dtype == "int64" else f"inputs ({axes}, {', '.join(map(str, value.shape))})"
