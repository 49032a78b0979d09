"""Spans of your own in workflow code.

Owns: `completed_span`. Never: spans that last; put those into activities.
"""

from __future__ import annotations

from clew.contrib.opentelemetry._carrier import Attributes
from clew.contrib.opentelemetry._workflow import TracingWorkflowInboundInterceptor


def completed_span(name: str, *, attributes: Attributes | None = None, exception: BaseException | None = None) -> None:
    """Make a span that is over at once, unless the workflow is replaying; without effect where nothing traces.

    Args:
        name: Its name.
        attributes: What is known, beside the ids of the run.
        exception: What went wrong, if anything did.
    """
    interceptor = TracingWorkflowInboundInterceptor.current()
    if interceptor is not None:
        interceptor.completed_span(name, attributes=attributes, error=exception)
