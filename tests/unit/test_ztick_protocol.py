"""The ztick protocol line by line: what each command gives, what is refused, what is silent."""

from __future__ import annotations

import pytest

from journeyman.formats.ztick import Amqp, Awf, Direct, Http, Redis, Shell, Status
from journeyman.protocols import Auth, AuthRequired
from journeyman.protocols.ztick import replies
from journeyman.protocols.ztick.commands import (
    AuthNotNeeded,
    ErrorCode,
    Event,
    Get,
    ListRules,
    Query,
    RefusedCommand,
    Remove,
    RemoveRule,
    Set,
    SetRule,
    Stat,
    TooLong,
)
from journeyman.protocols.ztick.grammar import rule_line
from journeyman.protocols.ztick.parser import LINE_LIMIT_BYTES, LineBuffer, ZtickParser, tokenize
from journeyman.protocols.ztick.replies import Metrics, quote


def events(data: bytes, *, auth_required: bool = False) -> list[Event]:
    return ZtickParser(auth_required=auth_required).feed(data)


def event(line: bytes) -> Event:
    found = events(line + b"\n")
    assert len(found) == 1, found
    return found[0]


RUNNER_NAMES = "shell, direct, http, awf, amqp, redis, queue, journal"


def refusal(line: bytes) -> str:
    """The message of ``invalid_args``."""
    refused = event(line)
    assert isinstance(refused, RefusedCommand), refused
    assert refused.code is ErrorCode.INVALID_ARGS
    assert refused.request_id == b"r1"
    return refused.message


# -- lines and tokens ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        (b"a b c", [b"a", b"b", b"c"]),
        (b"  a   b  ", [b"a", b"b"]),
        (b"", []),
        (b"   ", []),
        (b"a\tb c", [b"a\tb", b"c"]),
        (b'a "b c" d', [b"a", b"b c", b"d"]),
        (b'ab"cd"', [b"ab", b"cd"]),
        (b'"ab"cd', [b"ab", b"cd"]),
        (b'"a""b"', [b"a", b"b"]),
        (b'"" ""', [b"", b""]),
        (rb'"say \"hi\" \\ \n"', [rb'say "hi" \ n']),
        (rb"a\b 'c d'", [rb"a\b", b"'c", b"d'"]),
        (b'"a\nb"', [b"a\nb"]),
        (b'"a\\\nb"', [b"a\nb"]),
        (b"\x00\xff a", [b"\x00\xff", b"a"]),
    ],
)
def test_tokens_of_a_line(line: bytes, tokens: list[bytes]):
    assert tokenize(line) == tokens


@pytest.mark.parametrize(
    ("token", "written"),
    [
        (b"plain", b"plain"),
        (rb"back\slash", rb"back\slash"),
        (b"tab\there", b"tab\there"),
        (b"", b'""'),
        (b"two words", b'"two words"'),
        (b'a"b', rb'"a\"b"'),
        (b"a\\ b", rb'"a\\ b"'),
        (b"line\nbreak", b'"line\nbreak"'),
        (b"end\r", b'"end\r"'),
    ],
)
def test_only_what_must_be_quoted_is_quoted(token: bytes, written: bytes):
    assert quote(token) == written
    assert tokenize(written) == [token]


def test_crlf_clients_are_understood():
    assert events(b'r1 STAT\r\nr2 GET a\r\nr3 GET "b"\r\n\r\nr4 SET a 5\r\n') == [
        Stat(b"r1"),
        Get(b"r2", "a"),
        Get(b"r3", "b"),
        Set(b"r4", "a", 5),
    ]


def test_only_one_carriage_return_is_dropped_and_none_inside_quotes():
    assert events(b'r1 GET a\r\r\nr2 GET "b\r"\n') == [Get(b"r1", "a\r"), Get(b"r2", "b\r")]


def test_a_line_break_inside_quotes_is_data():
    assert events(b'r1 GET "a\nb"\nr2 STAT\n') == [Get(b"r1", "a\nb"), Stat(b"r2")]


