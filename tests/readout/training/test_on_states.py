from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from served import ipc_address, served
from torch import Tensor, nn
from training_case import VOCABULARY, digest, facts, options, text

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.backends.simulated.nonidealities.configuration import Nonidealities
from reservoir_hw.core.errors import ConfigurationError, InputRangeError, ShapeError
from reservoir_hw.core.hostlock import HostLock
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.store import StateStore
from reservoir_hw.networks import draw_weights
from reservoir_hw.readout import (
    LAERC,
    AttentionReadout,
    EsnLM,
    LinearReadout,
    ReservoirLayer,
    ReservoirLM,
    dense_esn_lm,
    dense_esn_weights,
    random_embedding,
    sparse_esn_lm,
)
from reservoir_hw.readout.training import (
    HarvestedShards,
    Progress,
    Shard,
    TrainingOptions,
    load_weights,
    train,
    train_on_states,
)
from reservoir_hw.readout.training.folder import TrainingFolder
from reservoir_hw.readout.training.noise import repeats_noise
from reservoir_hw.readout.training.on_states import _ShardRows
from reservoir_hw.readout.training.shards import GivenShards

NODES, WIDTH = 20, 4
TRAIN, VALID = text(3000), text(500, "valid")
CPU = torch.device("cpu")


def network(noise: float = 0.0, seed: int = 0) -> Esn:
    weights = draw_weights(NODES, WIDTH, seed=seed, spectral_radius=0.9)
    return Esn(weights, dtype="float64", nonidealities=Nonidealities.model_validate({"readout": {"noise": noise}}))


@pytest.fixture
def reservoir() -> Iterator[Esn]:
    with network() as device:
        yield device


def language_model(reservoir: Reservoir, *, attention: bool = False, trainable: bool = False) -> ReservoirLM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        readout = AttentionReadout(NODES, 3, VOCABULARY) if attention else LinearReadout(NODES, VOCABULARY)
    layer = ReservoirLayer(reservoir)
    model = ReservoirLM(random_embedding(VOCABULARY, WIDTH, seed=1), layer, readout).double()
    model.embedding.requires_grad_(trainable)
    return model


def epochs(**changes: Any) -> TrainingOptions:
    settings: dict[str, Any] = {"steps": None, "epochs": 4, "shard_epochs": 4, "accumulate": 1, "log_steps": 1}
    return options(**{**settings, **changes})


@pytest.mark.parametrize("attention", [False, True])
def test_one_shard_is_training_with_the_states_computed_once(reservoir: Esn, attention: bool) -> None:
    chosen = epochs()
    each, once = (language_model(reservoir, attention=attention) for _ in range(2))
    expected = train(each, TRAIN, VALID, options=chosen)
    driven = reservoir.counters.steps
    shards = HarvestedShards(once, TRAIN, options=chosen, shards=1)
    held_out = HarvestedShards(once, VALID, options=chosen, shards=1)
    result = train_on_states(once.readout, shards, held_out, options=chosen)
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
    result = train_on_states(once.readout, shards, options=chosen)
    np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-12)


def test_bfloat16_does_not_round_the_states(reservoir: Esn) -> None:
    seen: list[torch.dtype] = []

    class Watching(LinearReadout):
        def forward(self, input: Tensor) -> Tensor:
            seen.append(input.dtype)
            return super().forward(input)

    shards = [Shard(np.ones((4, 8, NODES), np.float32), np.zeros((4, 8), np.int64))]
    train_on_states(Watching(NODES, 3), shards, options=epochs(precision="bf16-mixed", epochs=4))
    assert set(seen) == {torch.float32}


def numbered(shapes: list[tuple[int, int]]) -> list[Shard]:
    """Shards whose states tell where they are from: (shard, sequence, step)."""
    made = []
    for number, (sequences, steps) in enumerate(shapes):
        places = np.stack(np.meshgrid(np.arange(sequences), np.arange(steps), indexing="ij"), axis=-1)
        states = np.concatenate([np.full((sequences, steps, 1), number), places], axis=-1)
        made.append(Shard(states.astype(np.float32), np.zeros((sequences, steps), np.int64)))
    return made


