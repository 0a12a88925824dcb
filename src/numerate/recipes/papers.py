"""The papers of recipes and parts, as BibTeX: printed by `numerate show` and in the report of a run."""

import re
from pathlib import Path

_CITATION_KEYS = {
    "abacus": "mcleish2024transformers",
    "rotary": "su2024roformer",
    "fire": "li2024functional",
    "nope": "kazemnejad2023impact",
    "coupling": "cho2024position",
    "randomised": "ruoss2023randomized",
    "counting": "chang2025language",
    "alibi": "press2022train",
    "min_gru": "feng2024were",
    "lru": "orvieto2023resurrecting",
    "delta_product": "siems2025deltaproduct",
    "number_loss": "zausinger2025regress",
    "regression_transformer": "born2023regression",
    "xval": "golkar2023xval",
    "dual_attention": "altabaa2025disentangling",
    "tiny_stories": "eldan2023tinystories",
}
_BIBLIOGRAPHY = Path(__file__).with_suffix(".bib").read_text(encoding="utf-8")
_ENTRIES = {found[1]: found[0] for found in re.finditer(r"^@\w+\{(\w+),\n.*?^\}$", _BIBLIOGRAPHY, re.M | re.S)}

PAPERS = {key: _ENTRIES[citation_key] for key, citation_key in _CITATION_KEYS.items()}
"""The entries by the keys that recipes name them by."""

BIBTEX_BY_LINK = {entry.rpartition("url")[2].partition("{")[2].partition("}")[0]: entry for entry in _ENTRIES.values()}
"""The entries by their links: `BIBTEX_BY_LINK["https://arxiv.org/abs/2405.17399"]`."""


def bibtex_of(text: str) -> list[str]:
    """The entries of the papers that a text links to, in its order."""
    links = sorted((text.index(link), link) for link in BIBTEX_BY_LINK if link in text)
    return [BIBTEX_BY_LINK[link] for _, link in links]
