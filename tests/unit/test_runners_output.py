"""Head and tail of what a run said, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journeyman.runners.contract import BoundedOutput


def fed(limit_bytes: int, *chunks: bytes) -> bytes:
    output = BoundedOutput(limit_bytes)
    for chunk in chunks:
        output.feed(chunk)
    return output.text()


def test_what_fits_is_kept_whole():
    assert fed(10, b"01234", b"56789") == b"0123456789"


def test_the_middle_is_left_out_and_counted():
    assert fed(4, b"ab" + b"." * 1000 + b"yz") == b"ab\n[... 1000 bytes left out ...]\nyz"


def test_a_limit_of_nothing_keeps_nothing_but_the_count():
    assert fed(0, b"abc") == b"\n[... 3 bytes left out ...]\n"
    assert fed(0) == b""


def test_full_says_whether_more_could_be_kept():
    output = BoundedOutput(4)
    seen = [output.full]
    for chunk in (b"abc", b"d", b"e"):
        output.feed(chunk)
        seen.append(output.full)
    assert seen == [False, False, True, True]
    assert BoundedOutput(0).full


@given(st.integers(0, 20), st.lists(st.binary(max_size=10).map(lambda b: b.replace(b":", b"."))))
def test_chunks_make_no_difference(limit_bytes, chunks):
    assert fed(limit_bytes, *chunks) == fed(limit_bytes, b"".join(chunks))


def test_memory_stays_bounded():
    output = BoundedOutput(100)
    for _ in range(1000):
        output.feed(b"x" * 10_000)
    assert len(output.text()) < 200
    assert len(output._tail) <= 50
