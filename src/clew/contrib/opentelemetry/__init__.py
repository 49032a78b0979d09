"""Traces and metrics with OpenTelemetry (extra ``otel``).

::

    client = await Client.connect("sqlite:claims.db", interceptors=[TracingInterceptor()])

Workers made with this client trace, too. Spans of your own in workflow code: `workflow.completed_span` of this package.

Owns: the public names. Never: an SDK or exporter; those are the program's choice.
"""

from __future__ import annotations

try:
    import opentelemetry.trace as _trace
except ImportError as missing:
    raise ImportError(
        "clew.contrib.opentelemetry needs the package 'opentelemetry-api'. Install it with: pip install 'clew[otel]'"
    ) from missing

from clew.contrib.opentelemetry._interceptor import TracingInterceptor
from clew.contrib.opentelemetry._metrics import OpenTelemetryMeter
from clew.contrib.opentelemetry._workflow import TracingWorkflowInboundInterceptor

del _trace

__all__ = ["OpenTelemetryMeter", "TracingInterceptor", "TracingWorkflowInboundInterceptor"]
