"""The page that says which role may make which call."""

from __future__ import annotations

from clew.model.access import EVERYWHERE, ROLE_PERMISSIONS, Permission, Role
from clew.server.security.calls import CALLS, CallRule

INTRODUCTION = """\
A server with authentication lets a caller make a call if one of its grants allows it in the namespace in which the call
acts. A grant is written `namespace:role`, such as `payments:worker`; `*` in place of the namespace means every one, and
only such a grant reaches what belongs to no namespace. In place of a role a grant may name one permission
(`payments:payloads`), and that of a worker may name the one task queue it may serve (`payments/cards:worker`). Grants
add up; nothing takes one away.

Without the permission `payloads`, answers have the payload `clew/redacted` in place of every input, result, detail,
memo, header and summary; search attributes and the texts of failures stay. The tasks of a worker always have theirs.
"""

MEANINGS = {
    Permission.READ: "see that runs exist, where they stand and why they wait",
    Permission.PAYLOADS: "see payloads in what one reads",
    Permission.QUERY: "ask workflow code",
    Permission.WRITE: "start, signal, update, cancel and terminate runs",
    Permission.COMPLETE: "end activities and report on them from outside of a worker",
    Permission.WORK: "attach as a worker and answer the tasks that one was given",
    Permission.OPERATE: "change the options of runs, route worker versions",
    Permission.ADMIN: "make namespaces and API keys",
}


def permissions_lines() -> list[str]:
    """The page, line by line."""
    lines = ["# Roles and permissions", "", *INTRODUCTION.splitlines(), "", "## What each role has", ""]
    roles = "".join(f" {role.value} |" for role in Role)
    lines += [f"| permission | lets one |{roles}", "|---|---|" + "---|" * len(Role)]
    for permission, meaning in MEANINGS.items():
        marks = "".join(f" {_mark(permission in ROLE_PERMISSIONS[role])} |" for role in Role)
        lines.append(f"| `{permission.value}` | {meaning} |{marks}")
    lines += [
        "", "## Which role may make which call", "",
        "*Audited* calls leave a line in the audit log. A call that acts in no namespace needs a grant for `*`.", "",
        f"| call | needs |{roles} in | audited |",
        "|---|---|" + "---|" * (len(Role) + 2),
    ]  # fmt: skip
    for name, rule in CALLS.items():
        lines.append(_row(f"`{name}`", rule, rule.any_of))
        if rule.any_of_by_ids is not None:
            lines.append(_row(f"`{name}`, by ids", rule, rule.any_of_by_ids))
    return lines


def _row(name: str, rule: CallRule, needed: frozenset[Permission]) -> str:
    wanted = " or ".join(f"`{permission.value}`" for permission in Permission if permission in needed)
    where = _where(rule)
    if where == "any":
        wanted = "nothing"
    elif needed == frozenset(Permission):
        wanted = "any"
    marks = "".join(f" {_mark(where == 'any' or bool(ROLE_PERMISSIONS[role] & needed))} |" for role in Role)
    return f"| {name} | {wanted} |{marks} {where} | {_mark(rule.changes)} |"


def _where(rule: CallRule) -> str:
    try:
        namespaces = rule.namespaces_of(None)
    except AttributeError:
        return "its namespace"
    return "`*`" if EVERYWHERE in namespaces else "any"


def _mark(is_so: bool) -> str:
    return "✓" if is_so else ""
