"""What a bad network does to one message."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.seeds import generator

Probability = Annotated[float, Field(ge=0, le=1)]
Direction = Literal["to_device", "to_client"]
SocketName = Literal["data", "control"]

FAULTS = ("delay", "drop", "duplicate", "reorder", "truncate", "corrupt", "half_open", "kill")
"""Kinds of faults: names of the probabilities in `ChaosConfig`."""


class ChaosConfig(Config):
    """How often what happens to a message: probabilities, each drawn for itself. A file for `serve --chaos`."""

    seed: NonNegativeInt = Field(default=0, description="which messages are struck")
    sockets: tuple[SocketName, ...] = Field(default=("data", "control"), description="what is disturbed")
    directions: tuple[Direction, ...] = Field(default=("to_device", "to_client"), description="on which way")
    delay: Probability = Field(default=0.0, description="comes later, and what is behind it too")
    delay_s: NonNegativeFloat = Field(default=0.01, description="by so much")
    jitter_s: NonNegativeFloat = Field(default=0.0, description="and up to so much more")
    drop: Probability = Field(default=0.0, description="never comes")
    duplicate: Probability = Field(default=0.0, description="comes twice")
    reorder: Probability = Field(default=0.0, description="is overtaken by what is sent within reorder_s")
    reorder_s: NonNegativeFloat = 0.02
    truncate: Probability = Field(default=0.0, description="a frame is cut, or missing")
    corrupt: Probability = Field(default=0.0, description="one to three bits are flipped, anywhere")
    half_open: Probability = Field(
        default=0.0, description="from here on nothing passes this way, and the connection stays"
    )
    kill: Probability = Field(default=0.0, description="the connection is cut, on the one side or the other")


class Passage(NamedTuple):
    """What becomes of a message: the faults that strike it, and what arrives, each with its delay."""

    faults: tuple[str, ...]
    arriving: tuple[list[bytes], ...] = ()
    delay_s: float = 0.0
    overtaken: bool = False


class Path:
    """One way of one connection. The nth message of a path has the same fate whatever the others do."""

    def __init__(self, config: ChaosConfig, socket: SocketName, direction: Direction, connection: int) -> None:
        self._config = config
        self._disturbed = socket in config.sockets and direction in config.directions
        self._random = generator(config.seed, f"chaos {socket} {direction} {connection}")
        self._blocked = False
        self.free_at = 0.0
        """When the last message that may not be overtaken arrives (time.monotonic)."""

    def take(self, frames: list[bytes]) -> Passage:
        """Decide about the next message."""
        if self._blocked:
            return Passage(())
        if not self._disturbed:
            return Passage((), (frames,))
        config, random = self._config, self._random
        # Always as many numbers: a fault that is made likelier leaves the others where they were.
        drawn = random.random(len(FAULTS))
        faults = tuple(name for name, number in zip(FAULTS, drawn, strict=True) if number < getattr(config, name))
        if "half_open" in faults:
            self._blocked = True
        for last in ("half_open", "kill", "drop"):
            if last in faults:
                return Passage((last,))
        if "truncate" in faults:
            frames = _truncated(frames, random)
        if "corrupt" in faults:
            frames = _corrupted(frames, random)
        delay_s = config.delay_s + config.jitter_s * random.random() if "delay" in faults else 0.0
        if "reorder" in faults:
            delay_s += config.reorder_s
        copies = 2 if "duplicate" in faults else 1
        return Passage(faults, (frames,) * copies, delay_s, "reorder" in faults)

    def heads_or_tails(self) -> bool:
        """One of two, equally likely."""
        return self._random.random() < 0.5


def _truncated(frames: list[bytes], random: np.random.Generator) -> list[bytes]:
    filled = [index for index, frame in enumerate(frames) if frame]
    if len(frames) > 1 and (not filled or random.random() < 0.5):
        lost = int(random.integers(len(frames)))
        return frames[:lost] + frames[lost + 1 :]
    if not filled:
        return frames
    cut = int(random.choice(filled))
    kept = frames[cut][: int(random.integers(len(frames[cut])))]
    return [*frames[:cut], kept, *frames[cut + 1 :]]


def _corrupted(frames: list[bytes], random: np.random.Generator) -> list[bytes]:
    sizes = [len(frame) for frame in frames]
    if not sum(sizes):
        return frames
    damaged = [bytearray(frame) for frame in frames]
    # Different bits: the same one twice would be no damage.
    count = int(random.integers(1, 4))
    for bit in random.choice(8 * sum(sizes), size=count, replace=False, shuffle=False):
        byte, index = int(bit) // 8, 0
        while byte >= sizes[index]:
            byte -= sizes[index]
            index += 1
        damaged[index][byte] ^= 1 << (int(bit) % 8)
    return [bytes(frame) for frame in damaged]
