"""Worker versions through the contract: who gets which task, what is said of it, what operators may change."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from clew.adapters import SystemEntropy
from clew.core.versioning import Route
from clew.engine import matching
from clew.model import commands as c
from clew.model.commands import Command
from clew.model.policies import DeploymentVersion, VersioningBehavior, VersioningOverride
from clew.model.rejection import RejectionCode
from clew.service import deployments as d
from clew.service import requests as r
from clew.service.errors import RPCError
from tests.conformance.service.scripted import ScriptedWorker, Shop, payloads, soon

MINUTE = timedelta(minutes=1)
PINNED = VersioningBehavior.PINNED
AUTO_UPGRADE = VersioningBehavior.AUTO_UPGRADE
Status = d.DeploymentVersionStatus


def version(build_id: str, name: str = "billing") -> DeploymentVersion:
    return DeploymentVersion(name, build_id)


async def versioned(shop: Shop, build_id: str, *, deployment: str = "billing", **hello: Any) -> ScriptedWorker:
    """A worker of the version."""
    return await shop.worker(
        **{
            "deployment_version": version(build_id, deployment),
            "uses_versioning": True,
            "instance_id": f"{deployment}-{build_id}",
            "identity": f"worker {build_id}",
            **hello,
        }
    )


async def complete(
    worker: ScriptedWorker,
    task: r.WorkflowTask,
    *commands: Command,
    behavior: VersioningBehavior = PINNED,
    sticky: bool = False,
) -> None:
    """Complete a task as a worker of a version does."""
    hello = worker.session.hello  # type: ignore[union-attr]
    await worker.complete(
        task,
        *commands,
        sticky=sticky,
        deployment_version=hello.deployment_version,
        versioning_behavior=behavior if hello.uses_versioning else VersioningBehavior.UNSPECIFIED,
    )


async def set_current(shop: Shop, build_id: str, **fields: Any) -> d.DeploymentInfo:
    request = d.SetCurrentVersionRequest(
        **{"namespace": "default", "deployment_name": "billing", "build_id": build_id, "identity": "op", **fields}
    )
    return await soon(shop.service.set_current_version(request))


async def set_ramp(shop: Shop, build_id: str | None, percentage: float = 0.0, **fields: Any) -> d.DeploymentInfo:
    request = d.SetRampingVersionRequest(
        namespace="default", deployment_name="billing", build_id=build_id, percentage=percentage, **fields
    )
    return await soon(shop.service.set_ramping_version(request))


async def statuses(shop: Shop) -> dict[str, Status]:
    described = await soon(
        shop.service.describe_deployment(d.DescribeDeploymentRequest(namespace="default", deployment_name="billing"))
    )
    return {one.build_id: one.status for one in described.versions}


async def move(shop: Shop, override: VersioningOverride | None, workflow_id: str = "w1") -> None:
    request = r.UpdateWorkflowOptionsRequest(
        namespace="default", workflow_id=workflow_id, versioning_override=override, identity="op"
    )
    answer = await soon(shop.service.update_workflow_options(request))
    assert answer.versioning_override == override


def pin(build_id: str) -> VersioningOverride:
    return VersioningOverride(behavior=PINNED, pinned_version=version(build_id))


def wait(number: int = 1) -> c.StartTimer:
    return c.StartTimer(timer_id=str(number), start_to_fire_timeout=timedelta(days=1))


def activity(number: int = 1, **fields: Any) -> c.ScheduleActivityTask:
    values = {"activity_id": f"a-{number}", "activity_type": "a", "start_to_close_timeout": MINUTE, **fields}
    return c.ScheduleActivityTask(**values)


async def idle(*workers: ScriptedWorker) -> None:
    """None of these has been offered anything, after the engine had every chance to."""
    for _ in range(20):
        await asyncio.sleep(0)
    for worker in workers:
        assert worker.workflow_tasks.empty()
        assert worker.activity_tasks.empty()


async def test_a_version_gets_runs_only_once_it_is_current(shop: Shop) -> None:
    plain = await shop.worker()
    one = await versioned(shop, "1")
    await shop.start("before")
    assert (await plain.workflow_task()).token.workflow_id == "before"
    info = await set_current(shop, "1")
    assert (info.current_build_id, info.identity) == ("1", "op")
    await shop.start("after")
    assert (await one.workflow_task()).token.workflow_id == "after"
    await idle(plain)
    await set_current(shop, "")
    await shop.start("again")
    assert (await plain.workflow_task()).token.workflow_id == "again"


async def test_a_worker_without_versioning_keeps_no_run_to_itself(shop: Shop) -> None:
    plain = await shop.worker(deployment_version=version("7"))
    await shop.start()
    task = await plain.workflow_task()
    await plain.complete(task, wait(), deployment_version=version("7"), versioning_behavior=PINNED)
    assert (await shop.describe()).versioning is None
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.signal("go")
    assert (await one.workflow_task()).token.workflow_id == "w1"


async def test_pinned_runs_stay_and_the_others_move_on(shop: Shop) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    for workflow_id, behavior in (("pinned", PINNED), ("follows", AUTO_UPGRADE)):
        await shop.start(workflow_id)
        await complete(one, await one.workflow_task(), wait(), behavior=behavior, sticky=True)
    two = await versioned(shop, "2")
    await set_current(shop, "2")
    await shop.signal("go", workflow_id="pinned")
    await shop.signal("go", workflow_id="follows")
    stays, moves = await one.workflow_task(), await two.workflow_task()
    assert (stays.token.workflow_id, stays.is_partial) == ("pinned", True)
    assert (moves.token.workflow_id, moves.is_partial) == ("follows", False)
    assert moves.events[0].event_id == 1
    await complete(two, moves, behavior=AUTO_UPGRADE, sticky=True)
    described = await shop.describe("follows")
    assert described.versioning == r.VersioningInfo(behavior=AUTO_UPGRADE, version=version("2"))


async def test_a_task_that_waits_for_the_session_with_the_run_cached_is_taken_from_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "OVERDRAFT", 0)
    one = await versioned(shop, "1", credits=1)
    await set_current(shop, "1")
    await shop.start()
    task = await one.workflow_task()
    await soon(
        shop.service.complete_workflow_task(
            r.CompleteWorkflowTaskRequest(
                token=task.token,
                commands=(wait(),),
                is_sticky=True,
                deployment_version=version("1"),
                versioning_behavior=AUTO_UPGRADE,
            )
        )
    )
    await shop.signal("go")
    two = await versioned(shop, "2")
    await idle(one, two)
    await set_current(shop, "2")
    assert not (await two.workflow_task()).is_partial
    one.grant()
    await idle(one)


async def test_a_ramp_gives_the_workflow_ids_of_its_share(shop: Shop) -> None:
    one, two = await versioned(shop, "1", credits=100), await versioned(shop, "2", credits=100)
    await set_current(shop, "1")
    await set_ramp(shop, "2", 30)
    route = Route(current=version("1"), ramping=version("2"), ramp_percentage=30)
    expected: dict[DeploymentVersion | None, set[str]] = {version("1"): set(), version("2"): set()}
    for number in range(60):
        await shop.start(f"w{number}")
        expected[route.version_of(f"w{number}")].add(f"w{number}")
    for worker, build_id in ((one, "1"), (two, "2")):
        wanted = expected[version(build_id)]
        assert wanted
        assert {(await worker.workflow_task()).token.workflow_id for _ in wanted} == wanted
    await idle(one, two)
    assert await statuses(shop) == {"1": Status.CURRENT, "2": Status.RAMPING}
    await set_ramp(shop, None)
    assert await statuses(shop) == {"1": Status.CURRENT, "2": Status.DRAINED}


async def test_the_ramping_version_becomes_current_and_its_ramp_ends(shop: Shop) -> None:
    await versioned(shop, "1")
    await versioned(shop, "2")
    await set_current(shop, "1")
    await set_ramp(shop, "2", 5)
    info = await set_current(shop, "2")
    assert (info.current_build_id, info.ramping_build_id, info.ramp_percentage) == ("2", None, 0.0)
    with pytest.raises(RPCError, match="ramp another version than the current one"):
        await set_ramp(shop, "2", 5)


async def test_activities_go_with_their_run(shop: Shop) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start()
    first = await one.workflow_task()
    two = await versioned(shop, "2")
    await set_current(shop, "2")
    await complete(one, first, activity())
    assert (await one.activity_task()).activity_id == "a-1"
    await idle(two)


async def test_activities_on_a_queue_that_the_version_does_not_serve_go_their_own_way(shop: Shop) -> None:
    one = await versioned(shop, "1")
    own = await versioned(shop, "1", task_queue="own", instance_id="own")
    plain = await shop.worker(task_queue="plain", instance_id="plain")
    other = await versioned(shop, "9", deployment="mail", task_queue="mail")
    await set_current(shop, "1")
    await soon(
        shop.service.set_current_version(
            d.SetCurrentVersionRequest(namespace="default", deployment_name="mail", build_id="9")
        )
    )
    await shop.start()
    queues = ("own", "plain", "mail")
    commands = [activity(n, task_queue=queue) for n, queue in enumerate(queues)]
    await complete(one, await one.workflow_task(), *commands)
    for worker, queue in ((own, "own"), (plain, "plain"), (other, "mail")):
        assert (await worker.activity_task()).task_queue == queue


async def test_a_pinned_run_waits_for_a_worker_of_its_version_and_says_so(shop: Shop) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start()
    await complete(one, await one.workflow_task(), wait())
    two = await versioned(shop, "2")
    await set_current(shop, "2")
    assert one.session is not None
    one.session.detach()
    await shop.signal("go")
    await idle(two)
    (line, *_) = (await shop.describe()).waiting_for
    assert "no worker of version billing.1 polls task queue 'q' for workflow tasks since 20" in line
    assert "there are workers of billing.2" in line
    again = await versioned(shop, "1")
    assert (await again.workflow_task()).token.workflow_id == "w1"


async def test_an_unversioned_run_says_that_only_versioned_workers_are_there(shop: Shop) -> None:
    await versioned(shop, "1")
    await shop.start()
    described = await shop.until_described(lambda found: bool(found.waiting_for))
    assert "no worker without versioning polls task queue 'q'" in described.waiting_for[0]
    assert "there are workers of billing.1" in described.waiting_for[0]


async def test_a_version_is_draining_while_open_runs_are_pinned_to_it(shop: Shop) -> None:
    one = await versioned(shop, "1")
    assert await statuses(shop) == {"1": Status.INACTIVE}
    await set_current(shop, "1")
    await shop.start("pinned")
    await complete(one, await one.workflow_task(), wait())
    await shop.start("follows")
    await complete(one, await one.workflow_task(), wait(), behavior=AUTO_UPGRADE)
    await versioned(shop, "2")
    await set_current(shop, "2")
    assert await statuses(shop) == {"1": Status.DRAINING, "2": Status.CURRENT}
    await shop.signal("end", workflow_id="pinned")
    await complete(one, await one.workflow_task(), c.CompleteWorkflowExecution())
    assert await statuses(shop) == {"1": Status.DRAINED, "2": Status.CURRENT}
    listed = await soon(
        shop.service.list_workflows(
            r.ListWorkflowsRequest(
                namespace="default",
                query="TemporalWorkerDeploymentVersion = 'billing.1' AND TemporalWorkflowVersioningBehavior = 'Pinned'",
            )
        )
    )
    assert [one.workflow_id for one in listed.executions] == ["pinned"]


async def test_an_override_at_the_start_comes_before_the_routing(shop: Shop) -> None:
    one, two = await versioned(shop, "1"), await versioned(shop, "2")
    await set_current(shop, "2")
    await shop.start(versioning_override=pin("1"))
    await complete(one, await one.workflow_task(), wait(), behavior=AUTO_UPGRADE)
    assert (await statuses(shop))["1"] is Status.DRAINING
    await idle(two)


async def test_a_run_is_moved_to_another_version_and_back(shop: Shop) -> None:
    one, two = await versioned(shop, "1"), await versioned(shop, "2")
    await set_current(shop, "1")
    await shop.start()
    await complete(one, await one.workflow_task(), wait(), sticky=True)
    await move(shop, pin("2"))
    await shop.signal("go")
    task = await two.workflow_task()
    assert not task.is_partial
    await complete(two, task, sticky=True)
    assert (await statuses(shop)) == {"1": Status.CURRENT, "2": Status.DRAINING}
    await move(shop, VersioningOverride(behavior=AUTO_UPGRADE))
    await shop.signal("go")
    await complete(one, await one.workflow_task())
    assert (await shop.event_types()).count("WorkflowExecutionOptionsUpdated") == 2


@pytest.mark.parametrize("what", ["workflow task", "activity"])
async def test_what_waits_for_the_old_version_moves_with_its_run(shop: Shop, what: str) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start()
    task = await one.workflow_task()
    one.session.stop_polling()  # type: ignore[union-attr]
    await soon(
        shop.service.complete_workflow_task(
            r.CompleteWorkflowTaskRequest(
                token=task.token,
                commands=(activity(),) if what == "activity" else (),
                force_create_new_workflow_task=what != "activity",
                deployment_version=version("1"),
                versioning_behavior=PINNED,
            )
        )
    )
    two = await versioned(shop, "2")
    await idle(two)
    await move(shop, pin("2"))
    if what == "activity":
        assert (await two.activity_task()).activity_id == "a-1"
    else:
        assert (await two.workflow_task()).token.workflow_id == "w1"


async def test_a_move_during_a_task_takes_along_what_that_task_asks_for(shop: Shop) -> None:
    one, two = await versioned(shop, "1"), await versioned(shop, "2")
    await set_current(shop, "1")
    await shop.start()
    task = await one.workflow_task()
    await move(shop, pin("2"))
    await complete(one, task, wait())
    assert (await shop.describe()).versioning == r.VersioningInfo(
        behavior=PINNED, version=version("1"), override=pin("2")
    )
    await complete(two, await two.workflow_task(), activity())
    assert (await two.activity_task()).activity_id == "a-1"
    await idle(one)


async def test_queries_are_asked_of_the_version_that_has_the_run(shop: Shop) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start()
    await complete(one, await one.workflow_task(), c.CompleteWorkflowExecution())
    await versioned(shop, "2")
    await set_current(shop, "2")
    request = r.QueryWorkflowRequest(namespace="default", workflow_id="w1", query_type="state")
    asking = asyncio.ensure_future(shop.service.query_workflow(request))
    task = await one.workflow_task()
    assert task.query is not None
    result = r.QueryResult(query_id=task.query.query_id, result=payloads("fine"))
    await soon(shop.service.answer_query(r.AnswerQueryRequest(token=task.token, result=result)))
    assert (await soon(asking)).result == payloads("fine")


async def test_a_child_of_a_pinned_run_begins_on_its_version(shop: Shop) -> None:
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start("parent")
    first = await one.workflow_task()
    two = await versioned(shop, "2")
    plain = await shop.worker(task_queue="elsewhere", instance_id="plain")
    await set_current(shop, "2")
    children = [
        c.StartChildWorkflowExecution(workflow_id="near", workflow_type="W"),
        c.StartChildWorkflowExecution(workflow_id="far", workflow_type="W", task_queue="elsewhere"),
    ]
    await complete(one, first, *children)
    seen = {(await one.workflow_task()).token.workflow_id for _ in range(2)}
    assert "near" in seen
    assert (await plain.workflow_task()).token.workflow_id == "far"
    await idle(two)


async def test_a_version_without_credits_holds_up_nobody_and_gets_its_own(shop: Shop) -> None:
    one, two = await versioned(shop, "1", credits=0), await versioned(shop, "2", credits=2)
    await set_current(shop, "1")
    for number in range(5):
        await shop.start(f"old{number}")
    await set_current(shop, "2")
    await shop.start("first", versioning_override=pin("1"))
    for number in range(5):
        await shop.start(f"new{number}", versioning_override=pin("2"))
    claims = 0
    store = shop.engine._store
    claim_tasks = store.claim_tasks

    def counting(*args: Any) -> Any:
        nonlocal claims
        claims += 1
        return claim_tasks(*args)

    store.claim_tasks = counting  # type: ignore[method-assign]
    seen = set()
    for _ in range(10):
        task = await two.workflow_task()
        seen.add(task.token.workflow_id)
        await complete(two, task, c.CompleteWorkflowExecution())
    assert seen == {f"old{n}" for n in range(5)} | {f"new{n}" for n in range(5)}
    await idle(one, two)
    assert claims < 40, "rows that nobody can have are claimed again and again"
    one.grant()
    assert (await one.workflow_task()).token.workflow_id == "first"


async def test_many_rows_of_an_absent_version_are_got_past(shop: Shop) -> None:
    two = await versioned(shop, "2", credits=0)
    for number in range(300):
        await shop.start(f"old{number}", versioning_override=pin("1"))
    await shop.start("new", versioning_override=pin("2"))
    two.grant()
    assert (await two.workflow_task()).token.workflow_id == "new"
    one = await versioned(shop, "1", credits=20)
    seen = set()
    for _ in range(300):
        task = await one.workflow_task()
        seen.add(task.token.workflow_id)
        await complete(one, task, c.CompleteWorkflowExecution())
    assert seen == {f"old{n}" for n in range(300)}


async def test_routing_and_pins_survive_a_restart(file_shop: Shop) -> None:
    shop = file_shop
    one = await versioned(shop, "1")
    await set_current(shop, "1")
    await shop.start("pinned")
    await complete(one, await one.workflow_task(), wait())
    await versioned(shop, "2")
    await set_current(shop, "2")
    await shop.restart()
    one, two = await versioned(shop, "1"), await versioned(shop, "2")
    await shop.signal("go", workflow_id="pinned")
    await shop.start("new")
    assert (await one.workflow_task()).token.workflow_id == "pinned"
    assert (await two.workflow_task()).token.workflow_id == "new"
    assert await statuses(shop) == {"1": Status.DRAINING, "2": Status.CURRENT}


async def refusal(call: Any) -> RPCError:
    with pytest.raises(RPCError) as caught:
        await call
    return caught.value


async def test_changes_that_would_strand_runs_are_refused(shop: Shop) -> None:
    error = await refusal(set_current(shop, "1"))
    assert error.code is RejectionCode.DEPLOYMENT_NOT_FOUND
    one = await versioned(shop, "1")
    await versioned(shop, "1", task_queue="mail", instance_id="mail")
    error = await refusal(set_current(shop, "2"))
    assert error.code is RejectionCode.DEPLOYMENT_NOT_FOUND
    assert "there are: 1" in error.message
    await set_current(shop, "1")
    two = await versioned(shop, "2")
    error = await refusal(set_current(shop, "2"))
    assert error.code is RejectionCode.DEPLOYMENT_NOT_READY
    assert "has polled 'mail'" in error.message
    await set_current(shop, "2", ignore_missing_task_queues=True)
    assert one.session is not None
    one.session.detach()
    await versioned(shop, "3")
    error = await refusal(set_ramp(shop, "9", 5, allow_no_pollers=False))
    assert error.code is RejectionCode.DEPLOYMENT_NOT_FOUND
    assert two.session is not None
    two.session.detach()
    await set_current(shop, "3")
    error = await refusal(set_current(shop, "2"))
    assert "no worker of version '2'" in error.message
    info = await set_current(shop, "2", allow_no_pollers=True)
    assert info.current_build_id == "2"
    error = await refusal(set_ramp(shop, "3", 101))
    assert error.code is RejectionCode.INVALID_ARGUMENT


async def test_a_decision_on_an_old_state_is_refused(shop: Shop) -> None:
    await versioned(shop, "1")
    await versioned(shop, "2")
    info = await set_current(shop, "1")
    await set_ramp(shop, "2", 10, conflict_token=info.conflict_token)
    error = await refusal(set_ramp(shop, "2", 20, conflict_token=info.conflict_token))
    assert error.code is RejectionCode.DEPLOYMENT_CHANGED
    listed = await soon(shop.service.list_deployments(d.ListDeploymentsRequest(namespace="default")))
    (found,) = listed.deployments
    assert (found.current_build_id, found.ramping_build_id, found.ramp_percentage) == ("1", "2", 10)


async def test_a_version_that_is_still_needed_is_not_forgotten(shop: Shop) -> None:
    def delete(build_id: str, **fields: Any) -> Any:
        request = d.DeleteDeploymentVersionRequest(
            namespace="default", deployment_name="billing", build_id=build_id, **fields
        )
        return soon(shop.service.delete_deployment_version(request))

    one = await versioned(shop, "1")
    await set_current(shop, "1")
    assert (await refusal(delete("1"))).code is RejectionCode.DEPLOYMENT_NOT_READY
    await shop.start()
    await complete(one, await one.workflow_task(), wait())
    await versioned(shop, "2")
    await set_current(shop, "2")
    assert "are running; stop them first" in (await refusal(delete("1"))).message
    assert one.session is not None
    one.session.detach()
    assert "1 open runs are pinned to version '1'" in (await refusal(delete("1"))).message
    await delete("1", skip_drainage=True)
    assert await statuses(shop) == {"2": Status.CURRENT}
    assert (await refusal(delete("1"))).code is RejectionCode.DEPLOYMENT_NOT_FOUND


async def test_old_versions_make_room_and_needed_ones_do_not(shop: Shop) -> None:
    for number in range(100):
        worker = await versioned(shop, f"v{number}")
        if number:
            worker.session.detach()  # type: ignore[union-attr]
    await versioned(shop, "new")
    known = await statuses(shop)
    assert len(known) == 100
    assert "v1" not in known
    assert {"v0", "new"} <= set(known)


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        ({"deployment_version": None}, "must name its deployment"),
        ({"deployment_version": DeploymentVersion("billing", "")}, "must name its deployment"),
        ({"deployment_version": DeploymentVersion("bill.ing", "1")}, "has a dot"),
        ({"deployment_version": DeploymentVersion("billing", "1" * 256)}, "at most 255 bytes"),
    ],
)
async def test_a_worker_must_say_its_whole_version(shop: Shop, hello: dict[str, Any], says: str) -> None:
    error = await refusal(versioned(shop, "1", **hello))
    assert error.code is RejectionCode.INVALID_ARGUMENT
    assert says in error.message


@pytest.mark.parametrize("seed", range(4))
async def test_no_run_ever_meets_a_worker_that_must_not_have_it(shop: Shop, seed: int) -> None:
    """Random starts, moves and routings; after each, every task offered is held against what must hold."""
    choose = random.Random(seed)
    builds = ("1", "2", "3")
    workers = {build: await versioned(shop, build, credits=2) for build in builds}
    plain = await shop.worker(credits=2)
    current = ""
    expected_pin: dict[str, str] = {}
    open_ids: list[str] = []
    behaviors: dict[str, VersioningBehavior] = {}

    def wanted(workflow_id: str) -> str:
        return expected_pin.get(workflow_id, current)

    async def work() -> None:
        """Answer what was offered until nothing more comes, checking each."""
        for _ in range(3):
            await soon(shop.settle())
            for build, worker in [*workers.items(), ("", plain)]:
                while not worker.workflow_tasks.empty():
                    task = await worker.workflow_task()
                    workflow_id = task.token.workflow_id
                    assert wanted(workflow_id) == build, f"seed {seed}: {workflow_id} met {build!r}"
                    behavior = behaviors.setdefault(workflow_id, choose.choice([PINNED, AUTO_UPGRADE]))
                    commands = () if task.previous_started_event_id else (wait(),)
                    await complete(worker, task, *commands, behavior=behavior, sticky=choose.random() < 0.7)
                    if build and behavior is PINNED and workflow_id not in overridden:
                        expected_pin[workflow_id] = build

    overridden: set[str] = set()
    for step in range(60):
        action = choose.random()
        if action < 0.35 or not open_ids:
            workflow_id = f"w{step}"
            open_ids.append(workflow_id)
            await shop.start(workflow_id, request_id=SystemEntropy().uuid7())
        elif action < 0.7:
            await shop.signal("go", workflow_id=choose.choice(open_ids))
        elif action < 0.85:
            current = choose.choice(("", *builds))
            await set_current(shop, current)
        else:
            workflow_id, build = choose.choice(open_ids), choose.choice(builds)
            await move(shop, pin(build), workflow_id)
            overridden.add(workflow_id)
            expected_pin[workflow_id] = build
        await work()
    assert len(expected_pin) > 3
