"""What a run knows of itself, its versions, memo, search attributes and handlers.

Owns: the small functions of ``clew.workflow`` that ask the runtime. Never: state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clew.common import MetricMeter, SearchAttributes, SearchAttributeUpdate
from clew.converter.payload_converter import PayloadConverter
from clew.workflow._definition import (
    HandlerUnfinishedPolicy,
    QueryDefinition,
    SignalDefinition,
    UpdateDefinition,
    check_handler_name,
)
from clew.workflow._runtime import Info, UpdateInfo, current, maybe_current


def in_workflow() -> bool:
    """Whether the calling code is part of a running workflow."""
    return maybe_current() is not None


def info() -> Info:
    """Give what the run knows of itself."""
    return current().info()


def instance() -> Any:
    """Give the workflow object of this run."""
    return current().instance()


def payload_converter() -> PayloadConverter:
    """Give the converter of arguments and results."""
    return current().payload_converter()


def metric_meter() -> MetricMeter:
    """Give a meter that is silent while replaying."""
    return current().metric_meter()


def extern_functions() -> Mapping[str, Callable[..., Any]]:
    """Give the functions that interceptors offer to workflow code."""
    return current().extern_functions()


def current_update_info() -> UpdateInfo | None:
    """Give the update whose handler or validator the calling code belongs to; None elsewhere."""
    return current().current_update_info()


def all_handlers_finished() -> bool:
    """Whether no signal or update handler is running. Await it, as a condition, before a run ends."""
    return current().all_handlers_finished()


def get_current_details() -> str:
    """Give the text last set by `set_current_details`."""
    return current().current_details()


def set_current_details(description: str) -> None:
    """Set a text for people, in Markdown, that says where the run stands."""
    current().set_current_details(description)


def cancellation_reason() -> str | None:
    """Give the reason of the cancellation request; None if the run was not asked to cancel."""
    return current().cancellation_reason()


def has_last_completion_result() -> bool:
    """Whether the previous run of this cron or schedule gave a result."""
    return current().has_last_completion_result()


def get_last_completion_result(type_hint: type[Any] | None = None) -> Any:
    """Give the result of the previous run of this cron or schedule; None if there is none.

    Args:
        type_hint: What to decode it to.
    """
    return current().last_completion_result(type_hint)


def get_last_failure() -> BaseException | None:
    """Give the error of the previous run of this chain; None if it did not fail."""
    return current().last_failure()


def is_failure_exception(error: BaseException) -> bool:
    """Whether this exception, raised by workflow code, fails the run in place of the workflow task."""
    return current().is_failure_exception(error)


def patched(id: str) -> bool:
    """Say whether this run takes the new path of a change in the code.

    The answer is one for the whole run: true if the run first came here with the new code, false if it was past this
    point before.

    Args:
        id: Names the change; use it for nothing else in this workflow.
    """
    return current().patched(id, False)


def deprecate_patch(id: str) -> None:
    """Say that no run needs the old path of a change any more; keep it until no run with the patch is open."""
    current().patched(id, True)


def memo() -> Mapping[str, Any]:
    """Give the memo of the run, converted without type hints."""
    return current().memo()


def memo_value(key: str, default: Any = ..., *, type_hint: type[Any] | None = None) -> Any:
    """Give one value of the memo.

    Args:
        key: Its name.
        default: What to give if there is none.
        type_hint: What to decode it to.

    Raises:
        KeyError: There is none, and no default.
    """
    return current().memo_value(key, default, type_hint)


def upsert_memo(updates: Mapping[str, Any]) -> None:
    """Change values of the memo; None removes one."""
    current().upsert_memo(updates)


def upsert_search_attributes(attributes: SearchAttributes | Sequence[SearchAttributeUpdate[Any]]) -> None:
    """Change search attributes.

    Args:
        attributes: Updates of typed keys (``key.value_set(…)``), or the older untyped mapping.
    """
    current().upsert_search_attributes(attributes)


# --- handlers at run time ---------------------------------------------------------------------------------


def get_signal_handler(name: str) -> Callable[..., Any] | None:
    """Give the handler of a signal; None if it has no own."""
    return current().signal_handler(name)


def set_signal_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Set the handler of a signal; signals that waited for one are given to it. None removes it."""
    check_handler_name("signal", name)
    current().set_signal_handler(name, None if handler is None else SignalDefinition(name, handler, False))


def get_dynamic_signal_handler() -> Callable[..., Any] | None:
    """Give the handler of signals that have no own."""
    return current().signal_handler(None)


def set_dynamic_signal_handler(handler: Callable[..., Any] | None) -> None:
    """Set the handler of signals that have no own; it takes the name and the arguments as ``Sequence[RawValue]``."""
    current().set_signal_handler(None, None if handler is None else SignalDefinition(None, handler, False))


def get_query_handler(name: str) -> Callable[..., Any] | None:
    """Give the handler of a query; None if it has no own."""
    return current().query_handler(name)


def set_query_handler(name: str, handler: Callable[..., Any] | None) -> None:
    """Set the handler of a query; None removes it."""
    check_handler_name("query", name)
    current().set_query_handler(name, None if handler is None else QueryDefinition(name, handler, False))


def get_dynamic_query_handler() -> Callable[..., Any] | None:
    """Give the handler of queries that have no own."""
    return current().query_handler(None)


def set_dynamic_query_handler(handler: Callable[..., Any] | None) -> None:
    """Set the handler of queries that have no own; it takes the name and the arguments as ``Sequence[RawValue]``."""
    current().set_query_handler(None, None if handler is None else QueryDefinition(None, handler, False))


def get_update_handler(name: str) -> Callable[..., Any] | None:
    """Give the handler of an update; None if it has no own."""
    return current().update_handler(name)


def set_update_handler(
    name: str,
    handler: Callable[..., Any] | None,
    *,
    validator: Callable[..., Any] | None = None,
    unfinished_policy: HandlerUnfinishedPolicy = HandlerUnfinishedPolicy.WARN_AND_ABANDON,
) -> None:
    """Set the handler of an update; None removes it.

    Args:
        name: Of the update.
        handler: A function or bound method, plain or async; its result is the answer to the caller.
        validator: Called with the same arguments before the update is accepted; what it raises rejects the update, and
            leaves no trace in history. It must not change anything.
        unfinished_policy: What happens if the run ends before the handler does.

    Raises:
        ValueError: The name is reserved.
    """
    check_handler_name("update", name)
    current().set_update_handler(name, _update_definition(name, handler, validator, unfinished_policy))


def get_dynamic_update_handler() -> Callable[..., Any] | None:
    """Give the handler of updates that have no own."""
    return current().update_handler(None)


def set_dynamic_update_handler(
    handler: Callable[..., Any] | None, *, validator: Callable[..., Any] | None = None
) -> None:
    """Set the handler of updates that have no own; it takes the name and the arguments as ``Sequence[RawValue]``."""
    policy = HandlerUnfinishedPolicy.WARN_AND_ABANDON
    current().set_update_handler(None, _update_definition(None, handler, validator, policy))


def _update_definition(
    name: str | None,
    handler: Callable[..., Any] | None,
    validator: Callable[..., Any] | None,
    unfinished_policy: HandlerUnfinishedPolicy,
) -> UpdateDefinition | None:
    if handler is None:
        return None
    return UpdateDefinition(name, handler, False, unfinished_policy=unfinished_policy, validator=validator)
