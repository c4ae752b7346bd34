"""`kind: visa` with classes of PyMeasure as its generator and its digitizer.

Reads a JSON list of reservoirs, drives each by the same inputs, and prints a JSON line for each: states, or an error.
"""

import json
import sys

import numpy as np

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ReservoirError

u = np.random.default_rng(0).uniform(-1, 1, (1, 10, 1))
for config in json.load(sys.stdin):
    try:
        with open_reservoir(config) as reservoir:
            said = {"states": reservoir.run(u)[0].tolist(), "saturations": reservoir.counters.saturations}
    except ReservoirError as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(said) + "\n")
