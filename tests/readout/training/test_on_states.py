from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import ipc_address, served
from training_case import VOCABULARY, digest, options, text
from training_models import NODES, WIDTH, Death, Deep, epochs, language_model, network

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.errors import ConfigurationError, InputRangeError
from reservoir_hw.core.files import read_tensors
from reservoir_hw.core.locks import HostLocks
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.readout import (
    EsnLM,
    LinearReadout,
    ReservoirLM,
    dense_esn_weights,
)
from reservoir_hw.readout.training import (
    HarvestedShards,
    Shard,
    TrainingOptions,
    processes,
    train,
)
from reservoir_hw.readout.training.examples import Rows
from reservoir_hw.readout.training.folder import CHECKPOINT, TrainingFolder, write_file
from reservoir_hw.readout.training.noise import repeats_noise
from reservoir_hw.readout.training.shards import StoredStates

TRAIN, VALID = text(3000), text(500, "valid")
CPU = torch.device("cpu")


@pytest.fixture
def reservoir() -> Iterator[Esn]:
    with network() as device:
        yield device


@pytest.mark.slow
@pytest.mark.parametrize("attention", [False, True])
def test_one_shard_is_training_with_the_states_computed_once(reservoir: Esn, attention: bool) -> None:
    chosen = epochs()
    each, once = (language_model(reservoir, attention=attention) for _ in range(2))
    expected = train(each, TRAIN, VALID, options=chosen)
    driven = reservoir.counters.steps
    shards = HarvestedShards(once, TRAIN, options=chosen, shards=1)
    held_out = HarvestedShards(once, VALID, options=chosen, shards=1)
    result = train(once.readout, shards, held_out, options=chosen)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.validation_losses, expected.validation_losses, rtol=0, atol=1e-12)
    torch.testing.assert_close(once.state_dict(), each.state_dict(), rtol=0, atol=1e-10)
    # 187 and 31 windows of 16 steps, once.
    assert reservoir.counters.steps - driven == (187 + 31) * 16


def test_last_target_alone(reservoir: Esn) -> None:
    chosen = epochs(context=5, stride=1, predict="last", batch=100)
    corpus = TRAIN[:600]
    each, once = (language_model(reservoir) for _ in range(2))
    expected = train(each, corpus, options=chosen)
    shards = HarvestedShards(once, corpus, options=chosen, shards=1)
    assert shards.shape(0) == (595, 1)
    assert shards[0].states.shape == (595, 1, NODES)
    result = train(once.readout, shards, options=chosen)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-12)


def numbered(shapes: list[tuple[int, int]]) -> list[Shard]:
    """Shards whose states tell where they are from: (shard, sequence, step)."""
    made = []
    for number, (sequences, steps) in enumerate(shapes):
        places = np.stack(np.meshgrid(np.arange(sequences), np.arange(steps), indexing="ij"), axis=-1)
        states = np.concatenate([np.full((sequences, steps, 1), number), places], axis=-1)
        made.append(Shard(states.astype(np.float32), np.zeros((sequences, steps), np.int64)))
    return made


def rows_of(shapes: list[tuple[int, int]], chosen: TrainingOptions) -> Rows:
    examples = StoredStates(numbered(shapes), chosen.context, learned=True)
    return Rows(examples, examples.order(chosen))


