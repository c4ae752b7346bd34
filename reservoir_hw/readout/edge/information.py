"""What is in a bundle."""

from __future__ import annotations

from typing import Any

from reservoir_hw.readout.edge.bundle import Bundle


def describe(bundle: Bundle) -> dict[str, Any]:
    """All that a bundle says about itself, ready for JSON: its manifest, and what its parts weigh.

    `parameters` and `bytes` of a segment are those of the weights that its graph needs. Weights that several
    segments share are in each of them, and once in the total.
    """
    manifest = bundle.manifest.model_dump(mode="json")
    for index, segment in enumerate(manifest["segments"]):
        arrays = bundle.weights_of(index).values()
        segment["parameters"] = sum(array.size for array in arrays)
        segment["bytes"] = sum(array.nbytes for array in arrays)
        segment["graph_bytes"] = bundle.sizes[segment["graph"]]
    return {
        "path": bundle.name,
        "sha256": bundle.digest,
        "bytes": sum(bundle.sizes.values()),
        "parameters": sum(array.size for array in bundle.weights.values()),
        "weights_bytes": sum(array.nbytes for array in bundle.weights.values()),
        **manifest,
    }
