"""Fuzzing that is led by coverage: each reader for some minutes, in a process of its own (`make fuzz-coverage`).

    python -m tests.fuzz.coverage --seconds 120             every reader
    python -m tests.fuzz.coverage --only filter --only cron

How it works: atheris instruments the modules of the reader, and libFuzzer changes inputs so that they reach what no
input before them did; of JSON it changes values as well as bytes (``json_changes``). It begins with the good inputs of
``targets`` and with the corpus of earlier times. Of what it finds, the shortest inputs that each reach a jump between
two lines which none before reached are kept, as ``corpus.json``: the test suite reads them each time. A finding is
printed, and stays in ``record.json``.

atheris is no part of the development tools, as it has wheels for few Pythons: ``pip install '.[fuzz-coverage]'``.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from tests.fuzz.json_changes import changed
from tests.which_code import commit_now

CORPUS = Path(__file__).parent / "corpus.json"
RECORD = Path(__file__).parent / "record.json"
KEPT_COUNT_MAX = 40
KEPT_BYTES_MAX = 400
"""The corpus is to be read by people and by each run of the tests: a few dozen short inputs for each reader."""

INPUT_BYTES_MAX = 6_000

MODULES: dict[str, tuple[str, ...]] = {
    "events": ("clew.model",),
    "history_import": ("clew.model",),
    "stored_payload": ("clew.model",),
    "payload_bytes": ("clew.model",),
    "conversion": ("clew.converter",),
    "task_token": (
        "clew.model",
        "clew.service.tokens",
    ),
    "sealed_token": ("clew.model", "clew.service.tokens", "clew.server.security.seals"),
    "callback_token": ("clew.engine.callbacks",),
    "api_key": ("clew.core.api_keys",),
    "grant": ("clew.model.access",),
    "authorization_header": ("clew.server.security.doors",),
    "identity_token": ("clew.server.security.tokens", "clew.server.security.jwks", "jwt"),
    "key_set": ("clew.server.security.jwks", "jwt"),
    "certificate": ("clew.server.security.certificates",),
    "host_and_origin": ("clew.server.security.origins",),
    "filter": ("clew.engine.visibility",),
    "page_token": ("clew.engine.reading",),
    "cron": ("clew.core.cron",),
    "call_body": ("clew.link.calls", "clew.model", "clew.service"),
    "link_frame": ("clew.link",),
    "http": ("clew.server",),
    "worker_hello": ("clew.link.calls", "clew.model", "clew.service"),
    "duration": ("clew.cli._durations", "clew.model"),
    "arguments": ("clew.cli", "click"),
    "history_replay": ("clew.model", "clew.replay", "clew.worker._replayer"),
    "forwarded": ("clew.server.security.proxies", "clew.server.requests", "clew.server.tracing"),
    "node_greeting": ("clew.link.client", "clew.link.frames"),
    "node_session": ("clew.link",),
    "node_answer": ("clew.link.calls", "clew.model", "clew.service"),
    "wire_bytes": ("clew.link.plain_frames", "clew.link.unix"),
    "worker_task": ("clew.worker", "clew.replay"),
    "inbox": ("clew.inbox", "clew.model", "clew.service"),
    "hint": ("clew.engine.hints",),
    "search_attributes": ("clew.storage.values", "clew.converter.search_attributes"),
    "keyed_request": ("clew.contrib.idempotency",),
    "stored_response": ("clew.contrib.idempotency",),
    "claim_check": ("clew.contrib.payload_store", "clew.contrib._inner_payload"),
    "kept_payload": ("clew.contrib.payload_store", "clew.contrib._inner_payload"),
    "compressed_payload": ("clew.contrib.compression", "clew.contrib._inner_payload"),
    "encrypted_payload": ("clew.contrib.encryption", "clew.contrib._inner_payload"),
    "bucket_answer": ("clew.contrib.s3", "http.client"),
    "trace_header": ("clew.contrib.opentelemetry", "opentelemetry.trace"),
    "propagated_context": ("clew.contrib.context_propagation", "clew.converter"),
    "failure": ("clew.converter", "clew.model.failure"),
    "connection_string": ("clew.client._target", "clew.storage.postgres.address", "clew.storage.sqlite.connection"),
    "profile": ("clew.cli._profiles",),
    "key_file": ("clew.cli._profiles",),
    "server_settings": ("clew.server.settings",),
    "server_variables": ("clew.server.settings",),
    "owner_file": ("clew.storage.sqlite.ownership",),
    "process_mark": ("clew.process_mark",),
    "json_argument": ("clew.cli._inputs",),
    "source": ("clew.lint",),
    "web": ("clew.server",),
    "web_stack": ("clew.server.web",),
    "web_events": ("clew.server.web", "clew.model"),
}
"""What is instrumented for a reader, so that its own branches count and all the rest runs at full speed."""
STATS = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
FEATURES = re.compile(r"cov: (\d+) ft: (\d+)")


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one reader in this process, which libFuzzer then ends."""
    atheris: Any = importlib.import_module("atheris")
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_fuzz import check

    for function in _functions(MODULES[name]):
        atheris.instrument_func(function)
    target = TARGETS[name]

    def read(data: bytes) -> None:
        check(target, data)

    def mutate(data: bytes, bytes_max: int, seed: int) -> bytes:
        # Of JSON every other change leaves JSON: else nearly none would get past the parser.
        numbers = random.Random(seed)
        if numbers.random() < 0.5:
            places = [(numbers.randrange(10_000), numbers.randrange(10_000)) for _ in range(numbers.randint(1, 3))]
            new = changed(data, places)
            if new != data and len(new) <= bytes_max:
                return new
        return bytes(atheris.Mutate(data, bytes_max))

    atheris.Setup([sys.argv[0], *arguments], read, custom_mutator=mutate)
    atheris.Fuzz()


