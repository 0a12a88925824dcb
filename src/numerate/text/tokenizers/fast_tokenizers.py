"""Fast tokenizers of the library tokenizers, stored as JSON."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError, import_extra
from numerate.vocabulary import SPECIAL_TOKENS

_RENAMED_PREFIX = "\ue002"
_FIRST_RENAMED_CODE = 0xF0000
"""Special tokens are renamed to two private-use characters while texts are encoded."""


@dataclass(frozen=True)
class TokenizerFile:
    """A stored fast tokenizer: its JSON, the names of its special tokens, and others that its JSON does not mark as
    special, which are no text either."""

    json_text: str
    special_tokens: tuple[tuple[str, str], ...]
    other_special_tokens: tuple[str, ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of its content."""
        content = json.dumps([self.json_text, self.special_tokens]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def check_tokenizers_installed() -> None:
    """Raises `UserError`, which names the extra, where the package tokenizers is not installed."""
    import_extra("tokenizers", "tokenizer", "huggingface")


def build_tokenizer(json_text: str) -> Any:
    """A `tokenizers.Tokenizer` from its JSON, without truncation and padding. Raises `UserError` for invalid JSON."""
    check_tokenizers_installed()
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(json_text)
    except Exception as error:  # what the library raises is an Exception
        raise UserError(f"tokenizer: cannot be loaded by the library tokenizers: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids of texts, concatenated, without special tokens, and the length of each. Raises `ValueError` for half of a
    surrogate pair."""
    try:
        ids_of_texts = [one.ids for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
    except (TypeError, UnicodeError) as error:
        raise ValueError("contains an unpaired surrogate") from error
    return concatenate_ids(ids_of_texts)


def concatenate_ids(ids_of_texts: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids of all texts in one array, and the number of each."""
    lengths = np.fromiter(map(len, ids_of_texts), np.int64, len(ids_of_texts))
    return np.fromiter(chain.from_iterable(ids_of_texts), np.int64, int(lengths.sum())), lengths


def rename_special_tokens(file: TokenizerFile) -> str:
    """The JSON of a tokenizer whose special tokens are renamed so that none occurs in a text: `</s>` in a text is plain
    text. Ids do not change."""
    config = json.loads(file.json_text)
    added_tokens = config.get("added_tokens") or []
    model = config["model"]
    special_tokens = {
        *(token["content"] for token in added_tokens if token.get("special")),
        *dict(file.special_tokens).values(),
        *SPECIAL_TOKENS,
    }
    pieces = {
        part for merge in model.get("merges") or () for part in (merge.split() if isinstance(merge, str) else merge)
    }
    renamed_tokens = {
        name: f"{_RENAMED_PREFIX}{chr(_FIRST_RENAMED_CODE + i)}"
        for i, name in enumerate(sorted(special_tokens - pieces))
    }
    for token in added_tokens:
        token["content"] = renamed_tokens.get(token["content"], token["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {renamed_tokens.get(name, name): i for name, i in model["vocab"].items()}
    else:
        model["vocab"] = [[renamed_tokens.get(name, name), *score] for name, *score in model["vocab"]]
    if model.get("unk_token") in renamed_tokens:
        model["unk_token"] = renamed_tokens[model["unk_token"]]
    config["post_processor"] = None
    return json.dumps(config)
