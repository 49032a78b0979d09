"""The determinism guard: every row of the table, what must pass, and what it costs others."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime as dt
import io
import logging
import os
import pathlib
import pickle
import queue
import random
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clew.exceptions import NondeterminismError, RestrictedWorkflowAccessError
from clew.replay import guard
from tests.unit.replay import _aliases

LABEL = "ClaimWorkflow claim-17"


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    guard.uninstall()
    guard.install()
    yield
    guard.exit()
    guard.uninstall()


def refused(call: Callable[[], Any]) -> RestrictedWorkflowAccessError:
    with pytest.raises(RestrictedWorkflowAccessError) as caught, guard.activated(LABEL):
        call()
    assert not guard.is_guarded()
    return caught.value


POOL = concurrent.futures.ThreadPoolExecutor(1)
EVENT = threading.Event()
CONDITION = threading.Condition()
SEMAPHORE = threading.Semaphore(0)
DONE: concurrent.futures.Future[int] = concurrent.futures.Future()
WORDS = ["a", "b", "c"]

CLOCK = "workflow.now()"
SLEEP = "workflow.sleep"
THREADS = "asyncio.create_task"
WAITS = "workflow.wait_condition"
CHANCE = "workflow.random()"
OUTSIDE = "workflow.execute_activity"
ENVIRONMENT = "argument of the workflow"

ROWS: list[tuple[str, Callable[[], Any], str]] = [
    ("time.time", lambda: time.time(), CLOCK),
    ("time.time_ns", lambda: time.time_ns(), CLOCK),
    ("time.monotonic", lambda: time.monotonic(), CLOCK),
    ("time.monotonic_ns", lambda: time.monotonic_ns(), CLOCK),
    ("time.perf_counter", lambda: time.perf_counter(), CLOCK),
    ("time.process_time", lambda: time.process_time(), CLOCK),
    ("time.thread_time", lambda: time.thread_time(), CLOCK),
    ("time.clock_gettime", lambda: time.clock_gettime(time.CLOCK_REALTIME), CLOCK),
    ("time.localtime", lambda: time.localtime(), CLOCK),
    ("time.gmtime", lambda: time.gmtime(None), CLOCK),
    ("time.ctime", lambda: time.ctime(), CLOCK),
    ("time.strftime", lambda: time.strftime("%Y"), CLOCK),
    ("datetime.now", lambda: dt.datetime.now(), CLOCK),
    ("datetime.now", lambda: dt.datetime.now(dt.UTC), CLOCK),
    ("datetime.now", lambda: dt.datetime.now(tz=dt.UTC), CLOCK),
    ("datetime.utcnow", lambda: dt.datetime.utcnow(), CLOCK),
    ("time.time", lambda: dt.datetime.today(), CLOCK),
    ("time.time", lambda: dt.date.today(), CLOCK),
    ("time.sleep", lambda: time.sleep(0), SLEEP),
    ("threading.Thread.start", lambda: threading.Thread(target=print).start(), THREADS),
    ("concurrent.futures.thread.ThreadPoolExecutor.submit", lambda: POOL.submit(print), THREADS),
    ("os.fork", lambda: os.fork(), OUTSIDE),
    ("os.system", lambda: os.system("true"), OUTSIDE),
    ("threading.Event.wait", lambda: EVENT.wait(0), WAITS),
    ("threading.Semaphore.acquire", lambda: SEMAPHORE.acquire(timeout=0), WAITS),
    ("queue.Queue.get", lambda: queue.Queue[int]().get(timeout=0.01), WAITS),
    ("concurrent.futures.Future.result", lambda: DONE.result(0), WAITS),
    ("threading.Thread.join", lambda: threading.main_thread().join(0), WAITS),
    ("threading.RLock", lambda: threading.RLock(), "asyncio.Lock"),
    ("random.random", lambda: random.random(), CHANCE),
    ("random.randint", lambda: random.randint(1, 6), CHANCE),
    ("random.choice", lambda: random.choice(WORDS), CHANCE),
    ("random.shuffle", lambda: random.shuffle(WORDS), CHANCE),
    ("random.seed", lambda: random.seed(1), CHANCE),
    ("random.Random", lambda: random.Random(), CHANCE),
    ("random.SystemRandom.random", lambda: random.SystemRandom().random(), CHANCE),
    ("uuid.uuid1", lambda: uuid.uuid1(), CHANCE),
    ("uuid.uuid4", lambda: uuid.uuid4(), CHANCE),
    ("secrets.token_hex", lambda: secrets.token_hex(), CHANCE),
    ("secrets.token_urlsafe", lambda: secrets.token_urlsafe(), CHANCE),
    ("os.urandom", lambda: os.urandom(8), CHANCE),
    ("open", lambda: open(os.devnull), OUTSIDE),  # noqa: SIM115
    ("pathlib.Path.read_text", lambda: pathlib.Path(__file__).read_text(), OUTSIDE),
    ("open", lambda: io.open(__file__), OUTSIDE),  # noqa: SIM115, UP020
    ("os.listdir", lambda: os.listdir("."), OUTSIDE),
    ("os.remove", lambda: os.remove("/nonexistent"), OUTSIDE),
    ("tempfile", lambda: tempfile.mkstemp(), OUTSIDE),
    ("socket.socket", lambda: socket.socket(), OUTSIDE),
    ("socket.create_connection", lambda: socket.create_connection(("127.0.0.1", 1)), OUTSIDE),
    ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80), OUTSIDE),
    ("urllib.request.urlopen", lambda: urllib.request.urlopen("http://127.0.0.1:1/"), OUTSIDE),
    ("subprocess.run", lambda: subprocess.run(["true"]), OUTSIDE),
    ("sqlite3.connect", lambda: sqlite3.connect(":memory:"), OUTSIDE),
    ("os.environ", lambda: os.environ["PATH"], ENVIRONMENT),
    ("os.environ", lambda: os.environ.get("PATH"), ENVIRONMENT),
    ("os.environ", lambda: os.getenv("PATH"), ENVIRONMENT),
    ("os.environ", lambda: "PATH" in os.environ, ENVIRONMENT),
    ("os.environ", lambda: dict(os.environ), ENVIRONMENT),
    ("os.putenv", lambda: os.environ.__setitem__("CLEW_TEST", "1"), ENVIRONMENT),
    ("time.time", lambda: _aliases.now_seconds(), CLOCK),
    ("time.sleep", lambda: _aliases.sleep(0), SLEEP),
    ("random.random", lambda: _aliases.random(), CHANCE),
    ("random.choice", lambda: _aliases.choice(WORDS), CHANCE),
    ("time.time", lambda: _aliases.Note(id=uuid.UUID(int=0), when=dt.datetime.min), CLOCK),
    ("uuid.uuid4", lambda: _aliases.Note(made_at=0, when=dt.datetime.min), CHANCE),
    ("datetime.now", lambda: _aliases.Note(made_at=0, id=uuid.UUID(int=0)), CLOCK),
    ("time.monotonic", lambda: _aliases.Tool.clock(), CLOCK),
    ("time.perf_counter", lambda: _aliases.Tool().read(), CLOCK),
    ("time.time_ns", lambda: _aliases.Tool().read_keyword(), CLOCK),
]


@pytest.mark.parametrize(("name", "call", "remedy"), ROWS, ids=[f"{i}-{row[0]}" for i, row in enumerate(ROWS)])
def test_is_refused_at_the_call_with_line_and_replacement(name: str, call: Callable[[], Any], remedy: str) -> None:
    error = refused(call)
    assert error.qualified_name.startswith(name)
    assert remedy in str(error)
    assert LABEL in str(error)
    file, _, line = error.source_line.rpartition(":")
    assert file in (__file__, _aliases.__file__)
    assert int(line) > 0
    assert f" at {error.source_line}, in " in str(error)
    assert isinstance(error, NondeterminismError)


def test_the_first_temporary_file_of_a_process_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_name_sequence", None)
    error = refused(lambda: tempfile.mkstemp())
    assert error.qualified_name.startswith("tempfile")
    assert OUTSIDE in str(error)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="threading.Lock is a class there and stays as it is")
def test_making_a_lock_is_refused() -> None:
    assert "asyncio.Lock" in str(refused(lambda: threading.Lock()))


def test_message_reads_well() -> None:
    def decide() -> float:
        return time.time()

    error = refused(decide)
    line = decide.__code__.co_firstlineno + 1
    assert str(error) == (
        f"Workflow code ({LABEL}) used time.time at {__file__}:{line}, in test_message_reads_well.<locals>.decide: "
        "`return time.time()`. It was refused, because a replay would read another time. Use workflow.now() (a "
        "datetime) or workflow.time() (seconds). If the answer cannot influence the workflow: `with "
        "workflow.unsafe.sandbox_unrestricted():`."
    )
    assert pickle.loads(pickle.dumps(error)).source_line == error.source_line


def test_nothing_happened_when_refused(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "file"
    refused(lambda: target.write_text("x"))
    assert not target.exists()
    refused(lambda: os.environ.__setitem__("CLEW_GUARD_TEST", "1"))
    assert "CLEW_GUARD_TEST" not in os.environ


def test_other_threads_and_times_are_free() -> None:
    got: list[Any] = []

    def outside() -> None:
        got.extend([time.time(), uuid.uuid4(), random.random(), os.environ["PATH"], dt.datetime.now()])
        with open(os.devnull) as stream:
            got.append(stream.read())

    thread = threading.Thread(target=outside)
    ready, go = threading.Event(), threading.Event()

    def activation() -> None:
        with guard.activated(LABEL), guard.suspended():
            ready.set()
            go.wait(5)

    blocked = threading.Thread(target=activation)
    blocked.start()
    ready.wait(5)
    thread.start()
    thread.join(5)
    go.set()
    blocked.join(5)
    outside()
    assert len(got) == 12


def test_suspended_lets_pass_and_comes_back() -> None:
    with guard.activated(LABEL):
        with guard.suspended():
            assert time.time() > 0
        with pytest.raises(RestrictedWorkflowAccessError):
            time.time()


def test_suspended_across_the_end_of_the_activation_guards_nothing_afterwards() -> None:
    guard.enter(LABEL)
    way_out = guard.suspended()
    way_out.__enter__()
    guard.exit()
    guard.enter("another run")
    way_out.__exit__(None, None, None)
    with pytest.raises(RestrictedWorkflowAccessError, match="another run"):
        time.time()
    guard.exit()


class _WithClock(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{time.time()} {dt.datetime.now()} {record.getMessage()}"


def test_logging_works(tmp_path: pathlib.Path) -> None:
    logger = logging.getLogger("tests.guard")
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    handler.setFormatter(_WithClock())
    logger.addHandler(handler)
    try:
        with guard.activated(LABEL):
            try:
                raise ValueError("oh")
            except ValueError:
                logger.exception("failed")
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert "ValueError: oh" not in (tmp_path / "log").read_text()
    assert "failed" in (tmp_path / "log").read_text()


def test_imports_may_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clew_guard_probe.py").write_text(
        "import os, time\nLOADED = time.time()\nPATH = os.environ.get('PATH')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with guard.activated(LABEL):
        import clew_guard_probe  # type: ignore[import-not-found]
    assert clew_guard_probe.LOADED > 0


def test_harmless_library_calls_pass() -> None:
    zoneinfo.ZoneInfo.clear_cache()
    with guard.activated(LABEL):
        assert zoneinfo.ZoneInfo("Europe/Berlin").key == "Europe/Berlin"
        assert random.Random(7).random() == random.Random(7).random()
        assert time.localtime(0).tm_year in (1969, 1970)
        assert time.strftime("%Y", time.gmtime(0)) == "1970"
        assert dt.datetime.fromtimestamp(0, dt.UTC).year == 1970
        assert dt.datetime.strptime("2026-01-02", "%Y-%m-%d").day == 2
        assert uuid.uuid5(uuid.NAMESPACE_DNS, "x")
        assert queue.Queue[int]() is not None
        assert SEMAPHORE.acquire(blocking=False) is False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("shown with its source line", stacklevel=1)
        made = dataclasses.make_dataclass("Made", [("x", int)])
        assert made(1) == made(1)


def test_pydantic_models_can_be_made_and_used_inside() -> None:
    pydantic = pytest.importorskip("pydantic")
    with guard.activated(LABEL):
        model = pydantic.create_model("Claim", at=(dt.datetime, ...))
        made = model(at="2026-01-02T03:04:05Z")
        assert type(made.at) is dt.datetime
    assert made.model_dump_json()


def test_pydantic_default_factory_made_after_install_is_refused() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Stamped", at=(dt.datetime, pydantic.Field(default_factory=dt.datetime.now)))
    assert refused(lambda: model()).qualified_name == "datetime.now"


def test_datetime_stays_itself() -> None:
    class Mine(dt.datetime):
        pass

    assert type(dt.datetime) is type
    assert type(dt.datetime.now()) is dt.datetime
    assert type(Mine.now(dt.UTC)) is Mine
    assert dt.datetime.now(tz=dt.UTC).tzinfo is dt.UTC
    assert pickle.loads(pickle.dumps(dt.datetime.now))().year >= 2026
    assert guard.uncaught() == {}
    with pytest.raises(TypeError):
        dt.datetime.now(1)  # type: ignore[arg-type]


def test_finalisers_of_others_pass() -> None:
    class Holder:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            closed.append(time.time())

    closed: list[float] = []
    Holder()
    import gc

    with guard.activated(LABEL):
        gc.collect()
    assert len(closed) == 1


def test_callbacks_of_the_collector_pass() -> None:
    import gc

    seen: list[float] = []

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append(time.time())

    class Notes:
        def note(self, phase: str, info: dict[str, int]) -> None:
            seen.append(time.time())

    method = Notes().note
    gc.callbacks.insert(0, note)
    gc.callbacks.append(method)
    try:
        with guard.activated(LABEL):
            gc.collect()
    finally:
        gc.callbacks.remove(note)
        gc.callbacks.remove(method)
    assert len(seen) == 4


def test_an_activation_that_never_said_goodbye_refuses_nothing_later() -> None:
    def interrupted() -> None:
        guard.enter(LABEL)

    interrupted()
    assert time.time() > 0


def test_uninstall_restores_everything() -> None:
    guard.uninstall()
    assert isinstance(time.time, type(len))
    assert _aliases.now_seconds is time.time
    assert "now" in vars(dt.datetime)
    assert not isinstance(vars(dt.datetime)["now"], classmethod)
    assert type(dt.datetime.now()) is dt.datetime
    with guard.activated(LABEL):
        assert time.time() > 0


def test_install_twice_changes_nothing() -> None:
    before = time.time
    guard.install()
    assert time.time is before


def test_a_module_that_was_imported_after_install_is_left_intact(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clew_guard_late.py").write_text("from time import time\nfrom datetime import datetime\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import clew_guard_late  # type: ignore[import-not-found]

    guard.install()
    assert clew_guard_late.time() > 0
    refused(lambda: clew_guard_late.time())


def test_steps_aside_for_time_machine(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    guard._audit("import", ("time_machine", None, None, None, None))
    assert isinstance(time.time, type(len))
    assert _aliases.now_seconds is time.time
    assert "time_machine" in guard.uncaught()["time and datetime"]
    assert "clock_uncaught" in caplog.text
    refused(lambda: random.random())
