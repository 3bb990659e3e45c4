#!/usr/bin/env python3
"""Print how the source tree stands: size beside the budget, prose, names and packages.

    python scripts/house.py             the figures
    python scripts/house.py --list      the figures, and every place that they count

tests/test_house.py uses the same functions and allows none of these places, except those that it
lists as not finished. The budget of lines is a plan, so nothing fails when a folder exceeds it.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "journeyman"

# Lines of code that a folder should have at most.
BUDGET = {
    "formats, folds, protocols, timetables": 6500,
    "engines": 7000,
    "logs": 5000,
    "disk": 1400,
    "storage": 1700,
    "columnar": 3000,
    "servers": 14000,
    "spark": 9500,
    "client, tasks, integrations, runners, config, backup": 8500,
    "cli": 5600,
    "testing": 500,
}

MAX_IMPORTED_NAMES = 5
MAX_UNNAMED_FIELDS = 4
DIALECTS = ("ztick", "workq", "kestrel", "keyspace", "ledger")
# The layers whose functions are named after commands.
COMMAND_LAYERS = ("cli", "client", "protocols", "engines")

# Names that two layers share because they mean the same thing.
SHARED_NAMES = {
    "Codec": "what turns values or records into bytes and back",
    "Command": "Django looks for a class of this name",
    "Job": "users of the schedule and of tasks know it, from two packages",
    "fold": "the fold of a dialect, over columns as well as over records",
    "hop": "the step from frame to frame, in a kernel and beside it",
    "main": "the entry of a process",
    **dict.fromkeys(
        ("Firing", "LeasedJob", "LogFile", "Rule", "Timetable"),
        "the HTTP API shows what another layer has, and its schema has the name that users know",
    ),
}

# Words that say nothing without their neighbours.
VAGUE_NAMES = frozenset(
    {"found", "each", "mine", "theirs", "dealt", "alone", "again", "words", "said", "told"}
    | {"around", "look", "settle", "shown", "left", "gone", "of", "held", "asked", "given"}
    | {"known", "seen", "whole", "stuff", "thing", "things"}
)
# The method of a middleware, whose name users know: app.use takes any object that has it.
HOOKS = frozenset({"around"})
# A text that begins with one of these is a piece of a sentence. Words such as "Once" or "As" begin
# whole sentences as well, so they are left to the reader.
FRAGMENT_STARTS = ("What ", "Whether ", "Of ", "Nor ", "Or ", "And ", "Which ", "Whose ", "Than ")
# The docstring of a class or a function says what it is or does. One that begins with one of these
# only says how, when or whose, and leaves the rest to the name.
NO_DEFINITION = re.compile(
    r"(The same|As|Those|So many|None:|Also|Of|Within|By|For|After|Until|Before|At|On|To|From|With"
    r"|Without|In)\b"
)
_IS_CODE = re.compile(
    r"^[a-z_]+[(\[.:=/_0-9]|^[a-z]+[A-Z]|^`|^(noqa|type:|fmt:|ruff:|mypy:|pragma|pyright)"
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, and what is to be seen there."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text}"


def count_lines(path: Path) -> Counter[str]:
    """Return how many lines of a module are code, docstring, comment and blank."""
    source = path.read_text()
    lines = source.splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].strip().startswith("#"):
            kinds[token.start[0] - 1] = "comment"
    for node in docstrings(ast.parse(source)):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        kinds[first:last] = ["docstring"] * (last - first)
    return Counter(kinds)


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the nodes of all docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node, clean=False):
            expression = node.body[0]
            assert isinstance(expression, ast.Expr)
            assert isinstance(expression.value, ast.Constant)
            yield expression.value


def comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield each comment: where it begins, its text, and whether it stands on lines of its own.

    Lines that follow each other are one comment.
    """
    block: list[str] = []
    begins = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        is_own_line = token.line.strip().startswith("#")
        text = token.string.lstrip("#").strip()
        if not is_own_line:
            yield token.start[0], text, False
            continue
        if block and token.start[0] == last + 1:
            block.append(text)
        else:
            if block:
                yield begins, " ".join(block), True
            block, begins = [text], token.start[0]
        last = token.start[0]
    if block:
        yield begins, " ".join(block), True


def is_fragment(text: str, *, is_note: bool = False) -> bool:
    """Tell a sentence or a definition from a piece of one, by how it begins.

    A note at the end of a line of code may begin with a small letter, but not with a word that
    only continues a sentence.
    """
    text = text.strip()
    if not text or text.startswith("--") or _IS_CODE.match(text):
        return False
    if is_note:
        return text.capitalize().startswith(FRAGMENT_STARTS)
    return text[0].islower() or text.startswith(FRAGMENT_STARTS)


def fragments(path: Path) -> Iterator[Place]:
    """Yield the docstrings and comments of a module that are pieces of sentences."""
    source = path.read_text()
    tree = ast.parse(source)
    of_module = ast.get_docstring(tree, clean=False)
    for node in docstrings(tree):
        text = str(node.value)
        if is_fragment(text) or (text != of_module and NO_DEFINITION.match(text)):
            yield Place(path, node.lineno, text.strip().splitlines()[0])
    for line, text, is_own_line in comments(source):
        if is_fragment(text, is_note=not is_own_line):
            yield Place(path, line, f"# {text}"[:100])


