"""Which calls no replay can repeat, by their names.

Owns: the verdict on one call of something outside the project. Never: finds calls, or knows what a name stands for.

How it works: names come from the guard's own tables, so that what is refused at run time is found before it. Where the
guard watches an event of the interpreter (``subprocess.Popen``) or a method inside (``os:_Environ``), the names that an
author writes are listed here (`_WRITTEN`); so are libraries of which the guard only sees sockets and files
(`_PACKAGES`). Conditions of the guard ("only without an argument") are asked with what the text tells of the arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from clew.lint._rules import BY_GUARD_RULE, LintRule
from clew.replay import _guard_rules as guard

_GIVEN: Final = object()
"""An argument of which only the presence is known."""

_WRITTEN: Final[Mapping[str, guard.Rule]] = {
    **dict.fromkeys(
        ("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        guard.CLOCK,
    ),
    **dict.fromkeys(("os.getenv", "os.getenvb", "os.environ", "os.environb", "os.putenv"), guard.ENVIRONMENT),
    **dict.fromkeys(
        ("builtins.open", "io.open", "os.open", "builtins.input", "os.popen", "os.getcwd", "os.stat", "os.path.exists",
         "os.path.lexists", "os.path.getmtime", "os.path.getsize", "os.path.isfile", "os.path.isdir", "os.path.islink",
         "os.lstat", "os.access", "os.getpid", "os.getppid", "os.getlogin", "getpass.getuser", "platform.node",
         "urllib.request.urlopen",
         "urllib.request.urlretrieve", "asyncio.open_connection", "asyncio.start_server",
         "asyncio.open_unix_connection", "asyncio.start_unix_server"),
        guard.OUTSIDE,
    ),
    **dict.fromkeys(
        ("asyncio.to_thread", "asyncio.run", "asyncio.run_coroutine_threadsafe", "asyncio.Runner", "threading.Thread",
         "threading.Timer", "_thread.start_new_thread", "os.cpu_count"),
        guard.THREADS,
    ),
    **dict.fromkeys(
        ("threading.Condition", "threading.Semaphore", "threading.BoundedSemaphore", "threading.Event",
         "threading.Barrier", "threading.Lock", "threading.RLock"),
        guard.LOCKS,
    ),
    **dict.fromkeys(
        ("concurrent.futures.wait", "concurrent.futures.as_completed", "queue.Queue.get", "queue.Queue.put",
         "queue.SimpleQueue.get", "select.select"),
        guard.WAITS,
    ),
    "random.SystemRandom": guard.CHANCE,
}  # fmt: skip

_REPEATABLE: Final = frozenset({
    "uuid.uuid3", "socket.inet_aton", "socket.inet_ntoa", "socket.htons", "socket.ntohs", "socket.htonl", "httpx.URL",
    "httpx.Headers", "httpx.QueryParams", "httpx.Timeout", "subprocess.list2cmdline", "sqlalchemy.text",
})  # fmt: skip
"""Names within `_PACKAGES` that only compute."""

_PACKAGES: Final[Mapping[str, guard.Rule]] = {
    **dict.fromkeys(
        ("subprocess", "socket", "http.client", "ftplib", "smtplib", "imaplib", "poplib", "telnetlib", "sqlite3",
         "glob", "shutil", "tempfile", "mmap", "fcntl", "pty", "syslog", "webbrowser", "winreg", "requests", "httpx",
         "aiohttp", "urllib3", "boto3", "botocore", "aioboto3", "psycopg", "psycopg2", "asyncpg", "aiosqlite",
         "pymysql", "aiomysql", "MySQLdb", "pyodbc", "oracledb", "duckdb", "pymongo", "motor", "redis", "kafka",
         "aiokafka", "pika", "aio_pika", "paramiko", "grpc", "websockets", "aiofiles", "elasticsearch"),
        guard.OUTSIDE,
    ),
    "secrets": guard.CHANCE,
    "multiprocessing": guard.THREADS,
    "concurrent.futures": guard.THREADS,
}  # fmt: skip
"""Libraries of which every call is one."""

_PATH_METHODS: Final = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "is_symlink", "stat",
    "lstat", "mkdir", "rmdir", "unlink", "rename", "replace", "touch", "iterdir", "glob", "rglob", "walk", "resolve",
    "chmod", "symlink_to", "hardlink_to", "readlink", "samefile", "owner", "group", "home", "cwd", "expanduser", "copy",
    "move",
})  # fmt: skip

_LOOP_METHODS: Final = frozenset({
    "run_in_executor", "create_connection", "create_server", "create_datagram_endpoint", "subprocess_exec",
    "subprocess_shell", "getaddrinfo", "sock_connect", "add_reader", "add_writer", "run_until_complete", "run_forever",
})  # fmt: skip


def _names_of_guard() -> dict[str, tuple[guard.Rule, guard.Condition | None]]:
    names: dict[str, tuple[guard.Rule, guard.Condition | None]] = {}
    for patch in (*guard.CLOCK_PATCHES, *guard.PATCHES, *guard.LATE_PATCHES):
        names[f"{patch.owner.replace(':', '.')}.{patch.name}"] = (patch.rule, patch.when)
    # A generator without a seed is made by its class.
    names["random.Random"] = (guard.CHANCE, lambda args, kwargs: not args and not kwargs)
    for event, rule in guard.AUDITED.items():
        names[event] = (rule, None)
    for name, rule in _WRITTEN.items():
        names[name] = (rule, None)
    for name in _REPEATABLE:
        names.pop(name, None)
    return names


NAMES: Final[Mapping[str, tuple[guard.Rule, guard.Condition | None]]] = _names_of_guard()
"""What is known by its full name."""

_SHORTENED: Final = {
    "concurrent.futures.thread.": "concurrent.futures.",
    "concurrent.futures.process.": "concurrent.futures.",
}


def rule_of(dotted: str, call: ast.Call | None) -> LintRule | None:
    """Give the rule that a call, or a mention, of something breaks; None if none.

    Args:
        dotted: Its full name, as ``time.time``; a method as that of its class, as ``pathlib.Path.open``.
        call: The call; None for a mention, which is taken for a call without arguments.
    """
    for long, short in _SHORTENED.items():
        if dotted.startswith(short) and f"{long}{dotted.removeprefix(short)}" in NAMES:
            dotted = f"{long}{dotted.removeprefix(short)}"
    found = _guard_rule_of(dotted, call)
    return BY_GUARD_RULE[id(found)] if found is not None else None


def _guard_rule_of(dotted: str, call: ast.Call | None) -> guard.Rule | None:
    if dotted in _REPEATABLE:
        return None
    owner, _, name = dotted.rpartition(".")
    if dotted in NAMES:
        rule, when = NAMES[dotted]
        return rule if when is None or when(*_arguments(call, is_method=_is_class(owner))) else None
    if owner in ("pathlib.Path", "pathlib.PosixPath", "pathlib.WindowsPath"):
        return guard.OUTSIDE if name in _PATH_METHODS else None
    if owner.endswith("AbstractEventLoop"):
        return (guard.THREADS if name == "run_in_executor" else guard.OUTSIDE) if name in _LOOP_METHODS else None
    if owner.startswith("asyncio") and name.startswith("create_subprocess"):
        return guard.OUTSIDE
    return _rule_of_package(dotted)


def _rule_of_package(dotted: str) -> guard.Rule | None:
    name = dotted.rpartition(".")[2]
    if name.endswith(("Error", "Exception", "Warning")):
        return None
    package = dotted
    while "." in package:
        package = package.rpartition(".")[0]
        if package in _PACKAGES:
            return _PACKAGES[package]
    return None


def _is_class(dotted: str) -> bool:
    return dotted.rpartition(".")[2][:1].isupper()


def _arguments(call: ast.Call | None, *, is_method: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a condition of the guard gets them; constants as they are, the rest as something."""
    args: list[Any] = [_GIVEN] if is_method else []
    kwargs: dict[str, Any] = {}
    if call is not None:
        for arg in call.args:
            # However many there are behind a star, taken as enough.
            args += [_GIVEN] * 8 if isinstance(arg, ast.Starred) else [_value_of(arg)]
        kwargs = {keyword.arg: _value_of(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    return tuple(args), kwargs


def _value_of(node: ast.expr) -> Any:
    return node.value if isinstance(node, ast.Constant) else _GIVEN
