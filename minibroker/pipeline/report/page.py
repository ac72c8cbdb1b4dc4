"""Renders the figures as one self-contained HTML file, section by section.

Owns the grouping of figures, the texts of empty sections, and the types that the template reads; it
must never know Spark or how a plot is drawn. Invariant: a requested section is always present, so a
page without throttles says so explicitly; a sortable cell has its figure in addition to its text.
Client-supplied names remain text, because the template escapes everything that is not marked as
safe, and the page's content security policy allows a browser only to run its one script, and to
fetch nothing. Kafka has no counterpart.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import jinja2
from markupsafe import Markup

from minibroker import __version__
from minibroker.pipeline.quota_amounts import amount
from minibroker.pipeline.report import formats, plots
from minibroker.pipeline.report.figures import REST, Coverage, Figures, ReportedProposal, Use

# Elements ----------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """A single figure in large type."""

    name: str
    value: str
    more: str = ""
    warn: bool = False


class Key(NamedTuple):
    """The meaning of a color."""

    colour: str
    """The name of a style sheet variable, without its dashes."""
    text: str
    shape: str = ""


class Head(NamedTuple):
    """The header of a column."""

    text: str
    sorts: bool = True
    sorted: bool = False


class Cell(NamedTuple):
    """A cell; ``value`` is its sort key, None for text."""

    text: str
    value: float | None = None
    part: float | None = None
    """Length in percent of the bar below the figure."""
    title: str = ""
    colour: str = ""
    wrap: bool = False


class Row(NamedTuple):
    """A row, whose first cell names its subject."""

    cells: tuple[Cell, ...]
    rest: bool = False
    """Remains the last row in any sort order."""


class ReportTable(NamedTuple):
    """A table that can be sorted by clicking a column's header."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[Row, ...]


class Picture(NamedTuple):
    """A plot for the page."""

    title: str
    unit: str
    drawing: plots.Drawing

    @classmethod
    def of(cls, title: str, unit: str, drawing: plots.Drawing) -> Picture:
        """A picture of a drawing, in which names are escaped already."""
        return cls(title, unit, plots.Drawing(*(Markup(svg) for svg in drawing)))  # noqa: S704


@dataclass(frozen=True)
class Section:
    """A part of the page, linked from its top."""

    id: str
    title: str
    notes: tuple[str, ...] = ()
    nothing: str = ""
    """Shown instead of plots and table if there are no figures."""
    keys: tuple[Key, ...] = ()
    plots: tuple[Picture, ...] = ()
    table: ReportTable | None = None


def number(value: float, text: str, part: float | None = None) -> Cell:
    """A cell with a figure; ``part``, from 0 to 1, is drawn as a bar."""
    shown = None if part is None else round(100 * min(max(part, 0.0), 1.0), 1)
    return Cell(text, round(value, 6), shown)


# Sections ----------------------------------------------------------------------------------------

NO_THROTTLES = "No request was throttled: no client exceeded a quota, or none is set."


def sections(figures: Figures) -> list[Section]:
    """All sections of the page."""
    found = [
        over_time(figures),
        entities(figures),
        throttles(figures),
        latency(figures),
        connections(figures),
    ]
    if figures.fits is not None:
        found.append(recommended(figures))
    if figures.proposals:
        found.append(compared(figures))
    return [*found, coverage(figures)]


def over_time(figures: Figures) -> Section:
    """Bytes, requests and worker time, with a color for each of the largest entities."""
    order = plots.series(figures)
    names, colours = plots.names(order, formats.NAME_MAX), plots.series_colours(order)
    pictures = []
    for title, unit, value in (
        ("Bytes in", "B/s", lambda point: point.bytes_in),
        ("Bytes out", "B/s", lambda point: point.bytes_out),
        ("Requests", "requests/s", lambda point: point.requests),
        ("Worker time", "%", lambda point: point.worked_ns / 1e7),
    ):
        shown, drawing = plots.over_time(figures, value, unit, f"{title} over time")
        what = "% of one core" if unit == "%" else shown
        pictures.append(Picture.of(title, what, drawing))
    keys = tuple(Key(colours[who][6:-1], names[who]) for who in order)
    each = formats.duration(figures.step_s * 1000)
    note = f"Averages over {each}, stacked; the entities with the most worker time have colors."
    nothing = "" if order else "No requests were recorded."
    return Section(
        "usage", "Usage over time", (note,), nothing, keys, tuple(pictures) if order else ()
    )


