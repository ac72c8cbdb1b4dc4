"""Renders the figures as one self-contained HTML file.

Owns the order of the sections and the texts of empty ones; it must never know Spark or how a plot
is drawn. Invariant: client-supplied names remain text, because the template escapes everything that
is not marked as safe, and the page's content security policy allows a browser only to run its one
script, and to fetch nothing. Kafka has no counterpart.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup

from minibroker import __version__
from minibroker.pipeline.report import formats
from minibroker.pipeline.report.figures import Coverage, Figures
from minibroker.pipeline.report.sections import sections
from minibroker.pipeline.report.tables import Section, Tile

_HERE: Final = Path(__file__).parent


def page(figures: Figures) -> str:
    """The complete page."""
    script = _own("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    cover = figures.coverage
    shown: list[Section] = sections(figures)
    return environment.from_string(_own("page.html")).render(
        title=f"Broker activity, {formats.period(cover.first_us, cover.last_us)}",
        period=formats.period(cover.first_us, cover.last_us),
        source=formats.visible(figures.source),
        style=Markup(_own("page.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=f"sha256-{digest}",
        version=__version__,
        tiles=tiles(figures),
        sections=shown,
    )


def tiles(figures: Figures) -> list[Tile]:
    """The most important figures."""
    total, cover = figures.total, figures.coverage
    per_s = 1 / figures.length_s
    throttled_share = total.throttled / total.requests if total.requests else 0.0
    return [
        Tile(
            "Requests",
            formats.count(total.requests),
            f"{formats.amount(total.requests * per_s, 'requests/s')}",
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
            formats.share(total.errors / total.requests if total.requests else 0),
            "of requests",
            bool(total.errors),
        ),
        Tile(
            "Not recorded",
            _unseen(cover),
            _sampled(cover),
            bool(cover.dropped or cover.quarantined),
        ),
    ]


def _unseen(cover: Coverage) -> str:
    return formats.many(cover.dropped + (cover.quarantined or 0), "event")


def _sampled(cover: Coverage) -> str:
    if cover.sample < 1:
        return f"sampled: {formats.share(cover.sample)} of connections or more"
    dropped = f"dropped {formats.count(cover.dropped)}"
    if cover.quarantined is None:
        return dropped
    return f"{dropped}, malformed {formats.count(cover.quarantined)}"


def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
