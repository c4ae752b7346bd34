from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, cast

import pytest
import training_case
from training_case import SmallModel, digest, facts, options, text

from reservoir_hw.readout.training import Progress, train

TRAIN, VALID = text(3000), text(500, "valid")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What a training gives that nothing disturbs."""
    model = SmallModel()
    return facts(model, train(model, TRAIN, VALID, options=options()))


class Death(BaseException):
    """Stands for the end of the process."""


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [[1, 3], [5, 2, 4], [9, 1, 15]])
def test_resumes_bit_for_bit_wherever_it_died(
    pictures: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any], deaths: list[int]
) -> None:
    """The process ends just before the n-th file would take its place: a checkpoint, the best weights, the log."""
    replace, left = os.replace, 0

    def mortal(source: Any, target: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Death
        replace(source, target)

    monkeypatch.setattr("reservoir_hw.core.files.os.replace", mortal)
    for death in deaths:
        left = death
        with pytest.raises(Death):
            train(SmallModel(), TRAIN, VALID, options=options(), folder=tmp_path)
    left = 0
    # Whatever the model was, the checkpoint decides.
    model = SmallModel(seed=9 if (tmp_path / "checkpoint.safetensors").exists() else 0)
    result = train(model, TRAIN, VALID, options=options(), folder=tmp_path)
    assert facts(model, result) == expected


@pytest.mark.slow
def test_resumes_after_an_error_of_the_caller(tmp_path: Path, expected: dict[str, Any]) -> None:

    def stop(now: Progress) -> None:
        if now.row.step >= 18:
            raise Death

    with pytest.raises(Death):
        train(SmallModel(), TRAIN, VALID, options=options(), folder=tmp_path, progress=stop)
    # The log is ahead of the checkpoint, as after kill -9, and its last line is cut.
    with open(tmp_path / "log.csv", "a") as file:
        file.write("19,123")
    (tmp_path / "checkpoint.safetensors.partial").write_bytes(b"half")
    model = SmallModel(seed=9)
    result = train(model, TRAIN, VALID, options=options(), folder=tmp_path)
    assert facts(model, result) == expected
    assert [row.step for row in result.history] == [3, 6, 7, 9, 12, 14, 15, 18, 21, 24, 27, 28, 30]


def test_begins_anew_if_asked(tmp_path: Path) -> None:
    train(SmallModel(), TRAIN, VALID, options=options(steps=10), folder=tmp_path)
    model = SmallModel()
    result = train(model, TRAIN, options=options(steps=5), folder=tmp_path, resume=False)
    assert [row.step for row in result.history] == [3, 5]
    assert not (tmp_path / "best.safetensors").exists()


def test_can_be_extended_and_told_other_rates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(SmallModel(), TRAIN, options=options(steps=10, evaluation_steps=None), folder=tmp_path)
    result = train(
        SmallModel(), TRAIN, options=options(steps=12, evaluation_steps=None, learning_rate=1e-3), folder=tmp_path
    )
    assert result.steps == 12
    assert "learning_rate = 0.01; going on with 0.001" in caplog.text


class Frozen(SmallModel):
    """The readout shares the matrix of the embedding, and the norm does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.readout.weight = self.embedding.weight
        self.norm.requires_grad_(False)


@pytest.mark.slow
def test_tied_and_frozen_weights_resume_too(tmp_path: Path) -> None:
    # With a constant rate, half as many steps are the first half.
    flat = {"warmup": 0.0, "hold": 0.0, "final_rate": 1.0}
    reference, resumed = Frozen(), Frozen()
    train(reference, TRAIN, options=options(**flat))
    train(Frozen(), TRAIN, options=options(**flat, steps=15), folder=tmp_path)
    train(resumed, TRAIN, options=options(**flat), folder=tmp_path)
    assert digest(resumed) == digest(reference)
    assert resumed.readout.weight is resumed.embedding.weight


def case(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """The training of `expected`, with a row of the log for each step, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, training_case.__file__, str(folder / "run"), str(folder / "result.json"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait_for_step(process: subprocess.Popen[str], step: int) -> None:
    """Returns once the process has said that it did this step."""
    for line in cast(IO[str], process.stdout):
        if line.startswith(f"step {step} "):
            return
    raise AssertionError(f"the process ended before step {step}: {cast(IO[str], process.stderr).read()}")


@pytest.fixture(scope="module")
def expected_of_case(expected: dict[str, Any]) -> dict[str, Any]:
    model = SmallModel()
    result = train(model, TRAIN, VALID, options=options(log_steps=1))
    assert digest(model) == expected["weights"]
    return facts(model, result)


@pytest.mark.slow
def test_kill_and_interrupt_of_a_real_process(tmp_path: Path, expected_of_case: dict[str, Any]) -> None:
    with case(tmp_path, "--slowly", "0.02") as process:
        wait_for_step(process, 8)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with case(tmp_path, "--slowly", "0.02") as process:
        # It went on from the checkpoint with the best weights so far, those after step 7.
        first = cast(IO[str], process.stdout).readline()
        assert first.startswith("step 8 ")
        wait_for_step(process, 12)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode != 0
    last = errors.strip().splitlines()[-1]
    assert last.startswith("KeyboardInterrupt: stopped after step 1")
    assert "of 30; the same call goes on from" in last
    stopped = int(last.split("after step ")[1].split()[0])
    with case(tmp_path) as process:
        assert cast(IO[str], process.stdout).readline().startswith(f"step {stopped + 1} ")
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads((tmp_path / "result.json").read_text()) == expected_of_case


def test_ctrl_c_without_a_folder_and_sigterm() -> None:
    def stop(now: Progress) -> None:
        signal.raise_signal(number)

    number = signal.SIGINT
    # The row of step 3 is told after that step.
    with pytest.raises(KeyboardInterrupt, match="stopped after step 4 of 30; without a folder nothing is kept"):
        train(SmallModel(), TRAIN, options=options(), progress=stop)
    number = signal.SIGTERM
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        train(SmallModel(), TRAIN, options=options(), progress=stop)
    assert caught.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_closed_terminal_stops_unless_it_means_something_else() -> None:
    def stop(now: Progress) -> None:
        signal.raise_signal(signal.SIGHUP)

    came: list[int] = []
    for handler in (signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: came.append(number)):
        before = signal.signal(signal.SIGHUP, handler)
        try:
            if handler is signal.SIG_DFL:
                with pytest.raises(SystemExit) as caught:
                    train(SmallModel(), TRAIN, options=options(), progress=stop)
                assert caught.value.code == 128 + signal.SIGHUP
                continue
            assert train(SmallModel(), TRAIN, options=options(steps=2), progress=stop).steps == 2
            assert signal.getsignal(signal.SIGHUP) is handler
        finally:
            signal.signal(signal.SIGHUP, before)
    assert came


@pytest.mark.slow
def test_killed_again_and_again(tmp_path: Path, expected_of_case: dict[str, Any]) -> None:
    chosen = random.Random(0)
    kills = 0
    while not (tmp_path / "result.json").exists():
        with case(tmp_path, "--slowly", "0.008") as process:
            # Steps, evaluations, checkpoints and files follow the first row within some hundredths of a second.
            cast(IO[str], process.stdout).readline()
            try:
                process.communicate(timeout=chosen.uniform(0.0, 0.3))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        assert kills < 40, "no progress"
    assert kills >= 5
    assert json.loads((tmp_path / "result.json").read_text()) == expected_of_case
