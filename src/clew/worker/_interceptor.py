"""Interceptors of a worker: user code around activities and workflows.

Owns: `Interceptor`, from which both chains are made. Never: the chains' links (``_activity_interceptor`` and
``workflow`` have them).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from clew.worker._activity_interceptor import ActivityInboundInterceptor
from clew.workflow._interceptor import WorkflowInboundInterceptor


@dataclass(frozen=True)
class WorkflowInterceptorClassInput:
    """Input of `Interceptor.workflow_interceptor_class`.

    Attributes:
        unsafe_extern_functions: Add functions that workflow interceptors may call; they run outside of the guard.
    """

    unsafe_extern_functions: MutableMapping[str, Callable[..., Any]] = field(
        default_factory=dict[str, Callable[..., Any]]
    )


class Interceptor:
    """Base of what a worker takes as `interceptors`; the first in the list is the outermost."""

    def intercept_activity(
        self,
        next: ActivityInboundInterceptor,
    ) -> ActivityInboundInterceptor:
        """Wrap the calls of activities; by default they are left as they are."""
        return next

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,
    ) -> type[WorkflowInboundInterceptor] | None:
        """Give the class that wraps workflows, made once for each run; None for none."""
        return None
