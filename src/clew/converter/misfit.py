"""How a value that does not fit is reported from deep inside it.

Owns: `Misfit`, which collects the path on its way out. Never: leaves this package; the callers turn it into
`EncodeError` or `DecodeError`.
"""

# Values and hints are of any type here, by nature; what is found inside them has no static type.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any, Final, final

SHOWN_CHARS_MAX: Final = 80
"""Values are shown in messages up to this length."""


@final
class Misfit(Exception):
    """Something at `path` cannot be converted.

    Args:
        problem: What is wrong there, in a few words.
        remedy: What to do about it; empty for the usual advice.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self._steps: list[str] = []

    def inside(self, step: str) -> Misfit:
        """Note that it lies inside this step (``.field``, ``[0]``, ``['key']``) of the value around it."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        """Where, as ``$.field[0]``."""
        return "$" + "".join(reversed(self._steps))


def item_step(index: int) -> str:
    """The step into an item of a sequence."""
    return f"[{index}]"


def key_step(key: Any) -> str:
    """The step into a value of a mapping."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{shown(key)}]"


def shown(value: Any) -> str:
    """Show a value in a message, cut to a bounded length; never fails."""
    try:
        if isinstance(value, (list, dict, tuple, set, frozenset)):
            return f"{type(value).__name__} of {len(value)}"
        text = repr(value[: SHOWN_CHARS_MAX + 1] if isinstance(value, (str, bytes)) else value)
    except Exception as problem:  # noqa: BLE001 (a foreign __repr__ may raise anything)
        return f"<{type(value).__name__} whose repr raised {type(problem).__name__}>"
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


def type_name(hint: Any) -> str:
    """Show a type or annotation in a message."""
    if isinstance(hint, type) and not getattr(hint, "__args__", None):
        return hint.__qualname__ if hint.__module__ == "builtins" else f"{hint.__module__}.{hint.__qualname__}"
    return repr(hint)
