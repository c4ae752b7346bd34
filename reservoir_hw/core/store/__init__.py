"""States on disk: what a harvest gathered, a run recorded or an import converted, as a Zarr v3 group.

    STORE/                       attributes: format, version, what wrote it, spec, provenance
      journal/                   attributes: how much is valid, which snapshot goes with it, segments
      snapshots/a, b             the last two states of the device, safetensors in a row of bytes
      NAME/inputs                (sequences, time, inputs)
      NAME/states                (sequences, time, nodes), row t the response to row t of the inputs
      NAME/sequence, step, channel, node    what stands along the axes: coordinates for xarray
      NAME/timing                (groups, chunks, 2): when a chunk was driven (seconds since 1970) and for how long

Any Zarr reader understands the arrays. A step that was never written reads as NaN.
"""

from reservoir_hw.core.store.dataset import Coordinate, Dataset, Region, is_damage
from reservoir_hw.core.store.state_store import FORMAT, StateStore, plain_path

__all__ = ["FORMAT", "Coordinate", "Dataset", "Region", "StateStore", "is_damage", "plain_path"]