def test_an_open_quote_waits_and_swallows_the_lines_behind_it():
    parser = ZtickParser()
    assert parser.feed(b'r1 GET "a\nr2 STAT\n') == []
    assert parser.feed(b'"\n') == [Get(b"r1", "a\nr2 STAT\n")]


def test_an_escaped_quote_does_not_close_even_when_cut_apart():
    parser = ZtickParser()
    assert parser.feed(b'r1 GET "a\\') == []
    assert parser.feed(b'"\n') == []
    assert parser.feed(b'"\n') == [Get(b"r1", 'a"\n')]


def test_a_line_without_its_end_waits():
    parser = ZtickParser()
    assert parser.feed(b"r1 STA") == []
    assert parser.kept_bytes == 6
    assert parser.feed(b"T\nr2") == [Stat(b"r1")]
    assert parser.kept_bytes == 2


@pytest.mark.parametrize("filler", [b"x", b'"'], ids=["bare", "quoted"])
def test_a_line_of_the_limit_passes_and_one_byte_more_closes(filler: bytes):
    def line(size: int) -> bytes:
        padding = size - len(b"r1 GET \n")
        word = b"x" * padding if filler == b"x" else b'"' + b"x" * (padding - 2) + b'"'
        return b"r1 GET " + word + b"\n"

    assert len(line(LINE_LIMIT_BYTES)) == LINE_LIMIT_BYTES == 4096
    parser = ZtickParser()
    (found,) = parser.feed(line(LINE_LIMIT_BYTES))
    assert isinstance(found, Get)
    assert not parser.closed
    assert parser.feed(b"r2 STAT\n" + line(LINE_LIMIT_BYTES + 1) + b"r3 STAT\n") == [
        Stat(b"r2"),
        TooLong(),
    ]
    assert parser.feed(b"r4 STAT\n") == []
    assert (parser.closed, parser.kept_bytes) == (True, 0)


def test_the_limit_counts_the_carriage_return():
    line = b"r1 GET " + b"x" * (LINE_LIMIT_BYTES - 9) + b"\r\n"
    assert len(line) == LINE_LIMIT_BYTES
    assert len(events(line)) == 1
    assert events(b"y" + line) == [TooLong()]


def test_a_line_too_long_is_seen_before_it_ends():
    assert events(b"x" * (LINE_LIMIT_BYTES - 1)) == []
    assert events(b"x" * LINE_LIMIT_BYTES) == [TooLong()]
    assert events(b'"' + b"\n" * (LINE_LIMIT_BYTES - 1)) == [TooLong()]


def test_many_short_lines_in_one_feed_are_no_long_line():
    count = 3 * LINE_LIMIT_BYTES
    assert events(b"r STAT\n" * count) == [Stat(b"r")] * count


def test_lines_of_another_limit():
    lines = LineBuffer(limit_bytes=5)
    assert lines.feed(b"abcd\nab\nabcde\nab\n") == [b"abcd", b"ab"]
    assert lines.overflowed


# -- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            b"r1 SET backup.daily 1711612800000000000",
            Set(b"r1", "backup.daily", 1711612800 * 10**9),
        ),
        (b"r1 SET a 5 extra words", Set(b"r1", "a", 5)),
        (b'"r 1" "SET" "two words" 5', Set(b"r 1", "two words", 5)),
        (b'"" SET "" 0', Set(b"", "", 0)),
        (b"\xff\x00 SET a 1", Set(b"\xff\x00", "a", 1)),
        ("r1 SET größe 1".encode(), Set(b"r1", "größe", 1)),
        (b"r1 GET backup.daily", Get(b"r1", "backup.daily")),
        (b"r1 GET a ignored", Get(b"r1", "a")),
        (b"r1 QUERY", Query(b"r1", "")),
        (b'r1 QUERY ""', Query(b"r1", "")),
        (b"r1 QUERY backup. ignored", Query(b"r1", "backup.")),
        (b"r1 LISTRULES", ListRules(b"r1")),
        (b"r1 LISTRULES foo", ListRules(b"r1")),
        (b"r1 STAT verbose", Stat(b"r1")),
        (b"r1 REMOVE a", Remove(b"r1", "a")),
        (b"r1 REMOVERULE a", RemoveRule(b"r1", "a")),
    ],
)
def test_commands(line: bytes, command: Event):
    assert event(line) == command


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"r1",
        b'"one token\nwith a line break"',
        b"r1 FOO",
        b"r1 set a 5",
        b"r1 RULE",
        b"r1 RULE GET a",
        b"r1 RULE set a b shell x",
        b"r1 AUTH secret",
        b"AUTH",
        b"SET a 5",
    ],
)
def test_silence(line: bytes):
    assert events(line + b"\nr2 STAT\n") == [Stat(b"r2")]


