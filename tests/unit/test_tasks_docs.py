"""The Python on the pages about tasks: it compiles, and what can run by itself runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import journeyman as jm
from journeyman.testing import InMemory

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    (page, number, code)
    for page in ("tasks.md", "integrations.md")
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    )
]


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{p}-{n}" for p, n, _ in BLOCKS])
def test_every_snippet_is_python(page, number, code):
    flags = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(code, f"{page} {number}", "exec", flags=flags, dont_inherit=True)


def test_the_first_snippet_makes_an_app_whose_jobs_run():
    names: dict[str, Any] = {"__name__": "shop"}
    exec(BLOCKS[0][2], names)
    app = names["app"]
    assert isinstance(app, jm.App)
    assert sorted(app.tasks) == ["shop.nightly", "shop.send_mail"]
    with InMemory(app) as queue:
        assert names["send_mail"].send("a@b.c", "hi").result(timeout=60) == "sent to a@b.c"
        queue.advance(days=1)
        queue.assert_sent("shop.send_mail", "boss@example.com", subject="All is well")
