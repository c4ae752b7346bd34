"""A film behind a DAQ card, as a lab would write it: it answers late, its gain falls, nodes of it are dead or equal.

Nothing in here knows the project. A reservoir file names `drive` (or `one_step`), `settle` and, in `params`, what is
wrong with the film.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NODES = 8
MODULATION_V = (0.0, 5.0)
"""What the modulator takes. Beyond it breaks."""


class Film:
    """Voltages of eight probes on a film that relaxes, in volts. The card returns those of some steps ago."""

    def __init__(self) -> None:
        drawn = np.random.default_rng(41)
        self.coupling = drawn.normal(0, 0.25, (NODES, NODES))
        self.drive = drawn.uniform(-1, 1, NODES)
        self.noise = np.random.default_rng(5)
        self.steps = 0
        """Since the film was switched on: never set back."""
        self.settle()

    def settle(self) -> None:
        """Wait until the film is at rest and the card has nothing left to tell."""
        self.x = np.zeros(NODES)
        self.buffer: list[np.ndarray] = []

    def step(
        self, volts: float, *, noise_v: float, late: int, fall: float, over: int, creep_v: float, relax: float
    ) -> np.ndarray:
        """Apply a voltage for one period, and fetch what the card has."""
        self.x = (1 - relax) * self.x + relax * np.tanh(self.coupling @ self.x + self.drive * volts + 0.2)
        aged = min(self.steps / over, 1.0)
        self.steps += 1
        seen = (1 - fall * aged) * self.x + creep_v * aged + noise_v * self.noise.normal(size=NODES)
        self.buffer.append(seen)
        return self.buffer.pop(0) if len(self.buffer) > late else noise_v * self.noise.normal(size=NODES)


FILM = Film()


def drive(
    u: np.ndarray,
    noise_v: float = 1e-4,
    late: int = 0,
    fall: float = 0.0,
    over: int = 20_000,
    creep_v: float = 0.0,
    relax: float = 0.5,
    dead: Sequence[int] = (),
    twins: Sequence[int] = (),
    refuses: bool = False,
) -> np.ndarray:
    """Voltages (time, inputs) of the modulator give those of the probes (time, nodes).

    The gain falls by the share `fall`, and offsets creep by `creep_v`, over so many steps. `dead` probes see the noise
    of the card alone, and `twins` touch the same spot. With `refuses` the modulator takes `MODULATION_V` alone.
    """
    if refuses and (u.min() < MODULATION_V[0] or u.max() > MODULATION_V[1]):
        raise ValueError(f"the modulator takes {MODULATION_V} V, not {u.min():g} to {u.max():g} V")
    how = {"noise_v": noise_v, "late": late, "fall": fall, "over": over, "creep_v": creep_v, "relax": relax}
    states = np.stack([FILM.step(float(volts.sum()), **how) for volts in u])
    for node in twins[1:]:
        states[:, node] = states[:, twins[0]]
    for node in dead:
        states[:, node] = noise_v * FILM.noise.normal(size=len(states))
    return states


def one_step(u: np.ndarray, noise_v: float = 1e-4, late: int = 0) -> np.ndarray:
    """As `drive`, one step at a time: (inputs,) gives (nodes,)."""
    return drive(u[None], noise_v=noise_v, late=late)[0]


def settle() -> None:
    """Bring the film to rest."""
    FILM.settle()
