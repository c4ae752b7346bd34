"""Devices that lie below the contract: each declares itself honestly but for one thing.

One small network is housed in a backend, in functions of `kind: python`, or behind a server. `Lie` says what is wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reservoir_hw.core.errors import DeviceFault
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.spec import Identity, ReservoirSpec

NODES = 10
MEMORY = 24
LIMITS = (-1.0, 1.0)

Lie = Literal[
    "none",
    "stale frames",
    "state not reset",
    "leak across the batch",
    "off-by-one between chunks",
    "clip inside the declared range",
    "declared range too wide",
    "false continuity",
    "non-deterministic declared deterministic",
    "state lost unnoticed",
    "nodes swapped",
    "lock ignored",
    "latency off by one",
    "unsafe after close",
    "memory longer than declared",
    # Smaller ones, or such that only some inputs show; these films have three.
    "clips at 0.95",
    "clips one of three inputs",
    "leaks into the middle row",
    "keeps one node over a reset",
    "detector, not reset",
    "detector, remembers longer",
]

_random = np.random.default_rng(0)
_W = _random.standard_normal((NODES, NODES))
_W *= 0.6 / np.abs(np.linalg.eigvals(_W)).max()
_V = _random.uniform(-0.8, 0.8, (NODES, 3))


_noise = np.random.SeedSequence(0)


def start_noise(seed: int) -> None:
    """All noise from now on is that of `seed`: a run that alarms by chance alarms always, and can be looked at."""
    global _noise
    _noise = np.random.SeedSequence(seed)


def new_noise() -> np.random.Generator:
    """For one device; no two have the same."""
    return np.random.default_rng(_noise.spawn(1)[0])


@dataclass
class Film:
    """x <- tanh(W x + v u), for several sequences; what is wrong with it is `lie`."""

    lie: Lie = "none"
    noise: float = 0.0
    wander: float = 0.0
    """Standard deviation of the gain of the readout, which changes within some thousand steps."""

    def __post_init__(self) -> None:
        self.scatter, self.gain = new_noise(), 0.0
        self.shown = np.zeros((1, NODES))
        self.x = np.zeros((1, NODES))
        self.to_rest(1)

    def to_rest(self, batch: int) -> None:
        kept = self.x if len(self.x) == batch else np.zeros((batch, NODES))
        if self.lie not in ("state not reset", "detector, not reset"):
            self.x = np.zeros((batch, NODES))
            if self.lie == "keeps one node over a reset":
                self.x[:, 3] = kept[:, 3]
        else:
            self.x = kept
        self.late = np.zeros((batch, NODES))
        self.before: np.ndarray | None = None

    def drive(self, u: np.ndarray) -> np.ndarray:
        """(batch, time, inputs) -> (batch, time, nodes)."""
        states = np.empty((*u.shape[:2], NODES))
        if self.before is not None:
            if self.lie == "false continuity":
                self.x = self.x / 2
            if self.lie == "off-by-one between chunks":
                self._step(self.before)
        for t in range(u.shape[1]):
            if self.lie == "declared range too wide" and np.abs(u[:, t]).max() > 0.9:
                raise DeviceFault("the amplifier has tripped", steps_done=t, states=states[:, :t])
            self._step(u[:, t])
            if self.wander:
                self.gain += -self.gain / 2000 + self.wander * (2 / 2000) ** 0.5 * self.scatter.standard_normal()
            states[:, t] = (1 + self.gain) * (self.late if self.lie == "latency off by one" else self.x)
            self.late = self.x
        self.before = u[:, -1]
        scatter = max(self.noise, 0.003 if self.lie == "non-deterministic declared deterministic" else 0.0)
        if scatter:
            states += scatter * self.scatter.standard_normal(states.shape)
        if self.lie == "stale frames":
            states[:, 0], self.shown = np.resize(self.shown, states[:, 0].shape), states[:, -1].copy()
        if self.lie == "nodes swapped":
            states[..., [0, 1]] = states[..., [1, 0]]
        return states

    def _step(self, u: np.ndarray) -> None:
        if self.lie == "clip inside the declared range":
            u = np.clip(u, -0.7, 0.7)
        if self.lie == "clips at 0.95":
            u = np.clip(u, -0.95, 0.95)
        if self.lie == "clips one of three inputs":
            u = np.clip(u, [-1, -1, -0.3], [1, 1, 0.3])
        if self.lie.startswith("detector"):
            u = u**2
        # Rounded as by a converter: the past is forgotten to the last bit, however a processor rounds.
        x = np.round(np.tanh(self.x @ _W.T + u @ _V[:, : u.shape[1]].T), 12)
        if self.lie == "leaks into the middle row" and len(x) > 2:
            x[1] += 0.1 * x[0]
        if self.lie == "leak across the batch":
            x = x + 0.1 * np.roll(self.x, 1, axis=0) * (len(x) > 1)
        self.x = x


def spec_of(lie: Lie, noise: float, *, simulated: bool, inputs: int = 1) -> ReservoirSpec:
    return ReservoirSpec(
        inputs=inputs,
        nodes=NODES,
        dtype="float64",
        input_range=LIMITS,
        memory_steps={"memory longer than declared": 3, "detector, remembers longer": 1}.get(lie, MEMORY),
        snapshot=True,
        deterministic=not noise or lie == "non-deterministic declared deterministic",
        # The lie is no part of it: a device whose nodes were swapped says it is the old one.
        identity=Identity(vendor="tests", model="film", simulated=simulated, content=f"noise {noise}"),
    )


class FilmConfig(ReservoirConfig):
    """A film in a lab: what happens to it is seen in the folder of `hil:`."""

    kind: Literal["film"]
    lie: Lie = "none"
    noise: float = 0.0
    simulated: bool = False
    step_s: float = 0.0
    wander: float = 0.0

    def build(self) -> FilmReservoir:
        return FilmReservoir(self)


class FilmReservoir(Reservoir):
    """Housed in a backend. `seconds` is how long all of them took for their steps."""

    seconds = 0.0

    def __init__(self, config: FilmConfig) -> None:
        folder = config.hil.folder if config.hil else Path()
        locked = not config.simulated and config.lie != "lock ignored"
        super().__init__(
            spec_of(config.lie, config.noise, simulated=config.simulated, inputs=config.inputs or 1),
            resource=f"film in {folder}" if locked else None,
        )
        self._lie, self._folder, self._step_s = config.lie, folder, config.step_s
        self._film = Film(config.lie, config.noise, config.wander)

    def _open(self) -> None:
        (self._folder / "driven by").write_text(str(os.getpid()))

    def _close(self) -> None:
        if self._lie != "unsafe after close":
            (self._folder / "driven by").unlink(missing_ok=True)

    def _reset(self, batch: int) -> None:
        self._film.to_rest(batch)

    def _run(self, u: np.ndarray, out: Any) -> np.ndarray:
        started = time.perf_counter()
        time.sleep(self._step_s * u.shape[0] * u.shape[1])
        FilmReservoir.seconds += time.perf_counter() - started
        fails = self._folder / "fails once"
        if fails.exists():
            fails.unlink()
            self._film.x = np.zeros_like(self._film.x)
            if self._lie != "state lost unnoticed":
                raise DeviceFault("the supply has failed")
        return self._film.drive(u)

    def _snapshot(self) -> dict[str, np.ndarray]:
        return {"x": self._film.x.copy(), "late": self._film.late.copy()}

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._film.x, self._film.late = state["x"].copy(), state["late"].copy()


# ---- actions of the section `hil:` -----------------------------------------------------------------


def is_safe(config: ReservoirConfig) -> bool:
    """A film is safe while no living process drives it: it has a watchdog."""
    assert config.hil is not None
    try:
        os.kill(int((config.hil.folder / "driven by").read_text()), 0)
    except (FileNotFoundError, ProcessLookupError):
        return True
    return False


def fail_once(config: ReservoirConfig) -> None:
    assert config.hil is not None
    (config.hil.folder / "fails once").touch()


# ---- housed in functions -----------------------------------------------------------------------------

_lab = Film()


def setup_call() -> None:
    global _lab
    lie: Any = os.environ["FILM_LIE"]
    _lab = Film(lie, float(os.environ["FILM_NOISE"]))
    Path(os.environ["FILM_FOLDER"], "driven by").write_text(str(os.getpid()))


def reset_call() -> None:
    _lab.to_rest(1)


def call(u: np.ndarray) -> np.ndarray:
    fails = Path(os.environ["FILM_FOLDER"], "fails once")
    if fails.exists():
        fails.unlink()
        raise RuntimeError("the supply has failed")
    return _lab.drive(u[None])[0]


def close_call() -> None:
    if _lab.lie != "unsafe after close":
        Path(os.environ["FILM_FOLDER"], "driven by").unlink(missing_ok=True)
