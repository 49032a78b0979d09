"""`clew lint` on small projects: each line that is wrong says so in a comment, and nothing else is reported.

A comment ``# !CLW101`` names what is to be found in its line. The projects are text: nothing of them is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent

import pytest

from clew.lint import RULES, Finding, check_paths

HEAD = """\
from __future__ import annotations
import asyncio, concurrent.futures, hashlib, io, logging, os, pathlib, queue, random, requests, secrets, socket
import sqlite3, subprocess, threading, time, uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from os import environ
from pathlib import Path
from time import sleep as nap, time as clock
from clew import activity, workflow

SEEN = []
COUNTS: dict[str, int] = defaultdict(int)
WORDS = frozenset({"a", "b"})
LIMIT = 5
log = logging.getLogger(__name__)
now = datetime.now

@activity.defn
async def pay(amount: int) -> None: ...
"""


def check(tmp_path: Path, files: Mapping[str, str]) -> list[Finding]:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return check_paths([tmp_path])


def expected(files: Mapping[str, str]) -> set[tuple[str, int, str]]:
    return {
        (name, number, code)
        for name, text in files.items()
        for number, line in enumerate(dedent(text).splitlines(), 1)
        for marker in re.findall(r"# !((?:CLW\d+ ?)+)", line)
        for code in marker.split()
    }


def found_by(findings: list[Finding]) -> set[tuple[str, int, str]]:
    """By the last part of their paths."""
    return {(finding.path, finding.line, finding.code) for finding in findings}


def assert_finds(tmp_path: Path, files: Mapping[str, str]) -> list[Finding]:
    findings = check(tmp_path, files)
    shown = {(str(Path(f.path).resolve().relative_to(tmp_path)), f.line, f.code) for f in findings}
    assert shown == expected(files)
    return findings


def in_run(*lines: str) -> dict[str, str]:
    body = indent("\n".join(dedent(line).strip("\n") for line in lines), " " * 8)
    return {
        "flow.py": f"{HEAD}\n@workflow.defn\nclass W:\n    @workflow.run\n    async def run(self) -> None:\n{body}\n"
    }


CALLS = """\
time.time()  # !CLW101
time.monotonic()  # !CLW101
clock()  # !CLW101
time.localtime()  # !CLW101
time.localtime(5)
time.strftime("%Y")  # !CLW101
datetime.now()  # !CLW101
datetime.now(timezone.utc)  # !CLW101
datetime.utcnow()  # !CLW101
datetime.today()  # !CLW101
now()  # !CLW101
date.today()  # !CLW101
datetime.fromtimestamp(5)
time.sleep(1)  # !CLW102
nap(1)  # !CLW102
random.random()  # !CLW103
random.choice([1, 2])  # !CLW103
random.Random()  # !CLW103
random.Random(5).random()  # a seeded one repeats
workflow.random().random()
uuid.uuid4()  # !CLW103
uuid.uuid1()  # !CLW103
uuid.uuid5(uuid.NAMESPACE_URL, "x")
uuid.UUID(int=5)
secrets.token_hex()  # !CLW103
os.urandom(8)  # !CLW103
os.environ["X"]  # !CLW104
os.environ.get("X")  # !CLW104
environ.get("X")  # !CLW104
os.getenv("X")  # !CLW104
open("x")  # !CLW105
Path("x").read_text()  # !CLW105
(Path("x") / "y").exists()  # !CLW105
Path("x").name
os.path.join("a", "b")
os.listdir(".")  # !CLW105
os.getpid()  # !CLW105
os.path.islink("x")  # !CLW105
socket.create_connection(("h", 1))  # !CLW105
requests.get("https://x")  # !CLW105
sqlite3.connect("x")  # !CLW105
subprocess.run(["x"])  # !CLW105
await asyncio.create_subprocess_exec("x")  # !CLW105
await asyncio.open_connection("h", 1)  # !CLW105
input()  # !CLW105
threading.Thread(target=print)  # !CLW106
await asyncio.to_thread(str)  # !CLW106
concurrent.futures.ThreadPoolExecutor()  # !CLW106
asyncio.get_running_loop().run_in_executor(None, str)  # !CLW106
threading.Lock()  # !CLW108
threading.Event()  # !CLW108
id(self)  # !CLW203
hash("x")  # !CLW203
hashlib.sha256(b"x").hexdigest()
print("x")  # !CLW307
log.info("x")  # !CLW307
workflow.logger.info("x")
sorted([1], key=random.random)  # !CLW103
"""


@pytest.mark.parametrize("line", CALLS.splitlines())
def test_calls(tmp_path: Path, line: str) -> None:
    assert_finds(tmp_path, in_run(line))


def test_a_generator_that_all_runs_share_is_no_part_of_any_history(tmp_path: Path) -> None:
    files = {
        "flow.py": HEAD
        + dedent("""
            from dice import dice

            drawn = random.Random(7)


            @workflow.defn
            class W:
                @workflow.run
                async def run(self) -> None:
                    drawn.random()  # !CLW103
                    dice.shuffle([1, 2])  # !CLW103
                    own = random.Random(7)
                    own.random()
                    workflow.random().choice([1, 2])
            """),
        "dice.py": "import random\n\ndice: random.Random = random.Random()\n",
    }
    (finding, *_) = assert_finds(tmp_path, files)
    assert "drawn.random() of a generator that all runs share" in finding.message


def test_a_future_of_threads_blocks(tmp_path: Path) -> None:
    files = in_run("future: concurrent.futures.Future[int] = await workflow.wait_condition(lambda: True)",
                   "future.result()  # !CLW107")  # fmt: skip
    assert_finds(tmp_path, files)


ORDER = """\
for word in {"a", "b"}: pass  # !CLW201
for word in WORDS: pass  # !CLW201
for word in sorted(WORDS): pass
for word in dict.fromkeys(["a"]): pass
tasks = {asyncio.create_task(pay_later(n)) for n in range(3)}
for task in tasks: await task  # !CLW201
await asyncio.wait(tasks)
for first in asyncio.as_completed(tasks): await first
await asyncio.gather(*tasks)  # !CLW201
list(tasks)  # !CLW201
[task for task in tasks]  # !CLW201
sum(1 for task in tasks)
any(task.done() for task in tasks)
len(tasks)
tasks.pop()  # !CLW201
more = tasks | {1}
for task in more: pass  # !CLW201
more = sorted(more)
for task in more: pass
next(iter(tasks))  # !CLW201
", ".join(WORDS)  # !CLW201
done, pending = await asyncio.wait(tasks)
for task in done: pass
"""


def test_sets(tmp_path: Path) -> None:
    files = in_run(ORDER)
    files["flow.py"] += "\nasync def pay_later(n: int) -> None: ...\n"
    assert_finds(tmp_path, files)


SHARED = """\
global LIMIT
LIMIT = 6  # !CLW202
SEEN.append(1)  # !CLW202
COUNTS["x"] += 1  # !CLW202
del COUNTS["x"]  # !CLW202
time.zone = 5  # !CLW202
W.latest = self  # !CLW202
self.everyone.append(1)  # !CLW202
self.mine.append(1)
self.own = 5
SEEN_HERE = []
SEEN_HERE.append(1)
len(SEEN)
"""


def test_shared_state(tmp_path: Path) -> None:
    files = in_run(SHARED)
    files["flow.py"] = files["flow.py"].replace(
        "class W:\n", "class W:\n    everyone = []\n    def __init__(self) -> None:\n        self.mine = []\n"
    )
    assert_finds(tmp_path, files)


USES = """\
await workflow.execute_activity(pay, 5)  # !CLW303
await workflow.execute_activity(pay, 5, start_to_close_timeout=timedelta(seconds=5))
await workflow.execute_local_activity(pay, 5, schedule_to_close_timeout=timedelta(seconds=5))
await workflow.execute_activity(pay, 5, **OPTIONS)
workflow.start_activity_method(pay, 5)  # !CLW303
await pay(5)  # !CLW305
workflow.sleep(5)  # !CLW306
asyncio.sleep(5)  # !CLW306
later(self)  # !CLW306
asyncio.create_task(later(self))
"""


def test_uses_of_the_api(tmp_path: Path) -> None:
    files = in_run(USES)
    files["flow.py"] += "\nOPTIONS = {}\nasync def later(of: object) -> None: ...\n"
    assert_finds(tmp_path, files)


def test_swallowed_cancellation(tmp_path: Path) -> None:
    body = """
    try:
        await workflow.sleep(5)
    except BaseException:  # !CLW308
        pass
    try:
        await workflow.sleep(5)
    except:  # !CLW308
        pass
    try:
        await workflow.sleep(5)
    except BaseException:
        self.undo = True
        raise
    try:
        await workflow.sleep(5)
    except Exception:
        pass
    """
    assert_finds(tmp_path, in_run(body))


HANDLERS = """
@workflow.defn
class W:
    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    @workflow.run
    async def run(self, notify: Callable[[], None], at: date, lock: asyncio.Lock | None = None) -> None: ...  # !CLW304

    @workflow.signal
    async def note(self, name: str, make: object = lambda: 5) -> None:  # !CLW304
        self.names.append(name)

    @workflow.query
    async def slow(self) -> int:  # !CLW301
        return self.count

    @workflow.query
    def status(self) -> int:
        self.count += 1  # !CLW302
        self.names.append("x")  # !CLW302
        self._bump()
        local = []
        local.append(1)
        return len(self.names)

    def _bump(self) -> None:
        self.count = 2  # !CLW302

    @workflow.update
    async def change(self, by: int) -> int:
        self.count += by
        return self.count

    @change.validator
    def check_change(self, by: int) -> None:
        self.names.clear()  # !CLW302
        workflow.start_activity(pay, 1, start_to_close_timeout=timedelta(seconds=5))  # !CLW302


