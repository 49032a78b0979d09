"""Clew's plugin for pytest: fixtures with an environment, and chaos.

Owns: the fixtures, the marker ``clew_chaos`` and the hook that sees to marked tests. Never: how a test is run with
faults (``testing.chaos.pytest_runner``).

How it works: pytest loads this wherever Clew is installed, so nothing else is imported before a test asks for it.
Environments are started and stopped on a thread of their own, so that the fixtures fit tests on any loop and under any
plugin for async tests.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from clew.client import Client
    from clew.testing import ActivityEnvironment, WorkflowEnvironment

T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "clew_chaos(faults=[...], limit=300, seconds=10, varying=[], compares_steps=True): run the test again with "
        "each fault that its course calls for; it has to use the fixture clew_env or clew_client.",
    )


@pytest.fixture
def clew_env(request: pytest.FixtureRequest) -> Iterator[WorkflowEnvironment]:
    """An engine of the test's own, in memory, which skips the time in which nothing happens."""
    from clew.testing.chaos import pytest_runner

    environment = _apart(lambda: pytest_runner.start_environment(request.node))
    try:
        yield environment
    finally:
        _apart(environment.shutdown)


@pytest.fixture
def clew_client(clew_env: WorkflowEnvironment) -> Client:
    """The client of `clew_env`; make workers with it."""
    return clew_env.client


@pytest.fixture
def clew_activity_env() -> ActivityEnvironment:
    """Runs one activity at a time, without an engine."""
    from clew.testing import ActivityEnvironment

    return ActivityEnvironment()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test marked ``clew_chaos`` with each fault; all others as usual."""
    if item.get_closest_marker("clew_chaos") is None:
        return None
    from clew.testing.chaos import pytest_runner

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in pytest_runner.run_with_faults(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _apart(work: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine on a thread and loop of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    async def awaited() -> T:
        return await work()

    def run() -> None:
        try:
            results.append(asyncio.run(awaited()))
        except BaseException as error:  # noqa: BLE001 - raised below, where the caller is
            errors.append(error)

    thread = threading.Thread(target=run, name="clew-environment")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
