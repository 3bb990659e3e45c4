r"""Reads the exchanges recorded with the original workq server; see the head of the file itself.

    == title                                   a section
      A C: add ... 4\r\n                       A sends; what follows, deeper, belongs to it
            ping\r\n   # remark
      A S: +OK\r\n   [0 ms]                    A receives
      N S:  <connection closed by server>      or <no reply within the wait>

``N`` is a connection that is made anew where it is needed; A, B and C live on. Pauses between two
exchanges are not recorded, and neither are a few exchanges that made queues which are shown later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TRANSCRIPT = Path(__file__).parents[2] / "golden" / "data" / "transcripts" / "workq.txt"

_STEP = re.compile(r"  ([ABCN]) ([CS]): ?(.*)")
_REMARK = re.compile(r"   # .*$")
_TOOK = re.compile(r"   \[(\d+) ms\]$")
_TOTAL = re.compile(rb"(\d+)\r\nx+\.\.\.<\d+ bytes total>$")
_ESCAPE = re.compile(r"\\(r|n|t|x[0-9a-f]{2})")
_ENDS = {"<connection closed by server>": "closed", "<no reply within the wait>": "silent"}


@dataclass(frozen=True, slots=True)
class Step:
    section: str
    number: int  # in its section, from 0
    connection: str
    is_sent: bool
    data: bytes
    end: str = ""  # "closed" or "silent", of what is received
    took_ms: int = 0


def read_transcript() -> list[Step]:
    steps: list[Step] = []
    section, number = "", 0
    found: list[str] = []
    for line in [*TRANSCRIPT.read_text().splitlines(), "== end"]:
        if found and not line.startswith("        "):
            steps.append(_step(section, number, found))
            number, found = number + 1, []
        if line.startswith("== "):
            section, number = line.removeprefix("== "), 0
        elif _STEP.match(line):
            found = [line]
        elif line.startswith("        ") and found:
            found.append(line)
    return steps


def _step(section: str, number: int, lines: list[str]) -> Step:
    match = _STEP.fullmatch(lines[0])
    assert match is not None
    connection, side, first = match.groups()
    took_ms, end, pieces = 0, "", []
    for piece in (first, *(line[8:] for line in lines[1:])):
        text = _REMARK.sub("", piece)
        if took := _TOOK.search(text):
            took_ms, text = int(took[1]), text[: took.start()]
        for words, meaning in _ENDS.items():
            if text.endswith(words):
                text, end = text.removesuffix(words).rstrip(" "), meaning
        pieces.append(text)
    data = _unescaped("".join(pieces))
    return Step(section, number, connection, side == "C", data, end, took_ms)


def _unescaped(text: str) -> bytes:
    def byte(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if word[0] == "x" else {"r": "\r", "n": "\n", "t": "\t"}[word]

    data = _ESCAPE.sub(byte, text).encode("latin-1")
    if total := _TOTAL.search(data):
        return data[: total.end(1)] + b"\r\n" + b"x" * int(total[1]) + b"\r\n"
    return data
