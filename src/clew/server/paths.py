"""Paths of requests, taken apart before they are decoded.

Owns: `path_segments`. Never: what is at a path.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import Scope

from clew.server.problems import bad_request


def path_segments(scope: Scope, prefix: str) -> list[str]:
    """The parts of the path below `prefix`, each decoded by itself, so that it may hold any character.

    Raises:
        HTTPProblem: It is not UTF-8.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    below = raw.partition(b"?")[0].removeprefix(prefix.encode()).strip(b"/")
    try:
        return [unquote_to_bytes(part).decode() for part in below.split(b"/")]
    except UnicodeDecodeError as error:
        raise bad_request(f"The path is not UTF-8: {error}.") from error
