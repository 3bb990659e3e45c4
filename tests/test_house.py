"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from scripts import house

import journeyman
from journeyman import errors

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "journeyman").rglob("*.py"))
FOLDERS_WITH_PAGES = ("docs", "bench", "examples", "tests")
DOCS = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for name in FOLDERS_WITH_PAGES for page in (ROOT / name).rglob("*.md")),
    ]
)
MODULES = sorted(m.name for m in pkgutil.walk_packages(journeyman.__path__, "journeyman."))
DIALECTS = {"ztick", "workq", "kestrel", "keyspace"}
VAGUE_MODULES = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "base"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def within_package(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "journeyman").as_posix()


def test_every_module_says_what_it_is():
    silent = [path for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    vague = [path for path in SOURCES if path.stem in VAGUE_MODULES]
    assert (list(map(relative, silent)), list(map(relative, vague))) == ([], [])


def test_what_several_tests_use_is_in_support():
    imports = re.compile(r"^(?:from|import) tests\.(?:[\w.]+\.)?test_\w+", re.MULTILINE)
    modules = sorted((ROOT / "tests").rglob("*.py"))
    assert [relative(path) for path in modules if imports.search(path.read_text())] == []


def test_only_packages_list_what_they_export():
    listing = [
        relative(path)
        for path in SOURCES
        if re.search(r"^__all__\b", path.read_text(), re.MULTILINE)
    ]
    assert [name for name in listing if not name.endswith("__init__.py")] == []


NOT_IMPORTED = {
    "journeyman.__main__",
    "journeyman.integrations.django.models",  # needs the settings of a Django project
    # These need libraries that are too large for a run of the tests; they get doubles there.
    *(f"journeyman.integrations.{name}" for name in ("airflow", "dagster", "dbt")),
}


def test_exported_names_exist_and_are_listed_once():
    for name in MODULES:
        if name not in NOT_IMPORTED:
            module = importlib.import_module(name)
            exported = getattr(module, "__all__", [])
            missing = [n for n in exported if not hasattr(module, n)]
            assert not missing, f"{name}.__all__ promises {missing}"
            assert len(exported) == len(set(exported)), name


def test_error_tree_is_drawn_in_full():
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.JourneymanError)
    }
    assert drawn | {"JourneymanError"} == defined


def _headings(page: Path) -> set[str]:
    """The anchors of a page, as the site and code hosts make them from its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"\s+", "-", heading.strip().lower()) for heading in plain}


def test_links_lead_somewhere():
    dead = []
    for path in DOCS:
        for link in re.findall(r"\]\(([^)\s]+)[^)]*\)", path.read_text()):
            target, _, heading = link.partition("#")
            page = path.parent / target if target else path
            if link.startswith(("http:", "https:")):
                continue
            is_there = page.exists() and (not heading or heading in _headings(page))
            if not is_there:
                dead.append(f"{relative(path)} links to {link}")
    assert not dead


def test_pages_that_are_named_exist():
    of_the_originals = {
        "docs/protocol-specification.md",
        "doc/cmdlog.md",
        "docs/reference/persistence.md",
    }
    names = r"(?<![\w/(.-])(?:[\w.-]+/)*[\w.-]+\.md\b"
    dead = [
        f"{relative(path)} names {name}"
        for path in DOCS
        for name in re.findall(names, re.sub(r"\[[^]]*\]\([^)]*\)", "", path.read_text()))
        if name not in of_the_originals
        and not any((place / name).exists() for place in (path.parent, ROOT, ROOT / "docs"))
    ]
    assert not dead


def test_every_page_can_be_reached_from_the_readme():
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop().resolve()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [
            page.parent / target
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
            if not target.startswith(("http:", "https:"))
        ]
    pages = {p.resolve() for p in (ROOT / "docs").rglob("*.md")}
    assert not pages - seen, f"nobody links to {sorted(map(relative, pages - seen))}"


def test_architecture_names_only_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text()
    sources = ROOT / "src" / "journeyman"
    named = set(re.findall(r"`([a-z_0-9<>/]+(?:/|\.py))`", text)) - {"quarantine/"}
    assert len(named) > 50
    for name in named:
        tries = [name.replace("<dialect>", dialect) for dialect in sorted(DIALECTS)]
        places = [place for each in tries for place in (sources / each, ROOT / each)]
        is_pattern = "<name>" in name or "<command>" in name
        assert is_pattern or any(place.exists() for place in places), f"there is no {name}"


def _prose(text: str) -> str:
    """All docstrings and comments of a module."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return "\n".join([*(ast.get_docstring(node) or "" for node in nodes), *re.findall("#.*", text)])


def _is_module_or_name(dotted: str) -> bool:
    place, name = ROOT / "src" / dotted.replace(".", "/"), dotted.rpartition(".")[2]
    if place.is_dir() or place.with_suffix(".py").exists():
        return True
    init = place.parent / "__init__.py"
    above = init if init.exists() else place.parent.with_suffix(".py")
    return above.exists() and re.search(rf"\b{name}\b", above.read_text()) is not None


