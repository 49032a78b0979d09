"""From credentials to a service: API keys in the store, refusals, revocation on this node and on another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any

import pytest

from clew.adapters import SystemEntropy
from clew.core.api_keys import KeyRecord, decode_record, read_key
from clew.engine.api_keys import ApiKeys
from clew.model.access import Permission
from clew.model.rejection import RejectionCode
from clew.ports.store import Store, StoreUnavailable
from clew.server.security.authenticator import REFUSALS_BURST, Security
from clew.server.security.authorized import Guards
from clew.server.security.certificates import CertificateAuthenticator, certificate_of
from clew.server.security.keyring import KeyRing
from clew.server.security.principal import ANONYMOUS, LOCAL, Credentials, PeerCertificate
from clew.service import keys as k
from clew.service import requests as r
from clew.service.errors import RPCError
from clew.storage.sqlite import open_store
from clew.testing import Faults, ManualClock
from tests.server.security.samples import REQUESTS, FakeService, NullSink
from tests.server.security.test_authorized import Notebook

DEADLINE_SECONDS = 5.0


class Door:
    """A server's security over a store in memory, on a clock in the test's hand."""

    def __init__(self, store: Store, manual: ManualClock) -> None:
        self.manual = manual
        self.clock = manual.attach(asyncio.get_running_loop())
        self.faults = Faults()
        self.store = self.faults.wrap(store)
        self.admin = ApiKeys(store, self.clock, SystemEntropy())
        self.keys = KeyRing(self.store, self.clock)
        self.audit = Notebook()
        self.engine = FakeService()
        self.security = Security(
            self.engine,  # type: ignore[arg-type]
            Guards(clock=self.clock, audit=self.audit),
            authenticators=[self.keys],
            keys=self.keys,
        )

    async def make(self, *grants: str, **fields: Any) -> k.CreateApiKeyResponse:
        return await self.admin.create(k.CreateApiKeyRequest(name="ci", grants=grants, **fields))

    async def knock(self, bearer: str, source: str = "10.0.0.1") -> Any:
        credentials = Credentials(bearer=bearer, source=source)
        return await asyncio.wait_for(self.security.authenticate(credentials), DEADLINE_SECONDS)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    store = await open_store("sqlite::memory:")
    door = Door(store, ManualClock())
    await door.keys.start()
    yield door
    door.security.close()
    await door.keys.close()
    await store.close()


async def refusal(call: Awaitable[object]) -> RPCError:
    with pytest.raises(RPCError) as refused:
        await call
    return refused.value


async def eventually(holds: Any) -> None:
    """Give the loop turns until the condition holds."""

    async def look() -> None:
        while not holds():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(look(), DEADLINE_SECONDS)


async def record_of(door: Door, key_id: str) -> KeyRecord:
    row = await door.store.get_api_key(key_id)
    assert row is not None
    return decode_record(row.body)


async def test_a_key_made_a_moment_ago_is_known(door: Door) -> None:
    made = await door.make("ours:client", calls_per_second_max=3.0, expires_in=timedelta(hours=1))
    principal = await door.knock(made.key)
    assert principal.principal_id == f"key:{made.info.key_id}"
    assert principal.permissions_in("ours") >= {Permission.WRITE}
    assert principal.permissions_in("theirs") == frozenset()
    assert principal.calls_per_second_max == 3.0


async def test_every_wrong_key_is_refused_alike(door: Door) -> None:
    made = await door.make("ours:client")
    revoked, expired = await door.make("ours:client"), await door.make("ours:client", expires_in=timedelta(seconds=1))
    await door.admin.revoke(k.RevokeApiKeyRequest(key_id=revoked.info.key_id))
    door.manual.advance(timedelta(seconds=2))
    other_secret = made.key[:-2] + ("AA" if made.key[-2:] != "AA" else "BA")
    other_id = made.key.replace(made.info.key_id, "0" * 18)
    messages = set()
    for bearer in (other_secret, other_id, revoked.key, expired.key, "clew_", "eyJhbGciOiJub25lIn0.e30.", "x" * 20_000):
        error = await refusal(door.knock(bearer))
        assert error.code is RejectionCode.UNAUTHENTICATED
        messages.add(error.message)
        if len(bearer) > 5:
            assert bearer not in error.message
    assert len(messages) == 1
    assert (await refusal(door.knock(""))).code is RejectionCode.UNAUTHENTICATED


async def test_a_key_revoked_on_another_node_ends_within_the_refresh(door: Door) -> None:
    made = await door.make("ours:worker")
    ends: list[RPCError] = []
    service = door.security.service_for(await door.knock(made.key), source="10.0.0.1", on_end=ends.append)
    await service.attach_worker(REQUESTS["attach_worker"]("ours"), NullSink())
    await door.admin.revoke(k.RevokeApiKeyRequest(key_id=made.info.key_id))
    await service.complete_activity(REQUESTS["complete_activity"]("ours"))  # not known here yet
    door.manual.advance(timedelta(seconds=5))
    await eventually(lambda: not door.keys.is_live(made.info.key_id))
    door.manual.advance(timedelta(seconds=1))
    await eventually(lambda: bool(ends))
    assert door.engine.sessions[0].is_detached
    assert (await refusal(service.complete_activity(REQUESTS["complete_activity"]("ours")))).code is (
        RejectionCode.UNAUTHENTICATED
    )
    assert (await refusal(door.knock(made.key))).code is RejectionCode.UNAUTHENTICATED


async def test_a_connection_that_went_away_is_not_told(door: Door) -> None:
    made = await door.make("ours:reader", expires_in=timedelta(seconds=10))
    ends: list[RPCError] = []
    service = door.security.service_for(await door.knock(made.key), on_end=ends.append)
    kept = door.security.service_for(await door.knock(made.key), on_end=ends.append)
    door.security.forget(service)
    door.manual.advance(timedelta(seconds=11))
    await eventually(lambda: kept.is_ended)
    assert len(ends) == 1


async def test_made_up_keys_ask_the_store_no_more_often(door: Door) -> None:
    made = await door.make("ours:client")
    await door.knock(made.key)
    before = door.faults.calls["list_api_keys"]
    fakes = [made.key.replace(made.info.key_id, f"{number:018x}") for number in range(300)]
    await asyncio.gather(*[refusal(door.knock(fake, source=str(n))) for n, fake in enumerate(fakes)])
    assert door.faults.calls["list_api_keys"] - before <= 2
    assert door.faults.calls["get_api_key"] == 0
    await door.knock(made.key)


async def test_keys_are_believed_for_a_while_when_the_store_is_away(door: Door) -> None:
    made = await door.make("ours:client")
    await door.knock(made.key)
    door.faults.fail("list_api_keys", StoreUnavailable("away"), times=None)
    door.manual.advance(timedelta(seconds=5))
    await eventually(lambda: door.keys._failing_since is not None)
    door.manual.advance(timedelta(seconds=300))
    await door.knock(made.key)
    door.manual.advance(timedelta(seconds=1))
    assert (await refusal(door.knock(made.key))).code is RejectionCode.UNAUTHENTICATED
    door.faults.clear()
    door.manual.advance(timedelta(seconds=5))
    await eventually(lambda: door.keys.is_live(made.info.key_id))
    await door.knock(made.key)


async def test_last_use_is_written_about_once_an_hour(door: Door) -> None:
    made = await door.make("ours:client")
    for _ in range(50):
        await door.knock(made.key)
    door.manual.advance(timedelta(seconds=5))
    used = lambda: door.keys._records[made.info.key_id][1].last_used_at  # noqa: E731
    await eventually(lambda: used() is not None)
    first = used()
    assert (await record_of(door, made.info.key_id)).last_used_at == first
    await door.knock(made.key)
    door.manual.advance(timedelta(seconds=3_600))
    await door.knock(made.key)
    await eventually(lambda: used() != first or not door.manual.advance(timedelta(seconds=5)))
    assert door.faults.calls["put_api_key_if_revision"] == 2


async def test_use_is_not_written_over_a_revocation(door: Door) -> None:
    made = await door.make("ours:client")
    await door.knock(made.key)
    await door.admin.revoke(k.RevokeApiKeyRequest(key_id=made.info.key_id))
    await door.keys._write_used()
    assert (await record_of(door, made.info.key_id)).revoked_at is not None


async def test_refused_logins_are_written_down_but_cannot_fill_the_log(door: Door) -> None:
    for _ in range(int(REFUSALS_BURST) + 40):
        await refusal(door.knock("clew_nonsense", source="10.6.6.6"))
    await refusal(door.knock("clew_nonsense", source="10.7.7.7"))
    assert len(door.audit.records) == REFUSALS_BURST + 1
    assert {record.event for record in door.audit.records} == {"login_refused"}
    door.manual.advance(timedelta(seconds=1))
    await refusal(door.knock("clew_nonsense", source="10.6.6.6"))
    left_out, last = door.audit.records[-2:]
    assert (left_out.event, left_out.count, left_out.source) == ("suppressed", 40, "10.6.6.6")
    assert (last.event, last.outcome) == ("login_refused", "unauthenticated")


async def test_without_authenticators_everybody_may_do_everything(door: Door) -> None:
    security = Security(door.engine, Guards(clock=door.clock))  # type: ignore[arg-type]
    assert security.is_open
    assert await security.authenticate(Credentials()) == ANONYMOUS
    for principal in (ANONYMOUS, LOCAL):
        service = security.service_for(principal)
        await service.create_api_key(REQUESTS["create_api_key"]("ours"))
        await service.start_workflow(REQUESTS["start_workflow"]("any"))


async def test_a_callback_may_end_its_activity_and_nothing_else(door: Door) -> None:
    target = r.ActivityTarget(namespace="ours", workflow_id="w1", activity_id="a-1")
    service = door.security.service_for_callback(target, source="10.0.0.9")
    await service.complete_activity(r.CompleteActivityRequest(token=target))
    assert (await refusal(service.describe_workflow(REQUESTS["describe_workflow"]("ours")))).code is (
        RejectionCode.PERMISSION_DENIED
    )
    assert [record.principal for record in door.audit.records] == ["callback", "callback"]


# --- certificates --------------------------------------------------------------------------------------------------

PEER = {
    "subject": ((("organizationName", "Example"),), (("commonName", "worker-1"),)),
    "subjectAltName": (("DNS", "worker-1.example"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://example/worker")),
    "notAfter": "Jan  5 09:34:43 2030 GMT",
}


def test_the_names_of_a_certificate() -> None:
    certificate = certificate_of(PEER)
    assert certificate is not None
    assert certificate.names == ("URI:spiffe://example/worker", "DNS:worker-1.example", "CN:worker-1")
    assert certificate.not_after is not None
    assert certificate.not_after.year == 2030
    assert certificate_of({}) is None  # sent, but not verified
    assert certificate_of(None) is None


async def test_a_certificate_stands_for_the_most_exact_name(door: Door) -> None:
    authenticator = CertificateAuthenticator(
        {
            "CN:worker-1": ["*:admin"],
            "URI:spiffe://example/worker": ["ours:worker"],
        }
    )
    principal = await authenticator.authenticate(Credentials(certificate=certificate_of(PEER)))
    assert principal is not None
    assert principal.principal_id == "certificate:URI:spiffe://example/worker"
    assert principal.permissions_in("ours") == {Permission.WORK}
    stranger = Credentials(certificate=PeerCertificate(("CN:worker-1.evil", "DNS:URI:spiffe://example/worker")))
    assert await authenticator.authenticate(stranger) is None
    assert await authenticator.authenticate(Credentials()) is None
    security = Security(door.engine, Guards(clock=door.clock), authenticators=[authenticator])  # type: ignore[arg-type]
    assert (await refusal(security.authenticate(stranger))).code is RejectionCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", ["worker-1", "CN:", "IP:10.0.0.1", ""])
def test_a_name_without_a_kind_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no certificate"):
        CertificateAuthenticator({name: ["ours:worker"]})


# --- secrets -------------------------------------------------------------------------------------------------------


async def test_credentials_show_in_no_text(door: Door) -> None:
    made = await door.make("ours:client")
    credentials = Credentials(bearer=made.key, source="10.0.0.1")
    read = read_key(made.key)
    assert read is not None
    for text in (
        repr(credentials),
        str(credentials),
        str(credentials.__rich_repr__()),
        repr(await door.knock(made.key)),
    ):
        assert made.key not in text
        assert made.key.split("_", 2)[2] not in text
