"""Metrics that activity and workflow code may record; users meet these as ``clew.common``.

Owns: the abstract meter with its instruments, the meter that records nothing, and what clients and workers both record
of their calls.
Never: an exporter (``telemetry`` has those).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TypeAlias, final

MetricAttributes: TypeAlias = Mapping[str, str | int | float | bool]
"""Names and values that split a metric into series."""


class MetricCounter(ABC):
    """Counts up."""

    @abstractmethod
    def add(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        """Add `value`, which is not negative."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricCounter:
        """Give the same counter with more attributes."""


class MetricHistogram(ABC):
    """Collects the distribution of whole numbers."""

    @abstractmethod
    def record(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        """Record one observation, which is not negative."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogram:
        """Give the same histogram with more attributes."""


class MetricHistogramFloat(ABC):
    """Collects the distribution of numbers."""

    @abstractmethod
    def record(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        """Record one observation, which is not negative."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramFloat:
        """Give the same histogram with more attributes."""


class MetricHistogramTimedelta(ABC):
    """Collects the distribution of durations."""

    @abstractmethod
    def record(self, value: timedelta, additional_attributes: MetricAttributes | None = None) -> None:
        """Record one duration, which is not negative."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramTimedelta:
        """Give the same histogram with more attributes."""


class MetricGauge(ABC):
    """Shows the latest of whole numbers."""

    @abstractmethod
    def set(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        """Show `value` from now on."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGauge:
        """Give the same gauge with more attributes."""


class MetricGaugeFloat(ABC):
    """Shows the latest of numbers."""

    @abstractmethod
    def set(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        """Show `value` from now on."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGaugeFloat:
        """Give the same gauge with more attributes."""


class MetricMeter(ABC):
    """Makes instruments. Each takes its name, an optional description and an optional unit."""

    noop: MetricMeter
    """Records nothing."""

    @abstractmethod
    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> MetricCounter:
        """Make a counter.

        Args:
            name: Of the metric.
            description: A sentence for those who read the metrics.
            unit: What is counted, such as ``bytes``.
        """

    @abstractmethod
    def create_histogram(self, name: str, description: str | None = None, unit: str | None = None) -> MetricHistogram:
        """Make a histogram of whole numbers; for the arguments see `create_counter`."""

    @abstractmethod
    def create_histogram_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramFloat:
        """Make a histogram of numbers; for the arguments see `create_counter`."""

    @abstractmethod
    def create_histogram_timedelta(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramTimedelta:
        """Make a histogram of durations; for the arguments see `create_counter`."""

    @abstractmethod
    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        """Make a gauge of whole numbers; for the arguments see `create_counter`."""

    @abstractmethod
    def create_gauge_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricGaugeFloat:
        """Make a gauge of numbers; for the arguments see `create_counter`."""

    @abstractmethod
    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricMeter:
        """Give a meter whose instruments have more attributes."""


class _NoopCounter(MetricCounter):
    def add(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricCounter:
        return self


class _NoopHistogram(MetricHistogram):
    def record(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogram:
        return self


class _NoopHistogramFloat(MetricHistogramFloat):
    def record(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramFloat:
        return self


class _NoopHistogramTimedelta(MetricHistogramTimedelta):
    def record(self, value: timedelta, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramTimedelta:
        return self


class _NoopGauge(MetricGauge):
    def set(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGauge:
        return self


class _NoopGaugeFloat(MetricGaugeFloat):
    def set(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        pass

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGaugeFloat:
        return self


class _NoopMeter(MetricMeter):
    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> MetricCounter:
        return _NoopCounter()

    def create_histogram(self, name: str, description: str | None = None, unit: str | None = None) -> MetricHistogram:
        return _NoopHistogram()

    def create_histogram_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramFloat:
        return _NoopHistogramFloat()

    def create_histogram_timedelta(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramTimedelta:
        return _NoopHistogramTimedelta()

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        return _NoopGauge()

    def create_gauge_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricGaugeFloat:
        return _NoopGaugeFloat()

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricMeter:
        return self


MetricMeter.noop = _NoopMeter()


@final
class RequestMetrics:
    """Calls of the service, counted and timed by the names of the published SDKs; for clients and workers.

    A *long* call is one that waits for something to happen, such as the end of a run; counted apart, since its latency
    is no sign of anything.

    Args:
        meter: With the attributes of who calls.
    """

    def __init__(self, meter: MetricMeter) -> None:
        self._counters = {
            name: meter.create_counter(f"clew_{name}", text)
            for name, text in (
                ("request", "calls of the service"),
                ("request_failure", "those that were refused or did not get through"),
                ("long_request", "calls of the service that wait for something to happen"),
                ("long_request_failure", "those that were refused or did not get through"),
            )
        }
        self._latencies = {
            name: meter.create_histogram_timedelta(f"clew_{name}_latency", "until such a call was answered")
            for name in ("request", "long_request")
        }

    def note(self, operation: str, took: timedelta, failure_code: str, *, is_long: bool = False) -> None:
        """A call was answered; with a code when it failed."""
        name, attributes = "long_request" if is_long else "request", {"operation": operation}
        self._counters[name].add(1, attributes)
        if failure_code:
            self._counters[f"{name}_failure"].add(1, {**attributes, "status_code": failure_code})
        self._latencies[name].record(max(took, timedelta(0)), attributes)