def test_docstrings_and_comments_name_modules_that_exist():
    package = ROOT / "src" / "journeyman"
    of_layer: dict[str, set[str]] = {}
    for path in SOURCES:
        of_layer.setdefault(path.relative_to(package).parts[0], {"manage.py"}).add(path.name)
    wrong = []
    for path in SOURCES:
        prose, layer = _prose(path.read_text()), path.relative_to(package).parts[0]
        for name in re.findall(r"(?<![\w/.<>*-])(?:\w+/)*\w+\.py\b", prose):
            places = (package / name, package / layer / name, path.parent / name, ROOT / name)
            if name not in of_layer[layer] and not any(place.exists() for place in places):
                wrong.append(f"{relative(path)}: {name}")
        layers = "|".join(each.removesuffix(".py") for each in of_layer)
        dotted = re.findall(rf"\bjourneyman\.(?:{layers})(?:\.\w+)*", prose)
        wrong += [f"{relative(path)}: {name}" for name in dotted if not _is_module_or_name(name)]
    assert not wrong, "\n".join(wrong)


def test_dialects_are_folders_and_not_prefixes_of_names():
    layers = ["protocols", "engines", "logs", "columnar", "servers", "formats"]
    for layer in layers:
        for path in (ROOT / "src" / "journeyman" / layer).glob("*.py"):
            prefix, _, rest = path.stem.partition("_")
            assert not rest or prefix not in DIALECTS, f"{layer}/{path.name} belongs in {prefix}/"


def assert_listed(places: Mapping[str, object], listed: Collection[str]) -> None:
    """Fail for each place outside of the listed folders, and each listed folder without a place."""
    covered = {
        place: [entry for entry in listed if place == entry or place.startswith(f"{entry}/")]
        for place in places
    }
    needless = set(listed) - {entry for entries in covered.values() for entry in entries}
    assert not needless, "finished: take these off the list"
    new = [f"{place}: {places[place]}" for place, entries in covered.items() if not entries]
    assert not new, "\n".join(new)


def places_of(check: Callable[[Path], Iterable[house.Place]]) -> dict[str, list[str]]:
    """Return what ``check`` notices in each module that it does not let pass."""
    noticed = {path: [str(place) for place in check(path)] for path in SOURCES}
    return {within_package(path): places for path, places in noticed.items() if places}


def test_docstrings_and_comments_are_sentences():
    assert places_of(house.fragments) == {}


def test_names_say_something_without_their_neighbours():
    assert places_of(house.vague_names) == {}


def test_a_module_is_imported_where_many_of_its_names_are_needed():
    assert places_of(house.long_imports) == {}


def test_tuples_of_many_fields_have_names():
    assert places_of(house.wide_tuples) == {}


def test_a_public_name_has_one_meaning():
    twice = house.names_defined_twice(SOURCES)
    assert_listed(
        {name: [str(place) for place in places] for name, places in twice.items()},
        house.SHARED_NAMES,
    )


def test_parts_of_packages_do_not_import_each_other_in_circles():
    assert house.import_circles() == {}


def test_core_starts_without_the_heavy_libraries():
    heavy = ["pyspark", "numba", "pyarrow", "numpy"]
    code = (
        "import sys, journeyman.cli, journeyman.logs\n"
        f"sys.exit(any(name in sys.modules for name in {heavy!r}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_short_commands_start_without_what_they_do_not_use(tmp_path):
    """They try to reach a server that is not there, so each asks every service that it would."""
    unused = ["asyncio", "difflib", "hashlib", "secrets", "sqlite3", "tomllib", "traceback"]
    unused += ["journeyman.client.async_clients", "journeyman.config", "journeyman.engines"]
    unused += ["journeyman.folds", "journeyman.logs", "journeyman.servers", "journeyman.tasks.app"]
    of_http = ["http.client", "ssl"]
    code = (
        "import sys\n"
        "from journeyman.cli import journeyman\n"
        "try:\n    journeyman.main(sys.argv[1:])\n"
        "except SystemExit as end:\n    assert end.code == 1\n"
        f"print(*[name for name in {unused + of_http!r} if name in sys.modules])\n"
    )
    for words, expected in ((["ping"], []), (["status"], of_http), (["jobs", "ls"], of_http)):
        command = [*words, "--server", f"journeyman+unix://{tmp_path}"]
        run = [sys.executable, "-c", code, *command]
        done = subprocess.run(run, capture_output=True, check=True, text=True)
        assert set(done.stdout.splitlines()[-1].split()) <= set(expected), command


def test_a_server_starts_without_what_few_servers_use():
    """Each is imported for the first client, rule or setting that asks for it."""
    rare = ["aiohttp", "aiormq", "jinja2", "opentelemetry", "prometheus_client"]
    rare += ["redis", "sqlite3", "rocksdict", "psycopg", "numpy", "pyarrow", "journeyman.tasks"]
    code = (
        "import sys, journeyman.cli.serve, journeyman.servers.process\n"
        f"print(*[name for name in {rare!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


def test_decisions_are_numbered_without_gaps():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "adr").glob("*.md"))
    numbers = sorted(map(int, re.findall(r"^##? (\d+)\. ", pages, re.MULTILINE)))
    assert numbers == list(range(1, len(numbers) + 1))