def test_epochs_on_a_shard_before_the_next() -> None:
    # Köster & Uchida 2026, section III.A. 3 sequences of 4 windows; 2 steps at the end do not fill one.
    chosen = epochs(context=4, batch=6, epochs=4, shard_epochs=2)
    rows = _ShardRows(GivenShards(numbered([(3, 18), (3, 18)])), chosen)
    assert rows.steps == 2 * (4 + 4)
    visits = []
    for step in range(rows.steps):
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
    again = _ShardRows(GivenShards(numbered([(3, 18), (3, 18)])), chosen)
    states, _ = again.get(9 * 6 + 2, 9 * 6 + 5, CPU)
    assert [tuple(place) for place in states[:, 0, 1:].tolist()] == visits[9][1][2:5]


def test_shards_of_different_size_and_steps_that_are_filled_up() -> None:
    chosen = epochs(context=4, batch=5, epochs=1, shard_epochs=1)
    rows = _ShardRows(GivenShards(numbered([(3, 8), (1, 3), (2, 4)])), chosen)
    # 6, 1 and 2 windows: 2, 1 and 1 steps. A sequence that is shorter than a window is one.
    assert rows.steps == 4
    seen = [rows.get(step * 5, (step + 1) * 5, CPU)[0] for step in range(4)]
    assert [int(states[0, 0, 0]) for states in seen] == [0, 0, 1, 2]
    assert seen[2].shape == (5, 3, 3)


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
    assert train_on_states(model.readout, shards, options=epochs()).losses[-1] < 2.4


def test_echo_state_language_model() -> None:
    model = sparse_esn_lm(30, VOCABULARY, rank=5, connections=4, seed=0)
    chosen = epochs()
    result = train_on_states(model.readout, HarvestedShards(model, TRAIN, options=chosen, shards=2), options=chosen)
    assert result.losses[-1] < result.losses[0]


def test_states_that_change_in_training_cannot_be_computed_beforehand(reservoir: Esn) -> None:
    laerc = LAERC(VOCABULARY, WIDTH, [ReservoirLayer(reservoir)])
    for model in (laerc, language_model(reservoir, trainable=True), dense_esn_lm(9, 5, train_input=True, seed=0)):
        with pytest.raises(ConfigurationError, match=r"cannot be computed beforehand: .*; use train\(\)"):
            HarvestedShards(model, TRAIN, options=epochs())
    with pytest.raises(ConfigurationError, match="dropout changes them in every step"):
        HarvestedShards(dense_esn_lm(9, VOCABULARY, train_input=False, seed=0), TRAIN, options=epochs())


def test_settings_that_cannot_be(reservoir: Esn) -> None:
    model = language_model(reservoir)
    with pytest.raises(ConfigurationError, match="187 sequences of 16 steps, which cannot make 188 shards"):
        HarvestedShards(model, TRAIN, options=epochs(), shards=188)
    with pytest.raises(ConfigurationError, match="a sequence of 40 steps must be a multiple of context 16"):
        HarvestedShards(model, TRAIN, options=epochs(), sequence=40)
    with pytest.raises(ConfigurationError, match="washout 16 must be less than the 16 steps"):
        HarvestedShards(model, TRAIN, options=epochs(), washout=16)
    with pytest.raises(ConfigurationError, match="corpus is empty"):
        HarvestedShards(model, TRAIN[:0], options=epochs())
    with pytest.raises(ConfigurationError, match="give a folder"):
        HarvestedShards(model, TRAIN, options=epochs()).harvest()
    with pytest.raises(ConfigurationError, match="epochs 3 must be a multiple of shard_epochs 2"):
        train_on_states(model.readout, numbered([(3, 16)]), options=epochs(epochs=3, shard_epochs=2))
    with pytest.raises(ConfigurationError, match="no shards"):
        train_on_states(model.readout, [], options=epochs())
    with pytest.raises(ShapeError, match=r"not \(3, 4\) and \(3, 4\)"):
        Shard(np.zeros((3, 4)), np.zeros((3, 4), int))
    with pytest.raises(ConfigurationError, match="none of these counts"):
        Shard(torch.zeros(3, 4, 2), torch.full((3, 4), -1))


