"""The logger for activities: every line says which attempt wrote it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from clew.activity._context import _Context, in_activity


class LoggerAdapter(logging.LoggerAdapter[logging.Logger]):
    """Adds what is known of the running attempt to each line.

    Attributes:
        activity_info_on_message: Append it to the message. Default True.
        activity_info_on_extra: Put it on the record as ``activity``. Default True.
        full_activity_info_on_extra: Put the whole `Info` on the record as ``activity_info``. Default False.
    """

    def __init__(self, logger: logging.Logger, extra: dict[str, Any] | None = None) -> None:
        super().__init__(logger, extra or {})
        self.activity_info_on_message = True
        self.activity_info_on_extra = True
        self.full_activity_info_on_extra = False

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the details to one line."""
        if not in_activity():
            return super().process(msg, kwargs)
        info = _Context.current().get_info()
        details = info.logger_details()
        extra: dict[str, Any] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        if self.activity_info_on_extra:
            extra["activity"] = details
        if self.full_activity_info_on_extra:
            extra["activity_info"] = info
        kwargs["extra"] = extra
        return (f"{msg} ({details})" if self.activity_info_on_message else msg), kwargs

    @property
    def base_logger(self) -> logging.Logger:
        """The logger below."""
        return self.logger


logger = LoggerAdapter(logging.getLogger("clew.activity"))
"""Use it like any logger; outside of activities it adds nothing."""
