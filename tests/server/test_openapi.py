"""The OpenAPI document: valid, the recorded one, and true: random requests by it never meet a failing server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator

from clew.server.api.openapi import openapi_document
from clew.server.api.table import OPERATIONS
from clew.service.contract import Service
from scripts.http_page import openapi_text
from tests.server.conftest import Served

RECORDED = Path(__file__).resolve().parents[2] / "docs" / "reference" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(openapi_text())

NOT_OVER_HTTP = {
    "answer_query", "attach_worker", "complete_workflow_task", "detach_activity", "fail_workflow_task",
    "record_markers", "release_activity",
}  # fmt: skip
"""What a worker does over its link."""


def test_the_document_is_valid() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_the_document_is_the_recorded_one() -> None:
    assert RECORDED.read_text("utf-8") == openapi_text(), "the API has changed: run `make docs`, and look at the diff"


def test_every_call_of_the_contract_has_an_operation() -> None:
    source = Path(openapi_document.__code__.co_filename).parent
    used = set()
    for name in ("table.py", "workflows.py", "activities.py", "sse.py"):
        text = (source / name).read_text("utf-8")
        used |= set(re.findall(r'contract_call\(\s*"(\w+)"', text)) | set(re.findall(r"service\.(\w+)\(", text))
    calls = {name for name in vars(Service) if not name.startswith("_")}
    assert calls - used == NOT_OVER_HTTP


def test_names_and_paths_are_unique() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


# --- random requests -------------------------------------------------------------------------------------------------

_TEXTS = st.sampled_from(["", "w1", "q", "W", "default", "a-1", "2026-01-01T00:00:00Z", "PT5S", "ü\x00\n", "x" * 1_100])
_SCALARS = st.one_of(
    _TEXTS, st.text(max_size=8), st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.floats(allow_nan=False)
)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner, max_size=3)),
    max_leaves=6,
)


def mostly(usual: st.SearchStrategy[Any], rare: st.SearchStrategy[Any], times: int) -> st.SearchStrategy[Any]:
    """Values of `usual`, and about once in so many times one of `rare`."""
    return st.integers(0, times).flatmap(lambda number: rare if number == times else usual)


def by_schema(schema: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema of the document, and sometimes anything."""
    fitting = _fitting(schema, depth)
    return fitting if depth > 4 else mostly(fitting, _ANYTHING, 24)


def _fitting(schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _fitting(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth)
    if "anyOf" in schema:
        return st.one_of([_fitting(one, depth) for one in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _objects(schema, depth)
        case "object":
            return st.dictionaries(_TEXTS, _ANYTHING, max_size=2)
        case "array":
            return st.lists(by_schema(schema.get("items") or {}, depth + 1), max_size=2)
        case "integer":
            return st.integers(-(2**65), 2**65)
        case "number":
            return st.floats(allow_nan=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string" if schema.get("format") == "duration":
            return st.sampled_from(["PT1S", "P0D", "-PT1S", "P36500D", "P999999999D", "P1Y", "PT0.000001S"])
        case "string":
            return mostly(st.sampled_from(["w1", "q", "W", "a-1"]), _TEXTS, 4)
        case _:
            return _ANYTHING


def _objects(schema: Mapping[str, Any], depth: int) -> st.SearchStrategy[Any]:
    required = set(schema.get("required", ()))
    properties = {name: by_schema(of_name, depth + 1) for name, of_name in schema["properties"].items()}
    return st.fixed_dictionaries(
        {name: value for name, value in properties.items() if name in required},
        optional={name: value for name, value in properties.items() if name not in required},
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, Any], Any]:
    """Method, path, parameters and body of one request."""
    operation = draw(st.sampled_from(OPERATIONS))
    if operation.is_stream:
        operation = OPERATIONS[0]
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]
    path, parameters = operation.path, {}
    for parameter in described["parameters"]:
        if parameter["in"] == "path":
            common = {"namespace": "default", "workflow_id": "w1", "activity_id": "a-1"}.get(parameter["name"], "x")
            odd = st.text(string.printable, min_size=1, max_size=9)
            value = draw(mostly(st.just(common), odd, 9))
            path = path.replace("{" + parameter["name"] + "}", "".join(f"%{byte:02X}" for byte in value.encode()))
        elif parameter["in"] == "query" and parameter["name"] not in ("wait", "wait_new_event") and draw(st.booleans()):
            value = draw(by_schema(parameter["schema"]))
            parameters[parameter["name"]] = value if isinstance(value, str) else json.dumps(value)
    body = None
    if operation.body is not None:
        schema = described["requestBody"]["content"]["application/json"]["schema"]
        body = draw(by_schema(schema))
    return operation.method, f"/api/v1{path}", parameters, body


EXAMPLES = int(os.environ.get("CLEW_FUZZ_EXAMPLES", "300"))
"""A share for every day; `make fuzz-http` takes many more, and others each time."""


async def test_random_requests_are_answered_and_never_with_a_bug(served: Served) -> None:
    await served.start("w1")
    examples: list[tuple[str, str, dict[str, Any], Any]] = []

    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize="CLEW_FUZZ_EXAMPLES" not in os.environ,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(requests())
    def collect(one: tuple[str, str, dict[str, Any], Any]) -> None:
        examples.append(one)

    collect()
    statuses: dict[int, int] = {}
    answers = await asyncio.gather(*[_answer_to(served.http, one) for one in examples])
    for one, answer in zip(examples, answers, strict=True):
        assert answer.status_code < 500 or answer.status_code in (503, 504), (one, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
    assert {200, 201, 204, 400, 404, 409} <= set(statuses), statuses


async def _answer_to(http: httpx.AsyncClient, one: tuple[str, str, dict[str, Any], Any]) -> httpx.Response:
    """All are sent at once, since some wait a while for workers that are not there."""
    method, path, parameters, body = one
    content = json.dumps(body).encode("utf-8", "replace") if body is not None or method == "POST" else None
    headers = {"content-type": "application/json"} if content is not None else {}
    return await http.request(method, path, params=parameters, content=content, headers=headers, timeout=60)
