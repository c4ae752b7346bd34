"""What emulated oscilloscopes have in common: they arm, look whether the trigger has come, keep the record."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from reservoir_hw.emulators.bench import Acquisition, VirtualBench
from reservoir_hw.emulators.scpi.instrument import MessageDevice
from reservoir_hw.emulators.scpi.tree import channel_of, setting

Volts = dict[int, NDArray[np.float64]]
# Where nobody has to trigger it, the instrument does so itself, so long after it was armed.
AUTO_TRIGGER_S = 0.05

AnyRecord = TypeVar("AnyRecord")


class Scope(MessageDevice, Generic[AnyRecord]):
    """Records of the inputs of a bench, with no commands. The brand begins the first of them: it sets `_running`.

    Args:
        bench: What it measures.
    """

    _set: Any
    """What `*RST` sets back. With `sweep` AUTO it does without a trigger."""

    def __init__(self, bench: VirtualBench) -> None:
        super().__init__()
        self._bench = bench
        self._state = threading.RLock()
        self._running = False
        self._record: AnyRecord | None = None

    @property
    @abstractmethod
    def _acquisition(self) -> Acquisition:
        """What the settings ask for."""

    @property
    @abstractmethod
    def _single(self) -> bool:
        """Whether an acquisition goes on that commands wait for."""

    @abstractmethod
    def _taken(self, volts: Volts, acquisition: Acquisition) -> AnyRecord:
        """The record of what was acquired. Sets `_running` to whether another one follows."""

    def operation_complete(self, timeout_s: float) -> bool:
        """A single acquisition is waited for."""
        if not self._single:
            return True
        self._bench.capture(timeout_s)
        self.look()
        return not self._single

    def _arm(self) -> None:
        self._armed, self._armed_at = self._acquisition, time.monotonic()
        self._bench.arm(self._armed)

    def changed(self) -> None:
        """What is being acquired begins again with new settings."""
        with self._state:
            if self._running:
                self._arm()

    def _settle(self, channel: int) -> None:
        """A channel's settings become the nearest ones that there are."""
        channel_of(self, channel).settle()
        self.changed()

    def look(self) -> None:
        """Take the record if the trigger has come."""
        with self._state:
            if not self._running:
                return
            if self._set.sweep == "AUTO" and time.monotonic() > self._armed_at + AUTO_TRIGGER_S:
                self._bench.force()
            volts = None if self._bench.armed else self._bench.capture(0)
            if volts is not None:
                self._record = self._taken(volts, self._armed)
                self.changed()


def settings_of(scope: Any) -> Any:
    """Those of the whole instrument."""
    return scope._set


def looked(scope: Any) -> Any:
    """The instrument, after a look at its trigger."""
    scope.look()
    return scope


# After a change of these, what is being acquired begins again.
scope_setting = partial(setting, of=settings_of, changed=Scope.changed)
channel_setting = partial(setting, of=channel_of, changed=lambda scope, *_: scope.changed())
settled_setting = partial(setting, of=channel_of, changed=Scope._settle)