@pytest.mark.parametrize("line", [b"AUTH secret", b"AUTH SET a 5", b'AUTH ""'])
def test_auth_where_it_is_not_needed_is_answered_ok(line: bytes):
    needless = event(line)
    assert isinstance(needless, AuthNotNeeded)
    assert replies.reply_only(needless) == b"OK\n"


@pytest.mark.parametrize(
    ("line", "argument"),
    [
        (b"r1 SET", "job_identifier"),
        (b"r1 SET a", "timestamp"),
        (b"r1 GET", "job_identifier"),
        (b"r1 REMOVE", "job_identifier"),
        (b"r1 REMOVERULE", "rule_identifier"),
        (b"r1 RULE SET", "rule_identifier"),
        (b"r1 RULE SET a", "pattern"),
        (b"r1 RULE SET a b", "runner"),
        (b"r1 RULE SET a b shell", "command"),
        (b"r1 RULE SET a b direct", "executable"),
        (b"r1 RULE SET a b awf", "workflow"),
        (b"r1 RULE SET a b awf w --input", "input"),
        (b"r1 RULE SET a b http", "method"),
        (b"r1 RULE SET a b http GET", "url"),
        (b"r1 RULE SET a b amqp", "dsn"),
        (b"r1 RULE SET a b amqp amqp://h", "exchange"),
        (b"r1 RULE SET a b amqp amqp://h e", "routing_key"),
        (b"r1 RULE SET a b redis", "url"),
        (b"r1 RULE SET a b redis redis://h", "command"),
        (b"r1 RULE SET a b redis redis://h SET", "key"),
    ],
)
def test_missing_arguments_are_named(line: bytes, argument: str):
    assert refusal(line) == f"missing required argument: {argument}"


@pytest.mark.parametrize(
    ("line", "argument"),
    [
        (b"r1 SET \xff 5", "job_identifier"),
        (b"r1 GET a\xc3", "job_identifier"),
        (b"r1 QUERY \xff", "pattern"),
        (b"r1 REMOVE \xff", "job_identifier"),
        (b"r1 REMOVERULE \xff", "rule_identifier"),
        (b"r1 RULE SET \xff p shell c", "rule_identifier"),
        (b"r1 RULE SET a \xff shell c", "pattern"),
        (b"r1 RULE SET a p \xff c", "runner"),
        (b"r1 RULE SET a p shell \xff", "runner argument"),
    ],
)
def test_what_the_log_cannot_hold_is_refused(line: bytes, argument: str):
    assert refusal(line) == f"{argument} is not valid UTF-8"


# -- timestamps ----------------------------------------------------------------------------------

HALF_PAST = 1774879200_000_000_000  # 2026-03-30 14:00:00 UTC


