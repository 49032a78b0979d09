"""The reference pages of the HTTP API, made from the table of operations."""

from __future__ import annotations

import json

from clew.server.api.app import PREFIX
from clew.server.api.openapi import openapi_document
from clew.server.api.table import OPERATIONS

INTRODUCTION = """\
Everything the server can do for scripts and other languages is JSON over HTTP, below `/api/v1`. The
[OpenAPI document](openapi.json) describes every operation with its fields; a running server answers it at
`/api/v1/openapi.json`.

**Values.** Arguments and results are plain JSON where they are JSON. Anything else (bytes, encrypted data) is an
envelope `{"$payload": {"metadata": {NAME: BASE64}, "data": BASE64}}`. Durations are ISO 8601 (`PT30S`), instants RFC
3339. Ids in paths are percent-encoded, a slash as `%2F`. Search attributes of a start are plain values, or `{"type":
"Datetime", "value": …}` to say how they are searched.

**Refusals** are problem documents (RFC 9457) with a stable `code`; [Errors](errors.md) lists the codes. Beside those,
HTTP has `route_not_found` (404), `method_not_allowed` (405), `body_too_large` (413) and `unsupported_media_type`
(415). A `Retry-After` says that the same request may succeed later. Every answer has an `X-Request-Id`, which the log
shows too.

**Doing things once.** Operations marked *once* take the header `Idempotency-Key`: however often a request with the
same key arrives, it is done once.

**Reading again cheaply.** Answers to `GET` have an `ETag`; send it as `If-None-Match`, and an unchanged answer is 304.

**Live views** are server-sent events. `streamHistory` sends a message `event` for each event of a run, whose id is
that of the event: a reader that was cut off goes on where it stood (`Last-Event-ID`); `end` is the last.
`streamWorkflows` sends `run` for each run that is new or changed, and `gone` for one that left the list. `problem`
tells of trouble.

**Callbacks.** `issueCallback` gives a URL by which somebody without credentials may end one activity: a person's
decision, another system's webhook. The token in it is signed, expires, and is good for that activity alone. Treat it
as a secret.

```console
$ curl -X POST localhost:7233/api/v1/namespaces/default/workflows -H 'Content-Type: application/json' \\
    -d '{"workflow_id": "claim-7", "workflow_type": "Claim", "task_queue": "claims", "input": [{"amount": 120}]}'
{"run_id":"…","first_execution_run_id":"…"}
$ curl localhost:7233/api/v1/namespaces/default/workflows/claim-7/result?wait=30
{"run_id":"…","status":"Completed","result":[{"paid":120}]}
```"""


def http_lines() -> list[str]:
    """The page, line by line."""
    lines = ["# The HTTP API", "", *INTRODUCTION.splitlines()]
    for tag in dict.fromkeys(operation.tag for operation in OPERATIONS):
        lines += ["", f"## {tag.capitalize()}", "", "| operation | request | |", "|---|---|---|"]
        for operation in OPERATIONS:
            if operation.tag == tag:
                once = " *once*" if operation.is_idempotent else ""
                request = f"`{operation.method} {PREFIX}{operation.path}`"
                lines.append(f"| `{operation.name}` | {request} | {operation.summary}{once} |")
    return lines


def openapi_text() -> str:
    """The OpenAPI document, as it is recorded."""
    return json.dumps(openapi_document(OPERATIONS), indent=1, ensure_ascii=False) + "\n"
