"""Training beside the authors' design: tokens per second, and whether the losses agree.

    python benchmarks/training.py [--quick] [--profile] [--only NAME] [--json FILE]

The other side is what the papers' authors describe, in plain torch: `nn.RNN` as the reservoir, with our weights, one
window of the corpus after the other gathered for a batch, cross-entropy over all logits, fused AdamW. Both sides see
the same windows in the same order, begin with the same weights, compute in float32 on the CPU and must give the same
losses, or the benchmark stops.

"AERC" (Köster & Uchida 2026, Table I: N = 100, H = 20; V = 59, d = 16, batches of 1024): theirs drives the reservoir in
every epoch, and makes the weights of attention (eq. 3) for each position. Ours drives it once, harvest included in
the time, and learns from the states for 5 epochs. "Last" predicts the last of 32 characters alone, as the paper does;
"every" counts all 32.

"RC" is the same with the linear readout (N = 750).

"LAERC" (appendix A, gradients stop at the reservoirs): both drive the reservoirs in every step; ours are four `esn`
reservoirs behind the contract. "Narrow" has the networks of the authors' published code (a two-layer gate, D hidden
units behind the reservoir instead of R). "Through" lets theirs send gradients through `nn.RNN` too, as that code
does: it computes something else, so only its time is of interest.

Two ratios: of wall time, and of processor time over all threads, which others on the machine disturb less. Each is the
median over rounds, in which both sides follow each other, in turn the one and the other first. For one
thread on both sides, set OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and NUMBA_NUM_THREADS to 1.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from reservoir_hw import open_reservoir
from reservoir_hw.backends.simulated.esn.esn import Esn
from reservoir_hw.core.seeds import generator
from reservoir_hw.networks.language_weights import reservoir_configurations
from reservoir_hw.readout import LAERC, AttentionReadout, LinearReadout, ReservoirLayer, ReservoirLM, random_embedding
from reservoir_hw.readout.training import HarvestedShards, TrainingOptions, train
from reservoir_hw.readout.training.examples import shuffled
from reservoir_hw.readout.training.optimizer import make_optimizer

VOCABULARY, WIDTH = 59, 16
# Of the losses in nats, after hundreds of steps in float32.
AGREEMENT = 2e-4

Side: TypeAlias = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A training: `tokens` of a corpus, for `epochs`; H = 0 is the linear readout."""

    name: str
    nodes: int
    hidden: int
    options: TrainingOptions
    tokens: int
    goal: float | None = None


@dataclass(frozen=True)
class LayeredCase:
    """A training of a LAERC of this width D with R = 4 D and so many blocks."""

    name: str
    width: int
    layers: int
    options: TrainingOptions
    tokens: int
    narrow: bool = False
    through: bool = False
    goal: float | None = None


@dataclass(frozen=True)
class Row:
    """Medians of tokens per second, of the ratios of ours to theirs, and the largest difference of the losses."""

    case: str
    ours: float
    theirs: float
    ratio: float
    processor_ratio: float
    goal: float | None
    loss: float
    difference: float | None


