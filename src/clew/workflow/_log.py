"""The logger of workflow code.

Owns: `logger`. Never: writes while a run is replayed or once it has left the cache, so that each line appears once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from clew.workflow._runtime import maybe_current


class LoggerAdapter(logging.LoggerAdapter[logging.Logger]):
    """Adds the run to each record (``extra`` and message) and is silent while replaying.

    Args:
        logger: Where records go.
        extra: Further fields for every record.
    """

    def __init__(self, logger: logging.Logger, extra: Mapping[str, Any] | None) -> None:
        super().__init__(logger, dict(extra or {}))
        self.workflow_info_on_message = True
        """Whether the run is appended to the message."""
        self.workflow_info_on_extra = True
        """Whether the run is in the record's attribute ``temporal_workflow`` and in ``clew_workflow``."""
        self.full_workflow_info_on_extra = False
        """Whether the whole `Info` is in the record's attribute ``workflow_info``."""
        self.log_during_replay = False
        """Whether records are written while replaying too."""
        self.disable_sandbox = False
        """Accepted for compatibility and without effect."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run to message and fields."""
        runtime = maybe_current()
        extra: dict[str, Any] = dict(self.extra or {})
        if runtime is not None:
            details = runtime.logger_extra
            if self.workflow_info_on_extra:
                extra["clew_workflow"] = extra["temporal_workflow"] = details
            if self.full_workflow_info_on_extra:
                extra["workflow_info"] = runtime.info()
            if self.workflow_info_on_message:
                msg = f"{msg} ({details['workflow_type']} {details['workflow_id']}, run {details['run_id']})"
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (overridden)
        """Whether records of this level are written now."""
        if not self.log_during_replay:
            runtime = maybe_current()
            if runtime is not None and runtime.is_replaying_history_events():
                return False
        return super().isEnabledFor(level)

    @property
    def base_logger(self) -> logging.Logger:
        """The logger that records go to."""
        return self.logger


logger = LoggerAdapter(logging.getLogger("clew.workflow"), None)
"""Writes to the logger ``clew.workflow``, with the run, and not while replaying."""