def test_nothing_is_left_for_later_in_the_sources():
    marker = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [relative(p) for p in SOURCES if marker.search(p.read_text())]
    assert not found


def test_every_test_that_the_threat_model_names_exists():
    rows = re.findall(r"^\| .*\]\(tests/.*$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert len(rows) > 15
    for row in rows:
        sources = "".join((ROOT / path).read_text() for path in re.findall(r"\((tests/\S+)\)", row))
        for name in re.findall(r"`(test_\w+)`", row):
            assert re.search(rf"def {name}\(", sources), f"SECURITY.md names {name}"


def test_every_test_that_the_table_of_document_002_names_exists():
    text = (ROOT / "docs" / "storage.md").read_text()
    table = text.partition("## Document 002")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .*\|$", table, re.MULTILINE)[1:]
    assert len(rows) == 27  # one for each statement of the document
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for row in rows:
        names = re.findall(r"`(\w+)`", row.split("|")[3])
        assert names, f"no test proves: {row}"
        for name in names:
            assert re.search(rf"^ *(?:def|class) {name}[(:]", sources, re.MULTILINE), name


def test_only_the_opening_of_a_store_names_its_engines():
    engine = re.compile(
        r"^\s*(?:from|import) journeyman\.storage\.(?:rocksdb|sqlite|postgres|memory)\b",
        re.MULTILINE,
    )
    users = [relative(path) for path in SOURCES if engine.search(path.read_text())]
    assert users == ["src/journeyman/storage/opening.py"]


# What touches files without a disk, and why: none of these are the files of a data directory, or
# it is certain that the directory is one of this machine.
_FILES_OF_OTHERS = {
    "backup/vault.py": "the target of backups",
    "cli/deploy.py": "files of the package, and what is made of them",
    "cli/doctor.py": "the file system of a directory of this machine",
    "cli/errors.py": "standard output",
    "cli/pipeline": "output of reports, settings of Spark",
    "cli/soak.py": "a directory of its own, and /proc",
    "cli/storage": "exports",
    "columnar/kernels": "compiled kernels",
    "config": "settings and tokens",
    "local_access.py": "tokens of users",
    "servers/core/access.py": "tokens of users",
    "servers/core/helper_process.py": "its own process",
    "servers/core/listener.py": "sockets",
    "servers/core/shared.py": "a descriptor in reserve",
    "servers/http/console/reports.py": "reports, lakes",
    "servers/preflight.py": "who may change a directory of this machine",
    "servers/process.py": "makes the disk",
    "spark/files.py": "the one place of Spark that opens files",
    "spark/lakes": "files and locks of lakes on this machine",
    "spark/maintenance/compaction.py": "offline, on this machine",
    "spark/tables.py": "output",
    "spark/session": "Spark itself",
    "spark/sinks": "output",
    "spark/streams/offsets.py": "links on files of this machine",
    "storage": "stores have directories of their own",
    "tasks": "applications",
}
_OF_OS = {
    *("stat", "lstat", "scandir", "listdir", "walk", "replace", "rename", "remove", "unlink"),
    *("truncate", "open", "link", "mkdir", "makedirs", "rmdir", "fsync", "fdatasync", "chmod"),
    *("path.exists", "path.lexists", "path.isdir", "path.isfile", "path.getsize", "statvfs"),
}
_OPENING = {"open", "RealDisk", "ReadFile", "Path", "open_regular", "open_own", "shutil.rmtree"}


def test_data_files_are_touched_through_a_disk_alone():
    """What passes a disk by finds nothing where the data directory is in a database."""
    sources = ROOT / "src" / "journeyman"
    unused = set(_FILES_OF_OTHERS)
    for path in SOURCES:
        name = path.relative_to(sources).as_posix() if path.is_relative_to(sources) else ""
        if not name or name.startswith("disk/"):
            continue
        calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text()))
                 if isinstance(n, ast.Call)]  # fmt: skip
        found = {
            call
            for call in calls
            if call in _OPENING or (call.startswith("os.") and call[3:] in _OF_OS)
        }
        allowed = {each for each in _FILES_OF_OTHERS if name == each or name.startswith(f"{each}/")}
        assert not found or allowed, f"{name} calls {sorted(found)}: ask a disk (journeyman.disk)"
        if found:
            unused -= allowed
    assert not unused