@pytest.mark.parametrize(
    ("words", "execution_ns"),
    [
        (b"0", 0),
        (b"-5", -5),
        (b"+5", 5),
        (b"007", 7),
        (b"0" * 3000 + b"7", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        (b"2026-03-30 14:00:00", HALF_PAST),
        (b'"2026-03-30 14:00:00"', HALF_PAST),
        (b'2026-03-30 "14:00:00"', HALF_PAST),
        (b"2026-03-30T14:00:00", HALF_PAST),
        (b"2026-03-30T14:00:00Z", HALF_PAST),
        (b"2026-03-30T16:00:00+02:00", HALF_PAST),
        (b"2026-03-30T16:00:00+0200", HALF_PAST),
        (b"2026-03-30T09:00:00-05", HALF_PAST),
        (b"2026-03-30 16:00:00 +02:00", HALF_PAST),
        (b"2026-03-30 14:00:00 Z", HALF_PAST),
        (b'"2026-03-30 16:00:00+02:00"', HALF_PAST),
        (b"2026-03-30T14:00:00.5Z", HALF_PAST + 500_000_000),
        (b"2026-03-30 14:00:00.000000001", HALF_PAST + 1),
        (b"2024-02-29 00:00:00", 1709164800 * 10**9),
        (b"1970-01-01 00:00:00", 0),
        (b"1969-12-31T23:59:59.999999999Z", -1),
        (b"1677-09-21T00:12:43.145224192Z", -(2**63)),
        (b"2262-04-11T23:47:16.854775807Z", 2**63 - 1),
    ],
)
def test_timestamps(words: bytes, execution_ns: int):
    assert event(b"r1 SET a " + words) == Set(b"r1", "a", execution_ns)


NOT_A_TIME = "expected nanoseconds since 1970, YYYY-MM-DD HH:MM:SS or ISO 8601"
OUT_OF_RANGE = "outside the range of 64-bit nanoseconds"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"soon", NOT_A_TIME),
        (b"1_000", NOT_A_TIME),
        (b"1.5", NOT_A_TIME),
        (b"0x10", NOT_A_TIME),
        (b"--5", NOT_A_TIME),
        ("٣".encode(), NOT_A_TIME),
        (b"9223372036854775808", OUT_OF_RANGE),
        (b"-9223372036854775809", OUT_OF_RANGE),
        (b"9" * 3000, OUT_OF_RANGE),
        (b"2026-03-30", NOT_A_TIME),
        (b"14:00:00", NOT_A_TIME),
        (b"2026-03-30 14:00", NOT_A_TIME),
        (b"2026-03-30 14:00:00 Europe/Paris", NOT_A_TIME),
        (b"2026-03-30 14:00:00 extra", NOT_A_TIME),
        (b"2026-03-30T14:00:00.1234567890Z", NOT_A_TIME),
        (b"2026-3-30 14:00:00", NOT_A_TIME),
        (b"2026-02-29 00:00:00", "there is no such day"),
        (b"2026-13-01 00:00:00", "there is no such day"),
        (b"2026-04-31 00:00:00", "there is no such day"),
        (b"0000-01-01 00:00:00", "there is no such day"),
        (b"2026-03-30 24:00:00", "there is no such time of day"),
        (b"2026-03-30 23:60:00", "there is no such time of day"),
        (b"2026-03-30 23:59:60", "there is no such time of day"),
        (b"2026-03-30T00:00:00+24:00", "there is no such offset"),
        (b"2026-03-30T00:00:00+02:60", "there is no such offset"),
        (b"2262-04-11T23:47:16.854775808Z", OUT_OF_RANGE),
        (b"1677-09-21T00:12:43.145224191Z", OUT_OF_RANGE),
        (b"9999-12-31 23:59:59", OUT_OF_RANGE),
    ],
)
def test_what_is_no_moment_is_refused_not_run_at_once(words: bytes, reason: str):
    assert refusal(b"r1 SET a " + words) == f'invalid timestamp "{words.decode()}": {reason}'


def test_a_refused_timestamp_of_any_bytes_can_be_answered():
    (refused,) = events(b'r1 SET a "\xff \\"\n"\n')
    assert isinstance(refused, RefusedCommand)
    reply = replies.reply_only(refused)
    assert reply.startswith(b'r1 ERROR invalid_args invalid timestamp "')


