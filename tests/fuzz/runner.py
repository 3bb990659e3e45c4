"""A fuzz loop without dependencies: mutate a corpus, call ``check``, stop at the first failure.

A target is a module ``fuzz_<name>.py`` in this directory with

    def corpus() -> list[bytes]           whole, valid inputs to begin with
    def check(data: bytes) -> None        raises (AssertionError or anything) when a law is broken

    python -m tests.fuzz.fuzz_ztick --inputs 1000000 --seed 7

Input number i of seed s is always the same, so a failure is run again with ``--seed s --first i``.
An input that takes more than MAX_SECONDS of CPU, or makes the process grow by more than
MAX_GROWTH_BYTES, is a failure too. test_fuzz.py runs a short piece of every target.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from collections.abc import Callable
from random import Random
from types import FrameType

__all__ = ["MAX_GROWTH_BYTES", "MAX_INPUT_BYTES", "MAX_SECONDS", "fuzz", "input_number", "run"]

MAX_SECONDS = 5
MAX_GROWTH_BYTES = 256 * 1024 * 1024
MAX_INPUT_BYTES = 16 * 1024
MAX_MUTATIONS = 6

# Numbers at which formats change their mind: signs, limits, one beside them.
EDGES = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)

Check = Callable[[bytes], None]
Mutation = Callable[[Random, bytearray, list[bytes]], None]


def run(check: Check, corpus: list[bytes], argv: list[str]) -> None:
    """The program of a target: reads its options, fuzzes, prints how many inputs and how fast."""
    parser = argparse.ArgumentParser(description="Fuzz one target; ends at the first failure.")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    options = parser.parse_args(argv)
    started = time.perf_counter()
    fuzz(check, corpus, inputs=options.inputs, seed=options.seed, first=options.first)
    seconds = time.perf_counter() - started
    rate = options.inputs / max(seconds, 1e-9)
    print(f"{options.inputs} inputs in {seconds:.1f} s, {rate:.0f} inputs/s, seed {options.seed}")


def fuzz(check: Check, corpus: list[bytes], *, inputs: int, seed: int, first: int = 0) -> None:
    """Calls ``check`` on so many inputs; on a failure says which one, and raises."""
    before = signal.signal(signal.SIGPROF, _too_slow)
    floor = _peak_bytes()
    try:
        for number in range(first, first + inputs):
            data = input_number(number, corpus, seed)
            try:
                signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
                check(data)
                signal.setitimer(signal.ITIMER_PROF, 0)
                if _peak_bytes() - floor > MAX_GROWTH_BYTES:
                    raise MemoryError(f"grew by more than {MAX_GROWTH_BYTES} bytes")
            except BaseException:
                signal.setitimer(signal.ITIMER_PROF, 0)
                print(f"input {number} of seed {seed}: {data.hex()}", file=sys.stderr)
                raise
    finally:
        signal.signal(signal.SIGPROF, before)


def input_number(number: int, corpus: list[bytes], seed: int) -> bytes:
    """The input of that number: one of the corpus, mutated; now and then bytes of no origin."""
    rng = Random(seed * 1_000_003 + number)
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, MAX_MUTATIONS)):
        rng.choice(_MUTATIONS)(rng, data, corpus)
    return bytes(data[:MAX_INPUT_BYTES])


def _too_slow(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"one input took more than {MAX_SECONDS} s of CPU")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# -- mutations -----------------------------------------------------------------------------------


def _span(rng: Random, data: bytes | bytearray) -> slice:
    start = rng.randrange(len(data) + 1)
    return slice(start, min(len(data), start + rng.choice((1, 2, 4, 8, 16, 64, 256))))


def _flip_bit(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _set_edge(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    width = rng.choice((1, 2, 4, 8))
    number = (rng.choice(EDGES) * rng.choice((1, -1))) % (1 << 8 * width)
    at = rng.randrange(len(data) + 1)
    data[at : at + width] = number.to_bytes(width, rng.choice(("big", "little")))


def _nudge_byte(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    if data:
        at = rng.randrange(len(data))
        data[at] = (data[at] + rng.choice((-1, 1))) % 256


def _cut_end(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _cut_out(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    del data[_span(rng, data)]


def _repeat(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    span = _span(rng, data)
    data[span.stop : span.stop] = data[span] * rng.choice((1, 1, 2, 20))


def _insert(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 9)), bytes(rng.randrange(1, 64))))


def _splice(rng: Random, data: bytearray, corpus: list[bytes]) -> None:
    other = rng.choice(corpus)
    data[_span(rng, data)] = other[_span(rng, other)]


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bit,
    _set_byte,
    _set_edge,
    _nudge_byte,
    _cut_end,
    _cut_out,
    _repeat,
    _insert,
    _splice,
)
