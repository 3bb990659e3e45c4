"""Addresses of brokers: what they mean, and what is wrong with them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.formats.ztick import Amqp, Redis
from journeyman.protocols.ztick.grammar import read_runner
from journeyman.runners.network import AmqpDsn, RedisDsn, address, parse_amqp_dsn, parse_redis_dsn

PASSWORD = "s3cr3t"


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("amqp://host", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://host/", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://guest:guest@localhost:5672/", AmqpDsn("localhost", 5672, "guest", "guest", "/")),
        ("amqp://host/%2f", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://host/%2F", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://host//", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://host/orders", AmqpDsn("host", 5672, "guest", "guest", "orders")),
        ("amqp://host/a%2fb", AmqpDsn("host", 5672, "guest", "guest", "a/b")),
        ("amqp://host/a/b", AmqpDsn("host", 5672, "guest", "guest", "a/b")),
        ("amqp://host/%C3%BCbung", AmqpDsn("host", 5672, "guest", "guest", "übung")),
        ("amqp://host/v?x#y", AmqpDsn("host", 5672, "guest", "guest", "v?x#y")),
        ("amqp://host:1/", AmqpDsn("host", 1, "guest", "guest", "/")),
        ("amqp://host:05672", AmqpDsn("host", 5672, "guest", "guest", "/")),
        ("amqp://bob:p@host", AmqpDsn("host", 5672, "bob", "p", "/")),
        ("amqp://bob@host", AmqpDsn("host", 5672, "bob", "guest", "/")),
        ("amqp://bob:@host", AmqpDsn("host", 5672, "bob", "", "/")),
        ("amqp://:p@host", AmqpDsn("host", 5672, "guest", "p", "/")),
        ("amqp://b%40b:p%3A%2F%25@host", AmqpDsn("host", 5672, "b@b", "p:/%", "/")),
        ("amqp://bob:p@ss@host", AmqpDsn("host", 5672, "bob", "p@ss", "/")),
        ("amqp://bob:a:b@host", AmqpDsn("host", 5672, "bob", "a:b", "/")),
        ("amqp://[::1]", AmqpDsn("::1", 5672, "guest", "guest", "/")),
        ("amqp://u:p@[2001:db8::1]:99/v", AmqpDsn("2001:db8::1", 99, "u", "p", "v")),
        ("amqp://[fe80::1%25eth0]:99", AmqpDsn("fe80::1%eth0", 99, "guest", "guest", "/")),
    ],
)
def test_an_amqp_address_means(dsn, expected):
    assert parse_amqp_dsn(dsn) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://host", RedisDsn("host", 6379, None, None, 0)),
        ("redis://host/", RedisDsn("host", 6379, None, None, 0)),
        ("redis://host:6380/7", RedisDsn("host", 6380, None, None, 7)),
        ("redis://host/255", RedisDsn("host", 6379, None, None, 255)),
        ("redis://host/007", RedisDsn("host", 6379, None, None, 7)),
        ("redis://:p@host", RedisDsn("host", 6379, None, "p", 0)),
        ("redis://bob:p@host", RedisDsn("host", 6379, "bob", "p", 0)),
        ("redis://bob:%70%40@host", RedisDsn("host", 6379, "bob", "p@", 0)),
        ("redis://[::1]:1/2", RedisDsn("::1", 1, None, None, 2)),
    ],
)
def test_a_redis_address_means(url, expected):
    assert parse_redis_dsn(url) == expected


@pytest.mark.parametrize("url", ["redis://bob@host", "redis://bob:@host", "redis://:@host"])
def test_a_redis_user_without_a_password_is_nobody(url):
    assert parse_redis_dsn(url) == RedisDsn("host", 6379, None, None, 0)


@pytest.mark.parametrize(
    ("dsn", "problem"),
    [
        ("", "begin with amqp://"),
        ("amqps://host", "begin with amqp://"),
        ("AMQP://host", "begin with amqp://"),
        ("redis://host", "begin with amqp://"),
        ("amqp://", "no host"),
        ("amqp:///vhost", "no host"),
        (f"amqp://u:{PASSWORD}@", "no host"),
        (f"amqp://u:{PASSWORD}@:5672", "no host"),
        ("amqp://[::1", "no host"),
        ("amqp://::1", "no host"),
        ("amqp://host:", "port"),
        ("amqp://host:0", "port"),
        ("amqp://host:65536", "port"),
        ("amqp://host:x", "port"),
        ("amqp://host:-1", "port"),
        ("amqp://host:٣", "port"),
        ("amqp://host:" + "9" * 5000, "port"),
        (f"amqp://%ff:{PASSWORD}@host", "user in the address is not UTF-8"),
        ("amqp://u:%ff@host", "password in the address is not UTF-8"),
        ("amqp://host/%ff", "vhost in the address is not UTF-8"),
        (f"amqp://u%00:{PASSWORD}@host", "NUL"),
    ],
)
def test_a_bad_amqp_address_is_told_without_repeating_it(dsn, problem):
    phrase = parse_amqp_dsn(dsn)
    assert isinstance(phrase, str)
    assert problem in phrase
    assert PASSWORD not in phrase


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("rediss://host", "begin with redis://"),
        ("redis://host/256", "database"),
        ("redis://host/x", "database"),
        ("redis://host/-1", "database"),
        ("redis://host/1/2", "database"),
        ("redis://host/1?db=2", "database"),
        (f"redis://:{PASSWORD}/x@host", "no host"),
    ],
)
def test_a_bad_redis_address_is_told_without_repeating_it(url, problem):
    phrase = parse_redis_dsn(url)
    assert isinstance(phrase, str)
    assert problem in phrase
    assert PASSWORD not in phrase


def test_passwords_do_not_show_when_an_address_is_printed():
    assert PASSWORD not in repr(parse_amqp_dsn(f"amqp://u:{PASSWORD}@h"))
    assert PASSWORD not in repr(parse_redis_dsn(f"redis://u:{PASSWORD}@h"))


def test_addresses_of_six_bytes_and_more_stand_in_brackets():
    assert address("::1", 80) == "[::1]:80"
    assert address("host", 80) == "host:80"


PIECES = st.lists(
    st.sampled_from(
        ["a", "1", "0", "255", ":", "@", "/", "[", "]", "::1", ".", "%", "%41", "%2f", "?", "ü"]
    ),
    max_size=12,
).map("".join)


@given(PIECES)
def test_what_rule_set_accepts_can_be_run(text):
    """Unless it hides bytes behind percent signs that are no text: `%aa`, `%00`."""
    if isinstance(rule := read_runner(["amqp", f"amqp://{text}", "", ""]), Amqp):
        amqp = parse_amqp_dsn(rule.dsn)
        assert isinstance(amqp, AmqpDsn) or re.search("UTF-8|NUL", amqp)
    if isinstance(rule := read_runner(["redis", f"redis://{text}", "SET", "k"]), Redis):
        redis = parse_redis_dsn(rule.url)
        assert isinstance(redis, RedisDsn) or re.search("UTF-8|NUL", redis)
