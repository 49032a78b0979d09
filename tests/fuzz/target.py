"""One reader of outside bytes, as the fuzz tests take it.

Owns: `Target`, and how texts are made of bytes. Never: a reader (they stand by where their bytes come from:
``targets``, ``from_nodes``, ``from_stores``, ``from_files``, ``web``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One reader.

    Args:
        read: Takes bytes.
        refusals: How it may say no; anything else is a finding.
        examples: Good inputs, from which bad ones are made.
        words: Pieces that make inputs which get further.
    """

    read: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    examples: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()


def text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """As texts come: from JSON or headers, so surrogates can be in it but no invalid bytes."""
    return lambda data: read(data.decode("utf-8", "replace"))


def latin(read: Callable[[str], object]) -> Callable[[bytes], object]:
    """As headers come."""
    return lambda data: read(data.decode("latin-1"))
