"""Charts of lines and areas over time, with the data for the tooltip in their attributes.

The SVG holds shapes only and is stretched to the width of the window; the labels of the axes are HTML beside
it. Labels inside a scaled SVG are unreadable on a phone, where a chart would be 50 pixels high.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

import msgspec
from attrs import frozen

#: Size of the drawing in units of the SVG; the style sheet sets the size on the page.
WIDTH, HEIGHT = 1000, 200
Unit = Literal["", "ms"]
Point = tuple[float, float]


@frozen(kw_only=True)
class ChartLine:
    """A line or an area of a chart: the sum of some columns."""

    label: str
    #: Class of the style sheet.
    colour: str
    #: Columns of the report's series; the line shows their sum.
    names: tuple[str, ...]
    is_area: bool = False


@frozen(kw_only=True)
class Chart:
    """The definition of a chart. Areas are stacked in order, below the lines.

    A logarithmic chart has no areas.
    """

    title: str
    unit: Unit
    lines: tuple[ChartLine, ...]
    is_logarithmic: bool = False


def _percentiles(measure: str) -> tuple[ChartLine, ...]:
    colours = (("p99", "red"), ("p95", "orange"), ("p50", "green"))
    return tuple(
        ChartLine(label=label, colour=colour, names=(f"{measure}_{label}_ms",)) for label, colour in colours
    )


#: The charts of a queue, in their order on the page.
CHARTS: Final = (
    Chart(
        title="Attempts that ended, and jobs that arrived, per minute",
        unit="",
        lines=(
            ChartLine(label="completed", colour="green", names=("completed",), is_area=True),
            ChartLine(label="retried", colour="orange", names=("retried",), is_area=True),
            ChartLine(label="failed", colour="red", names=("failed",), is_area=True),
            ChartLine(
                label="stalled, timed out", colour="violet", names=("stalled", "timed_out"), is_area=True
            ),
            ChartLine(
                label="cancelled, released", colour="grey", names=("cancelled", "released"), is_area=True
            ),
            ChartLine(label="arrivals", colour="blue", names=("arrivals",)),
        ),
    ),
    Chart(
        title="Backlog: jobs due and not claimed as a minute ended",
        unit="",
        lines=(ChartLine(label="due", colour="orange", names=("backlog_due",), is_area=True),),
    ),
    Chart(title="Wait, from due to claimed", unit="ms", is_logarithmic=True, lines=_percentiles("wait")),
    Chart(title="Run, from claimed to ended", unit="ms", is_logarithmic=True, lines=_percentiles("run")),
    Chart(
        title="Active runs, on average and at most at once",
        unit="",
        lines=(
            ChartLine(label="on average", colour="blue", names=("active",), is_area=True),
            ChartLine(label="at most", colour="violet", names=("active_peak",)),
        ),
    ),
)


_HOUR: Final = 3_600_000
#: Ticks of a logarithmic axis: round lengths of time, ms.
_DURATION_TICKS: Final = (
    1, 10, 100, 1_000, 10_000, 60_000, 600_000, _HOUR, 10 * _HOUR, 100 * _HOUR, 1_000 * _HOUR, 2**53,
)  # fmt: skip


@frozen
class Scale:
    """The vertical axis of a chart."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_logarithmic: bool
    #: True if some values are below `low`, as 0 is on a logarithmic axis. They are drawn at `low`.
    has_less: bool = False

    def y(self, value: float) -> float:
        """Return the y coordinate of a value, measured from the top of the chart."""
        if self.is_logarithmic:
            part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return HEIGHT - part * HEIGHT