def entities(figures: Figures) -> Section:
    """Total usage of each entity."""
    heads = ("Entity", "Worker time", "Requests", "Bytes in", "Bytes out", "Throttled", "Throttle",
             "Errors", "p50", "p95", "p99")  # fmt: skip
    colours = plots.series_colours(plots.series(figures))
    rows = tuple(_entity(figures, use, colours.get(use.who, "")[6:-1]) for use in figures.entities)
    table = ReportTable(
        "Entities",
        tuple(Head(text, bool(n), n == 1) for n, text in enumerate(heads)),
        rows,
    )
    note = (
        "Worker time is a share of one core. Throttled is the share of requests that were "
        "throttled, throttle their total throttle time. Percentiles are of the time from reading a "
        "request to writing its response."
    )
    if not rows:
        return Section("entities", "Top entities", nothing="No requests were recorded.")
    return Section("entities", "Top entities", (note,), table=table)


def _entity(figures: Figures, use: Use, colour: str) -> Row:
    rest = use.who == REST
    listed = sum(each.who != REST for each in figures.entities)
    others = f"{formats.count(figures.entity_count - listed)} others"
    name = others if rest else formats.party(use.who.user, use.who.client_id)
    whole, length_s = figures.total, figures.length_s
    worked = use.worked_ns / 1e9 / length_s
    throttled_share = _of(use.throttled, use.requests)
    wrong = _of(use.errors, use.requests)
    title = "" if rest else f"user {_quoted(use.who.user)}, client-id {_quoted(use.who.client_id)}"
    return Row(
        (
            Cell(formats.visible(name, 60), title=title, colour=colour),
            number(worked, formats.share(worked), _of(use.worked_ns, whole.worked_ns)),
            number(use.requests, formats.count(use.requests), _of(use.requests, whole.requests)),
            number(
                use.bytes_in, formats.amount(use.bytes_in, "B"), _of(use.bytes_in, whole.bytes_in)
            ),
            number(
                use.bytes_out,
                formats.amount(use.bytes_out, "B"),
                _of(use.bytes_out, whole.bytes_out),
            ),
            number(throttled_share, formats.share(throttled_share)),
            number(use.throttle_ms, formats.duration(use.throttle_ms) if use.throttle_ms else "-"),
            number(wrong, formats.share(wrong)),
            *(number(ms, formats.duration(ms)) for ms in (use.p50_ms, use.p95_ms, use.p99_ms)),
        ),
        rest,
    )


def _quoted(name: str | None) -> str:
    return "none" if not name else f"'{formats.visible(name)}'"


