"""What went wrong in PostgreSQL, said as an error of the store port.

Owns: the table from SQLSTATE codes to `StoreError`, the texts, and which errors leave the outcome open.
Never: retries, or decides what a caller does.

How it works: an error that the server reports for a statement means that nothing of its transaction was done. Only when
the connection is lost, the server goes down, or time runs out, the outcome is not known: the statement may have been
committed and only its acknowledgement be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from clew.ports.store import (
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreIncompatible,
    StoreReadOnly,
    StoreUnavailable,
)

_OUTCOME_OPEN: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "40003"})
"""Shutdown by an administrator, crash, not yet up, idle too long (session, transaction), completion unknown."""

_CONTENTION: Final = frozenset({"40001", "40P01", "55P03"})
"""Serialization failure, deadlock, lock not available: another transaction was in the way, the next try may succeed."""

_PASSING: Final = _OUTCOME_OPEN | _CONTENTION | {"57014", "53000", "53200", "53300", "53400", "58000", "58030", "25006"}
"""And: cancelled by a timeout, out of memory, too many connections, I/O trouble, a standby that cannot be written."""

_WAY_IN: Final = frozenset({"28000", "28P01", "3D000"})

_SETTING: Final = frozenset({"08P01", "22023", "42601", "42602", "42704", "55P02"})
"""What a server, or a proxy before it, says of settings that come with a new connection."""


def sqlstate(error: BaseException) -> str | None:
    """The server's code for `error`; None when it does not come from the server."""
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else None


def is_outcome_open(error: BaseException) -> bool:
    """Whether what was asked for may have been done although `error` came back."""
    code = sqlstate(error)
    if code is None:
        return is_connection_trouble(error)
    return code in _OUTCOME_OPEN or code.startswith("08")


def is_connection_trouble(error: BaseException) -> bool:
    """Whether `error` says that the connection is lost, cannot be made, or gives no answer."""
    code = sqlstate(error)
    if code is not None:
        return code in _OUTCOME_OPEN or code.startswith("08") or code in ("25006", "53300")
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return True
    # The driver's own refusals have no code: "connection is closed", or that its state is not as it thought, which is
    # how a session looks to it that the server has ended while it was idle.
    return type(error).__module__.startswith("asyncpg") and (
        type(error).__name__ == "InternalClientError" or "connection" in str(error).lower()
    )


def is_contention(error: BaseException) -> bool:
    """Whether another transaction was in the way, so that the same statement may succeed at once."""
    return sqlstate(error) in _CONTENTION


def is_passing(error: BaseException) -> bool:
    """Whether a later try may succeed without anybody changing anything of the call."""
    return sqlstate(error) in _PASSING or is_connection_trouble(error)


def unreachable(error: BaseException, name: str) -> StoreError:
    """What a call is told for which no connection could be made."""
    if sqlstate(error) is not None:
        return to_store_error(error, name)
    return StoreUnavailable(
        f"the database {name} cannot be reached ({str(error) or type(error).__name__}); nothing of the call was done; "
        "try again. Check that the server runs, and the host and port of the connection string"
    )


def refused_option(error: BaseException, name: str, options: Iterable[str]) -> StoreError | None:
    """What a caller is told whose connection string has options that driver or server refuse; None if it is not that.

    Args:
        error: Met while a connection was made.
        name: Of the database.
        options: The names of the options that are not Clew's own.
    """
    if sqlstate(error) in _SETTING:
        named = [o for o in options if o == "options" or re.search(rf"\b{re.escape(o)}\b", str(error))]
        if not named:
            return None
        which = " and ".join(f"{option}=…" for option in named)
        return StoreIncompatible(
            f"the server of {name} refuses the option {which} of the connection string ({error}). Expected: an option "
            "of Clew (such as pool_size), of the driver (such as sslmode), or a setting of the server, with a value "
            "that it takes; check how it is written"
        )
    if isinstance(error, ValueError):
        given = ", ".join(options) or "none"
        return StoreIncompatible(
            f"the driver cannot use the connection string of {name} ({error}). Correct its options (for the driver it "
            f"has: {given}), or the environment variable (PGSSLMODE, PGPORT, …) that the value comes from"
        )
    return None


def to_store_error(error: BaseException, name: str) -> StoreError:
    """Say `error`, met on the database called `name`, as an error of the port."""
    if isinstance(error, StoreError):
        return error
    code = sqlstate(error)
    if code is None:
        if is_connection_trouble(error):
            told = str(error) or type(error).__name__
            return StoreUnavailable(
                f"the database {name} does not answer ({told}). It is not known whether anything of the call was done; "
                "try again. Check that the server runs and can be reached"
            )
        return StoreError(
            f"the store {name} could not take or give this data: {type(error).__name__}: {error}. Nothing of the call "
            "was done; this is a bug in the caller or in Clew, please report it with this message"
        )
    return _of_code(code, f"{code}: {error}", name)


def _of_code(code: str, text: str, name: str) -> StoreError:
    if code == "53100":
        return StoreFull(
            f"no room for the database {name} ({text}); nothing of the call was done and nothing was lost. Make room "
            "on the server's disk; it works again at once, without a restart"
        )
    if code == "53300":
        return StoreUnavailable(
            f"the database {name} takes no more connections ({text}); nothing of the call was done; try again. Raise "
            "max_connections, give each engine fewer (?pool_size=…), or put a proxy between"
        )
    if code in _PASSING or code.startswith("08"):
        return StoreUnavailable(f"the database {name} cannot do this at present ({text}); try again")
    if code in _WAY_IN:
        return StoreError(
            f"the database {name} does not let this program in ({text}). Check user, password and name of the database "
            "in the connection string, and the server's pg_hba.conf"
        )
    if code == "42501":
        return StoreReadOnly(
            f"the user of the connection may not do this in the database {name} ({text}). Give it the rights that "
            "'clew db role' prints"
        )
    if code.startswith("XX00") and code != "XX000":
        return StoreCorrupt(
            f"the database {name} is damaged ({text}); nothing was written. Stop every program that uses it and "
            "restore a backup, or fail over to a standby"
        )
    if code in ("42P01", "3F000", "42703", "42883"):
        return StoreIncompatible(
            f"the database {name} has not the tables that this version needs ({text}). Run 'clew db migrate', or check "
            "the option schema=… of the connection string"
        )
    return StoreError(
        f"the database {name} refused the call ({text}); nothing of it was done. This is a bug in Clew: please "
        "report it"
    )
