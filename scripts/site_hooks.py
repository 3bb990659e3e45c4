"""What MkDocs cannot do by itself: pages from outside of docs/, links to files that are no page.

README.md                                 the first page of the site
CHANGELOG.md, CONTRIBUTING.md, SECURITY.md  pages beside it
api_reference.py, columns_reference.py, command_reference.py
                                          pages that are made from the source
[the log](../src/journeyman/logs.py)      plain text: sources are not part of the site
the tokens of the console                 colours of the site
llms.txt                                  the pages with their first sentences, for language models
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import api_reference
import columns_reference
import command_reference

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md"} | {
    name: name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
}
GENERATED = {
    "api-reference.md": api_reference.page,
    "columns-reference.md": columns_reference.page,
    "command-reference.md": command_reference.page,
}
STYLE = "stylesheets/journeyman.css"
TOKENS = ROOT / "src" / "journeyman" / "servers" / "http" / "console" / "assets" / "tokens.css"
# What the theme calls the tokens. Its header is dark in both schemes.
THEME = """
:root, [data-md-color-scheme] {
  --md-primary-fg-color: #0b6570; --md-accent-fg-color: var(--accent);
  --md-typeset-a-color: var(--accent); --md-default-bg-color: var(--paper);
  --md-default-fg-color: var(--ink); --md-default-fg-color--light: var(--dim);
  --md-code-bg-color: var(--frame); --md-typeset-color: var(--ink);
}
"""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SCHEME = re.compile(r"[a-z]+:")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for name, page in GENERATED.items():
        files.append(File.generated(config, name, content=page()))
    files.append(File.generated(config, STYLE, content=TOKENS.read_text() + THEME))
    config.extra_css.append(STYLE)
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Links relative to the repository become links of the site."""
    source = page.file.src_uri
    outside = {uri: name for name, uri in PAGES.items()}
    here = outside.get(source, posixpath.join("docs", source))  # where it is in the repository

    def link(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if not path or _SCHEME.match(path):
            return match[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        uri = PAGES.get(there, there.removeprefix("docs/"))
        is_page = there in PAGES or there.startswith("docs/")
        if not is_page or files.get_file_from_path(uri) is None:
            return match[0] if is_page else text  # a page that is missing must fail
        relative = posixpath.relpath(uri, posixpath.dirname(source) or ".")
        return f"{image}[{text}]({relative}{hash_}{anchor})"

    return _LINK.sub(link, markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Write llms.txt: every page of docs/ with its address and its first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        title, _, rest = path.read_text().partition("\n")
        paragraphs = [part for part in rest.split("\n\n") if part.strip()[:1].isalpha()]
        first = " ".join(paragraphs[0].split()).partition(". ")[0].rstrip(".") if paragraphs else ""
        plain = _LINK.sub(r"\2", first)
        lines.append(f"- [{title.lstrip('# ')}]({name}/): {plain}")
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n")
