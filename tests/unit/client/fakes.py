"""A scripted service behind a connection on the caller's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from clew.client import Client, Interceptor
from clew.model.limits import LIMITS_DEFAULT, Limits
from clew.model.rejection import Rejection, RejectionCode
from clew.service.errors import RPCError


def refusal(code: RejectionCode, **details: str) -> RPCError:
    return RPCError(Rejection(code=code, message=f"refused: {code.value}", details=details))


class FakeService:
    """Answers each call from `answers` by method name: a value, an exception, or a list of them in turn."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.requests: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def call(request: Any) -> Any:
            self.requests.append((name, request))
            answer = self.answers[name]
            if isinstance(answer, list):
                answer = answer.pop(0)
            if callable(answer):
                answer = answer(request)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call

    def sent(self, name: str) -> list[Any]:
        return [request for called, request in self.requests if called == name]


class FakeConnection:
    address = "fake:"

    def __init__(self, service: Any, limits: Limits = LIMITS_DEFAULT) -> None:
        self.service = service
        self.limits = limits
        self.service_loop = asyncio.get_running_loop()
        self.is_closed = False

    def call(self, method: Callable[[Any], Awaitable[Any]], request: Any) -> asyncio.Future[Any]:
        return asyncio.ensure_future(method(request))

    def post(self, callback: Callable[[], None]) -> None:
        self.service_loop.call_soon_threadsafe(callback)

    post_last = post

    def now_ns(self) -> int:
        return 0

    async def close(self) -> None:
        self.is_closed = True


def client_of(
    service: FakeService, *, interceptors: tuple[Interceptor, ...] = (), limits: Limits = LIMITS_DEFAULT, **options: Any
) -> Client:
    return Client(FakeConnection(service, limits), interceptors=interceptors, **options)