def test_token_outside_the_vocabulary(reservoir: Esn) -> None:
    corpus = TRAIN.copy()
    corpus[2000] = 11
    shards = HarvestedShards(language_model(reservoir), corpus, options=epochs(), shards=3, name="corpus_train")
    _ = shards[0]
    with pytest.raises(InputRangeError, match="corpus_train has token 11 at position 2000"):
        _ = shards[2]


def test_state_that_is_not_finite() -> None:
    states = np.zeros((4, 8, 3), np.float32)
    states[2, 5, 1] = np.nan
    shards = [Shard(states, np.zeros((4, 8), np.int64))]
    with pytest.raises(InputRangeError, match=r"step 0: features at \(\d, \d, 1\) are nan"):
        train_on_states(LinearReadout(3, 2), shards, options=epochs(context=8, batch=4))


class Death(BaseException):
    """Stands for the end of the process."""


def test_interrupted_training_goes_on_bit_for_bit(reservoir: Esn, tmp_path: Path) -> None:
    chosen = epochs(epochs=8, shard_epochs=2, checkpoint_steps=10)

    def shards(model: ReservoirLM) -> HarvestedShards:
        return HarvestedShards(model, TRAIN, options=chosen, shards=3, folder=tmp_path / "states")

    reference, model = language_model(reservoir), language_model(reservoir)
    expected = facts(reference, train_on_states(reference.readout, shards(reference), options=chosen))

    def stop(now: Progress) -> None:
        if now.row.step == 47:
            raise Death

    with pytest.raises(Death):
        train_on_states(model.readout, shards(model), options=chosen, folder=tmp_path / "run", progress=stop)
    model = language_model(reservoir)
    result = train_on_states(model.readout, shards(model), options=chosen, folder=tmp_path / "run")
    assert facts(model, result) == expected
    other = epochs(epochs=8, shard_epochs=2, checkpoint_steps=10)
    with pytest.raises(ConfigurationError, match=r"checkpoint.*was written with shards"):
        train_on_states(
            model.readout,
            HarvestedShards(model, TRAIN, options=other, shards=2),
            options=other,
            folder=tmp_path / "run",
        )


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


def test_two_processes_do_not_fill_one_store(reservoir: Esn, tmp_path: Path) -> None:
    lock = HostLock(f"store {(tmp_path / 'states').resolve()}")
    lock.acquire()
    try:
        shards = HarvestedShards(language_model(reservoir), TRAIN, options=epochs(), folder=tmp_path / "states")
        with pytest.raises(ConfigurationError, match=r"being filled by another process.*harvest\(\) in one process"):
            _ = shards[0]
    finally:
        lock.release()


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
            beforehand = train_on_states(
                model.readout, HarvestedShards(model, TRAIN, options=chosen, shards=2), options=chosen
            )
            each_step = train(language_model(device), TRAIN, options=options())
            weights.append((digest(model), beforehand.losses.tolist(), each_step.losses.tolist()))
    assert weights[0] == weights[1]


def test_training_through_a_noisy_device_resumes_bit_for_bit(tmp_path: Path) -> None:
    """`train` drives the device in every step; where its noise is stands in the checkpoint."""
    chosen = options(checkpoint_steps=10, steps=24)
    with network(noise=0.1) as device:
        reference = language_model(device)
        expected = facts(reference, train(reference, TRAIN, VALID, options=chosen))

    def stop(now: Progress) -> None:
        if now.row.step >= 15:
            raise Death

    with network(noise=0.1) as device, pytest.raises(Death):
        train(language_model(device), TRAIN, VALID, options=chosen, folder=tmp_path, progress=stop)
    with network(noise=0.1) as device:
        model = language_model(device)
        assert facts(model, train(model, TRAIN, VALID, options=chosen, folder=tmp_path)) == expected
    with network(noise=0.2) as device, pytest.raises(ConfigurationError, match="was written with reservoirs"):
        train(language_model(device), TRAIN, VALID, options=chosen, folder=tmp_path)


