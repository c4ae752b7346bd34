"""The Triton kernels, compiled for a GPU that need not be here: registers and spills, as ptxas says.

    python tests/backends/simulated/compiled_kernels.py

With `--json` it prints what the test reads.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

from reservoir_hw.backends.simulated.delay_loop import triton_loop as delay_triton_loop
from reservoir_hw.backends.simulated.delay_loop.physics import Ikeda, MackeyGlass, Paquot
from reservoir_hw.backends.simulated.esn import triton_loop
from reservoir_hw.backends.simulated.gated import triton_loop as gated_triton_loop
from reservoir_hw.backends.simulated.kernels.triton_launch import StackedWeights, form_of, power_of_2

ARCHITECTURES = (80, 90)
# Nodes, sequences, inputs, storage, CSR: every form that `form_of` chooses, each at its largest.
SIZES = {
    "esn": [
        (1, 1, 1, "float32", False),
        (16, 2, 16, "float32", False),
        (32, 1, 16, "float32", False),
        (64, 1, 64, "float32", False),
        (128, 1, 32, "float32", False),
        (128, 1, 32, "float16", False),
        (400, 1, 3, "float32", False),
        (400, 1, 3, "bfloat16", False),
        (400, 600, 3, "float32", False),
        (1000, 1, 3, "float32", True),
    ],
    "gated_esn": [
        (32, 1, 16, "float32", False),
        (64, 1, 32, "float32", False),
        (200, 1, 3, "float32", False),
        (200, 600, 3, "float32", False),
        (1000, 1, 3, "float32", True),
    ],
}

COUPLINGS = {"alone": delay_triton_loop._ALONE, "scan": delay_triton_loop._SCAN, "in turn": delay_triton_loop._IN_TURN}
# Equations, couplings, nodes and delay: every form, the longest block, and numbers that are 1.
DELAY_LOOPS = [
    *(
        (physics.equation(0.2), coupling, 400, 401)
        for physics in (MackeyGlass(exponent=7), MackeyGlass(exponent=2.6), Ikeda(), Paquot())
        for coupling in COUPLINGS
    ),
    *((MackeyGlass(exponent=2.6).equation(0.2), coupling, 2000, 2000) for coupling in COUPLINGS),
    *((Ikeda().equation(0.2), coupling, 1, 1) for coupling in COUPLINGS),
    *((Ikeda().equation(0.2), coupling, 5, 1) for coupling in COUPLINGS),
]


def weights_of(matrices: int, nodes: int, inputs: int, storage: str, sparse: bool) -> StackedWeights:
    """Weights with shapes and types alone."""
    with torch.device("meta"):
        values = torch.empty(10 * matrices * nodes, dtype=getattr(torch, storage))
        bias = torch.empty((1, matrices, nodes))
        if sparse:
            starts = torch.empty((1, matrices, nodes + 1), dtype=torch.int64)
            recurrent = (bias, starts, torch.empty(len(values), dtype=torch.int32), values)
        else:
            recurrent = (torch.empty((1, matrices, nodes, nodes), dtype=values.dtype), bias, bias, bias)
        return StackedWeights(
            recurrent=recurrent,
            sparse=sparse,
            W_in=torch.empty((1, matrices, nodes, inputs)),
            bias=bias,
            leak=torch.empty((1, nodes)),
        )


def compiled(kind: str, architecture: int, size: tuple[int, int, int, str, bool]) -> dict[str, Any]:
    """What ptxas says of the kernel of a size, with every part of it compiled in."""
    nodes, batch, inputs, storage, sparse = size
    matrices = 1 if kind == "esn" else 3
    form = form_of(weights_of(matrices, nodes, inputs, storage, sparse), batch)
    module = triton_loop if kind == "esn" else gated_triton_loop
    constants: dict[str, Any] = {"IMPAIRED": True}
    if kind == "esn":
        constants |= {"ACTIVATION": "tanh", "LEAKY": True}
    if form.resident:
        kernel = module._resident
        constants |= {"BLOCK": form.rows, "INPUTS": power_of_2(inputs)}
    else:
        kernel = module._streamed
        constants |= {
            "TILE": form.tile,
            "ROWS": form.rows,
            "COLUMNS": form.columns,
            "SPARSE": sparse,
            "PRECISION": "ieee",
        }
    given = {"nodes": nodes, "batch": batch, "inputs": inputs, "storage": storage, "sparse": sparse}
    # As triton does at a launch: a number that is 1 becomes a constant.
    constants |= {name: 1 for name in ("nodes", "inputs", "batch") if given[name] == 1}
    found = resources(kernel, constants, form.warps, storage, architecture, ("u",))
    return {"kind": kind, "sm": architecture, **given, **form._asdict(), **found}


def compiled_delay_loop(architecture: int, case: tuple[Any, str, int, int]) -> dict[str, Any]:
    """What ptxas says of the kernel of the delay loops for an equation, a coupling, nodes and delay."""
    equation, coupling, nodes, delay = case
    width, coupled = min(nodes, delay, delay_triton_loop._LONGEST), COUPLINGS[coupling]
    warps = delay_triton_loop.warps_of(width, coupled)
    sizes = {"nodes": nodes, "delay": delay, "width": width}
    constants = {
        "BLOCK": power_of_2(width),
        "CODE": equation.code,
        "EXPONENT": delay_triton_loop.whole_exponent(equation),
        "COUPLING": coupled,
        "IMPAIRED": True,
        **{name: 1 for name, size in sizes.items() if size == 1},
    }
    unaligned = ("out", "history", "additive")
    found = resources(delay_triton_loop._run, constants, warps, "float32", architecture, unaligned)
    physics = ("mackey_glass", "ikeda", "paquot")[equation.code]
    return {"kind": physics, "sm": architecture, "coupling": coupling, **sizes, "warps": warps, **found}


def resources(
    kernel: Any, constants: dict[str, Any], warps: int, storage: str, architecture: int, unaligned: tuple[str, ...]
) -> dict[str, int]:
    """Registers of a thread, bytes that they spill to, and bytes of shared memory."""
    stored = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16"}[storage]
    types = {"W": stored, "values": stored, "starts": "*i64", "columns": "*i32", "u_stride": "i64"}
    types |= dict.fromkeys(("nodes", "inputs", "batch", "steps", "delay", "width"), "i32") | dict.fromkeys(
        constants, "constexpr"
    )
    names = [parameter.name for parameter in kernel.params]
    signature = {name: types.get(name, "*fp32") for name in names}
    aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") and name not in unaligned]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": True}
    built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        program = Path(str(triton.__file__)).parent / "backends/nvidia/bin/cuobjdump"
        said = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return {"registers": found["REG"], "spilled": found["STACK"] + found["LOCAL"], "shared": built.metadata.shared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    networks = [compiled(kind, sm, size) for kind, sizes in SIZES.items() for sm in ARCHITECTURES for size in sizes]
    loops = [compiled_delay_loop(sm, case) for sm in ARCHITECTURES for case in DELAY_LOOPS]
    if arguments.json:
        print(json.dumps({"networks": networks, "delay_loops": loops}))
        return
    for rows in (networks, loops):
        print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
        for row in rows:
            print("| " + " | ".join(map(str, row.values())) + " |")
        print()


if __name__ == "__main__":
    main()
