"""A short piece of every fuzz target, and the fuzz loop itself."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.fuzz import runner

TARGETS = sorted(p.stem for p in Path(__file__).parent.glob("fuzz_*.py"))
INPUTS = 2_000
SEED = 20_240_501  # another stretch than the long runs'


@pytest.mark.parametrize("name", TARGETS)
def test_target_holds_for_a_short_run(name: str):
    target = importlib.import_module(f"tests.fuzz.{name}")
    runner.fuzz(target.check, target.corpus(), inputs=INPUTS, seed=SEED)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_itself_passes(name: str):
    target = importlib.import_module(f"tests.fuzz.{name}")
    corpus = target.corpus()
    assert corpus
    for data in corpus:
        target.check(data)


def test_failing_input_is_named_so_that_it_can_be_run_again(capsys: pytest.CaptureFixture[str]):
    def check(data: bytes) -> None:
        assert b"\xff" not in data

    with pytest.raises(AssertionError):
        runner.fuzz(check, [b"abc"], inputs=1_000, seed=3)
    words = capsys.readouterr().err.split()
    number, shown = int(words[1]), bytes.fromhex(words[-1])
    assert runner.input_number(number, [b"abc"], seed=3) == shown
    assert b"\xff" in shown


def test_input_that_takes_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "MAX_SECONDS", 0.05)

    def spin(data: bytes) -> None:
        while True:
            pass

    with pytest.raises(TimeoutError):
        runner.fuzz(spin, [b"abc"], inputs=1, seed=1)


def test_input_that_takes_too_much_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runner, "MAX_GROWTH_BYTES", -1)
    with pytest.raises(MemoryError):
        runner.fuzz(lambda data: None, [b"abc"], inputs=1, seed=1)


def test_run_says_how_many_and_how_fast(capsys: pytest.CaptureFixture[str]):
    runner.run(lambda data: None, [b"abc"], ["--inputs", "10", "--seed", "5"])
    assert capsys.readouterr().out.startswith("10 inputs in ")
