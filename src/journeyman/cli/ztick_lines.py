"""ztick records as lines: the text and the JSON that ``ztick dump`` prints, byte for byte.

    SET <id> <ns> <status>                          {"type":"set","identifier",...}
    RULE SET <id> <pattern> <runner> <args>         {"type":"rule_set",...,"runner":{"type",...}}
    REMOVE <id>                                     {"type":"remove","identifier":...}
    REMOVERULE <id>                                 {"type":"remove_rule","identifier":...}

Nothing is quoted in text, as in the original: it is for reading, not for replaying. JSON escapes
control characters as ``\\n \\r \\t`` or ``\\u00xx`` and leaves every other character as it is.
"""

from __future__ import annotations

import dataclasses
import re

from journeyman.formats.ztick import JobRemoved, JobSet, Record, RuleRemoved, RuleSet, Runner
from journeyman.formats.ztick.runners import runner_word
from journeyman.protocols.ztick.rules import runner_words

_MUST_ESCAPE = re.compile(r'[\x00-\x1f"\\]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def text(record: Record) -> str:
    """The line of ``dump --format text``."""
    if isinstance(record, JobSet):
        return f"SET {record.identifier} {record.execution_ns} {record.status.word}"
    if isinstance(record, JobRemoved):
        return f"REMOVE {record.identifier}"
    if isinstance(record, RuleRemoved):
        return f"REMOVERULE {record.identifier}"
    words = " ".join(runner_words(record.runner))
    return f"RULE SET {record.identifier} {record.pattern} {words}"


def json_text(record: Record) -> str:
    """The line of ``dump --format json``."""
    identifier = _quoted(record.identifier)
    if isinstance(record, JobSet):
        return (
            f'{{"type":"set","identifier":{identifier},'
            f'"execution":{record.execution_ns},"status":"{record.status.word}"}}'
        )
    if isinstance(record, JobRemoved):
        return f'{{"type":"remove","identifier":{identifier}}}'
    if isinstance(record, RuleRemoved):
        return f'{{"type":"remove_rule","identifier":{identifier}}}'
    assert isinstance(record, RuleSet)
    pattern = _quoted(record.pattern)
    runner = _object(record.runner)
    return f'{{"type":"rule_set","identifier":{identifier},"pattern":{pattern},"runner":{runner}}}'


def _object(runner: Runner) -> str:
    named = [("type", runner_word(runner))]
    named += [(each.name, getattr(runner, each.name)) for each in dataclasses.fields(runner)]
    pairs = (
        f'"{name}":{_quoted(value) if isinstance(value, str) else _array(value)}'
        for name, value in named
    )
    return "{" + ",".join(pairs) + "}"


def _array(values: tuple[str, ...]) -> str:
    return "[" + ",".join(map(_quoted, values)) + "]"


def _quoted(value: str) -> str:
    return '"' + _MUST_ESCAPE.sub(_escaped, value) + '"'


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"
