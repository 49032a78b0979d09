"""Schemathesis against a node of its own, by its OpenAPI document: ``python -m tests.fuzz.http_schema [--seconds N]``.

Owns: the node, what it is filled with, and which checks are made. Never: the requests, which Schemathesis makes up.

How it works: a development server on a store in memory has a worker and two runs, so that some ids that are asked for
exist, and queries and updates are answered. Then each operation of the document is asked what it allows, what it
forbids and what lies at the edges. No answer may be a failure of the server, have a status or a media type that the
document does not name, or a body that does not fit it. All requests carry a bearer token, of which a server without
authentication takes no notice: without one, what any page could have sent is refused before it is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

START_SECONDS_MAX = 60.0
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
STREAMS = "stream.*"
"""Operations that answer for as long as somebody listens."""

PROGRAM = """
from __future__ import annotations

from typing import Any

from clew import workflow


@workflow.defn(name="W")
class Waits:
    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query(dynamic=True)
    def any_query(self, name: str, args: Any) -> str:
        return name

    @workflow.update(dynamic=True)
    async def any_update(self, name: str, args: Any) -> str:
        return name
"""

ANYWHERE = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
"""503 is no failure: a query of a run whose queue nobody serves is answered with it, and so are calls at a stop."""

IDS_THERE = f"""{ANYWHERE}
[parameters]
"path.namespace" = "default"
"path.workflow_id" = "w1"
"""
"""Where these stand in a path; without them any text does, and nearly every answer is that there is no such thing."""


def main() -> int:
    """Run, and give Schemathesis's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.http_schema", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="how long; 60 if not given")
    parser.add_argument("--seed", type=int, default=1, help="1 if not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clew-fuzz-") as folder:
        log = Path(folder) / "node.log"
        (Path(folder) / "waits.py").write_text(PROGRAM, "utf-8")
        command = [
            sys.executable, "-m", "clew.cli", "dev", "waits", "--task-queue", "q", "--store", "sqlite::memory:",
            "--port", "0",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        with log.open("wb") as sink:
            node = subprocess.Popen(command, cwd=folder, stderr=sink, env=environment)
        try:
            url = wait_said(r"Clew answers at (\S+)", log, node)
            wait_said("Working for", log, node)
            fill(url)
            code = max(
                run(url, Path(folder), configuration, options.seconds // 2, options.seed)
                for configuration in (IDS_THERE, ANYWHERE)
            )
        finally:
            node.send_signal(signal.SIGTERM)
            ended = node.wait(60)
        failures = [line for line in log.read_text("utf-8").splitlines() if "request_failed" in line]
        print(f"node: exit code {ended}, {len(failures)} failures in its log", *failures[:5], sep="\n")
        return code or ended or bool(failures)


def wait_said(pattern: str, log: Path, node: subprocess.Popen[bytes]) -> str:
    """Wait until the node has said it, and give what the pattern finds."""
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_at and node.poll() is None:
        found = re.search(pattern, log.read_text("utf-8"))
        if found:
            return found[found.re.groups]
        time.sleep(0.05)
    raise SystemExit(f"the node did not start:\n{log.read_text('utf-8')}")


def fill(url: str) -> None:
    """Start the runs that are asked for."""
    for workflow_id in ("w1", "w2"):
        body = {"workflow_id": workflow_id, "workflow_type": "W", "task_queue": "q", "search_attributes": {"Rank": 1}}
        request = urllib.request.Request(
            f"{url}/api/v1/namespaces/default/workflows",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201, answer.status


def run(url: str, folder: Path, configuration: str, seconds: int, seed: int) -> int:
    """Let Schemathesis ask."""
    file = folder / "schemathesis.toml"
    file.write_text(configuration, "utf-8")
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(file),
        "run", f"{url}/api/v1/openapi.json",
        "--checks", ",".join(CHECKS), "--exclude-operation-id-regex", STREAMS,
        "--phases", "coverage,fuzzing,stateful", "--max-time", str(seconds), "--seed", str(seed),
        "--header", "Authorization: Bearer fuzz", "--request-timeout", "60", "--continue-on-failure",
        "--warnings", "off",
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
