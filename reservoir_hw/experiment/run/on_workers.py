"""Points of `vary` on the workers of a Dask scheduler, each as a run of its own that comes back as an archive."""

from __future__ import annotations

import io
import logging
import shutil
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reservoir_hw.backends.layered import LayersConfig
from reservoir_hw.core.errors import ConfigurationError, ReservoirError, extra
from reservoir_hw.core.reservoir_config import ReservoirConfig
from reservoir_hw.core.threads import share_cores
from reservoir_hw.experiment.configuration.experiment import Point
from reservoir_hw.experiment.run.experiment import Experiment
from reservoir_hw.experiment.run.result import Result, begun_run_folder, new_run_folder, write_yaml
from reservoir_hw.experiment.states.progress import Progress, StepCounter

if TYPE_CHECKING:
    from distributed import Client, Future

log = logging.getLogger(__name__)

CONNECT_S = 30
_TOPIC = "reservoir_hw points"
# Two points in the threads of one worker would share what torch has of random numbers.
_one_at_a_time = threading.Lock()


class PointFailed(ReservoirError):
    """Points could not be run on their workers."""


def run_on(experiment: Experiment, scheduler: str, progress: Progress | None = None) -> Result:
    """Run every point of an experiment on a worker of a Dask scheduler, and merge them.

    `scheduler` is an address or a scheduler file. A point whose reservoir is a device goes to a worker that has its
    label as a resource. Finished points are in `points/` of the run folder as soon as they are there; with `run.resume`
    they are not run again. A point that waited at a worker that died is queued again, one that was at work there once.

    Raises `PointFailed` where some could not be run, after all others were, and `ConfigurationError` where there is
    nobody to run them.
    """
    run = experiment.config.run
    for key in ("point", "record"):
        if getattr(run, key) is not None:
            raise ConfigurationError(f"run.{key}: not with --on, which runs every point in a folder of its worker")
    # Everything is checked that can be without a device.
    experiment.estimate()
    resolved = experiment.resolved()
    wanted = {point.number: _resources(point) for point in experiment.points}
    with _client(scheduler) as client:
        _check_workers(client, wanted)
        if run.resume is None:
            folder = new_run_folder(run.folder, experiment.name)
        else:
            folder = begun_run_folder(run.resume, resolved)
        write_yaml(folder / "experiment.yaml", resolved)
        places = {number: folder / "points" / f"{number:03d}" for number in wanted}
        left = {number: wanted[number] for number, place in places.items() if not place.exists()}
        counter = StepCounter(progress, len(wanted))
        counter.say(f"points on {scheduler}")
        counter.add(len(wanted) - len(left))
        try:
            problems = _run_all(client, experiment, left, folder / "points", counter)
            if problems:
                said = "".join(f"\n  point {number}: {problem}" for number, problem in sorted(problems.items()))
                raise PointFailed(f"{len(problems)} of {len(wanted)} points were not run:{said}")
        except BaseException as error:
            there = sum(place.exists() for place in places.values())
            error.add_note(f"{there} finished points are in {folder}; --set run.resume={folder} runs the others")
            raise
    counter.say("writing the report")
    return experiment.merge(list(places.values()), into=folder)


def run_point(
    resolved: Mapping[str, Any], name: str, number: int, attempt: str, workers: Mapping[str, int]
) -> bytes | str:
    """Run a point, on a worker, in a folder that is removed afterwards; `workers` has their number on each host.

    Returns the archive of the run folder, or what went wrong.
    """
    from distributed import get_worker

    # What was at work when a worker died may have been its end; what only waited there was not.
    get_worker().log_event(_TOPIC, attempt)
    share_cores(workers[get_worker().ip])
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="reservoir_hw-") as folder:
        run = {**resolved["run"], "point": number, "folder": folder, "resume": None}
        try:
            result = Experiment({**resolved, "run": run}, name).run(lambda what, done, total: None, report=False)
        except Exception as error:
            # Its class may need more than a message to be made again.
            log.warning("point %d", number, exc_info=error)
            said = "; ".join([str(error), *getattr(error, "__notes__", [])])
            return f"{type(error).__name__}: {said.replace(folder, name)}"
        return _packed(result.folder)


