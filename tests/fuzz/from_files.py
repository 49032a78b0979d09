"""What lies in files and variables, and what people give as the name of a store.

Owns: the readers of it. Never: files that only a program of ours has written and read (``readers`` says which).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from clew import process_mark, stores
from clew.cli._errors import CommandError
from clew.cli._inputs import _json_argument
from clew.cli._profiles import FILE_VARIABLE, load_profile
from clew.client._target import parse_target
from clew.lint import check_paths
from clew.ports.store import StoreError, StoreIncompatible
from clew.server.settings import SettingsError, load_settings
from clew.storage.postgres.address import parse_address
from clew.storage.sqlite.connection import to_path
from clew.storage.sqlite.ownership import owner_path, read_owner
from tests.fuzz.target import Target, text

_PASSWORD = "pass-word"

FILE_BYTES_MAX = 5_000
"""Of what is fed as a file: `tomllib` takes time in the square of the dots of a key, and `ast` much memory.

That is no fault here, since whoever writes these files runs the programs that read them.
"""


def _with_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of a file."""

    def read_file(data: bytes) -> object:
        data = data[:FILE_BYTES_MAX]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            return read(path)

    return read_file


def _address(address: str) -> None:
    """Each says no in its own words, and no word of it has the password of a URL that is one."""
    for read, refusal in (
        (parse_target, ValueError), (parse_address, StoreIncompatible), (to_path, StoreError),
        (stores.name_of, ValueError),
    ):  # fmt: skip
        if read is to_path and stores.is_shared(address):
            continue  # it never gets such a one
        said = ""
        try:
            read(address)
        except refusal as error:
            said = str(error)
        if address.startswith(f"postgresql://user:{_PASSWORD}@") and address.count(_PASSWORD) == 1:
            assert _PASSWORD not in said, read
    with contextlib.suppress(StoreIncompatible):
        parse_address(address).driver_options()


def _profile(path: Path) -> None:
    before = os.environ.get(FILE_VARIABLE)
    os.environ[FILE_VARIABLE] = str(path)
    try:
        profile = load_profile("p")
        # Files that it names are not looked for: they would be this machine's own.
        if not profile.api_key_file:
            profile.credentials()
        if isinstance(profile.tls, bool):
            profile.tls_config()
    finally:
        del os.environ[FILE_VARIABLE]
        if before is not None:
            os.environ[FILE_VARIABLE] = before


def _key_file(path: Path) -> None:
    profile = path.with_name("clew.toml")
    profile.write_text(f'[profile.p]\napi_key_file = "{path}"\n')
    os.environ[FILE_VARIABLE] = str(profile)
    try:
        load_profile("p").credentials()
    finally:
        del os.environ[FILE_VARIABLE]


def _environment(variables: str) -> None:
    """Lines ``name=value``."""
    pairs = [line.partition("=") for line in variables.split("\n")[:50]]
    load_settings(environment={f"CLEW_SERVER_{name.upper()}": value for name, _, value in pairs if name})


def _owner(path: Path) -> None:
    os.rename(path, owner_path(str(path)))
    read_owner(str(path))


def _mark(mark: str) -> None:
    """A mark of a process that never was, in place of this process's own too."""
    place, _, _ = process_mark.mark_of_this_process().rpartition("|")
    process_mark.has_ended(mark)
    process_mark.has_ended(f"{place}|{mark}")


_SOURCE = b"""
from clew import workflow
import time, x.y as z
@workflow.defn
class W:
    @workflow.run
    async def run(self, n: 'list[int]') -> int:
        with workflow.unsafe.imports_passed_through():
            time.sleep(1)
        return z.f(*n)[0] if n else await self.g(n=lambda: 1)
"""


def _source(path: Path) -> None:
    """A module that is linted."""
    for finding in check_paths([path]):
        assert finding.code.startswith("CLW")


FROM_FILES: dict[str, Target] = {
    "connection_string": Target(
        text(_address),
        (),
        (
            b"sqlite:claims.db",
            b"sqlite:///srv/a.db",
            b"localhost:7233,[::1]:7234",
            b"postgresql://user:pass-word@host:5432/db?schema=a&pool_size=4&lease=2.5&pool_mode=transaction&sslmode=require",
        ),
        (
            b"postgresql://user:pass-word@",
            b"[",
            b"]",
            b"\xe2\x84\x80",
            b"?pool_size=",
            b"&shards=",
            b"9" * 5_000,
            b"nan",
            b"%",
            b"#",
        ),
    ),
    "profile": Target(
        _with_file("clew.toml", _profile),
        (CommandError,),
        (
            b'[profile.p]\naddress = "host:7233"\napi_key = "k"\n[profile.p.tls]\ndomain = "d"\n',
            b"[profile.p]\ntls = true\n",
        ),
        (
            b"[profile.p]\n",
            b"address = ",
            b"= " + b"9" * 5_000,
            b"= " + b"[" * 1_500,
            b"2026-01-01",
            b"'''",
            b"inf",
            b"\n",
        ),
    ),
    "key_file": Target(_with_file("key", _key_file), (CommandError,), (b"clew_key\n",), (b"\xff", b"\x00")),
    "server_settings": Target(
        _with_file("server.toml", lambda path: load_settings(file=path)),
        (SettingsError,),
        (
            b'port = 7233\nshutdown_seconds = 1.5\n[[tokens]]\nissuer = "https://i"\naudience = ["a"]\n',
            b'[tls]\ncertificate = "a"\nkey = "b"\n[rate_limit]\ncalls_per_second = 1\n',
        ),
        (
            b"port = ",
            b"= nan\n",
            b"shutdown_seconds",
            b"= " + b"9" * 5_000,
            b"= " + b"[" * 1_500,
            b"trusted_proxies = ['",
            b"\n",
        ),
    ),
    "server_variables": Target(
        text(_environment),
        (SettingsError,),
        (b'port=7233\nweb=false\nallowed_hosts=["a"]\nrate_limit={"calls_per_second":1}',),
        (b"port=", b"shutdown_seconds=nan", b"tokens=[", b"=" + b"[" * 1_500, b"9" * 5_000, b"\n"),
    ),
    "owner_file": Target(
        _with_file("a.db", _owner),
        (),
        (b'{"pid":1,"host":"h","program":"p"}',),
        (b'{"pid":', b'"x":' + b"[" * 2_000, b'"host":"'),
    ),
    "process_mark": Target(text(_mark), (), (b"boot pid:[1] host|99999999", b"1"), (b"|", b"9" * 5_000, b"-", b"0")),
    "json_argument": Target(
        lambda data: _json_argument("--input number 1", data),
        (CommandError,),
        (b'{"a":[1]}', b"\n7 "),
        (b"[" * 2_000, b'"'),
    ),
    "source": Target(
        _with_file("w.py", _source),
        (),
        (_SOURCE,),
        (
            b"(" * 150,
            b"-" * 1_500,
            b"\x00",
            b"import w",
            b"from . import ",
            b"*",
            b"@workflow.defn\n",
            b"'''",
            b": 'list['",
            b"a." * 900,
        ),
    ),
}