def _functions(prefixes: tuple[str, ...]) -> list[FunctionType]:
    """All functions and methods of the modules with these names, and of those below them."""
    found: dict[int, FunctionType] = {}
    for name, module in list(sys.modules.items()):
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes):
            for value in list(vars(module).values()):
                members = list(vars(value).values()) if isinstance(value, type) else [value]
                for member in members:
                    function = getattr(member, "__func__", getattr(member, "fget", member))
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        found[id(function)] = function
    return list(found.values())


def look(name: str, seconds: float, kept: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Fuzz one reader for so long: what came of it, and the corpus it leaves."""
    from tests.fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus, words = folder / "corpus", folder / "words"
        corpus.mkdir()
        for number, data in enumerate([*TARGETS[name].examples, *kept]):
            (corpus / f"given-{number:03}").write_bytes(data)
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in TARGETS[name].words or (b"\0",)))
        began = time.monotonic()
        done = _run(
            name, f"-max_total_time={seconds:.0f}", f"-max_len={INPUT_BYTES_MAX}", f"-dict={words}",
            f"-artifact_prefix={folder}/found-", "-print_final_stats=1", "-timeout=30", str(corpus),
        )  # fmt: skip
        took = time.monotonic() - began
        inputs = STATS.search(done.stderr)
        reached = FEATURES.findall(done.stderr)
        told: dict[str, Any] = {
            "seconds": round(took, 1),
            "inputs": int(inputs.group(1)) if inputs else 0,
            "edges": int(reached[-1][0]) if reached else 0,
        }
        findings = sorted(folder.glob("found-*"))
        if done.returncode or findings:
            told["found"] = [base64.b64encode(path.read_bytes()).decode() for path in findings]
            sys.stdout.write(f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}\n")
            return told, kept
        grown = [path.read_bytes() for path in corpus.iterdir()]
    return told, smallest(name, grown)


def smallest(name: str, inputs: list[bytes]) -> list[bytes]:
    """The shortest inputs that reach something each, beside the good ones of the reader."""
    from tests.fuzz.targets import TARGETS

    reached: set[tuple[str, int, int]] = set()
    for data in TARGETS[name].examples:
        reached |= _jumps(name, data)
    kept: list[bytes] = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        if len(data) > KEPT_BYTES_MAX or len(kept) == KEPT_COUNT_MAX:
            break
        new = _jumps(name, data) - reached
        if new:
            kept.append(data)
            reached |= new
    return kept


def _jumps(name: str, data: bytes) -> set[tuple[str, int, int]]:
    """The jumps between lines of the reader's modules that an input leads to."""
    from tests.fuzz.targets import TARGETS
    from tests.fuzz.test_fuzz import check

    jumps: set[tuple[str, int, int]] = set()
    prefixes = MODULES[name]
    last: dict[int, int] = {}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if not str(frame.f_globals.get("__name__")).startswith(prefixes):
            return None
        before = last.get(id(frame), 0) if event == "line" else 0
        last[id(frame)] = frame.f_lineno
        jumps.add((frame.f_code.co_filename, before, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        check(TARGETS[name], data)
    finally:
        sys.settrace(None)
    return jumps


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz.coverage", "--child", name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def read_corpus() -> dict[str, list[bytes]]:
    """The inputs that are kept, by reader."""
    if not CORPUS.exists():
        return {}
    return {name: [base64.b64decode(data) for data in kept] for name, kept in json.loads(CORPUS.read_text()).items()}


def main() -> int:
    """Fuzz all readers, or those named; the exit code tells whether anything was found."""
    if sys.argv[1:2] == ["--child"]:
        fuzz(sys.argv[2], sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(prog="coverage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="for each reader")
    parser.add_argument("--only", action="append", default=[], help="the name of a reader; may be given again")
    options = parser.parse_args()
    from tests.fuzz.targets import TARGETS

    commit = commit_now()
    record: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    corpus = read_corpus()
    has_found = False
    for name in options.only or TARGETS:
        told, corpus[name] = look(name, options.seconds, corpus.get(name, []))
        sys.stdout.write(f"{name}: {json.dumps(told)}, {len(corpus[name])} inputs kept\n")
        sys.stdout.flush()
        has_found = has_found or "found" in told
        record[name] = {"commit": commit, **told}
        RECORD.write_text(f"{json.dumps(record, indent=1)}\n")
        ordered = {name: [base64.b64encode(data).decode() for data in corpus.get(name, [])] for name in TARGETS}
        CORPUS.write_text(f"{json.dumps(ordered, indent=1)}\n")
    return 1 if has_found else 0


if __name__ == "__main__":
    sys.exit(main())