@pytest.mark.parametrize("died_after", [5, 10, 25, 40])
def test_states_of_a_noisy_device_that_are_driven_again_have_the_noise_they_had(
    tmp_path: Path, died_after: int
) -> None:
    """After so many of 40 steps: in the first visit, between two, in the second visit of a shard, after everything."""
    chosen = epochs(epochs=4, shard_epochs=2, checkpoint_steps=1, batch=20)

    def trained(device: Reservoir, folder: Path | None = None, progress: Any = None) -> tuple[Any, Any]:
        model = language_model(device)
        shards, valid = (HarvestedShards(model, part, options=chosen, shards=n) for part, n in ((TRAIN, 2), (VALID, 1)))
        result = train_on_states(model.readout, shards, valid, options=chosen, folder=folder, progress=progress)
        # What follows, such as a test, has the noise that follows.
        device.reset()
        return facts(model, result), device.run(np.zeros((1, 5, WIDTH)))

    with network(noise=0.1) as device:
        expected, after = trained(device)

    def stop(now: Progress) -> None:
        if now.row.step > died_after:
            raise Death

    with network(noise=0.1) as device, contextlib.suppress(Death):
        trained(device, tmp_path, stop)
    with network(noise=0.1) as device:
        found, then = trained(device, tmp_path)
    assert found == expected
    np.testing.assert_array_equal(then, after)


def test_noise_that_does_not_come_again() -> None:
    """As `repeats_noise` says; real hardware has other noise every time."""
    with network(noise=0.1) as device:
        spec = device.spec
    assert repeats_noise(spec)
    real = spec.identity.model_copy(update={"simulated": False})
    for change in ({"continuity": "replayed"}, {"snapshot": False}, {"identity": real}, {"max_batch": 2}):
        assert not repeats_noise(spec.model_copy(update=change))


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
        folder = TrainingFolder(tmp_path)
        found = folder.read_checkpoint()
        assert found is not None
        folder.write_checkpoint({n: t for n, t in found[0].items() if not n.startswith("reservoir/")}, found[1])
        train(model, TRAIN, options=chosen, folder=tmp_path)
        # Nothing was left to do.
        assert "other noise" not in caplog.text
        train(model, TRAIN, options=options(checkpoint_steps=10, steps=30), folder=tmp_path)
    assert "checkpoint.safetensors does not say where the noise" in caplog.text


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


