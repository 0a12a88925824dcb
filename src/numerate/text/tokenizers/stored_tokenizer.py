"""Tokenizers with their own ids, for tokenized corpora."""

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerate.errors import UserError
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.text.tokenizers import tokenizer_files
from numerate.text.tokenizers.hf_vocabulary import without_control
from numerate.text.tokenizers.sentencepiece_files import SPACE, WORDS, is_sentencepiece, sentencepiece, tokenizer_json
from numerate.text.tokenizers.tokenizer_files import TokenizerFile

_MODELS = ("tokenizer.model", "tokenizer.model.v1", "spiece.model")
"""File names of SentencePiece models in a folder without a tokenizer.json."""


def pieces(name: str) -> "StoredTokenizer":
    """The tokenizer of a folder, a tokenizer.json, a SentencePiece model, or a name that `stored` knows.

    Raises `UserError` if there is none, or if the library tokenizers is not installed.
    """
    return StoredTokenizer(stored_or_model(name))


def stored_or_model(name: str) -> TokenizerFile:
    """Like `stored`, also for SentencePiece models."""
    path = _place(name)
    if path.is_dir() and not (path / "tokenizer.json").is_file():
        path = next((path / model for model in _MODELS if (path / model).is_file()), path)
    if path.is_file() and is_sentencepiece(path):
        return sentencepiece(path)
    return tokenizer_files.stored(str(path))


def _place(name: str) -> Path:
    """The path of a tokenizer: a path, the folder of a prepared corpus, or one of the user's tokenizers."""
    path = Path(name).expanduser()
    for folder in (corpora_folder(), data_folder() / tokenizer_files.TOKENIZERS):
        if name and not path.exists() and (folder / name).exists():
            return folder / name
    return path


