from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.testing import MiniBroker
from minibroker.testing.lease import ForkServerAddress
from tests.testing.conftest import PLUGINS_OFF

ROOT = Path(__file__).parent.parent
Example = Callable[[str], pytest.RunResult]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "minibroker/languages").glob("*/README.md")),
]
GUIDE_TO_LANGUAGES = "docs/guides/other-languages.md"


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of ``language`` on a page."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_lead_to_headings(page: Path) -> None:
    dead = []
    for target, anchor in re.findall(r"\]\(([^):#]*)#([^)]+)\)", page.read_text()):
        linked = page.parent / target if target else page
        if linked.suffix == ".md" and anchor not in headings(linked):
            dead.append(f"{target}#{anchor}")
    assert dead == []


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them, and those set in HTML."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*plain, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site make them from headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found[f"{slug}-{found[slug]}" if found[slug] else slug] += 1
    return {*found, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_of_links_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text())
    dead = [
        f"{target}#{anchor}"
        for target, anchor in targets
        if "://" not in target
        and (page.parent / target if target else page).suffix == ".md"
        and anchor not in anchors(page.parent / target if target else page)
    ]
    assert dead == []


def test_anchor_of_a_heading_is_that_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b.c`: [d](e)!\n## Twice\n## Twice\n```sh\n# no heading\n```\n")
    assert anchors(page) == {"a-bc-d", "twice", "twice-1"}


def test_test_in_the_readme_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(blocks("README.md", "python")[0])
    pytester.runpytest_subprocess(*PLUGINS_OFF).assert_outcomes(passed=1)


