"""A second client on the first one's connection: other data, other interceptors, the same server."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from temporalio import workflow
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)
from temporalio.worker import Worker


@workflow.defn
class Echo:
    @workflow.run
    async def run(self, text: str) -> str:
        return text


class Shouting(JSONPlainPayloadConverter):
    """Writes texts in capitals."""

    def to_payload(self, value: Any) -> Any:
        return super().to_payload(value.upper() if isinstance(value, str) else value)


class ShoutingConverter(CompositePayloadConverter):
    def __init__(self) -> None:
        plain = DefaultPayloadConverter.default_encoding_payload_converters
        super().__init__(*[Shouting() if isinstance(one, JSONPlainPayloadConverter) else one for one in plain])
        assert list(self.converters)[-1] == b"json/plain"


class Prefixing(Interceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return PrefixingOutbound(super().intercept_client(next))


class PrefixingOutbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        input.id = f"intercepted-{input.id}"
        return await super().start_workflow(input)


async def main(address: str) -> list[str]:
    client = await Client.connect(address)
    config = client.config()
    config["data_converter"] = dataclasses.replace(DataConverter.default, payload_converter_class=ShoutingConverter)
    loud = Client(**config)
    config = client.config()
    config["interceptors"] = [Prefixing()]
    prefixed = Client(**config)
    seen: list[str] = []
    async with Worker(client, task_queue="settings", workflows=[Echo]):
        for one in (client, loud, prefixed):
            handle = await one.start_workflow(Echo.run, "hello", id=f"w-{len(seen)}", task_queue="settings")
            seen.append(f"{handle.id}: {await handle.result()}")
    return seen


EXPECTED = ["w-0: hello", "w-1: HELLO", "intercepted-w-2: hello"]

if __name__ == "__main__":
    print(asyncio.run(main("localhost:7233")))
