"""States that a reservoir gave to a corpus, shard by shard: driven once, learned from many times.

Köster & Uchida 2026, section II.F: "reservoir responses are precomputed shard-wise and kept in memory, allowing several
training epochs to be run on each shard before advancing to the next".
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw.core import provenance
from reservoir_hw.core.errors import ConfigurationError, ShapeError
from reservoir_hw.core.files import checksum
from reservoir_hw.core.locks import owned
from reservoir_hw.core.provenance import first_change, plain
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.store import Region, StateStore
from reservoir_hw.readout.models.softmax import cross_entropy
from reservoir_hw.readout.models.token_model import evaluating
from reservoir_hw.readout.training.estimate import DriveEstimate, estimate_drives
from reservoir_hw.readout.training.examples import Examples, Order, Windows, counted_targets, digest_of, drawn, shuffled
from reservoir_hw.readout.training.identity import constants_of, reservoirs_of
from reservoir_hw.readout.training.noise import NoiseOf, inside
from reservoir_hw.readout.training.optimizer import weights_of
from reservoir_hw.readout.training.options import TrainingOptions

# Bytes of states in one chunk of a store.
_CHUNK_BYTES = 1 << 26


@dataclass(frozen=True)
class Shard:
    """States (sequences, steps, features) and the targets to be read from them.

    Targets are tokens (sequences, steps), -1 not counted, or numbers (sequences, steps, outputs), NaN not counted.
    """

    states: Any
    targets: Any

    def __post_init__(self) -> None:
        if np.ndim(self.states) != 3 or tuple(self.states.shape[:2]) != tuple(self.targets.shape[:2]):
            raise ShapeError(
                "a shard needs states (sequences, steps, features) and targets (sequences, steps), not "
                f"{tuple(np.shape(self.states))} and {tuple(np.shape(self.targets))}"
            )
        if 0 not in self.targets.shape and not counted_targets(self.targets):
            raise ConfigurationError("a shard needs targets to learn from: none of these counts (-1, or NaN)")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Both, by name."""
        return {"states": torch.as_tensor(self.states), "targets": torch.as_tensor(self.targets)}


class GivenShards:
    """A list of shards, or what makes them one by one without a device, with what `HarvestedShards` has."""

    driven: Sequence[Reservoir] = ()

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, number: int) -> Shard:
        return self._shards[number]

    def shape(self, number: int) -> tuple[int, int]:
        """(sequences, steps) of a shard."""
        sequences, steps = self[number].targets.shape[:2]
        return sequences, steps

    @property
    def identity(self) -> dict[str, Any]:
        """A hash of all states and targets for each shard."""
        shards = (self[number] for number in range(len(self)))
        return {"shards": [checksum(shard.tensors)[:16] for shard in shards]}


