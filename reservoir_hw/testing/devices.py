"""The devices of a pytest session: opened once, safe at the end, recovered after a fault."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from reservoir_hw.backends.replay import ReplayConfig, recorded_spec
from reservoir_hw.core.configuration import decisive
from reservoir_hw.core.errors import ConfigurationError, DeviceBusy, DeviceError, ReservoirError
from reservoir_hw.core.provenance import configuration_hash
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import HilConfig, ReservoirConfig, build_reservoir
from reservoir_hw.core.signal import MaskConfig
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.core.store import StateStore
from reservoir_hw.experiment.devices.info import config_from_file
from reservoir_hw.experiment.states.drive import Recorder
from reservoir_hw.testing.prerequisites import recover
from reservoir_hw.testing.session import SuiteRun


def with_inputs(config: ReservoirConfig) -> ReservoirConfig:
    """With one input channel where it names no number and needs one."""
    if config.inputs is None or isinstance(config.input_mask, MaskConfig):
        try:
            build_reservoir(config)
        except ConfigurationError:
            return config.for_inputs(1)
    return config


def from_options(config: pytest.Config) -> dict[str, ReservoirConfig]:
    """By the names of the files. Raises `pytest.UsageError`."""
    found: dict[str, ReservoirConfig] = {}
    for file in config.option.reservoir:
        name = Path(file).stem
        if name in found:
            raise pytest.UsageError(f"--reservoir {file}: another file of this name was given already")
        try:
            device = with_inputs(config_from_file(config.invocation_params.dir / file))
            found[name] = _recording(config, name, device) if config.option.reservoir_replay else device
        except (ReservoirError, OSError) as error:
            raise pytest.UsageError(f"--reservoir {file}: {error}") from error
        if config.option.reservoir_record and _trace(config, config.option.reservoir_record, name).exists():
            raise pytest.UsageError(
                f"--reservoir-record: there is a recording {config.option.reservoir_record}/{name} already; remove it, "
                "or name another folder"
            )
    return found


def _trace(config: pytest.Config, folder: str, name: str) -> Path:
    return config.invocation_params.dir / folder / name


def _recording(config: pytest.Config, name: str, device: ReservoirConfig) -> ReservoirConfig:
    """What takes the place of the device. Nobody recovers it, but it has the same twin."""
    folder = config.option.reservoir_replay
    trace = _trace(config, folder, name)
    if not trace.exists():
        raise ConfigurationError(f"--reservoir-replay: there is no trace {folder}/{name}; --reservoir-record makes it")
    twin = None if device.hil is None else device.hil.twin
    return ReplayConfig(kind="replay", trace=str(trace), hil=HilConfig(twin=twin))


def refuse_workers(config: pytest.Config, found: Mapping[str, ReservoirConfig]) -> None:
    """Raise `pytest.UsageError` where several workers would drive one piece of hardware."""
    if getattr(config.option, "dist", "no") == "no":
        return
    if config.option.reservoir_record:
        raise pytest.UsageError(
            "-n: --reservoir-record needs the tests in one process, one after the other; leave -n out"
        )
    for name, device in found.items():
        if not build_reservoir(device).in_process:
            raise pytest.UsageError(
                f"-n: {name} is a device that one process has at a time, so its tests cannot run side by side; leave "
                "-n out"
            )


class Device:
    """One device of the session. Use it in a `with` block, which closes what it has opened."""

    def __init__(self, name: str, device: ReservoirConfig, config: pytest.Config) -> None:
        self.name = name
        self.config = device
        self._record = config.option.reservoir_record and _trace(config, config.option.reservoir_record, name)
        self._closing = contextlib.ExitStack()
        self._reservoir = build_reservoir(self.config)
        self._recorder: Recorder | None = None
        self._twin: Reservoir | None = None
        self._suite: SuiteRun | None = None
        self._faulty = False
        self._refused: Exception | None = None
        self._facts: dict[str, Any] = {"device": name, "configuration_hash": configuration_hash(decisive(self.config))}

    def __enter__(self) -> Self:
        self._closing.enter_context(_terminated_as_interrupted())
        self._closing.callback(self._reservoir.close)
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.close()

    # ---- open and at rest -----------------------------------------------------------------------

    def at_rest(self) -> Reservoir:
        """The device, open, and at rest for one sequence."""
        self._open()
        self._reservoir.reset(1)
        return self._reservoir

    def _open(self) -> None:
        """Again after a fault, which a test may also have expected and caught."""
        if self._refused is not None:
            _fail(self._refused)
        if self._suite is not None:
            self._suite.bench.close()
        # Those of a device that was closed by the test, too.
        if self._reservoir.counters.faults or self._reservoir.unsafe:
            self._faulty = True
        try:
            if self._faulty:
                with contextlib.suppress(DeviceError):
                    self._reservoir.close()
                recover(self.config)
            self._reservoir.open()
        except (DeviceBusy, ConfigurationError) as error:
            # Once for all: each of many tests would wait as long again.
            self._refused = error
            _fail(error)
        self._faulty = False
        if self._record and self._recorder is None:
            self._recorder = self._closing.enter_context(Recorder(self._reservoir, self._record))

    def met(self, error: BaseException) -> None:
        """What a test ended with. Nobody recovers a device that another one has."""
        if isinstance(error, DeviceError | KeyboardInterrupt) and not isinstance(error, DeviceBusy):
            self._faulty = True

    def twin(self, spec: ReservoirSpec) -> Reservoir:
        """What `hil: twin:` names, as wide as the device, open and at rest for one sequence."""
        if self._twin is None:
            path = self.config.hil and self.config.hil.twin
            try:
                if path is None:
                    raise ConfigurationError(f"{self.name} names no simulation: give `hil: {{twin: FILE}}` in its file")
                self._twin = self._closing.enter_context(build_reservoir(_of_width(path, spec)))
                found = self._twin.spec
                if found.nodes != spec.nodes:
                    raise ConfigurationError(
                        f"{path}: hil.twin of {self.name} has {found.nodes} nodes, and the device {spec.nodes}"
                    )
            except (ConfigurationError, OSError) as error:
                self._twin = None
                _fail(error)
        self._twin.reset(1)
        return self._twin

    def give_to(self, run: SuiteRun) -> None:
        """The suite opens the device itself, and leaves it open from one statement to the next."""
        self._reservoir.close()
        if self._suite is None:
            self._suite = run
            self._closing.callback(run.close)

    # ---- what it is -----------------------------------------------------------------------------

    @property
    def declared(self) -> ReservoirSpec:
        """What the open device declares; a recording, what its device did."""
        if isinstance(self.config, ReplayConfig):
            return recorded_spec(StateStore.open(self.config.trace))
        return self._reservoir.spec

    def facts(self) -> dict[str, Any]:
        """Who was driven, for reports; also when it is closed again."""
        opened = self._reservoir if self._suite is None else self._suite.bench.reservoir
        if opened.is_open:
            identity = opened.spec.identity
            self._facts |= {
                "fingerprint": identity.fingerprint,
                "simulated": identity.simulated,
                "firmware": identity.firmware,
            }
        return self._facts

    def check_markers(self, item: Any) -> None:
        """Skip a test whose markers do not fit the device."""
        self._open()
        spec = self._reservoir.spec
        for marker in item.iter_markers("reservoir_needs"):
            for capability in marker.args:
                # What a recording can do more than its device is of no use: the test was skipped when it was recorded.
                for one in (self.declared, spec):
                    if not getattr(one, capability):
                        reason = one.not_supported.get(capability, "it does not declare it")
                        pytest.skip(f"{self.name} has no {capability}: {reason}")
        if spec.identity.simulated and item.get_closest_marker("reservoir_hardware"):
            pytest.skip(f"{self.name} is a simulation, and the test is for hardware")
        if not spec.identity.simulated and item.get_closest_marker("reservoir_simulation"):
            pytest.skip(f"{self.name} is hardware, and the test is for simulations")


def _of_width(path: str, spec: ReservoirSpec) -> ReservoirConfig:
    try:
        return config_from_file(path, inputs=spec.inputs)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: hil.twin of a device with {spec.inputs} inputs: {error}") from None


def _fail(error: Exception) -> NoReturn:
    """End the test in one sentence: how it came to this is of no interest."""
    lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
    raise pytest.fail.Exception("; ".join(lines), pytrace=False) from None


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """The end of a job (SIGTERM) or of a terminal (SIGHUP) is a Ctrl-C: the device gets to its safe state."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
