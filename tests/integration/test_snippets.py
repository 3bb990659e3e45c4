"""What tutorials and how-to pages tell a reader to do works, and prints what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snippets import Command, Reader, commands_of, is_like, snippets_of

DOCS = Path(__file__).parents[2] / "docs"
HOW_TO = [DOCS / f"{name}.md" for name in ("coming-from", "lake", "upgrade")]
PAGES = [*sorted((DOCS / "tutorial").glob("*.md")), *HOW_TO]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_reader_can_follow_the_page(page, tmp_path):
    assert Reader(tmp_path).follow(page.read_text()) >= 3


PAGE = """
```python title="a.py"
print("hello", end="")
```
text
```console
$ python a.py
hello
$ echo one \\
  two &&  date
one two
...
```
"""


def test_snippets_are_files_and_commands():
    file, console = snippets_of(PAGE)
    assert (file.title, file.text) == ("a.py", 'print("hello", end="")\n')
    assert commands_of(console.text)[0] == Command("python a.py", ["hello"])


def test_a_page_that_lies_is_noticed(tmp_path):
    assert Reader(tmp_path).follow(PAGE) == 2
    with pytest.raises(AssertionError, match="but the page says"):
        Reader(tmp_path).follow(PAGE.replace("\nhello", "\nbye"))


@pytest.mark.parametrize(
    ("found", "expected", "like"),
    [
        (["a"], ["a"], True),
        (["a", "b"], ["a"], False),
        (["a", "b", "c"], ["a", "..."], True),
        (["a", "b", "c"], ["...", "c"], True),
        (["id 17 done"], ["id ... done"], True),
        (["id 17 failed"], ["id ... done"], False),
        ([], [], True),
        (["a"], [], False),
    ],
)
def test_dots_stand_for_what_changes(found, expected, like):
    assert is_like(found, expected) is like