def vague_names(path: Path) -> Iterator[Place]:
    """Yield functions, methods, parameters and names of a module that are one vague word."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            is_hook = node.name in HOOKS and "call" in [argument.arg for argument in every]
            names = [*([] if is_hook else [node.name]), *(argument.arg for argument in every)]
            for name in names:
                if name.strip("_") in VAGUE_NAMES:
                    yield Place(path, node.lineno, name)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Name) and target.id.strip("_").lower() in VAGUE_NAMES:
                yield Place(path, node.lineno, target.id)


def names_defined_twice(paths: list[Path]) -> dict[str, list[Place]]:
    """Return the public classes and functions whose name another module uses for something else.

    Modules that do the same for two dialects share their names. So do the layers that carry out
    one command, from the command line to the engine, and the functions that a package offers
    for a module inside it.
    """
    places = defaultdict(list)
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                is_door = path.name == "__init__.py" or _layer(path) in COMMAND_LAYERS
                if kind == "class" or not is_door:
                    places[node.name].append(Place(path, node.lineno, f"{kind} {node.name}"))
    return {
        name: where
        for name, where in sorted(places.items())
        if len({_without_dialect(place.path) for place in where}) > 1
    }


def _layer(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0]


def _without_dialect(path: Path) -> str:
    return re.sub("|".join(DIALECTS), "DIALECT", str(path.relative_to(SOURCES)))


def long_imports(path: Path) -> Iterator[Place]:
    """Yield the imports that take more than five names of one module of this package.

    Packages may offer the names of their modules, and modules of a package are no names of it.
    """
    if path.name == "__init__.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("journeyman."):
            folder = SOURCES.parent / str(node.module).replace(".", "/")
            names = [
                alias.name
                for alias in node.names
                if not (folder / alias.name).is_dir() and not (folder / f"{alias.name}.py").exists()
            ]
            if len(names) > MAX_IMPORTED_NAMES:
                yield Place(path, node.lineno, f"{len(names)} names of {node.module}")


def wide_tuples(path: Path) -> Iterator[Place]:
    """Yield the types of tuples with more than four fields, unless the type has a name."""
    tree = ast.parse(path.read_text())
    named = [node.value for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and ast.unparse(node.value) == "tuple"
            and isinstance(node.slice, ast.Tuple)
            and len(node.slice.elts) > MAX_UNNAMED_FIELDS
            and node not in named
        ):
            yield Place(path, node.lineno, ast.unparse(node))


def long_functions(paths: list[Path], at_least: int) -> list[Place]:
    """Return the functions with so many lines, the longest first."""
    measured = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= at_least:
                    measured.append(
                        (lines, Place(path, node.lineno, f"{node.name}, {lines} lines"))
                    )
    return [place for _, place in sorted(measured, key=lambda pair: -pair[0])]


def import_circles() -> dict[str, list[str]]:
    """Return the parts of each package that import themselves through their neighbours.

    A part is a module or a package; what is imported only for types counts as well.
    """
    import grimp  # a slow import that nothing else of this script needs

    graph = grimp.build_graph("journeyman")
    packages = {name.rpartition(".")[0] for name in graph.modules if "." in name}
    circles = {}
    for package in sorted(packages):
        parts = sorted(graph.find_children(package))
        uses = {
            part: {
                other
                for other in parts
                if other != part
                and graph.direct_import_exists(importer=part, imported=other, as_packages=True)
            }
            for part in parts
        }
        circle = [part for part in parts if part in _reachable(part, uses)]
        if circle:
            circles[package] = circle
    return circles


def _reachable(start: str, uses: dict[str, set[str]]) -> set[str]:
    """Return the parts that ``start`` imports, itself or through others."""
    reachable: set[str] = set()
    ahead = [start]
    while ahead:
        new = uses[ahead.pop()] - reachable
        reachable |= new
        ahead += new
    return reachable


def words_of_docs() -> dict[str, int]:
    """Return how many words each page of docs/ has, and README.md; bars of tables are no words."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    word = re.compile(r"\S*\w\S*")
    return {str(page.relative_to(ROOT)): len(word.findall(page.read_text())) for page in pages}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--list", action="store_true", help="also print every place that is counted"
    )
    every_place = parser.parse_args().list

    paths = sorted(SOURCES.rglob("*.py"))
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        parts = path.relative_to(SOURCES).parts
        sizes[parts[0] if len(parts) > 1 else "(modules)"] += count_lines(path)
    kinds = ("code", "docstring", "comment", "blank")
    print(f"{'folder':14}" + "".join(f"{kind:>10}" for kind in kinds))
    for folder, counts in sorted(sizes.items()):
        print(f"{folder:14}" + "".join(f"{counts[kind]:10,}" for kind in kinds))
    total: Counter[str] = sum(sizes.values(), Counter())
    print(f"{'all':14}" + "".join(f"{total[kind]:10,}" for kind in kinds))
    print("\ncode beside the budget")
    for folders, budget in BUDGET.items():
        code = sum(sizes[folder]["code"] for folder in folders.split(", "))
        print(f"  {folders:54}{code:8,} of {budget:6,}{'' if code <= budget else '  over'}")

    pages = words_of_docs()
    sections: dict[str, Sequence[object]] = {
        "fragments": [place for path in paths for place in fragments(path)],
        "vague names": [place for path in paths for place in vague_names(path)],
        "names with two meanings": [
            place
            for name, places in names_defined_twice(paths).items()
            if name not in SHARED_NAMES
            for place in places
        ],
        "imports of more than five names": [
            place for path in paths for place in long_imports(path)
        ],
        "tuples of more than four fields without a name": [
            place for path in paths for place in wide_tuples(path)
        ],
        "functions of 60 lines and more": long_functions(paths, 60),
        "parts of packages that import each other": [
            part for circle in import_circles().values() for part in circle
        ],
    }
    print()
    for title, places in sections.items():
        print(f"{title}: {len(places)}")
        if every_place:
            print(*(f"  {place}" for place in places), sep="\n")
    print(f"docs: {len(pages)} pages, {sum(pages.values()):,} words")


if __name__ == "__main__":
    main()