class HarvestedShards:
    """The features that `model` makes of a corpus, in shards; a shard is driven when it is asked for.

    The corpus is cut into sequences, each driven from rest. By default a sequence is a window of the options, so
    that `train` on the shards does what it would on the corpus with `windows: consecutive`. Longer ones take fewer
    resets, and nodes remember across windows: right for a device that runs by itself.

    Parameters
    ----------
    model
        A `TokenModel` with nothing trainable, and no dropout, upstream of its readout.
    corpus
        Tokens (time,).
    options
        `context`, `stride` and `predict` cut the sequences.
    shards
        How many; one of them is held in memory.
    sequence
        Time steps of a sequence, a multiple of `context`; it then follows the one before without an overlap, and every
        target counts.
    washout
        Leading steps of each sequence that are not learned from.
    at_once
        Sequences that are driven side by side; by default `options.batch`.
    folder
        A store that keeps the states: they are driven once, by one process, and what is there already is taken from
        there, after a death too, `at_once` included. Without one a shard is driven each time it is asked for.
    name
        What messages call the corpus.

    Raises
    ------
    ConfigurationError
        Features change in training; the corpus is empty or shorter than a sequence; the folder
        holds states of another corpus, model or device.
    InputRangeError
        A token lies outside the vocabulary (when it is driven).
    """

    def __init__(
        self,
        model: Any,
        corpus: Any,
        *,
        options: TrainingOptions,
        shards: int = 5,
        sequence: int | None = None,
        washout: int = 0,
        at_once: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        name: str = "the corpus",
    ) -> None:
        _check_fixed(model)
        sequence = sequence or options.context
        long = sequence != options.context
        if long and (sequence % options.context or options.stride is not None or options.predict == "last"):
            raise ConfigurationError(
                f"a sequence of {sequence} steps must be a multiple of context {options.context}, with stride null and "
                "predict every"
            )
        self._windows = Windows(
            corpus,
            sequence,
            stride=None if long else options.stride,
            vocabulary=model.vocabulary,
            predict=options.predict,
            name=name,
        )
        if not 1 <= shards <= len(self._windows):
            raise ConfigurationError(
                f"{name} has {len(self._windows)} sequences of {self._windows.context} steps, which cannot make "
                f"{shards} shards"
            )
        if not 0 <= washout < self._windows.context:
            raise ConfigurationError(
                f"washout {washout} must be less than the {self._windows.context} steps of a sequence"
            )
        self._model, self._washout, self._name = model, washout, name
        self._kept_steps = 1 if options.predict == "last" else self._windows.context
        self._at_once = at_once or options.batch
        bounds = [len(self._windows) * number // shards for number in range(shards + 1)]
        self._sequences = [range(*pair) for pair in itertools.pairwise(bounds)]
        self._path = None if folder is None else Path(folder)
        self._corpus_digest: str | None = None
        self._noise, self._noise_restored = NoiseOf(reservoirs_of(model)), False

    # ---- what it holds

    def __len__(self) -> int:
        """How many shards."""
        return len(self._sequences)

    def __getitem__(self, number: int) -> Shard:
        """A shard; its states are read from the store, or driven."""
        number = range(len(self))[number]
        states = self._in_memory(number) if self._path is None else self._stored(self._path, number)
        _, targets = self._windows.read(np.asarray(self._sequences[number]))
        targets = targets[:, -self._kept_steps :]
        targets[:, : max(0, self._washout - (self._windows.context - self._kept_steps))] = -1
        return Shard(states, torch.from_numpy(targets))

    def shape(self, number: int) -> tuple[int, int]:
        """(sequences, steps) of a shard, without driving it."""
        return len(self._sequences[number]), self._kept_steps

    @property
    def identity(self) -> dict[str, Any]:
        """What decides about the states."""
        windows = self._windows
        if self._corpus_digest is None:
            # All of it is read, so only once.
            self._corpus_digest = digest_of(windows.corpus)
        return {
            "corpus": self._corpus_digest,
            "sequence": windows.context,
            "stride": windows.stride,
            "predict": windows.predict,
            "shards": len(self),
            "washout": self._washout,
            "reservoirs": [r.spec.identity.fingerprint for r in reservoirs_of(self._model)],
            "constants": {
                name: told
                for name, told in constants_of(self._model).items()
                if name != "readout" and not name.startswith("readout.")
            },
            "limits": [layer.limit for layer in self._model.reservoir_layers],
            "upstream": checksum(_upstream(self._model))[:16],
        }

    @property
    def driven(self) -> Sequence[Reservoir]:
        """The devices that are driven when a shard is asked for; none where the states are kept."""
        return [] if self._path is not None else reservoirs_of(self._model)

    def estimate(self) -> DriveEstimate:
        """What it takes to drive all shards once."""
        groups = [len(group) for number in range(len(self)) for group in self._groups(number)]
        return estimate_drives(self._model, groups, self._windows.context)

    def harvest(self, on_steps: Callable[[int], None] | None = None) -> None:
        """Drive everything that the store does not hold yet; `on_steps` is told of time steps that were driven.

        Raises `ConfigurationError` without a folder, and the reservoir's own errors; what was driven before stays.
        """
        if self._path is None:
            raise ConfigurationError("harvest keeps states in a store: give a folder")
        self._fill(self._path, len(self), on_steps)

    # ---- driving

    def _groups(self, number: int) -> list[range]:
        """The sequences of a shard that are driven side by side."""
        sequences = self._sequences[number]
        return [sequences[first : first + self._at_once] for first in range(0, len(sequences), self._at_once)]

    def _driven(self, number: int, first_group: int) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Tokens and features of the groups of a shard, from a group on."""
        model = self._model
        # A readout in training may be elsewhere.
        device = next((tensor.device for tensor in _upstream(model).values()), torch.device("cpu"))
        for group in self._groups(number)[first_group:]:
            tokens, _ = self._windows.read(np.asarray(group))
            with evaluating(model):
                states = model.features(torch.from_numpy(tokens).to(device))
            if self._kept_steps < states.shape[1]:
                # A view would hold all steps in memory.
                states = states[:, -self._kept_steps :].clone()
            yield tokens, states.cpu()

    def _in_memory(self, number: int) -> Tensor:
        states, first = torch.empty(0), 0
        for _, part in self._driven(number, 0):
            if not first:
                states = part.new_empty((len(self._sequences[number]), *part.shape[1:]))
            states[first : first + len(part)] = part
            first += len(part)
        return states

    # ---- keeping

    def _stored(self, path: Path, number: int) -> Tensor:
        if not StateStore.exists(path) or self._opened(path).committed < self._places(number + 1):
            self._fill(path, number + 1, None)
        elif not self._noise_restored:
            self._restore_noise(self._opened(path))
        dataset = self._opened(path).dataset(f"shard{number}")
        return torch.from_numpy(dataset.read_states(Region(slice(0, dataset.sequences), 0, dataset.steps)))

    def restore_noise(self) -> None:
        """Bring the noise of a simulated device to where it was when the states were kept."""
        if self._path is not None and StateStore.exists(self._path):
            self._restore_noise(self._opened(self._path))

    def _restore_noise(self, store: StateStore) -> None:
        self._noise.restore(store.snapshot() or {})
        self._noise_restored = True

    def _places(self, shards: int) -> int:
        """What the store counts: the groups of the first shards."""
        return sum(len(self._groups(number)) for number in range(shards))

    def _opened(self, path: Path, *, writable: bool = False) -> StateStore:
        store = StateStore.open(path, writable=writable)
        change = first_change(store.facts.get("harvest", {}), plain(self.identity))
        if change is not None:
            raise ConfigurationError(
                f"{store.path} holds states with {change.key} {change.before}, these would have "
                f"{change.now}: name another folder, or remove it"
            )
        # What counts in it are groups of so many.
        self._at_once = store.facts["at_once"]
        return store

    def _fill(self, path: Path, shards: int, on_steps: Callable[[int], None] | None) -> None:
        """Drive what is missing of the first shards."""
        taken = f"{path} is being filled by another process"
        with owned(f"store {os.path.realpath(path)}", taken, "; call harvest() in one process first"):
            store = self._opened(path, writable=True) if StateStore.exists(path) else None
            done = 0 if store is None else store.committed
            if store is not None:
                store.remove_leftovers()
                self._restore_noise(store)
            place = 0
            for number in range(shards):
                skipped = min(max(0, done - place), len(self._groups(number)))
                place += skipped
                first = sum(len(group) for group in self._groups(number)[:skipped])
                for tokens, states in self._driven(number, skipped):
                    store = store or self._created(path, states)
                    self._write(store, number, first, tokens, states.numpy())
                    first, place = first + len(tokens), place + 1
                    store.commit(place, snapshot=self._noise.kept() or None)
                    self._noise_restored = True
                    if on_steps is not None:
                        on_steps(tokens.size)
            if store is not None and shards == len(self):
                store.close_segment(store.segments, complete=True)

    def _write(self, store: StateStore, number: int, first: int, tokens: np.ndarray, states: np.ndarray) -> None:
        dataset = store.dataset(f"shard{number}")
        rows = slice(first, first + len(tokens))
        inputs = tokens[:, -self._kept_steps :, None].astype(states.dtype)
        for start in range(0, dataset.steps, dataset.chunk_steps):
            part = slice(start, min(start + dataset.chunk_steps, dataset.steps))
            dataset.write(
                Region(rows, part.start, part.stop),
                inputs[:, part],
                states[:, part],
                timing=(float("nan"), float("nan")),
            )

    def _created(self, path: Path, states: Tensor) -> StateStore:
        """A new store for states like these."""
        steps, nodes = self._kept_steps, states.shape[2]
        per_step = min(self._at_once, max(map(len, self._sequences))) * nodes * states.element_size()
        layout = {
            f"shard{number}": {
                "sequences": len(sequences),
                "inputs": 1,
                "nodes": nodes,
                "steps": steps,
                "chunk_steps": max(1, min(steps, _CHUNK_BYTES // per_step)),
                "group": min(self._at_once, len(sequences)),
                "dtype": str(states.dtype).removeprefix("torch."),
                "facts": {"inputs": "the number of the token", "from_rest": steps == self._windows.context},
            }
            for number, sequences in enumerate(self._sequences)
        }
        facts = {
            "made_by": "training",
            "harvest": self.identity,
            "at_once": self._at_once,
            "provenance": {
                **provenance.collect({"sequences": self.identity}),
                "reservoir": [reservoir.provenance() for reservoir in reservoirs_of(self._model)],
            },
        }
        return StateStore.create(path, facts, layout)


def _check_fixed(model: Any) -> None:
    """Raise `ConfigurationError` if features change in training."""
    if model.trainable_upstream:
        raise ConfigurationError(
            f"states of {type(model).__name__} cannot be computed beforehand: something upstream of a reservoir is "
            "trained, so they change in every step; use train(), which drives the reservoirs in every step "
            "(estimate_training says what that takes)"
        )
    behind = {id(module) for module in model.readout.modules()}
    if any(isinstance(m, nn.Dropout) and m.p > 0 and id(m) not in behind for m in model.modules()):
        raise ConfigurationError(
            f"states of {type(model).__name__} cannot be computed beforehand: dropout changes them in every step; "
            "make the model with dropout=0, or use train()"
        )


def _upstream(model: Any) -> dict[str, Tensor]:
    """All weights that the readout does not hold."""
    return {name: value for name, value in weights_of(model).items() if not name.startswith("readout.")}


# ---- Stored states as examples: the windows of shards, each shard learned from for some epochs before the next.


def are_shards(data: Any) -> bool:
    """Whether these are `HarvestedShards`, or a list of `Shard`."""
    # To ask for a first one can drive a device.
    if isinstance(data, HarvestedShards):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and len(data) > 0 and isinstance(data[0], Shard)


class StoredStates(Examples, NoiseOf):
    """Windows of `context` successive steps of shards, or whole sequences where these are shorter.

    A training visits one shard after the other, round and round, each for `options.shard_epochs` epochs and whole
    steps; the last step of a visit is filled up with rows of a further epoch. It holds one shard, on the device that
    learns from it. For an evaluation (`learned` is False) all are held in memory from the start.

    Its noise is where the noise of the devices is, and where it was before the shard that is held was driven: a
    training that goes on drives that shard again with the noise that it had.
    """

    def __init__(self, shards: HarvestedShards | Sequence[Shard], context: int, *, learned: bool) -> None:
        found = shards if isinstance(shards, HarvestedShards) else GivenShards(shards)
        purpose = "to learn from" if learned else "to validate with"
        if not len(found):
            raise ConfigurationError(f"there are no shards {purpose}")
        shapes = [found.shape(number) for number in range(len(found))]
        for number, (sequences, steps) in enumerate(shapes):
            if not sequences or not steps:
                raise ConfigurationError(
                    f"shard {number} {purpose} is empty: it has {sequences} sequences of {steps} steps"
                )
        NoiseOf.__init__(self, found.driven)
        self._shards, self._context = found, context
        self.lengths = min(context, shapes[0][1])
        self._counts = [sequences * (steps // min(context, steps)) for sequences, steps in shapes]
        self._begins = np.cumsum([0, *self._counts])
        # A shard, and where the noise was before it was driven: the one held, and one that an interruption has lost.
        self._driven: tuple[int, dict[str, np.ndarray]] | None = None
        self._lost: tuple[int, dict[str, np.ndarray]] | None = None
        self._held = {} if learned else {number: self._windows_in(number) for number in range(len(found))}
        self.noise = self

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def identity(self) -> dict[str, Any]:
        """That of the shards."""
        return self._shards.identity

    def items(self, numbers: np.ndarray, device: torch.device) -> list[Tensor]:
        """States (windows, context, features) and targets (windows, context, ...). Those of a step are of one shard."""
        shards = np.searchsorted(self._begins, numbers, side="right") - 1
        parts = []
        for shard in sorted({*shards.tolist()} or {0}):
            held = self._on(shard, device)
            chosen = torch.from_numpy(numbers[shards == shard] - self._begins[shard]).to(held[0].device)
            parts.append([tensor[chosen] for tensor in held])
        found = parts[0] if len(parts) == 1 else [torch.cat(several) for several in zip(*parts, strict=True)]
        return [tensor.to(device) for tensor in found]

    def loss(self, model: Any) -> Callable[..., Tensor]:
        """Of a readout, states -> logits: the mean cross-entropy of tokens."""
        return functools.partial(_loss, model)

    # ---- visits

    def order(self, options: TrainingOptions) -> Order:
        """Rows of one step are of one visit."""
        make = drawn if options.windows == "random" else shuffled
        number, begins = len(self._counts), np.cumsum([0, *self._visits(options)])

        @functools.lru_cache(maxsize=1)
        def within(visit: int) -> Order:
            # The first visit has the order of a training on windows.
            name = "windows" if visit == 0 else f"windows visit {visit}"
            return make(self._counts[visit % number], options.seed, name)

        def order(first: int, stop: int) -> np.ndarray:
            round_, rest = divmod(first // options.windows_per_step, int(begins[-1]))
            shard = int(np.searchsorted(begins, rest, side="right")) - 1
            begin = (round_ * int(begins[-1]) + int(begins[shard])) * options.windows_per_step
            return self._begins[shard] + within(round_ * number + shard)(first - begin, stop - begin)

        return order

    def steps(self, options: TrainingOptions) -> int:
        """Raises `ConfigurationError` for epochs that no whole round makes."""
        if options.steps is not None:
            return options.steps
        assert options.epochs is not None
        rounds, rest = divmod(options.epochs, options.shard_epochs)
        if rest:
            raise ConfigurationError(
                f"epochs {options.epochs} must be a multiple of shard_epochs {options.shard_epochs}, the epochs on one "
                "shard before the next"
            )
        return rounds * sum(self._visits(options))

    def evaluated(self, most: int | None) -> np.ndarray:
        """All of them."""
        return super().evaluated(None)

    def _visits(self, options: TrainingOptions) -> list[int]:
        """The steps of a visit to each shard."""
        return [-(-count * options.shard_epochs // options.windows_per_step) for count in self._counts]

    def _on(self, number: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if number not in self._held:
            self._held.clear()
            # Where the noise is before a shard is driven. If this one was lost, it had the noise of then.
            if self._lost is not None and self._lost[0] == number:
                super().restore(self._lost[1])
            self._driven, self._lost = (number, super().kept()), None
            states, targets = self._windows_in(number)
            # A shard lies where it is learned from: it is read many times.
            self._held[number] = states.to(device), targets.to(device)
        return self._held[number]

    def _windows_in(self, number: int) -> tuple[Tensor, Tensor]:
        states, targets = self._shards[number].tensors.values()
        context = min(self._context, states.shape[1])
        kept = states.shape[1] // context * context
        return (
            states[:, :kept].reshape(-1, context, states.shape[2]),
            targets[:, :kept].reshape(-1, context, *targets.shape[2:]),
        )

    # ---- noise

    def kept(self) -> dict[str, np.ndarray]:
        """Where the noise is, and where it was before the shard that is held was driven."""
        now = super().kept()
        shard, before = self._driven or (0, {})
        # A device that did not know its state when it was driven has no noise to go back to.
        if not now or not before:
            return {}
        found = {f"now/{name}": array for name, array in now.items()}
        return {"shard": np.array([shard]), **{f"before/{name}": array for name, array in before.items()}, **found}

    def restore(self, kept: Mapping[str, np.ndarray]) -> None:
        """Bring the noise to where it was; the shard that was held will be driven with the noise that it had."""
        super().restore(inside(kept, "now"))
        self._lost = int(kept["shard"][0]), inside(kept, "before")


def _loss(readout: nn.Module, states: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of targets (rows, context) under the logits for states (rows, context, features)."""
    parameter = next(readout.parameters())
    expected = getattr(readout, "features", states.shape[-1])
    if states.shape[-1] != expected:
        raise ShapeError(f"the states of the shards have {states.shape[-1]} features, the readout takes {expected}")
    return cross_entropy(readout, states.to(parameter.dtype), targets)
