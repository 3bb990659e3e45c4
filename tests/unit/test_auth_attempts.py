"""Back-off against guessing secrets."""

from __future__ import annotations

from journeyman.servers.auth import FORGET_AFTER_S, MAX_ADDRESSES, MAX_DELAY_S, Attempts


def test_delays_double_up_to_a_limit():
    attempts = Attempts()
    now_s = 0.0
    delays = []
    for _ in range(8):
        delay_s = attempts.failed("10.0.0.1", now_s)
        delays.append(round(delay_s, 3))
        now_s += delay_s
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, MAX_DELAY_S, MAX_DELAY_S]


def test_attempts_at_the_same_time_queue_up():
    attempts = Attempts()
    delays = [attempts.failed("10.0.0.1", 0.0) for _ in range(4)]
    assert [round(delay, 3) for delay in delays] == [0.1, 0.3, 0.7, 1.5]


def test_other_addresses_are_not_delayed():
    attempts = Attempts()
    for _ in range(10):
        attempts.failed("10.0.0.1", 0.0)
    assert attempts.failed("10.0.0.2", 0.0) == 0.1


def test_success_forgets_the_failures():
    attempts = Attempts()
    for _ in range(5):
        attempts.failed("10.0.0.1", 0.0)
    attempts.succeeded("10.0.0.1")
    assert attempts.failed("10.0.0.1", 0.0) == 0.1


def test_failures_are_forgotten_after_a_while():
    attempts = Attempts()
    for _ in range(5):
        attempts.failed("10.0.0.1", 0.0)
    now_s = FORGET_AFTER_S + 1
    assert round(attempts.failed("10.0.0.1", now_s), 3) == 0.1


def test_the_table_is_bounded():
    attempts = Attempts()
    for number in range(MAX_ADDRESSES + 100):
        attempts.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(attempts) == MAX_ADDRESSES


def test_an_ipv6_network_counts_as_one_address():
    attempts = Attempts()
    attempts.failed("2001:db8::1", 0.0)
    assert attempts.failed("2001:db8::2", 0.0) > 0.1
    assert attempts.failed("2001:db8:0:1::1", 0.0) == 0.1


def test_mapped_ipv4_is_the_ipv4_address():
    attempts = Attempts()
    attempts.failed("::ffff:10.0.0.1", 0.0)
    assert attempts.failed("10.0.0.1", 0.0) > 0.1
