"""What the device says about itself, and whether it is so."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from reservoir_hw.testing.protocol import codec
from reservoir_hw.testing.protocol.client import ONE_STEP, Client, name_of
from reservoir_hw.testing.protocol.device import LARGEST_BATCH, Device
from reservoir_hw.testing.protocol.ledger import Broken, NotOffered
from reservoir_hw.testing.protocol.rules import Rules

RULES = Rules("declaration")

IN_RANGE = "input range: not finite, or outside `input_range`"
IDENTITY_TEXTS = ("vendor", "model", "serial", "firmware", "content", "fingerprint")


@RULES.in_session(
    "the required keys are there, and have the right types",
    page="ATTACH answers with a map. Only these may be missing in it: `readout` and `finite`, which are then false, "
    "`whole_run_bytes`, which is then 0, and `settings`, `tolerances`, `label` and `provenance`, which are then empty.",
)
def _(_: Device, client: Client) -> None:
    declaration = client.declaration
    if not isinstance(declaration.get("chunked"), bool):
        raise Broken(f"chunked is {declaration.get('chunked')!r}")
    for name in ("readout", "finite"):
        if not isinstance(declaration.get(name, False), bool):
            raise Broken(f"{name} is {declaration[name]!r}")
    if type(declaration.get("whole_run_bytes", 0)) is not int or declaration.get("whole_run_bytes", 0) < 0:
        raise Broken(f"whole_run_bytes is {declaration['whole_run_bytes']!r}")
    if not isinstance(declaration.get("label", ""), str) or not isinstance(declaration.get("provenance", {}), dict):
        raise Broken("label is no text, or provenance no map")
    settings, tolerances = declaration.get("settings", {}), declaration.get("tolerances", {})
    if not isinstance(settings, dict) or not isinstance(tolerances, dict):
        raise Broken("settings or tolerances are no maps")
    if not set(tolerances) <= set(settings) or not all(map(codec.is_number, tolerances.values())):
        raise Broken(f"tolerances {tolerances} are no numbers for the settings {sorted(settings)}")


@RULES.in_session(
    "the encodings of inputs and states are dtypes of the table, floats with scale 1",
    page="`[dtype, scale]` of RUN's requests and replies, dtype as in the header",
)
def _(_: Device, client: Client) -> None:
    for name in ("inputs", "states"):
        dtype, scale = client.declaration[name]
        if not codec.is_number(scale) or (dtype in (codec.F4, codec.F8) and scale != 1):
            raise Broken(f"{name} are [{dtype}, {scale}]")


@RULES.in_session(
    "the spec has widths and an identity",
    page="Only `inputs`, `nodes` and `identity` (with `vendor`, `model`, `simulated`) are required.",
)
def _(_: Device, client: Client) -> None:
    identity = client.spec.get("identity")
    if not isinstance(identity, dict):
        raise Broken(f"identity is {identity!r}")
    missing = [name for name in ("vendor", "model", "simulated") if name not in identity]
    if missing:
        raise Broken(f"identity lacks {', '.join(missing)}")
    odd = [name for name in IDENTITY_TEXTS if not isinstance(identity.get(name, ""), str)]
    if odd or not isinstance(identity["simulated"], bool):
        raise Broken(f"identity has no texts, or simulated is not true or false: {identity}")


@RULES.in_session("what else the spec says is of the right type", page="| key of `spec` | |")
def _(_: Device, client: Client) -> None:
    spec = client.declaration["spec"]
    for name, (due, fits) in codec.SPEC.items():
        if name in spec and not fits(spec[name]):
            raise Broken(f"{name} is {spec[name]!r}, not {due}")


@RULES.in_session("one step goes into a frame", page=ONE_STEP)
def _(_device: Device, _client: Client) -> None:
    """`Client.declared` has refused the session of a device where it does not."""


@RULES.rule(
    "the identity is the same for the next client",
    page="text that changes with the device, its weights and the values of its knobs, but not with its address or its "
    "calibration",
)
def _(device: Device) -> None:
    with device.session() as client:
        first = client.spec["identity"], client.inputs, client.nodes
    with device.session() as client:
        second = client.spec["identity"], client.inputs, client.nodes
        if first != second:
            raise Broken(f"first {first}, then {second}")


@RULES.in_session(
    "deterministic: the same inputs after RESET give the same states",
    page="whether the same inputs after RESET give the same states",
)
def _(device: Device, client: Client) -> None:
    device.must_have("deterministic")
    u = device.u()
    device.must_agree(client.from_rest(u), client.from_rest(u), "the same RUN after RESET, twice", exact=True)


@RULES.in_session("states lie in state_range", page="`input_range`, `state_range`")
def _(device: Device, client: Client) -> None:
    if device.spec.get("state_range") is None:
        raise NotOffered("the device declares no state_range")
    low, high = device.spec["state_range"]
    states = device.values(client.from_rest(device.u(steps=100)))
    room = 1e-6 * (high - low)
    if not ((low - room <= states) & (states <= high + room)).all():
        raise Broken(f"states from {states.min():g} to {states.max():g} outside [{low:g}, {high:g}]")


@RULES.in_session("an input outside input_range gets error 8", page=IN_RANGE)
def _(device: Device, client: Client) -> None:
    _must_have_range(device)
    outside = device.outside_range()
    if not outside:
        raise NotOffered("inputs as they travel cannot leave input_range")
    for value in outside:
        _out_of_range(device, client, device.numbers(np.array(value)))


def _must_have_range(device: Device) -> None:
    if device.spec.get("input_range") is None:
        raise NotOffered("the device declares no input_range")


def _out_of_range(device: Device, client: Client, number: np.ndarray) -> None:
    """Such a number gets error 8, whichever sequence, step and input it is."""
    batch = device.batch(2)
    for where in ((0, 0, 0), (0, 1, -1), (-1, -1, 0)):
        u = device.u(batch, steps=3)
        u[where] = number
        client.reset(batch)
        client.failed(client.send_run(u), codec.E_RANGE)


@RULES.in_session(
    "the ends of input_range are taken",
    page=IN_RANGE,
)
def _(device: Device, client: Client) -> None:
    _must_have_range(device)
    u = device.u(steps=2)
    for t, end in enumerate(device.ends_of_range()[: u.shape[1]]):
        u[:, t] = end
    client.from_rest(u)


def _not_finite(device: Device, client: Client, *, value: float) -> None:
    number = device.numbers(np.array(0.0))
    if number.dtype.kind == "i":
        raise NotOffered("inputs travel as integers")
    _out_of_range(device, client, np.array(value, number.dtype))


for _name, _value in (("NaN", math.nan), ("infinity", math.inf)):
    RULES.add_in_session(f"{_name} as an input gets error 8", IN_RANGE, _not_finite, value=_value)


@RULES.in_session("max_batch sequences are driven at once", page="sequences driven at once; nil: any number.")
def _(device: Device, client: Client) -> None:
    largest = min(device.spec.get("max_batch") or 5, LARGEST_BATCH)
    client.from_rest(device.u(batch=largest, steps=2))


@RULES.in_session("more than max_batch sequences get error 9", page="More sequences get error 9.")
def _(device: Device, client: Client) -> None:
    largest = device.spec.get("max_batch")
    if largest is None:
        raise NotOffered("the device declares max_batch: nil")
    client.refused(codec.RESET, codec.E_TOO_LARGE, batch=largest + 1)
    client.from_rest(device.u())


@RULES.in_session(
    "a reply that would be larger than max_frame_bytes gets error 9",
    page="too large: more than a declared limit (`max_frame_bytes` of the reply, `max_batch`, `whole_run_bytes`)",
)
def _(device: Device, client: Client) -> None:
    inputs, states = (np.dtype(codec.NUMBERS[device.declaration[name][0]]).itemsize for name in ("inputs", "states"))
    largest = device.welcome["max_frame_bytes"]
    steps = largest // (states * device.spec["nodes"]) + 1
    size = steps * inputs * device.spec["inputs"]
    if size > largest:
        raise NotOffered("the inputs of such a run would not go into a frame either")
    if size > 64 << 20:
        raise NotOffered(f"it would take inputs of {size >> 20} MiB")
    low, high = device.input_range
    u = np.full((1, steps, client.inputs), device.numbers(np.array((low + high) / 2)))
    client.failed(client.send_run(u), codec.E_TOO_LARGE)


@RULES.in_session(
    "chunked: false refuses more chunks with error 10, and the state is lost",
    page='A refused RUN with "more chunks follow" always loses the state, because the next chunks were meant to '
    "continue it.",
)
def _(device: Device, client: Client) -> None:
    if device.is_chunked:
        raise NotOffered("the device declares chunked: true")
    if device.collects:
        raise NotOffered("the device declares whole_run_bytes")
    client.failed(client.send_run(device.u(), flags=codec.MORE), codec.E_NOT_SUPPORTED, loses=True)
    client.failed(client.send_run(device.u()), codec.E_STATE_LOST)


NOT_BY_THIS = (
    "not supported: no such operation, or not by this device (also: more chunks where `chunked` is false and "
    "`whole_run_bytes` is 0)"
)


def _undeclared(device: Device, client: Client, *, name: str, operations: Sequence[int]) -> None:
    if device.offers(name):
        raise NotOffered(f"the device declares {name}: true")
    for operation in operations:
        fields, payload = client.request(operation)
        client.refused(operation, codec.E_NOT_SUPPORTED, payload=payload, **fields)
    client.from_rest(device.u())


for _name in dict.fromkeys(codec.SWITCHES.values()):
    _operations = [operation for operation, switch in codec.SWITCHES.items() if switch == _name]
    _refused = f"{_name}: false refuses {' and '.join(map(name_of, _operations))} with error 10"
    RULES.add_in_session(_refused, NOT_BY_THIS, _undeclared, name=_name, operations=_operations)