# -- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "runner"),
    [
        (b"shell /usr/bin/backup.sh", Shell("/usr/bin/backup.sh")),
        (b'shell "/bin/echo \\"hi\\""', Shell('/bin/echo "hi"')),
        (b'shell ""', Shell("")),
        (b"direct /usr/bin/curl -s http://e", Direct("/usr/bin/curl", ("-s", "http://e"))),
        (b"direct true", Direct("true", ())),
        (b"awf code-review", Awf("code-review", ())),
        (b"awf w --input a=1 --input b=2", Awf("w", ("a=1", "b=2"))),
        (b"http POST https://e.org/h?x=1#f", Http("POST", "https://e.org/h?x=1#f")),
        (b"http GET http://u:p@[::1]:80/ ignored", Http("GET", "http://u:p@[::1]:80/")),
        (b"http PUT http://e", Http("PUT", "http://e")),
        (b"http DELETE http://e", Http("DELETE", "http://e")),
        (
            b"amqp amqp://guest:guest@localhost:5672/ jobs key ignored",
            Amqp("amqp://guest:guest@localhost:5672/", "jobs", "key"),
        ),
        (b'amqp amqp://broker "" ""', Amqp("amqp://broker", "", "")),
        (b"amqp amqp://u:p@ss@b:1/v e k", Amqp("amqp://u:p@ss@b:1/v", "e", "k")),
        (
            b"redis redis://127.0.0.1:6379/0 PUBLISH deploy:events",
            Redis("redis://127.0.0.1:6379/0", "PUBLISH", "deploy:events"),
        ),
        (b"redis redis://h RPUSH k", Redis("redis://h", "RPUSH", "k")),
        (b"redis redis://h/255 LPUSH k", Redis("redis://h/255", "LPUSH", "k")),
        (b"redis redis://:p@h:1/ SET k", Redis("redis://:p@h:1/", "SET", "k")),
    ],
)
def test_runners(words: bytes, runner: object):
    rule = event(b'r1 RULE SET rule.1 "app. " ' + words)
    assert rule == SetRule(b"r1", "rule.1", "app. ", runner)  # type: ignore[arg-type]


def test_empty_identifier_and_pattern_pass():
    assert event(b'r1 RULE SET "" "" shell x') == SetRule(b"r1", "", "", Shell("x"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            b"Shell x",
            (
                'unknown runner "Shell": '
                "expected shell, direct, http, awf, amqp, redis, queue, journal"
            ),
        ),
        (b"http get http://e", 'unknown http method "get": expected GET, POST, PUT, DELETE'),
        (b"http PATCH http://e", 'unknown http method "PATCH": expected GET, POST, PUT, DELETE'),
        (b"http GET ftp://e", "the url must begin with http:// or https://"),
        (b"http GET e.org", "the url must begin with http:// or https://"),
        (b"http GET http://", "the url has no host"),
        (b"http GET http:///path", "the url has no host"),
        (b"http GET http://u@/path", "the url has no host"),
        (b"http GET http://e:0/", "the port in the url must be a number from 1 to 65535"),
        (b"http GET http://e:65536/", "the port in the url must be a number from 1 to 65535"),
        (b"http GET http://e:/", "the port in the url must be a number from 1 to 65535"),
        (b'http GET "http://e/a b"', "the url must not contain spaces or control characters"),
        (b'http GET "http://e/\r\nX: y"', "the url must not contain spaces or control characters"),
        (
            b"amqp amqps://u:secret@h e k",
            "amqps:// is not supported: the dsn must begin with amqp://",
        ),
        (b"amqp h:5672 e k", "the dsn must begin with amqp://"),
        (b"amqp amqp:// e k", "the dsn has no host"),
        (b"amqp amqp://h:x e k", "the port in the dsn must be a number from 1 to 65535"),
        (b"awf w input", 'unknown awf option "input": expected --input'),
        (b"awf w --input a=1 x", 'unknown awf option "x": expected --input'),
        (b"redis rediss://h SET k", "rediss:// is not supported: the url must begin with redis://"),
        (b"redis h SET k", "the url must begin with redis://"),
        (
            b"redis redis://h GET k",
            'unknown redis command "GET": expected PUBLISH, RPUSH, LPUSH, SET',
        ),
        (
            b"redis redis://h set k",
            'unknown redis command "set": expected PUBLISH, RPUSH, LPUSH, SET',
        ),
        (
            b"redis redis://h SET k extra",
            "redis takes exactly three arguments: url, command and key",
        ),
        (b"redis redis://h/256 SET k", "the database in the url must be a number from 0 to 255"),
        (b"redis redis://h/x SET k", "the database in the url must be a number from 0 to 255"),
        (
            "redis redis://h/٣ SET k".encode(),
            "the database in the url must be a number from 0 to 255",
        ),
        (b"redis redis:///0 SET k", "the url has no host"),
        (
            b"shell touch /x",
            "shell takes exactly one argument: put a command of several words in quotes",
        ),
        (b'unknown"\n\x1b"', 'unknown runner "unknown": expected ' + RUNNER_NAMES),
        (b'"a\nr2 OK"', r'unknown runner "a\nr2 OK": expected ' + RUNNER_NAMES),
        (b"shell a\0b", "an argument must not contain a NUL byte"),
        (b"direct a b\0c", "an argument must not contain a NUL byte"),
        (b"awf w --input a=\0", "an argument must not contain a NUL byte"),
    ],
)
def test_runners_that_could_never_run_are_refused(words: bytes, message: str):
    assert refusal(b"r1 RULE SET rule.1 app. " + words) == message


