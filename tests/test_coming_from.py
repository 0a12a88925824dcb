"""Promises of the pages docs/coming-from-*.md: they answer everything that is typed in the published systems, and what
they say is a setting is one. Files of their own run the commands of each page."""

import pytest

from cases import case
from numerate.vocabulary import Vocabulary
from pages import Page, set_one, told

PUBLISHED_NAMES = {
    "coming-from-arithmetic.md": 134,
    "coming-from-inductive-counting.md": 143,
    "coming-from-dual-attention.md": 165,
    "coming-from-number-token-loss.md": 131,
}
"""How many things that users of the published systems type and read, such as commands, settings, classes and metrics,
stand on each page: all that there are, so none may get lost."""

SETTINGS = [
    ("coming-from-arithmetic.md", "addition_lt_abacus_4x4", ["Settings and switches"]),
    ("coming-from-inductive-counting.md", "counting_samesymbol_mod10_ape", ["Config keys"]),
    ("coming-from-number-token-loss.md", "mathematics_t5_ntl_was", ["Config keys"]),
    (
        "coming-from-dual-attention.md",
        "tiny_stories_d64_l4_4+4_symbolic",
        ["Arguments of train.py", "The package dual-attention", "Faults that are not here"],
    ),
    (
        "coming-from-dual-attention.md",
        "fineweb_edu_dual_343m",
        ["Arguments of fineweb/pretrain.py", "Loading their checkpoints"],
    ),
]
"""Of each page sections with settings, and the recipe that these are for."""


@pytest.mark.parametrize(("name", "recipe_name", "sections"), SETTINGS)
def test_the_settings_of_a_page_are_settings(
    name: str, recipe_name: str, sections: list[str], vocabulary: Vocabulary
) -> None:
    if "arithmetic" not in name and "counting" not in name:
        pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    found = Page(name).settings(*sections)
    assert found
    for text in found:
        with case(text):
            recipe = set_one(text, recipe_name)
            if text.startswith("model") and recipe_name.startswith("tiny_stories"):
                recipe.model.build(vocabulary, 0)


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_everything_published_stands_on_the_page_and_is_answered(name: str) -> None:
    page = Page(name)
    assert len({text for row in page.rows for text in told(row.theirs)}) >= PUBLISHED_NAMES[name]
    assert page.unanswered() == [], "lines whose middle column is no command, setting or none"