def _run_all(
    client: Client, experiment: Experiment, wanted: Mapping[int, dict[str, float]], folder: Path, counter: StepCounter
) -> dict[int, str]:
    """Run the points that are wanted, each in a folder in here; problems by number."""
    from distributed import KilledWorker, as_completed

    workers = Counter(worker["host"] for worker in _workers_of(client))
    attempts, begun = dict.fromkeys(wanted, 0), dict.fromkeys(wanted, 0)
    problems: dict[int, str] = {}
    resolved = experiment.resolved()

    def attempt(number: int) -> str:
        return f"{folder.resolve()} point {number} attempt {attempts[number]}"

    def submitted(number: int) -> Future:
        attempts[number] += 1
        given = (resolved, experiment.name, number, attempt(number), workers)
        # Nothing is kept from an earlier call: a device gives other states each time.
        key, resources = f"{folder.name}-{attempt(number)}", wanted[number] or None
        return client.submit(run_point, *given, key=key, resources=resources, pure=False)

    futures = {submitted(number): number for number in wanted}
    arriving = as_completed(list(futures), loop=client.loop, with_results=True, raise_errors=False)
    for future, answer in arriving:
        number = futures.pop(future)
        if future.status == "error":
            # What it was, with its traceback.
            error = future.exception()
            died = isinstance(error, KilledWorker)
            if died:
                events: Any = client.get_events(_TOPIC)
                begun[number] += attempt(number) in {event for _, event in events or ()}
                log.warning("point %d: its worker has died; it is run on another one", number)
            if died and begun[number] < 2:
                again = submitted(number)
                futures[again] = number
                arriving.add(again)
                continue
            problems[number] = "it ended its worker twice" if died else repr(error)
        elif isinstance(answer, str):
            problems[number] = answer
        else:
            _unpack(answer, folder / f"{number:03d}")
        # A result that stays on its worker is lost, and driven again, if the worker dies.
        future.release()
        counter.add(1)
    return problems


@contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    with extra("cluster", "--on needs Dask"):
        from distributed import Client
    where: dict[str, Any] = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
    try:
        client = Client(**where, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--on {scheduler}: no Dask scheduler answers there ({error}); give its address, such as "
            "tcp://host:8786, or its scheduler file"
        ) from error
    with client:
        try:
            # A point that ends its worker would otherwise be tried on three more.
            client.run_on_scheduler(_no_failures)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"--on {scheduler}: the scheduler has another version of reservoir_hw, or none ({error}): start it and "
                "its workers in the environment of this command"
            ) from error
        yield client


def _no_failures(dask_scheduler: Any = None) -> None:
    dask_scheduler.allowed_failures = 0


def _check_workers(client: Client, wanted: Mapping[int, dict[str, float]]) -> None:
    workers = _workers_of(client)
    if not workers:
        raise ConfigurationError("the scheduler has no workers: start some, for instance `dask worker ADDRESS`")
    offered = {name for worker in workers for name in worker.get("resources", {})}
    for number, resources in wanted.items():
        missing = [name for name in resources if name not in offered]
        if missing:
            there = ", ".join(sorted(offered)) or "none"
            raise ConfigurationError(
                f"point {number} needs the device {missing[0]!r}, and no worker has it (resources: {there}); start one "
                f"there with --resources '{missing[0]}=1'"
            )


def _workers_of(client: Client) -> list[dict[str, Any]]:
    return list(client.scheduler_info(n_workers=-1)["workers"].values())


def _resources(point: Point) -> dict[str, float]:
    """The device that the point needs, by its label; nothing for a simulation."""
    reservoir = point.config.reservoir
    if _computed(reservoir):
        return {}
    if not reservoir.label:
        raise ConfigurationError(
            f"point {point.number} drives a device ({reservoir.kind}): give it a `label:`, and the same name to the "
            "worker that has it (`dask worker --resources 'NAME=1'`)"
        )
    return {reservoir.label: 1}


def _computed(reservoir: ReservoirConfig) -> bool:
    if isinstance(reservoir, LayersConfig):
        return all(map(_computed, reservoir.reservoirs))
    return reservoir.is_computed


def _packed(folder: Path) -> bytes:
    """A run folder without what only an interrupted training needs."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            inside = path.relative_to(folder)
            if path.is_file() and path.name != "checkpoint.safetensors" and not inside.match("training/*/states-*/**"):
                archive.add(path, str(inside))
    return content.getvalue()


def _unpack(archive: bytes, folder: Path) -> None:
    """Whole or not at all."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as given:
        given.extractall(partial, filter="data")
    partial.rename(folder)
