"""Counters, gauges and histograms, and their text form.

Owns: the three kinds, and the exposition format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/). Never: what is measured.

How it works: everything belongs to one event loop, so a measurement is a dictionary update without a lock, which is why
this is not a library that has to serve every kind of program. Labels may come from users (task queues, types), so a
metric keeps at most `SERIES_MAX` of them; what comes after that is counted under ``other``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, final

SERIES_MAX: Final = 500
"""Series of one metric: what a server of metrics likes to keep, and far more than a store usually has task queues."""

OTHER: Final = "other"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
COUNTS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0)

Labels = tuple[str, ...]


class _Metric:
    """What the kinds have in common."""

    kind = ""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)

    def lines(self) -> Iterator[str]:
        """The text form."""
        yield f"# HELP {self.name} {_escape_help(self.text)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        raise NotImplementedError

    def _sample(self, values: Labels, number: float, suffix: str = "", more: tuple[str, str] | None = None) -> str:
        pairs = [*zip(self.labels, values, strict=True), *([more] if more is not None else [])]
        shown = ",".join(f'{name}="{_escape_label(value)}"' for name, value in pairs)
        return (
            f"{self.name}{suffix}{{{shown}}} {_number(number)}" if shown else f"{self.name}{suffix} {_number(number)}"
        )


@final
class Counter(_Metric):
    """Something that only grows."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *values: str, by: float = 1.0) -> None:
        """Count."""
        try:
            self._values[values] += by
        except KeyError:
            known = _bounded(values, len(self._values))
            self._values[known] = self._values.get(known, 0.0) + by

    def value(self, *values: str) -> float:
        """How much so far."""
        return self._values.get(values, 0.0)

    def _samples(self) -> Iterator[str]:
        for values, number in self._values.items():
            yield self._sample(values, number)


@final
class Gauge(_Metric):
    """Something that goes up and down; set anew for each answer."""

    kind = "gauge"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._values: dict[Labels, float] = {}

    def clear(self) -> None:
        """Forget all series, before they are set anew."""
        self._values.clear()

    def set(self, number: float, *values: str) -> None:
        """Say how much it is."""
        known = values if values in self._values else _bounded(values, len(self._values))
        self._values[known] = number

    def _samples(self) -> Iterator[str]:
        for values, number in self._values.items():
            yield self._sample(values, number)


@final
class Series:
    """One series of a histogram; made by it."""

    __slots__ = ("_bounds", "_values")

    def __init__(self, bounds: tuple[float, ...], values: list[float]) -> None:
        self._bounds = bounds
        self._values = values

    def observe(self, number: float) -> None:
        """Take one measurement in."""
        values = self._values
        values[bisect_left(self._bounds, number)] += 1
        values[-1] += number


@final
class Histogram(_Metric):
    """How often something was how much."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._values: dict[Labels, list[float]] = {}
        """For each series: the counts of the buckets, then that of what is above all, then the sum."""

    def observe(self, number: float, *values: str) -> None:
        """Take one measurement in."""
        found = self._values.get(values)
        if found is None:
            found = self._found(values)
        found[bisect_left(self._bounds, number)] += 1
        found[-1] += number

    def series(self, *values: str) -> Series:
        """One series, for whoever measures it again and again; it is shown from now on."""
        return Series(self._bounds, self._found(values))

    def _found(self, values: Labels) -> list[float]:
        values = values if values in self._values else _bounded(values, len(self._values))
        return self._values.setdefault(values, [0.0] * (len(self._bounds) + 2))

    def count(self, *values: str) -> int:
        """How many measurements of a series."""
        return int(sum(self._values.get(values, (0.0,))[:-1]))

    def _samples(self) -> Iterator[str]:
        for values, found in self._values.items():
            total = 0.0
            for bound, count in zip((*self._bounds, float("inf")), found[:-1], strict=True):
                total += count
                yield self._sample(
                    values, total, "_bucket", ("le", "+Inf" if bound == float("inf") else _number(bound))
                )
            yield self._sample(values, found[-1], "_sum")
            yield self._sample(values, total, "_count")


def render(metrics: Sequence[_Metric]) -> str:
    """All of them as one text."""
    return "\n".join(line for metric in metrics for line in metric.lines()) + "\n"


Metric = Counter | Gauge | Histogram


def _bounded(values: Labels, count: int) -> Labels:
    return values if count < SERIES_MAX else (OTHER,) * len(values)


def _number(number: float) -> str:
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
