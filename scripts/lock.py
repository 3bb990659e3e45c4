"""Writes constraints.txt: the versions installed here, of everything that Journeyman needs.

    make lock

Reads pyproject.toml and walks from its dependencies, extras and the groups `demo` and `dev` to
what they need in turn. `make setup` installs these versions, so that a set-up is the same tomorrow
as it is today.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HEAD = "# Versions that the tests ran with; `make lock` writes this file.\n"


def wanted() -> Iterator[Requirement]:
    """What pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    groups = [project["dependency-groups"][name] for name in ("demo", "dev")]
    lists = [project["project"]["dependencies"], *extras, *groups]
    for each in lists:
        yield from map(Requirement, each)


def name_of(requirement: Requirement) -> str:
    return re.sub(r"[-_.]+", "-", requirement.name).lower()


def is_needed(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def lock() -> dict[str, str]:
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    left = list(wanted())
    while left:
        requirement = left.pop()
        name = name_of(requirement)
        for extra in ("", *requirement.extras):
            if name == "journeyman" or (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                installed = distribution(name)
            except PackageNotFoundError:
                raise SystemExit(f"{name} is not installed here: run make setup first") from None
            found[name] = installed.version
            needs = [Requirement(each) for each in installed.requires or ()]
            left += [each for each in needs if is_needed(each, extra)]
    return found


if __name__ == "__main__":
    lines = [f"{name}=={version}\n" for name, version in sorted(lock().items())]
    (ROOT / "constraints.txt").write_text(HEAD + "".join(lines))
