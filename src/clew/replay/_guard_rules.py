"""What workflow code may not call, and what to use instead.

Owns: the tables of the determinism guard. Never: how a call is caught (`guard` does that).

How it works: `PATCHES` names functions that are wrapped where they live, `AUDITED` the interpreter's audit events
(`sys.audit`) that stand for a reach outside. Each leads to a `Rule`, whose remedy ends the error message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to refuse a call.

    Args:
        reason: Why it cannot be repeated, a clause.
        remedy: What to use instead, a sentence.
        is_user_only: Refuse only what workflow code calls itself; the standard library may use it for its own ends.
    """

    reason: str
    remedy: str
    is_user_only: bool = False
    spared_packages: tuple[str, ...] = ()
    """Installed packages whose own use is let pass; ``*`` for all of them."""


CLOCK: Final = Rule(
    "a replay would read another time",
    "Use workflow.now() (a datetime) or workflow.time() (seconds).",
)
SLEEP: Final = Rule(
    "it stops the worker's thread and is not durable",
    "Use `await workflow.sleep(...)` or `await asyncio.sleep(...)`, which are durable timers.",
)
CHANCE: Final = Rule(
    "a replay would draw another value",
    "Use workflow.random() for numbers and workflow.uuid4() for ids.",
)
THREADS: Final = Rule(
    "what runs beside the workflow is not in its history",
    "Use asyncio.create_task for concurrency inside the workflow, and an activity for work outside it.",
)
WAITS: Final = Rule(
    "it blocks the worker's thread on something that is not in the workflow's history",
    "Use `await workflow.wait_condition(...)` or asyncio's Lock, Event, Semaphore and Queue.",
)
LOCKS: Final = Rule(
    "a lock of threads guards nothing inside a workflow and can block the worker's thread",
    "Use asyncio.Lock or `await workflow.wait_condition(...)`.",
    is_user_only=True,
    spared_packages=("*",),
)
OUTSIDE: Final = Rule(
    "the outside world is not in the workflow's history",
    "Do it in an activity: `await workflow.execute_activity(...)`.",
)
ENVIRONMENT: Final = Rule(
    "another process has another environment",
    "Read it in an activity, or pass the value as an argument of the workflow.",
    is_user_only=True,
    spared_packages=("pydantic",),
)

Condition = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]


def _reads_clock_by_default(position: int) -> Condition:
    """Whether the instant, the argument at `position`, is missing, so that the present one is taken."""
    return lambda args, kwargs: len(args) <= position or args[position] is None


