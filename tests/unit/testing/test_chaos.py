"""The plugin for pytest: its fixtures, and chaos that finds planted bugs and leaves sound workflows alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest_plugins = ["pytester"]

SOURCES = Path(__file__).parents[3] / "src"

HEAD = """
from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest

from clew import activity, workflow
from clew.client import Client
from clew.common import RetryPolicy
from clew.worker import Worker

LIMITS: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=30)}
charges: dict[str, int] = {}
naive: list[int] = []


@activity.defn
async def charge(amount: int) -> int:
    charges.setdefault(activity.info().idempotency_key, amount)
    return amount


@activity.defn
def charge_naively(amount: int) -> int:
    naive.append(amount)
    return amount
"""

SOUND = """
@workflow.defn
class Child:
    @workflow.run
    async def run(self, amount: int) -> int:
        return await workflow.execute_activity(charge, amount, **LIMITS)


@workflow.defn
class Claim:
    def __init__(self) -> None:
        self.photos: list[str] = []

    @workflow.run
    async def run(self, amount: int) -> int:
        await workflow.execute_activity(charge, amount, **LIMITS)
        await workflow.sleep(timedelta(hours=1))
        await workflow.wait_condition(lambda: bool(self.photos))
        several = await asyncio.gather(*(workflow.execute_activity(charge, n, **LIMITS) for n in range(3)))
        return amount + sum(several) + await workflow.execute_child_workflow(Child.run, 7, id="child")

    @workflow.signal
    def photo(self, name: str) -> None:
        self.photos.append(name)


@pytest.mark.clew_chaos
async def test_sound(clew_client: Client) -> None:
    charges.clear()
    async with Worker(clew_client, task_queue="q", workflows=[Claim, Child], activities=[charge]):
        handle = await clew_client.start_workflow(Claim.run, 5, id="claim", task_queue="q")
        await handle.signal(Claim.photo, "x")
        assert await handle.result() == 15
    assert sorted(charges.values()) == [0, 1, 2, 5, 7]
"""

CHARGES_TWICE = """
@workflow.defn
class Naive:
    @workflow.run
    async def run(self, amount: int) -> int:
        return await workflow.execute_activity(charge_naively, amount, **LIMITS)


@pytest.mark.clew_chaos
async def test_charges_twice(clew_client: Client) -> None:
    naive.clear()
    async with Worker(clew_client, task_queue="q", workflows=[Naive], activities=[charge_naively]):
        assert await clew_client.execute_workflow(Naive.run, 5, id="n", task_queue="q") == 5
    assert naive == [5]
"""

OTHER_ANSWER = """
ids = itertools.count()


@activity.defn
async def new_id() -> int:
    return next(ids)


@workflow.defn
class Ids:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(new_id, **LIMITS)


@pytest.mark.clew_chaos
async def test_other_answer(clew_client: Client) -> None:
    async with Worker(clew_client, task_queue="q", workflows=[Ids], activities=[new_id]):
        await clew_client.execute_workflow(Ids.run, id="ids", task_queue="q")


@pytest.mark.clew_chaos(varying=["new_id"])
async def test_other_answer_allowed(clew_client: Client) -> None:
    async with Worker(clew_client, task_queue="q", workflows=[Ids], activities=[new_id]):
        await clew_client.execute_workflow(Ids.run, id="ids", task_queue="q")
"""

DIVERGES = """
runs = itertools.count(1)


@workflow.defn
class Counting:
    @workflow.run
    async def run(self) -> None:
        number = next(runs)  # other at each replay
        await workflow.execute_activity(charge, 1, **LIMITS)
        if number > 1:
            await workflow.sleep(1)
        await workflow.execute_activity(charge, 2, **LIMITS)


@pytest.mark.clew_chaos
async def test_diverges(clew_client: Client) -> None:
    global runs
    runs = itertools.count(1)
    async with Worker(clew_client, task_queue="q", workflows=[Counting], activities=[charge]):
        await clew_client.execute_workflow(Counting.run, id="counting", task_queue="q")
"""

LOSES_A_STEP = """
@workflow.defn
class Once:
    @workflow.run
    async def run(self) -> str:
        once = RetryPolicy(maximum_attempts=1)
        try:
            await workflow.execute_activity(charge, 5, retry_policy=once, **LIMITS)
        except Exception:
            return "given up"
        await workflow.execute_activity(charge, 6, **LIMITS)
        return "charged"


@pytest.mark.clew_chaos
async def test_loses_a_step(clew_client: Client) -> None:
    async with Worker(clew_client, task_queue="q", workflows=[Once], activities=[charge]):
        await clew_client.execute_workflow(Once.run, id="once", task_queue="q")
"""

HANGS = """
told: list[bool] = []


@activity.defn
async def tell() -> bool:
    told.append(True)
    return len(told) == 1


