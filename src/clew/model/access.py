"""Who may do what: permissions, the roles that bundle them, and grants that give a role in a namespace.

Owns: the closed sets of both, the table from role to permissions, and the text of a grant. Never: which call needs
which permission (``server.security.calls`` has that table), or who somebody is (``server.security`` finds out).

How it works: a grant is ``namespace:role``, as in ``payments:worker``; ``*`` for the namespace means every one, and
only such a grant reaches what belongs to no namespace. A grant may also name one permission in place of a role
(``payments:payloads``), and a worker's grant its task queues (``payments/cards:worker``). Permissions only add up:
nothing takes one away.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

EVERYWHERE: Final = "*"
"""In place of a namespace: every one, and what belongs to none."""

GRANTS_MAX: Final = 100
"""Of one key or one token; more than that is a mistake, and is looked through at every call."""

GRANT_CHARS_MAX: Final = 2_200
"""A namespace and a task queue of the longest kind (`Limits.id_bytes_max`), with a role."""


class Permission(enum.Enum):
    """One thing that a caller may be allowed to do."""

    READ = "read"
    """See that runs exist, where they stand and why they wait; without payloads."""
    PAYLOADS = "payloads"
    """See inputs, results, details, memos and headers in what one reads."""
    QUERY = "query"
    """Ask workflow code; the answer is a payload."""
    WRITE = "write"
    """Start, signal, update, cancel and terminate runs (a start may terminate the run that has its id, too)."""
    COMPLETE = "complete"
    """End activities, or report on them, from outside of a worker."""
    WORK = "work"
    """Attach as a worker, and answer the tasks that one was given."""
    OPERATE = "operate"
    """Change how runs are handled: their options, the routing of worker versions."""
    ADMIN = "admin"
    """Make namespaces, and keys with any grant."""


class Role(enum.Enum):
    """A bundle of permissions under the name of a job."""

    READER = "reader"
    CLIENT = "client"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


ROLE_PERMISSIONS: Final[dict[Role, frozenset[Permission]]] = {
    Role.READER: frozenset({Permission.READ, Permission.QUERY}),
    Role.CLIENT: frozenset({
        Permission.READ, Permission.QUERY, Permission.WRITE, Permission.COMPLETE, Permission.PAYLOADS,
    }),
    Role.WORKER: frozenset({Permission.WORK}),
    Role.OPERATOR: frozenset({
        Permission.READ, Permission.QUERY, Permission.WRITE, Permission.COMPLETE, Permission.OPERATE,
    }),
    Role.ADMIN: frozenset(Permission),
}  # fmt: skip
"""An operator keeps runs going without seeing what they are about; give it ``payloads`` as well where it should."""

_NAMES: Final[dict[str, frozenset[Permission]]] = {
    **{permission.value: frozenset({permission}) for permission in Permission},
    **{role.value: permissions for role, permissions in ROLE_PERMISSIONS.items()},
}
"""What a grant may name; a role takes the name from the permission that is called alike (``admin``)."""


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What somebody may do in one namespace.

    Args:
        namespace: Its name, or `EVERYWHERE`.
        role: The value of a `Role` or of a `Permission`.
        task_queue: The only queue that a worker may serve; empty for any.
    """

    namespace: str
    role: str
    task_queue: str = ""

    @property
    def permissions(self) -> frozenset[Permission]:
        """What it allows; nothing when its role is not known to this version."""
        return _NAMES.get(self.role, frozenset())

    def covers(self, namespace: str) -> bool:
        """Whether it is for this namespace."""
        return self.namespace in (EVERYWHERE, namespace)

    def __str__(self) -> str:
        queue = f"/{self.task_queue}" if self.task_queue else ""
        return f"{self.namespace}{queue}:{self.role}"


def parse_grant(text: str) -> Grant:
    """The grant that `text` writes as ``namespace:role``, ``*:role`` or ``namespace/task-queue:worker``.

    Raises:
        ValueError: It does not; the message says what was expected.
    """
    where, colon, role = text.strip().rpartition(":")
    if len(text) > GRANT_CHARS_MAX:
        raise ValueError(f"a grant of {len(text)} characters is longer than {GRANT_CHARS_MAX}")
    if not colon or role not in _NAMES:
        raise ValueError(
            f"{text!r} is no grant; expected namespace:role, such as payments:worker or *:reader, where the role is "
            f"one of {', '.join(role.value for role in Role)}, or one permission: "
            f"{', '.join(permission.value for permission in Permission)}"
        )
    namespace, slash, task_queue = where.partition("/")
    if not namespace or (slash and not task_queue):
        raise ValueError(f"the grant {text!r} names no namespace or an empty task queue; write * for every namespace")
    if task_queue and Permission.WORK not in _NAMES[role]:
        raise ValueError(f"the grant {text!r} names a task queue, which only a worker's can; leave it out")
    return Grant(namespace, role, task_queue)


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Several grants, in order.

    Raises:
        ValueError: One is not a grant, or there are more than `GRANTS_MAX`.
    """
    grants = tuple(parse_grant(text) for text in texts)
    if len(grants) > GRANTS_MAX:
        raise ValueError(f"{len(grants)} grants are more than the {GRANTS_MAX} that one caller may have")
    return grants