def _may_block(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return bool(kwargs.get("blocking", args[1] if len(args) > 1 else True))


def _is_unseeded(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return kwargs.get("a", args[1] if len(args) > 1 else None) is None


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute to wrap: ``owner`` is a module, or a class as ``module:Class``."""

    owner: str
    name: str
    rule: Rule
    when: Condition | None = None
    shown: str = ""
    """How the error calls it, if not by its own name."""


_CLOCK_NAMES: Final = (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns",
    "process_time", "process_time_ns", "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns",
)  # fmt: skip

CLOCK_PATCHES: Final = (
    *(Patch("time", name, CLOCK) for name in _CLOCK_NAMES),
    Patch("time", "localtime", CLOCK, _reads_clock_by_default(0)),
    Patch("time", "gmtime", CLOCK, _reads_clock_by_default(0)),
    Patch("time", "ctime", CLOCK, _reads_clock_by_default(0)),
    Patch("time", "asctime", CLOCK, _reads_clock_by_default(0)),
    Patch("time", "strftime", CLOCK, _reads_clock_by_default(1)),
    Patch("time", "sleep", SLEEP),
)
"""Apart from the others, because they must step aside for libraries that replace the clock themselves."""

_RANDOM_NAMES: Final = (
    "random", "getrandbits", "randbytes", "randrange", "randint", "choice", "choices", "shuffle", "sample", "uniform",
    "triangular", "betavariate", "binomialvariate", "expovariate", "gammavariate", "gauss", "lognormvariate",
    "normalvariate", "paretovariate", "vonmisesvariate", "weibullvariate", "seed", "getstate", "setstate",
)  # fmt: skip

PATCHES: Final = (
    *(Patch("random", name, CHANCE) for name in _RANDOM_NAMES),
    Patch("random:Random", "seed", CHANCE, _is_unseeded),
    # The name under which `random`, and through it `secrets`, draws from the operating system.
    Patch("random", "_urandom", CHANCE, shown="os.urandom"),
    # Before it draws a name for the file.
    Patch("tempfile", "_get_candidate_names", OUTSIDE, shown="tempfile"),
    # Before the first use of the module looks for a folder, under names that it draws.
    Patch("tempfile", "_get_default_tempdir", OUTSIDE, shown="tempfile"),
    Patch("os", "urandom", CHANCE),
    Patch("os", "getrandom", CHANCE),
    Patch("uuid", "uuid1", CHANCE),
    Patch("uuid", "uuid4", CHANCE),
    Patch("uuid", "uuid6", CHANCE),
    Patch("uuid", "uuid7", CHANCE),
    Patch("uuid", "getnode", CHANCE),
    Patch("os:_Environ", "__getitem__", ENVIRONMENT, shown="os.environ"),
    Patch("os:_Environ", "__iter__", ENVIRONMENT, shown="os.environ"),
    Patch("os:_Environ", "__len__", ENVIRONMENT, shown="os.environ"),
    Patch("os:_Environ", "copy", ENVIRONMENT, shown="os.environ"),
    Patch("threading", "Lock", LOCKS),
    Patch("threading", "RLock", LOCKS),
    Patch("threading:Condition", "wait", WAITS),
    Patch("threading:Event", "wait", WAITS),
    Patch("threading:Barrier", "wait", WAITS),
    Patch("threading:Semaphore", "acquire", WAITS, _may_block),
    Patch("threading:Thread", "start", THREADS),
    Patch("threading:Thread", "join", WAITS),
    Patch("concurrent.futures:Future", "result", WAITS),
    Patch("concurrent.futures.thread:ThreadPoolExecutor", "submit", THREADS),
)

LATE_PATCHES: Final = (
    Patch("concurrent.futures.process:ProcessPoolExecutor", "submit", THREADS),
    Patch("multiprocessing.process:BaseProcess", "start", THREADS),
    Patch("psycopg:Connection", "connect", OUTSIDE),
    Patch("psycopg:AsyncConnection", "connect", OUTSIDE),
    Patch("psycopg2", "connect", OUTSIDE),
    Patch("MySQLdb", "connect", OUTSIDE),
    Patch("pyodbc", "connect", OUTSIDE),
    Patch("oracledb", "connect", OUTSIDE),
    Patch("duckdb", "connect", OUTSIDE),
)
"""Wrapped once something has imported them. The drivers' C code opens sockets and files unseen by the interpreter."""

_OS_EVENTS: Final = (
    "chdir", "chflags", "chmod", "chown", "link", "listdir", "listxattr", "lockf", "mkdir", "remove", "removexattr",
    "rename", "rmdir", "scandir", "setxattr", "symlink", "truncate", "utime", "walk", "fwalk", "getxattr",
)  # fmt: skip
_PROCESS_EVENTS: Final = ("exec", "fork", "forkpty", "posix_spawn", "spawn", "startfile", "system", "kill", "killpg")
_SOCKET_EVENTS: Final = (
    "__new__", "bind", "connect", "getaddrinfo", "gethostbyaddr", "gethostbyname", "gethostname", "getnameinfo",
    "getservbyname", "getservbyport", "sendmsg", "sendto", "sethostname",
)  # fmt: skip
_OTHER_EVENTS: Final = (
    "open", "builtins.input", "fcntl.fcntl", "fcntl.flock", "fcntl.lockf", "ftplib.connect", "glob.glob",
    "http.client.connect", "imaplib.open", "mmap.__new__", "pathlib.Path.glob", "pathlib.Path.rglob", "poplib.connect",
    "pty.spawn", "shutil.copyfile", "shutil.copytree", "shutil.make_archive", "shutil.move", "shutil.rmtree",
    "shutil.unpack_archive", "smtplib.connect", "sqlite3.connect", "subprocess.Popen", "syslog.openlog",
    "syslog.syslog", "tempfile.mkdtemp", "tempfile.mkstemp", "urllib.Request", "webbrowser.open", "winreg.OpenKey",
)  # fmt: skip

AUDITED: Final[Mapping[str, Rule]] = {
    **{f"os.{name}": OUTSIDE for name in _OS_EVENTS},
    **{f"os.{name}": OUTSIDE for name in _PROCESS_EVENTS},
    **{f"socket.{name}": OUTSIDE for name in _SOCKET_EVENTS},
    **dict.fromkeys(_OTHER_EVENTS, OUTSIDE),
    "os.putenv": ENVIRONMENT,
    "os.unsetenv": ENVIRONMENT,
    "time.sleep": SLEEP,
    "_thread.start_new_thread": THREADS,
    "_thread.start_joinable_thread": THREADS,
}

PASSED_MODULES: Final = frozenset(
    {
        # Imports read files, and a module's top level may look at its surroundings.
        "importlib._bootstrap", "importlib._bootstrap_external", "zipimport", "pkgutil",
        "importlib.metadata",
        # Those that observe: nothing they learn comes back into the workflow.
        "logging", "warnings", "traceback", "linecache", "tokenize", "inspect", "structlog", "loguru", "opentelemetry",
        "sentry_sdk", "ddtrace", "coverage", "bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy",
        # Data of the time zones; and the payload converter, which makes and caches pydantic's validators.
        "zoneinfo", "clew.converter",
    }
)  # fmt: skip
"""While one of these is on the stack between the workflow and the call, the call is let through."""

CLOCK_REPLACERS: Final = frozenset({"time_machine", "_time_machine"})
"""Libraries that overwrite the C functions of the clock in place, and would crash on wrapped ones."""
