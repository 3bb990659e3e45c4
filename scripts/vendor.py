"""Brings the console's JavaScript libraries from npm packages, checked by their hashes.

    python scripts/vendor.py            writes the files below VENDOR, with their licences
    python scripts/vendor.py --check    says whether what is there has the hashes below

Run by hand when a version changes; needs npm for the download alone. Nothing of this runs when the
package is built, installed or used.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "src" / "journeyman" / "servers" / "http" / "console" / "assets" / "vendor"
AXE = ROOT / "tests" / "browser" / "vendor"


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    sha256: str  # of the tarball
    files: dict[str, str]  # in the package -> here
    where: Path = VENDOR


PACKAGES = (
    Package(
        "idiomorph",
        "0.8.0",
        "c2b48584153f0167b5c98cb815576338ccd82a97378e53fbf29d139dfd67207e",
        {"dist/idiomorph.min.js": "idiomorph.js", "LICENSE": "idiomorph.LICENSE"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        {
            "dist/uPlot.iife.min.js": "uplot.js",
            "dist/uPlot.min.css": "uplot.css",
            "LICENSE": "uplot.LICENSE",
        },
    ),
    Package(
        "axe-core",
        "4.14.0",
        "2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af",
        {"axe.min.js": "axe.js", "LICENSE": "axe.LICENSE"},
        AXE,
    ),
)


def bring(package: Package) -> None:
    with tempfile.TemporaryDirectory() as directory:
        wanted = f"{package.name}@{package.version}"
        subprocess.run(["npm", "pack", "--silent", wanted], cwd=directory, check=True)
        (archive,) = Path(directory).glob("*.tgz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != package.sha256:
            raise SystemExit(f"{wanted} has the hash {digest}, expected {package.sha256}")
        package.where.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as files:
            for source, target in package.files.items():
                member = files.extractfile(f"package/{source}")
                assert member is not None
                (package.where / target).write_bytes(member.read())
    write_hashes(package.where)


def write_hashes(where: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(where.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (where / "SHA256SUMS").write_text("".join(lines))


def check(where: Path) -> list[str]:
    """The names of files that are not as they were brought."""
    lines = (where / "SHA256SUMS").read_text().splitlines()
    known = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    there = {path.name for path in where.iterdir()} - {"SHA256SUMS"}
    wrong = [
        name
        for name in there & set(known)
        if hashlib.sha256((where / name).read_bytes()).hexdigest() != known[name]
    ]
    return sorted([*wrong, *(there ^ set(known))])


def main() -> int:
    if "--check" in sys.argv:
        wrong = [name for where in (VENDOR, AXE) for name in check(where)]
        sys.stdout.write("".join(f"{name} is not as it was brought\n" for name in wrong))
        return 1 if wrong else 0
    for package in PACKAGES:
        bring(package)
    return 0


if __name__ == "__main__":
    sys.exit(main())
