"""Laws of the ztick protocol, for bytes and values nobody thought of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.formats.ztick import (
    CODEC,
    Amqp,
    Awf,
    Direct,
    FanOutRunner,
    Http,
    JobSet,
    Redis,
    RuleSet,
    Shell,
    Status,
    WorkQueueRunner,
)
from journeyman.protocols import Auth, AuthRequired, Foreign, foreign
from journeyman.protocols.ztick import replies
from journeyman.protocols.ztick.commands import (
    Event,
    Get,
    Query,
    RefusedCommand,
    Remove,
    RemoveRule,
    Set,
    SetMany,
    SetRule,
    TooLong,
)
from journeyman.protocols.ztick.grammar import read_runner, rule_line, runner_words
from journeyman.protocols.ztick.parser import (
    LINE_LIMIT_BYTES,
    MAX_NS,
    MAX_ROWS,
    MIN_NS,
    LineBuffer,
    ZtickParser,
    feed_sets,
    read_timestamp,
    tokenize,
)
from journeyman.protocols.ztick.replies import in_quotes, join, quote

NS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Bytes in which quotes, escapes, line ends and command words are common.
PIECES = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'"\\\n\r x\xff\0'),
        *(b"r1 ", b"SET ", b"GET ", b"RULE SET ", b"shell ", b"redis ", b"AUTH "),
        *(b"STAT\n", b"QUERY\n", b"5\n", b"2026-03-30 ", b"14:00:00\n"),
        *(b"y" * 1000, b"z" * (LINE_LIMIT_BYTES - 8)),
    ]
)
STREAMS = st.one_of(st.lists(PIECES, max_size=40).map(b"".join), st.binary(max_size=200))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
INT64 = st.integers(MIN_NS, MAX_NS)
HOSTS = st.sampled_from(["h", "example.org", "127.0.0.1", "[::1]"])
ADDRESSES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "u@", ":p@", "u:p@w@"]),
    HOSTS,
    st.sampled_from(["", ":1"]),
)
RUNNERS = st.one_of(
    st.builds(Shell, WORDS),
    st.builds(Direct, WORDS, st.lists(WORDS, max_size=4).map(tuple)),
    st.builds(Awf, WORDS, st.lists(WORDS, max_size=4).map(tuple)),
    st.builds(Http, st.sampled_from(["GET", "PUT"]), ADDRESSES.map("https://{}/p".format)),
    st.builds(Amqp, ADDRESSES.map("amqp://{}/v".format), TEXTS, TEXTS),
    st.builds(Redis, ADDRESSES.map("redis://{}/7".format), st.sampled_from(["SET"]), TEXTS),
    st.builds(
        WorkQueueRunner, st.sampled_from(["q", "A-Z_0.9"]), st.sampled_from([(), ("-ttr=5",)])
    ),
    st.builds(FanOutRunner, st.sampled_from(["q", "A-Z_0:9"])),
    st.builds(
        WorkQueueRunner, st.just("q"), TEXTS.map(lambda text: (f"-payload={text}", "-priority=-1"))
    ),
)


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream, and the same stream in pieces."""
    data = draw(STREAMS)
    places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return data, [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


# -- tokens --------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=30), max_size=8))
def test_tokens_come_back_from_the_line_they_are_joined_to(tokens: list[bytes]):
    line = join(tokens)
    assert tokenize(line) == tokens
    assert LineBuffer().feed(line + b"\n") == [line]


@given(st.binary(max_size=60))
def test_a_token_comes_back_alone_and_in_quotes(token: bytes):
    assert tokenize(quote(token)) == [token] == tokenize(in_quotes(token))


@given(st.text("ab \\\"\n\r\t'", max_size=40).map(str.encode))
@example(b'a"b\\"c" "" d\\')
def test_lines_and_tokens_agree_with_reading_byte_by_byte(text: bytes):
    data = text + b"\n"
    lines = LineBuffer().feed(data)
    assert [tokenize(line) for line in lines] == byte_by_byte(data)


def byte_by_byte(data: bytes) -> list[list[bytes]]:
    """The grammar once more, as slowly and plainly as it can be said."""
    lines: list[list[bytes]] = []
    tokens: list[bytes] = []
    bare, quoted = b"", b""
    state = "outside"
    for number in data:
        byte = bytes([number])
        if state == "escaped":
            quoted, state = quoted + byte, "quoted"
        elif state == "quoted" and byte == b"\\":
            state = "escaped"
        elif state == "quoted" and byte == b'"':
            tokens.append(quoted)
            quoted, state = b"", "outside"
        elif state == "quoted":
            quoted += byte
        elif byte in (b" ", b'"', b"\n"):
            if byte == b"\n":
                bare = bare.removesuffix(b"\r")
            if bare:
                tokens.append(bare)
            bare = b""
            if byte == b'"':
                state = "quoted"
            elif byte == b"\n":
                lines.append(tokens)
                tokens = []
        else:
            bare += byte
    return lines


# -- the machine ---------------------------------------------------------------------------------


@given(cut_streams(), st.booleans())
@example((b'r1 GET "a\\"\n', [b'r1 GET "a\\', b'"', b"\n"]), False)
def test_any_cut_of_the_bytes_gives_the_same_events(cut: tuple[bytes, list[bytes]], auth: bool):
    data, pieces = cut
    whole, parts = ZtickParser(auth_required=auth), ZtickParser(auth_required=auth)
    found: list[Event] = []
    for piece in pieces:
        found += parts.feed(piece)
        assert parts.kept_bytes < LINE_LIMIT_BYTES
    assert found == whole.feed(data)
    assert (parts.closed, parts.kept_bytes) == (whole.closed, whole.kept_bytes)


USUAL = st.builds(
    b"%b SET %b %d\n".__mod__,
    st.tuples(
        st.sampled_from([b"r", b"r1", b"AUTH", b"a:", b"'\\", b"q" * 201]),
        st.sampled_from([b"a", b"app.task.1", b"journeyman.seal.x", b"j", b"a:b", b"n" * 1001]),
        st.integers(0, 2**63),
    ),
)
MIXED = st.lists(st.one_of(USUAL, USUAL, USUAL, PIECES), max_size=12).map(b"".join)


@given(st.data(), st.one_of(MIXED, STREAMS), st.booleans())
def test_the_fast_path_gives_what_the_parser_gives(data: st.DataObject, sent: bytes, auth: bool):
    law, fast = ZtickParser(auth_required=auth), ZtickParser(auth_required=auth)
    sent = b"AUTH secret\n" * auth + sent
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=4)))
    pieces = [sent[begin:end] for begin, end in pairwise([0, *cuts, len(sent)])]
    found: list[Event] = []
    for piece in pieces:
        for event in feed_sets(fast, piece):
            found += event.one_by_one() if isinstance(event, SetMany) else [event]
    assert found == law.feed(sent)
    assert (fast.closed, fast.kept_bytes) == (law.closed, law.kept_bytes)


