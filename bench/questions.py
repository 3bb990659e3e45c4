"""A program of several questions: each gets a directory, gives figures, and bars to be met.

    python -m bench.<name> [--directory DIR] [--rounds N] [--only QUESTION]

Answers to all questions are written to bench/results/<name>.json, with the verdicts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from bench import peers, report

__all__ = ["Question", "Verdict", "answer"]


@dataclass(frozen=True, slots=True)
class Verdict:
    question: str
    figure: float | None  # None: could not be measured
    bar: float
    at_least: bool  # the bar is a lower bound

    @property
    def word(self) -> str:
        if self.figure is None:
            return "not measured"
        met = self.figure >= self.bar if self.at_least else self.figure <= self.bar
        return "ok" if met else "MISSED"


# (directory, rounds) -> figures, bars
Question: TypeAlias = Callable[[Path, int], tuple[Any, list[Verdict]]]


def answer(
    name: str,
    questions: Mapping[str, Question],
    known: Mapping[str, Any],
    arguments: list[str] | None,
) -> int:
    """Ask, print and write; the exit code. ``known``: what else the result should say."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (3)")
    parser.add_argument("--only", choices=questions, help="one question; nothing is written")
    options = parser.parse_args(arguments or [])
    # A program that ran before in this process may have bound it to one core, and children inherit.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    file_system = peers.file_system(Path(options.directory))
    figures = {"file_system": file_system, "rounds": options.rounds, **known}
    verdicts: list[Verdict] = []
    for question, ask in questions.items():
        if options.only in (None, question):
            with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-") as place:
                figures[question], more = ask(Path(place), options.rounds)
            verdicts += more
            print()
    _print(verdicts)
    figures["bars"] = [asdict(verdict) | {"verdict": verdict.word} for verdict in verdicts]
    if options.only is None:
        path = report.write_result(name, figures)
        print(f"\nwritten to {path.relative_to(report.ROOT)}")
    return int(any(verdict.word == "MISSED" for verdict in verdicts))


def _print(verdicts: list[Verdict]) -> None:
    print(f"{'bar':<40}{'figure':>10}{'bar':>8}")
    for verdict in verdicts:
        figure = "-" if verdict.figure is None else f"{verdict.figure:g}"
        sign = ">=" if verdict.at_least else "<="
        print(f"{verdict.question:<40}{figure:>10}{sign:>5}{verdict.bar:>6g}  {verdict.word}")
