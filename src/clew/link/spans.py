"""Traces of the calls of a link: the seam to whoever makes spans.

Owns: the shape of what a node tells of each call. Never: makes a span.
"""

from __future__ import annotations

from collections.abc import Callable

EndSpan = Callable[[BaseException | None], None]
"""Told once that the call has ended, and by which error if by one."""

CallTracer = Callable[[str, str], EndSpan]
"""Told that a call begins: its name, and the trace that it belongs to (``traceparent``; empty for none)."""
