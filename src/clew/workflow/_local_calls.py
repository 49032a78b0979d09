"""What a call of a local activity says besides its arguments, read once for all calls that say the same.

Owns: `LocalActivityCall` and the checks of its options. Never: arguments, or anything that belongs to one run.

How it works: a run that is resumed passes all its finished steps again, and most of them are called with the options of
the one before. So what was checked is kept, by activity and options, and shared. The worker reads it as it is; the
input that interceptors get, who may change it, is made of it when there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, final

from clew.common import RetryPolicy
from clew.model.option_types import check_durations, check_policy_types, check_texts
from clew.workflow._activities import (
    UNSET,
    ActivityCancellationType,
    activity_name_and_types,
    no_timeout_message,
    one_or_many,
)
from clew.workflow._interceptor import StartLocalActivityInput

_KEPT_MAX: Final = 1_000
"""Of different calls; code that gives each its own options must not fill the memory."""


@final
class LocalActivityCall:
    """One call without its arguments; never changed.

    Args:
        input: What it says.
        is_shared: Whether other calls say the same, so that nobody who may change it is given this very input.

    Attributes:
        asked: What it says, to be read alone; of a call that is shared without arguments.
    """

    __slots__ = ("_is_shared", "activity", "activity_id", "asked", "cancellation_type", "ret_type")

    def __init__(self, input: StartLocalActivityInput, *, is_shared: bool = False) -> None:
        self.asked = input
        self._is_shared = is_shared
        self.activity = input.activity
        self.activity_id = input.activity_id
        self.cancellation_type = input.cancellation_type
        self.ret_type = input.ret_type

    def input(self, args: Sequence[Any]) -> StartLocalActivityInput:
        """Give what interceptors see, with arguments; theirs to change."""
        kept = self.asked
        if not self._is_shared:
            return kept
        # All fields in their order: `dataclasses.replace`, which looks each of them up, takes ten times as long.
        return StartLocalActivityInput(
            kept.activity,
            args,
            kept.activity_id,
            kept.schedule_to_close_timeout,
            kept.schedule_to_start_timeout,
            kept.start_to_close_timeout,
            kept.retry_policy,
            kept.local_retry_threshold,
            kept.cancellation_type,
            {},
            kept.summary,
            kept.durable,
            kept.arg_types,
            kept.ret_type,
        )


_kept: dict[tuple[Any, ...], LocalActivityCall] = {}


def local_activity_call(activity: Any, result_type: Any | None, options: Mapping[str, Any]) -> LocalActivityCall:
    """Read a call; see `start_local_activity`."""
    key = (activity, result_type, *options.items())
    try:
        call = _kept.get(key)
    except TypeError:  # something in it has no hash
        return LocalActivityCall(_input(activity, result_type, **options), is_shared=True)
    if call is None:
        call = LocalActivityCall(_input(activity, result_type, **options), is_shared=True)
        if len(_kept) >= _KEPT_MAX:
            _kept.clear()
        _kept[key] = call
    return call


def local_arguments(call: LocalActivityCall, arg: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Give the arguments of a call.

    Raises:
        ValueError: Both ``arg`` and ``args`` were given.
    """
    if not args:
        return () if arg is UNSET else (arg,)
    return one_or_many(arg, args, f"local activity {call.activity!r}")


def _input(
    activity: Any,
    result_type: Any | None,
    *,
    schedule_to_close_timeout: timedelta | None = None,
    schedule_to_start_timeout: timedelta | None = None,
    start_to_close_timeout: timedelta | None = None,
    retry_policy: RetryPolicy | None = None,
    local_retry_threshold: timedelta | None = None,
    cancellation_type: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL,
    activity_id: str | None = None,
    summary: str | None = None,
    durable: str = "step",
) -> StartLocalActivityInput:
    name, arg_types, ret_type = activity_name_and_types(activity, result_type)
    if start_to_close_timeout is None and schedule_to_close_timeout is None:
        raise ValueError(no_timeout_message(name))
    if durable not in ("step", "batch"):
        raise ValueError(f"durable={durable!r} of local activity {name!r} must be 'step' or 'batch'.")
    check_durations(
        f"local activity {name!r}",
        schedule_to_close_timeout=schedule_to_close_timeout,
        schedule_to_start_timeout=schedule_to_start_timeout,
        start_to_close_timeout=start_to_close_timeout,
        local_retry_threshold=local_retry_threshold,
    )
    if activity_id is not None or summary is not None:
        check_texts(f"local activity {name!r}", activity_id=activity_id, summary=summary)
    if retry_policy is not None:
        check_policy_types(f"local activity {name!r}", retry_policy)
    return StartLocalActivityInput(
        name,
        (),
        activity_id,
        schedule_to_close_timeout,
        schedule_to_start_timeout,
        start_to_close_timeout,
        retry_policy,
        local_retry_threshold,
        cancellation_type,
        {},
        summary,
        durable,
        arg_types,
        ret_type,
    )
