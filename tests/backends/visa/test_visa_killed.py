"""A bench whose owner is killed: its outputs are off before anybody else can have it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from emulated_lab import emulated_lab

from reservoir_hw.core.locks import HostLocks
from reservoir_hw.drivers.visa.links import resource_of

OWNER = """
import json, sys
import numpy as np
from reservoir_hw import open_reservoir

with open_reservoir(json.loads(sys.argv[1])) as reservoir:
    u = np.random.default_rng(0).uniform(-1, 1, (1, 200, 1))
    print("open", flush=True)
    while True:
        reservoir.run(u)
"""


@pytest.mark.slow
def test_killed_20_times_at_random_moments(capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    playing = 0
    with emulated_lab() as lab:
        resources = [resource_of(lab.config[name]["address"]) for name in ("generator", "digitizer")]
        for kill in range(20):
            command = [sys.executable, "-c", OWNER, json.dumps({**lab.config, "settle_s": 0.0})]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
                assert owner.stdout is not None
                assert owner.stdout.readline() == b"open\n"
                # A burst, with upload and fetch, takes about 50 ms.
                time.sleep(random.uniform(0.0, 0.3))
                owner.send_signal(signal.SIGKILL)
            locks = HostLocks(resources)
            locks.acquire(20.0)
            was_on = lab.on()
            locks.release()
            events = [event["event"] for event in lab.events("on", "off") if event["channel"] == 1]
            assert not was_on, f"kill {kill}: output 1 was still on when its lock was free"
            assert events[-1:] in ([], ["off"])
            playing += bool(lab.events("on")) and events[-1:] == ["off"]
            lab.bench.log.events.clear()
    with capsys.disabled():
        print(f"\n20 kills, {playing} of them with the output on; 20 times it was off before the lock was free")  # noqa: T201
    assert playing > 10
