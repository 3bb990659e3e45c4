"""What the programs that compare servers have in common: options, rounds, bars.

read_options   --directory, --rounds, --only
best_of        the subjects take turns; the best round of each counts
ask_all        every question in a directory of its own; the table of bars; the result is kept
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.generator import Rate

__all__ = ["Verdict", "ask_all", "best_of", "print_verdicts", "read_options"]


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


def print_verdicts(verdicts: list[Verdict]) -> list[dict[str, Any]]:
    """The table of bars; the same as figures."""
    print(f"{'bar':<40}{'figure':>10}{'bar':>8}")
    for verdict in verdicts:
        figure = "-" if verdict.figure is None else f"{verdict.figure:g}"
        sign = ">=" if verdict.at_least else "<="
        print(f"{verdict.question:<40}{figure:>10}{sign:>5}{verdict.bar:>6g}  {verdict.word}")
    return [asdict(verdict) | {"verdict": verdict.word} for verdict in verdicts]


def best_of(rounds: int, subjects: dict[str, Callable[[int], Rate]]) -> dict[str, Rate]:
    """The subjects in turn; of each its quickest round. They are told the number of the round."""
    best: dict[str, Rate] = {}
    for number in range(rounds):
        for name, subject in subjects.items():
            rate = subject(number)
            if name not in best or rate.per_second > best[name].per_second:
                best[name] = rate
    return best


def read_options(
    parser: argparse.ArgumentParser, questions: Iterable[str], arguments: list[str] | None
) -> argparse.Namespace:
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (3)")
    parser.add_argument("--only", choices=questions, help="one question; nothing is written")
    # A program that ran before in this process may have bound it to one core, and children inherit.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return parser.parse_args(arguments or [])


def ask_all(
    program: str,
    questions: Mapping[str, Callable[[Path], tuple[Any, list[Verdict]]]],
    figures: dict[str, Any],
    options: argparse.Namespace,
    *,
    keep: bool = True,
) -> int:
    """The exit code: 1 if a bar was missed."""
    verdicts: list[Verdict] = []
    for name, ask in questions.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-") as place:
                figures[name], more = ask(Path(place))
            verdicts += more
            print()
    figures["bars"] = print_verdicts(verdicts)
    if options.only is None and keep:
        path = report.write_result(program, figures)
        print(f"\nwritten to {path.relative_to(report.ROOT)}")
    return int(any(verdict.word == "MISSED" for verdict in verdicts))
