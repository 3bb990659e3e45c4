"""Plants bugs in a copy of the sources and runs the nearest tests on the copy.

    python -m tests.mutations.lane                    every bug; the exit code is 1 if one survives
    python -m tests.mutations.lane NAME ...           these bugs
    python -m tests.mutations.lane --list             the names

A bug counts as noticed only if tests ran and failed: a copy that cannot be imported, a test that
does not exist or a run without tests is an error of the list, not a noticed bug.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIST = Path(__file__).with_name("bugs.toml")
TESTS_FAILED = 1  # pytest's exit code for: tests ran, and at least one failed
TEST_TIMEOUT_S = 120  # a bug may make a test wait for ever, which counts as noticed
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Bug:
    """One entry of bugs.toml."""

    name: str
    breaks: str  # the promise that no longer holds
    file: str  # below src/journeyman
    find: str  # stands exactly once in the file
    replace: str
    tests: tuple[str, ...]  # arguments for pytest
    gate: bool = False  # one of those that ``make test`` plants

    @property
    def source(self) -> Path:
        return ROOT / "src" / "journeyman" / self.file

    def planted(self) -> str:
        """The text of the file with the bug in it."""
        text = self.source.read_text(encoding="utf-8")
        if text.count(self.find) != 1:
            raise BugListError(
                f"{self.name}: the text to replace stands {text.count(self.find)} times in "
                f"{self.file}, not once; bring bugs.toml up to date"
            )
        return text.replace(self.find, self.replace)


@dataclass(frozen=True)
class Outcome:
    bug: Bug
    noticed: bool
    seconds: float
    output: str


class BugListError(Exception):
    """bugs.toml does not fit the tree."""


def read_bugs() -> list[Bug]:
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["bug"]
    return [Bug(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def plant_and_test(bug: Bug) -> Outcome:
    """Run the nearest tests with this bug in the sources that they import."""
    begun_s = time.monotonic()
    text = bug.planted()
    with tempfile.TemporaryDirectory(prefix="journeyman-bug-") as directory:
        copy = Path(directory) / "src"
        # Times are copied too, so that compiled modules stay valid for all but the planted one.
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("*.nbi", "*.nbc"))
        planted = copy / "journeyman" / bug.file
        planted.write_text(text, encoding="utf-8")
        # The compiled form is chosen by time and size, which may both stay the same.
        for compiled in (planted.parent / "__pycache__").glob(f"{planted.stem}.*.pyc"):
            compiled.unlink()
        done = _run_tests(copy, bug.tests)
    if done.returncode not in (0, TESTS_FAILED):
        raise BugListError(
            f"{bug.name}: pytest ended with {done.returncode}, so nothing was tested:\n"
            f"{done.stdout[-3_000:]}{done.stderr[-1_000:]}"
        )
    seconds = time.monotonic() - begun_s
    return Outcome(bug, done.returncode == TESTS_FAILED, seconds, done.stdout)


def _run_tests(sources: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """pytest of this tree, on the given sources: PYTHONPATH comes before an editable install."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(sources),
        "HYPOTHESIS_PROFILE": "planted",
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]  # those of a run that this one is part of
    options = f"-x -q --timeout={TEST_TIMEOUT_S} -p no:cacheprovider -p no:xdist".split()
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.lane", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args(arguments)
    bugs = read_bugs()
    unknown = sorted(set(options.names) - {bug.name for bug in bugs})
    if unknown:
        parser.error(f"no such bug: {', '.join(unknown)}")
    chosen = [bug for bug in bugs if not options.names or bug.name in options.names]
    if options.list:
        print("\n".join(bug.name for bug in chosen))
        return 0
    survivors = 0
    for bug in chosen:
        outcome = plant_and_test(bug)
        survivors += not outcome.noticed
        verdict = "noticed" if outcome.noticed else "NOT NOTICED"
        print(f"{verdict:12} {outcome.seconds:5.1f} s  {bug.name}: {bug.breaks}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} bugs noticed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