def cases(quick: bool) -> list[Case | LayeredCase]:
    """All of them; `quick` has a third of the tokens."""
    part = 3 if quick else 1
    epochs: dict[str, Any] = {"epochs": 5, "shard_epochs": 5, "learning_rate": 1e-4, "weight_decay": 0.0}
    layered: dict[str, Any] = {"epochs": 1, "context": 128, "learning_rate": 4e-4, "weight_decay": 0.1, "clip": 1.0}
    last = TrainingOptions(**epochs, batch=1024, context=32, stride=1, predict="last", accelerator="cpu")
    every = TrainingOptions(**epochs, batch=32, context=32, accelerator="cpu")
    wide = TrainingOptions(**layered, batch=16, accelerator="cpu")
    narrow = TrainingOptions(**layered, batch=8, accelerator="cpu")
    tokens = 24 * 16 * 128 // part + 1
    return [
        Case("AERC, last of 32", 100, 20, last, 5000 // part, goal=1.5),
        Case("AERC, every of 32", 100, 20, every, 40_000 // part, goal=1.5),
        Case("RC, last of 32", 750, 0, last, 2100 // part),
        LayeredCase("LAERC, D = 64", 64, 4, wide, tokens, goal=1.2),
        LayeredCase("LAERC, D = 128", 128, 4, wide, tokens // 2 + 1, goal=1.2),
        LayeredCase("LAERC, D = 64, narrow", 64, 4, narrow, tokens // 2 + 1, narrow=True, goal=1.2),
        LayeredCase("LAERC, D = 64, narrow, through", 64, 4, narrow, tokens // 2 + 1, narrow=True, through=True),
        LayeredCase("LAERC, D = 128, narrow", 128, 4, narrow, tokens // 2 + 1, narrow=True, goal=1.2),
        LayeredCase("LAERC, D = 128, narrow, through", 128, 4, narrow, tokens // 2 + 1, narrow=True, through=True),
    ]


def rounds_of(case: Case | LayeredCase) -> int:
    """Rounds of a case: single ones scatter by 0.15 about a ratio of 1.3, the median of 21 by 0.04."""
    return 7 if case.goal is None else 21


def compare(case: Case | LayeredCase, rounds: int, profiled: bool) -> Row:
    """Both sides in turn, each time from the beginning."""
    corpus = generator(0, "corpus").integers(0, VOCABULARY, case.tokens).astype(np.uint16)
    # Something to learn: every other token repeats the one before.
    corpus[1::2] = corpus[: len(corpus) - 1 : 2]
    losses: dict[str, np.ndarray] = {}
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    processor: dict[str, list[float]] = {"ours": [], "theirs": []}
    with one_reservoir(case, corpus) if isinstance(case, Case) else layered(case, corpus) as sides:
        # The first round compiles, allocates, and chooses threads.
        for number in range(rounds + 1):
            for name, side in list(sides.items())[:: -1 if number % 2 else 1]:
                begin, begin_processor = time.perf_counter(), time.process_time()
                losses[name] = side()
                if number:
                    seconds[name].append(time.perf_counter() - begin)
                    processor[name].append(time.process_time() - begin_processor)
        if profiled:
            profile(case.name, sides["ours"])
    difference = None
    if isinstance(case, Case) or not case.through:
        difference = float(np.abs(losses["ours"] - losses["theirs"]).max())
        if difference > AGREEMENT:
            raise RuntimeError(f"{case.name}: losses differ by {difference:.2g}: the times mean nothing")
    windows = (case.tokens - 1 - case.options.context) // (case.options.stride or case.options.context) + 1
    tokens = case.options.steps_for(windows) * case.options.windows_per_step * case.options.context
    speed = {name: tokens / statistics.median(values) for name, values in seconds.items()}

    def ratio(of: dict[str, list[float]]) -> float:
        return statistics.median(theirs / ours for theirs, ours in zip(of["theirs"], of["ours"], strict=True))

    return Row(
        case=case.name,
        ours=speed["ours"],
        theirs=speed["theirs"],
        ratio=ratio(seconds),
        processor_ratio=ratio(processor),
        goal=case.goal,
        loss=float(losses["ours"][-1]),
        difference=difference,
    )


# ---- one reservoir


class PlainAttention(AttentionReadout):
    """The attention readout as eq. 3-5 are written: the weights of each position are made, then used."""

    def forward(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary) of states (..., nodes)."""
        return self.out((self.attention_weights(states) @ states.unsqueeze(-1)).squeeze(-1))


class PlainLM(nn.Module):
    """Embedding, `nn.RNN`, readout."""

    def __init__(self, embedding: nn.Embedding, rnn: nn.RNN, readout: nn.Module, last: bool) -> None:
        super().__init__()
        self.embedding, self.rnn, self.readout, self.last = embedding, rnn, readout, last

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens (batch, time)."""
        with torch.no_grad():
            states, _ = self.rnn(self.embedding(tokens))
        return self.readout(states[:, -1:] if self.last else states)


@contextmanager
def one_reservoir(case: Case, corpus: np.ndarray) -> Iterator[dict[str, Side]]:
    """Both sides, while the reservoir is open."""
    last = case.options.predict == "last"
    embedding = random_embedding(VOCABULARY, WIDTH, seed=1)
    with open_reservoir({"kind": "esn", "inputs": WIDTH, "nodes": case.nodes}) as reservoir:
        assert isinstance(reservoir, Esn)

        def readout(attention: type[AttentionReadout]) -> nn.Module:
            torch.manual_seed(0)
            nodes, hidden = case.nodes, case.hidden
            return attention(nodes, hidden, VOCABULARY) if hidden else LinearReadout(nodes, VOCABULARY)

        def ours() -> np.ndarray:
            model = ReservoirLM(embedding, ReservoirLayer(reservoir), readout(AttentionReadout))
            shards = HarvestedShards(model, corpus, options=case.options, shards=1)
            return train(model.readout, shards, options=case.options).losses

        def theirs() -> np.ndarray:
            model = PlainLM(embedding, rnn_of(reservoir), readout(PlainAttention), last)
            return plain_training(model, corpus, case.options)

        yield {"ours": ours, "theirs": theirs}


# ---- layers of reservoirs


class PlainBlock(nn.Module):
    """A block of a LAERC (eq. A2-A16) around `nn.RNN`; names as in ours, for the weights."""

    def __init__(self, width: int, rnn: nn.RNN, narrow: bool, through: bool) -> None:
        super().__init__()
        nodes = rnn.hidden_size
        hidden = width if narrow else nodes
        self.rnn, self.through = rnn, through
        self.norm_res = nn.LayerNorm(width, elementwise_affine=False)
        self.norm_states = nn.LayerNorm(nodes)
        self.reservoir_mlp = nn.Sequential(nn.Linear(nodes, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.beta = nn.Parameter(torch.zeros(()))
        self.norm_mix = nn.LayerNorm(2 * width)
        self.gate: nn.Module = nn.Linear(2 * width, width)
        if narrow:
            self.gate = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))
        self.norm_ffn = nn.LayerNorm(width)
        self.ffn = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """x^(l+1) of x^(l)."""
        with torch.set_grad_enabled(self.through):
            states, _ = self.rnn(self.norm_res(x))
        r = self.beta.exp() * self.reservoir_mlp(self.norm_states(states))
        g = self.gate(self.norm_mix(torch.cat([x, r], -1))).sigmoid()
        m = g * r + (1 - g) * x
        return m + self.alpha * self.ffn(self.norm_ffn(m))


class PlainLaerc(nn.Module):
    """Embedding, blocks, norm, and the embedding once more."""

    def __init__(self, width: int, rnns: list[nn.RNN], narrow: bool, through: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(PlainBlock(width, rnn, narrow, through) for rnn in rnns)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, VOCABULARY, bias=False)
        self.readout.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens (batch, time)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.readout(self.norm(x))


@contextmanager
def layered(case: LayeredCase, corpus: np.ndarray) -> Iterator[dict[str, Side]]:
    """Both sides, while the reservoirs are open."""
    with ExitStack() as stack:
        configurations = reservoir_configurations(case.width, case.layers)
        reservoirs = [stack.enter_context(open_reservoir(configuration)) for configuration in configurations]

        def fresh() -> LAERC:
            torch.manual_seed(0)
            layers = [ReservoirLayer(reservoir) for reservoir in reservoirs]
            hidden = case.width if case.narrow else None
            return LAERC(VOCABULARY, case.width, layers, reservoir_hidden=hidden, gate_hidden=hidden)

        def ours() -> np.ndarray:
            return train(fresh(), corpus, options=case.options).losses

        def theirs() -> np.ndarray:
            rnns = [rnn_of(reservoir) for reservoir in reservoirs if isinstance(reservoir, Esn)]
            model = PlainLaerc(case.width, rnns, case.narrow, case.through)
            model.load_state_dict(fresh().state_dict(), strict=False)
            return plain_training(model, corpus, case.options)

        yield {"ours": ours, "theirs": theirs}


# ---- the other side


def rnn_of(reservoir: Esn) -> nn.RNN:
    """The same frozen network as `nn.RNN`."""
    weights = reservoir.weights
    rnn: Any = nn.RNN(weights.inputs, weights.nodes, bias=False, batch_first=True).requires_grad_(False)
    rnn.weight_hh_l0.copy_(torch.from_numpy(np.asarray(weights.recurrent(), np.float32)))
    rnn.weight_ih_l0.copy_(torch.from_numpy(np.asarray(weights.W_in, np.float32)))
    return rnn


def plain_training(model: nn.Module, corpus: np.ndarray, options: TrainingOptions) -> np.ndarray:
    """A training loop as one writes it; returns what our log would hold."""
    stride = options.stride or options.context
    windows = (len(corpus) - 1 - options.context) // stride + 1
    steps = options.steps_for(windows)
    order = shuffled(windows, options.seed, "windows")(0, steps * options.batch) * stride
    optimizer = make_optimizer(model, options)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = []
    for step in range(steps):
        starts = order[step * options.batch : (step + 1) * options.batch]
        chunks = np.stack([corpus[start : start + options.context + 1] for start in starts]).astype(np.int64)
        tokens, targets = torch.from_numpy(chunks[:, :-1]), torch.from_numpy(chunks[:, 1:])
        if options.predict == "last":
            targets = targets[:, -1:]
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if options.clip is not None:
            torch.nn.utils.clip_grad_norm_(parameters, options.clip)
        optimizer.step()
        losses.append(loss.item())
    ends = [*range(options.log_steps, steps, options.log_steps), steps]
    return np.array([np.mean(losses[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)])


def profile(name: str, side: Side) -> None:
    """What a training spends its time with."""
    found = cProfile.Profile()
    found.runcall(side)
    print(f"\n{name}:")
    pstats.Stats(found).sort_stats("tottime").print_stats(14)


def line(row: Row) -> str:
    """A row of the table in benchmarks/README.md."""
    goal = "-" if row.goal is None else f"{row.goal:g}"
    difference = "-" if row.difference is None else f"{row.difference:.1g}"
    speeds = f"{row.ours:,.0f} | {row.theirs:,.0f} | {row.ratio:.2f} | {row.processor_ratio:.2f} | {goal}"
    return f"| {row.case} | {speeds} | {row.loss:.4f} | {difference} |"


def main() -> None:
    """Run all cases, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print("| case | ours, tokens/s | authors' design | × | × processor time | goal | loss | difference |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for case in cases(given.quick):
        if given.only in case.name:
            rows.append(compare(case, rounds=1 if given.quick else rounds_of(case), profiled=given.profile))
            print(line(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
