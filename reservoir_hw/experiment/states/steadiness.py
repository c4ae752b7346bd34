"""Whether a device answers in the last tenth of a long drive as it did in the first, from sums that run along."""

from __future__ import annotations

from typing import Any

import numpy as np

from reservoir_hw.core import arrays
from reservoir_hw.core.statistics import t_quantile

# Blocks of a drive, and steps of the first ones. When there are twice as many, neighbours become one.
_BLOCKS = 20
_SHORTEST = 32
# What is known of a step: inputs of so many steps, and squares of the last of them, of so many channels.
_DELAYS, _SQUARES, _CHANNELS = 8, 2, 4
_NODES = 64
# How often a steady device is warned of, and inputs that are alike are taken for others.
_FALSE_ALARMS, _OTHERS = 1e-3, 1e-3
# A node of whose answer the fit explains less has no gain.
_EXPLAINED = 0.1
# Smaller changes are no matter, however sure they are. Mean and noise are in standard deviations of a node.
_WORTH_SAYING = {"gain": 0.02, "mean": 0.05, "noise": 0.05}


class Steadiness:
    """Sums over inputs and states of a drive, in blocks, from which the answer to the inputs is fitted.

    `look` at chunks in the order of time; `warnings` compares the last tenth with the first. The slope of the line from
    the fit to the states is the gain, and what it leaves is noise. The mean is held against that of the fit. So other
    inputs are not taken for another device where the device is linear; where the inputs of the two ends are not alike,
    nothing is said. The blocks between tell what is chance. Of more nodes than 64, so many are looked at.
    """

    def __init__(self, nodes: int) -> None:
        self._chosen = np.unique(np.linspace(0, nodes - 1, min(nodes, _NODES)).astype(int))
        self._nodes = nodes
        self._blocks: list[np.ndarray] = []
        self._length = _SHORTEST

    def look(self, inputs: np.ndarray, states: Any) -> None:
        """Add inputs (batch, time, channels) and their states (batch, time, nodes)."""
        if inputs.shape[1] < _DELAYS:
            return
        seen = arrays.as_numpy(states)[:, _DELAYS - 1 :, self._chosen].astype(np.float64)
        rows = np.concatenate([_known(inputs), seen], axis=2)
        length = self._length
        for begin in range(0, rows.shape[1], length):
            piece = rows[:, begin : begin + length].reshape(-1, rows.shape[2])
            self._add(piece.T @ piece)

    def _add(self, sums: np.ndarray) -> None:
        if self._blocks and self._blocks[-1][0, 0] < self._length:
            self._blocks[-1] = self._blocks[-1] + sums
        elif len(self._blocks) < 2 * _BLOCKS:
            self._blocks.append(sums)
        else:
            self._blocks = [one + other for one, other in zip(self._blocks[::2], self._blocks[1::2], strict=True)]
            self._length *= 2
            self._add(sums)

    def warnings(self) -> list[str]:
        """A sentence where gain, mean or noise of nodes changed from the first to the last tenth."""
        blocks = self._blocks[:-1] if self._blocks and self._blocks[-1][0, 0] < self._length else self._blocks
        if len(blocks) < _BLOCKS:
            return []
        sums, known = np.stack(blocks), len(blocks[0]) - len(self._chosen)
        channels = (known - 1) // (_DELAYS + _SQUARES)
        # Inputs of the step itself, and their squares.
        latest = [*range(1, 1 + channels), *range(1 + _DELAYS * channels, 1 + (_DELAYS + 1) * channels)]
        change, half = _ends(sums[:, 0, latest] / sums[:, 0, :1], _OTHERS / len(latest))
        if (np.abs(change) > half).any():
            return []
        found = []
        courses = _courses(sums, known)
        for what, values in courses.items():
            change, half = _ends(values, _FALSE_ALARMS / (len(courses) * values.shape[1]))
            changed = (np.abs(change) > half) & (np.abs(change) > _WORTH_SAYING[what])
            if changed.any():
                found.append(self._said(what, change, half, changed))
        if not found:
            return []
        return [
            f"the device drifts: from the first to the last tenth {', '.join(found)}. Let it warm up, drive "
            "it for a shorter time, or see what `reservoir-hw measure --only drift` says"
        ]

    def _said(self, what: str, change: np.ndarray, half: np.ndarray, changed: np.ndarray) -> str:
        most = int(np.where(changed, np.abs(change), -1.0).argmax())
        by = f"{change[most]:+.2g} ± {half[most]:.1g} standard deviations"
        if what == "gain":
            by = f"{100 * change[most]:+.2g} ± {100 * half[most]:.1g} %"
        of = f"of {len(change)} nodes" if len(change) == self._nodes else f"of the {len(change)} nodes looked at"
        return f"the {what} of {np.count_nonzero(changed)} {of} changed (node {self._chosen[most]} by {by})"


