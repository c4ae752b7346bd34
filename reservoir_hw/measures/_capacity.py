"""How well linear readouts of the states compute many functions of past inputs: the engine of both capacities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reservoir_hw.measures._basis import StateBasis
from reservoir_hw.measures._blocks import Block, Recording
from reservoir_hw.measures._statistics import chi2_quantile

# Targets that are made and projected at once.
_TARGETS = 512

# Variance of a target below this, relative to its mean square, is rounding.
_CONSTANT = 1e-12


class Targets:
    """Products of polynomials of delayed inputs.

    Parameters
    ----------
    polynomials
        (degrees + 1, channels, sequences, time).
    factors
        (targets, factors, 3): degree, channel and delay of each factor. Factors of degree 0 are 1 and come last.
    """

    def __init__(self, polynomials: np.ndarray, factors: np.ndarray) -> None:
        self._polynomials = polynomials
        self._factors = factors
        needed = factors[:, : np.count_nonzero(factors[:, :, 0], axis=1).max()]
        self._used, places = np.unique(needed.reshape(-1, 3), axis=0, return_inverse=True)
        self._places = places.reshape(needed.shape[:2])

    def __len__(self) -> int:
        return len(self._factors)

    def only(self, wanted: np.ndarray) -> Targets:
        """Some of the targets, by a truth value for each or by their numbers."""
        return Targets(self._polynomials, self._factors[wanted])

    def columns(self, block: Block) -> np.ndarray:
        """The targets over the steps of a block: (targets, rows)."""
        length = len(block.states)
        atoms = np.empty((len(self._used), length))
        for atom, (degree, channel, delay) in zip(atoms, self._used, strict=True):
            begin = block.first - delay
            atom[:] = self._polynomials[degree, channel, block.sequence, begin : begin + length]
        columns = atoms[self._places[:, 0]]
        for place in self._places.T[1:]:
            columns *= atoms[place]
        return columns


@dataclass(frozen=True, eq=False)
class Capacities:
    """What `capacities` found for each target.

    `raw` (targets,) is the squared multiple correlation, `chance` (targets,) what a useless target has on average,
    `threshold` (targets,) what such a target exceeds rarely,
    `corrected` (targets,) the capacity of the targets above it, less what fitting to a finite recording adds,
    and 0 for the others. `influence` (groups, rows), with mean 0, is by how much each step moves the sum over a group,
    times the number of steps. `targets` over the steps of `recording` are what it was found of.
    """

    recording: Recording
    targets: Targets
    raw: np.ndarray
    chance: np.ndarray
    threshold: np.ndarray
    corrected: np.ndarray
    influence: np.ndarray


@dataclass(frozen=True, eq=False)
class _Fit:
    """Targets projected on the orthonormal states; arrays have one row for each target."""

    projection: np.ndarray
    mean: np.ndarray
    power: np.ndarray
    chance: np.ndarray

    @property
    def raw(self) -> np.ndarray:
        return (self.projection**2).sum(axis=1) / self.power

    def only(self, wanted: np.ndarray) -> _Fit:
        return _Fit(*(array[wanted] for array in (self.projection, self.mean, self.power, self.chance)))


def capacities(
    recording: Recording, basis: StateBasis, targets: Targets, groups: np.ndarray, significance: float
) -> Capacities:
    """Capacities of all targets (Dambre et al. 2012), with what chance alone would give.

    With Q the orthonormal states, y a centred target and e its residual, the raw capacity is C = |Qᵀy|² / |y|². Even
    a target the states know nothing of has one: on average Σ_t h_t y_t² / |y|², where h_t = |Q_t|² is the leverage of
    step t. That is rank / steps where states and target are independent, and more where they share an input
    (White 1980). Scaled to this mean, C follows nearly a chi-square distribution with `rank` degrees of freedom; the
    threshold is its quantile at 1 - `significance`.

    The excess Σ_t h_t e_t² / |y|² is taken off what counts: the correction of an R² for its degrees of freedom
    (Wherry 1931), in a form that does not need e to be independent of the states.

    The weights are at their optimum, so to first order step t moves C by [(1 - C) y_t² - e_t²] / |y|²: its influence
    (Hampel 1974). `groups` (targets,) numbers the group that a target belongs to.
    """
    quantile = chi2_quantile(1 - significance, basis.rank) / basis.rank
    raw, chance, corrected = np.zeros((3, len(targets)))
    influence = np.zeros((groups.max() + 1, recording.rows))
    for begin in range(0, len(targets), _TARGETS):
        chosen = np.arange(begin, min(begin + _TARGETS, len(targets)))
        some = targets.only(chosen)
        fit = _project(recording, basis, some)
        raw[chosen], chance[chosen] = fit.raw, fit.chance
        above = fit.raw > quantile * fit.chance
        if above.any():
            counted = chosen[above]
            excess = _excess(recording, basis, some.only(above), fit.only(above), groups[counted], influence)
            corrected[counted] = np.maximum(raw[counted] - excess, 0.0)
    return Capacities(recording, targets, raw, chance, quantile * chance, corrected, influence)


def _project(recording: Recording, basis: StateBasis, targets: Targets) -> _Fit:
    products = np.zeros((len(targets), recording.nodes))
    total, squares, weighted = np.zeros((3, len(targets)))
    for block in recording.blocks():
        y = targets.columns(block)
        products += y @ basis.centred(block.states)
        total += y.sum(axis=1)
        y *= y
        squares += y.sum(axis=1)
        weighted += y @ basis.leverage[block.rows]
    power = squares - total**2 / recording.rows
    # A target that is constant over these rows has no capacity.
    power[power <= _CONSTANT * squares] = np.inf
    return _Fit(products @ basis.weights, total / recording.rows, power, weighted / power)


def _excess(
    recording: Recording, basis: StateBasis, targets: Targets, fit: _Fit, groups: np.ndarray, influence: np.ndarray
) -> np.ndarray:
    """The excess of each target; adds to `influence` what their steps tell."""
    excess = np.zeros(len(targets))
    scale = (groups == np.arange(len(influence))[:, None]) * (recording.rows / fit.power)
    readout = fit.projection @ basis.weights.T
    for block in recording.blocks():
        y = targets.columns(block) - fit.mean[:, None]
        e = y - readout @ basis.centred(block.states).T
        y *= y
        e *= e
        excess += e @ basis.leverage[block.rows]
        influence[:, block.rows] += (scale * (1 - fit.raw)) @ y - scale @ e
    return excess / fit.power
