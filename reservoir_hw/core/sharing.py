"""Several users of one reservoir, each with sequences of its own: the layers of a model that share a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.errors import StateLost
from reservoir_hw.core.reservoir import Reservoir

# A device exists once, so who drove it last is known once, whichever models share it.
_HOLDERS: WeakKeyDictionary[Reservoir, ref[Share]] = WeakKeyDictionary()


class Share:
    """One user's part in an open reservoir.

    Whole sequences need nothing of the device but its reset. To go on with sequences after another user had the
    device, it must have `snapshot`, or be `replayed`.
    """

    def __init__(self, reservoir: Reservoir) -> None:
        self.reservoir = reservoir
        self.batch = 1
        self.steps = 0
        """Time steps since `begin`."""
        self._kept: Mapping[str, np.ndarray] | None = None
        self._recent: Any = None
        self._counted = 0

    def __deepcopy__(self, memo: object) -> Share:
        """Another user of the same reservoir, who has begun no sequences."""
        return Share(self.reservoir)

    def begin(self, batch: int) -> None:
        """Begin this many new sequences. Nothing is sent: the first `run` resets the device."""
        self.batch, self.steps = batch, 0
        self._kept = self._recent = None

    def run(self, u: Any, out: Any = None) -> Any:
        """Drive this user's sequences with u (batch, time, inputs); returns the states (batch, time, nodes).

        `out`, if given, may be filled and returned; look at what is returned.
        Raises `StateLost` where the device holds the state no more, and the reservoir's own errors.
        """
        reservoir, given = self.reservoir, u
        holder = _HOLDERS.get(reservoir, lambda: None)()
        if holder is not self and holder is not None:
            holder._keep()
        if self.steps == 0:
            reservoir.reset(self.batch)
        elif holder is not self:
            given = self._put_back(u)
        elif not reservoir.state_lost and (reservoir.at_rest or reservoir.counters.steps != self._counted):
            raise StateLost(
                f"{reservoir.spec.identity.name} was reset or driven by somebody else after step {self.steps - 1} of "
                "these sequences, which cannot go on: begin them again"
            )
        _HOLDERS[reservoir] = ref(self)
        replay = given.shape[1] - u.shape[1]
        states: Any = reservoir.run(given, None if replay else out)
        self.steps += u.shape[1]
        self._counted = reservoir.counters.steps
        if reservoir.spec.continuity == "replayed" and not reservoir.spec.snapshot:
            past = u if self._recent is None else arrays.concatenate([self._recent, u], 1)
            last: Any = past[:, -reservoir.spec.memory_steps :]
            self._recent = last.detach().clone() if arrays.is_tensor(last) else last.copy()
        return states[:, replay:]

    def _keep(self) -> None:
        """Somebody else is about to take the device: remember where these sequences are."""
        reservoir = self.reservoir
        undisturbed = not reservoir.at_rest and reservoir.counters.steps == self._counted
        if self.steps and reservoir.spec.snapshot and undisturbed and not reservoir.state_lost:
            self._kept = reservoir.snapshot()

    def _put_back(self, u: Any) -> Any:
        """Bring the device to where these sequences were; returns what it is to be driven with."""
        reservoir = self.reservoir
        if self._kept is not None:
            reservoir.restore(self._kept)
            self._kept = None
            return u
        if self._recent is None:
            reason = reservoir.spec.not_supported.get("snapshot", "it does not declare it")
            raise StateLost(
                f"{reservoir.spec.identity.name} was used for other sequences after step {self.steps - 1} of these, "
                f"and no snapshot was kept ({'a fault came before' if reservoir.spec.snapshot else reason}): put whole "
                "sequences into one call, or give every layer a device of its own"
            )
        reservoir.reset(self.batch)
        return arrays.concatenate([arrays.like(self._recent, u), u], 1)
