"""The devices of a pytest session: opened once, safe at the end, recovered after a fault."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reservoir_hw.core.configuration import decisive
from reservoir_hw.core.errors import ConfigurationError, DeviceError, ReservoirError
from reservoir_hw.core.provenance import configuration_hash
from reservoir_hw.core.reservoir import Reservoir
from reservoir_hw.core.reservoir_config import ReservoirConfig, build_reservoir
from reservoir_hw.core.spec import ReservoirSpec
from reservoir_hw.experiment.devices.reservoir_file import config_from_file
from reservoir_hw.experiment.states.record import Recorder
from reservoir_hw.testing import plugin
from reservoir_hw.testing.actions import perform
from reservoir_hw.testing.session import SuiteRun


def with_inputs(config: ReservoirConfig) -> ReservoirConfig:
    """With one input channel where it names no number and needs one."""
    if config.inputs is None or config.input_mask is not None:
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
            found[name] = _replayed(config, name) or with_inputs(config_from_file(config.invocation_params.dir / file))
        except (ReservoirError, OSError) as error:
            raise pytest.UsageError(f"--reservoir {file}: {error}") from error
    return found


def _replayed(config: pytest.Config, name: str) -> ReservoirConfig | None:
    folder = config.option.reservoir_replay
    if folder is None:
        return None
    from reservoir_hw.backends.replay import ReplayConfig

    trace = config.invocation_params.dir / folder / name
    if not trace.exists():
        raise ConfigurationError(f"--reservoir-replay: there is no trace {trace}; --reservoir-record {folder} makes it")
    return ReplayConfig(kind="replay", trace=str(trace))


def refuse_workers(config: pytest.Config, devices: Mapping[str, ReservoirConfig]) -> None:
    """Raise `pytest.UsageError` where several workers would drive one piece of hardware."""
    if not getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        return
    for name, device in devices.items():
        if not build_reservoir(device).in_process:
            raise pytest.UsageError(
                f"-n: {name} is a device that one process has at a time, so its tests cannot run side by side; leave "
                "-n out"
            )


class Device:
    """One device of the session."""

    def __init__(self, name: str, config: pytest.Config) -> None:
        self.name = name
        self.config = config.stash[plugin.DEVICES][name]
        self.faulty = False
        """Whether the last test left it with a fault."""
        self._options = config.option
        self._here = config.invocation_params.dir
        self._reservoir: Reservoir | None = None
        self._twin: Reservoir | None = None
        self._closing = contextlib.ExitStack()
        self._suite: SuiteRun | None = None
        self._identity: dict[str, Any] = {}

    def ready(self) -> Reservoir:
        """Open and at rest for one sequence."""
        if self._reservoir is None:
            self._reservoir = build_reservoir(self.config)
            self._closing.callback(self._reservoir.close)
            self._reservoir.open()
            if self._options.reservoir_record:
                path = self._here / self._options.reservoir_record / self.name
                self._closing.enter_context(Recorder(self._reservoir, path))
        elif self.faulty or self._reservoir.unsafe or not self._reservoir.is_open:
            with contextlib.suppress(DeviceError):
                self._reservoir.close()
            hil = self.config.hil
            if self.faulty and hil is not None and hil.recover is not None:
                perform(hil.recover, self.config, hil.folder, hil.timeout_s)
            self._reservoir.open()
        self.faulty = False
        self._reservoir.reset(1)
        return self._reservoir

    def twin(self) -> Reservoir:
        """What `hil: twin:` names, open and at rest for one sequence."""
        if self._twin is None:
            spec, path = self.ready().spec, self.config.hil and self.config.hil.twin
            if path is None:
                raise pytest.UsageError(f"{self.name} names no simulation: give `hil: {{twin: FILE}}` in its file")
            config = config_from_file(path)
            self._twin = build_reservoir(config if config.inputs else config.for_inputs(spec.inputs))
            self._closing.callback(self._twin.close)
            _check_widths(path, self._twin.open().spec, spec)
        self._twin.reset(1)
        return self._twin

    def give_to(self, run: SuiteRun) -> None:
        """The suite opens the device itself, and leaves it open from one statement to the next."""
        if self._reservoir is not None:
            self._reservoir.close()
        if self._suite is None:
            self._suite = run
            self._closing.callback(run.bench.close)

    def facts(self) -> dict[str, Any]:
        """Who was driven, for reports."""
        hash_ = configuration_hash(decisive(self.config))
        opened = self._reservoir if self._suite is None else self._suite.bench.reservoir
        if opened is not None and opened.is_open:
            identity = opened.spec.identity
            self._identity = {
                "fingerprint": identity.fingerprint,
                "simulated": identity.simulated,
                "firmware": identity.firmware,
            }
        return {**self._identity, "configuration_hash": hash_}

    def close(self) -> None:
        """Everything that was opened, in its safe state."""
        self._closing.close()

    def check_markers(self, item: Any) -> None:
        """Skip a test whose markers do not fit the device. Raises `pytest.UsageError` for an unknown capability."""
        assert self._reservoir is not None
        spec = self._reservoir.spec
        for marker in item.iter_markers("reservoir_needs"):
            for capability in marker.args:
                if not isinstance(getattr(ReservoirSpec, capability, getattr(spec, str(capability), None)), bool):
                    raise pytest.UsageError(
                        f"reservoir_needs({capability!r}): no capability of this name; there are snapshot, settable, "
                        "programmable, deterministic, differentiable"
                    )
                if not getattr(spec, capability):
                    reason = spec.not_supported.get(capability, "it does not declare it")
                    pytest.skip(f"{self.name} has no {capability}: {reason}")
        if spec.identity.simulated and item.get_closest_marker("reservoir_hardware"):
            pytest.skip(f"{self.name} is a simulation, and the test is for hardware")
        if not spec.identity.simulated and item.get_closest_marker("reservoir_simulation"):
            pytest.skip(f"{self.name} is hardware, and the test is for simulations")


def _check_widths(path: str, twin: ReservoirSpec, device: ReservoirSpec) -> None:
    if (twin.inputs, twin.nodes) != (device.inputs, device.nodes):
        raise ConfigurationError(
            f"hil.twin {path} has {twin.inputs} inputs and {twin.nodes} nodes, its device {device.inputs} and "
            f"{device.nodes}"
        )
