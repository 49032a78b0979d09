"""C061 (the part of conversion): instants, dates and pydantic models keep type, instant and offset."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, Field

from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.exceptions import DecodeError, EncodeError


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Transfer(BaseModel):
    kind: Literal["transfer"] = "transfer"
    iban: str


class Model(BaseModel):
    at: datetime
    day: date
    clock: time
    wait: timedelta
    path: Path
    id: uuid.UUID
    tags: set[int]
    pay: Annotated[Card | Transfer, Field(discriminator="kind")]
    alias: int = Field(alias="theAlias", default=0)


class Loose(BaseModel):
    value: float | None


@dataclass
class Record:
    at: datetime
    day: date
    clock: time
    wait: timedelta
    path: Path
    id: uuid.UUID
    pay: Card | Transfer
    models: list[Model]


def round_trip(value: Any, hint: Any) -> Any:
    converter = PayloadConverter.default
    return from_stored_payloads(converter, to_stored_payloads(converter, [value]), [hint])[0]


BERLIN = ZoneInfo("Europe/Berlin")
INSTANTS = [
    datetime(2024, 2, 29, 12, 30, 15, 123456),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
    datetime(1880, 1, 1, tzinfo=BERLIN),
    datetime.max,
    datetime.min,
]


@pytest.mark.parametrize("value", INSTANTS, ids=str)
def test_a_datetime_keeps_its_type_instant_and_offset(value: datetime) -> None:
    @dataclass
    class Holder:
        at: datetime

    Holder.__annotations__["at"] = datetime
    for found in (
        round_trip(value, datetime),
        round_trip([value], list[datetime])[0],
        round_trip(Holder(value), Holder).at,
    ):
        assert type(found) is datetime
        assert found.utcoffset() == value.utcoffset()
        assert found.replace(tzinfo=None) == value.replace(tzinfo=None, fold=0)


def make_model(at: datetime) -> Model:
    return Model(
        at=at,
        day=date(2024, 1, 2),
        clock=time(3, 4, 5, 6),
        wait=timedelta(seconds=1.5),
        path=Path("a/b"),
        id=uuid.UUID(int=5),
        tags={1, 2},
        pay=Transfer(iban="X"),
        theAlias=7,
    )


def test_models_and_dataclasses_with_them_come_back_equal() -> None:
    model = make_model(INSTANTS[2])
    record = Record(
        at=INSTANTS[1],
        day=date(2024, 1, 2),
        clock=time(1, 2),
        wait=timedelta(days=3),
        path=Path("x"),
        id=uuid.UUID(int=6),
        pay=Card(number="1"),
        models=[model],
    )
    assert round_trip(model, Model) == model
    assert type(round_trip(model, Model).at) is datetime
    assert round_trip([model], list[Model]) == [model]
    assert round_trip(model, Model | None) == model
    found = round_trip(record, Record)
    assert found == record
    assert type(found.pay) is Card
    assert type(found.path) is type(record.path)


def test_a_model_that_does_not_fit_says_why() -> None:
    with pytest.raises(DecodeError, match=r"pydantic refuses it"):
        round_trip({"at": "soon"}, list[Model] | Model)


def test_nan_in_a_model_is_refused_and_not_turned_into_none() -> None:
    with pytest.raises(EncodeError, match="nan") as caught:
        round_trip({"a": [Loose(value=float("nan"))]}, dict[str, list[Loose]])
    assert caught.value.path == "$.a[0].value"
    assert round_trip(Loose(value=None), Loose) == Loose(value=None)


def test_a_zone_without_a_fixed_offset_is_refused_in_a_time_of_day() -> None:
    with pytest.raises(EncodeError, match="no fixed offset"):
        round_trip(time(1, tzinfo=BERLIN), time)
    assert round_trip(time(1, tzinfo=UTC), time) == time(1, tzinfo=UTC)


def test_pydantic_costs_nothing_until_it_is_used() -> None:
    code = "import sys, clew.converter; sys.exit('pydantic' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )
