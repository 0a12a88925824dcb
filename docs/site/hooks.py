"""The hook of mkdocs.yml: pages made from the code, from the README and from notebooks, and links that leave docs/.

Every Markdown file links to files of the repository, as on its own page there. On the site those of `PAGES` are pages,
and all others are copied to `files/`.
"""

import base64
import json
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import galleries
import pictures
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

TOP = Path(__file__).parents[2]

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/gpu.md": "benchmarks/gpu.md",
} | {f"examples/{path.name}": f"examples/{path.stem}.md" for path in sorted(TOP.glob("examples/*.ipynb"))}
"""The pages whose sources are outside docs/, by path in the repository."""

SOURCES = {page: source for source, page in PAGES.items()}

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)|^(```).*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
"""The target of a relative link; or code, which has none."""


def on_startup(**_: Any) -> None:
    """Lets warnings through, which `--quiet` hides from `strict`, too."""
    logger = logging.getLogger("mkdocs")
    logger.setLevel(min(logger.level, logging.WARNING))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for source, page in PAGES.items():
        text = (TOP / source).read_text(encoding="utf-8")
        contents = notebook_page(source, json.loads(text)) if source.endswith(".ipynb") else {page: text}
        for path, content in contents.items():
            files.append(File.generated(config, path, content=content))
    made = {**reference.pages(), **galleries.pages(), **pictures.files()}
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    for source in sorted({source for file in files.documentation_pages() for source in linked_files(file)}):
        files.append(File.generated(config, f"files/{source}", abs_src_path=str(TOP / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Changes links between files of the repository into links between pages of the site."""
    here = page.file.src_uri

    def changed(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        return posixpath.relpath(site_path(repository_path(here, match[1]), here), posixpath.dirname(here) or ".")

    return LINK.sub(changed, markdown)


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Raises `PluginError` for a page that loads a script, a style or a picture from elsewhere."""
    if elsewhere := re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=.?https?:[^>]*>", output):
        raise PluginError(f"{page.file.src_uri}: loads {elsewhere[0]}")
    return output


def repository_path(page: str, target: str) -> str:
    """The path in the repository that a link on a page leads to."""
    source = SOURCES.get(page, f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def site_path(source: str, page: str) -> str:
    """The path on the site of a file of the repository. Raises `PluginError` for one that is not there."""
    if source in PAGES:
        return PAGES[source]
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    if not (TOP / source).is_file():
        raise PluginError(f"{SOURCES.get(page, page)}: a link leads to {source}, which is no file")
    return f"files/{source}"


def linked_files(file: File) -> list[str]:
    """The files outside docs/ that a page links to, and that are no pages."""
    targets = [repository_path(file.src_uri, match[1]) for match in LINK.finditer(file.content_string) if match[1]]
    return [target for target in targets if target not in PAGES and not target.startswith("docs/")]


def notebook_page(source: str, notebook: dict[str, Any]) -> dict[str, str | bytes]:
    """A notebook with its stored outputs as Markdown, and its pictures."""
    page, found = PAGES[source], {}
    lines = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        lines.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{page.removesuffix('.md')}-{len(found) + 1}.png"
                found[picture] = base64.b64decode(data["image/png"])
                lines.append(f'<img src="{posixpath.basename(picture)}" alt="figure" width="560">')
            elif "text/html" in data:
                html = "".join(data["text/html"])
                lines.append(re.sub("<style.*?</style>|(?<=<table) [^>]*", "", html, flags=re.DOTALL))
            else:
                printed = "".join(output.get("text") or data.get("text/plain", ""))
                lines.append(f"```text\n{printed.rstrip()}\n```")
    lines.append(f'<a href="../files/{source}" download>Download this notebook</a>')
    return {page: "\n\n".join(lines), f"files/{source}": json.dumps(notebook), **found}
