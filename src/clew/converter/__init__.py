"""Values to payloads and back; exceptions to failures and back; codecs."""

from __future__ import annotations

from clew.converter.payload_converter import PayloadConverter

__all__ = ["PayloadConverter"]