class StoredTokenizer:
    """A tokenizer with its own ids.

    With Mistral's first one `begin` is 1 (`<s>`), `size` 32,000, and `encode(["Once upon"])` gives the ids of `▁Once`
    and `▁upon`. Names of special tokens in a text are plain text. Raises `UserError` for one that cannot be read.
    """

    def __init__(self, file: TokenizerFile) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(
                "tokenizer: the package tokenizers is not here: pip install 'numerate[huggingface]'"
            ) from error
        self.file = file
        try:
            theirs = Tokenizer.from_str(file.text)
            self._own = Tokenizer.from_str(without_control(file))
        except Exception as error:  # what the library raises is an Exception
            raise UserError(f"tokenizer: the library tokenizers cannot read it: {error}") from error
        self._theirs = theirs
        self._own.no_truncation()
        self._own.no_padding()
        self._words = _Words.of(self._own)
        self._ids: dict[str, int] = theirs.get_vocab(with_added_tokens=True)
        self.size = max(self._ids.values()) + 1
        """Vocabulary size: ids are smaller."""

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The text of each piece in the tokenizer's notation (`▁Once`); `[no piece 7]` for an id without a piece."""
        found = [f"[no piece {i}]" for i in range(self.size)]
        for name, i in self._ids.items():
            found[i] = name
        return tuple(found)

    @cached_property
    def roles(self) -> dict[str, int]:
        """The ids of `bos`, `eos`, `unk` and `pad`, as far as they exist."""
        return {role: self._ids[name] for role, name in self.file.roles if name in self._ids}

    @cached_property
    def begin(self) -> int:
        """The id before every document: BOS, else EOS (GPT-2 has one for both).

        Raises `UserError` for a tokenizer without either.
        """
        found = self.roles.get("bos", self.roles.get("eos"))
        if found is None:
            raise UserError(
                "tokenizer: it has no token that begins a text (<s>, <bos>, <|endoftext|> ...), and documents would "
                "run together; bos_token in a tokenizer_config.json beside it names one"
            )
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the mapping from ids to pieces, the same for a SentencePiece model and its tokenizer.json."""
        parts = [sorted((i, name) for name, i in self._ids.items()), sorted(self.roles.items())]
        return hashlib.blake2b(json.dumps(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids of texts, concatenated, without special tokens, and the length of each.

        Raises `ValueError` for invalid text (half of a surrogate pair).
        """
        try:
            if self._words is not None:
                return self._words.encode(texts)
            each = [one.ids for one in self._own.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (TypeError, UnicodeError) as error:
            raise ValueError("has half of a surrogate pair, which is no character") from error
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        return np.fromiter(chain.from_iterable(each), np.int64, int(lengths.sum())), lengths

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of ids without special tokens."""
        special = set(self.roles.values())
        text: str = self._theirs.decode([int(i) for i in ids if int(i) not in special], skip_special_tokens=True)
        return text

    def documents(self, ids: NDArray[np.integer]) -> list[NDArray[np.integer]]:
        """Splits ids into documents at every `begin`, which is dropped; ids before the first one are a document too."""
        starts = np.flatnonzero(ids == self.begin)
        return [part[part != self.begin] for part in np.split(ids, starts) if len(part)]

    def text_bytes(self, ids: NDArray[np.integer]) -> int:
        """The number of UTF-8 bytes of the text of ids, for bits per byte."""
        return sum(len(self.decode(one).encode()) for one in self.documents(ids))

    def agrees(self, ids: NDArray[np.integer]) -> bool:
        """Whether decoding and encoding reproduces the ids of at least half of the complete documents, so that this may
        be the tokenizer of a corpus."""
        whole = [one for one in self.documents(ids)[:-1] if len(one)][-_LOOKED_AT:]
        if not whole:  # a single document, perhaps cut off
            whole = [one for one in self.documents(ids) if len(one)]
        again, lengths = self.encode([self.decode(one) for one in whole])
        parts = np.split(again, lengths.cumsum()[:-1])
        same = sum(_same_within(one, other) for one, other in zip(whole, parts, strict=True))
        return same * 2 >= len(whole)


class _Words:
    """A word cache for a SentencePiece-like tokenizer whose pieces do not cross word boundaries.

    Stories have few different words, and a lookup is some ten times as fast as tokenizing.
    """

    def __init__(self, own: Any, prefix: str) -> None:
        self._own, self._prefix = own, prefix
        self._known: dict[str, tuple[int, ...]] = {}

    @classmethod
    def of(cls, own: Any) -> "_Words | None":
        """For a tokenizer of `tokenizer_json` without character normalization; None for any other."""
        from tokenizers import Tokenizer

        stored = json.loads(own.to_str())
        for prefix in ("", SPACE):
            like = tokenizer_json({}, prefix=bool(prefix))
            if all(stored[part] == like[part] for part in ("normalizer", "pre_tokenizer")):
                bare = Tokenizer.from_str(json.dumps(stored | {"normalizer": None, "pre_tokenizer": None}))
                return cls(bare, prefix)
        return None

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(self._known) > _MOST_WORDS:
            self._known.clear()
        split = [_WORD.findall((self._prefix + text).replace(" ", SPACE) if text else "") for text in texts]
        new = list(set(chain.from_iterable(split)) - self._known.keys())
        for word, one in zip(new, self._own.encode_batch_fast(new, add_special_tokens=False), strict=True):
            self._known[word] = tuple(one.ids)
        each = [[*chain.from_iterable(map(self._known.__getitem__, words))] for words in split]
        lengths = np.fromiter(map(len, each), np.int64, len(each))
        return np.fromiter(chain.from_iterable(each), np.int64, int(lengths.sum())), lengths


_WORD = re.compile(WORDS)
_MOST_WORDS = 200_000
_LOOKED_AT = 16
_AT_ENDS = 4


def _same_within(one: NDArray[np.integer], other: NDArray[np.integer]) -> bool:
    """Whether two sequences are equal except for a few ids at their ends, where a document may have been cut."""
    for skipped in range(-_AT_ENDS, _AT_ENDS + 1):
        left, right = one[max(skipped, 0) :], other[max(-skipped, 0) :]
        common = min(len(left), len(right))
        if abs(len(left) - len(right)) <= _AT_ENDS and np.array_equal(
            left[_AT_ENDS : common - _AT_ENDS], right[_AT_ENDS : common - _AT_ENDS]
        ):
            return True
    return False


def opened(name: str) -> StoredTokenizer:
    """`pieces`, cached per process until the file changes."""
    place = _place(name)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    stamps = tuple((str(file), file.stat().st_mtime_ns) for file in files if file.is_file())
    return _opened(str(place), stamps)


@lru_cache(maxsize=4)
def _opened(name: str, stamps: tuple[tuple[str, int], ...]) -> StoredTokenizer:
    return pieces(name)