def draw_chart(
    chart: Chart,
    place: tuple[str, str],
    series: dict[str, list[Any]],
    outages: Iterable[tuple[int, int]],
    zone: ZoneInfo,
) -> str:
    """Return a chart with its title, axes and key. `place` is its queue and range."""
    queue, name = place
    at, step = series["at"], series["step"][0]
    begin, end = at[0], at[-1] + step
    sums = [_sum_columns(series, chart_line.names) for chart_line in chart.lines]
    scale = _choose_scale(chart, sums)
    across = _time_to_x(begin, end)
    parts = [*_draw_grid(scale), *_draw_outages(outages, begin, end)]
    parts += _draw_lines(chart, sums, [across(moment + step / 2) for moment in at], scale)
    encoded = msgspec.json.encode(
        [
            {"label": chart_line.label, "colour": chart_line.colour, "names": chart_line.names}
            for chart_line in chart.lines
        ]
    )
    return (
        f'<h3>{escape(chart.title)}</h3><div class="chart"><div class="y">{_label_values(scale, chart.unit)}'
        f'</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(chart.title)}" data-queue="{escape(queue)}" data-range="{name}" '
        f'data-unit="{chart.unit}" '
        f'data-lines="{escape(encoded.decode())}">{"".join(parts)}'
        f'<line class="cursor" y1="0" y2="{HEIGHT}"/></svg>'
        f'<div class="x">{_label_times(begin, end, zone)}</div></div>{_draw_legend(chart.lines)}'
    )


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Return a small chart of some values, without axes and texts."""
    most = max((value or 0 for value in values), default=0) or 1
    across = [index * 200 / max(1, len(values) - 1) for index in range(len(values))]
    edge = [(x, 27 - 26 * (value or 0) / most) for x, value in zip(across, values, strict=True)]
    path = f"M0,28L{_format_points(edge)}L200,28Z"
    shape = 'viewBox="0 0 200 28" preserveAspectRatio="none"'
    return f'<svg class="sparkline" {shape} aria-hidden="true"><path class="area blue" d="{path}"/></svg>'


def _sum_columns(series: dict[str, list[Any]], names: Sequence[str]) -> list[float | None]:
    if len(names) == 1:
        return series[names[0]]
    return [sum(value or 0 for value in values) for values in zip(*(series[n] for n in names), strict=True)]


def _draw_lines(
    chart: Chart, sums: Sequence[Sequence[float | None]], middle: Sequence[float], scale: Scale
) -> Iterable[str]:
    below = [0.0] * len(middle)
    for chart_line, values in zip(chart.lines, sums, strict=True):
        if chart_line.is_area:
            above = [base + (value or 0) for base, value in zip(below, values, strict=True)]
            edge = [(x, scale.y(value)) for x, value in zip(middle, above, strict=True)]
            back = [(x, scale.y(value)) for x, value in zip(middle, below, strict=True)]
            below = above
            if any(values):
                path = f"M{_format_points(edge)}L{_format_points(back[::-1])}Z"
                yield f'<path class="area {chart_line.colour}" d="{path}"/>'
        else:
            yield f'<path class="line {chart_line.colour}" d="{_line_with_gaps(middle, values, scale)}"/>'


def _line_with_gaps(middle: Sequence[float], values: Sequence[float | None], scale: Scale) -> str:
    """Return a path that is interrupted at missing values. A single point is drawn as a short dash."""
    runs: list[list[Point]] = [[]]
    for x, value in zip(middle, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((x, scale.y(value)))
    dashed = ([(run[0][0] - 0.5, run[0][1]), *run] if len(run) == 1 else run for run in runs if run)
    return "".join(f"M{_format_points(run)}" for run in dashed)


def _format_points(points: Iterable[Point]) -> str:
    return "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _choose_scale(chart: Chart, sums: Sequence[Sequence[float | None]]) -> Scale:
    if chart.is_logarithmic:
        values = [value for line in sums for value in line if value]
        first = bisect_right(_DURATION_TICKS, max(1, min(values, default=1))) - 1
        last = max(first + 1, bisect_left(_DURATION_TICKS, max(values, default=10)))
        ticks = _DURATION_TICKS[first : last + 1]
        has_less = any(value is not None and value < ticks[0] for line in sums for value in line)
        return Scale(ticks[0], ticks[-1], ticks, is_logarithmic=True, has_less=has_less)
    layers = [line for chart_line, line in zip(chart.lines, sums, strict=True) if chart_line.is_area]
    stacked = (sum(value or 0 for value in values) for values in zip(*layers, strict=True))
    lines = (value or 0 for line in sums for value in line)
    most = max(1e-9, *stacked, *lines) if layers else max(1e-9, *lines)
    step = _round_step(most / 4)
    count = math.ceil(most / step)
    return Scale(0, count * step, tuple(n * step for n in range(count + 1)), is_logarithmic=False)


def _round_step(rough: float) -> float:
    """Return the smallest number that is at least `rough` and is 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough)


