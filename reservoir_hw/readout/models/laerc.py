"""LAERC: layers of a fixed reservoir, a mixing gate and a feed-forward network (Köster & Uchida 2026, appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, linear

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.core.validation import number_in, whole_number
from reservoir_hw.readout.models.reservoir_layer import ReservoirLayer, Stage
from reservoir_hw.readout.models.softmax import LinearReadout
from reservoir_hw.readout.models.token_model import TokenModel

InputAffine = Literal["none", "frozen", "trained"]

# Standard deviation of fresh weights (appendix A.3).
_SPREAD = 0.02


class LAERC(TokenModel):
    """Layered attention-enhanced reservoir computer, a language model (Köster & Uchida 2026, eq. A1-A19).

    Tokens (batch, time) are embedded (A1), pass the blocks (A2-A16) and a last LayerNorm (A17), which gives the
    features (batch, time, width). `readout` is the embedding once more (A18): tied, without bias.

    Weights are those of `nn.Embedding` and `nn.Linear`, drawn from a normal distribution of standard deviation
    0.02; biases begin at 0. Weight decay belongs on the weights of `nn.Linear` alone, and not on the tied one.

    Parameters
    ----------
    vocabulary
        V.
    width
        D.
    layers
        The reservoir of each block, from the first to the last: inputs = D, any number of nodes (the paper: 4 D).
        They may share one device: `[ReservoirLayer(device) for _ in range(L)]`.
    alpha_res
        Width of the network behind each reservoir as a multiple of its nodes, H_res = α_res R.
    reservoir_hidden
        H_res itself, in place of `alpha_res`. The authors' published code has D.
    gate_hidden
        Width of a hidden layer with GELU in the gate; None is the paper's single layer (A11). The authors'
        published code has D.
    ffn_hidden
        H_ffn; 4 D unless given.
    input_affine
        The scale and shift of LN_res (A2): "none", "frozen" (there, but not trained), or "trained". By default
        "none" where no gradient passes the reservoir, so that they could not be trained, else "trained".

    Raises
    ------
    ConfigurationError
        What is given does not fit together.
    """

    exported_methods = ("begin", "forward", "features", "advance")

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: Sequence[ReservoirLayer],
        *,
        alpha_res: float = 1.0,
        reservoir_hidden: int | None = None,
        gate_hidden: int | None = None,
        ffn_hidden: int | None = None,
        input_affine: InputAffine | None = None,
    ) -> None:
        super().__init__(vocabulary)
        self.width = whole_number("width", width)
        _check_layers(layers, self.width)
        self.embedding = nn.Embedding(self.vocabulary, self.width)
        self.blocks = nn.ModuleList(
            Block(
                layer,
                reservoir_hidden=_hidden(layer, alpha_res) if reservoir_hidden is None else reservoir_hidden,
                gate_hidden=gate_hidden,
                ffn_hidden=4 * self.width if ffn_hidden is None else ffn_hidden,
                input_affine=input_affine,
            )
            for layer in layers
        )
        self.norm = nn.LayerNorm(self.width)
        self.readout = LinearReadout(self.width, self.vocabulary, bias=False)
        self.readout.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=_SPREAD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def begin(self, batch: int = 1) -> None:
        """Begin `batch` new texts: every reservoir at rest."""
        for layer in self.reservoir_layers:
            layer.begin(batch)

    def advance(self, tokens: Tensor) -> Tensor:
        """Features (batch, time, width), after LN_f, of tokens (batch, time) that continue the texts."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def cut(self, cutter: Any) -> Any:
        """L blocks: L + 1 stages; exp(β) and α are folded into the weights."""
        blocks = cast(list[Block], list(self.blocks))
        stages = [self._stage(blocks, number) for number in range(len(blocks) + 1)]
        layers = [block.reservoir for block in blocks]
        name = f"LAERC({len(blocks)}×{self.width})"
        return cutter.chain(name, layers, stages, carried=self.width, vocabulary=self.vocabulary)

    def _stage(self, blocks: Sequence[Block], number: int) -> Stage:
        """What lies between the reservoirs number - 1 and number."""
        before = blocks[number - 1] if number else None
        behind = blocks[number] if number < len(blocks) else None

        def compute(x: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
            x = self.embedding(x) if before is None else before.mix(x, states)
            return (self.readout(self.norm(x)), None) if behind is None else (behind.norm_res(x), x)

        def emit(graph: Any, x: str, states: str) -> tuple[str, str | None]:
            if before is None:
                x = graph.emit(self.embedding, x, "embedding")
            else:
                x = before.emit_mix(graph, x, states, f"blocks.{number - 1}")
            if behind is None:
                return graph.tied_projection(graph.emit(self.norm, x, "norm"), "embedding", self.readout.weight), None
            return graph.emit(behind.norm_res, x, f"blocks.{number}.norm_res"), x

        return Stage(compute, emit)


class Block(nn.Module):
    """One block (eq. A2-A16): x (batch, time, D) -> (batch, time, D), going on from the reservoir's state."""

    exported_methods = ("forward", "mix")

    def __init__(
        self,
        reservoir: ReservoirLayer,
        *,
        reservoir_hidden: int,
        gate_hidden: int | None,
        ffn_hidden: int,
        input_affine: InputAffine | None,
    ) -> None:
        super().__init__()
        width, nodes = reservoir.inputs, reservoir.nodes
        self.norm_res = _input_norm(width, reservoir, input_affine)
        self.reservoir = reservoir
        self.norm_states = nn.LayerNorm(nodes)
        self.reservoir_mlp = _two_layers(nodes, whole_number("reservoir_hidden", reservoir_hidden), width)
        self.beta = nn.Parameter(torch.zeros(()))
        self.norm_mix = nn.LayerNorm(2 * width)
        if gate_hidden is None:
            self.gate: nn.Module = nn.Linear(2 * width, width)
        else:
            self.gate = _two_layers(2 * width, whole_number("gate_hidden", gate_hidden), width)
        self.norm_ffn = nn.LayerNorm(width)
        self.ffn = _two_layers(width, whole_number("ffn_hidden", ffn_hidden), width)
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """x^(l+1) of x^(l)."""
        return self.mix(x, self.reservoir.advance(self.norm_res(x)))

    def mix(self, x: Tensor, states: Tensor) -> Tensor:
        """x^(l+1) of x^(l) and the states (batch, time, R) with which the reservoir answered it (A6-A16)."""
        r = self._read(states)
        g = self.gate(self.norm_mix(torch.cat([x, r], -1))).sigmoid()
        m = torch.lerp(x, r.to(x.dtype), g.to(x.dtype))
        first, activation, second = _layers_of(self.ffn)
        return m + _scaled(second, self.alpha, activation(first(self.norm_ffn(m))))

    def emit_mix(self, graph: Any, x: str, states: str, name: str) -> str:
        """`mix` as nodes of a graph."""
        r = _emit_two_layers(
            graph, self.reservoir_mlp, graph.emit(self.norm_states, states, f"{name}.norm_states"),
            f"{name}.reservoir_mlp", factor=float(self.beta.detach().exp()),
        )  # fmt: skip
        both = graph.emit(self.norm_mix, graph.node("Concat", x, r, axis=-1), f"{name}.norm_mix")
        if isinstance(self.gate, nn.Sequential):
            gate = _emit_two_layers(graph, self.gate, both, f"{name}.gate")
        else:
            gate = graph.emit(self.gate, both, f"{name}.gate")
        # g r + (1 - g) x
        change = graph.node("Mul", graph.node("Sigmoid", gate), graph.node("Sub", r, x))
        m = graph.node("Add", x, change)
        normed = graph.emit(self.norm_ffn, m, f"{name}.norm_ffn")
        grown = _emit_two_layers(graph, self.ffn, normed, f"{name}.ffn", factor=float(self.alpha.detach()))
        return graph.node("Add", m, grown)

    def _read(self, states: Tensor) -> Tensor:
        """The network behind the reservoir of the normalised states, times its strength exp(β) (A6-A8)."""
        norm = self.norm_states
        first, activation, second = _layers_of(self.reservoir_mlp)
        # Scale and shift of the norm go into the first layer. Behind it they would be reached only by a product with
        # its weights, the one as large as the layer itself, where no gradient goes further back.
        normed = layer_norm(states, norm.normalized_shape, eps=norm.eps)
        weight = first.weight * norm.weight
        hidden = activation(linear(normed, weight, torch.addmv(first.bias, first.weight, norm.bias)))
        return _scaled(second, self.beta.exp(), hidden)


def _scaled(layer: nn.Linear, scale: Tensor, x: Tensor) -> Tensor:
    """A layer times a number, which goes into its weights: they are fewer than what it answers for many tokens."""
    return linear(x, layer.weight * scale, layer.bias * scale)


def _layers_of(network: nn.Sequential) -> tuple[nn.Linear, nn.GELU, nn.Linear]:
    return cast(tuple[nn.Linear, nn.GELU, nn.Linear], tuple(network))


def _two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def _emit_two_layers(graph: Any, network: nn.Sequential, x: str, name: str, *, factor: float = 1.0) -> str:
    """`factor` times what `_two_layers` makes."""
    first, _, second = _layers_of(network)
    hidden = graph.gelu(graph.emit(first, x, f"{name}.0"))
    return graph.linear(hidden, f"{name}.2", second.weight, second.bias, factor=factor)


def _input_norm(width: int, reservoir: ReservoirLayer, affine: InputAffine | None) -> nn.LayerNorm:
    reached = reservoir.gradient != "stop"
    kind = affine or ("trained" if reached else "none")
    if kind not in ("none", "frozen", "trained"):
        raise ConfigurationError(f"input_affine must be none, frozen or trained, not {affine!r}")
    if kind == "trained" and not reached:
        raise ConfigurationError(
            "input_affine 'trained' asks to train what lies before a reservoir that no gradient passes: use "
            "'none' or 'frozen', or another gradient policy (through, twin)"
        )
    return nn.LayerNorm(width, elementwise_affine=kind != "none").requires_grad_(kind == "trained")


def _hidden(layer: ReservoirLayer, alpha_res: float) -> int:
    hidden = round(number_in("alpha_res", alpha_res, 0.0, float("inf")) * layer.nodes)
    if hidden < 1:
        raise ConfigurationError(f"alpha_res {alpha_res} times {layer.nodes} nodes leaves no hidden unit: raise it")
    return hidden


def _check_layers(layers: Sequence[ReservoirLayer], width: int) -> None:
    if not layers or not all(isinstance(layer, ReservoirLayer) for layer in layers):
        raise ConfigurationError("a LAERC needs at least one layer, each a ReservoirLayer(reservoir)")
    if len({id(layer) for layer in layers}) < len(layers):
        raise ConfigurationError(
            "every layer needs a ReservoirLayer of its own, as each has its own state; they may share the device: "
            "[ReservoirLayer(device) for _ in range(L)]"
        )
    for number, layer in enumerate(layers, start=1):
        if layer.inputs != width:
            raise ConfigurationError(
                f"the reservoir of layer {number} has {layer.inputs} inputs, the model's width is {width}: set "
                f"reservoir.inputs to {width}, or let `input_mask:` spread {width} channels over the device's inputs"
            )
