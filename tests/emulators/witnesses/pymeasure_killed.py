"""The reservoir that is the argument, with classes of PyMeasure, is killed with its output on."""

import json
import os
import signal
import sys

import numpy as np

from reservoir_hw import open_reservoir

reservoir = open_reservoir(json.loads(sys.argv[1]))
reservoir.run(np.zeros((1, 3, 1)))
os.kill(os.getpid(), signal.SIGKILL)
