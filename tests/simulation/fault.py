"""What a planted fault is.

Owns: `Fault`. Never: plants one (``planted``).
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One fault.

    Args:
        name: For people and for the table.
        what: What a programmer might have got wrong, in one clause.
        target: ``module:function`` or ``module:Class.method``.
        old: A piece of its source, met exactly once.
        new: What stands there instead.
    """

    name: str
    what: str
    target: str
    old: str
    new: str
