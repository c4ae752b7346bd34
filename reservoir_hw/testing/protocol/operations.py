"""What each operation does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import Client
from reservoir_hw.testing.protocol.device import Device
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import HELD, Rules

RULES = Rules("operations")

SHAPE = "shape: batch, steps or width do not fit, or are 0"
NAMED_ARRAYS = "**Named arrays** are a map from names to `[dtype, shape, data]`."
CONFIGURATION = "configuration: these arrays or weights do not fit the device"
KEPT = "A readout is kept until UPLOAD or the end of the session."
NOBODYS = codec.pack_named({"nobody's": np.zeros((1, 3), "f4")})


@RULES.in_session(
    "ATTACH leaves one sequence at rest, at step 0",
    page="It binds the session to the connection from which it came, and brings the device to rest for one sequence.",
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic")
    u = device.u()
    device.must_agree(client.run(u), client.from_rest(u), "the same RUN after ATTACH and after RESET", exact=True)


@RULES.in_session(
    "RESET brings to rest, at step 0", page="RESET sets the count to 0, RESTORE to the step in its header"
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic")
    u = device.u()
    first = client.from_rest(u)
    client.from_rest(device.u(seed=2))
    device.must_agree(first, client.from_rest(u), "the same RUN after RESET, with another RUN in between", exact=True)


@RULES.in_session("RESET to no sequence gets error 7", page=SHAPE)
def _(device: Device, client: Client) -> None:
    client.refused(codec.RESET, codec.E_SHAPE, batch=0)
    client.from_rest(device.u())


def _wrong_shape(device: Device, client: Client, *, batch: int = 0, steps: int = 0, width: int = 0) -> None:
    u = np.repeat(client.zeros("inputs", steps=3 + steps, wider=width), 1 + batch, axis=0)
    client.reset()
    client.failed(client.send_run(u), codec.E_SHAPE)
    client.run(device.u())


for _title, _more in (
    ("one sequence more than after RESET", {"batch": 1}),
    ("no sequence", {"batch": -1}),
    ("no step", {"steps": -3}),
    ("one input more", {"width": 1}),
    ("one input fewer", {"width": -1}),
):
    RULES.add_in_session(f"RUN of {_title} gets error 7", SHAPE, _wrong_shape, **_more)


@RULES.in_session(
    "after a refusal that loses nothing the state is kept",
    page="`state_lost` says whether the state is lost now, after this error.",
)
def _(device: Device, client: Client) -> None:

    def refused(step: int) -> None:
        for error in _refusals(device, client, step):
            if error["state_lost"] is not False:
                raise Broken(f"state_lost is {error['state_lost']!r} after error {error['code']}")

    device.must_keep_state(client, refused, "refused requests")


def _refusals(device: Device, client: Client, step: int) -> Iterator[dict[str, Any]]:
    """Errors that lose nothing, of each code and operation that can be provoked."""
    yield client.refused(0x7F, codec.E_NOT_SUPPORTED)
    yield client.refused(codec.RESET, codec.E_SHAPE, batch=0)
    yield client.failed(client.send_run(device.u()[:, :0], step=step), codec.E_SHAPE)
    yield client.failed(client.send_run(device.u(), step=step, flags=2), codec.E_CONFIGURATION)
    for value in device.outside_range():
        u = device.u(steps=3)
        u[0, -1, -1] = device.numbers(np.array(value))
        yield client.failed(client.send_run(u, step=step), codec.E_RANGE)
    if device.spec.get("max_batch"):
        yield client.refused(codec.RESET, codec.E_TOO_LARGE, batch=device.spec["max_batch"] + 1)
    if device.spec.get("snapshot"):
        yield client.refused(codec.RESTORE, codec.E_CONFIGURATION, payload=NOBODYS, batch=1)
    if device.spec.get("settable"):
        yield _refused_transition(client, wider=1)
    if device.declaration.get("readout"):
        unfit = {**_weights(client, "f4"), "bias": np.zeros(3, "f4")}
        yield client.refused(codec.READOUT, codec.E_CONFIGURATION, payload=codec.pack_named(unfit))


@RULES.in_session(
    "an error where nothing was driven has the step that is due",
    page="Where nothing was driven, it is the step that is due.",
)
def _(device: Device, client: Client) -> None:
    u = device.u()
    step = 0
    if device.is_held:
        client.run(u)
        step = u.shape[1]
    error = client.refused(codec.RESET, codec.E_SHAPE, batch=0)
    if error["step"] != step:
        raise Broken(f"the error has step {error['step']}, step {step} is due")


@RULES.in_session(
    "an operation that is not in the table gets error 10",
    page="not supported: no such operation, or not by this device",
)
def _(device: Device, client: Client) -> None:
    for operation in (0x00, 0x7F):
        client.refused(operation, codec.E_NOT_SUPPORTED)
    client.from_rest(device.u())


# ---- SNAPSHOT and RESTORE ---------------------------------------------------------------------------


def _snapshot(client: Client) -> dict[str, np.ndarray]:
    reply = client.call(codec.SNAPSHOT)
    arrays = codec.unpack_named(reply.payload)
    if not arrays:
        raise Broken("a snapshot has at least one array", reply.frames)
    return arrays


@RULES.in_session("SNAPSHOT answers with named arrays, and changes nothing", page=NAMED_ARRAYS)
def _(device: Device, client: Client) -> None:
    device.must_have("snapshot", "held")
    device.must_keep_state(client, lambda _: _snapshot(client), "SNAPSHOT")


@RULES.in_session(
    "RESTORE brings a state back, with the step in its header",
    page="batch, step; msgpack: named arrays, the first axis of each has batch rows",
)
def _(device: Device, client: Client) -> None:
    device.must_have("snapshot", "held")
    batch = device.batch(2)
    u = device.u(batch)
    client.from_rest(u)
    arrays = _snapshot(client)
    odd = [name for name, array in arrays.items() if array.shape[:1] != (batch,)]
    if odd:
        raise Broken(f"the first axis of {', '.join(odd)} has not {batch} rows")
    v = device.u(batch, seed=2)
    first = client.run(v, step=u.shape[1])
    for step in (u.shape[1], 1000):
        client.call(codec.RESTORE, codec.pack_named(arrays), batch=batch, step=step)
        what = f"the same RUN after a SNAPSHOT, and after its RESTORE to step {step}"
        device.must_agree(first, client.run(v, step=step), what, exact=True)


@RULES.in_session(
    "after RESTORE to large steps RUN goes on from there",
    page="RESET sets the count to 0, RESTORE to the step in its header",
)
def _(device: Device, client: Client) -> None:
    device.must_have("snapshot", "held")
    u = device.u()
    client.run(u)
    arrays = codec.pack_named(_snapshot(client))
    for bits in (16, 32, 48):
        step = (1 << bits) - u.shape[1] // 2
        client.call(codec.RESTORE, arrays, batch=1, step=step)
        client.run(u, step=step)
        client.run(u, step=step + u.shape[1])


@RULES.in_session("RESTORE with other rows than batch gets error 7", page=SHAPE)
def _(device: Device, client: Client) -> None:
    device.must_have("snapshot")
    payload = codec.pack_named(_snapshot(client))
    if device.batch(2) == 2:
        client.refused(codec.RESTORE, codec.E_SHAPE, payload=payload, batch=2)
    client.refused(codec.RESTORE, codec.E_SHAPE, payload=payload, batch=0)


@RULES.in_session("RESTORE of other arrays gets error 17", page=CONFIGURATION)
def _(device: Device, client: Client) -> None:
    device.must_have("snapshot")
    client.refused(codec.RESTORE, codec.E_CONFIGURATION, payload=NOBODYS, batch=1)


BAD_ARRAYS: dict[str, bytes] = {
    "that are no msgpack": b"\xc1",
    "in a list instead of a map": codec.to_msgpack([1, 2]),
    "without [dtype, shape, data]": codec.to_msgpack({"x": 3}),
    "of an unknown dtype": codec.to_msgpack({"x": ["f2", [1], bytes(2)]}),
    "with too few bytes": codec.to_msgpack({"x": ["f4", [1, 2], bytes(7)]}),
    "with a negative length": codec.to_msgpack({"x": ["f4", [-1], b""]}),
    "with nine axes": codec.to_msgpack({"x": ["f4", [1] * 9, bytes(4)]}),
    "with bytes behind the map": codec.to_msgpack({}) + b"\x00",
}


def _bad_arrays(device: Device, client: Client, *, payload: bytes) -> None:
    operations = [one for one in (codec.RESTORE, codec.UPLOAD, codec.READOUT) if device.offers(codec.SWITCHES[one])]
    if not operations:
        raise NotOffered("the device takes no named arrays")
    for operation in operations:
        fields = {"batch": 1} if operation == codec.RESTORE else {}
        client.refused(operation, codec.E_MALFORMED, payload=payload, **fields)
    client.from_rest(device.u())


for _title, _payload in BAD_ARRAYS.items():
    RULES.add_in_session(f"named arrays {_title} get error 4", NAMED_ARRAYS, _bad_arrays, payload=_payload)


# ---- TRANSITION, UPLOAD, READOUT --------------------------------------------------------------------


def _transition(client: Client, device: Device, u: np.ndarray, x: np.ndarray) -> np.ndarray:
    """States (batch, 1, nodes) as they travel; `u` and `x` are values."""
    rows = device.numbers(np.concatenate([u, x], axis=-1), "states")
    reply = client.call(codec.TRANSITION, rows.tobytes(), **client.fields_of(rows, "states"))
    return codec.numbers(reply.header, reply.payload)


@RULES.in_session(
    "TRANSITION gives the states that RUN gives",
    page="(batch, 1, inputs + nodes): input and state of each sequence side by side, all as `states` are declared",
)
def _(device: Device, client: Client) -> None:
    device.must_have("settable", "deterministic")
    u = device.u(steps=1 + device.batch(10))
    states = client.from_rest(u)
    given = device.values(u, "inputs")[0]
    after = _transition(client, device, given[1:, None], device.values(states)[0, :-1, None])
    device.must_agree(states[0, 1:], after[:, 0], "RUN, and TRANSITION from its states", counts=8)


@RULES.in_session(
    "TRANSITION leaves the state and the step alone",
    page="**TRANSITION** changes neither the state of the device nor the number of its next step.",
)
def _(device: Device, client: Client) -> None:
    device.must_have("settable")
    row = device.values(device.u(), "inputs")[:1, :1]
    x = np.zeros((1, 1, client.nodes))
    device.must_keep_state(client, lambda _: _transition(client, device, row, x), "TRANSITION")


@RULES.in_session("TRANSITION of a wrong width or of two steps gets error 7", page=SHAPE)
def _(device: Device, client: Client) -> None:
    device.must_have("settable")
    for steps, wider in ((1, -1), (1, 1), (2, 0)):
        _refused_transition(client, steps=steps, wider=wider)


def _refused_transition(client: Client, *, steps: int = 1, wider: int = 0) -> dict[str, Any]:
    rows = client.zeros("states", steps=steps, wider=wider)
    return client.refused(codec.TRANSITION, codec.E_SHAPE, payload=rows.tobytes(), **client.fields_of(rows, "states"))


@RULES.in_session("UPLOAD of arrays that do not fit gets error 17", page=CONFIGURATION)
def _(device: Device, client: Client) -> None:
    device.must_have("programmable")
    client.refused(codec.UPLOAD, codec.E_CONFIGURATION, payload=NOBODYS)


def _weights(client: Client, dtype: str) -> dict[str, np.ndarray]:
    random, shape = np.random.default_rng(3), (2, client.nodes)
    weights = random.uniform(-1, 1, shape) if dtype == "f4" else random.integers(-100, 100, shape)
    scale = random.uniform(0.01, 0.02, 2).astype("f4")
    return {"weights": weights.astype(dtype), "scale": scale, "bias": np.linspace(-1, 1, 2).astype("f4")}


def _outputs(device: Device, client: Client, *, dtype: str) -> None:
    device.must_have("readout", "deterministic")
    u = device.u(device.batch(2))
    states = client.from_rest(u)
    arrays = _weights(client, dtype)
    client.load_readout(arrays)
    # RESET keeps the readout.
    client.reset(len(u))
    outputs = client.run(u, flags=codec.OUTPUTS)
    weights, scale = arrays["weights"].astype(float), arrays["scale"].astype(float)
    due = scale * (device.values(states) @ weights.T) + arrays["bias"]
    # A device may compute them before it rounds its states.
    rounded = device.declaration["states"][1] * np.abs(weights).sum(axis=1) if states.dtype.kind == "i" else 0.0
    room = 1e-4 * np.abs(due).max() + scale * rounded
    if not (np.abs(outputs - due) <= room).all():
        where = tuple(map(int, np.unravel_index(int(np.argmax(np.abs(outputs - due) - room)), due.shape)))
        raise Broken(f"output {outputs[where]:g} at (sequence, step, output) {where}; {due[where]:g} is due")


for _dtype, _title in (("i1", "int8"), ("i2", "int16"), ("f4", "float32")):
    RULES.add_in_session(
        f"outputs of a readout with {_title} weights",
        "answer with outputs of the readout that READOUT has loaded: y = scale · (weights x) + bias",
        _outputs,
        dtype=_dtype,
    )


@RULES.in_session(
    "outputs without a READOUT get error 17",
    page="Without a READOUT this is error 17, also where `readout` is false.",
)
def _(device: Device, client: Client) -> None:
    client.failed(client.send_run(device.u(), flags=codec.OUTPUTS), codec.E_CONFIGURATION)


@RULES.in_session("READOUT leaves the state alone", page=HELD)
def _(device: Device, client: Client) -> None:
    device.must_have("readout")
    device.must_keep_state(client, lambda _: client.load_readout(_weights(client, "f4")), "READOUT")


@RULES.in_session("after a RUN with outputs RUN goes on from there", page=HELD)
def _(device: Device, client: Client) -> None:
    device.must_have("readout", "held")
    client.load_readout(_weights(client, "f4"))
    first, second = device.u(), device.u(seed=2)

    def after(flags: int) -> np.ndarray:
        client.reset()
        client.run(first, flags=flags)
        return client.run(second, step=first.shape[1])

    states, outputs = after(0), after(codec.OUTPUTS)
    device.must_agree(states, outputs, "the same RUN after one with states, and after one with outputs")


@RULES.in_session("a READOUT that is refused leaves the one before", page=KEPT)
def _(device: Device, client: Client) -> None:
    device.must_have("readout")
    u, fits = device.u(), _weights(client, "f4")
    client.load_readout(fits)
    client.reset()
    first = client.run(u, flags=codec.OUTPUTS)
    unfit = {"weights": -fits["weights"], "scale": 2 * fits["scale"], "bias": np.zeros(3, "f4")}
    client.refused(codec.READOUT, codec.E_CONFIGURATION, payload=codec.pack_named(unfit))
    client.reset()
    second = client.run(u, flags=codec.OUTPUTS)
    device.must_agree(first, second, "outputs before and after a READOUT that was refused")


@RULES.rule("a readout ends with the session", page=KEPT)
def _(device: Device) -> None:
    device.must_have("readout")
    with device.session() as client:
        client.load_readout(_weights(client, "f4"))
    with device.session() as client:
        client.failed(client.send_run(device.u(), flags=codec.OUTPUTS), codec.E_CONFIGURATION)


@RULES.in_session("READOUT that does not fit gets error 17", page=CONFIGURATION)
def _(device: Device, client: Client) -> None:
    device.must_have("readout")
    fits = _weights(client, "f4")
    for change in (
        {"weights": np.zeros((2, client.nodes + 1), "f4")},
        {"weights": np.zeros((2, client.nodes), "i8")},
        {"bias": np.zeros(3, "f4")},
        {"scale": np.zeros(1, "f4")},
    ):
        client.refused(codec.READOUT, codec.E_CONFIGURATION, payload=codec.pack_named({**fits, **change}))
    client.refused(codec.READOUT, codec.E_CONFIGURATION, payload=codec.pack_named({"weights": fits["weights"]}))
    client.from_rest(device.u())


# ---- SET and GET ------------------------------------------------------------------------------------

KNOBS = "a device that declares none answers SET and GET of any name with error 10"


def _knobs(device: Device) -> dict[str, dict[str, Any]]:
    knobs = device.spec.get("knobs") or {}
    if not knobs:
        raise NotOffered("the device declares no knobs")
    return knobs


@RULES.in_session("SET and GET of what is not there get error 10", page=KNOBS)
def _(device: Device, client: Client) -> None:
    client.refused(codec.SET, codec.E_NOT_SUPPORTED, payload=codec.to_msgpack({"nobody's knob": 0.0}))
    client.refused(codec.GET, codec.E_NOT_SUPPORTED, payload=codec.to_msgpack({"names": ["nobody's knob"]}))
    client.from_rest(device.u())


@RULES.rule(
    "SET turns a knob: another fingerprint, and the state is lost until RESET",
    page="The declaration that SET is answered with has another fingerprint, and the state is lost",
)
def _(device: Device) -> None:
    for name, knob in _knobs(device).items():
        low, high = knob["limits"]
        with device.session() as client:
            before = client.declaration["spec"]["identity"]
            at = before.get("knobs", {}).get(name)
            value = high if at != high else low
            told = client.asked(codec.SET, codec.to_msgpack({name: value}))["spec"]["identity"]
            if told.get("knobs", {}).get(name) != value or told["fingerprint"] == before["fingerprint"]:
                raise Broken(f"after SET {name} = {value:g} the identity is {told}")
            client.failed(client.send_run(device.u()), codec.E_STATE_LOST)
            client.reset()
            client.run(device.u())
        with device.session() as client:
            if client.declaration["spec"]["identity"] != before:
                raise Broken(f"the next client gets {name} as the last one has left it")


@RULES.rule(
    "SET of a value beyond the limits gets error 8, and nothing is turned",
    page="A value beyond them, or none that is a number, is error 8, and nothing is turned.",
)
def _(device: Device) -> None:
    for name, knob in _knobs(device).items():
        low, high = knob["limits"]
        with device.session() as client:

            def refused(_: int, name: str = name, values: tuple[Any, ...] = (low - 1, high + 1, np.nan, "x")) -> None:
                for value in values:
                    client.refused(codec.SET, codec.E_RANGE, payload=codec.to_msgpack({name: value}))

            device.must_keep_state(client, refused, "SET of values that are refused")


@RULES.in_session("GET answers with a number for each name, and changes nothing", page="GET changes nothing.")
def _(device: Device, client: Client) -> None:
    names = [*(device.spec.get("knobs") or {}), *(device.spec.get("monitors") or {})]
    if not names:
        raise NotOffered("the device declares neither knobs nor monitors")

    def read(_: int) -> None:
        found = client.asked(codec.GET, codec.to_msgpack({"names": names}))
        if set(found) != set(names) or not all(one is None or codec.is_number(one) for one in found.values()):
            raise Broken(f"GET of {names} was answered with {found}")

    device.must_keep_state(client, read, "GET")
