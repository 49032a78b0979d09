"""Requests and responses about API keys.

Owns: the structs. Never: behaviour (``engine.api_keys``), or what a grant allows (``model.access``).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from clew.model.events import ZERO
from clew.model.inputs import Message


class ApiKeyInfo(Message, frozen=True, kw_only=True):
    """A key as people see it: nothing in here lets anybody in.

    Args:
        key_id: Public; it is part of the key itself.
        name: For people.
        grants: What it allows, as ``namespace:role``.
        created_at: When it was made.
        created_by: By whom.
        expires_at: From when on it is good for nothing; None for never.
        revoked_at: When it was taken back.
        replaced_by: The id of the key that a rotation made in its place.
        last_used_at: About when it was last used; None for never.
        calls_per_second_max: Its own rate limit; None for that of the server.
        is_live: Whether it is good now.
    """

    key_id: str
    name: str
    grants: tuple[str, ...]
    created_at: datetime
    created_by: str = ""
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str = ""
    last_used_at: datetime | None = None
    calls_per_second_max: float | None = None
    is_live: bool = True


class CreateApiKeyRequest(Message, frozen=True, kw_only=True):
    """Make a key.

    Args:
        name: For people; not empty.
        grants: What it allows, as ``namespace:role`` (``model.access.parse_grant``).
        expires_in: How long it is good; zero for ever.
        calls_per_second_max: Its own rate limit.
        identity: Who does it.
    """

    name: str
    grants: tuple[str, ...]
    expires_in: timedelta = ZERO
    calls_per_second_max: float | None = None
    identity: str = ""


class CreateApiKeyResponse(Message, frozen=True, kw_only=True):
    """`key` is the secret itself: it is told here and nowhere again, and no text of this struct shows it."""

    info: ApiKeyInfo
    key: str

    def __repr__(self) -> str:
        return f"CreateApiKeyResponse(info={self.info!r}, key='clew_…')"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("info", self.info), ("key", "clew_…")]


class ListApiKeysRequest(Message, frozen=True, kw_only=True):
    """The keys, by name. `include_ended`: also those that are revoked or expired."""

    include_ended: bool = False


class ListApiKeysResponse(Message, frozen=True, kw_only=True):
    keys: tuple[ApiKeyInfo, ...] = ()


class RevokeApiKeyRequest(Message, frozen=True, kw_only=True):
    """Take a key back, for good; a second time is no error."""

    key_id: str
    identity: str = ""


class RotateApiKeyRequest(Message, frozen=True, kw_only=True):
    """Make another key with the same name and grants; the old one is good for `overlap` more.

    Args:
        key_id: The old one; it must be live.
        overlap: How long both are good; zero ends the old one now.
        expires_in: How long the new one is good; zero for ever.
        identity: Who does it.
    """

    key_id: str
    overlap: timedelta = timedelta(hours=24)
    expires_in: timedelta = ZERO
    identity: str = ""
