"""The Grafana board and the Prometheus rules use metrics of the broker, in valid PromQL."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from minibroker.broker.metrics.definitions import METRICS, MetricKind
from tests.test_docker import DOCKER

BOARD = json.loads((DOCKER / "grafana/dashboards/minibroker.json").read_text())
RULES = yaml.safe_load((DOCKER / "prometheus/rules.yml").read_text())
PROVISIONING = DOCKER / "grafana/provisioning"

OWN = {metric.name: metric for metric in METRICS}
HISTOGRAM_SERIES = ("_bucket", "_sum", "_count")
OF_PROMETHEUS = {"up": {"job", "instance"}}


def panels() -> Iterator[dict[str, Any]]:
    return (panel for panel in BOARD["panels"] if panel["type"] != "row")


def board_queries() -> list[tuple[str, str]]:
    return [(each["title"], target["expr"]) for each in panels() for target in each["targets"]]


def rule_queries() -> list[tuple[str, str]]:
    return [(rule["alert"], rule["expr"]) for group in RULES["groups"] for rule in group["rules"]]


QUERIES = [*board_queries(), *rule_queries()]


def labels_of(series: str) -> set[str]:
    """The labels of a series that a query names; fails if the broker has none of that name."""
    if series in OF_PROMETHEUS:
        return OF_PROMETHEUS[series]
    family = next(
        (
            series.removesuffix(ending)
            for ending in HISTOGRAM_SERIES
            if series.endswith(ending) and series.removesuffix(ending) in OWN
        ),
        series,
    )
    metric = OWN.get(family)
    assert metric is not None, f"the broker has no {series}"
    assert (metric.kind is MetricKind.HISTOGRAM) == (family != series), (
        f"{series}: not of that kind"
    )
    return {*metric.labels, *(["le"] if series.endswith("_bucket") else [])}


def parsed(query: str) -> Any:
    """The syntax tree; what Grafana puts into a query is put into it here."""
    return promql_parser.parse(query.replace("$__rate_interval", "1m"))


def selectors(query: str) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(parsed(query), visit)
    return found


def groupings(query: str) -> Iterator[tuple[set[str], set[str]]]:
    """The labels that each aggregation keeps, with those that there are below it."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.append(node)

    promql_parser.walk(parsed(query), visit)
    for node in found:
        below = [labels_of(each.name) for each in selectors(str(node.expr))]
        yield set(node.modifier.labels), set.union(*below)


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_query_is_valid_and_asks_for_what_there_is(where: str, query: str) -> None:
    asked = selectors(query)
    assert asked, where
    for selector in asked:
        named = {matcher.name for matcher in selector.matchers.matchers}
        assert named <= labels_of(selector.name), where
    for kept, there in groupings(query):
        assert kept <= there, where


def test_query_that_asks_for_something_else_is_found_out() -> None:
    with pytest.raises(AssertionError, match="has no minibroker_colours"):
        test_query_is_valid_and_asks_for_what_there_is("", "minibroker_colours")
    with pytest.raises(AssertionError):
        test_query_is_valid_and_asks_for_what_there_is("", 'minibroker_process_up{topic="t"}')
    with pytest.raises(AssertionError):
        test_query_is_valid_and_asks_for_what_there_is("", "sum by (x) (minibroker_process_up)")
    with pytest.raises(ValueError, match="parenthesis"):
        test_query_is_valid_and_asks_for_what_there_is("", "sum(minibroker_process_up")


def test_counters_are_shown_as_rates_and_legends_name_labels_that_are_left() -> None:
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            counters = [each.name for each in selectors(query) if each.name.endswith("_total")]
            is_rate = "rate(" in query or "increase(" in query
            assert is_rate or not counters or panel["title"] == "Processes started again", query
            there = set.union(*(labels_of(each.name) for each in selectors(query)))
            for kept, _ in groupings(query):
                there &= kept
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= there, query


def test_panels_do_not_overlap_and_have_their_own_numbers() -> None:
    cells = [
        (x, y)
        for each in BOARD["panels"]
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    numbers = [each["id"] for each in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_board_finds_its_source_and_grafana_the_board() -> None:
    [source] = yaml.safe_load((PROVISIONING / "datasources/prometheus.yaml").read_text())[
        "datasources"
    ]
    asked = {target["datasource"]["uid"] for each in panels() for target in each["targets"]}
    assert {each["datasource"]["uid"] for each in panels()} | asked == {source["uid"]}
    [provider] = yaml.safe_load((PROVISIONING / "dashboards/minibroker.yaml").read_text())[
        "providers"
    ]
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    mounted = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert provider["options"]["path"] == mounted["./grafana/dashboards"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{mounted['./grafana/dashboards']}/minibroker.json"
    assert source["url"] == "http://prometheus:9090"


def test_prometheus_scrapes_the_control_address_of_the_broker() -> None:
    config = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    [target] = job["static_configs"]
    assert (job["metrics_path"], target["targets"]) == ("/metrics", ["minibroker:8080"])
    assert all((DOCKER / "prometheus" / name).is_file() for name in config["rule_files"])
    assert Path(DOCKER / "prometheus/rules.yml").is_file()


@pytest.mark.parametrize(
    "words",
    [
        ["check", "config", "docker/prometheus/prometheus.yml"],
        ["test", "rules", "tests/prometheus_rules.test.yml"],
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_rules_and_alerts_fire_when_they_should(words: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is part of Debian's package prometheus")
    answer = subprocess.run(
        [promtool, *words], cwd=DOCKER.parent, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
