"""The reference page of the server, its settings made from the settings themselves."""

from __future__ import annotations

import inspect
import re

import msgspec

from clew.server.settings import ENVIRONMENT_PREFIX, ServerSettings

INTRODUCTION = """\
`pip install 'clew[server,cli]'` gives the server; `postgres` is the extra for PostgreSQL.

```console
$ clew server start --store sqlite:clew.db
Clew answers at http://127.0.0.1:7233
```

One port serves workers and clients (`Client.connect("host:7233")`), the [HTTP API](http-api.md) below `/api/v1`, the
web view at `/`, [metrics](metrics.md) at `/metrics`, and two questions: `/healthz` answers while the process lives,
`/readyz` while calls can succeed (503 while it stops, or while the store does not answer).

**Settings.** Each comes from its flag; else from the environment (`CLEW_SERVER_` and its name in capitals); else
from the TOML file that `--config` or `CLEW_SERVER_CONFIG` names; else it has its default. An unknown name is
refused.

**Several nodes.** On PostgreSQL any number of nodes share one store: start each with the same `--store`, and give
workers and clients all addresses (`host1:7233,host2:7233`) or one name that stands for all. Any node serves any
request; when one dies, the others take over its work within its lease. On a SQLite file there is one node; other
processes of the machine that connect to the same file join it.

**Stopping.** SIGTERM or SIGINT: the node is not ready any more, live views end, workers and clients are asked to go
elsewhere, requests under way are waited for, up to `shutdown_seconds`; then what was accepted is durable, and the
store is let go of. A second signal does not wait. After `kill -9` nothing accepted is lost either: that is what the
store is for.

**Who may reach it.** The server listens on 127.0.0.1. It refuses an address that others can reach unless callers
must say who they are, or `allow_public_without_auth` says that this is meant.

**Logs** go to stderr, as text or as one JSON object a line (`log_format`), with the event, its facts, and the id of
the request (`X-Request-Id`). Payloads are in none of them.

**Traces.** With the extra `otel` and an SDK of OpenTelemetry, each request over HTTP and each call over the link is a
span in the trace of its caller: see [traces](../how-to/trace-with-opentelemetry.md).

**Running it.** In the repository, `deploy/` has a systemd unit, a container file, a compose file with PostgreSQL and
two nodes, alert rules and a dashboard. `clew server health` asks the node of this machine whether it lives, over TLS
if that is what it speaks; it is the health check of the container.

`clew dev [MODULE]` is a server for development: a SQLite file in the working directory, the web view, and a worker
of the module that is started anew when its code changes. `clew worker run MODULE` runs a worker anywhere."""


def server_lines() -> list[str]:
    """The page, line by line."""
    lines = ["# The server", "", *INTRODUCTION.splitlines(), "", "## Settings", ""]
    lines += ["| setting | environment | default | |", "|---|---|---|---|"]
    texts = _texts()
    for field in msgspec.structs.fields(ServerSettings):
        default = "" if field.default is msgspec.NODEFAULT else field.default
        simple = isinstance(default, (str, int, float)) and default != ""
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`" if simple else ""
        lines.append(
            f"| `{field.name}` | `{ENVIRONMENT_PREFIX}{field.name.upper()}` | {shown} | {texts.get(field.name, '')} |"
        )
    return lines


def _texts() -> dict[str, str]:
    """What the docstring says of each setting."""
    arguments = inspect.cleandoc(ServerSettings.__doc__ or "").partition("Args:\n")[2]
    found = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w+: |\Z)", arguments, re.DOTALL | re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
