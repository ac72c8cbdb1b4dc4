"""JAAS configs: parsed, rendered, and rejected without revealing their content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.settings.types import BadValueError, JaasEntry, parse_jaas, render_jaas

LINE = """org.apache.kafka.common.security.plain.PlainLoginModule required \\
    username="admin"
    user_admin='x' ;""".replace("'x'", '"ad;min=\\"s\\\\"').replace("\\\n", "\n")


def test_jaas_config_with_line_breaks_and_quotes_is_parsed() -> None:
    entry = parse_jaas(LINE)
    assert entry.module_name == "PlainLoginModule"
    assert entry.flag == "required"
    assert entry.options == (("username", "admin"), ("user_admin", 'ad;min="s\\'))
    assert entry.users == {"admin": 'ad;min="s\\'}
    assert parse_jaas("M required;") == JaasEntry("M", "required", ())


@given(st.dictionaries(st.from_regex("user_[a-z]{1,5}", fullmatch=True), st.text(min_size=1)))
def test_jaas_config_round_trips_as_text(options: dict[str, str]) -> None:
    entry = JaasEntry("a.b.C", "required", tuple(options.items()))
    assert parse_jaas(render_jaas(entry)) == entry


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        "M required hunter2",
        "M sometimes hunter2=x;",
        "M required hunter2;",
        "M required user_a hunter2 = ;",
        'M required a="hunter2;',
        "M required a=hunter2; N required;",
    ],
)
def test_invalid_jaas_config_is_rejected_without_its_text(text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse_jaas(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(alphabet='a=";\\ \n', max_size=30))
def test_any_text_parses_as_jaas_config_or_is_rejected(text: str) -> None:
    try:
        parse_jaas(text)
    except BadValueError:
        return
