"""What all tests share: golden files, copies of the fixture trees, and a terminal that is the same everywhere."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from ckpttool.trainers.common import LAUNCHERS_VARIABLES, processes
from tests.support import trees

TESTS = Path(__file__).resolve().parent
FIXTURES = trees.FIXTURES
DAY_SECONDS = 86_400

Golden = Callable[[str, str], None]
"""What the fixture `golden` is."""

# No deadline: a slow machine is no bug. The same examples again and again find little more, so a commit tries fewer.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, database=None, max_examples=30)


def pytest_configure(config: pytest.Config) -> None:
    """Fix the examples, so that a red run can be repeated and a stranger's is as ours; the night looks for new ones."""
    if not hasattr(config, "workerinput"):  # the one process that starts the others, if there are any
        age_fixtures()
    explores = config.getoption("--nightly") or config.getoption("--hypothesis-seed", default=None) is not None
    hypothesis.settings.load_profile("explore" if explores else "fixed")
    if not explores:
        # Hypothesis also tries the constants of our modules, as far as they are imported by then: what a test tries
        # would hang on which tests ran before it in the same process.
        setattr(providers, "is_local_module_file", lambda _: False)  # noqa: B010  mypy knows it for no attribute of theirs
    config.pluginmanager.register(ToldAtOnce(config.pluginmanager))


def age_fixtures() -> None:
    """Make the fixtures of a fresh checkout a day older: a save that is minutes old may still be written.

    So no test passes or fails by how long ago somebody cloned the project, and no age on a screen moves on between two
    commands.
    """
    for path in FIXTURES.rglob("*"):
        seen = path.lstat()
        if time.time() - seen.st_mtime < DAY_SECONDS and not path.is_symlink():
            with suppress(PermissionError):  # a checkout of somebody else
                os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns - DAY_SECONDS * 10**9))


class ToldAtOnce:
    """Says what failed when it fails: a run that is cut off says nothing at its end."""

    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    @pytest.hookimpl(trylast=True)  # behind the letter
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        screen = self._plugins.get_plugin("terminalreporter") if report.failed else None
        if screen is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(report.longrepr if crash is None else crash.message).strip()
            screen.write_line(f"\n{report.nodeid}: {why.partition(chr(10))[0][:200]}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the cases of a sampled test that a commit does not run to the long run: mark them `slow`."""
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases.setdefault((item.path, item.nodeid.partition("[")[0]), []).append(item)
    for of_one in cases.values():
        marker = of_one[0].get_closest_marker("sample")
        assert marker is not None
        (count,) = marker.args
        kept = {number * len(of_one) // count for number in range(count)}
        for number, item in enumerate(of_one):
            if number not in kept:
                item.add_marker("slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files instead of comparing")
    parser.addoption("--nightly", action="store_true", help="run all of the reliability programme, not a commit's part")
    parser.addoption("--figures", metavar="FILE", help="write what the reliability programme did to a JSON file")


@pytest.fixture(autouse=True, scope="session")
def same_terminal_everywhere() -> Iterator[None]:
    """Take away what makes rich and typer draw by the machine they run on, and what speaks of other machines."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}.items():
            patch.setenv(name, value)
        for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "PY_COLORS", *LAUNCHERS_VARIABLES, *processes.VARIABLES):
            patch.delenv(name, raising=False)
        yield


_CACHES = count()


@pytest.fixture(autouse=True, scope="session")
def home_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let what tests start leave nothing in the home of who runs them: many a build runs as somebody without one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.getbasetemp() / "home"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no test know what another one verified."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / f"cache-{next(_CACHES)}"))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return `golden(name, text)`, which fails with a diff unless `tests/golden/<name>` holds exactly this text."""
    update = bool(request.config.getoption("--update-goldens"))

    def compare(name: str, text: str) -> None:
        path = TESTS / "golden" / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            return
        if not path.exists():
            pytest.fail(f"no golden file {name}; write it with --update-goldens and read it", pytrace=False)
        expected = path.read_bytes().decode()
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(keepends=True), text.splitlines(keepends=True), f"golden/{name}", "actual"
            )
            shown = "".join(line if line.endswith("\n") else f"{line}\n\\ no newline at the end\n" for line in diff)
            pytest.fail(f"not the golden file; if that is meant, run with --update-goldens\n{shown}", pytrace=False)

    return compare


@pytest.fixture
def copy_tree(tmp_path: Path) -> Callable[[str], Path]:
    """Return `copy_tree(name)`, which copies `fixtures/<name>` into the test's own folder, free to be damaged."""
    return lambda name: trees.writable(FIXTURES / name, tmp_path / name)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a test's own folder the working directory, so that what is shown does not depend on where it lies."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def beside_fixtures(here: Path) -> Path:
    """Make it the working directory, with the fixtures at the same relative paths as in a checkout."""
    (here / "fixtures").symlink_to(FIXTURES)
    return here
