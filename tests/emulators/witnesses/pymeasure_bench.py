"""`kind: visa` with classes of PyMeasure as its generator and its digitizer.

Drives each reservoir of a JSON list, which is the argument, by the same inputs. Prints a JSON line for each:
its states, or its error.
"""

import json
import sys
import warnings

import numpy as np

from reservoir_hw import open_reservoir
from reservoir_hw.core.errors import ReservoirError

# Those of PyMeasure must not reach its user.
warnings.simplefilter("error")
u = np.random.default_rng(0).uniform(-1, 1, (1, 10, 1))
for config in json.loads(sys.argv[1]):
    try:
        with open_reservoir(config) as reservoir:
            said = {"states": reservoir.run(u)[0].tolist(), "saturations": reservoir.counters.saturations}
    except ReservoirError as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(said) + "\n")
