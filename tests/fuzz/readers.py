"""Every place in the program where bytes become values, and what feeds it: a fuzz target, or why none does.

Owns: the list, by module, and the names of the functions that read. Never: feeds anything (``targets``).

How it works: a test finds the modules that call such functions, in the source; one that is not in the list fails it.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "clew"

READS: frozenset[str] = frozenset(
    {
        "Decoder", "b64decode", "convert", "decompress", "decompressobj", "decrypt", "fromisoformat", "fromhex",
        "getresponse", "ip_address", "ip_network", "load_der_x509_certificate", "loads", "parse_qs", "parse_qsl",
        "raw_decode", "read_bytes", "read_text", "receive_data", "recv", "strptime", "unhexlify", "unpack", "unquote",
        "unquote_to_bytes", "urlopen", "urlparse", "urlsplit", "urlsafe_b64decode",
    }
)  # fmt: skip
"""Functions by whose name alone a reader is known; besides `msgspec.json.decode`, `int.from_bytes` and `ast.parse`."""

_DOTTED = frozenset({"msgspec.json.decode", "msgspec.msgpack.decode", "int.from_bytes", "ast.parse"})

NODES_ALONE = "rows that nodes alone write: whoever can write the database can do everything (SECURITY.md, 5)"
OWN = "bytes that this very process, or its own child, has just made"
INSTALLED = "files that come with the program"
OPERATOR = "named and written by whoever runs the process"

READERS: dict[str, tuple[str, ...] | str] = {
    "adapters.py": OWN,
    "cli/_inputs.py": ("json_argument",),
    "cli/_profiles.py": ("profile", "key_file"),
    "cli/_replays.py": ("history_import", "history_replay"),
    "cli/_workflow_views.py": OWN,
    "client/_outbound.py": ("failure", "node_session"),
    "client/_request_check.py": OWN,
    "client/_target.py": ("connection_string",),
    "contrib/_inner_payload.py": ("kept_payload", "compressed_payload", "encrypted_payload"),
    "contrib/compression.py": ("compressed_payload",),
    "contrib/encryption.py": ("encrypted_payload",),
    "contrib/idempotency/_sqlite_store.py": ("stored_response", "keyed_request"),
    "contrib/payload_store.py": ("claim_check",),
    "contrib/s3.py": ("bucket_answer",),
    "converter/composite.py": ("conversion",),
    "converter/decoding.py": ("conversion",),
    "converter/encoding.py": OWN,
    "converter/fastpath.py": ("conversion",),
    "converter/records.py": ("conversion",),
    "converter/scalars.py": ("conversion",),
    "converter/search_attributes.py": ("search_attributes",),
    "converter/unions.py": ("conversion",),
    "core/api_keys.py": ("api_key",),
    "core/codec.py": NODES_ALONE,
    "core/versioning.py": OWN,
    "engine/callbacks.py": ("callback_token",),
    "engine/fleet.py": NODES_ALONE,
    "engine/hints.py": ("hint",),
    "engine/mail.py": NODES_ALONE,
    "engine/namespaces.py": NODES_ALONE,
    "engine/outbox_rows.py": NODES_ALONE,
    "engine/versions.py": NODES_ALONE,
    "engine/visibility.py": ("filter",),
    "exceptions.py": OWN,
    "inbox.py": ("inbox",),
    "link/calls.py": ("call_body", "worker_hello", "node_answer", "worker_task"),
    "link/early.py": OWN,
    "link/frames.py": ("link_frame", "node_greeting", "node_session"),
    "link/plain_frames.py": ("wire_bytes",),
    "link/remote.py": ("node_session",),
    "link/unix.py": ("wire_bytes",),
    "link/websocket.py": "the library's; bytes of every kind on the port: tests/link/test_bad_input.py",
    "lint/_entries.py": ("source",),
    "lint/_project.py": ("source",),
    "lint/_scope.py": ("source",),
    "model/compact.py": ("history_import", "web_events"),
    "model/events.py": ("events",),
    "model/history.py": ("history_import", "history_replay"),
    "model/payload.py": ("stored_payload",),
    "process_mark.py": ("process_mark",),
    "replay/chance.py": OWN,
    "replay/commands.py": ("history_replay",),
    "replay/local_activities.py": ("history_replay",),
    "server/api/activities.py": ("http",),
    "server/api/values.py": ("http", "web"),
    "server/health.py": OPERATOR,
    "server/paths.py": ("http", "web"),
    "server/security/authorized.py": OWN,
    "server/security/certificates.py": ("certificate",),
    "server/security/doors.py": ("authorization_header",),
    "server/security/exposure.py": OPERATOR,
    "server/security/jwks.py": ("key_set",),
    "server/security/origins.py": ("host_and_origin",),
    "server/security/proxies.py": ("forwarded",),
    "server/security/tokens.py": ("identity_token",),
    "server/settings.py": ("server_settings", "server_variables"),
    "server/web/app.py": ("web_stack",),
    "server/web/run.py": ("web_events",),
    "server/web/runs.py": ("web",),
    "service/tokens.py": ("task_token", "sealed_token"),
    "service_loop.py": OWN,
    "storage/postgres/address.py": ("connection_string",),
    "storage/postgres/schema.py": INSTALLED,
    "storage/sqlite/connection.py": ("connection_string",),
    "storage/sqlite/ownership.py": ("owner_file",),
    "storage/sqlite/schema.py": INSTALLED,
    "storage/values.py": ("search_attributes",),
    "worker/_codecs.py": "a function of that name, which reads no bytes",
    "worker/_process_child.py": OWN,
    "worker/_processes.py": OWN,
    "worker/_replay_pool.py": OWN,
}


def found() -> set[str]:
    """The modules that read bytes, by their path below the package."""
    modules: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(_is_read(node) for node in ast.walk(tree) if isinstance(node, ast.Call)):
            modules.add(path.relative_to(SOURCE).as_posix())
    return modules


def _is_read(call: ast.Call) -> bool:
    # `Decoder[T](…)` is a call of a subscript.
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in READS or ast.unparse(function) in _DOTTED
