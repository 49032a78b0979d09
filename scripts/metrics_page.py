"""The reference page of metrics, made from the metrics themselves."""

from __future__ import annotations

from clew.server.metrics.metrics import Metrics
from clew.server.metrics.registry import Metric

INTRODUCTION = """\
A server answers `/metrics` in the text format of Prometheus (0.0.4). Histograms have the usual `_bucket`, `_sum` and
`_count`; times are in seconds. Labels that users choose (task queues, types of errors) are bounded: beyond 500
series of one metric, the rest is counted under `other`.

In the repository, `deploy/prometheus/alerts.yml` has alert rules, `deploy/prometheus/prometheus.yml` a configuration
that scrapes two nodes, and `deploy/grafana/clew.json` a dashboard. Backlogs are those of the whole store, on every
node; workers are those attached to the node that answers."""


def metrics_lines() -> list[str]:
    """The page, line by line."""
    lines = ["# Metrics", "", *INTRODUCTION.splitlines(), "", "| metric | kind | labels | |", "|---|---|---|---|"]
    for metric in vars(Metrics()).values():
        if isinstance(metric, Metric):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |")
    return lines
