"""Runs one test of pytest once for each fault.

Owns: the goes of a marked test, and its one report. Never: what a fault is, or what counts as harm.

How it works: a test marked ``clew_chaos`` is run as usual, undisturbed; if it passes, it is set up and run again with
each fault that its tape calls for, until one does harm. Which fault a go is for lies in the item's stash, where the
fixture ``clew_env`` finds it and leaves the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import pytest
from _pytest.runner import runtestprotocol

from clew.testing._environment import WorkflowEnvironment
from clew.testing.chaos._environment import SECONDS_MAX_DEFAULT, ChaosRun, start_chaos_environment
from clew.testing.chaos._faults import NO_FAULT, Fault, FaultKind, faults_for
from clew.testing.chaos._verdict import harm_of, hints_for

MARKER: Final = "clew_chaos"
LIMIT_DEFAULT: Final = 300
"""Faults for one test; each takes some ten milliseconds."""

_UNDISTURBED_SECONDS_MAX: Final = 3_600.0
_OPTIONS: Final = ("compares_steps", "faults", "limit", "seconds", "varying")
_FAULT: Final = pytest.StashKey[Fault]()
_RUN: Final = pytest.StashKey[ChaosRun]()


async def start_environment(item: pytest.Item) -> WorkflowEnvironment:
    """Start what ``clew_env`` gives to a test: with the fault of this go, if it is marked."""
    fault = item.stash.get(_FAULT, None)
    if fault is None:
        return await WorkflowEnvironment.start_time_skipping()
    seconds = float(read_options(item).get("seconds", SECONDS_MAX_DEFAULT))
    patience = seconds if fault is not NO_FAULT else _UNDISTURBED_SECONDS_MAX
    environment, run = await start_chaos_environment(fault, seconds_max=patience)
    item.stash[_RUN] = run
    return environment


def run_with_faults(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run a marked test, and give the reports that stand for all its goes."""
    reports = _run_once(item, NO_FAULT)
    if all(report.passed for report in reports):
        reports = _run_with_each(item, reports)
    # What module and session keep was kept for the next go; now it is the next test's.
    item.session._setupstate.teardown_exact(nextitem)
    return reports


def read_options(item: pytest.Item) -> Mapping[str, Any]:
    """Give the arguments of the marker.

    Raises:
        UsageError: There are others than it has.
    """
    marker = item.get_closest_marker(MARKER)
    assert marker is not None, "only marked tests have options"
    unknown = sorted(set(marker.kwargs) - set(_OPTIONS))
    if unknown or marker.args:
        raise pytest.UsageError(
            f"@pytest.mark.{MARKER} of {item.name} has {', '.join(unknown) or 'arguments without names'}; "
            f"it takes {', '.join(_OPTIONS)}, each by its name."
        )
    return marker.kwargs


def _run_with_each(item: pytest.Item, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
    undisturbed = item.stash.get(_RUN, None)
    if undisturbed is None:
        text = f"A test marked {MARKER} has to use the fixture clew_env or clew_client, where the faults strike."
        return _with_failure(reports, reports, text)
    options = read_options(item)
    kinds = [FaultKind(name) for name in options.get("faults", [kind.value for kind in FaultKind])]
    faults = faults_for(undisturbed.tape, kinds=kinds, limit=int(options.get("limit", LIMIT_DEFAULT)))
    struck_count = 0
    for fault in faults:
        again = _run_once(item, fault)
        run = item.stash[_RUN]
        struck_count += run.has_struck
        harm = _harm(undisturbed, run, again, options)
        if harm is not None:
            return _with_failure(reports, again, harm)
    for report in reports:
        report.user_properties.append((MARKER, f"{len(faults)} faults, {struck_count} struck"))
    return reports


def _run_once(item: pytest.Item, fault: Fault) -> list[pytest.TestReport]:
    """Set the test up, run it and tear it down, without a report to anyone."""
    item.stash[_FAULT] = fault
    initialize: Callable[[], None] | None = getattr(item, "_initrequest", None)
    if initialize is not None:
        initialize()  # The fixtures of the last go are gone; this is what plugins that run tests again do.
    # Its parent in place of a next test: so all is torn down but what the module and the session keep.
    return runtestprotocol(item, log=False, nextitem=cast(pytest.Item, item.parent))


def _harm(
    undisturbed: ChaosRun, run: ChaosRun, reports: list[pytest.TestReport], options: Mapping[str, Any]
) -> str | None:
    if run.problems:
        return f"chaos: {run.fault.title}:\nThe chaos itself failed: {run.problems[0]!r}"
    failed = next((report for report in reports if report.failed), None)
    if failed is not None:
        hints = "".join(f"\n{hint}" for hint in hints_for(run.tape))
        return f"chaos: {run.fault.title}: the test fails.{hints}\n\n{failed.longreprtext}"
    harm = harm_of(
        undisturbed.tape,
        run.tape,
        varying=options.get("varying", ()),
        compares_steps=bool(options.get("compares_steps", True)),
    )
    return f"chaos: {run.fault.title}:\n{harm}" if harm is not None else None


def _with_failure(first: list[pytest.TestReport], last: list[pytest.TestReport], text: str) -> list[pytest.TestReport]:
    """The reports of the first go, with the outcome of the last one in place of the call's."""
    call = next((report for report in last if report.when == "call"), last[0])
    failed = pytest.TestReport(
        nodeid=call.nodeid,
        location=call.location,
        keywords=call.keywords,
        outcome="failed",
        longrepr=text,
        when="call",
        sections=call.sections,
        duration=call.duration,
    )
    return [failed if report.when == "call" else report for report in first]
