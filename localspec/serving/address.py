"""Where a server is, and the key that it is told."""

import importlib
from dataclasses import dataclass
from typing import Self

from localspec.environment import server_key
from localspec.errors import UsageMistake
from localspec.setting_checks import SERVER_URL

KEYRING = "localspec"  # the service under which the system's keyring may hold the key, by the address


@dataclass(frozen=True)
class ServerAddress:
    """An address as it is shown, and its parts; `base` is the path that all others begin with."""

    url: str
    secure: bool
    host: str
    port: int
    base: str

    @classmethod
    def of(cls, url: str) -> Self:
        """The parts of an address that the settings have taken; `/v1` is meant where it has no path."""
        found = SERVER_URL.fullmatch(url)
        assert found is not None
        secure = found["scheme"] == "https"
        port = int(found["port"] or (443 if secure else 80))
        if not 0 < port < 2**16:
            raise UsageMistake(f"{url} names port {port}, and there are 1 to 65535; correct it.")
        path = (found["path"] or "").rstrip("/") or "/v1"
        return cls(url.rstrip("/"), secure, found["host"].strip("[]"), port, path)

    @property
    def name(self) -> str:
        """Its host and port, as a person tells servers apart."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port in (80, 443) else f"{host}:{self.port}"

    @property
    def crosses_a_network_in_the_clear(self) -> bool:
        """Whether others could read what is sent there."""
        return not self.secure and self.host not in ("localhost", "::1") and not self.host.startswith("127.")


def key_for(address: ServerAddress) -> str | None:
    """The key of the environment, else the one that the system's keyring holds for this address, if there is one.

    Raises UsageMistake for one that no header can carry.
    """
    key = server_key() or _kept(address.url)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageMistake("The key for the server is not printable ASCII; correct LOCALSPEC_SERVER_KEY.")
    return key


def _kept(url: str) -> str | None:
    try:
        keyring = importlib.import_module("keyring")
    except ImportError:
        return None
    try:
        found = keyring.get_password(KEYRING, url)
    except Exception:  # noqa: BLE001  # a keyring that is locked, or none; the server then says that a key is missing
        return None
    return found if isinstance(found, str) and found else None
