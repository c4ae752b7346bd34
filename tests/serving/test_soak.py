"""300,000 steps: nothing is lost, nothing piles up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from reservoir_hw.core.reservoir_config import open_reservoir

STEPS = 300_000
SINGLE = 30_000
CHUNK = 50
GROWTH_BYTES = 2 << 20

SERVER = """
import sys
from reservoir_hw.serving import Server
from reservoir_hw.core.reservoir_config import build_reservoir, parse_reservoir
from reservoir_hw.core.configuration import Document
esn = {"kind": "esn", "nodes": 64, "inputs": 2, "seed": 3}
server = Server(build_reservoir(parse_reservoir(Document.from_mapping(esn, "soak"))), sys.argv[1])
server.run()
"""


def resident(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of processes from /proc")
def test_memory_stays_flat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"ipc://{tmp_path}/device"
    server = subprocess.Popen([sys.executable, "-c", SERVER, address])
    rng = np.random.default_rng(0)
    try:
        with (
            open_reservoir({"kind": "zmq", "address": address, "timeout_s": 30}) as remote,
            open_reservoir({"kind": "esn", "nodes": 64, "inputs": 2, "seed": 3}) as local,
        ):
            done, single, memory = 0, 0, []
            while done < STEPS:
                if single < SINGLE:
                    u = rng.standard_normal((1, 2), dtype=np.float32)
                    assert np.array_equal(remote.step(u), local.step(u)), f"step {done}"
                    done, single = done + 1, single + 1
                else:
                    u = rng.standard_normal((1, CHUNK, 2), dtype=np.float32)
                    assert np.array_equal(remote.run(u), local.run(u)), f"step {done}"
                    done += CHUNK
                if done % (STEPS // 20) == 0:
                    memory.append((done, resident(os.getpid()), resident(server.pid)))
            assert remote.counters.steps == local.counters.steps == STEPS
    finally:
        server.terminate()
        server.wait(20)
    with capsys.disabled():
        sys.stdout.write(f"\nsteps, MiB here, MiB server: {[(n, a >> 20, b >> 20) for n, a, b in memory]}\n")
    # The first tenth is for whatever is made once; the same kind of call is compared with itself.
    for who in (1, 2):
        singles = [entry[who] for entry in memory if entry[0] <= SINGLE]
        runs = [entry[who] for entry in memory if entry[0] >= 2 * SINGLE]
        assert singles[-1] - singles[0] < GROWTH_BYTES
        assert runs[-1] - runs[0] < GROWTH_BYTES