def test_sets_that_come_together_are_one_event_and_bounded():
    parser = ZtickParser()
    parser.feed(b"r STAT\n")
    events = feed_sets(parser, b"r SET a 1\n" * (2 * MAX_ROWS + 1) + b"r S")
    assert [len(e.rows) for e in events if isinstance(e, SetMany)] == [MAX_ROWS, MAX_ROWS, 1]
    assert feed_sets(parser, b"ET b 2\n") == [SetMany([(b"r", b"b", b"2")])]


@given(STREAMS, st.booleans())
def test_no_bytes_raise_and_every_event_can_be_handled(data: bytes, auth: bool):
    parser = ZtickParser(auth_required=auth)
    events = parser.feed(data)
    for event in events:
        if isinstance(event, RefusedCommand):
            assert tokenize_reply(replies.reply_only(event))[:2] == [event.request_id, b"ERROR"]
        elif isinstance(event, Set):
            assert CODEC.encode(JobSet(event.identifier, event.execution_ns, Status.PLANNED))
        elif isinstance(event, SetRule):
            assert CODEC.encode(RuleSet(event.identifier, event.pattern, event.runner))
    endings = [e for e in events if isinstance(e, AuthRequired | TooLong | Foreign)]
    assert endings == (events[-1:] if parser.closed else [])
    assert not any(isinstance(e, Auth) for e in events[auth:])
    assert not auth or not events or isinstance(events[0], Auth | AuthRequired | TooLong | Foreign)


def tokenize_reply(reply: bytes) -> list[bytes]:
    """The tokens of a reply, which must be one whole line for a reader of our own."""
    (line,) = LineBuffer(limit_bytes=4 * LINE_LIMIT_BYTES).feed(reply)
    return tokenize(line)