def test_no_refusal_repeats_a_password():
    for words in (b"amqp amqps://u:hunter2@h e k", b"redis rediss://u:hunter2@h SET k"):
        assert "hunter2" not in refusal(b"r1 RULE SET a b " + words)


# -- authentication ------------------------------------------------------------------------------


def test_auth_comes_first_and_commands_may_follow_at_once():
    found = events(b"AUTH s3cret extra\nr1 STAT\nAUTH again\nr2 STAT\n", auth_required=True)
    assert found == [Auth(b"s3cret"), Stat(b"r1"), Stat(b"r2")]


@pytest.mark.parametrize(
    "line", [b"r1 STAT", b"r1 AUTH s", b"auth s", b"r1 FOO", b"r1 SET", b"AUTH", b'"r 1" GET a']
)
def test_any_other_command_before_auth_closes(line: bytes):
    parser = ZtickParser(auth_required=True)
    assert parser.feed(line + b"\nAUTH s\nr2 STAT\n") == [AuthRequired()]
    assert parser.closed
    assert parser.feed(b"AUTH s\n") == []


def test_malformed_lines_before_auth_are_passed_over():
    assert events(b"\n  \nhello\n\r\nAUTH s\r\n", auth_required=True) == [Auth(b"s")]


def test_a_quoted_and_an_empty_secret_are_secrets():
    assert events(b'AUTH "two words"\n', auth_required=True) == [Auth(b"two words")]
    assert events(b'AUTH ""\n', auth_required=True) == [Auth(b"")]


def test_a_line_too_long_before_auth_closes_without_an_answer():
    assert events(b"x" * 5000, auth_required=True) == [TooLong()]


def test_a_secret_is_not_in_the_repr():
    assert "hunter2" not in repr(Auth(b"hunter2"))


# -- replies -------------------------------------------------------------------------------------


def test_replies_look_as_documented():
    assert replies.ok(b"req-1") == b"req-1 OK\n"
    state = replies.job_state(b"req-5", Status.PLANNED, 1711612800000000000)
    assert state == b"req-5 OK planned 1711612800000000000\n"
    line = replies.job_lines(b"req-1", [("backup.daily", Status.EXECUTED, -5)])
    assert line == b"req-1 backup.daily executed -5\n"
    assert replies.job_lines(b"r", [("a", Status.FAILED, 1), ("b c", Status.TRIGGERED, 2)]) == (
        b'r a failed 1\nr "b c" triggered 2\n'
    )
    assert replies.job_lines(b"r", []) == b""


