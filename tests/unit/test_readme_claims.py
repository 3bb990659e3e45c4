"""The README leads to what readers look for in two clicks, and its figures are those measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bench.compare.__main__ import table
from bench.queue_contract import published

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

# What a reader looks for, where it is answered, and a word that the answer must have.
TOPICS = {
    "rate limit": ("docs/tasks.md#limits", "key_rate"),
    "cancel": ("docs/tasks.md#cancel", "job.cancel()"),
    "test with Django": ("docs/integrations.md#tests-with-django", "TestCase"),
    "mail on failure": ("docs/runners.md#when-a-run-fails", "mail ops@example.com"),
    "two apps on one server": ("docs/tasks.md#two-apps-on-one-server", "namespace"),
    "token": ("docs/operations.md#tokens", "controller.auth_file"),
    "TLS": ("docs/operations.md#tls", "tls_cert"),
    "backup": ("docs/backup.md", "journeyman backup"),
    "standby": ("docs/availability.md#a-standby", "load balancer"),
    "go back to ztick": ("docs/going-back.md#ztick", "handover"),
    "read the lake in a notebook": ("docs/lake.md#read-it", ".ipynb"),
    "columns of a table": ("docs/lake.md#tables", "| column | type |"),
}


def links_of(page: Path) -> set[str]:
    """The targets of a page's links, as paths from the root of the repository."""
    targets = set()
    for link in _LINK.findall(page.read_text()):
        path, hash_, anchor = link.partition("#")
        if not link.startswith(("http:", "https:")):
            target = (page.parent / path).resolve() if path else page
            targets.add(f"{target.relative_to(ROOT)}{hash_}{anchor}")
    return targets


def reached_in_two_clicks() -> set[str]:
    first = links_of(README)
    pages = {ROOT / link.partition("#")[0] for link in first}
    return first.union(*(links_of(page) for page in pages if page.suffix == ".md"))


def section(link: str) -> str:
    """The text below a heading, with its own headings; of a link without an anchor, the page."""
    path, _, anchor = link.partition("#")
    text = (ROOT / path).read_text()
    if not anchor:
        return text
    for match in re.finditer(r"^(#+) (.*)$", text, re.MULTILINE):
        name = re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", match[2]).strip().lower())
        if name == anchor:
            rest = text[match.end() :]
            end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
            return rest[: end.start()] if end else rest
    raise AssertionError(f"{link}: no such heading")


@pytest.mark.parametrize("topic", TOPICS)
def test_the_answer_is_two_clicks_away(topic):
    link, word = TOPICS[topic]
    assert link in reached_in_two_clicks()
    assert word in section(link)


def test_the_figures_beside_other_queues_are_those_measured():
    figures = json.loads((ROOT / "bench" / "results" / "tasks.json").read_text())["figures"]
    rows = re.findall(
        r"^\| \**(\w+)\**.* \| ([\d.]+) ms \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$",
        README.read_text(),
        re.MULTILINE,
    )
    measured = [
        (
            name,
            f"{figures['start'][name]:.1f}",
            f"{figures['enqueue']['1'][name]:,.0f}",
            f"{figures['enqueue']['16'][name]:,.0f}",
            f"{figures['throughput']['16'][name]:,.0f}",
        )
        for name in figures["start"]
    ]
    assert [(name.lower(), *numbers) for name, *numbers in rows] == measured


def test_the_losses_beside_other_queues_are_those_counted():
    rows = json.loads((ROOT / "bench" / "results" / "compare.json").read_text())["rows"]
    assert table(rows) in (ROOT / "docs" / "proof.md").read_text()
    assert table(rows, ("safest",)) in README.read_text()


def test_the_figures_of_another_benchmark_are_those_measured():
    result = json.loads((ROOT / "bench" / "results" / "queue_contract.json").read_text())
    assert published.tables(result["figures"]) in (ROOT / "docs" / "proof.md").read_text()


def test_every_claim_of_the_readme_has_a_link():
    claims = README.read_text().partition("| claim |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(claims) > 4
    assert [claim for claim in claims if not _LINK.search(claim)] == []
