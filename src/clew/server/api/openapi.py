"""The OpenAPI document, made from the table of operations and the structs they use.

Owns: the document (OpenAPI 3.1.0, https://spec.openapis.org/oas/v3.1.0). Never: what is not in the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final, cast

import msgspec

from clew._search_attributes import SearchAttributeIndexedValueType
from clew.server.api.answers import SEARCH_ATTRIBUTES
from clew.server.api.calls import IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_CHARS_MAX, Operation
from clew.server.problems import PROBLEM_TYPE, Problem
from clew.service.errors import CODE_TABLE

VERSION: Final = "3.1.0"
_REF: Final = "#/components/schemas/{name}"
_STATUSES_OF_ALL: Final = (400, 401, 403, 404, 405, 413, 415, 421, 429, 500, 503)
"""What any operation may answer: a request that cannot be read, credentials, limits, and a server in trouble."""

_SEARCH_ATTRIBUTE: Final = "SearchAttribute"
_ZERO_TIMEOUT: Final = "ISO 8601. Zero (`PT0S`, `P0D`) means that there is none: no limit."
_ZERO_TASK_TIMEOUT: Final = "ISO 8601. Zero (`PT0S`, `P0D`) means the server's own, ten seconds."

_DESCRIPTION: Final = """\
Durable workflows over HTTP. Payloads are plain JSON where they are JSON; anything else is an envelope
`{"$payload": {"metadata": {NAME: BASE64}, "data": BASE64}}`. Durations are ISO 8601 (`PT30S`), instants RFC 3339.
In an answer, lists and maps are always there, empty or not; anything else that has its default is left out. Search
attributes are `{"type": TYPE, "value": VALUE}`; where they are given, a plain value has the type of its JSON.
Every refusal is a problem document (RFC 9457) with a stable `code`. Ids in paths are percent-encoded, slashes included.
Operations that take the header `Idempotency-Key` do what they say once, however often the same key is sent."""


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document as plain JSON values."""
    kinds = [Problem]
    for operation in operations:
        kinds += [kind for kind in (operation.body, operation.response) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    refs = dict(zip(kinds, schemas, strict=True))
    asked = _reached([refs[operation.body] for operation in operations if operation.body is not None], components)
    for name, schema in components.items():
        _tell_durations(schema)
        if name not in asked and name != Problem.__name__:
            _tell_what_is_there(schema)
    components[_SEARCH_ATTRIBUTE] = _search_attribute()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, refs)
    return {
        "openapi": VERSION,
        "info": {"title": "Clew", "version": "1", "description": _DESCRIPTION, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/api/v1"}],
        "security": [{}, {"bearer": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": {name: _cleaned(schema) for name, schema in sorted(components.items())},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done; `code` says why.",
                    "content": {PROBLEM_TYPE: {"schema": refs[Problem]}},
                }
            },
        },
    }


def _reached(schemas: Sequence[Any], components: dict[str, Any]) -> set[str]:
    """The names of the components that these schemas are made of."""
    found: set[str] = set()
    waiting: list[Any] = list(schemas)
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            fields = cast(dict[str, Any], part)
            name = str(fields.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(components[name])
            waiting += fields.values()
        elif isinstance(part, list):
            waiting += cast(list[Any], part)
    return found


def _tell_durations(schema: dict[str, Any]) -> None:
    """A timeout of zero is no timeout, as everywhere in this field."""
    for name, of_name in schema.get("properties", {}).items():
        if name.endswith("_timeout") and of_name.get("format") == "duration":
            of_name["description"] = _ZERO_TASK_TIMEOUT if name == "workflow_task_timeout" else _ZERO_TIMEOUT


def _tell_what_is_there(schema: dict[str, Any]) -> None:
    """What is in an answer although it has its default (``answers``)."""
    properties: dict[str, Any] = schema.get("properties", {})
    there = [name for name, of_name in properties.items() if of_name.get("default") in ([], {})]
    if there:
        schema["required"] = sorted({*schema.get("required", []), *there})
    attributes = properties.get(SEARCH_ATTRIBUTES)
    if attributes is not None:
        for form in attributes.get("anyOf", [attributes]):
            if form.get("type") == "object":
                form["additionalProperties"] = {"$ref": _REF.format(name=_SEARCH_ATTRIBUTE)}


def _search_attribute() -> dict[str, Any]:
    return {
        "title": _SEARCH_ATTRIBUTE,
        "description": "A value by which runs are found, with the type by which it is searched. Null takes it away.",
        "type": "object",
        "properties": {
            "type": {"enum": [kind.metadata_name for kind in SearchAttributeIndexedValueType]},
            "value": {"anyOf": [
                {"type": ["string", "number", "boolean", "null"]},
                {"type": "array", "items": {"type": "string"}},
            ]},
        },
        "required": ["type", "value"],
    }  # fmt: skip


def _operation(operation: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation), *_query_parameters(operation), *_header_parameters(operation)],
        "responses": _responses(operation, refs),
    }
    if operation.is_public:
        described["security"] = [{}]
    if operation.codes:
        codes = ", ".join(f"`{code.value}`" for code in dict.fromkeys(operation.codes))
        described["description"] = f"Refusals of its own: {codes}."
    if operation.body is not None:
        needs_body = any(field.required for field in msgspec.structs.fields(operation.body))
        described["requestBody"] = {
            "required": needs_body,
            "content": {"application/json": {"schema": refs[operation.body]}},
        }
    return described


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]


def _query_parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = msgspec.json.schema(operation.query)
    definitions = schema.get("$defs", {})
    properties = definitions.get(operation.query.__name__, {}).get("properties", {})
    parameters: list[dict[str, Any]] = []
    for name, of_name in properties.items():
        shown = dict(of_name)
        if "$ref" in shown:
            shown = {**definitions[shown.pop("$ref").rpartition("/")[2]], **shown}
        parameters.append({"name": name, "in": "query", "schema": _cleaned(shown)})
    return parameters


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    if not operation.is_idempotent:
        return []
    schema = {"type": "string", "maxLength": IDEMPOTENCY_KEY_CHARS_MAX}
    return [{"name": IDEMPOTENCY_KEY.title(), "in": "header", "schema": schema}]


def _responses(operation: Operation, refs: dict[Any, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if operation.is_stream:
        done["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    elif operation.response is not None:
        done["content"] = {"application/json": {"schema": refs[operation.response]}}
    responses: dict[str, Any] = {str(operation.status): done}
    if operation.status == HTTPStatus.CREATED and operation.is_idempotent:
        responses["200"] = {**done, "description": "It was there already."}
    if operation.name == "getResult":
        responses["202"] = {**done, "description": "The run has not ended yet."}
    if operation.method == "GET" and not operation.is_stream:
        responses["304"] = {"description": "The caller has this content already (`If-None-Match`)."}
    statuses = {*_STATUSES_OF_ALL, *(CODE_TABLE[code].http_status for code in operation.codes)}
    responses.update({str(status): {"$ref": "#/components/responses/Problem"} for status in sorted(statuses)})
    responses["default"] = {"$ref": "#/components/responses/Problem"}
    return responses


def _cleaned(schema: Any) -> Any:
    """The schema with texts of docstrings as Markdown."""
    if isinstance(schema, dict):
        fields = cast(dict[str, Any], schema)
        return {
            key: value.replace("``", "`") if key == "description" and isinstance(value, str) else _cleaned(value)
            for key, value in fields.items()
        }
    return [_cleaned(item) for item in cast(list[Any], schema)] if isinstance(schema, list) else schema
