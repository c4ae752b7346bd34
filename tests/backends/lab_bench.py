"""A lab's glue code, as test_python.py finds it in the current folder."""

from __future__ import annotations

import signal
import threading

import numpy as np

calls: list[str] = []
charge = 0.0
bias = 0.0
released = threading.Event()
setting = np.zeros(1)


def setup() -> dict[str, str]:
    calls.append("setup")
    return {"supply": "3.3 V"}


def set_bias(bias_v: float) -> dict[str, float]:
    global bias
    bias = bias_v
    return {"bias_v": bias}


def to_rest() -> None:
    global charge
    calls.append("reset")
    charge = 0.0


def close() -> None:
    calls.append("close")


def hangs_on_close() -> None:
    released.wait()


def stop() -> None:
    calls.append("stop")
    released.set()


def gets_an_interrupt_on_close() -> None:
    signal.raise_signal(signal.SIGINT)
    calls.append("close")


def step(u: np.ndarray) -> list[float]:
    global charge
    charge = charge / 2 + u[0]
    return [charge, charge**2]


def amplified(u: np.ndarray, gain: float) -> list[float]:
    return [gain * u[0], bias]


def waits(u: np.ndarray) -> list[float]:
    if abs(u[0]) < 0.1:
        released.wait()
    return step(u)


def burst(u: np.ndarray) -> np.ndarray:
    if np.all(u == 7):
        raise ValueError("seven")
    return np.array([step(row) for row in u])


def apply(u: np.ndarray) -> None:
    global setting
    calls.append("set")
    setting = u


def sweep() -> None:
    calls.append("sweep")


def read() -> list[float]:
    calls.append("read")
    return step(setting)


def loses_its_cable(u: np.ndarray) -> list[float]:
    if u[0] > 0.9:
        raise ConnectionResetError("unplugged")
    return step(u)


def wrong_width(u: np.ndarray) -> list[float]:
    return [float(u[0])]


def not_numbers(u: np.ndarray) -> list[str]:
    return ["a", "b"]


def times_out(u: np.ndarray) -> list[float]:
    raise TimeoutError("no trigger")


def reuses_its_buffer(u: np.ndarray) -> np.ndarray:
    _buffer[: len(u), 0] = u[:, 0]
    u *= 0
    return _buffer[: len(u)]


def leaves(u: np.ndarray) -> list[float]:
    raise SystemExit(5)


def lock_in(u: np.ndarray) -> list[complex]:
    return [1 + 2j, 0j]


def prints(u: np.ndarray) -> np.ndarray:
    print("hello from the lab")
    return np.maximum(u, 0) @ np.ones((u.shape[1], 2)) + np.arange(2)


def prints_and_fails_to_close() -> None:
    raise ValueError("the shutter is stuck")


_buffer = np.zeros((100, 2))
