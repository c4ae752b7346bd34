"""How the nodes of a simulated network are linked: what a configuration can ask for, and the matrix it draws.

W[i, j] is the weight with which node i listens to node j. A topology says which entries are links, and
where its definition fixes them, their weights; it draws the others. Only integers and elementary operations that are
rounded correctly everywhere are used: a seed means the same matrix on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from reservoir_hw.core.configuration import Config
from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.networks.random_matrices import (
    Entries,
    FloatArray,
    Matrix,
    Positions,
    draw_links,
    draw_matrix,
    draw_values,
    matrix_at,
    perron_root,
    scale_to,
    spectral_radius,
)

# Drawing options of a network that mean something to some topologies only.
_OPTIONS = ("connectivity", "connections_per_node", "weight_distribution", "spectral_radius")
_VALUES = frozenset({"weight_distribution", "spectral_radius"})

# Columns of an orthogonal matrix that are computed together: they and their scratch fit the second-level cache.
_STRIP = 128


class _Topology(Config):
    kind: Any

    uses: ClassVar[frozenset[str]] = _VALUES
    """Which of the network's drawing options mean something here."""

    radius: ClassVar[float | None] = None
    """The spectral radius before any scaling, where the structure decides it."""

    def check(self, nodes: int | None, given: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` if the nodes are too few, or a drawing option was given that means nothing here.

        `given` holds what was asked for by name, other options too; None is the same as not given.
        """
        for option in [option for option in _OPTIONS if given.get(option) is not None and option not in self.uses]:
            if option == "spectral_radius":
                raise ConfigurationError(
                    f"spectral_radius cannot scale topology: {self.kind}, whose spectral radius is 0 at any weight; "
                    "leave spectral_radius out (null) and give the scale as topology: "
                    f"{{kind: {self.kind}, weight: ...}}"
                )
            others = sorted(kind for kind, model in _KINDS.items() if option in model.uses)
            raise ConfigurationError(
                f"{option} means nothing to topology: {self.kind}; remove it, or choose a topology that uses it "
                f"({', '.join(others)})"
            )
        links = given.get("connections_per_node")
        if links is not None and given.get("connectivity") is not None:
            raise ConfigurationError("give connectivity or connections_per_node, not both")
        if nodes is not None:
            self._check_nodes(nodes)
        if nodes is not None and links is not None and not 0 < links <= nodes:
            raise ConfigurationError(f"connections_per_node must lie in 1..{nodes} (the nodes), it is {links}")

    def draw(self, nodes: int, links: np.random.Generator, values: np.random.Generator, entries: Entries) -> Matrix:
        """The recurrent matrix (nodes × nodes) before any scaling, dense or CSR: what is quicker to drive with.

        `links` and `values` are the streams of the links and of their weights. `entries` holds drawing options of
        `draw_weights`; each topology takes from it what it does not fix itself.
        """
        raise NotImplementedError

    def expected_links(self, nodes: int, connectivity: float | None, per_row: int | None) -> int:
        """How many weights a matrix will have, about, without drawing it; all of them unless a topology knows better.

        `connectivity` and `per_row` (connections_per_node) are those of `draw_weights`.
        """
        if per_row is not None:
            return nodes * per_row
        return round(nodes * nodes * (1.0 if connectivity is None else connectivity))

    def spectral_scale(self, W: Matrix, target: float) -> float:
        """The factor that gives a drawn matrix the spectral radius `target`."""
        return scale_to(target, spectral_radius(W)) if self.radius is None else target / self.radius

    def _check_nodes(self, nodes: int) -> None:
        """The part of `check` that is about the nodes."""

    def _need(self, field: str, least: int, nodes: int) -> None:
        if nodes < least:
            raise ConfigurationError(
                f"topology: {self.kind} with {field} = {getattr(self, field)} needs at least {least} nodes, "
                f"the network has {nodes}"
            )


class _Linked(_Topology):
    """A topology that says where its links are."""

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, FloatArray | None]:
        """Positions in the flattened matrix, rising, and their weights; None where these are to be drawn."""
        raise NotImplementedError

    def expected_links(self, nodes: int, connectivity: float | None, per_row: int | None) -> int:
        """How many links there are."""
        return len(self.links(nodes, np.random.default_rng(0))[0])

    def draw(self, nodes: int, links: np.random.Generator, values: np.random.Generator, entries: Entries) -> Matrix:
        """The recurrent matrix before any scaling."""
        positions, weights = self.links(nodes, links)
        if weights is None:
            weights = draw_values(values, len(positions), entries.distribution)
        return matrix_at((nodes, nodes), positions, weights)


class Random(_Topology):
    """Links anywhere: each with the probability `connectivity`, or `connections_per_node` of them (Jaeger 2001)."""

    kind: Literal["random"] = "random"

    uses = frozenset(_OPTIONS)

    def draw(self, nodes: int, links: np.random.Generator, values: np.random.Generator, entries: Entries) -> Matrix:
        """The recurrent matrix before any scaling."""
        return draw_matrix((nodes, nodes), links, values, entries)


class Ring(_Linked):
    """A cycle: node i listens to node i - 1, node 0 to the last, all with one weight, the spectral radius.

    The simple cycle reservoir of Rodan & Tiňo 2011 ("Minimum complexity echo state network").
    """

    kind: Literal["ring"] = "ring"

    uses = frozenset({"spectral_radius"})
    radius = 1.0

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, FloatArray]:
        """Positions in the flattened matrix, rising, and their weights."""
        here = np.arange(nodes)
        return here * nodes + (here - 1) % nodes, np.ones(nodes)


class DelayLine(_Linked):
    """A chain: node i listens to node i - 1, node 0 to none (the delay line reservoir of Rodan & Tiňo 2011).

    No closed loop, so the spectral radius is 0 and nothing can scale it: `weight` is the scale.
    """

    kind: Literal["delay_line"] = "delay_line"
    weight: PositiveFloat = Field(default=1.0, description="of each link; 1 is a shift register")

    uses = frozenset()
    radius = 0.0

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, FloatArray]:
        """Positions in the flattened matrix, rising, and their weights."""
        here = np.arange(1, nodes)
        return here * nodes + here - 1, np.full(nodes - 1, self.weight)


class CycleJumps(_Linked):
    """A ring with shortcuts: nodes 0, jump, 2 jump, ... are linked both ways with the next of them.

    Cycle reservoir with regular jumps (Rodan & Tiňo 2012). The chain of jumps closes at node 0 if `jump` divides
    the nodes, else it ends at the last multiple of `jump`. Scaled to a spectral radius, the two weights
    keep their ratio.
    """

    kind: Literal["cycle_jumps"] = "cycle_jumps"
    jump: Annotated[int, Field(ge=2)] = Field(default=5, description="nodes from one end of a shortcut to the other")
    cycle_weight: PositiveFloat = 1.0
    jump_weight: PositiveFloat = 1.0

    uses = frozenset({"spectral_radius"})

    def _check_nodes(self, nodes: int) -> None:
        self._need("jump", 2 * (self.jump + 1), nodes)

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, FloatArray]:
        """Positions in the flattened matrix, rising, and their weights."""
        cycle, _ = Ring().links(nodes, rng)
        begin = np.arange(nodes // self.jump) * self.jump
        end = (begin + self.jump) % nodes
        positions = np.concatenate((cycle, begin * nodes + end, end * nodes + begin))
        weights = np.repeat((self.cycle_weight, self.jump_weight), (nodes, 2 * len(begin)))
        order = np.argsort(positions)
        return positions[order], weights[order]

    def spectral_scale(self, W: Matrix, target: float) -> float:
        """The factor that gives a drawn matrix the spectral radius `target`."""
        return scale_to(target, perron_root(W))


class SmallWorld(_Linked):
    """A ring lattice of which some links are replaced by random ones (Watts & Strogatz 1998), directed.

    Each node listens to its `neighbours` nearest nodes, half of them on each side. Each link then
    gets, with the probability `rewiring`, another origin: uniform among all nodes but the listener itself and those
    it listens to already. So every node keeps exactly `neighbours` links; 0 is the lattice, 1 a random graph.
    """

    kind: Literal["small_world"] = "small_world"
    neighbours: Annotated[int, Field(ge=2, multiple_of=2)] = Field(default=10, description="links of each node; even")
    rewiring: Annotated[float, Field(ge=0, le=1)] = Field(default=0.1, description="probability for each link")

    def _check_nodes(self, nodes: int) -> None:
        # Half of the nodes at most: a random origin is then free in every second attempt at least.
        self._need("neighbours", 2 * self.neighbours, nodes)

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, None]:
        """Positions in the flattened matrix, rising; their weights are to be drawn."""
        half = np.arange(1, self.neighbours // 2 + 1)
        listeners = np.repeat(np.arange(nodes), self.neighbours)
        origins = ((np.arange(nodes)[:, None] + np.concatenate((-half, half))) % nodes).ravel()
        moving = rng.random(nodes * self.neighbours) < self.rewiring
        while moving.any():
            origins[moving] = rng.integers(0, nodes, np.count_nonzero(moving))
            positions = listeners * nodes + origins
            # Equal links come together, settled ones first; all but the first of them must move on.
            order = np.lexsort((moving, positions))
            taken = order[1:][np.diff(positions[order]) == 0]
            again = moving & (origins == listeners)
            again[taken] = True
            moving = again
        return np.sort(listeners * nodes + origins), None


class ScaleFree(_Linked):
    """Growth with preferential attachment (Barabási & Albert 1999): few hubs, many nodes with few links.

    The graph starts as `links_per_node` + 1 nodes, all linked. Each further node is linked to `links_per_node`
    different older ones, chosen with a probability proportional to the links they have. A link carries both ways,
    with a weight of its own each way: were it directed from old to new, the network would have no closed loop and
    the spectral radius 0. Early nodes are the hubs: node 0 is one of them.
    """

    kind: Literal["scale_free"] = "scale_free"
    links_per_node: PositiveInt = Field(default=3, description="with which a new node enters; half the mean degree")

    def _check_nodes(self, nodes: int) -> None:
        self._need("links_per_node", self.links_per_node + 1, nodes)

    def links(self, nodes: int, rng: np.random.Generator) -> tuple[Positions, None]:
        """Positions in the flattened matrix, rising; their weights are to be drawn."""
        seeds = self.links_per_node + 1
        new, old = (ends.tolist() for ends in np.tril_indices(seeds, -1))
        # Every node stands here once for each of its links.
        ends = new + old
        for node in range(seeds, nodes):
            chosen: set[int] = set()
            while len(chosen) < self.links_per_node:
                missing = self.links_per_node - len(chosen)
                chosen.update(ends[at] for at in rng.integers(0, len(ends), missing).tolist())
            targets = sorted(chosen)
            old += targets
            ends += targets
            ends += [node] * self.links_per_node
            new += [node] * self.links_per_node
        one, other = np.array(new, np.int64), np.array(old, np.int64)
        return np.sort(np.concatenate((one * nodes + other, other * nodes + one))), None


class Orthogonal(_Topology):
    """A random orthogonal matrix times the spectral radius: WᵀW = ρ² I, so no direction of the state is favoured.

    Proposed for the memory of linear networks by White, Lee & Sompolinsky 2004. Every eigenvalue lies on the circle of
    the spectral radius. Dense, and drawn in a time that grows with nodes³ (seconds for 2,000 nodes).
    """

    kind: Literal["orthogonal"] = "orthogonal"

    uses = frozenset({"spectral_radius"})
    radius = 1.0

    def draw(self, nodes: int, links: np.random.Generator, values: np.random.Generator, entries: Entries) -> FloatArray:
        """(nodes × nodes), uniform (Haar) over the orthogonal group: Stewart 1980, a product of reflections.

        LAPACK's QR factorisation would be quicker, but its last bits depend on the machine.
        """
        reflectors, signs = [], []
        for size in range(nodes, 0, -1):
            v = values.standard_normal(size)
            norm = math.sqrt(math.fsum((v * v).tolist()))
            sign = math.copysign(1.0, v[0])
            v[0] += sign * norm
            reflectors.append((v / math.sqrt(norm * abs(v[0])))[:, None])
            signs.append(-sign)
        Q = np.eye(nodes)
        for first in range(0, nodes, _STRIP):
            strip = np.ascontiguousarray(Q[:, first : first + _STRIP])
            # The reflections behind the strip's last column leave its columns of the identity as they are.
            for k in range(min(nodes, first + _STRIP) - 1, -1, -1):
                v, below = reflectors[k], strip[k:]
                below -= v * (v * below).sum(axis=0)
                below *= signs[k]
            Q[:, first : first + _STRIP] = strip
        return Q


class Block(_Topology):
    """Independent modules: a block-diagonal matrix of random networks, and a few links between them if wanted.

    Modules apart as in Xue, Yang & Haykin 2007, linked as in Rodriguez, Izquierdo & Ahn 2019. The first ones have one
    node more where the number of nodes cannot be divided. `connectivity` and `connections_per_node` hold within each
    module. The whole matrix is scaled: the module that drew the largest spectral radius gets the one asked for.
    """

    kind: Literal["block"] = "block"
    blocks: PositiveInt = Field(default=4, description="number of modules")
    links_between: NonNegativeInt = Field(default=0, description="random links from module to module, in all")

    uses = frozenset(_OPTIONS)

    def check(self, nodes: int | None, given: Mapping[str, Any]) -> None:
        """Also: `connections_per_node` must find room in the smallest block."""
        super().check(nodes, given)
        links = given.get("connections_per_node")
        if nodes is not None and links is not None and links > nodes // self.blocks:
            raise ConfigurationError(
                f"connections_per_node = {links} is more than the {nodes // self.blocks} nodes of the smallest of "
                f"the {self.blocks} blocks"
            )

    def expected_links(self, nodes: int, connectivity: float | None, per_row: int | None) -> int:
        """Those in the modules, about, and those between them."""
        sizes = np.diff(self.bounds(nodes)).tolist()
        return self.links_between + sum(Random().expected_links(size, connectivity, per_row) for size in sizes)

    def draw(self, nodes: int, links: np.random.Generator, values: np.random.Generator, entries: Entries) -> Matrix:
        """The recurrent matrix before any scaling."""
        parts = []
        for first, end in pairwise(self.bounds(nodes).tolist()):
            size = end - first
            rows, columns = np.divmod(draw_links((size, size), links, entries), size)
            parts.append((rows + first) * nodes + columns + first)
        positions = np.sort(np.concatenate([*parts, self.between(nodes, links)]))
        return matrix_at((nodes, nodes), positions, draw_values(values, len(positions), entries.distribution))

    def _check_nodes(self, nodes: int) -> None:
        self._need("blocks", self.blocks, nodes)
        sizes = np.diff(self.bounds(nodes))
        most = nodes * nodes - int((sizes * sizes).sum())
        if self.links_between > most:
            raise ConfigurationError(
                f"topology: block has room for {most} links between its {self.blocks} blocks of {nodes} nodes, "
                f"links_between is {self.links_between}"
            )

    def bounds(self, nodes: int) -> Positions:
        """First node of each block, and the number of nodes behind the last."""
        return np.cumsum([0, *(nodes // self.blocks + (block < nodes % self.blocks) for block in range(self.blocks))])

    def between(self, nodes: int, rng: np.random.Generator) -> Positions:
        """Positions of the links between blocks in the flattened matrix."""
        bounds = self.bounds(nodes)
        size = np.repeat(np.diff(bounds), np.diff(bounds))
        first = np.repeat(bounds[:-1], np.diff(bounds))
        # The entries outside the diagonal blocks, counted row by row.
        before = np.concatenate(([0], np.cumsum(nodes - size)))
        if not self.links_between:
            return np.empty(0, np.int64)
        entry = rng.choice(int(before[-1]), self.links_between, replace=False, shuffle=False)
        row = np.searchsorted(before, entry, side="right") - 1
        column = entry - before[row]
        column += np.where(column >= first[row], size[row], 0)
        return row * nodes + column


_Model: TypeAlias = Random | Ring | DelayLine | CycleJumps | SmallWorld | ScaleFree | Orthogonal | Block

_KINDS: dict[str, type[_Model]] = {model.model_fields["kind"].default: model for model in get_args(_Model)}


def as_topology(value: str | _Model) -> _Model:
    """The topology of that kind with its defaults, or the one that was given; `ConfigurationError` if unknown."""
    if not isinstance(value, str):
        return value
    if value not in _KINDS:
        raise ConfigurationError(f"unknown topology {value!r}: choose one of {', '.join(_KINDS)}")
    return _KINDS[value]()


def _from_name(value: Any) -> Any:
    if isinstance(value, str):
        return as_topology(value)
    if isinstance(value, dict) and str(value.get("kind")) not in _KINDS:
        raise ConfigurationError(f"topology needs `kind:`, one of {', '.join(_KINDS)}; it is {value.get('kind')!r}")
    return value


Topology: TypeAlias = Annotated[
    Annotated[_Model, Field(discriminator="kind")],
    BeforeValidator(
        _from_name,
        json_schema_input_type=Literal[tuple(_KINDS)] | Annotated[_Model, Field(discriminator="kind")],  # pyright: ignore[reportOperatorIssue]
    ),
]
"""The type of a configuration's field: `topology: ring`, or `topology: {kind: cycle_jumps, jump: 7}`."""