def test_broker_of_one_s_own_in_the_readme_runs(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(blocks("README.md", "python")[1])
    assert pytester.runpython(script).ret == 0


@pytest.fixture(scope="module")
def shared_run() -> Iterator[str]:
    """The run of a fork server that all examples use, so that the broker is imported once."""
    fork_server = ForkServerAddress()
    fork_server.preload()
    yield fork_server.run_id
    fork_server.close()


@pytest.fixture
def run_example(pytester: pytest.Pytester, shared_run: str) -> Example:
    """Run a script in a process of its own."""
    use = f"import minibroker.testing.lease as _; _.fork_server_of_process({shared_run!r})"

    def run(code: str) -> pytest.RunResult:
        return pytester.runpython(pytester.makepyfile(f"{use}\n{code}"))

    return run


@pytest.mark.parametrize(
    ("page", "number"),
    [
        ("connection-limits", None),
        ("faults", 0),
        ("proxy", 0),
        ("proxy", 1),
        ("trace-requests", 0),
        ("judge-a-client", 0),
        ("quotas", None),
        ("security", None),
        ("check-a-history", None),
        ("test-consumer-groups", None),
        ("test-share-groups", None),
    ],
)
def test_examples_of_guide_run(run_example: Example, page: str, number: int | None) -> None:
    """Run one block of a page, or all of them as one script."""
    scripts = blocks(f"docs/guides/{page}.md", "python")
    assert run_example("\n".join(scripts) if number is None else scripts[number]).ret == 0


def test_examples_of_the_activity_topic_are_one_script_that_runs(run_example: Example) -> None:
    run = run_example("\n".join(blocks("docs/guides/activity.md", "python")))
    assert run.ret == 0
    run.stdout.fnmatch_lines(["loud sent 20* bytes with 1 record:", "*exceed the quota of 1024,"])


def test_example_of_checking_a_history_finds_a_record_lost_at_the_end(run_example: Example) -> None:
    (page,) = blocks("docs/guides/check-a-history.md", "python")
    script = page.replace('{"orders-0": [[0, 1]]}', "{}")
    assert script != page
    run = run_example(script)
    assert run.ret == 1
    run.stderr.fnmatch_lines(["*unseen: 1 case*", "*invalid: unseen"])


def test_asyncio_example_of_the_guide_to_testing_runs(run_example: Example) -> None:
    pages = blocks("docs/guides/testing-with-pytest.md", "python")
    (page,) = (page for page in pages if "asyncio.run" in page)
    assert run_example(page).ret == 0


def test_tests_in_the_guide_to_messages_pass(pytester: pytest.Pytester) -> None:
    page = "docs/guides/messages-in-tests.md"
    pytester.makepyfile("\n".join(blocks(page, "python")))
    pytester.runpytest_subprocess(*PLUGINS_OFF).assert_outcomes(passed=9)


def test_seed_in_the_guide_to_messages_is_created() -> None:
    (seed,) = blocks("docs/guides/messages-in-tests.md", "toml")
    with MiniBroker(seed=tomllib.loads(seed)) as broker:
        assert len(broker.messages("orders")) == 3


def test_rate_in_the_walkthrough_is_exact(run_example: Example) -> None:
    run = run_example("\n".join(blocks("docs/reading-the-code.md", "python")))
    assert run.outlines == ["2000.0", "10000"]


def test_names_in_the_walkthrough_exist() -> None:
    tour = ROOT / "docs/reading-the-code.md"
    named = re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", tour.read_text())
    assert len(named) > 20
    for name, target in named:
        source = (tour.parent / target).read_text()
        for part in name.removesuffix(".py").split("."):
            defined = re.search(rf"(class|def) {part}\b", source)
            assert defined or part == Path(target).stem, f"{name} is not in {target}"


def test_frame_of_the_tutorial_is_dissected() -> None:
    (words,) = re.findall(
        r"^minibroker dissect (.*)$", "".join(blocks("docs/getting-started.md", "sh")), re.MULTILINE
    )
    assert CliRunner().invoke(app, ["dissect", *words.split()]).exit_code == 0


def test_every_command_of_the_tutorial_exists() -> None:
    lines = "".join(blocks("docs/getting-started.md", "sh"))
    used = set(re.findall(r"\bminibroker ([a-z]+)", lines))
    assert used
    assert used <= set(app.list_commands(click.Context(app)))


def test_decisions_are_listed() -> None:
    listed = re.findall(r"\]\((\d{4}-[^)]+)\)", (ROOT / "docs/adr/README.md").read_text())
    assert listed == sorted(path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md"))


def run_script_of_ci(
    page: str, folder: Path, minibroker: str, start: str = "minibroker start"
) -> subprocess.CompletedProcess[str]:
    """Run the script with ``npm test`` on a page, and with this script for minibroker."""
    (script,) = (block for block in blocks(page, "sh") if "npm test" in block)
    script = script.replace("minibroker start", start)
    programs = {
        "minibroker": minibroker,
        "npm": 'echo "$* with $BOOTSTRAP_SERVERS"',
        "jq": f"\"{sys.executable}\" -c \"import json; print(json.load(open('$3'))['${{2#.}}'])\"",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("page", ["README.md", GUIDE_TO_LANGUAGES])
def test_script_of_ci_runs_tests_with_a_broker_that_ends_with_it(page: str, tmp_path: Path) -> None:
    run = run_script_of_ci(page, tmp_path, f'exec "{sys.executable}" -m minibroker "$@"')
    ready = json.loads((tmp_path / "broker.json").read_text())
    assert run.stdout == f"test with {ready['bootstrap_servers']}\n", run.stderr
    assert run.returncode == 0  # And nothing holds its standard error open.


@pytest.mark.parametrize("page", ["README.md", GUIDE_TO_LANGUAGES])
def test_script_of_ci_ignores_the_file_of_an_earlier_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"bootstrap_servers": "old"}')
    # The shell may reach the next line before it has opened the file for the broker.
    late = "sleep 0.2 && minibroker start"
    run = run_script_of_ci(page, tmp_path, """echo '{"bootstrap_servers": "new"}'""", late)
    assert run.stdout == "test with new\n", run.stderr


@pytest.mark.parametrize("page", ["README.md", GUIDE_TO_LANGUAGES])
@pytest.mark.parametrize(
    ("minibroker", "reason"),
    [
        (f'exec "{sys.executable}" -m minibroker "$@" --set num.partition=3', "num.partitions?"),
        ("exit 1", ""),
    ],
    ids=["broker that cannot start", "no broker"],
)
def test_script_of_ci_fails_without_a_broker(
    page: str, minibroker: str, reason: str, tmp_path: Path
) -> None:
    run = run_script_of_ci(page, tmp_path, minibroker)
    assert run.returncode != 0
    assert reason in run.stdout
    assert "test with" not in run.stdout


def test_packages_for_other_languages_show_the_test_of_the_guide() -> None:
    for folder, language in {"node": "js", "java": "java", "go": "go"}.items():
        shown = blocks(f"minibroker/languages/{folder}/README.md", language)
        assert shown == blocks(GUIDE_TO_LANGUAGES, language)