def _known(inputs: np.ndarray) -> np.ndarray:
    """What is known of each step from the first on that has all delays: (batch, time, features), the first is 1."""
    channels = np.unique(np.linspace(0, inputs.shape[2] - 1, min(inputs.shape[2], _CHANNELS)).astype(int))
    u = np.asarray(inputs)[..., channels].astype(np.float64)
    steps = u.shape[1] - _DELAYS + 1
    delayed = [u[:, _DELAYS - 1 - delay : _DELAYS - 1 - delay + steps] for delay in range(_DELAYS)]
    squares = [delayed[delay] ** 2 for delay in range(_SQUARES)]
    return np.concatenate([np.ones((len(u), steps, 1)), *delayed, *squares], axis=2)


def _courses(sums: np.ndarray, known: int) -> dict[str, np.ndarray]:
    """Gain of each node in each block, how far its mean is from the fit, and its noise, (blocks, nodes)."""
    whole = sums.sum(axis=0)
    fit = np.linalg.lstsq(whole[:known, :known], whole[:known, known:], rcond=1e-10)[0]
    count = sums[:, :1, 0]
    mean, fitted = sums[:, 0, known:] / count, sums[:, 0, :known] @ fit / count
    together = np.einsum("bfn,fn->bn", sums[:, :known, known:], fit) / count - mean * fitted
    of_fit = np.einsum("fn,bfg,gn->bn", fit, sums[:, :known, :known], fit, optimize=True) / count - fitted**2
    power = np.einsum("bnn->bn", sums[:, known:, known:]) / count - mean**2
    everything = np.diag(whole)[known:] / whole[0, 0] - (whole[0, known:] / whole[0, 0]) ** 2
    moves = everything > 1e-18 * np.diag(whole)[known:] / whole[0, 0]
    scale = np.sqrt(np.where(moves, everything, np.inf))
    explained = of_fit.mean(axis=0) > _EXPLAINED * scale**2
    gain = np.where(explained, together / np.maximum(of_fit, np.finfo(np.float64).tiny), 1.0)
    left = np.maximum(power - 2 * gain * together + gain**2 * of_fit, 0.0)
    return {"gain": gain, "mean": (mean - fitted) / scale, "noise": np.sqrt(left) / scale}


def _ends(values: np.ndarray, probability: float) -> tuple[np.ndarray, np.ndarray]:
    """Change of (blocks, ·) from the first to the last tenth, and how much of it may be chance, but for `probability`.

    Chance is the scatter of blocks about their line. Where neighbours are alike in it, there are fewer that count.
    """
    blocks, end = len(values), len(values) // 10
    change = values[-end:].mean(axis=0) - values[:end].mean(axis=0)
    time = np.arange(blocks) - (blocks - 1) / 2
    left = values - values.mean(axis=0) - time[:, None] * (time @ values / (time @ time))
    power = (left**2).sum(axis=0)
    alike = (left[1:] * left[:-1]).sum(axis=0) / np.maximum(power, np.finfo(np.float64).tiny)
    alike = np.clip(alike + 1 / blocks, 0.0, 0.9)
    scatter = np.sqrt(power / (blocks - 2) * (1 + alike) / (1 - alike))
    return change, t_quantile(1 - probability / 2, blocks - 2) * scatter * np.sqrt(2 / end) + 1e-9
