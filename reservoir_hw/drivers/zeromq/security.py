"""CURVE keys: who a device is, and who may drive it."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from reservoir_hw.core.errors import ConfigurationError
from reservoir_hw.drivers.zeromq.addresses import is_local

_Z85_LENGTH = 40
_DOMAIN = "reservoir_hw"


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85 text."""

    public: bytes
    secret: bytes


@dataclass(frozen=True)
class Allowed:
    """The keys of a server, and the public keys of those it lets in, with the names of their files."""

    server: KeyPair
    clients: Mapping[bytes, str]

    @classmethod
    def from_files(cls, secret_key: str | Path, clients: str | Path) -> Allowed:
        """From the server's `.key_secret` and a folder with a `.key` file for each client."""
        folder = Path(clients)
        if not folder.is_dir():
            raise ConfigurationError(f"{folder} is not a folder with the public keys (.key) of the clients")
        keys = {read_public(path): path.stem for path in sorted(folder.glob("*.key"))}
        if not keys:
            raise ConfigurationError(f"{folder} holds no .key file: nobody could drive the device")
        return cls(read_pair(secret_key), keys)

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket let in nobody else. To be called before it is bound."""
        socket.curve_publickey, socket.curve_secretkey = self.server.public, self.server.secret
        socket.curve_server = True
        socket.zap_domain = _DOMAIN.encode()

    def callback(self, _domain: str, key: bytes) -> bool:
        """Whether this client may come in (ZAP)."""
        return key in self.clients

    def name_of(self, user_id: str | None) -> str:
        """Whose key a sender has shown, from the key itself."""
        return self.clients[str(user_id).encode()]


def check_guarded(addresses: Iterable[str], allowed: Allowed | None, *, insecure: bool) -> None:
    """Raise `ConfigurationError` if others can reach one of these addresses without a key, and that is not wanted."""
    reachable = next((address for address in addresses if not is_local(address)), None)
    if allowed is None and not insecure and reachable is not None:
        raise ConfigurationError(
            f"{reachable} can be reached by other hosts: give keys (reservoir-hw device keys makes them), bind to "
            "127.0.0.1 or ipc, or say --insecure (insecure=True) if everybody in that network may drive the device"
        )


@contextlib.contextmanager
def admit(context: zmq.Context[Any], allowed: Allowed | None) -> Iterator[None]:
    """While the sockets of this context let in those with a key, and nobody else."""
    if allowed is None:
        yield
        return
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    try:
        authenticator.configure_curve_callback(_DOMAIN, credentials_provider=allowed)
        yield
    finally:
        authenticator.stop()


def make_keys(folder: str | Path, name: str) -> tuple[Path, Path]:
    """A new pair in `name.key` (for others) and `name.key_secret` (for nobody else); existing files stay."""
    folder = Path(folder)
    for suffix in (".key", ".key_secret"):
        if (folder / f"{name}{suffix}").exists():
            raise ConfigurationError(f"{folder / name}{suffix} exists already: remove it, or choose another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o077)
        try:
            public, secret = zmq.auth.create_certificates(str(folder), name)
        finally:
            os.umask(before)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written to: {error.strerror}") from error
    return Path(public), Path(secret)


def read_public(path: str | Path) -> bytes:
    """The public key in a certificate file, or given as 40 characters of Z85."""
    if isinstance(path, str) and len(path) == _Z85_LENGTH and not Path(path).exists():
        key = path.encode()
        _check_key(key, f"{path!r} is neither a key file nor a key: it")
        return key
    return _read(path)[0]


def read_pair(path: str | Path) -> KeyPair:
    """The pair in a `.key_secret` file."""
    public, secret = _read(path)
    if secret is None:
        raise ConfigurationError(f"{path} holds a public key only; the .key_secret file is needed here")
    _check_key(secret, f"{path}: its secret key")
    if zmq.curve_public(secret) != public:
        raise ConfigurationError(f"{path}: its secret key does not belong to its public key; make a new pair")
    return KeyPair(public, secret)


def _read(path: str | Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} is not a key file: {error} (reservoir-hw device keys makes them)") from error
    _check_key(public, f"{path}: its key")
    return public, secret


def _check_key(key: bytes, what: str) -> None:
    try:
        if len(key) != _Z85_LENGTH:
            raise ValueError
        z85.decode(key)
    except (ValueError, KeyError, struct.error, UnicodeError) as error:
        raise ConfigurationError(f"{what} is not 40 characters of Z85") from error
