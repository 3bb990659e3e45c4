"""The documentation is a site: every page is built, and a link that leads nowhere fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", target],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_every_page_is_built_and_no_link_is_broken(tmp_path):
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix("")
        assert (tmp_path / place / "index.html").exists(), place
    first = (tmp_path / "index.html").read_text()
    assert 'href="cli/"' in first or 'href="operations/"' in first
    for_models = (tmp_path / "llms.txt").read_text()
    assert for_models.startswith("# Journeyman\n\n> A durable job scheduler")
    assert "- [Tasks](tasks/): Run a function later" in for_models


def test_a_link_that_leads_nowhere_fails(tmp_path):
    """The first page is the README, and without docs/ none of its links has a target."""
    settings = (ROOT / "mkdocs.yml").read_text()
    settings = settings[: settings.index("nav:\n  -")]
    settings = settings.replace("scripts/site_hooks.py", str(ROOT / "scripts" / "site_hooks.py"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "contains a link" in done.stderr