@workflow.defn
class Waiting:
    @workflow.run
    async def run(self) -> None:
        if not await workflow.execute_activity(tell, **LIMITS):
            await workflow.wait_condition(lambda: False)


@pytest.mark.clew_chaos(seconds=1, faults=["outcome"])
async def test_hangs(clew_client: Client) -> None:
    told.clear()
    async with Worker(clew_client, task_queue="q", workflows=[Waiting], activities=[tell]):
        await clew_client.execute_workflow(Waiting.run, id="waiting", task_queue="q")
"""

USAGE = """
@pytest.mark.clew_chaos
async def test_without_fixture() -> None: ...


@pytest.mark.clew_chaos(fault="worker")
async def test_unknown_option(clew_client: Client) -> None: ...


@pytest.mark.clew_chaos
async def test_fails_undisturbed(clew_client: Client) -> None:
    assert False, "as it is"


@workflow.defn
class Broken:
    @workflow.run
    async def run(self) -> None:
        raise ValueError("broken")


@pytest.mark.clew_chaos
async def test_fails_its_task_for_ever(clew_client: Client) -> None:
    async with Worker(clew_client, task_queue="q", workflows=[Broken]):
        await clew_client.execute_workflow(Broken.run, id="broken", task_queue="q")


async def test_plain_fixtures(clew_env, clew_client: Client, clew_activity_env) -> None:
    assert clew_env.supports_time_skipping
    assert clew_env.client is clew_client
    assert await clew_activity_env.run(charge, 5) == 5
"""


class Result:
    """What pytest said about the tests of one file."""

    def __init__(self, pytester: pytest.Pytester, text: str) -> None:
        pytester.makepyfile(HEAD + text)
        pytester.makeini(
            "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
            "filterwarnings = error\naddopts = --strict-markers -p clew.pytest_plugin\n"
        )
        done = pytester.runpytest_subprocess("--junitxml=out.xml", "-q")
        self.text = done.stdout.str() + done.stderr.str()
        self.cases = {case.get("name"): case for case in ET.parse(pytester.path / "out.xml").iter("testcase")}

    def failure(self, name: str) -> str:
        case = self.cases[name]
        found = [element for element in case if element.tag in ("failure", "error")]
        assert found, f"{name} passed\n{self.text}"
        return f"{found[0].get('message')}\n{found[0].text}"

    def faults(self, name: str) -> str:
        case = self.cases[name]
        assert not [element for element in case if element.tag in ("failure", "error")], self.text
        return next(p.get("value", "") for p in case.iter("property") if p.get("name") == "clew_chaos")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    return pytester


def test_a_sound_workflow_survives_every_fault(project: pytest.Pytester) -> None:
    planned, struck = Result(project, SOUND).faults("test_sound").replace(" struck", "").split(" faults, ")
    assert int(planned) > 40
    assert int(struck) >= int(planned) * 0.9, "the places of the faults are reached"


def test_planted_bugs_are_found_and_explained(project: pytest.Pytester) -> None:
    result = Result(project, CHARGES_TWICE + OTHER_ANSWER + DIVERGES + LOSES_A_STEP + HANGS)
    twice = result.failure("test_charges_twice")
    assert "chaos: worker crashed before the result of the activity of 'n' arrived" in twice
    assert "'charge_naively' was done 2 times with the idempotency key" in twice
    assert "assert [5, 5] == [5]" in twice
    other = result.failure("test_other_answer")
    assert "Activity 'new_id' is not idempotent" in other
    assert "clew_chaos(varying=['new_id'])" in other
    assert result.faults("test_other_answer_allowed")
    diverges = result.failure("test_diverges")
    assert "chaos: every workflow task replayed from the start" in diverges
    assert "Divergence in 'counting'" in diverges
    loses = result.failure("test_loses_a_step")
    assert "Lost step in 'once': ActivityTaskScheduled charge" in loses
    hangs = result.failure("test_hangs")
    assert "the test was not done within 1 s of real time" in hangs
    assert "'waiting' stands after" in hangs


def test_wrong_usage_and_tests_that_fail_anyway(project: pytest.Pytester) -> None:
    result = Result(project, USAGE)
    assert "has to use the fixture clew_env or clew_client" in result.failure("test_without_fixture")
    assert "of test_unknown_option has fault; it takes" in result.failure("test_unknown_option")
    undisturbed = result.failure("test_fails_undisturbed")
    assert "as it is" in undisturbed
    assert "chaos:" not in undisturbed
    broken = result.failure("test_fails_its_task_for_ever")
    assert "'broken' does not get on: its workflow task has failed 50 times in a row" in broken
    assert "the last time with ValueError: broken" in broken
    assert "test_plain_fixtures" in result.cases
    assert not list(result.cases["test_plain_fixtures"])
