"""What a release consists of: its version, its page on an index, and what is rejected."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from zipfile import ZipFile

import pytest
import yaml

from minibroker.broker.apis import api_versions

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
URL = "https://git.example/us/minibroker"


def load(name: str) -> ModuleType:
    """Load a program of CI as a module."""
    spec = spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    return load("dist")


@pytest.fixture(scope="module")
def release_check() -> ModuleType:
    return load("release_check")


@pytest.mark.parametrize(
    ("written", "published"),
    [
        ("[a](docs/a.md#b)", f"[a]({URL}/blob/c0ffee/docs/a.md#b)"),
        ("![a](docs/a.png)", f"![a]({URL}/raw/c0ffee/docs/a.png)"),
        ("[two\nlines](docs/a.md)", f"[two\nlines]({URL}/blob/c0ffee/docs/a.md)"),
        ("[a](https://b.example) [c](#d)", "[a](https://b.example) [c](#d)"),
    ],
)
def test_links_of_the_readme_are_absolute_in_a_package(
    dist: ModuleType, written: str, published: str
) -> None:
    assert dist.linked_absolutely(written, URL, "c0ffee") == published


@pytest.mark.parametrize("url", [URL, None])
def test_readme_in_a_package_has_no_dead_link(
    dist: ModuleType, release_check: ModuleType, url: str | None
) -> None:
    assert release_check.dead_links(README)
    page = dist.linked_absolutely(README, url, "c0ffee")
    assert not release_check.dead_links(page)
    assert (URL in page) == (url is not None)


def test_names_of_others_in_an_installation_are_rejected(release_check: ModuleType) -> None:
    ours = ["minibroker/cli/app.py", "minibroker_protocol/wire.py", "../../../bin/minibroker"]
    ours.append("minibroker-1.0.dist-info/RECORD")
    others = ["tests/test_x.py", "protocol/wire.py", "minibroker/languages/go/find.go"]
    assert release_check.strange_files([*ours, *others]) == others


@pytest.mark.parametrize(
    ("name", "python", "suits"),
    [
        ("minibroker-1.0.tar.gz", "3.14", True),
        ("minibroker-1.0-py3-none-any.whl", "3.14", True),
        ("minibroker-1.0-py3-none-manylinux2014_x86_64.macosx_11_0_arm64.whl", "3.14", True),
        ("minibroker-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "3.12", False),
        ("minibroker-1.0-cp311-cp311-macosx_99_0_riscv.whl", "3.11", False),
    ],
)
def test_wheel_is_tried_where_pip_would_take_it(
    release_check: ModuleType, name: str, python: str, suits: bool
) -> None:
    assert release_check.suits(Path(name), python) == suits


class BuildHookInterface:
    """What a hook of hatchling inherits, which only builds install."""

    root = str(ROOT)

    def __class_getitem__(cls, _: object) -> type[BuildHookInterface]:
        return cls


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_build_is_refused_with_a_sentence_where_minibroker_does_not_run(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface = "hatchling.builders.hooks.plugin.interface"
    monkeypatch.setitem(
        sys.modules, interface, SimpleNamespace(BuildHookInterface=BuildHookInterface)
    )
    monkeypatch.delenv("HATCH_BUILD_HOOKS_ENABLE", raising=False)
    hook = load("build_hook").CompiledModules()
    assert hook.dependencies() == []
    monkeypatch.setattr(sys, "platform", platform)
    if platform != "win32":
        hook.initialize("standard", {})
        return
    with pytest.raises(SystemExit, match="run it in WSL or from its container image"):
        hook.initialize("standard", {})


def test_pure_wheel_gets_the_tags_of_linux_and_macos(dist: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "minibroker-1.0-py3-none-any.whl"
    tagged = b"Root-Is-Purelib: true\nTag: py3-none-any\n"
    with ZipFile(wheel, "w") as archive:
        archive.writestr("minibroker/__init__.py", b"")
        archive.writestr("minibroker-1.0.dist-info/WHEEL", tagged)
        line = dist.record("minibroker-1.0.dist-info/WHEEL", tagged)
        archive.writestr("minibroker-1.0.dist-info/RECORD", f"minibroker/__init__.py,,\n{line}")
    (tmp_path / "dist").mkdir()
    with ZipFile(dist.write_tagged(wheel, tmp_path / "dist")) as archive:
        written = archive.read("minibroker-1.0.dist-info/WHEEL")
        recorded = archive.read("minibroker-1.0.dist-info/RECORD").decode()
    tags = [tag.removeprefix("py3-none-") for tag in re.findall("Tag: (.*)", written.decode())]
    assert set(tags) == set(dist.PLATFORM_TAGS)
    assert not any(tag in ("any", "win_amd64") for tag in tags)
    new_line = dist.record("minibroker-1.0.dist-info/WHEEL", written)
    assert recorded == f"minibroker/__init__.py,,\n{new_line}"
    assert line != new_line


def test_first_test_of_the_check_is_that_of_the_readme(release_check: ModuleType) -> None:
    tests = re.findall(r"^def (test_\w+)", release_check.first_test(), re.MULTILINE)
    assert tests == [
        "test_message_is_acknowledged",
        "test_record_of_the_command_line_is_consumed",
    ]


@pytest.mark.parametrize("built", ["0.2.0", "0.2.0.dev17+g1a2b3c4.d20261128"])
def test_version_of_a_build_is_one_that_brokers_accept(built: str) -> None:
    program = (
        "import sys, types\n"
        f"sys.modules['minibroker._version'] = types.SimpleNamespace(__version__={built!r})\n"
        "from minibroker import __version__\n"
        "from minibroker.client.connection import SOFTWARE_VERSION\n"
        "print(__version__, SOFTWARE_VERSION)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=-1, text=True)
    version, software_version = done.stdout.split()
    assert version == built
    assert api_versions._SOFTWARE.fullmatch(software_version)


def test_release_workflow_pins_the_tools_of_the_lock() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert set(workflow["jobs"]["publish"]["needs"]) <= set(workflow["jobs"])
    lock = (ROOT / ".ci/tools.lock").read_text().split()
    assert set(re.findall(r"uv==\S+", text)) <= set(lock)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in re.findall(r"make ([a-z -]+)", text):
        assert set(words.split()) <= targets


def test_classifiers_name_the_pythons_that_wheels_are_built_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    built = project["tool"]["cibuildwheel"]["build"].split()
    assert [f"cp{version.replace('.', '')}-*" for version in named] == built


def test_compiled_modules_have_no_named_tuple_with_a_field_of_type_object() -> None:
    """It compiles, and fails when the module is imported."""
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    sources = hooks["targets"]["wheel"]["hooks"]["custom"]["include"]
    rejected = re.compile(
        r"^class \w+\(NamedTuple\):\n(?: .*\n|\n)*?    \w+: object$", re.MULTILINE
    )
    assert [path for path in sources if rejected.search((ROOT / path).read_text())] == []
