"""Opens a store and what was exported of it by xarray and pandas. Needs neither this package nor its tests."""

# pyright: basic, reportMissingImports=false, reportMissingModuleSource=false
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import xarray
import zarr

folder = Path(sys.argv[1])
plain: Any = zarr.open_group(folder / "trace", mode="r")
tree = xarray.open_datatree(folder / "trace", engine="zarr", consolidated=False)
one_file = xarray.open_dataset(folder / "all.nc")
table: Any = pandas.read_csv(folder / "all.csv", dtype={"dataset": str})
for name in ("000", "001"):
    alone = xarray.open_zarr(folder / "trace", group=name, consolidated=False)
    rows = table[table.dataset == name].sort_values(["sequence", "step"])
    for array, axis, letter in (("inputs", "channel", "u"), ("states", "node", "x")):
        kept = plain[f"{name}/{array}"][:]
        assert alone[array].dims == ("sequence", "step", axis)
        columns = rows[[column for column in rows if column.startswith(letter)]].to_numpy(np.float32)
        for found in (alone[array], tree[name][array], one_file[f"{name}_{array}"], columns.reshape(kept.shape)):
            assert np.asarray(found, np.float32).tobytes() == kept.tobytes()
        assert alone[array].attrs["units"] == one_file[f"{name}_{array}"].attrs["units"] == "V"
    for axis in ("sequence", "step", "channel", "node"):
        values = alone.indexes[axis].to_list()
        assert values == tree[name].indexes[axis].to_list() == one_file.indexes[f"{name}_{axis}"].to_list()
    assert alone.step.attrs["units"] == one_file[f"{name}_step"].attrs["units"] == "s"
    assert rows.time_s.to_list() == alone.sizes["sequence"] * alone.indexes["step"].to_list()
    assert float(alone.states.sel(node="µ", step=0.75, sequence=0)) == plain[f"{name}/states"][0, 3, 1]