def test_epochs_on_a_shard_before_the_next() -> None:
    # Köster & Uchida 2026, section III.A. 3 sequences of 4 windows; 2 steps at the end do not fill one.
    chosen = epochs(context=4, batch=6, epochs=4, shard_epochs=2)
    rows = rows_of([(3, 18), (3, 18)], chosen)
    steps = rows.examples.steps(chosen)
    assert steps == 2 * (4 + 4)
    visits = []
    for step in range(steps):
        states, _ = rows.get(step * 6, (step + 1) * 6, CPU)
        assert states.shape == (6, 4, 3)
        shard = set(states[..., 0].flatten().tolist())
        assert len(shard) == 1
        assert (states[:, :, 2] == states[:, :1, 2] + torch.arange(4)).all()
        visits.append((shard.pop(), [tuple(place) for place in states[:, 0, 1:].tolist()]))
    assert [shard for shard, _ in visits] == [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [1.0] * 4
    for begin in range(0, 16, 4):
        seen = Counter(place for _, places in visits[begin : begin + 4] for place in places)
        assert seen == {(float(s), float(t)): 2 for s in range(3) for t in (0, 4, 8, 12)}
    assert visits[0][1] != visits[8][1]
    # As several processes would ask, or one that goes on.
    again = rows_of([(3, 18), (3, 18)], chosen)
    states, _ = again.get(9 * 6 + 2, 9 * 6 + 5, CPU)
    assert [tuple(place) for place in states[:, 0, 1:].tolist()] == visits[9][1][2:5]


def test_shards_of_different_size_and_steps_that_are_filled_up() -> None:
    chosen = epochs(context=4, batch=5, epochs=1, shard_epochs=1)
    rows = rows_of([(3, 8), (1, 3), (2, 4)], chosen)
    # 6, 1 and 2 windows: 2, 1 and 1 steps. A sequence that is shorter than a window is one.
    assert rows.examples.steps(chosen) == 4
    seen = [rows.get(step * 5, (step + 1) * 5, CPU)[0] for step in range(4)]
    assert [int(states[0, 0, 0]) for states in seen] == [0, 0, 1, 2]
    assert seen[2].shape == (5, 3, 3)


def test_an_evaluation_takes_all_shards_in_turn() -> None:
    examples = StoredStates(numbered([(3, 8), (2, 4)]), 4, learned=False)
    chosen = examples.evaluated(1)
    assert len(chosen) == len(examples) == 8
    states, targets = examples.items(chosen[4:7], CPU)
    assert states[:, 0].tolist() == [[0, 2, 0], [0, 2, 4], [1, 0, 0]]
    assert examples.counted((states, targets)) == 12
    # The share of a process, where the last batch has fewer rows than there are processes.
    states, targets = examples.items(chosen[8:], CPU)
    assert states.shape == (0, 4, 3)
    assert examples.counted((states, targets)) == 0


def test_shards_are_the_windows_in_turn(reservoir: Esn) -> None:
    model = language_model(reservoir)
    chosen = epochs()
    shards = HarvestedShards(model, TRAIN, options=chosen, shards=3)
    assert [shards.shape(number) for number in range(3)] == [(62, 16), (62, 16), (63, 16)]
    tokens = torch.from_numpy(TRAIN[: 187 * 16].astype(np.int64)).view(187, 16)
    with torch.no_grad():
        expected = model.features(tokens)
    found = [shards[number] for number in range(3)]
    torch.testing.assert_close(torch.cat([s.states for s in found]), expected, rtol=0, atol=1e-12)
    targets = TRAIN[1 : 187 * 16 + 1].astype(np.int64).reshape(187, 16)
    np.testing.assert_array_equal(torch.cat([s.targets for s in found]), targets)
    assert model.training
    assert not found[0].states.requires_grad


def test_long_sequences_and_washout(reservoir: Esn) -> None:
    model = language_model(reservoir)
    shards = HarvestedShards(model, TRAIN, options=epochs(), shards=1, sequence=160, washout=20, at_once=5)
    reservoir.counters.steps = 0
    shard = shards[0]
    assert shard.states.shape == (18, 160, NODES)
    assert reservoir.counters.steps == 18 * 160
    assert (shard.targets[:, :20] == -1).all()
    assert (shard.targets[:, 20:] >= 0).all()
    with torch.no_grad():
        whole = model.features(torch.from_numpy(TRAIN[160:320].astype(np.int64))[None])
    torch.testing.assert_close(shard.states[1:2], whole, rtol=0, atol=1e-12)
    assert train(model.readout, shards, options=epochs()).losses[-1] < 2.4


def test_state_that_is_not_finite() -> None:
    states = np.zeros((4, 8, 3), np.float32)
    states[2, 5, 1] = np.nan
    shards = [Shard(states, np.zeros((4, 8), np.int64))]
    with pytest.raises(InputRangeError, match=r"step 0: features at \(\d, \d, 1\) are nan"):
        train(LinearReadout(3, 2), shards, options=epochs(context=8, batch=4))


@pytest.mark.slow
def test_store_is_filled_once_and_read_ever_after(reservoir: Esn, tmp_path: Path) -> None:
    model = language_model(reservoir)

    def shards(**changes: Any) -> HarvestedShards:
        settings = {"options": epochs(), "shards": 3, "folder": tmp_path / "states", **changes}
        return HarvestedShards(model, settings.pop("corpus", TRAIN), **settings)

    in_memory = HarvestedShards(model, TRAIN, options=epochs(), shards=3)
    expected = [in_memory[number].states for number in range(3)]
    before = reservoir.counters.steps
    torch.testing.assert_close(shards()[1].states, expected[1], rtol=0, atol=0)
    # The store is filled in order: two shards of three.
    assert reservoir.counters.steps - before == (62 + 62) * 16
    told: list[int] = []
    shards(at_once=1000).harvest(told.append)
    assert sum(told) == 63 * 16
    assert StateStore.open(tmp_path / "states").complete
    driven = reservoir.counters.steps
    for number in (2, 0, 1):
        # The store counts in groups of the size that it was begun with.
        found = shards(at_once=50)[number].states
        torch.testing.assert_close(found, expected[number], rtol=0, atol=0)
    shards().harvest()
    assert reservoir.counters.steps == driven
    store = StateStore.open(tmp_path / "states")
    assert store.facts["provenance"]["reservoir"][0]["identity"]["model"] == "esn"
    np.testing.assert_array_equal(store.dataset("shard0").inputs[:, :, 0].ravel(), TRAIN[: 62 * 16])
    with pytest.raises(ConfigurationError, match=r"holds states with corpus 3000:.*, these would have 2999"):
        _ = shards(corpus=TRAIN[1:])[0]
    with pytest.raises(ConfigurationError, match="holds states with shards 3, these would have 2"):
        _ = shards(shards=2)[0]
    weight: Any = model.embedding.weight
    weight.data[0, 0] += 1
    with pytest.raises(ConfigurationError, match="holds states with upstream"):
        _ = shards()[0]
    with network(seed=7) as other:
        model = language_model(other)
        with pytest.raises(ConfigurationError, match="holds states with reservoirs"):
            _ = shards()[0]


@pytest.mark.slow
def test_harvest_of_a_noisy_device_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def shards(device: Reservoir, folder: str) -> HarvestedShards:
        return HarvestedShards(
            language_model(device), TRAIN, options=epochs(), shards=3, folder=tmp_path / folder, at_once=10
        )

    with network(noise=0.1) as device:
        shards(device, "whole").harvest()

    for groups in (3, 9):
        driven: list[int] = []

        def die(steps: int, groups: int = groups, driven: list[int] = driven) -> None:
            driven.append(steps)
            if len(driven) == groups:
                raise Death

        with network(noise=0.1) as device, pytest.raises(Death):
            shards(device, "parts").harvest(die)
    with network(noise=0.1) as device:
        # What was driven in between changes nothing.
        device.run(np.zeros((1, 50, WIDTH)))
        for number in range(3):
            found, whole = (shards(device, folder)[number].states for folder in ("parts", "whole"))
            torch.testing.assert_close(found, whole, rtol=0, atol=0)
        assert device.counters.steps < 187 * 16


@pytest.mark.slow
def test_any_backend(reservoir: Esn) -> None:
    """The same network behind a socket gives the same training, states computed beforehand or in every step."""
    chosen = epochs()
    with ExitStack() as stack:
        address = stack.enter_context(ipc_address())
        stack.enter_context(served(network(), address))
        remote = stack.enter_context(open_reservoir({"kind": "zmq", "address": address}))
        weights = []
        for device in (reservoir, remote):
            model = language_model(device)
            beforehand = train(model.readout, HarvestedShards(model, TRAIN, options=chosen, shards=2), options=chosen)
            each_step = train(language_model(device), TRAIN, options=options())
            weights.append((digest(model), beforehand.losses.tolist(), each_step.losses.tolist()))
    assert weights[0] == weights[1]


def test_noise_that_does_not_come_again() -> None:
    """As `repeats_noise` says; real hardware has other noise every time."""
    with network(noise=0.1) as device:
        spec = device.spec
    assert repeats_noise(spec)
    real = spec.identity.model_copy(update={"simulated": False})
    for change in ({"continuity": "replayed"}, {"snapshot": False}, {"identity": real}, {"max_batch": 2}):
        assert not repeats_noise(spec.model_copy(update=change))


@pytest.mark.slow
def test_a_checkpoint_without_noise_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Such as one of several processes."""
    chosen = options(checkpoint_steps=10, steps=24)
    with network() as device:
        train(language_model(device), TRAIN, options=chosen, folder=tmp_path)
        train(language_model(device), TRAIN, options=chosen, folder=tmp_path)
    assert "other noise" not in caplog.text
    with network(noise=0.1) as device:
        model = language_model(device)
        train(model, TRAIN, options=chosen, folder=tmp_path, resume=False)
        train(model, TRAIN, options=chosen, folder=tmp_path)
        assert "other noise" not in caplog.text
        path = TrainingFolder(tmp_path).checkpoint
        tensors, facts = read_tensors(path, "pt", CHECKPOINT)
        write_file(path, {n: t for n, t in tensors.items() if not n.startswith("reservoir/")}, facts, CHECKPOINT)
        train(model, TRAIN, options=chosen, folder=tmp_path)
        # Nothing was left to do.
        assert "other noise" not in caplog.text
        train(model, TRAIN, options=options(checkpoint_steps=10, steps=30), folder=tmp_path)
    assert "checkpoint.safetensors does not say where the noise" in caplog.text


@pytest.mark.slow
def test_noise_that_was_kept_behind_another_transport_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    chosen = options(checkpoint_steps=10, steps=20)
    with network(noise=0.1) as device:
        train(language_model(device), TRAIN, options=chosen, folder=tmp_path)
    assert "other noise" not in caplog.text
    chosen = options(checkpoint_steps=10, steps=24)
    with ExitStack() as stack:
        address = stack.enter_context(ipc_address())
        stack.enter_context(served(network(noise=0.1), address))
        remote = stack.enter_context(open_reservoir({"kind": "zmq", "address": address}))
        result = train(language_model(remote), TRAIN, options=chosen, folder=tmp_path)
    assert result.steps == 24
    assert "cannot go on where it was" in caplog.text


@pytest.mark.slow
def test_states_of_another_map_or_recurrence_are_refused(reservoir: Esn, tmp_path: Path) -> None:
    def mapped(**keys: Any) -> ReservoirLM:
        return language_model(reservoir, **keys)

    def made(leak: float = 0.8, activation: Any = "tanh") -> EsnLM:
        weights = dense_esn_weights(9, VOCABULARY, leak=leak, seed=0)
        return EsnLM(weights, LinearReadout(9, VOCABULARY), activation=activation)

    def shards(model: Any) -> HarvestedShards:
        return HarvestedShards(model, TRAIN, options=epochs(), shards=2, folder=tmp_path / type(model).__name__)

    refused: dict[Any, list[tuple[dict[str, Any], str]]] = {
        mapped: [
            ({"scale": 0.1}, r"states with constants\.layer\.scale 1\.0, these would have 0\.1"),
            ({"offset": 0.1}, r"states with constants\.layer\.offset 0\.0, these would have 0\.1"),
            ({"limit": 0.5}, r"states with constants\.layer\.limit None, these would have 0\.5"),
        ],
        made: [
            ({"leak": 0.3}, r"holds states with constants\.model\.leak 0\.8, .*have 0\.3"),
            ({"activation": "relu"}, r"constants\.model\.activation tanh, these would have relu"),
        ],
    }
    for make, changes in refused.items():
        kept = shards(make())[0].states
        for keys, message in changes:
            with pytest.raises(ConfigurationError, match=message):
                shards(make(**keys))[0]
        assert torch.equal(shards(make())[0].states, kept)
    lock = HostLocks([f"store {(tmp_path / 'ReservoirLM').resolve()}"])
    lock.acquire()
    try:
        with pytest.raises(ConfigurationError, match=r"being filled by another process.*harvest\(\) in one process"):
            HarvestedShards(mapped(), TRAIN, options=epochs(), shards=2, folder=tmp_path / "ReservoirLM")[1]
    finally:
        lock.release()


def test_without_bfloat16_it_is_computed_in_float32(
    reservoir: Esn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And who goes on with it on another processor is told."""
    monkeypatch.setattr(processes, "_has_bfloat16", lambda: False)
    processes._say_in_float32.cache_clear()
    result = train(Deep(reservoir), TRAIN, VALID, options=options(precision="bf16-mixed"), folder=tmp_path)
    assert result.precision == "fp32"
    assert caplog.text.count(processes.IN_FLOAT32) == 1
    assert result.best_loss == train(Deep(reservoir), TRAIN, VALID, options=options()).best_loss
    monkeypatch.setattr(processes, "_has_bfloat16", lambda: True)
    train(Deep(reservoir), TRAIN, VALID, options=options(precision="bf16-mixed"), folder=tmp_path)
    assert "was written with precision = fp32; going on with bf16-mixed" in caplog.text


@pytest.mark.slow
def test_states_in_double_precision_under_autocast(reservoir: Esn) -> None:
    """Autocast leaves float64 alone, and no weight in single precision can be multiplied with it."""
    assert reservoir.spec.dtype == "float64"
    rounded, exact = Deep(reservoir), Deep(reservoir)
    result = train(rounded, TRAIN, VALID, options=options(precision="bf16-mixed"))
    assert rounded.seen == {torch.float32}
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.float32}
    expected = train(exact, TRAIN, VALID, options=options())
    assert result.best_loss is not None
    assert result.best_loss == pytest.approx(expected.best_loss, abs=0.05)
    assert (result.best_loss == expected.best_loss) == (result.precision == "fp32")
