"""ztick records as lines: the text and the JSON that ``ztick dump`` prints, byte for byte.

    SET <id> <ns> <status>                          {"type":"set","identifier",...}
    RULE SET <id> <pattern> <runner> <args>         {"type":"rule_set",...,"runner":{"type",...}}
    REMOVE <id>                                     {"type":"remove","identifier":...}
    REMOVERULE <id>                                 {"type":"remove_rule","identifier":...}

Nothing is quoted in text, as in the original: it is for reading, not for replaying. JSON escapes
control characters as ``\\n \\r \\t`` or ``\\u00xx`` and leaves every other character as it is.
"""

from __future__ import annotations

import re

from journeyman.formats.ztick import (
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    JobRemoved,
    JobSet,
    Record,
    Redis,
    RuleRemoved,
    RuleSet,
    Runner,
    Shell,
    WorkQueueRunner,
)

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
    words = " ".join(_runner_words(record.runner))
    return f"RULE SET {record.identifier} {record.pattern} {words}"


def _runner_words(runner: Runner) -> list[str]:
    match runner:
        case Shell(command):
            return ["shell", command]
        case Amqp(dsn, exchange, routing_key):
            return ["amqp", dsn, exchange, routing_key]
        case Direct(executable, args):
            return ["direct", executable, *args]
        case Awf(workflow, inputs):
            return ["awf", workflow, *(word for value in inputs for word in ("--input", value))]
        case Http(method, url):
            return ["http", method, url]
        case Redis(url, command, key):
            return ["redis", url, command, key]
        case WorkQueueRunner(name, flags):
            return ["queue", name, *flags]
        case FanOutRunner(queue):
            return ["journal", queue]


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
    runner = _object(_runner_fields(record.runner))
    return f'{{"type":"rule_set","identifier":{identifier},"pattern":{pattern},"runner":{runner}}}'


def _runner_fields(runner: Runner) -> dict[str, str | tuple[str, ...]]:
    match runner:
        case Shell(command):
            return {"type": "shell", "command": command}
        case Amqp(dsn, exchange, routing_key):
            return {"type": "amqp", "dsn": dsn, "exchange": exchange, "routing_key": routing_key}
        case Direct(executable, args):
            return {"type": "direct", "executable": executable, "args": args}
        case Awf(workflow, inputs):
            return {"type": "awf", "workflow": workflow, "inputs": inputs}
        case Http(method, url):
            return {"type": "http", "method": method, "url": url}
        case Redis(url, command, key):
            return {"type": "redis", "url": url, "command": command, "key": key}
        case WorkQueueRunner(name, flags):
            return {"type": "queue", "name": name, "flags": flags}
        case FanOutRunner(queue):
            return {"type": "journal", "queue": queue}


def _object(fields: dict[str, str | tuple[str, ...]]) -> str:
    pairs = (
        f'"{name}":{_quoted(value) if isinstance(value, str) else _array(value)}'
        for name, value in fields.items()
    )
    return "{" + ",".join(pairs) + "}"


def _array(values: tuple[str, ...]) -> str:
    return "[" + ",".join(map(_quoted, values)) + "]"


def _quoted(value: str) -> str:
    return '"' + _MUST_ESCAPE.sub(_escaped, value) + '"'


def _escaped(match: re.Match[str]) -> str:
    char = match.group()
    return _SHORT_ESCAPES.get(char) or f"\\u{ord(char):04x}"
