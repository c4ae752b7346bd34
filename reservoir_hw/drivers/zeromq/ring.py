"""Payloads in shared memory: a ring of slots, and for large ones a memfd of their own (docs/protocol.md)."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from reservoir_hw.drivers.codes import Code, Refusal

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Ring:
    """Slots for requests and as many for replies; each pair serves every `slots`-th request.

    Args:
        descriptor: Of the segment. It is not needed any more afterwards.
        slots: Pairs.
        slot_bytes: Size of a slot.
    """

    def __init__(self, descriptor: int, slots: int, slot_bytes: int) -> None:
        # Its memory is given back when the last view of it is.
        memory = np.frombuffer(mmap.mmap(descriptor, 2 * slots * slot_bytes), np.uint8)
        halves = memory.reshape(2, slots, slot_bytes)
        self._requests, self._replies = list(halves[0]), list(halves[1])
        self.slots, self.slot_bytes = slots, slot_bytes

    def request(self, number: int) -> np.ndarray:
        """The bytes of the slot for the payload of this request."""
        return self._requests[(number - 1) % self.slots]

    def reply(self, number: int) -> np.ndarray:
        """The bytes of the slot for the payload of the reply to this request."""
        return self._replies[(number - 1) % self.slots]


def new_segment(slots: int, slot_bytes: int) -> int:
    """The descriptor of a segment for a ring: without a name, and of a size that nobody can change."""
    with _memfd("reservoir_hw ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as descriptor:
        os.ftruncate(descriptor, 2 * slots * slot_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def mapped(descriptor: int, slots: int, slot_bytes: int) -> Ring:
    """The ring in a segment that a client has sent, or `Refusal`: its memory could vanish."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise Refusal(Code.CONFIGURATION, "the segment for the ring is no memfd") from error
    if seals & _SEALS != _SEALS:
        raise Refusal(Code.CONFIGURATION, "the segment for the ring lacks a seal: F_SEAL_SHRINK and F_SEAL_GROW")
    size, agreed = os.fstat(descriptor).st_size, 2 * slots * slot_bytes
    if size != agreed:
        raise Refusal(
            Code.CONFIGURATION,
            f"the segment for the ring has {size} bytes; {slots} slots of {slot_bytes} each way take {agreed}",
        )
    try:
        return Ring(descriptor, slots, slot_bytes)
    except OSError as error:
        raise Refusal(Code.CONFIGURATION, f"the segment for the ring cannot be mapped: {error.strerror}") from error


def filled_memfd(payload: Any) -> int:
    """The descriptor of a memfd that holds one payload."""
    with _memfd("reservoir_hw payload", os.MFD_CLOEXEC) as descriptor:
        left = memoryview(payload).cast("B")
        while len(left):
            left = left[os.write(descriptor, left) :]
    return descriptor


@contextlib.contextmanager
def _memfd(name: str, flags: int) -> Iterator[int]:
    """A new descriptor, which is closed where something goes wrong meanwhile, Ctrl-C included."""
    descriptor = os.memfd_create(name, flags)
    try:
        yield descriptor
    except BaseException:
        os.close(descriptor)
        raise


def read_memfd(descriptor: int, length: int) -> memoryview:
    """A copy of the first `length` bytes behind a descriptor, or `Refusal`."""
    content = np.empty(length, np.uint8).data
    done = 0
    try:
        while done < length:
            got = os.preadv(descriptor, [content[done:]], done)
            if not got:
                raise Refusal(Code.MALFORMED, f"the memfd with a payload of {length} bytes ends after {done}")
            done += got
    except OSError as error:
        raise Refusal(Code.MALFORMED, f"the memfd with a payload cannot be read: {error.strerror}") from error
    return content
