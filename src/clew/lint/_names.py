"""Names of the API and of Python that the checks of a function go by, and what a class shares among its objects.

Owns: these tables. Never: looks at a line.
"""

from __future__ import annotations

import ast
from typing import Final

from clew.lint._entries import WORKFLOW
from clew.lint._scope import CONTAINERS

ACTIVITY_CALLS: Final = frozenset(
    f"{WORKFLOW}{verb}_{kind}activity{suffix}"
    for verb in ("execute", "start")
    for kind in ("", "local_")
    for suffix in ("", "_method", "_class")
)
TIMEOUTS: Final = frozenset({"start_to_close_timeout", "schedule_to_close_timeout"})
REFERENCE_CALLS: Final = ACTIVITY_CALLS | {
    f"{WORKFLOW}{name}" for name in ("execute_child_workflow", "start_child_workflow", "continue_as_new")
}
"""Their first argument names something that runs elsewhere."""

ASKING: Final = REFERENCE_CALLS | {
    f"{WORKFLOW}{name}"
    for name in (
        "sleep", "upsert_memo", "upsert_search_attributes", "set_signal_handler", "set_query_handler",
        "set_update_handler",
        "patched", "deprecate_patch",
    )
}  # fmt: skip
AWAITED: Final = {f"{WORKFLOW}{name}" for name in (
    "sleep", "wait_condition", "execute_activity", "execute_activity_method", "execute_activity_class",
    "execute_local_activity", "execute_local_activity_method", "execute_local_activity_class",
    "execute_child_workflow", "start_child_workflow", "wait",
)} | {"asyncio.sleep", "asyncio.wait_for", "asyncio.wait"}  # fmt: skip

UNRESTRICTED: Final = (f"{WORKFLOW}unsafe.sandbox_unrestricted", f"{WORKFLOW}unsafe.unrestricted")

MUTATORS: Final = frozenset({
    "append", "extend", "insert", "remove", "pop", "clear", "add", "discard", "update", "setdefault", "popitem",
    "appendleft", "popleft", "extendleft", "sort", "reverse", "subtract", "difference_update", "intersection_update",
    "symmetric_difference_update", "rotate",
})  # fmt: skip
LOG_METHODS: Final = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
UNORDERED: Final = frozenset(f"builtins.{name}" for name in (
    "sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool", "isinstance",
)) | {"collections.Counter", "math.fsum", "asyncio.wait", "asyncio.as_completed", f"{WORKFLOW}wait",
      f"{WORKFLOW}as_completed"}  # fmt: skip
"""What does not care about the order of a set, or (asyncio's) is given a fixed one by Clew."""
ORDERED: Final = frozenset(f"builtins.{name}" for name in (
    "list", "tuple", "iter", "enumerate", "map", "filter", "zip", "reversed", "next",
)) | {"itertools.chain", "collections.deque", "functools.reduce", "asyncio.gather"}  # fmt: skip

CLASSES: Final = frozenset({"random.Random", "random.SystemRandom"})
"""Classes that need no arguments to be harmless where they are only mentioned."""


def is_shared_attribute(owner: ast.ClassDef, name: str) -> bool:
    """Whether a class makes a list, dict or set for all its objects, and no method gives an object its own."""
    made = False
    for node in owner.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                made = _makes_container(value)
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                made = _makes_container(value)
            case _:
                pass
    if not made:
        return False
    return not any(
        isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(owner)
    )


def _makes_container(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)):
        return True
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and f"builtins.{value.func.id}" in CONTAINERS
    )
