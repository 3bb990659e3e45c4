"""No credentials leave the runners, however an address is written or cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.runners import redact
from journeyman.runners.contract import BoundedOutput, failed_run, quote_name, redact_bytes

SECRET = "QXZ-JKV7"  # no two letters of it occur in any other text here


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("nothing to hide", "nothing to hide"),
        ("mail me@example.com", "mail me@example.com"),
        ("http://host/path", "http://host/path"),
        (f"redis://:{SECRET}@host:6379/0", "redis://***@host:6379/0"),
        (f"amqp://bob:{SECRET}@host/vhost", "amqp://***@host/vhost"),
        (f"amqps://bob@x:{SECRET}@host/vhost", "amqps://***@host/vhost"),
        (f"http://bob:a/{SECRET}@host", "http://***@host"),
        (f'{{"dsn":"amqp://u:{SECRET}@h"}}', '{"dsn":"amqp://***@h"}'),
        (
            f"first http://a:{SECRET}@b, then http://c:{SECRET}@d",
            "first http://***@b, then http://***@d",
        ),
        (f"http://a:{SECRET}@b,http://c:{SECRET}@d", "http://***@d"),
        (f"tab\thttp://a:{SECRET}@b\nline", "tab\thttp://***@b\nline"),
    ],
)
def test_userinfo_is_taken_out_of_addresses(text, expected):
    assert redact(text) == expected


def test_redacting_twice_changes_nothing_more():
    once = redact(f"x http://u:{SECRET}@h y")
    assert redact(once) == once


def test_bytes_that_are_no_text_stay_as_they_are():
    data = b"\xff\xfe http://u:\xff" + SECRET.encode() + b"@h \x00"
    assert redact_bytes(data) == b"\xff\xfe http://***@h \x00"


def test_lone_surrogates_survive():
    assert redact("\udcff http://u:p@h") == "\udcff http://***@h"


def test_hostile_text_takes_no_longer_than_friendly_text():
    """Quadratic work on a mebibyte would not come to an end within the limit of a test."""
    for part in (b"a", b"a://", b"://", b"@", b"a://b "):
        redact_bytes(part * (1024 * 1024 // len(part)))


@given(
    user=st.text(st.characters(exclude_categories=["Z", "C"]), max_size=10),
    before=st.text(max_size=30),
    behind=st.text(max_size=30),
)
def test_a_password_never_gets_through(user, before, behind):
    text = f"{before} redis://{user}:{SECRET}@host {behind}"
    assert SECRET not in redact(text)


@given(limit=st.integers(0, 80), chunk=st.integers(1, 40), lead=st.integers(0, 60))
def test_no_cut_of_the_output_lets_a_password_through(limit, chunk, lead):
    said = b"." * lead + b" http://user:" + SECRET.encode() + b"@host/ " + b"." * 60
    output = BoundedOutput(limit)
    for start in range(0, len(said), chunk):
        output.feed(said[start : start + chunk])
    text = output.text()
    for part in range(len(SECRET) - 1):
        # Even two letters of it would be two too many.
        assert SECRET[part : part + 2].encode() not in text


def test_reasons_and_names_are_redacted():
    address = f"http://user:{SECRET * 30}@host"
    assert SECRET not in failed_run(f"cannot reach {address}").reason
    assert SECRET not in quote_name(address)


def test_reasons_are_one_printable_line_of_bounded_length():
    reason = failed_run("first\nsecond\x1b[31m\x00 \u2028 \udcff" + "x" * 10_000).reason
    assert reason.startswith(r"first\nsecond\x1b[31m\x00 \u2028 \udcff")
    assert reason.isprintable()
    assert len(reason) == 500
