"""Values of many types, a converter of one's own, and a codec."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import Any
from uuid import UUID

from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    PayloadCodec,
)
from temporalio.worker import Worker


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Order:
    number: UUID
    lines: list[Line]
    level: Level
    notes: dict[str, str | None] = field(default_factory=dict)
    pair: tuple[int, str] = (1, "a")


class AddressConverter(EncodingPayloadConverter):
    @property
    def encoding(self) -> str:
        return "text/ipv4"

    def to_payload(self, value: Any) -> Payload | None:
        if isinstance(value, ipaddress.IPv4Address):
            return Payload(metadata={"encoding": self.encoding.encode()}, data=str(value).encode())
        return None

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return ipaddress.IPv4Address(payload.data.decode())


class AddressesToo(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(AddressConverter(), *DefaultPayloadConverter.default_encoding_payload_converters)


class Backwards(PayloadCodec):
    def __init__(self) -> None:
        self.encoded = 0

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        self.encoded += len(payloads)
        return [
            Payload(metadata={"encoding": b"binary/backwards"}, data=payload.SerializeToString()[::-1])
            for payload in payloads
        ]

    async def decode(self, payloads: Iterable[Payload]) -> list[Payload]:
        return [
            Payload.FromString(payload.data[::-1])
            if payload.metadata.get("encoding") == b"binary/backwards"
            else payload
            for payload in payloads
        ]


@activity.defn
async def enrich(order: Order, source: ipaddress.IPv4Address) -> Order:
    assert isinstance(source, ipaddress.IPv4Address)
    return dataclasses.replace(order, notes={**order.notes, "source": str(source)}, level=Level.HIGH)


@workflow.defn
class Enrich:
    @workflow.run
    async def run(self, order: Order, source: ipaddress.IPv4Address) -> Order:
        return await workflow.execute_activity(
            enrich, args=[order, source], start_to_close_timeout=timedelta(seconds=5)
        )


async def main(address: str) -> list[Any]:
    codec = Backwards()
    converter = dataclasses.replace(DataConverter.default, payload_converter_class=AddressesToo, payload_codec=codec)
    client = await Client.connect(address, data_converter=converter)
    order = Order(UUID(int=7), [Line("tea", 2), Line("milk")], Level.LOW, {"to": None})
    async with Worker(client, task_queue="orders", workflows=[Enrich], activities=[enrich]):
        result = await client.execute_workflow(
            Enrich.run, args=[order, ipaddress.IPv4Address("10.0.0.1")], id="enrich", task_queue="orders"
        )
    return [
        result == dataclasses.replace(order, notes={"to": None, "source": "10.0.0.1"}, level=Level.HIGH),
        codec.encoded > 3,
    ]


EXPECTED = [True, True]
