"""The same fuzz targets, driven by coverage: atheris learns which inputs reach new code.

    python -m tests.fuzz.guided ztick -runs=1000000

What follows the target's name goes to libFuzzer. atheris has no wheel for every Python, so it is a
dependency group of its own (``fuzz``), and the plain loop of runner.py is what the tests use.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import atheris

__all__ = ["main"]


def main(argv: list[str]) -> None:
    name, options = argv[1], argv[2:]
    with atheris.instrument_imports(include=["journeyman"]):
        target = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(target.corpus()):
            (Path(folder) / f"seed-{number}").write_bytes(data)
        limits = ["-max_len=16384", "-timeout=30", "-rss_limit_mb=1024"]
        atheris.Setup([argv[0], *limits, *options, folder], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