def test_states_of_another_input_map_are_refused(reservoir: Esn, tmp_path: Path) -> None:
    def mapped(**keys: Any) -> HarvestedShards:
        model = ReservoirLM(
            random_embedding(VOCABULARY, WIDTH, seed=1), ReservoirLayer(reservoir, **keys), LinearReadout(NODES, 11)
        ).double()
        return HarvestedShards(model, TRAIN, options=epochs(), shards=2, folder=tmp_path / "store")

    kept = mapped()[0]
    for keys, message in (
        ({"scale": 0.1}, r"states with constants\.layer\.scale 1\.0, these would have 0\.1"),
        ({"offset": 0.1}, r"states with constants\.layer\.offset 0\.0, these would have 0\.1"),
        ({"limit": 0.5}, r"states with constants\.layer\.limit None, these would have 0\.5"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            mapped(**keys)[0]
    assert torch.equal(mapped()[0].states, kept.states)


def test_states_of_another_frozen_recurrence_are_refused(tmp_path: Path) -> None:
    def made(leak: float, activation: Any = "tanh") -> EsnLM:
        weights = dense_esn_weights(9, VOCABULARY, leak=leak, seed=0)
        return EsnLM(weights, LinearReadout(9, VOCABULARY), activation=activation)

    def shards(model: EsnLM) -> HarvestedShards:
        return HarvestedShards(model, TRAIN, options=epochs(), shards=2, folder=tmp_path / "store")

    kept = shards(made(0.8))[0].states
    assert torch.equal(shards(made(0.8))[0].states, kept)
    with pytest.raises(ConfigurationError, match=r"holds states with constants\.model\.leak 0\.8, .*have 0\.3"):
        shards(made(0.3))[0]
    with pytest.raises(ConfigurationError, match=r"constants\.model\.activation tanh, these would have relu"):
        shards(made(0.8, "relu"))[0]


def test_a_checkpoint_of_another_layer_is_refused(reservoir: Esn, tmp_path: Path) -> None:
    def mapped(seed: int = 1, **keys: Any) -> ReservoirLM:
        layer = ReservoirLayer(reservoir, **keys)
        return ReservoirLM(random_embedding(VOCABULARY, WIDTH, seed=seed), layer, LinearReadout(NODES, 11)).double()

    given, longer = options(steps=3), options(steps=4)
    train(mapped(), TRAIN, options=given, folder=tmp_path / "map")
    with pytest.raises(ConfigurationError, match=r"another model: its layer\.scale is 1\.0, this model's is 0\.1"):
        train(mapped(scale=0.1), TRAIN, options=longer, folder=tmp_path / "map")
    with pytest.raises(ConfigurationError, match=r"its 'embedding\.weight', which is frozen, has other values"):
        train(mapped(seed=7), TRAIN, options=longer, folder=tmp_path / "map")
    weights = draw_weights(NODES, WIDTH, seed=3, spectral_radius=0.9), draw_weights(NODES, WIDTH, seed=4)
    with ExitStack() as stack:
        twins = [stack.enter_context(Esn(drawn, dtype="float64", gradients=True)) for drawn in weights]
        train(mapped(gradient="twin", twin=twins[0]), TRAIN, options=given, folder=tmp_path / "twin")
        with pytest.raises(ConfigurationError, match=r"was written with layers\.0\.twin "):
            train(mapped(gradient="twin", twin=twins[1]), TRAIN, options=longer, folder=tmp_path / "twin")
        # For use, it does not matter how the weights were found.
        load_weights(mapped(), tmp_path / "twin" / "weights.safetensors")


def test_a_checkpoint_of_other_shards_is_refused(tmp_path: Path) -> None:
    """Shards that somebody made: every state and every target counts."""

    def shards() -> list[Shard]:
        drawn = np.random.default_rng(0)
        return [Shard(drawn.random((4, 16, 3), np.float32), drawn.integers(0, 2, (4, 16))) for _ in range(2)]

    def trained(train: list[Shard], valid: list[Shard], steps: int) -> int:
        given = epochs(epochs=None, steps=steps)
        return train_on_states(LinearReadout(3, 2), train, valid, options=given, folder=tmp_path).steps

    trained(shards(), shards(), 3)
    assert trained(shards(), shards(), 4) == 4
    for which, what in ((0, "states"), (1, "states"), (1, "targets")):
        changed = shards()
        array = getattr(changed[which], what)
        # The last value of all.
        array[-1, -1] = 1 - array[-1, -1]
        with pytest.raises(ConfigurationError, match=rf"checkpoint.* was written with shards\.shards\.{which} "):
            trained(changed, shards(), 5)
        with pytest.raises(ConfigurationError, match=rf"was written with shards_valid\.shards\.{which} "):
            trained(shards(), changed, 5)
    wide = [Shard(shard.states.astype(np.float64), shard.targets) for shard in shards()]
    with pytest.raises(ConfigurationError, match=r"was written with shards\.shards\.0 "):
        trained(wide, shards(), 5)
    with pytest.raises(ConfigurationError, match=r"was written with shards\.shards "):
        trained(shards()[:1], shards(), 5)
    assert trained(shards(), shards(), 5) == 5


class Deep(nn.Module):
    """A model of somebody's own, with its reservoir where nobody would look; it tells of none."""

    def __init__(self, reservoir: Reservoir, **keys: Any) -> None:
        super().__init__()
        self.vocabulary = VOCABULARY
        film = nn.Sequential(random_embedding(VOCABULARY, WIDTH, seed=1), ReservoirLayer(reservoir, **keys))
        self.parts = nn.ModuleList([nn.ModuleDict({"film": film})])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.out = nn.Linear(NODES, VOCABULARY)
        self.seen: set[torch.dtype] = set()

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        part: Any = self.parts[0]
        states = part["film"](tokens)
        self.seen.add(states.dtype)
        return nn.functional.cross_entropy(self.out(states).flatten(0, 1), targets.flatten(), ignore_index=-1)


def test_devices_in_any_attribute_belong_to_a_checkpoint(reservoir: Esn, tmp_path: Path) -> None:
    given, longer = options(steps=3), options(steps=4)
    assert not hasattr(Deep(reservoir), "reservoir_layers")
    train(Deep(reservoir), TRAIN, options=given, folder=tmp_path / "device")
    with network(seed=7) as other:
        with pytest.raises(ConfigurationError, match=r"was written with reservoirs\.0 "):
            train(Deep(other), TRAIN, options=longer, folder=tmp_path / "device")
        with pytest.raises(ConfigurationError, match=r"of another model: its parts\.0\.film\.1\.scale is 1\.0"):
            train(Deep(reservoir, scale=0.5), TRAIN, options=longer, folder=tmp_path / "device")
    assert train(Deep(reservoir), TRAIN, options=longer, folder=tmp_path / "device").steps == 4
    twins = [Esn(draw_weights(NODES, WIDTH, seed=seed), dtype="float64", gradients=True) for seed in (3, 4)]
    with twins[0], twins[1]:
        train(Deep(reservoir, gradient="twin", twin=twins[0]), TRAIN, options=given, folder=tmp_path / "twin")
        with pytest.raises(ConfigurationError, match=r"was written with layers\.0\.twin "):
            train(Deep(reservoir, gradient="twin", twin=twins[1]), TRAIN, options=longer, folder=tmp_path / "twin")


def test_the_noise_of_a_device_in_any_attribute_goes_on(tmp_path: Path) -> None:
    given = options(checkpoint_steps=10, steps=14)
    with network(noise=0.1) as device:
        reference = Deep(device)
        expected = facts(reference, train(reference, TRAIN, options=given))

    def stop(now: Progress) -> None:
        if now.row.step == 12:
            raise Death

    with network(noise=0.1) as device, pytest.raises(Death):
        train(Deep(device), TRAIN, options=given, folder=tmp_path, progress=stop)
    with network(noise=0.1) as device:
        model = Deep(device)
        assert facts(model, train(model, TRAIN, options=given, folder=tmp_path)) == expected


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
    assert result.best_loss != expected.best_loss


def test_a_checkpoint_of_another_validation_is_refused(reservoir: Esn, tmp_path: Path) -> None:
    def trained(valid: np.ndarray) -> None:
        model = language_model(reservoir)
        shards = (HarvestedShards(model, tokens, options=epochs(), shards=1) for tokens in (TRAIN, valid))
        train_on_states(model.readout, *shards, options=epochs(), folder=tmp_path)

    trained(VALID)
    with pytest.raises(ConfigurationError, match=r"was written with shards_valid\.corpus 500:"):
        trained(VALID[::-1].copy())


@pytest.mark.parametrize(("steps", "sequences"), [(0, 3), (5, 0)])
def test_an_empty_shard_is_refused(steps: int, sequences: int) -> None:
    empty = Shard(torch.zeros(sequences, steps, 4), torch.zeros(sequences, steps, dtype=torch.long))
    with pytest.raises(
        ConfigurationError, match=rf"shard 0 to learn from is empty: it has {sequences} sequences of {steps} steps"
    ):
        train_on_states(LinearReadout(4, 3), [empty], options=TrainingOptions(steps=2, accelerator="cpu"))

    full = Shard(torch.zeros(3, 5, 4), torch.zeros(3, 5, dtype=torch.long))
    for empties, said in (([full, empty], "shard 1 to validate with is empty"), ([], "no shards to validate with")):
        with pytest.raises(ConfigurationError, match=said):
            train_on_states(LinearReadout(4, 3), [full], empties, options=TrainingOptions(steps=2, accelerator="cpu"))


def test_states_of_another_width_are_refused() -> None:
    shard = Shard(torch.zeros(3, 5, 4), torch.zeros(3, 5, dtype=torch.long))
    with pytest.raises(ShapeError, match="the states of the shards have 4 features, the readout takes 6"):
        train_on_states(LinearReadout(6, 3), [shard], options=TrainingOptions(steps=2, accelerator="cpu"))


@pytest.mark.parametrize("option", [{"patience": 1}, {"keep": "best"}])
def test_what_goes_by_validation_needs_some(option: dict[str, Any]) -> None:
    shard = Shard(torch.zeros(3, 5, 4), torch.zeros(3, 5, dtype=torch.long))
    options = TrainingOptions(steps=2, evaluation_steps=1, accelerator="cpu", **option)
    with pytest.raises(ConfigurationError, match="go by the loss of validation data, and there is none"):
        train_on_states(LinearReadout(4, 3), [shard], options=options)