def _draw_grid(scale: Scale) -> Iterable[str]:
    for tick in scale.ticks:
        y = f"{scale.y(tick):.1f}"
        yield f'<line class="axis" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'


def _draw_outages(outages: Iterable[tuple[int, int]], begin: int, end: int) -> Iterable[str]:
    across = _time_to_x(begin, end)
    for since, until in outages:
        if since < end and until > begin:
            x, right = across(max(since, begin)), across(min(until, end))
            yield f'<rect class="outage" x="{x:.1f}" y="0" width="{right - x:.1f}" height="{HEIGHT}"/>'


def _label_values(scale: Scale, unit: Unit) -> str:
    labels = []
    for tick in scale.ticks:
        label = format_ms(tick) if unit == "ms" else f"{tick:,.10g}"
        if scale.has_less and tick == scale.low:
            label = f"≤ {label}"
        labels.append(f'<span style="top:{100 * scale.y(tick) / HEIGHT:.1f}%">{label}</span>')
    return "".join(labels)


def _time_to_x(begin: int, end: int) -> Callable[[float], float]:
    return lambda at: (at - begin) / (end - begin) * WIDTH


#: Distances between the ticks of a time axis, ms.
_TIME_STEPS: Final = tuple(
    round(hours * _HOUR) for hours in (1 / 12, 1 / 6, 0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 168, 720, 2160, 8760)
)
#: Share of the time axis behind which a centred label would leave the chart.
_LAST_CENTRED: Final = 0.95


def _label_times(begin: int, end: int, zone: ZoneInfo) -> str:
    step = next((step for step in _TIME_STEPS if (end - begin) / step <= 8), _TIME_STEPS[-1])
    form = "%H:%M" if step < 24 * _HOUR else "%d %b"
    labels = []
    # The ticks are round times of the zone, by its offset at the begin.
    offset = datetime.fromtimestamp(begin / 1000, zone).utcoffset() or timedelta()
    local = begin + offset // timedelta(milliseconds=1)
    for at in range(begin + -local % step, end, step):
        label = datetime.fromtimestamp(at / 1000, zone).strftime(form)
        share = (at - begin) / (end - begin)
        place = f"left:{100 * share:.1f}%" if share <= _LAST_CENTRED else "right:0;transform:none"
        labels.append(f'<span style="{place}">{label}</span>')
    return "".join(labels)


def _draw_legend(lines: Iterable[ChartLine]) -> str:
    entries = (
        f'<span class="{chart_line.colour}"><i></i>{escape(chart_line.label)}</span>' for chart_line in lines
    )
    return f'<div class="key">{"".join(entries)}</div>'


def format_ms(ms: float | None) -> str:
    """Return a length of time with its unit, such as `1.5 s`."""
    if ms is None:
        return "none"
    for limit, part, unit in ((1000, 1, "ms"), (60_000, 1000, "s"), (_HOUR, 60_000, "min")):
        if ms < limit:
            return f"{round(ms / part, 1):g} {unit}"
    return f"{round(ms / _HOUR, 1):g} h" if ms < 72 * _HOUR else f"{round(ms / 24 / _HOUR, 1):g} d"
