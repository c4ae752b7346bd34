"""Who gets the device, and what is answered on the control socket."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import Broken
from reservoir_hw.testing.protocol.rules import HELD, Rules

RULES = Rules("handshake")

WELCOME: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "session": int,
    "lease_s": (int, float),
    "credits": int,
    "max_frame_bytes": int,
}
LACKS = "A map with `op` and `id` that lacks another field, or where one has another type, gets error 4."
NO_SESSION = "`cancel` and `goodbye` of a session that does not hold the device get error 3."
SAME = "The same `hello` again (same nonce) gets the same `welcome`."
NOT_DONE = "| anything that cannot be done | `error`: `code`, `text` |"
BUSY = "While the device is held, another `hello` gets error 2 (busy), whose text names the holder."


@RULES.in_session(
    "welcome has all fields",
    page="`welcome`, all required but the last two: `version`, `session` (unsigned 64 bit, not 0), `lease_s`, "
    "`credits`, `max_frame_bytes`, `server` (text), `device` (text)",
)
def _(_: Device, client: Client) -> None:
    welcome = client.welcome
    for name, kind in WELCOME.items():
        value: Any = welcome.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
            raise Broken(f"{name} is {value!r}")
    if not welcome["session"] < 1 << 64:
        raise Broken(f"session is {welcome['session']}")
    for name in ("server", "device"):
        if not isinstance(welcome.get(name, ""), str):
            raise Broken(f"{name} is {welcome[name]!r}, not text")


@RULES.in_session("a session lies below 2^53", page="**Sessions** that a device gives lie below 2^53")
def _(_: Device, client: Client) -> None:
    if client.session >= 1 << 53:
        raise Broken(f"session {client.session}")


@RULES.in_session("the same hello again gets the same welcome", page=SAME)
def _(_: Device, client: Client) -> None:
    first = client.welcome
    again = client.hello()
    if {**again, "id": 0} != {**first, "id": 0}:
        raise Broken(f"first {first}, then {again}")
    client.reset()


@RULES.rule("another client gets error 2, and hears who has the device", page=BUSY)
def _(device: Device) -> None:
    with device.session("the holder") as holder, device.client("another one") as other:
        text = _turned_down(other)
        if holder.name not in text:
            raise Broken(f"the text {text!r} does not name {holder.name!r}")


@RULES.rule("another nonce of the same client gets error 2", page=BUSY)
def _(device: Device) -> None:
    with device.session() as holder, device.client() as other:
        _turned_down(other)
        if not holder.ping()["valid"]:
            raise Broken("the other hello has ended the session")


def _turned_down(client: Client) -> str:
    answer = client.hello()
    if answer["op"] == "welcome":
        client.leave()
        raise Broken(f"a second client was let in, with session {answer['session']}")
    if answer["code"] != codec.E_BUSY:
        raise Broken(f"error {answer['code']} ({answer['text']}) came, error 2 is due")
    return answer["text"]


@RULES.rule("the highest version of both is chosen", page="The device chooses the highest version that both know.")
def _(device: Device) -> None:
    with device.let_in():
        """Version 1 alone."""
    with device.client() as client:
        answer = client.hello([1, 250])
        client.leave()
        if answer.get("version") != 1:
            raise Broken(f"versions 1 and 250 were answered with {answer}")


@RULES.rule(
    "no version in common: error 1, which says which versions there are",
    page="If there is none, it answers with error 1 and says which versions it knows.",
)
def _(device: Device) -> None:
    with device.client() as client:
        for versions in ([250], []):
            answer = client.hello(versions)
            if answer.get("code") != codec.E_VERSION:
                client.leave()
                raise Broken(f"versions {versions} were answered with {answer}")
        if "1" not in answer["text"]:
            raise Broken(f"the text {answer['text']!r} does not name version 1")
    with device.session():
        """Nobody has taken the device."""


def _incomplete(device: Device, *, without: str) -> None:
    fields = {"versions": [1], "client": "check", "nonce": secrets.token_bytes(16)}
    del fields[without]
    with device.client() as client:
        client.turned_down("hello", codec.E_MALFORMED, **fields)
    with device.client() as client:
        answer = client.hello()
        client.leave()
        if answer["op"] != "welcome":
            raise Broken(f"after that hello, the next one gets error {answer['code']}: {answer['text']}")


for _field in ("versions", "client", "nonce"):
    RULES.add(f"hello without {_field} gets error 4", LACKS, _incomplete, without=_field)


@RULES.rule("a nonce has 16 bytes, else error 4", page="`nonce` (exactly 16 random bytes)")
def _(device: Device) -> None:
    with device.client() as client:
        for size in (0, 15, 17):
            client.turned_down("hello", codec.E_MALFORMED, versions=[1], client="check", nonce=bytes(size))


@RULES.rule("fields of another type get error 4", page=LACKS)
def _(device: Device) -> None:
    with device.client() as client:
        for change in ({"versions": 1}, {"client": 7}, {"nonce": "0123456789abcdef"}):
            fields = {"versions": [1], "client": "check", "nonce": bytes(16), **change}
            client.turned_down("hello", codec.E_MALFORMED, **fields)
    with device.session() as client:
        for op in ("ping", "cancel", "goodbye"):
            client.turned_down(op, codec.E_MALFORMED, session=str(client.session), request=1)
        client.turned_down("cancel", codec.E_MALFORMED, session=client.session, request="1")
        client.reset()


@RULES.in_session("ping, cancel and goodbye without their fields get error 4", page=LACKS)
def _(_: Device, client: Client) -> None:
    client.turned_down("ping", codec.E_MALFORMED)
    client.turned_down("cancel", codec.E_MALFORMED, session=client.session)
    client.turned_down("cancel", codec.E_MALFORMED, request=1)
    client.turned_down("goodbye", codec.E_MALFORMED)


@RULES.rule("an op that is not listed gets error 4", page="So does an `op` that is not listed.")
def _(device: Device) -> None:
    with device.client() as client:
        client.turned_down("dance", codec.E_MALFORMED)


@RULES.rule("any integer as id is repeated", page="`id` (an integer that the client chooses and the reply repeats)")
def _(device: Device) -> None:
    with device.client() as client:
        for number in (0, -1, -33, 255, 1 << 40, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1):
            client.ask("status", number=number)


@RULES.rule(
    "status tells device, holder, uptime and counters, also without a session",
    page="`status`: a map `status` with `device` (text), `holder` (text or nil), `uptime_s`, `counters` (a map of "
    "numbers), and anything else that the device wants to tell.",
)
def _(device: Device) -> None:
    with device.session("the holder") as holder, device.client("another one") as other:
        held = _status(other)
        if not isinstance(held["holder"], str) or holder.name not in held["holder"]:
            raise Broken(f"{holder.name!r} has the device, and the holder is {held['holder']!r}")
    with device.client() as client:
        free = _status(client)
        if free["holder"] is not None:
            raise Broken(f"nobody has the device, and the holder is {free['holder']!r}")


def _status(client: Client) -> dict[str, object]:
    status = client.told("status").get("status")
    if not isinstance(status, dict):
        raise Broken("there is no map `status`")
    if not isinstance(status.get("device"), str) or "holder" not in status:
        raise Broken(f"device (text) or holder is missing: {status}")
    if not codec.is_number(status.get("uptime_s")):
        raise Broken(f"uptime_s is {status.get('uptime_s')!r}")
    counters = status.get("counters")
    if not isinstance(counters, dict) or not all(map(codec.is_number, counters.values())):
        raise Broken(f"counters are {counters!r}, not a map of numbers")
    if not isinstance(status.get("problem"), str | None):
        raise Broken(f"problem is {status['problem']!r}, not text or nil")
    return status


@RULES.rule("ping of another session is not valid", page="Not valid: 0, 0, nil")
def _(device: Device) -> None:
    with device.session() as client, device.client() as other:
        client.reset()
        other.session = client.session ^ 1
        pong = other.ping()
        if (pong["valid"], pong["received"], pong["finished"], pong["busy"]) != (False, 0, 0, None):
            raise Broken(f"the pong says {pong}")


@RULES.rule("cancel and goodbye of another session get error 3", page=NO_SESSION)
def _(device: Device) -> None:
    with device.session() as client, device.client() as other:
        _not_theirs(client, other)
        if not client.ping()["valid"]:
            raise Broken("they have ended the session that holds the device")


def _left_alone(device: Device, *, disturb: Callable[[Client, Client], object], what: str) -> None:
    with device.session("the holder") as holder, device.client("another one") as other:
        device.must_keep_state(holder, lambda _: disturb(holder, other), what)


def _questions(holder: Client, other: Client) -> None:
    for client in (holder, other):
        client.ping()
        client.told("status")


def _turned_down_hellos(holder: Client, other: Client) -> None:
    _turned_down(other)
    for change, code in (
        ({"versions": [0]}, codec.E_VERSION),
        ({"nonce": bytes(15)}, codec.E_MALFORMED),
        ({"client": 7}, codec.E_MALFORMED),
    ):
        fields = {"versions": [1], "client": other.name, "nonce": other.nonce, **change}
        other.turned_down("hello", code, **fields)


def _not_theirs(holder: Client, other: Client) -> None:
    for session in (holder.session ^ 1, 0):
        # It is the holder's next request.
        other.turned_down("cancel", codec.E_NO_SESSION, session=session, request=holder.sent + 1)
        other.turned_down("goodbye", codec.E_NO_SESSION, session=session)


def _not_done(holder: Client, other: Client) -> None:
    for client in (holder, other):
        client.turned_down("dance", codec.E_MALFORMED)
        client.turned_down("release", codec.E_CONFIGURATION)
        client.turned_down("goodbye", codec.E_MALFORMED, session=str(holder.session))
        client.turned_down("cancel", codec.E_MALFORMED, session=holder.session, request=str(holder.sent + 1))


DISTURBANCES: dict[str, tuple[str, Callable[[Client, Client], object]]] = {
    "ping and status leave": (HELD, _questions),
    "the same hello again leaves": (SAME, lambda holder, _other: holder.hello()),
    "a hello that is refused leaves": (BUSY, _turned_down_hellos),
    "cancel and goodbye of another session leave": (NO_SESSION, _not_theirs),
    "control messages that cannot be done leave": (NOT_DONE, _not_done),
}
for _what, (_page, _disturb) in DISTURBANCES.items():
    what = _what.rpartition(" ")[0]
    RULES.add(f"{_what} the state of the holder alone", _page, _left_alone, disturb=_disturb, what=what)


@RULES.rule(
    "release of a device that does not hang gets error 17",
    page="`ok`; error 17 if it was not, error 2 while it still is",
)
def _(device: Device) -> None:
    with device.client() as client:
        client.turned_down("release", codec.E_CONFIGURATION)


@RULES.in_session(
    "after goodbye the session is void, and the device free",
    page="When the lease ends, by `goodbye` or by silence, the device goes to its safe state and the session is void.",
)
def _(device: Device, client: Client) -> None:
    client.goodbye()
    if client.ping()["valid"]:
        raise Broken("the session is still valid")
    client.turned_down("goodbye", codec.E_NO_SESSION, session=client.session)
    client.refused(codec.RESET, codec.E_NO_SESSION, batch=1)
    with device.session() as second:
        if second.session == client.session:
            raise Broken(f"the next client has the same session {second.session}")
