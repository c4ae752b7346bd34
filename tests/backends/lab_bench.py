"""A lab's glue code, as test_python.py finds it in the current folder."""

from __future__ import annotations

import numpy as np

calls: list[str] = []
charge = 0.0
setting = np.zeros(1)


def setup() -> dict[str, str]:
    calls.append("setup")
    return {"supply": "3.3 V"}


def to_rest() -> None:
    global charge
    calls.append("reset")
    charge = 0.0


def close() -> None:
    calls.append("close")


def step(u: np.ndarray) -> list[float]:
    global charge
    charge = charge / 2 + u[0]
    return [charge, charge**2]


def burst(u: np.ndarray) -> np.ndarray:
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
