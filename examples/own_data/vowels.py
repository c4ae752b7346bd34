"""The Japanese vowels as inputs and labels: what a function of yours returns for `task: {kind: data, call: …}`."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("RESERVOIR_HW_DATA", ".")) / "benchmarks"


def utterances() -> tuple[list[np.ndarray], list[str]]:
    """All 640, each (time, 12 coefficients), and who speaks: "man 1" to "man 9"."""
    series: list[np.ndarray] = []
    labels: list[str] = []
    for part in ("train", "test"):
        blocks = gzip.decompress((FOLDER / f"ae.{part}.gz").read_bytes()).decode().split("\n\n")
        series += [np.loadtxt(block.splitlines(), ndmin=2) for block in blocks if block.strip()]
        counts = map(int, (FOLDER / f"size_ae.{part}").read_text().split())
        labels += [f"man {speaker}" for speaker, count in enumerate(counts, 1) for _ in range(count)]
    return series, labels