@given(st.binary(max_size=20), TEXTS, INT64)
def test_commands_come_back_from_their_lines(request_id: bytes, text: str, execution_ns: int):
    if request_id == b"AUTH" or foreign(request_id):
        return
    name = text.encode()
    lines = [
        (request_id, b"SET", name, b"%d" % execution_ns),
        (request_id, b"GET", name),
        (request_id, b"QUERY", name),
        (request_id, b"REMOVE", name),
        (request_id, b"REMOVERULE", name),
    ]
    assert ZtickParser().feed(b"".join(join(line) + b"\n" for line in lines)) == [
        Set(request_id, text, execution_ns),
        Get(request_id, text),
        Query(request_id, text),
        Remove(request_id, text),
        RemoveRule(request_id, text),
    ]


# -- replies -------------------------------------------------------------------------------------


@given(st.binary(max_size=20), TEXTS, st.sampled_from(Status), INT64)
def test_a_job_line_splits_into_its_values(
    request_id: bytes, text: str, status: Status, execution_ns: int
):
    tokens = tokenize_reply(replies.job_lines(request_id, [(text, status, execution_ns)]))
    assert tokens == [request_id, text.encode(), status.word.encode(), b"%d" % execution_ns]


@given(TEXTS, TEXTS, RUNNERS)
def test_a_rule_line_makes_the_same_rule_again(identifier: str, pattern: str, runner):
    line = rule_line(b"r1", identifier, pattern, runner)
    command = b"r1 RULE SET " + line.removeprefix(b"r1 ")
    assert ZtickParser().feed(command) == [SetRule(b"r1", identifier, pattern, runner)]


@given(st.binary(max_size=20), TEXTS)
def test_an_error_about_any_identifier_is_one_line(request_id: bytes, text: str):
    reply = replies.job_not_found(request_id, text)
    head = quote(request_id) + b" ERROR not_found job "
    assert reply.startswith(head)
    rest = reply[len(head) :]
    assert rest.endswith(b'" does not exist\n')
    assert len(rest.decode().splitlines()) == 1
    shown = tokenize(rest.removesuffix(b"\n"))
    assert shown[1:] == [b"does", b"not", b"exist"]
    if text.isprintable():
        assert shown[0] == text.encode()


@given(st.binary(max_size=30).filter(lambda data: b"\0" not in data))
def test_no_refusal_holds_a_line_break(data: bytes):
    """Whatever a client sends, its error is one line: nobody can be made to see another."""
    token = in_quotes(b"!" + data)
    for words in (b"SET a %b", b"RULE SET a b %b x", b"RULE SET a b awf w %b x"):
        [event] = ZtickParser().feed(b"r1 " + words % token + b"\n")
        assert isinstance(event, RefusedCommand)
        reply = replies.reply_only(event)
        assert reply.count(b"\n") == 1
        assert b"\r" not in reply
        assert reply.startswith(b"r1 ERROR invalid_args ")


# -- timestamps and runners ----------------------------------------------------------------------


@given(INT64)
def test_nanoseconds_come_back(execution_ns: int):
    assert read_timestamp([b"%d" % execution_ns]) == execution_ns


@given(
    st.integers(MIN_NS // NS + 100_000, MAX_NS // NS - 100_000),
    st.integers(0, NS - 1),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.sampled_from("T "),
)
def test_dates_agree_with_the_calendar(second: int, fraction: int, offset: int, between: str):
    local = EPOCH + timedelta(seconds=second, minutes=offset)
    sign, minutes = "-" if offset < 0 else "+", abs(offset)
    text = f"{local:%Y-%m-%d}{between}{local:%H:%M:%S}.{fraction:09d}"
    text += f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    assert read_timestamp([text.encode()]) == second * NS + fraction
    assert read_timestamp(text.encode().split(b" ")) == second * NS + fraction


@given(st.lists(st.text("0123456789-+:TZ. _", max_size=30).map(str.encode), min_size=1, max_size=3))
def test_a_timestamp_is_a_number_of_64_bits_or_a_reason(words: list[bytes]):
    moment = read_timestamp(words)
    assert isinstance(moment, str) or MIN_NS <= moment <= MAX_NS


@given(RUNNERS)
def test_a_runner_comes_back_from_its_words(runner):
    assert read_runner(runner_words(runner)) == runner


@given(
    st.sampled_from(["shell", "direct", "http", "awf", "amqp", "redis", "other"]),
    st.lists(
        st.one_of(TEXTS, st.sampled_from(["GET", "SET", "http://h", "amqp://h", "redis://h/1"])),
        max_size=5,
    ),
)
def test_any_words_are_a_runner_or_a_reason(name: str, args: list[str]):
    runner = read_runner([name, *args])
    if not isinstance(runner, str):
        assert read_runner(runner_words(runner)) == runner
