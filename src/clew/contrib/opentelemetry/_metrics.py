"""The meter of workflows and activities, recording with OpenTelemetry.

Owns: the way from Clew's instruments to those of OpenTelemetry. Never: what is measured.

How it works: durations are recorded in seconds as floating numbers, with the unit ``s``, as OpenTelemetry's conventions
ask for. An instrument is made once for a name; OpenTelemetry itself warns of two with different units.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, final

import opentelemetry.metrics as metrics
from opentelemetry.metrics import Meter

from clew import workflow
from clew.common import (
    MetricAttributes,
    MetricCounter,
    MetricGauge,
    MetricGaugeFloat,
    MetricHistogram,
    MetricHistogramFloat,
    MetricHistogramTimedelta,
    MetricMeter,
)

_SECONDS: Final = "s"


@final
class OpenTelemetryMeter(MetricMeter):
    """Records with OpenTelemetry.

    Args:
        meter: Of the program; the global meter of this package when not given.
        attributes: Go with everything that is recorded.
    """

    def __init__(self, meter: Meter | None = None, attributes: MetricAttributes | None = None) -> None:
        self._meter = meter if meter is not None else metrics.get_meter("clew")
        self._attributes = dict(attributes or {})

    def create_counter(self, name: str, description: str | None = None, unit: str | None = None) -> MetricCounter:
        """Make a counter."""
        return _Counter(self._meter.create_counter(name, unit or "", description or ""), self._attributes)

    def create_histogram(self, name: str, description: str | None = None, unit: str | None = None) -> MetricHistogram:
        """Make a histogram of whole numbers."""
        return _Histogram(self._meter.create_histogram(name, unit or "", description or ""), self._attributes)

    def create_histogram_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramFloat:
        """Make a histogram of numbers."""
        return _HistogramFloat(self._meter.create_histogram(name, unit or "", description or ""), self._attributes)

    def create_histogram_timedelta(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricHistogramTimedelta:
        """Make a histogram of durations."""
        return _HistogramTimedelta(
            self._meter.create_histogram(name, unit or _SECONDS, description or ""), self._attributes
        )

    def create_gauge(self, name: str, description: str | None = None, unit: str | None = None) -> MetricGauge:
        """Make a gauge of whole numbers."""
        return _Gauge(self._meter.create_gauge(name, unit or "", description or ""), self._attributes)

    def create_gauge_float(
        self, name: str, description: str | None = None, unit: str | None = None
    ) -> MetricGaugeFloat:
        """Make a gauge of numbers."""
        return _GaugeFloat(self._meter.create_gauge(name, unit or "", description or ""), self._attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricMeter:
        """Give a meter whose instruments have more attributes."""
        return OpenTelemetryMeter(self._meter, {**self._attributes, **additional_attributes})


class _Instrument:
    """An instrument of OpenTelemetry with the attributes that go with it."""

    def __init__(self, instrument: Any, attributes: MetricAttributes) -> None:
        self._instrument = instrument
        self._attributes = attributes

    def _call(self, method: str, value: float, more: MetricAttributes | None) -> None:
        # An SDK reads the clock, which workflow code must not; what it reads never comes back to the workflow.
        with workflow.unsafe.sandbox_unrestricted():
            getattr(self._instrument, method)(value, self._with(more))

    def _with(self, more: MetricAttributes | None) -> MetricAttributes:
        return {**self._attributes, **more} if more else self._attributes


class _Counter(_Instrument, MetricCounter):
    def add(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("add", value, additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricCounter:
        return _Counter(self._instrument, self._with(additional_attributes))


class _Histogram(_Instrument, MetricHistogram):
    def record(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("record", value, additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogram:
        return _Histogram(self._instrument, self._with(additional_attributes))


class _HistogramFloat(_Instrument, MetricHistogramFloat):
    def record(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("record", value, additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramFloat:
        return _HistogramFloat(self._instrument, self._with(additional_attributes))


class _HistogramTimedelta(_Instrument, MetricHistogramTimedelta):
    def record(self, value: timedelta, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("record", value.total_seconds(), additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricHistogramTimedelta:
        return _HistogramTimedelta(self._instrument, self._with(additional_attributes))


class _Gauge(_Instrument, MetricGauge):
    def set(self, value: int, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("set", value, additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGauge:
        return _Gauge(self._instrument, self._with(additional_attributes))


class _GaugeFloat(_Instrument, MetricGaugeFloat):
    def set(self, value: float, additional_attributes: MetricAttributes | None = None) -> None:
        self._call("set", value, additional_attributes)

    def with_additional_attributes(self, additional_attributes: MetricAttributes) -> MetricGaugeFloat:
        return _GaugeFloat(self._instrument, self._with(additional_attributes))
