"""Role by call, cell by cell: who is let through to the engine, and who is refused before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clew.model.access import EVERYWHERE, ROLE_PERMISSIONS, Grant, Permission, Role, parse_grant, parse_grants
from clew.model.rejection import RejectionCode
from clew.server.security.authorized import AuthorizedService, Guards
from clew.server.security.calls import CALLS
from clew.server.security.principal import Principal
from clew.service.errors import RPCError
from clew.testing import ManualClock
from tests.server.security.samples import REQUESTS, FakeService, NullSink

COLUMNS = ("reader", "client", "worker", "operator", "admin", "nobody")

# Written by hand, apart from the table that it checks: x is let through.
EXPECTED = """
                             reader client worker operator admin nobody
start_workflow               .      x      .      x        x     .
signal_workflow              .      x      .      x        x     .
signal_with_start            .      x      .      x        x     .
request_cancel_workflow      .      x      .      x        x     .
terminate_workflow           .      x      .      x        x     .
reset_workflow               .      .      .      x        x     .
delete_workflow              .      .      .      x        x     .
update_workflow              .      x      .      x        x     .
poll_update                  x      x      .      x        x     .
update_with_start            .      x      .      x        x     .
update_workflow_options      .      .      .      x        x     .
query_workflow               x      x      .      x        x     .
describe_workflow            x      x      .      x        x     .
get_history                  x      x      .      x        x     .
list_workflows               x      x      .      x        x     .
count_workflows              x      x      .      x        x     .
set_current_version          .      .      .      x        x     .
set_ramping_version          .      .      .      x        x     .
describe_deployment          x      x      .      x        x     .
list_deployments             x      x      .      x        x     .
delete_deployment_version    .      .      .      x        x     .
create_namespace             .      .      .      .        x     .
describe_namespace           x      x      x      x        x     .
list_namespaces              x      x      x      x        x     x
describe_task_queue          x      x      .      x        x     .
list_task_queues             x      x      .      x        x     .
issue_callback               .      x      x      x        x     .
issue_callback/by-ids        .      x      .      x        x     .
open_callback                .      .      .      .        x     .
create_api_key               .      .      .      .        x     .
list_api_keys                .      .      .      .        x     .
revoke_api_key               .      .      .      .        x     .
rotate_api_key               .      .      .      .        x     .
attach_worker                .      .      x      .        x     .
complete_workflow_task       .      .      x      .        x     .
fail_workflow_task           .      .      x      .        x     .
record_markers               .      .      x      .        x     .
answer_query                 .      .      x      .        x     .
complete_activity            .      x      x      x        x     .
complete_activity/by-ids     .      x      .      x        x     .
fail_activity                .      x      x      x        x     .
fail_activity/by-ids         .      x      .      x        x     .
cancel_activity              .      x      x      x        x     .
cancel_activity/by-ids       .      x      .      x        x     .
release_activity             .      .      x      .        x     .
detach_activity              .      .      x      .        x     .
heartbeat_activity           .      x      x      x        x     .
heartbeat_activity/by-ids    .      x      .      x        x     .
"""


def _cells() -> list[tuple[str, str, bool]]:
    lines = [line.split() for line in EXPECTED.strip().splitlines()[1:]]
    return [
        (call.replace("/by-ids", " (by ids)"), role, mark == "x")
        for call, *marks in lines
        for role, mark in zip(COLUMNS, marks, strict=True)
    ]


CELLS = _cells()
IN_NO_NAMESPACE = {"create_namespace", "open_callback", "create_api_key", "list_api_keys", "revoke_api_key",
                   "rotate_api_key"}  # fmt: skip


def service_as(fake: FakeService, *grants: str | Grant, **fields: Any) -> AuthorizedService:
    parsed = tuple(grant if isinstance(grant, Grant) else parse_grant(grant) for grant in grants)
    principal = Principal(principal_id="key:1", name="ci", grants=parsed)
    clock = ManualClock().attach(asyncio.get_running_loop())
    return AuthorizedService(fake, principal, Guards(clock=clock, **fields))  # type: ignore[arg-type]


async def call(service: AuthorizedService, sample: str, namespace: str = "ours") -> Any:
    name = sample.partition(" ")[0]
    request = REQUESTS[sample](namespace)
    method = getattr(service, name)
    return await (method(request, NullSink()) if name == "attach_worker" else method(request))


def test_every_sample_has_a_row_and_the_other_way_round() -> None:
    assert {cell[0] for cell in CELLS} == set(REQUESTS)
    assert {name.partition(" ")[0] for name in REQUESTS} == set(CALLS)
    assert {role.value for role in Role} == set(COLUMNS) - {"nobody"}
    assert len(CELLS) == len(REQUESTS) * len(COLUMNS)


@pytest.mark.parametrize(("sample", "role", "is_allowed"), CELLS)
async def test_cell(sample: str, role: str, is_allowed: bool) -> None:
    fake = FakeService()
    where = EVERYWHERE if sample in IN_NO_NAMESPACE else "ours"
    service = service_as(fake, *([] if role == "nobody" else [f"{where}:{role}"]))
    if is_allowed:
        await call(service, sample)
        assert [name for name, _ in fake.calls] == [sample.partition(" ")[0]]
        return
    with pytest.raises(RPCError) as refusal:
        await call(service, sample)
    assert refusal.value.code is RejectionCode.PERMISSION_DENIED
    assert fake.calls == []


@pytest.mark.parametrize("sample", [name for name in REQUESTS if name != "list_namespaces"])
async def test_a_grant_reaches_no_other_namespace(sample: str) -> None:
    fake = FakeService()
    service = service_as(fake, "theirs:admin", "our:admin", "ours2:admin")
    with pytest.raises(RPCError) as refusal:
        await call(service, sample)
    assert refusal.value.code is RejectionCode.PERMISSION_DENIED
    assert fake.calls == []


@pytest.mark.parametrize("sample", sorted(IN_NO_NAMESPACE))
async def test_what_belongs_to_no_namespace_needs_a_grant_for_every_one(sample: str) -> None:
    fake = FakeService()
    with pytest.raises(RPCError):
        await call(service_as(fake, "ours:admin"), sample)
    assert fake.calls == []


async def test_a_call_in_two_namespaces_needs_both() -> None:
    fake = FakeService()
    start, update = REQUESTS["start_workflow"]("ours"), REQUESTS["update_workflow"]("theirs")
    request = type(REQUESTS["update_with_start"]("ours"))(start=start, update=update)
    for grants in (["ours:client"], ["theirs:client"]):
        with pytest.raises(RPCError):
            await service_as(fake, *grants).update_with_start(request)
    assert fake.calls == []
    await service_as(fake, "ours:client", "theirs:client").update_with_start(request)
    assert len(fake.calls) == 1


async def test_a_worker_serves_only_the_queue_of_its_grant() -> None:
    fake = FakeService()
    await call(service_as(fake, "ours/q:worker"), "attach_worker")
    await call(service_as(fake, "*/q:worker"), "attach_worker")
    for grants in (["ours/other:worker"], ["theirs/q:worker", "ours/q2:worker"]):
        with pytest.raises(RPCError) as refusal:
            await call(service_as(fake, *grants), "attach_worker")
        assert refusal.value.code is RejectionCode.PERMISSION_DENIED
    assert len(fake.calls) == 2


async def test_one_permission_can_be_granted_alone() -> None:
    for permission in Permission:
        rule_names = [sample for sample in REQUESTS if sample not in IN_NO_NAMESPACE and sample != "list_namespaces"]
        for sample in rule_names:
            fake = FakeService()
            service = service_as(fake, Grant("ours", permission.value))
            needed = CALLS[sample.partition(" ")[0]].needed_for(REQUESTS[sample]("ours"))
            allowed = Grant("ours", permission.value).permissions
            if allowed & needed:
                await call(service, sample)
            else:
                with pytest.raises(RPCError):
                    await call(service, sample)


def test_admin_is_the_role_and_has_everything() -> None:
    assert Grant("n", "admin").permissions == frozenset(Permission) == ROLE_PERMISSIONS[Role.ADMIN]


async def test_a_role_of_a_later_version_allows_nothing() -> None:
    with pytest.raises(RPCError):
        await call(service_as(FakeService(), Grant("ours", "emperor")), "list_workflows")


@pytest.mark.parametrize("text", ["", "ours", "ours:", ":client", "ours:king", "/q:worker", "ours/:worker",
                                  "ours/q:client", "x" * 3000 + ":client"])  # fmt: skip
def test_what_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="grant"):
        parse_grant(text)


def test_grants_read_as_written() -> None:
    for text in ("ours:client", "*:admin", "ours/q:worker", "a:b:reader", "ours/a/b:worker", "ours:payloads"):
        assert str(parse_grant(text)) == text
    with pytest.raises(ValueError, match="101 grants"):
        parse_grants(["a:reader"] * 101)
