"""C066: numbers come through digit for digit, and all that is stored or shown is strict JSON; NaN is refused.

Once in conversion alone, and once all the way on each store: through a server, an activity, another activity, a query,
the command line, the HTTP interface and the web view.
"""

from __future__ import annotations

import asyncio
import html
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import activity, workflow
from clew.client import Client, WorkflowHandle
from clew.converter import PayloadConverter, from_stored_payloads, to_stored_payloads
from clew.exceptions import ActivityError, EncodeError, WorkflowQueryFailedError
from clew.model.payload import is_strict_json
from clew.worker import Worker
from tests.cases.harness import QUEUE, ROOT, within
from tests.e2e.server.processes import Process, free_port
from tests.postgres.databases import create_database, drop_database


@dataclass
class Result:
    n: int
    m: int
    z: float
    d: Decimal


def _no_constants(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_numbers_survive_digit_for_digit() -> None:
    converter = PayloadConverter.default
    value = Result(2**63, 2**53 + 1, -0.0, Decimal("1.10"))
    stored = to_stored_payloads(converter, [value])
    text = bytes(stored[0]).decode()
    assert json.loads(text, parse_constant=_no_constants)["m"] == 2**53 + 1
    assert "9007199254740993" in text
    assert "9223372036854775808" in text
    [found] = from_stored_payloads(converter, stored, [Result])
    assert found == value
    assert str(found.z) == "-0.0"
    assert str(found.d) == "1.10"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda v: v, "$"),
        (lambda v: {"x": 1.5, "y": [0.5, v]}, "$.y[1]"),
        (lambda v: Result(1, 2, v, Decimal(1)), "$.z"),
        (lambda v: ({"a"}, {"k k": v}), "$[1]['k k']"),
    ],
)
def test_nan_and_infinities_are_refused_with_their_path(number: float, wrap: Any, path: str) -> None:
    with pytest.raises(EncodeError, match=r"has no form in JSON.*None, a Decimal or a text") as caught:
        to_stored_payloads(PayloadConverter.default, [wrap(number)], "the result of activity 'sum'")
    assert caught.value.path == path
    assert "the result of activity 'sum'" in caught.value.message


def test_a_decimal_may_be_nan_because_it_travels_as_text() -> None:
    converter = PayloadConverter.default
    stored = to_stored_payloads(converter, [Decimal("NaN")])
    assert is_strict_json(bytes(stored[0]))
    [found] = from_stored_payloads(converter, stored, [Decimal])
    assert found.is_nan()


def test_an_integer_too_long_to_print_is_refused() -> None:
    with pytest.raises(EncodeError):
        to_stored_payloads(PayloadConverter.default, [10**5000])


# --- all the way ------------------------------------------------------------------------------------------------------

VALUE = Result(2**63, 2**53 + 1, -0.0, Decimal("1.10"))
DIGITS = ("9007199254740993", "9223372036854775808", "-0.0", "1.10")
SECONDS_MAX = 150.0
STEP: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=30)}


@activity.defn
async def measure() -> Result:
    return VALUE


@activity.defn
async def same(value: Result) -> Result:
    assert (value, str(value.z), str(value.d)) == (VALUE, "-0.0", "1.10")
    return value


@activity.defn
async def no_number() -> dict[str, float]:
    return {"x": float("nan"), "y": float("inf")}


@workflow.defn
class Numbers:
    def __init__(self) -> None:
        self.seen: Result | None = None
        self.refusal = ""

    @workflow.run
    async def run(self) -> Result:
        self.seen = await workflow.execute_activity(same, await workflow.execute_activity(measure, **STEP), **STEP)
        try:
            await workflow.execute_activity(no_number, **STEP)
        except ActivityError as error:
            self.refusal = str(error.cause)
        return self.seen

    @workflow.query
    def state(self) -> Result | None:
        return self.seen

    @workflow.query
    def told(self) -> str:
        return self.refusal

    @workflow.query
    def nothing(self) -> float:
        return float("-inf")


@pytest.fixture(params=["sqlite", "postgres"])
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """A server on the store, as a process."""
    on_postgres = request.param == "postgres"
    store = await create_database() if on_postgres else f"sqlite:{tmp_path / 'clew.db'}"
    port = free_port()
    with Process(tmp_path, "server", "start", "--port", str(port), CLEW_SERVER_STORE=store) as server:
        await asyncio.to_thread(server.wait_said, "Clew answers at")
        yield f"127.0.0.1:{port}"
    if on_postgres:
        await drop_database(store)


def parsed(text: str) -> Any:
    """The one document, which is strict JSON and has each number as it was."""
    for digits in DIGITS:
        assert digits in text
    return json.loads(text, parse_constant=_no_constants)


async def command(address: str, *arguments: str) -> str:
    """What the command line prints, wherever it succeeds."""
    line = [sys.executable, "-m", "clew.cli", "workflow", *arguments, "--address", address, "--output", "json"]
    done = await asyncio.to_thread(
        subprocess.run, line, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=ROOT / "src"
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


@pytest.mark.timeout(600)
async def test_numbers_come_through_all_interfaces_digit_for_digit(address: str) -> None:
    activities = [measure, same, no_number]
    async with (
        await Client.connect(address) as client,
        Worker(client, task_queue=QUEUE, workflows=[Numbers], activities=activities),
    ):
        handle = await client.start_workflow(Numbers.run, id="numbers", task_queue=QUEUE)
        result = await within(handle.result(), SECONDS_MAX)
        assert (result, str(result.z), str(result.d)) == (VALUE, "-0.0", "1.10")
        await _queries(handle)
        await _command_line(address)
        await _http(address)


async def _queries(handle: WorkflowHandle[Any, Any]) -> None:
    seen = await within(handle.query(Numbers.state), SECONDS_MAX)
    assert (seen, str(seen.z), str(seen.d)) == (VALUE, "-0.0", "1.10")
    refusal = await within(handle.query(Numbers.told), SECONDS_MAX)
    assert "has no form in JSON" in refusal
    assert "$.x" in refusal
    with pytest.raises(WorkflowQueryFailedError, match="has no form in JSON"):
        await within(handle.query(Numbers.nothing), SECONDS_MAX)


async def _command_line(address: str) -> None:
    result = parsed(await command(address, "result", "numbers"))
    assert (result["n"], result["m"], str(result["z"]), result["d"]) == (2**63, 2**53 + 1, "-0.0", "1.10")
    assert parsed(await command(address, "query", "numbers", "--name", "state")) == result
    parsed(await command(address, "show", "numbers"))
    described = json.loads(await command(address, "describe", "numbers"), parse_constant=_no_constants)
    assert described["info"]["status"] == "Completed"


async def _http(address: str) -> None:
    api = "/api/v1/namespaces/default/workflows/numbers"
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=SECONDS_MAX) as http:
        for path in ("/result", "/history"):
            parsed((await http.get(api + path)).text)
        parsed((await http.post(api + "/query", json={"query_type": "state"})).text)
        bad = await http.post(api + "/query", json={"query_type": "nothing"})
        assert bad.status_code >= 400
        assert "has no form in JSON" in json.loads(bad.text, parse_constant=_no_constants)["detail"]
        page = await http.get("/ui/default/workflows/numbers/-")
        assert page.status_code == 200
        for digits in DIGITS:
            assert digits in html.unescape(page.text)