@activity.defn
def draws(on: io.BytesIO, amount: int = 5) -> None:  # !CLW304
    time.sleep(5)
    open("x")
"""


def test_definitions(tmp_path: Path) -> None:
    assert_finds(tmp_path, {"flow.py": HEAD + HANDLERS})


FOLLOWED = {
    "app/__init__.py": "",
    "app/flow.py": """
        from clew import workflow
        from app import facade
        from app.pricing import Price, price_of
        from .later import Base

        @workflow.defn
        class Flow(Base):
            def __init__(self) -> None:
                self.price = Price(1)

            @workflow.run
            async def run(self) -> None:
                price_of(5)
                facade.stamp()
                self.price.refresh()
                self.inherited()
                self.total
                with Price(2):
                    pass
                helper = facade.unused
                list(map(facade.mapped, [1]))

                async def inner() -> None:
                    facade.from_inner()

                await inner()
        """,
    "app/facade.py": """
        import time
        from app.stamps import stamp

        def unused() -> None:
            time.sleep(1)

        def mapped(n: int) -> None:
            time.sleep(n)  # !CLW102

        def from_inner() -> None:
            time.sleep(2)  # !CLW102

        def never_called() -> None:
            time.sleep(3)
        """,
    "app/stamps.py": """
        from datetime import datetime

        def stamp() -> datetime:
            return _deeper()

        def _deeper() -> datetime:
            return datetime.now()  # !CLW101
        """,
    "app/later.py": """
        import random

        class Base:
            def inherited(self) -> float:
                return self.overridden()

            def overridden(self) -> float:
                return random.random()  # !CLW103

            @property
            def total(self) -> float:
                return random.random()  # !CLW103
        """,
    "app/pricing.py": """
        import time, uuid
        from dataclasses import dataclass, field

        def price_of(n: int) -> object:
            from app.lazily import lazily
            return lazily()

        @dataclass
        class Price:
            amount: int
            id: uuid.UUID = field(default_factory=uuid.uuid4)

            def __post_init__(self) -> None:
                time.time()  # !CLW101

            def refresh(self) -> None:
                time.time()  # !CLW101

            def __enter__(self) -> None:
                time.time()  # !CLW101

            def __exit__(self, *args: object) -> None: ...
        """,
    "app/lazily.py": """
        import os

        def lazily() -> str | None:
            return os.getenv("X")  # !CLW104
        """,
}


def test_helpers_are_followed_through_the_project(tmp_path: Path) -> None:
    findings = check(tmp_path, FOLLOWED)
    shown = {(str(Path(f.path).resolve().relative_to(tmp_path)), f.line, f.code) for f in findings}
    made = {(name, line, code) for name, line, code in shown if name == "app/flow.py"}
    assert {code for _, _, code in made} == {"CLW103"}, "Price(…) draws an id where it is made, in two places"
    assert len(made) == 2
    assert shown - made == expected(FOLLOWED)
    [deep] = [f for f in findings if f.path.endswith("stamps.py")]
    assert [step.split()[0] for step in deep.via] == ["Flow.run", "stamp"]
    assert "app/flow.py:15" in deep.via[0]
    assert "workflow Flow" in deep.message


def test_a_file_alone_leads_to_the_same_helpers(tmp_path: Path) -> None:
    check(tmp_path, FOLLOWED)
    findings = check_paths([tmp_path / "app" / "flow.py"])
    assert {Path(f.path).name for f in findings} == {"flow.py", "facade.py", "stamps.py", "later.py", "pricing.py",
                                                     "lazily.py"}  # fmt: skip


def test_what_calls_itself_ends(tmp_path: Path) -> None:
    files = in_run("around(5)")
    files["flow.py"] += "\ndef around(n: int) -> None:\n    around(n - 1)\n    time.time()  # !CLW101\n"
    assert_finds(tmp_path, files)


def test_ways_out(tmp_path: Path) -> None:
    body = """
    with workflow.unsafe.sandbox_unrestricted():
        time.time()
    if not workflow.in_workflow():
        time.time()
    if workflow.in_workflow():
        time.time()  # !CLW101
    else:
        time.time()
    time.time()  # clew: ignore[CLW101]
    time.time()  # noqa: CLW101
    time.time()  # clew: ignore
    time.time()  # clew: ignore[CLW102] # !CLW101
    time.time()  # noqa: E501 # !CLW101
    workflow.execute_activity(  # clew: ignore[CLW303,CLW306]
        pay,
        int(time.time()),  # !CLW101
    )
    """
    # A statement's first line speaks for its inner lines too, but only for the codes it names.
    assert_finds(tmp_path, in_run(body))


def test_a_whole_file_can_be_left_out(tmp_path: Path) -> None:
    files = in_run("time.time()", "random.random()  # !CLW103")
    files["flow.py"] = "# clew: ignore-file[CLW101]\n" + files["flow.py"]
    assert_finds(tmp_path, files)


def test_code_that_no_workflow_reaches_is_free(tmp_path: Path) -> None:
    files = {"other.py": f"{HEAD}\ndef free() -> None:\n    time.sleep(1)\n    SEEN.append(1)\n"}
    assert_finds(tmp_path, files)


def test_interceptors_are_workflow_code(tmp_path: Path) -> None:
    text = """
    import time
    from clew.worker import WorkflowInboundInterceptor

    class Timing(WorkflowInboundInterceptor):
        async def execute_workflow(self, input):
            time.time()  # !CLW101
            return await super().execute_workflow(input)
    """
    assert_finds(tmp_path, {"timing.py": text})


def test_a_file_that_is_no_python_is_named_and_the_others_are_checked(tmp_path: Path) -> None:
    files = in_run("time.time()  # !CLW101") | {"broken.py": "def run(self:  # !CLW001\n", "nul.py": ""}
    assert_finds(tmp_path, files)
    (tmp_path / "nul.py").write_bytes(b"x = '\xff\x00'\n")
    assert {f.code for f in check_paths([tmp_path / "nul.py"])} == {"CLW001"}


def test_names_that_hide_others_are_respected(tmp_path: Path) -> None:
    files = in_run("time = workflow", "time.time()", "def open(name: str) -> None: ...", "open('x')")
    assert_finds(tmp_path, files)


def test_codes_can_be_chosen(tmp_path: Path) -> None:
    check(tmp_path, in_run("time.time()", "random.random()", "print(1)"))
    assert {f.code for f in check_paths([tmp_path], select=["CLW1"])} == {"CLW101", "CLW103"}
    assert {f.code for f in check_paths([tmp_path], ignore=["CLW101", "CLW3"])} == {"CLW103"}
    assert check_paths([tmp_path], exclude=["flow.py"]) == []
    with pytest.raises(FileNotFoundError, match="no file or directory"):
        check_paths([tmp_path / "nowhere"])


@pytest.mark.parametrize("code", sorted(set(RULES) - {"CLW001"}))
def test_the_example_of_a_rule_is_reported(tmp_path: Path, code: str) -> None:
    example = RULES[code].example
    cls = f"{HEAD}\n@workflow.defn\nclass W:\n"
    if example.startswith("async def"):
        files = {"flow.py": cls + indent(f"@workflow.run\n{example}\n", "    ")}
    elif example.startswith("@workflow"):
        files = {"flow.py": cls + indent(f"{example}\n", "    ")}
    elif "in a query" in example:
        files = {"flow.py": f"{cls}    @workflow.query\n    def q(self) -> None:\n        {example}\n"}
    elif example.startswith("except"):
        files = in_run(f"try:\n    await workflow.sleep(5)\n{example}")
    else:
        prelude = "a = b = names = future = claim_id = claim = {}\nfuture: concurrent.futures.Future = claim"
        files = in_run(prelude, example)
    findings = check(tmp_path, files)
    assert code in {f.code for f in findings}, findings
