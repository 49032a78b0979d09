"""The sender's side: headers, steps, and the hooks of httpx, inside and outside of activities."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from clew import activity
from clew.contrib.idempotency import current_idempotency_key, idempotency_headers, idempotency_step
from clew.contrib.idempotency.httpx import IdempotencyAuth, add_idempotency_key, add_idempotency_key_async
from clew.testing import ActivityEnvironment


@activity.defn
async def key() -> str:
    return activity.info().idempotency_key


async def test_the_header_is_the_key_of_the_activity() -> None:
    environment = ActivityEnvironment()
    expected = await environment.run(key)
    assert environment.run(idempotency_headers) == {"Idempotency-Key": expected}


def test_steps_have_keys_of_their_own_that_stay() -> None:
    def steps() -> list[str]:
        with idempotency_step("charge"):
            block = current_idempotency_key()
            inner = current_idempotency_key("fee")
        return [current_idempotency_key(), block, current_idempotency_key("charge"), inner]

    environment = ActivityEnvironment()
    whole, block, named, inner = environment.run(steps)
    assert block == named
    assert len({whole, block, inner}) == 3
    assert environment.run(steps) == [whole, block, named, inner]


async def test_steps_do_not_leak_into_one_another() -> None:
    async def two() -> tuple[str, str]:
        async def step(name: str) -> str:
            with idempotency_step(name):
                await asyncio.sleep(0)
                return current_idempotency_key()

        one, other = await asyncio.gather(step("a"), step("b"))
        return one, other

    one, other = await ActivityEnvironment().run(two)
    assert one != other


def test_a_step_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"), idempotency_step(""):
        pass


def test_outside_of_an_activity_there_is_no_key() -> None:
    with pytest.raises(RuntimeError, match="Not in an activity"):
        idempotency_headers()


def echo(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={name: request.headers.get(name) for name in ("idempotency-key", "authorization")})


def test_auth_adds_the_key_to_changing_requests_only() -> None:
    def call() -> list[str | None]:
        with httpx.Client(transport=httpx.MockTransport(echo), auth=IdempotencyAuth()) as client:
            methods = ("POST", "PUT", "PATCH", "DELETE", "GET")
            return [client.request(method, "http://x").json()["idempotency-key"] for method in methods]

    environment = ActivityEnvironment()
    expected = environment.run(current_idempotency_key)
    assert environment.run(call) == [expected] * 4 + [None]


def test_auth_goes_around_another_auth_and_leaves_a_given_key() -> None:
    def call() -> dict[str, str]:
        auth = IdempotencyAuth(httpx.BasicAuth("user", "word"))
        with httpx.Client(transport=httpx.MockTransport(echo), auth=auth) as client:
            answer: dict[str, str] = client.post("http://x", headers={"Idempotency-Key": "mine"}).json()
            return answer

    answer = ActivityEnvironment().run(call)
    assert answer["idempotency-key"] == "mine"
    assert answer["authorization"].startswith("Basic ")


async def test_auth_and_hook_of_async_clients() -> None:
    async def call() -> set[str]:
        transport = httpx.MockTransport(echo)
        hooks = {"request": [add_idempotency_key_async]}
        async with (
            httpx.AsyncClient(transport=transport, auth=IdempotencyAuth()) as one,
            httpx.AsyncClient(transport=transport, event_hooks=hooks) as other,
        ):
            return {(await client.post("http://x")).json()["idempotency-key"] for client in (one, other)}

    environment = ActivityEnvironment()
    assert await environment.run(call) == {environment.run(current_idempotency_key)}


def test_outside_of_an_activity_requests_are_left_alone() -> None:
    with httpx.Client(
        transport=httpx.MockTransport(echo), auth=IdempotencyAuth(), event_hooks={"request": [add_idempotency_key]}
    ) as client:
        assert client.post("http://x").json()["idempotency-key"] is None
