"""Print the plan of every pipeline command, as ``--explain`` shows it.

    python scripts/explain.py

The commands run with ``--explain`` on small generated logs, in one session on two cores. Only the
trees are printed, without the numbers and paths that differ from run to run, so that the output
before and after a change can be compared.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.spark.session import build_session

# command -> its examples: the words that follow it
EXAMPLES: dict[str, list[list[str]]] = {
    "replay": [["{ztick}"], ["{workq}"], ["{kestrel}"], ["{ztick}", "--output", "state"]],
    "compact": [["{ztick}"], ["{kestrel}"]],
    "clean": [["{workq}"]],
    "archive": [["{workq}", "--output", "{new}"]],
    "convert": [
        ["{ztick}", "--to", "workq", "--output", "{new}"],
        ["{workq}", "--to", "ztick", "--output", "{new}"],
        ["{kestrel}", "--to", "workq", "--output", "{new}"],
        ["{workq}", "--to", "keyspace", "--output", "{new}"],
    ],
    "history": [
        ["{workq}"],
        ["{workq}", "--view", "depth"],
        ["{workq}", "--view", "latency"],
        ["{kestrel}", "--view", "lag"],
    ],
    "audit": [["{workq}"]],
    "report": [["{workq}", "--output", "{new}"]],
    "redrive": [["{workq}"]],
    "sql": [["{ztick}", "--execute", "SELECT status, count(*) FROM jobs GROUP BY status"]],
}

_CHANGING = (
    (re.compile(r"#\d+L?"), ""),
    (re.compile(r"plan_id=\d+"), ""),
    (re.compile(r" \(\d+\)$", re.MULTILINE), ""),
    (re.compile(r"^(\W*)\* ", re.MULTILINE), r"\1"),  # whole-stage code generation
)


def main() -> int:
    build_session("local[2]", {"spark.sql.shuffle.partitions": "2"}, "plans", small=True)
    with tempfile.TemporaryDirectory(prefix="journeyman-plans-") as directory:
        places = _logs(Path(directory))
        parts = [_section(command, places) for command in EXAMPLES]
    sys.stdout.write("\n".join(parts) + "\n")
    return 0


def _logs(directory: Path) -> dict[str, str]:
    places = {"ztick": "schedule.log", "workq": "cmdlog", "kestrel": "journal"}
    for dialect, name in places.items():
        _run("generate", dialect, str(directory / name), "--records", "1000", "--quiet")
    return {**{each: str(directory / name) for each, name in places.items()}, "new": "new"}


def _section(command: str, places: dict[str, str]) -> str:
    lines = [f"## {command}", ""]
    for words in EXAMPLES[command]:
        actual = [word.format(**places) for word in words]
        printed = _run("pipeline", command, *actual, "--explain")
        named = {name: Path(path).name for name, path in places.items()}
        lines += [f"`{_words(command, words, named)}`", "", "```", _trees(printed), "```", ""]
    return "\n".join(lines)


def _words(command: str, words: list[str], named: dict[str, str]) -> str:
    shown = [word.format(**named) for word in words]
    quoted = [f"'{word}'" if " " in word else word for word in shown]
    return " ".join(["journeyman pipeline", command, *quoted, "--explain"])


def _run(*words: str) -> str:
    result = CliRunner().invoke(journeyman, list(words))
    if result.exit_code != 0:
        raise SystemExit(f"{' '.join(words)}: {result.stderr}")
    return result.stdout


def _trees(printed: str) -> str:
    """The trees of the plans, each under the name of its table, if it has one."""
    kept: list[str] = []
    is_tree = False
    for line in printed.splitlines():
        if line.startswith("# "):
            kept += ([""] if kept else []) + [line]
            is_tree = False
        elif line == "== Physical Plan ==":
            is_tree = True
        elif not line.strip():
            is_tree = False
        elif is_tree:
            kept.append(line.rstrip())
    text = "\n".join(kept)
    for pattern, instead in _CHANGING:
        text = pattern.sub(instead, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
