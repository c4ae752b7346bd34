"""Replacing a file: whatever happens, its path holds the old content or the new one, and never a part of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from reservoir_hw.core.errors import ConfigurationError

# What systems answer that open no folders, or have nothing to settle in them. A rename is whole there all the same.
_NOT_SETTLED = {errno.EACCES, errno.EPERM, errno.EINVAL, errno.EBADF, errno.EISDIR, errno.ENOTSUP}


def replace_file(path: str | os.PathLike[str], content: bytes | memoryview | str) -> None:
    """Put a file with this content (text as UTF-8) at `path`. Raises as `replacing`."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write a file to; it takes the place of `path` at the end, or is removed after an error.

    The content is on the disk before the file takes its name, and the name is on the disk at the end. Errors of the
    system are raised as `OSError`s that name `path`.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        settle_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, f"cannot write {path}: {error.strerror or error}") from error
        raise


def write_safetensors(
    path: str | os.PathLike[str],
    save_file: Callable[..., None],
    tensors: Mapping[str, Any],
    metadata: dict[str, str] | None = None,
) -> None:
    """Replace a file by tensors and metadata, with the `save_file` of safetensors for their library.

    Equal content gives equal bytes, and whoever may read other files may read it: the library orders metadata at
    random, and writes for its user alone. Raises as `replacing`, and `SafetensorError`.
    """
    from safetensors import SafetensorError

    with replacing(path) as partial:
        partial.touch()
        mode = partial.stat().st_mode
        try:
            save_file(tensors, partial, metadata=metadata)
        except SafetensorError as error:
            # It wraps the error of the system, such as that of a full disk.
            if (number := re.search(r"os error (\d+)", str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        partial.chmod(mode)
        with open(partial, "rb+") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            file.seek(8)
            text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
            file.write(text.encode().ljust(length))


FORMAT_VERSION = "1"
"""Of files that `write_tensors` writes."""


def write_tensors(
    path: str | os.PathLike[str],
    save_file: Callable[..., None],
    tensors: Mapping[str, Any],
    facts: Mapping[str, Any],
    form: str,
) -> None:
    """Replace a file by arrays or tensors, and facts that JSON holds. `form` says what it is, such as "checkpoint"."""
    text = json.dumps(facts, sort_keys=True)
    metadata = {"format": form, "version": FORMAT_VERSION, "facts": text, "sha256": checksum(tensors, text)}
    write_safetensors(path, save_file, tensors, metadata)


def read_tensors(path: str | os.PathLike[str], framework: str, form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `write_tensors` wrote, for "numpy" or "pt" (torch): arrays or tensors, and facts.

    Raises `ConfigurationError` if the file is missing, damaged or something else.
    """
    name = os.fspath(path)
    tensors, metadata = read_safetensors(path, form, framework)
    if metadata.get("format") != form:
        raise ConfigurationError(
            f"{name} is a safetensors file, but no {form}: it names its format {metadata.get('format')!r}"
        )
    if metadata.get("version") != FORMAT_VERSION:
        raise ConfigurationError(
            f"{name} is a {form} of version {metadata.get('version')}, this package reads version {FORMAT_VERSION}: "
            "use the package that wrote it, or a newer one"
        )
    text = metadata.get("facts", "")
    if metadata.get("sha256") != checksum(tensors, text):
        raise ConfigurationError(
            f"{name} is damaged: its content does not have the SHA-256 that it names; copy it again"
        )
    return tensors, json.loads(text)


def checksum(tensors: Mapping[str, Any], text: str = "") -> str:
    """SHA-256 of a text, and of names, shapes, types and values of arrays or tensors of torch."""
    digest = hashlib.sha256(text.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        flat = value.reshape(-1)
        if hasattr(flat, "detach"):
            # As bytes: numpy has no bfloat16.
            import torch

            flat = flat.detach().cpu().view(torch.uint8).numpy()
        digest.update(flat.data)
    return digest.hexdigest()


def read_safetensors(path: str | os.PathLike[str], what: str, framework: str = "numpy") -> tuple[dict[str, Any], Any]:
    """Arrays by name, or tensors of torch (framework "pt"), and the metadata, text by text.

    Raises `ConfigurationError` that names `what` the file should be, where it is missing or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework=framework) as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return arrays, file.metadata() or {}
    except FileNotFoundError as error:
        raise ConfigurationError(f"there is no {what} {path}") from error
    except (OSError, SafetensorError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read as a {what} (safetensors): {error}; is it damaged?") from error


def must_be_writable(path: str | os.PathLike[str], what: str) -> None:
    """Raise `ConfigurationError` unless a file can be written there. It is made if there is none."""
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise ConfigurationError(f"{path}: {what} cannot be written there: {error.strerror}") from error


def make_folder(path: Path, option: str = "-o") -> None:
    """A folder for results, with those above it; `option` names another.

    Raises `ConfigurationError` where that is not possible.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{path} cannot be made: {why}; name another with {option}") from error


def settle_folder(path: Path) -> None:
    """Wait until the entries of a folder are on the disk, where the system can say so."""
    try:
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        if error.errno not in _NOT_SETTLED:
            raise
