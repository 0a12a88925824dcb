"""The card of an exported folder: a README.md that the Hugging Face Hub shows, with metadata, results with intervals,
and what is required to run it again."""

from collections.abc import Mapping
from typing import Any

from numerate.config import yaml_text
from numerate.reports.content import Code, Content, Facts, Folded, Heading, Note, without_empty_blocks
from numerate.reports.sections import CLOSING_SECTIONS, SECTIONS, Subject
from numerate.reports.table import TextTable


def card(subject: Subject, title: str, introduction: str, metadata: Mapping[str, Any]) -> str:
    """The headline and the tables of a run or a comparison in Markdown, after its metadata and an introduction."""
    sections = [*(section for section in SECTIONS if section.in_terminal), *CLOSING_SECTIONS]
    found = [section.of(subject) for section in sections]
    texts = [f"---\n{yaml_text(dict(metadata))}---", f"# {title}", introduction, subject.headline]
    for heading, content in found:
        if text := to_markdown(content):
            texts += [f"## {heading}", text] if heading else [text]
    return "\n\n".join(texts) + "\n"


def to_markdown(content: Content) -> str:
    """Content in Markdown; figures, and what only a page can show, are left out.

    >>> print(to_markdown([Heading("Commands"), Code("numerate run quickstart")]))
    ### Commands
    <BLANKLINE>
    ```
    numerate run quickstart
    ```
    """
    texts: list[str] = []
    for block in without_empty_blocks(content):
        match block:
            case TextTable():
                texts += [block.to_markdown(), block.caption]
            case Note():
                texts.append(block.text)
            case Heading():
                texts.append(f"### {block.text}")
            case Code():
                texts.append(f"```\n{block.text}\n```")
            case Facts():
                texts.append("\n".join(f"- {name}: {value}" for name, value in block.values.items()))
            case Folded():
                inner = to_markdown(block.content)
                texts.append(f"<details><summary>{block.summary}</summary>\n\n{inner}\n\n</details>")
    return "\n\n".join(filter(None, texts))
