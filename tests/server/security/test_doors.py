"""Through the front doors: headers to credentials; clients and workers with keys and certificates over a real link."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from clew import activity, workflow
from clew.adapters import SystemClock
from clew.client import Client
from clew.common import RetryPolicy
from clew.link import LinkServer
from clew.link.websocket import listen
from clew.linked import connect_server
from clew.model.rejection import Rejection, RejectionCode
from clew.ports.audit import AuditRecord
from clew.server.security.doors import TLS_EXTENSION, bearer_of, credentials_of_scope, link_admission, retry_after
from clew.server.security.keyring import REFRESH_SECONDS
from clew.server.security.limits import rate_limited
from clew.server.security.peer import with_certificates
from clew.server.security.principal import Credentials, PeerCertificate
from clew.server.security.proxies import TrustedProxies
from clew.server.security.settings import AuditSettings, RateSettings, SecurityParts, SecuritySettings
from clew.server.security.tls import TlsSettings
from clew.service import keys as k
from clew.service import operations as o
from clew.service.errors import RPCError
from clew.service.tls import TLSConfig
from clew.worker import Worker
from tests.link.node import Node
from tests.server.security.test_tls import Place

SECONDS_MAX = 20.0
QUEUE = "doors"
SECRET_VALUE = "s3cret-payload-value"


# --- headers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "bearer"),
    [
        ("Bearer clew_x", "clew_x"),
        ("bearer  clew_x ", "clew_x"),
        ("Basic " + base64.b64encode(b"anyone:clew_x").decode(), "clew_x"),
        ("Basic " + base64.b64encode(b"clew:a:b").decode(), "a:b"),
        ("Basic !!!", ""),
        ("Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(), ""),
        ("Digest clew_x", ""),
        ("clew_x", ""),
        ("", ""),
    ],
)
def test_the_authorization_header(header: str, bearer: str) -> None:
    assert bearer_of(header) == bearer


def test_the_credentials_of_a_request() -> None:
    one = (b"authorization", b"Bearer clew_x")
    certificate = PeerCertificate(("CN:worker-1",))
    scope = {
        "headers": [one, (b"x-forwarded-client-cert", b"CN=root"), (b"x-forwarded-for", b"1.2.3.4")],
        "client": ("10.0.0.1", 5),
        "extensions": {TLS_EXTENSION: {"certificate": certificate}},
    }
    assert credentials_of_scope(scope) == Credentials(bearer="clew_x", certificate=certificate, source="10.0.0.1")
    assert credentials_of_scope({"headers": [one, (b"authorization", b"Bearer clew_y")]}) == Credentials()
    assert credentials_of_scope({"headers": [], "client": None, "extensions": None}) == Credentials()


@pytest.mark.parametrize(("seconds", "header"), [(0.004, "1"), (1.0, "1"), (1.2, "2"), (30.0, "30")])
def test_retry_after_is_whole_seconds(seconds: float, header: str) -> None:
    assert retry_after(rate_limited(5, seconds)) == header
    assert retry_after(RPCError(Rejection(code=RejectionCode.UNAVAILABLE, message=""))) == ""


# --- over a real link ----------------------------------------------------------------------------------------------


@activity.defn
async def double(value: int) -> int:
    return value * 2


@activity.defn
async def wait_for_cancel() -> None:
    while True:
        activity.heartbeat(SECRET_VALUE)
        await asyncio.sleep(0.02)


@workflow.defn
class Doubles:
    @workflow.run
    async def run(self, value: int, secret: str) -> str:
        doubled = await workflow.execute_activity(double, value, start_to_close_timeout=timedelta(seconds=10))
        return f"{doubled} {secret}"


@workflow.defn
class Waits:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            wait_for_cancel,
            start_to_close_timeout=timedelta(seconds=60),
            heartbeat_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(maximum_attempts=3),
        )


class SecureNode(Node):
    """A node that knows its callers. Keys are made past its door."""

    def __init__(self, settings: SecuritySettings) -> None:
        super().__init__()
        self.settings = settings
        self.parts: SecurityParts

    async def _start(self) -> None:
        await super()._start()
        self._listener.close()
        engine = self.engine
        self.parts = await SecurityParts.open(
            self.settings,
            engine,
            store=engine._store,
            clock=SystemClock(asyncio.get_running_loop()),
            secret_of=engine.namespaces.secret_of,
        )
        made = self.server
        self.server = LinkServer(
            engine,
            node=made.node,
            new_token=made._new_token,
            now_ns=made._now_ns,
            admit=link_admission(
                self.parts.security, lambda *meant: self.server.cut_sessions(*meant), TrustedProxies()
            ),
        )
        self._listener = await listen(self.server, "127.0.0.1", 0, tls=self.parts.tls)
        self.port = self._listener.sockets[0].getsockname()[1]
        await engine.create_namespace(o.CreateNamespaceRequest(name="theirs"))

    async def _stop(self) -> None:
        await self.parts.close()
        await super()._stop()
        # Clients that were turned away may have come again a moment ago.
        for connection in list(self.server._connections):
            connection.wire.abort()
        await asyncio.sleep(0.01)

    async def make_key(self, *grants: str, **fields: Any) -> k.CreateApiKeyResponse:
        made: k.CreateApiKeyResponse = await self.on_loop(
            lambda: self.engine.create_api_key(k.CreateApiKeyRequest(name=" ".join(grants), grants=grants, **fields))
        )
        return made

    async def revoke(self, key_id: str) -> None:
        await self.on_loop(lambda: self.engine.revoke_api_key(k.RevokeApiKeyRequest(key_id=key_id)))


@asynccontextmanager
async def node_with(settings: SecuritySettings) -> AsyncIterator[SecureNode]:
    node = SecureNode(settings)
    async with node:
        yield node


async def refusal(call: Callable[[], Any]) -> RejectionCode:
    with pytest.raises(RPCError) as refused:
        await asyncio.wait_for(call(), SECONDS_MAX)
    return refused.value.code


def connect(node: Node, key: str | None = None, **options: Any) -> Any:
    return Client.connect(node.address, api_key=key, tls=options.pop("tls", False), **options)


async def impatient_client(node: Node, key: str) -> Client:
    """One that gives a call up soon when no node lets it in."""

    async def token() -> str:
        return key

    connection = await connect_server([("127.0.0.1", node.port)], token=token, patience_seconds=1.0)
    return Client(connection)


async def test_each_key_opens_what_it_was_granted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = SecuritySettings(api_keys=True, audit=AuditSettings(path=str(path)))
    async with node_with(settings) as node:
        keys = {role: (await node.make_key(f"default:{role}")).key for role in ("client", "worker", "reader")}
        async with (
            await connect(node, keys["worker"]) as worker_client,
            await connect(node, keys["client"]) as client,
            await connect(node, keys["reader"]) as reader,
            Worker(worker_client, task_queue=QUEUE, workflows=[Doubles], activities=[double]),
        ):
            result = await asyncio.wait_for(
                client.execute_workflow(Doubles.run, args=[21, SECRET_VALUE], id="w1", task_queue=QUEUE), SECONDS_MAX
            )
            assert result == f"42 {SECRET_VALUE}"
            described = await reader.get_workflow_handle("w1").describe()
            assert described.workflow_type == "Doubles"
            history = await reader.get_workflow_handle("w1").fetch_history()
            assert SECRET_VALUE not in history.to_json()
            assert SECRET_VALUE in (await client.get_workflow_handle("w1").fetch_history()).to_json()
            assert (
                await refusal(lambda: reader.start_workflow(Doubles.run, args=[1, ""], id="w2", task_queue=QUEUE))
                is RejectionCode.PERMISSION_DENIED
            )
            assert await refusal(lambda: worker_client.get_workflow_handle("w1").describe()) is (
                RejectionCode.PERMISSION_DENIED
            )
        assert (
            await refusal(
                lambda: connect(
                    node,
                    "clew_made_up",
                )
            )
            is RejectionCode.UNAUTHENTICATED
        )
        assert await refusal(lambda: connect(node)) is RejectionCode.UNAUTHENTICATED
    records = [msgspec.json.decode(line, type=AuditRecord) for line in path.read_bytes().splitlines()]
    calls = {(record.principal_name, record.call, record.outcome) for record in records}
    assert ("default:client", "start_workflow", "ok") in calls
    assert ("default:worker", "complete_activity", "ok") in calls
    assert ("default:reader", "start_workflow", "permission_denied") in calls
    assert {record.event for record in records} >= {"call", "refused", "login_refused"}
    assert all(record.source.startswith("127.0.0.1:") for record in records)
    assert SECRET_VALUE not in path.read_text()


async def test_a_revoked_key_ends_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.server.security import authenticator, keyring

    assert REFRESH_SECONDS == 5.0
    monkeypatch.setattr(keyring, "REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(authenticator, "CHECK_SECONDS", 0.05)
    async with node_with(SecuritySettings(api_keys=True)) as node:
        client_key, worker_key = await node.make_key("default:client"), await node.make_key("default:worker")
        other_key = await node.make_key("default:worker")
        async with (
            await connect(node, client_key.key) as client,
            await connect(node, other_key.key) as other,
            await impatient_client(node, worker_key.key) as doomed,
        ):
            worker = Worker(doomed, task_queue=QUEUE, workflows=[Waits], activities=[wait_for_cancel])
            running = asyncio.create_task(worker.run())
            handle = await client.start_workflow(Waits.run, id="w1", task_queue=QUEUE)

            async def until(holds: Callable[[Any], bool]) -> None:
                while not holds(await handle.describe()):
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(until(lambda d: _attempt_of(d) == 1), SECONDS_MAX)
            await node.revoke(worker_key.info.key_id)
            async with Worker(other, task_queue=QUEUE, workflows=[Waits], activities=[wait_for_cancel]):
                # What the revoked worker held counts as lost at once, and is given to the other.
                await asyncio.wait_for(until(lambda d: _attempt_of(d) == 2), SECONDS_MAX)
                await handle.cancel()
                with pytest.raises(Exception, match=r"failed|cancel"):
                    await asyncio.wait_for(handle.result(), SECONDS_MAX)
            running.cancel()
            await asyncio.wait({running}, timeout=SECONDS_MAX)


async def test_a_key_ends_at_once_on_the_node_that_revokes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from clew.server.security import authenticator, keyring

    monkeypatch.setattr(keyring, "REFRESH_SECONDS", 3_600.0)
    monkeypatch.setattr(authenticator, "CHECK_SECONDS", 3_600.0)
    async with node_with(SecuritySettings(api_keys=True)) as node:
        admin_key, doomed_key = await node.make_key("*:admin"), await node.make_key("default:client")
        async with await connect(node, admin_key.key) as admin, await impatient_client(node, doomed_key.key) as doomed:
            assert await doomed.count_workflows() is not None
            link = admin.connection
            await link.call(link.service.revoke_api_key, k.RevokeApiKeyRequest(key_id=doomed_key.info.key_id))

            async def until_cut() -> None:
                while await node.on_loop(_count_of(node)) > 1:
                    await asyncio.sleep(0.02)

            await asyncio.wait_for(until_cut(), SECONDS_MAX)
            with pytest.raises(RPCError) as refused:
                await connect(node, doomed_key.key)
            assert refused.value.code is RejectionCode.UNAUTHENTICATED


def _count_of(node: SecureNode) -> Callable[[], Any]:
    async def count() -> int:
        return node.server.sessions_count

    return count


def _attempt_of(description: Any) -> int:
    pending = description.pending_activities
    return pending[0].attempt if pending and pending[0].last_started_time is not None else 0


async def test_a_certificate_is_a_credential(tmp_path: Path) -> None:
    place = Place(tmp_path)
    worker = place.ours.issue("worker-1", x509.UniformResourceIdentifier("spiffe://example/worker"))
    stranger = place.ours.issue("stranger")
    settings = SecuritySettings(
        certificates={"URI:spiffe://example/worker": ("default:worker", "default:client")},
        tls=TlsSettings(certificate=str(place.certificate), key=str(place.key), client_authority=str(place.ours.file)),
    )

    def tls_of(pair: tuple[Path, Path] | None) -> TLSConfig:
        return TLSConfig(
            server_root_ca_cert=place.ours.file.read_bytes(),
            domain="localhost",
            client_cert=pair[0].read_bytes() if pair else None,
            client_private_key=pair[1].read_bytes() if pair else None,
        )

    async with node_with(settings) as node:
        async with (
            await connect(node, tls=tls_of(worker)) as client,
            Worker(client, task_queue=QUEUE, workflows=[Doubles], activities=[double]),
        ):
            running = client.execute_workflow(Doubles.run, args=[4, ""], id="w1", task_queue=QUEUE)
            assert await asyncio.wait_for(running, SECONDS_MAX) == "8 "
        for pair in (stranger, None):
            assert await refusal(lambda pair=pair: connect(node, tls=tls_of(pair))) is RejectionCode.UNAUTHENTICATED


async def test_calls_beyond_the_limit_are_put_off_and_done(tmp_path: Path) -> None:
    settings = SecuritySettings(api_keys=True, rate_limit=RateSettings(calls_per_second=200, burst=5))
    async with node_with(settings) as node:
        key = await node.make_key("default:client")
        async with await connect(node, key.key) as client:
            handles = [
                client.start_workflow(Doubles.run, args=[1, ""], id=f"w{n}", task_queue=QUEUE) for n in range(12)
            ]
            outcomes = await asyncio.wait_for(asyncio.gather(*handles, return_exceptions=True), SECONDS_MAX)
            refused = [one for one in outcomes if isinstance(one, RPCError)]
            assert {one.code for one in refused} <= {RejectionCode.RATE_LIMITED}
            assert all(float(one.rejection.details["retry_after_seconds"]) > 0 for one in refused)


async def test_keys_are_in_no_log_no_error_and_no_description(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything that people get to see of a busy server, searched for what they must not see."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "audit.jsonl"
    settings = SecuritySettings(api_keys=True, audit=AuditSettings(path=str(path)))
    seen: list[str] = []
    async with node_with(settings) as node:
        made = await node.make_key("*:admin")
        wrong = made.key[:-6] + "AAAAAA"
        namespaces = [node.engine.namespaces.secret_of(name) for name in ("default", "theirs")]
        for key in (wrong, "clew_" + "0" * 18 + made.key[23:], f"x{made.key}"):
            with pytest.raises(RPCError) as refused:
                await connect(node, key)
            seen += [str(refused.value), repr(refused.value), repr(refused.value.rejection)]
        async with await connect(node, made.key) as client:
            async with Worker(client, task_queue=QUEUE, workflows=[Doubles], activities=[double]) as worker:
                running = client.execute_workflow(Doubles.run, args=[1, ""], id="w1", task_queue=QUEUE)
                await asyncio.wait_for(running, SECONDS_MAX)
                handle = client.get_workflow_handle("w1")
                seen += [repr(client), repr(worker), repr(handle), repr(await handle.describe())]
                seen.append((await handle.fetch_history()).to_json())
                listed = await node.on_loop(lambda: node.engine.list_api_keys(k.ListApiKeysRequest()))
                described = await node.on_loop(
                    lambda: node.engine.describe_namespace(o.DescribeNamespaceRequest(namespace="default"))
                )
                seen += [repr(listed), msgspec.json.encode(listed).decode(), repr(described), repr(made)]
            await node.revoke(made.info.key_id)
    seen += [record.getMessage() + str(record.exc_info or "") + caplog.text for record in caplog.records[-1:]]
    seen += [record.getMessage() for record in caplog.records]
    seen.append(path.read_text())
    assert len(caplog.records) > 5
    assert len(seen) > 20
    secrets = [made.key, made.key.split("_", 2)[2], wrong.split("_", 2)[2]]
    secrets += [
        form for secret in namespaces for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret))
    ]
    for text in seen:
        for secret in secrets:
            assert secret not in text


# --- uvicorn -------------------------------------------------------------------------------------------------------


async def test_a_request_carries_the_certificate_of_its_connection(tmp_path: Path) -> None:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    place = Place(tmp_path)
    worker = place.ours.issue("worker-1")
    settings = TlsSettings(
        certificate=str(place.certificate), key=str(place.key), client_authority=str(place.ours.file)
    )
    from clew.server.security.tls import make_server_context

    seen: list[Credentials] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(credentials_of_scope(scope))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", http=with_certificates(H11Protocol))
    config.load()
    config.ssl = make_server_context(settings)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())

    async def until_started() -> int:
        while not server.started:
            await asyncio.sleep(0.01)
        return int(server.servers[0].sockets[0].getsockname()[1])

    port = await asyncio.wait_for(until_started(), SECONDS_MAX)
    try:
        for pair in (worker, None):
            assert await _get(place, port, pair) == b"hello"
    finally:
        server.should_exit = True
        await asyncio.wait_for(serving, SECONDS_MAX)
    assert [one.certificate and one.certificate.names for one in seen] == [("DNS:worker-1", "CN:worker-1"), None]


async def _get(place: Place, port: int, pair: tuple[Path, Path] | None) -> bytes:
    import ssl

    context = ssl.create_default_context(cafile=str(place.ours.file))
    if pair is not None:
        context.load_cert_chain(*pair)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), SECONDS_MAX)
    writer.close()
    return answer.rpartition(b"\r\n\r\n")[2]
