"""Whether any dependency has a known vulnerability, also where the service for single versions is out of reach.

Owns: what counts as looked at, and the verdict. Never: takes a package that nobody could say anything about for a sound
one.

Usage: ``python scripts/audit.py FROZEN REPORT``: what ``pip freeze`` and ``pip-audit --format json`` wrote; the latter
may be missing. ``scripts/sbom.sh`` runs it.

How it works: ``pip-audit`` asks about each installed version. What it could not look up, since an index stands in
between that serves no single versions, is asked for by the project's own page, which tells the vulnerabilities of its
latest version: enough whenever that is the one installed, as it is in a fresh environment. A version that is not the
latest, or a page that cannot be had, counts as a failure.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

SECONDS_MAX = 30.0
"""For one page."""


class Verdict(NamedTuple):
    """What is known of one package.

    Args:
        found: The vulnerabilities, as ``ID (fixed in …)``.
        by: How it was looked at; empty when it could not be.
        problem: Why it could not be.
    """

    name: str
    version: str
    found: tuple[str, ...] = ()
    by: str = ""
    problem: str = ""


Fetch = Callable[[str], Any]
"""Gives what the index says of a project."""


def judge(frozen: str, report: Any, fetch: Fetch) -> list[Verdict]:
    """A verdict for each package that is installed.

    Args:
        frozen: What ``pip freeze`` wrote.
        report: What ``pip-audit`` made of it; None if nothing.
        fetch: Gives the pages of projects.
    """
    told = {_normal(each["name"]): each for each in report["dependencies"]} if report is not None else {}
    verdicts: list[Verdict] = []
    for line in frozen.splitlines():
        name, _, version = line.partition("==")
        if not version:
            verdicts.append(Verdict(name, version, problem="it was not installed from an index"))
            continue
        known = told.get(_normal(name), {"skip_reason": "pip-audit did not say anything of it"})
        if "vulns" in known:
            found = tuple(_told(v["id"], v["fix_versions"]) for v in known["vulns"])
            verdicts.append(Verdict(name, version, found, by="its version"))
        else:
            verdicts.append(_judge_by_page(name, version, known["skip_reason"], fetch))
    return verdicts


def _judge_by_page(name: str, version: str, reason: str, fetch: Fetch) -> Verdict:
    try:
        project = fetch(name)
    except (OSError, ValueError) as error:
        return Verdict(name, version, problem=f"{reason}; its page cannot be had: {error}")
    latest = project["info"]["version"]
    if latest != version:
        return Verdict(name, version, problem=f"{reason}; its page tells only of {latest}")
    known = project.get("vulnerabilities")
    if known is None:
        return Verdict(name, version, problem=f"{reason}; its page says nothing of vulnerabilities")
    found = tuple(_told(v["id"], v["fixed_in"]) for v in known if not v["withdrawn"])
    return Verdict(name, version, found, by="its page")


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def _told(identifier: str, fixed_in: Iterable[str]) -> str:
    fixes = ", ".join(fixed_in)
    return f"{identifier} ({f'fixed in {fixes}' if fixes else 'no version has it fixed'})"


def fetch_project(name: str) -> Any:
    """The project's page, from where ``pip`` would look for it."""
    from pip._internal.models.index import PyPI

    with urllib.request.urlopen(f"{PyPI.pypi_url}/{name}/json", timeout=SECONDS_MAX) as answer:
        return json.load(answer)


def main(arguments: list[str]) -> int:
    """Print what was looked at and found; the exit code is 0 only if all was looked at and nothing found."""
    frozen, report = map(Path, arguments)
    told = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    verdicts = judge(frozen.read_text(encoding="utf-8"), told, fetch_project)
    for verdict in verdicts:
        state = ", ".join(verdict.found) or (f"nothing known, by {verdict.by}" if verdict.by else "NOT LOOKED AT")
        sys.stdout.write(f"{verdict.name} {verdict.version}: {state}{verdict.problem and f' ({verdict.problem})'}\n")
    found = sum(len(verdict.found) for verdict in verdicts)
    missed = sum(not verdict.by for verdict in verdicts)
    looked = len(verdicts) - missed
    sys.stdout.write(f"{looked} of {len(verdicts)} packages were looked at; {found} vulnerabilities are known\n")
    return 1 if found or missed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
