"""The payload of the published API, by the path by which codecs and converters import it."""

from __future__ import annotations

from clew.model.payload import Payload

__all__ = ["Payload"]
