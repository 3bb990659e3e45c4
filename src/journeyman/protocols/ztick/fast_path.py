r"""SETs of the usual shape, many of them in one step.

    r1 SET app.task.1 1711612800000000000\n     one expression over all that was received finds
    r2 SET app.task.2 1711612800000000000\n     them; no object is made for each
    ...                                         -> SetMany

ZtickParser is the law: ``feed`` here gives what ``ZtickParser.feed`` gives, with the SETs that came
together as one event, and one alone too (tests/property/test_ztick_protocol.py). At the first byte
that is not usual all of it goes to the parser. Usual is: printable ASCII, single spaces, no quotes,
a time of at most 19 digits, LF at the end.
"""

from __future__ import annotations

import re
from itertools import chain

from journeyman.protocols.ztick.commands import Event, SetMany
from journeyman.protocols.ztick.parser import ZtickParser

MAX_ROWS = 128  # of one event: what is decided at a stretch stays short

# A request id that ends with a colon may be a header of HTTP; the identifiers of seals are
# refused. Lengths are bounded, so that no line is over the limit.
_SET = re.compile(
    rb"^(?!AUTH )([!#-9;-~]{1,200}+) SET (?!journeyman\.seal\.)([!#-~]{1,1000}+) "
    rb"([0-8]?[0-9]{1,18})\n",
    re.MULTILINE,
)
_BETWEEN_BYTES = len(" SET  \n")


def feed(parser: ZtickParser, data: bytes) -> list[Event]:
    """The events of the lines that ``data`` completes."""
    lines = parser.lines
    end = data.rfind(b"\n") + 1
    if not parser.is_plain or not end:
        return parser.feed(data)
    if lines.rest:
        end += len(lines.rest)
        data, lines.rest = lines.rest + data, b""
    rows: list[tuple[bytes, bytes, bytes]] = _SET.findall(data, 0, end)
    if sum(map(len, chain.from_iterable(rows))) + _BETWEEN_BYTES * len(rows) != end:
        return parser.feed(data)
    events: list[Event]
    if len(rows) <= MAX_ROWS:
        events = [SetMany(rows)]
    else:
        events = [SetMany(rows[at : at + MAX_ROWS]) for at in range(0, len(rows), MAX_ROWS)]
    if end < len(data):
        events += parser.feed(data[end:])
    return events