@pytest.mark.parametrize(
    ("runner", "words"),
    [
        (Shell("/usr/bin/backup.sh"), b"shell /usr/bin/backup.sh"),
        (Shell("/bin/echo hello"), b'shell "/bin/echo hello"'),
        (Direct("/usr/bin/curl", ("-s", "http://e")), b"direct /usr/bin/curl -s http://e"),
        (Http("POST", "https://e/h"), b"http POST https://e/h"),
        (
            Awf("report", ("format=pdf", "target=main")),
            b"awf report --input format=pdf --input target=main",
        ),
        (Amqp("amqp://broker:5672", "jobs", "n"), b"amqp amqp://broker:5672 jobs n"),
        (Redis("redis://h/0", "PUBLISH", "d:e"), b"redis redis://h/0 PUBLISH d:e"),
    ],
)
def test_rule_lines_look_as_documented(runner, words: bytes):
    line = rule_line(b"req-1", "rule.x", "x.", runner)
    assert line == b"req-1 rule.x x. " + words + b"\n"


def test_errors_look_as_documented():
    assert replies.job_not_found(b"r", "backup.daily") == (
        b'r ERROR not_found job "backup.daily" does not exist\n'
    )
    assert replies.job_not_found(b"r", "a\x85\u2028b") == (
        rb'r ERROR not_found job "a\x85\u2028b" does not exist' + b"\n"
    )
    assert replies.rule_not_found(b"r", 'a"b') == (
        b'r ERROR not_found rule "a\\"b" does not exist\n'
    )
    assert replies.auth_denied(b"r") == b"r ERROR auth_denied insufficient namespace scope\n"
    assert replies.internal(b"r") == b"r ERROR internal\n"
    (refused,) = events(b"req-3 SET backup.daily\n")
    assert isinstance(refused, RefusedCommand)
    assert replies.reply_only(refused) == (
        b"req-3 ERROR invalid_args missing required argument: timestamp\n"
    )
    assert replies.AUTH_OK == b"OK\n"
    assert replies.AUTH_REQUIRED == b"ERROR auth_required\n"
    assert replies.AUTH_FAILED == b"ERROR auth_failed\n"


def test_a_request_id_that_needs_quotes_comes_back_in_quotes():
    assert replies.ok(b"two words") == b'"two words" OK\n'
    assert replies.ok(b"") == b'"" OK\n'
    assert replies.ok(b"\xff") == b"\xff OK\n"
    assert replies.error(b'a"', ErrorCode.INTERNAL) == b'"a\\"" ERROR internal\n'


def test_metrics_come_in_the_documented_order():
    metrics = Metrics(
        uptime_ns=60000000000,
        connections=1,
        jobs_total=42,
        jobs_planned=30,
        jobs_triggered=2,
        jobs_executed=8,
        jobs_failed=2,
        rules_total=5,
        executions_pending=0,
        executions_inflight=0,
        persistence="logfile",
        compression="idle",
        auth_enabled=False,
        tls_enabled=True,
        framerate=512,
    )
    assert replies.metric_lines(b"req-1", metrics).decode().splitlines() == [
        "req-1 uptime_ns 60000000000",
        "req-1 connections 1",
        "req-1 jobs_total 42",
        "req-1 jobs_planned 30",
        "req-1 jobs_triggered 2",
        "req-1 jobs_executed 8",
        "req-1 jobs_failed 2",
        "req-1 rules_total 5",
        "req-1 executions_pending 0",
        "req-1 executions_inflight 0",
        "req-1 persistence logfile",
        "req-1 compression idle",
        "req-1 auth_enabled 0",
        "req-1 tls_enabled 1",
        "req-1 framerate 512",
    ]
