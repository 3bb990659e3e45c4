"""What the README shows works, and prints what it says."""

from __future__ import annotations

from pathlib import Path

from tests.support.snippets import Reader


def test_a_reader_can_follow_the_readme(tmp_path):
    readme = Path(__file__).parents[2] / "README.md"
    assert Reader(tmp_path).follow(readme.read_text()) == 6
