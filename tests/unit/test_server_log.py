"""What the server says about itself."""

from __future__ import annotations

import json
import threading

from journeyman.config import LogLevel, MessageFormat
from journeyman.servers.core.server_log import MAX_WAITING_LINES, LineThread, ServerLog
from journeyman.testing import ManualClock

NOW_NS = 1_774_879_200_123_456_789  # 2026-03-30T14:00:00.123456789Z


def lines_of(
    level: LogLevel = LogLevel.INFO, format_: MessageFormat = MessageFormat.TEXT
) -> tuple[list[str], ServerLog]:
    lines: list[str] = []
    return lines, ServerLog(ManualClock(NOW_NS), lines.append, level=level, format_=format_)


def test_a_line_has_time_level_and_message():
    lines, say = lines_of()
    say.info("listening on 127.0.0.1:5678")
    assert lines == ["2026-03-30T14:00:00.123Z INFO listening on 127.0.0.1:5678\n"]


def test_fields_follow_the_message():
    lines, say = lines_of()
    say.warn("run failed", job="a b", reason="exit 1", code=3)
    assert lines == ['2026-03-30T14:00:00.123Z WARN run failed job="a b" reason="exit 1" code=3\n']


def test_json_lines_are_objects():
    lines, say = lines_of(format_=MessageFormat.JSON)
    say.error("no room", path="é\n", bytes=5)
    assert json.loads(lines[0]) == {
        "time": "2026-03-30T14:00:00.123Z",
        "level": "error",
        "message": "no room",
        "path": "é\n",
        "bytes": 5,
    }


def test_levels_below_the_chosen_one_are_silent():
    said = {}
    for level in LogLevel:
        lines, say = lines_of(level)
        for each in (say.error, say.warn, say.info, say.debug):
            each("x")
        said[str(level)] = len(lines)
    assert said == {"off": 0, "error": 1, "warn": 2, "info": 3, "debug": 4, "trace": 4}


def test_a_line_is_one_line_whatever_is_in_it():
    lines, say = lines_of()
    say.info("two\nlines", job="a\r\nb", odd="\udcff")
    assert lines[0].count("\n") == 1
    assert "\r" not in lines[0]
    assert lines[0].encode()


def test_passwords_in_addresses_do_not_get_into_lines():
    for format_ in MessageFormat:
        lines, say = lines_of(format_=format_)
        say.info("to amqp://guest:hunter2@host/", url="redis://:hunter2@host/0")
        assert "hunter2" not in lines[0]
        assert "host" in lines[0]


def test_lines_leave_in_order_and_before_close_returns():
    written: list[str] = []
    thread = LineThread(written.append)
    for number in range(1000):
        thread.write(f"{number}\n")
    thread.close()
    assert written == [f"{number}\n" for number in range(1000)]


def test_a_reader_that_stalls_costs_lines_but_never_time():
    gate = threading.Event()
    written: list[str] = []

    def stall(line: str) -> None:
        gate.wait(60)
        written.append(line)

    thread = LineThread(stall)
    for number in range(MAX_WAITING_LINES + 500):
        thread.write(f"{number}\n")
    gate.set()
    thread.close()
    assert MAX_WAITING_LINES <= len(written) <= MAX_WAITING_LINES + 1
    assert any("lines were dropped" in line for line in written)


def test_a_closed_stderr_does_not_end_the_thread():
    written: list[str] = []
    fail = [True]

    def write(line: str) -> None:
        if fail.pop() if fail else False:
            raise BrokenPipeError
        written.append(line)

    thread = LineThread(write)
    thread.write("lost\n")
    thread.write("kept\n")
    thread.close()
    assert len(written) == 1
    assert written[0].startswith("kept\n")
