"""Connection profiles: where commands work, by name.

Owns: the file of profiles and the one precedence: flag, then environment, then profile, then default. Never: connects.

How it works: the file is ``clew.toml`` in the user's configuration directory (or ``CLEW_CONFIG_FILE``), with one
table a profile, ``[profile.NAME]``. ``--profile`` or ``CLEW_PROFILE`` names one; the one named ``default`` is used
when none is.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Final

import msgspec

from clew.cli._errors import CommandError
from clew.service.tls import TLSConfig

DEFAULT: Final = "default"
FILE_VARIABLE: Final = "CLEW_CONFIG_FILE"


class TLSFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files in PEM for TLS; see ``client.TLSConfig``."""

    server_root_ca_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    domain: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file.

    Args:
        address: Connection string of a store, or ``host:port`` of a server.
        namespace: In which commands work.
        output: ``table``, ``json`` or ``jsonl``.
        api_key: Credentials for a server.
        api_key_file: A file that holds them.
        tls: Whether to speak TLS, or with which files.
    """

    address: str = ""
    namespace: str = ""
    output: str = ""
    api_key: str = ""
    api_key_file: str = ""
    tls: bool | TLSFiles = False

    def credentials(self) -> str | None:
        """The key for a server, if there is one.

        Raises:
            CommandError: Its file cannot be read.
        """
        if self.api_key_file:
            try:
                return _read(self.api_key_file, "api_key_file").decode().strip()
            except UnicodeDecodeError as error:
                raise CommandError(
                    f"The file {self.api_key_file} (api_key_file) holds no API key: it is not text. Expected: one "
                    "line, as `clew key create` tells it."
                ) from error
        return self.api_key or None

    def tls_config(self) -> bool | TLSConfig | None:
        """How to speak TLS; None for the default.

        Raises:
            CommandError: A file cannot be read.
        """
        files = self.tls
        if isinstance(files, bool):
            return files or None
        return TLSConfig(
            server_root_ca_cert=_read_if(files.server_root_ca_file, "server_root_ca_file"),
            domain=files.domain or None,
            client_cert=_read_if(files.client_cert_file, "client_cert_file"),
            client_private_key=_read_if(files.client_key_file, "client_key_file"),
        )


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    profile: dict[str, Profile] = msgspec.field(default_factory=dict[str, Profile])


def profiles_path() -> Path:
    """Where the file is, or would be."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "clew" / "clew.toml"


def load_profile(name: str | None) -> Profile:
    """The profile of that name; an empty one when none was named and there is no default.

    Raises:
        CommandError: There is none of that name, or the file cannot be read.
    """
    path = profiles_path()
    if not path.exists():
        if name is not None:
            raise CommandError(f"There is no profile {name!r}: there is no file {path}.")
        return Profile()
    found = _load(path).profile
    if name is None:
        return found.get(DEFAULT, Profile())
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"There are: {', '.join(sorted(found)) or 'none'}."
        raise CommandError(f"There is no profile {name!r} in {path}. {hint}")
    return found[name]


def _load(path: Path) -> _File:
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except OSError as error:
        raise CommandError(f"Cannot read the profiles in {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError and ValidationError are of the former
        raise CommandError(
            f"The profiles in {path} cannot be read: {error}. Expected tables [profile.NAME] with address, namespace, "
            "output, api_key or api_key_file, and tls."
        ) from error


def _read_if(path: str, name: str) -> bytes | None:
    return _read(path, name) if path else None


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise CommandError(f"Cannot read {name} {path}: {error.strerror}.") from error
