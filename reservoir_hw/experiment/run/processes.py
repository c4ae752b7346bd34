"""The processes that run one experiment together: those that torchrun or srun has started, or this one alone."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from reservoir_hw.core.errors import ConfigurationError, extra
from reservoir_hw.core.threads import share_cores

COMING_S = 120.0
"""How long processes wait for the others to start."""
_LOOK_EVERY_S = 0.05


class OthersEnded(ConnectionError):
    """Another process of the same run has ended before its work was done."""


class Processes:
    """`count` processes that call the same methods in the same order; `rank` is the number of this one.

    They tell each other small things by a key-value store: that has no deadline, so that all can wait for one that
    writes a report, and a process that waits can be interrupted.
    """

    def __init__(self, rank: int = 0, count: int = 1, store: Any = None) -> None:
        self.rank, self.count, self._store = rank, count, store
        self.is_first = rank == 0
        """The first process owns the run folder, the report, the progress and what is said."""
        self._calls = 0

    def gathered(self, value: Any) -> list[Any]:
        """What each process calls this with, in their order; waits for all. Values are those that JSON knows.

        Raises `OthersEnded` where one of them will not come.
        """
        if self.count == 1:
            return [value]
        self._calls += 1
        with self.lost():
            self._store.set(f"{self._calls}/{self.rank}", json.dumps(value))
            return [json.loads(self._told(f"{self._calls}/{rank}")) for rank in range(self.count)]

    def of_first(self, value: Any) -> Any:
        """What the first process calls this with; the others wait for it."""
        return self.gathered(value)[0]

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """The first does this before the others: what it refuses is said once, and what it keeps is found by them."""
        if not self.is_first:
            self.of_first(None)
        try:
            yield
        except BaseException:
            self.leave()
            raise
        if self.is_first:
            self.of_first(None)

    def leave(self) -> None:
        """Tell the others that this process will not come any more."""
        if self.count > 1:
            # The process that holds the store may have ended.
            with contextlib.suppress(RuntimeError):
                self._store.set("left", str(self.rank))

    @contextlib.contextmanager
    def lost(self) -> Iterator[None]:
        """What torch says where another process has ended becomes `OthersEnded`."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not _is_of_connection(error):
                raise
            raise OthersEnded(
                "another process of this run has ended; what it said last, or the log of its machine, tells why"
            ) from error

    def _told(self, name: str) -> bytes:
        while not self._store.check([name]):
            if self._store.check(["left"]):
                left = int(self._store.get("left"))
                if left == 0:
                    # It has said why.
                    raise SystemExit(1)
                raise OthersEnded(f"process {left} of {self.count} has ended before this one, and has said why")
            time.sleep(_LOOK_EVERY_S)
        return self._store.get(name)


def _is_of_connection(error: RuntimeError) -> bool:
    import torch

    # Gloo raises plain RuntimeErrors.
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)


@functools.cache
def joined() -> Processes:
    """The processes that `torchrun` has started, or this one alone.

    Raises `ConfigurationError` where the others do not come.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return Processes()
    with extra("train", "several processes need torch"):
        from torch.distributed import DistError
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous
    rank = int(os.environ["RANK"])
    share_cores(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    try:
        # The store that torch makes its groups of processes by: there is no second address to agree on.
        store, *_ = next(rendezvous("env://", timeout=timedelta(seconds=COMING_S)))
    except (DistError, ValueError) as error:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise ConfigurationError(
            f"process {rank} of {count} does not meet the others at {place}: {str(error).splitlines()[0]}; start all "
            "of them with torchrun, or with srun, and set MASTER_PORT if the port is taken"
        ) from error
    return Processes(rank, count, PrefixStore("reservoir_hw", store))


def take_up_slurm() -> None:
    """Under `srun` with several tasks, say to torch what torchrun would: the tasks are one job.

    Raises `ConfigurationError` where the machines have different numbers of tasks.
    """
    slurm = os.environ
    count = int(slurm.get("SLURM_STEP_NUM_TASKS", slurm.get("SLURM_NTASKS", "1")))
    if count == 1 or "WORLD_SIZE" in slurm or "SLURM_PROCID" not in slurm:
        return
    machines = int(slurm.get("SLURM_STEP_NUM_NODES", slurm.get("SLURM_NNODES", "1")))
    if count % machines:
        raise ConfigurationError(
            f"srun has started {count} tasks on {machines} machines: take as many tasks on each (--ntasks-per-node), "
            "or --ntasks=1 for a run of one process"
        )
    here, rank = count // machines, int(slurm["SLURM_PROCID"])
    nodes = slurm.get("SLURM_STEP_NODELIST", slurm.get("SLURM_NODELIST", ""))
    told = {
        "RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_RANK": slurm.get("SLURM_LOCALID", rank % here),
        "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": slurm.get("SLURM_NODEID", rank // here),
        "MASTER_ADDR": "127.0.0.1" if machines == 1 else _first_of(nodes),
        # Steps of all jobs on a machine have ports of their own.
        "MASTER_PORT": 15000 + (7 * int(slurm.get("SLURM_JOB_ID", "0")) + _number(slurm.get("SLURM_STEP_ID"))) % 15000,
    }
    for name, value in told.items():
        slurm.setdefault(name, str(value))


def _first_of(nodes: str) -> str:
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    return SLURMEnvironment.resolve_root_node_address(nodes)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
