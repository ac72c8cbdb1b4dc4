"""Draws the figures as SVG, by Vega-Lite without a browser or a network.

Owns the design of each plot; colors are variables of the style sheet, so the same drawing fits the
light and the dark theme, and each plot is drawn wide and narrow, for phones. It must never know
Spark or the page. Invariant: every mark that shows a figure has it as text in its ``aria-label``,
for screen readers and for the page's tooltips. Kafka has no counterpart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import vl_convert

from minibroker.broker.quotas.types import BY_KEY
from minibroker.pipeline.report import formats
from minibroker.pipeline.report.figures import (
    HEAT_MAX,
    REST,
    Figures,
    Fit,
    Outcome,
    Point,
    ReportedClient,
)

Spec = dict[str, Any]

WIDE: Final = 1000
NARROW: Final = 390
"""Widths in pixels for which each plot is drawn."""

HEAT_BOUNDS: Final = (1, 6, 20, 60)
"""Seconds of throttle per minute at which the color of the map changes. Sixty are one connection
that is throttled permanently.
"""

FIT_MOST: Final = 2.0
"""Usage beyond this multiple of the recommended quota is drawn at the edge."""

SHORT: Final = {key: kind.row.short_name for key, kind in BY_KEY.items()}
"""Short names of quotas."""

REST_LABEL: Final = "all others"

_CONFIG: Final[Spec] = {
    "font": "Inter, system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "labelFontSize": 12,
        "labelFont": "Inter, system-ui, sans-serif",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "title": None,
    },
    "axisY": {"domain": False, "ticks": False, "labelPadding": 8, "minExtent": 44},
}


_TIMES: Final[Spec] = {
    "year": "%Y", "month": "%b %Y", "date": "%b %d", "day": "%b %d", "week": "%b %d",
    "hours": "%H:%M", "minutes": "%H:%M", "seconds": "%H:%M:%S", "milliseconds": "%H:%M:%S",
}  # fmt: skip

_LABELS: Final = 190
"""Pixels left of a plot for the names of entities."""


class Drawing(NamedTuple):
    """One plot in both widths."""

    wide: str
    narrow: str


def series_colours(clients: Sequence[ReportedClient]) -> dict[ReportedClient, str]:
    """The color of each of ``clients``; the rest is grey."""
    return {
        who: "var(--rest)" if who == REST else f"var(--s{n})" for n, who in enumerate(clients, 1)
    }


def series(figures: Figures) -> list[ReportedClient]:
    """The entities with a color, in the order of the table; the rest, if any, comes last."""
    found = {point.who for point in figures.points}
    order = [use.who for use in figures.entities if use.who in found and use.who != REST]
    return [*order, REST] if REST in found else order


def names(
    clients: Sequence[ReportedClient], most: int = formats.LABEL_MAX
) -> dict[ReportedClient, str]:
    """Distinct labels for ``clients``."""
    found = formats.labels(
        [REST_LABEL if who == REST else formats.party(who.user, who.client_id) for who in clients],
        most,
    )
    return dict(zip(clients, found, strict=True))


def over_time(
    figures: Figures, value: Callable[[Point], float], unit: str, title: str
) -> tuple[str, Drawing]:
    """A stacked plot of a figure per second of each entity; and the unit in which it is drawn."""
    order = series(figures)
    label = names(order)
    known = {
        (point.start_s, point.who): value(point) / figures.seen_s(point.start_s)
        for point in figures.points
    }
    starts = figures.starts_s
    rows = {start: [known.get((start, who), 0.0) for who in order] for start in starts}
    by, prefix = formats.scale(max((sum(row) for row in rows.values()), default=0))
    values = [
        {"t": at * 1000, "who": label[who], "n": n, "v": row[n] / by}
        for start, row in rows.items()
        for n, who in enumerate(order)
        for at in ((start, start + figures.step_s) if start == starts[-1] else (start,))
    ]
    hovers = [
        _hover(
            figures,
            start,
            [f"{formats.amount(sum(row), unit)} in total", *_parts(row, label, unit)],
        )
        for start, row in rows.items()
    ]
    colours = series_colours(order)
    layer = {
        "data": {"values": values},
        "mark": {"type": "area", "interpolate": "step-after", "aria": False, "opacity": 0.85},
        "encoding": {
            "x": _time(),
            "y": {"field": "v", "type": "quantitative", "stack": "zero", "axis": {"tickCount": 4}},
            "order": {"field": "n", "type": "quantitative"},
            "color": {
                "field": "who",
                "type": "nominal",
                "scale": {"domain": list(label.values()), "range": list(colours.values())},
                "legend": None,
            },
        },
    }
    return f"{prefix}{unit}", _both([layer, _pointed_at(hovers)], title, 150)


def _parts(row: Sequence[float], label: dict[ReportedClient, str], unit: str) -> list[str]:
    parts = [(value, name) for value, name in zip(row, label.values(), strict=True) if value]
    return [f"{name}: {formats.amount(value, unit)}" for value, name in parts]


def lines(
    figures: Figures,
    rows: Mapping[int, Sequence[float | None]],
    label: Sequence[str],
    colours: Sequence[str],
    *,
    shown: Callable[[float], str],
    title: str,
    log: bool = False,
) -> Drawing:
    """A line for each of ``label``; a bucket without a figure is a gap."""
    starts = figures.starts_s
    values = [
        {"t": at * 1000, "what": name, "v": value}
        for start in starts
        for name, value in zip(label, rows.get(start, [None] * len(label)), strict=True)
        for at in ((start,) if start + figures.step_s in rows else (start, start + figures.step_s))
    ]
    hover = [
        _hover(
            figures,
            start,
            [f"{name}: {shown(v)}" for name, v in zip(label, row, strict=True) if v is not None],
        )
        for start, row in rows.items()
    ]
    y: Spec = {"field": "v", "type": "quantitative", "axis": {"tickCount": 4, "format": "~s"}}
    if log:
        y["scale"] = {"type": "log", "nice": True}
        every = (each for row in rows.values() for each in row)
        y["axis"] = {"values": _decades(every), "format": "~g"}
    layer = {
        "data": {"values": values},
        "mark": {"type": "line", "interpolate": "step-after", "aria": False, "strokeWidth": 2},
        "encoding": {
            "x": _time(),
            "y": y,
            "color": {
                "field": "what",
                "type": "nominal",
                "scale": {"domain": list(label), "range": list(colours)},
                "legend": None,
            },
        },
    }
    return _both([layer, _pointed_at(hover)], title, 150)


def _decades(values: Iterable[float | None]) -> list[float]:
    """Powers of ten around ``values``, the ticks of a logarithmic axis."""
    known = [each for each in values if each]
    if not known:
        return []
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return [10.0**power for power in range(first, last + 1)]


def heat(figures: Figures) -> Drawing:
    """Throttle map: entity by bucket, with seconds of throttle per minute as color."""
    totals: dict[ReportedClient, float] = {}
    for cell in figures.heat:
        totals[cell.who] = totals.get(cell.who, 0) + cell.throttle_ms
    order = sorted(totals, key=lambda who: (who == REST, -totals[who]))
    label = names(order)
    values = [
        {
            "t": cell.start_s * 1000,
            "end": (cell.start_s + figures.step_s) * 1000,
            "who": label[cell.who],
            "v": cell.throttle_ms / 1000 * 60 / figures.seen_s(cell.start_s),
            "text": f"{formats.moment(cell.start_s * 1_000_000)} · {label[cell.who]}: "
            f"{formats.many(cell.throttled, 'request')} throttled, "
            f"{formats.duration(cell.throttle_ms)} in this interval",
        }
        for cell in figures.heat
    ]
    layer = {
        "data": {"values": values},
        "mark": {"type": "rect"},
        "encoding": {
            "x": _time(figures),
            "x2": {"field": "end"},
            "y": _entity_axis(list(label.values())),
            "color": {
                "field": "v",
                "type": "quantitative",
                "scale": {
                    "type": "threshold",
                    "domain": list(HEAT_BOUNDS),
                    "range": [f"var(--h{n})" for n in range(1, len(HEAT_BOUNDS) + 2)],
                },
                "legend": None,
            },
            "description": {"field": "text"},
        },
    }
    return _both([layer], "Throttle by entity and time", 22 * len(order) + 26)


def fits(found: Sequence[Fit]) -> Drawing:
    """Usage as a share of the recommended quota: median, p99, maximum, and quota in force."""
    label = formats.labels([f"{fit.entity} · {SHORT.get(fit.key, fit.key)}" for fit in found])
    values = [
        {
            "who": name,
            "p50": min(fit.p50 / fit.recommended, FIT_MOST),
            "p99": min(fit.p99 / fit.recommended, FIT_MOST),
            "most": min(fit.most / fit.recommended, FIT_MOST),
            "now": None if fit.in_force is None else min(fit.in_force / fit.recommended, FIT_MOST),
            "text": f"{name}: median {formats.share(fit.p50 / fit.recommended)}, 99th percentile "
            f"{formats.share(fit.p99 / fit.recommended)}, most "
            f"{formats.share(fit.most / fit.recommended)} of the recommended quota",
        }
        for name, fit in zip(label, found, strict=True)
        if fit.recommended > 0
    ]
    y = _entity_axis(label)
    x: Spec = {"type": "quantitative", "axis": {"format": "%", "tickCount": 6}}
    x["scale"] = {"domainMin": 0}

    def layer(mark: Spec, field: str, **more: Any) -> Spec:
        return {"mark": mark, "encoding": {"y": y, "x": {**x, "field": field}, **more}}

    described = {"description": {"field": "text"}}
    silent = {"aria": False}
    return _both(
        [
            layer({"type": "bar", "color": "var(--quiet)", "height": 12}, "p99", **described),
            layer({"type": "bar", "color": "var(--busy)", "height": 12, **silent}, "p50"),
            layer({"type": "tick", "color": "var(--ink)", "thickness": 2, **silent}, "most"),
            layer(
                {
                    "type": "point",
                    "color": "var(--waiting)",
                    "size": 60,
                    "strokeWidth": 2,
                    **silent,
                },
                "now",
            ),
            {
                "mark": {"type": "rule", "color": "var(--accent)", "strokeWidth": 2, **silent},
                "encoding": {"x": {**x, "datum": 1}},
            },
        ],
        "Usage as a share of the recommended quota",
        22 * len(values) + 26,
        values,
    )


def proposals(
    outcomes: Sequence[Outcome], order: Sequence[str], label: Sequence[str]
) -> tuple[str, Drawing]:
    """Throttle time of each entity under each proposal, largest first; and the unit."""
    worst: dict[str, float] = {}
    for outcome in outcomes:
        worst[outcome.entity] = max(worst.get(outcome.entity, 0.0), outcome.throttle_ms)
    entities = sorted((who for who, most in worst.items() if most), key=lambda who: -worst[who])
    entities = entities[:HEAT_MAX]
    shown = dict(zip(entities, formats.labels(entities), strict=True))
    called = dict(zip(order, label, strict=True))
    most_s = max((worst[who] for who in entities), default=0) / 1000
    by_s, unit = (3600, "h") if most_s > 7200 else (60, "min") if most_s > 120 else (1, "s")
    values = [
        {
            "who": shown[outcome.entity],
            "proposal": called[outcome.proposal],
            "v": outcome.throttle_ms / 1000 / by_s,
            "text": f"{shown[outcome.entity]} under {called[outcome.proposal]}: "
            f"{formats.count(outcome.throttled)} of {formats.count(outcome.requests)} requests, "
            f"{formats.duration(outcome.throttle_ms)} in total, "
            f"{formats.duration(outcome.longest_ms)} at the longest",
        }
        for outcome in outcomes
        if outcome.entity in shown
    ]
    layer = {
        "data": {"values": values},
        "mark": {"type": "bar"},
        "encoding": {
            "y": _entity_axis(list(shown.values())),
            "yOffset": {"field": "proposal", "type": "nominal", "sort": list(label)},
            "x": {"field": "v", "type": "quantitative", "axis": {"tickCount": 6}},
            "color": {
                "field": "proposal",
                "type": "nominal",
                "scale": {
                    "domain": list(label),
                    "range": [f"var(--s{n})" for n in range(1, len(label) + 1)],
                },
                "legend": None,
            },
            "description": {"field": "text"},
        },
    }
    height = (10 + 9 * len(order)) * len(entities) + 26
    return unit, _both([layer], "Throttle under each proposal", height)


def _entity_axis(order: list[str]) -> Spec:
    axis = {"labelLimit": 0, "labelColor": "var(--ink)", "minExtent": _LABELS}
    return {"field": "who", "type": "nominal", "sort": order, "axis": axis}


def _time(figures: Figures | None = None) -> Spec:
    scale: Spec = {"type": "utc", "nice": False}
    if figures is not None:
        starts = figures.starts_s
        scale["domain"] = [starts[0] * 1000, (starts[-1] + figures.step_s) * 1000]
    axis = {"grid": False, "labelOverlap": "parity", "labelSeparation": 8, "format": _TIMES}
    return {"field": "t", "type": "temporal", "scale": scale, "axis": axis}


def _hover(figures: Figures, start: int, parts: Sequence[str]) -> Spec:
    text = f"{formats.moment(start * 1_000_000)} · " + " · ".join(parts)
    return {"t": start * 1000, "end": (start + figures.step_s) * 1000, "text": text}


def _pointed_at(rows: Sequence[Spec]) -> Spec:
    """Transparent columns over a plot, shown when the pointer is on one."""
    return {
        "name": "pointed",
        "data": {"values": list(rows)},
        "mark": {"type": "rect", "opacity": 0, "color": "var(--ink)"},
        "encoding": {
            "x": _time(),
            "x2": {"field": "end"},
            "y": {"value": 0},
            "y2": {"value": "height"},
            "description": {"field": "text"},
        },
    }


def _both(
    layers: Sequence[Spec], title: str, height: int, values: Sequence[Spec] | None = None
) -> Drawing:
    return Drawing(*(_drawn(layers, title, width, height, values) for width in (WIDE, NARROW)))


def _drawn(
    layers: Sequence[Spec], title: str, width: int, height: int, values: Sequence[Spec] | None
) -> str:
    narrow = width == NARROW
    axis = {
        **_CONFIG["axis"],
        **({"labelLimit": 130, "tickCount": 3} if narrow else {"tickCount": 8}),
    }
    spec: Spec = {
        "width": width,
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 4,
        "background": "transparent",
        "description": title,
        "config": {**_CONFIG, "axis": axis},
        "layer": list(layers),
    }
    if values is not None:
        spec["data"] = {"values": list(values)}
    svg: str = vl_convert.vegalite_to_svg(spec, show_warnings=False)
    return _ROOT.sub(lambda found: _root(found, title, narrow=narrow), svg, count=1)


_ROOT: Final = re.compile(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>')


def _root(found: re.Match[str], title: str, *, narrow: bool) -> str:
    """The root element, sized by the page and labelled for screen readers."""
    kind = "narrow" if narrow else "wide"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="group" '
        f'aria-label="{title}" {found[1]}>'
    )