def _of(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def throttles(figures: Figures) -> Section:
    """Throttles by entity and time."""
    if not figures.heat:
        return Section("throttles", "Throttles", nothing=NO_THROTTLES)
    bounds = plots.HEAT_BOUNDS
    spans = [f"up to {bounds[0]} s", *(f"to {at} s" for at in bounds[1:]), "more"]
    keys = tuple(Key(f"h{n}", text) for n, text in enumerate(spans, 1))
    note = (
        "Throttle time per minute. One connection that is throttled all the time adds 60 s per "
        "minute; several connections add up to more."
    )
    each = f"by entity, each column {formats.duration(figures.step_s * 1000)}"
    picture = Picture.of("Throttle", each, plots.heat(figures))
    return Section("throttles", "Throttles", (note,), "", keys, (picture,))


def latency(figures: Figures) -> Section:
    """Latency percentiles."""
    title = "Latency"
    if not figures.latency:
        return Section("latency", title, nothing="No requests were recorded.")
    label, colours = ("p50", "p95", "p99"), ("s1", "s2", "s6")
    rows = {
        at.start_s: (at.p50_ms or None, at.p95_ms or None, at.p99_ms or None)
        for at in figures.latency
    }
    drawing = plots.lines(
        figures, rows, label, [f"var(--{each})" for each in colours],
        shown=formats.duration, title="Latency over time", log=True,
    )  # fmt: skip
    notes = ("From reading a request to writing its response, including long polls.",)
    keys = tuple(Key(colour, name) for colour, name in zip(colours, label, strict=True))
    picture = Picture.of("Percentiles", "ms, logarithmic", drawing)
    return Section("latency", title, notes, "", keys, (picture,))


def connections(figures: Figures) -> Section:
    """Rates of accepted, delayed, rejected and closed connections."""
    title = "Connections"
    if not figures.connections:
        return Section("connections", title, nothing="No connections were opened or closed.")
    # Later ones are drawn on top.
    label = ("closed", "accepted", "delayed", "rejected")
    colours = ("rest", "s3", "s2", "s6")
    known = {
        at.start_s: tuple(
            each / figures.seen_s(at.start_s)
            for each in (at.closed, at.accepted, at.waited, at.refused)
        )
        for at in figures.connections
    }
    rows = {start: known.get(start, (0.0,) * len(label)) for start in figures.starts_s}
    drawing = plots.lines(
        figures, rows, label, [f"var(--{each})" for each in colours],
        shown=lambda each: f"{formats.figure(each)}/s", title="Connections over time",
    )  # fmt: skip
    keys = tuple(Key(colour, name) for colour, name in zip(colours, label, strict=True))
    picture = Picture.of("Connections", "per second", drawing)
    return Section("connections", title, (), "", keys, (picture,))


def recommended(figures: Figures) -> Section:
    """Recommended quotas and the usage of their entities."""
    title, found = "Recommended quotas and usage", figures.fits or ()
    if not found:
        return Section("recommended", title, nothing="The quota file contains no quotas.")
    rows = tuple(
        Row(
            (
                Cell(formats.visible(fit.entity, 60), title=formats.visible(fit.entity)),
                Cell(fit.key),
                *(number(each, amount(fit.key, each)) for each in (fit.p50, fit.p99, fit.most)),
                number(
                    fit.in_force or 0,
                    "-" if fit.in_force is None else amount(fit.key, fit.in_force),
                ),
                number(fit.recommended, amount(fit.key, fit.recommended)),
                Cell(formats.visible(fit.reason), wrap=True),
            )
        )
        for fit in found
    )
    heads = (Head("Entity", sorts=False), Head("Quota", sorts=False),
             *(Head(text) for text in ("Used: median", "p99", "max", "In force", "Recommended")),
             Head("Reason", sorts=False))  # fmt: skip
    keys = (
        Key("busy", "used, up to the median"),
        Key("quiet", "up to the 99th percentile"),
        Key("ink", "maximum", "stroke"),
        Key("waiting", "quota in force", "ring"),
        Key("accent", "recommended", "stroke"),
    )
    note = f"Recommended: {formats.many(figures.fit_count, 'quota')}"
    left = figures.fit_count - len(found)
    notes = (
        note + (f"; the {len(found)} with the highest usage are shown." if left else "."),
        "Usage is the rate as brokers average it, at the broker where it was highest.",
    )
    unit = f"100 % is the recommended quota; usage above {formats.share(plots.FIT_MOST)} is cut off"
    picture = Picture.of("Usage", unit, plots.fits(found))
    return Section(
        "recommended", title, notes, "", keys, (picture,), ReportTable(title, heads, rows)
    )


def compared(figures: Figures) -> Section:
    """The effects of several proposals."""
    order = [each.name for each in figures.proposals]
    label = formats.labels(order, formats.NAME_MAX)
    waits = any(each.late_ms is not None for each in figures.proposals)
    rows = tuple(
        _proposal(n, name, each, waits=waits)
        for n, (name, each) in enumerate(zip(label, figures.proposals, strict=True), 1)
    )
    columns = [
        "Entities throttled",
        "Requests throttled",
        "Share",
        "Throttle",
        "Longest",
        "Not served",
    ]
    columns += ["Late"] if waits else []
    heads = (Head("Proposal", sorts=False), *(Head(text) for text in columns))
    note = (
        "The recorded activity, replayed under other quotas with its original arrival times. A "
        "request counts for each quota that limits its client, and as throttled for the quota that "
        "throttled it. The first seconds of each broker only fill the counters."
    )
    if waits:
        note += (
            " In the closed loop, the throttle time of a request also delays the connection's next "
            "request; late is the largest delay of any entity's last request."
        )
    table = ReportTable("Proposals", heads, rows)
    title = "What if"
    if not any(each.throttle_ms for each in figures.proposals):
        return Section(
            "whatif", title, (note,), "No proposal would have throttled any client.", table=table
        )
    keys = tuple(Key(f"s{n}", name) for n, name in enumerate(label, 1))
    unit, drawing = plots.proposals(figures.outcomes, order, label)
    picture = Picture.of("Throttle by entity", f"{unit} in total, the longest first", drawing)
    return Section("whatif", title, (note,), "", keys, (picture,), table)


def _proposal(place: int, name: str, each: ReportedProposal, *, waits: bool) -> Row:
    share = _of(each.throttled, each.requests)
    late = "-" if each.late_ms is None else formats.duration(each.late_ms)
    return Row(
        (
            Cell(name, colour=f"s{place}"),
            number(
                each.throttled_entities,
                f"{formats.count(each.throttled_entities)} of {formats.count(each.entities)}",
            ),
            number(each.throttled, formats.count(each.throttled)),
            number(share, formats.share(share), share),
            number(each.throttle_ms, formats.duration(each.throttle_ms)),
            number(each.longest_ms, formats.duration(each.longest_ms)),
            number(each.given_up, formats.count(each.given_up)),
            *((number(each.late_ms or 0, late),) if waits else ()),
        )
    )


def coverage(figures: Figures) -> Section:
    """The completeness of the data."""
    cover = figures.coverage
    rows = tuple(
        Row(
            (
                Cell(str(each.broker)),
                Cell(formats.period(each.first_us, each.last_us)),
                number(each.events, formats.count(each.events)),
                number(each.dropped, formats.count(each.dropped)),
                number(each.sample, formats.share(each.sample)),
            )
        )
        for each in cover.brokers
    )
    heads = (
        *(Head(text, sorts=False) for text in ("Broker", "Period")),
        *(Head(text) for text in ("Events", "Dropped", "Sampled")),
    )
    events, brokers = formats.count(cover.events), formats.count(cover.broker_count)
    note = (
        f"{events} events. A broker drops events rather than delay requests. If it records only a "
        "sample of connections, figures are divided by the sampling rate."
    )
    notes = [note]
    if cover.quarantined is not None:
        notes.append(f"{formats.count(cover.quarantined)} malformed events are in the quarantine.")
    if cover.broker_count > len(cover.brokers):
        notes.append(
            f"Shown are the {len(cover.brokers)} brokers with the most events, of {brokers}."
        )
    return Section("coverage", "Coverage", tuple(notes), table=ReportTable("Brokers", heads, rows))


# The page ----------------------------------------------------------------------------------------

_HERE: Final = Path(__file__).parent


def page(figures: Figures) -> str:
    """The complete page."""
    script = _own("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    cover = figures.coverage
    period = formats.period(cover.first_us, cover.last_us)
    return environment.from_string(_own("page.html")).render(
        title=f"Broker activity, {period}",
        period=period,
        source=formats.visible(figures.source),
        style=Markup(_own("page.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=f"sha256-{digest}",
        version=__version__,
        tiles=tiles(figures),
        sections=sections(figures),
    )


def tiles(figures: Figures) -> list[Tile]:
    """The most important figures."""
    total, cover = figures.total, figures.coverage
    per_s = 1 / figures.length_s
    throttled_share = _of(total.throttled, total.requests)
    return [
        Tile(
            "Requests",
            formats.count(total.requests),
            formats.amount(total.requests * per_s, "requests/s"),
        ),
        Tile(
            "Bytes in",
            formats.amount(total.bytes_in, "B"),
            formats.amount(total.bytes_in * per_s, "B/s"),
        ),
        Tile(
            "Bytes out",
            formats.amount(total.bytes_out, "B"),
            formats.amount(total.bytes_out * per_s, "B/s"),
        ),
        Tile(
            "Worker time", formats.share(total.worked_ns / 1e9 * per_s), "of one core, all brokers"
        ),
        Tile(
            "Entities",
            formats.count(figures.entity_count),
            f"on {formats.many(cover.broker_count, 'broker')}",
        ),
        Tile(
            "Throttled",
            formats.share(throttled_share),
            f"of requests, {formats.duration(total.throttle_ms)} in total",
            bool(throttled_share),
        ),
        Tile(
            "Errors",
            formats.share(_of(total.errors, total.requests)),
            "of requests",
            bool(total.errors),
        ),
        Tile(
            "Not recorded",
            formats.many(cover.dropped + (cover.quarantined or 0), "event"),
            _sampled(cover),
            bool(cover.dropped or cover.quarantined),
        ),
    ]


def _sampled(cover: Coverage) -> str:
    if cover.sample < 1:
        return f"sampled: {formats.share(cover.sample)} of connections or more"
    dropped = f"dropped {formats.count(cover.dropped)}"
    if cover.quarantined is None:
        return dropped
    return f"{dropped}, malformed {formats.count(cover.quarantined)}"


def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
