"""A device kept for one user until a time: a note beside its lock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from filelock import FileLock

from reservoir_hw.core.errors import ConfigurationError, DeviceBusy
from reservoir_hw.core.lock_files import lock_file, lock_folder, user_name, write_note, writing_for


@dataclass(frozen=True)
class Reservation:
    """Who has a device reserved, until when (with a time zone), and what for."""

    user: str
    until: datetime
    note: str = ""

    def __str__(self) -> str:
        return f"reserved by {self.user} until {shown(self.until)}" + (f" ({self.note})" if self.note else "")


def reservation_of(resource: str) -> Reservation | None:
    """The reservation of `resource`, unless it has ended."""
    try:
        note = json.loads(_note_of(resource).read_text())
        found = Reservation(str(note["user"]), datetime.fromisoformat(note["until"]), str(note["note"]))
        boot, now_s = _since_boot()
        if boot and note["boot"] == boot:
            return found if note["end_s"] > now_s else None
        return found if found.until > datetime.now().astimezone() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def reserved_for_another(resources: Iterable[str], user: str) -> str | None:
    """For people: which of `resources` is reserved by somebody who is not `user`, and how; None if none is."""
    for resource in resources:
        reservation = reservation_of(resource)
        if reservation is not None and reservation.user != user:
            return f"{resource!r} is {reservation}"
    return None


def reserve(resources: Iterable[str], until: datetime, note: str = "") -> Reservation:
    """Keep all `resources` for the user of this process; a reservation of the same user is replaced.

    Who uses one of them now goes on. Raises `DeviceBusy` if another user has reserved one.
    """
    resources = list(resources)
    reservation = Reservation(user_name(), until, " ".join(note.split()))
    boot, now_s = _since_boot()
    end_s = now_s + (until - datetime.now().astimezone()).total_seconds()
    with writing_for(resources[0]), _one_at_a_time():
        _refuse_if_anothers(resources)
        for resource in resources:
            content = {"user": reservation.user, "until": until.isoformat(), "note": reservation.note}
            content |= {"boot": boot, "end_s": end_s}
            write_note(_note_of(resource), content)
    return reservation


def release(resources: Iterable[str]) -> bool:
    """End the reservations of these resources; whether there was one.

    Raises `DeviceBusy` if another user has reserved one.
    """
    resources = list(resources)
    with writing_for(resources[0]), _one_at_a_time():
        _refuse_if_anothers(resources)
        was_reserved = any(reservation_of(resource) is not None for resource in resources)
        for resource in resources:
            _note_of(resource).unlink(missing_ok=True)
    return was_reserved


def read_end(text: str) -> datetime:
    """The time that is meant by 18:00 (today, or tomorrow if it has passed) or 2026-01-31 18:00.

    Raises `ConfigurationError` for anything else, and for a date that has passed.
    """
    now = datetime.now().astimezone()
    try:
        clock = datetime.strptime(text.strip(), "%H:%M").time()
    except ValueError:
        pass
    else:
        today = datetime.combine(now.date(), clock)
        return (today if today.astimezone() > now else today + timedelta(days=1)).astimezone()
    try:
        until = datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(f"{text!r} is no time: write 18:00, or 2026-01-31 18:00") from None
    if until <= now:
        raise ConfigurationError(f"{text!r} has passed: it is {shown(now)}")
    return until


def shown(moment: datetime) -> str:
    """For people, in the time zone of this host."""
    local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M} {local:%Z}"


def _since_boot() -> tuple[str, float]:
    """Which start of this host it is (Linux; elsewhere empty), and seconds of a clock that nobody sets since then."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "", 0.0
    return boot, time.clock_gettime(time.CLOCK_BOOTTIME)


def _note_of(resource: str) -> Path:
    return lock_file(resource, ".reserved")


def _one_at_a_time() -> FileLock:
    return FileLock(lock_folder() / "reservations.lock", mode=0o666)


def _refuse_if_anothers(resources: Iterable[str]) -> None:
    taken = reserved_for_another(resources, user_name())
    if taken is not None:
        raise DeviceBusy(f"{taken}; ask them to release it, or wait until then")
