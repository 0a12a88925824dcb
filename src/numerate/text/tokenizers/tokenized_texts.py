"""A cache of tokenized questions: in memory for small files, else in memory-mapped files.

The cache folder is `$NUMERATE_CACHE/tokenised`, else `~/.cache/numerate/tokenised`; it may be deleted at any time. An
entry is named by a hash of the texts, the tokenizer's content and the number format.
"""

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from numerate.tasks.folders import cache_folder
from numerate.tasks.texts import TextSource
from numerate.text.tasks.columns import AnyColumns, build_columns
from numerate.text.tokenizers.hf_vocabulary import FastTokenizer
from numerate.text.tokenizers.prompt_formats import PromptFormat
from numerate.tokenizers.number_formats import Ids, id_dtype

MAX_IN_MEMORY = 20_000
"""Up to this many questions are cached in memory only."""

_CHUNK_SIZE = 8192
_USED_CHUNK_TOKENS = 1 << 22
_VERSION = 3


@dataclass(frozen=True, eq=False)
class TokenizedTexts:
    """The tokens of a source's questions, concatenated, each followed by its answer.

    - `ids` `[tokens]`: token ids; `number_values` float32 `[tokens]`: the number of each, or None.
    - `starts` int64 `[questions + 1]`: where each question starts, and where the last answer ends.
    - `prompt_lengths` int32 `[questions]`: the number of tokens of each question without its answer.
    - `used_ids` int64: the ids that occur, sorted.
    """

    ids: Ids
    starts: NDArray[np.int64]
    prompt_lengths: NDArray[np.int32]
    used_ids: NDArray[np.int64]
    number_values: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def num_tokens(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of tokens of these questions, and of their answers."""
        prompt_lengths = self.prompt_lengths[indices].astype(np.int64)
        return prompt_lengths, (self.starts[1:][indices] - self.starts[:-1][indices]) - prompt_lengths


_cache: "OrderedDict[str, TokenizedTexts]" = OrderedDict()
_fingerprints: "WeakKeyDictionary[TextSource, str]" = WeakKeyDictionary()


def tokenize_texts(
    source: TextSource,
    tokenizer: FastTokenizer,
    answer_prefix: str = "",
    prompt_format: PromptFormat = PromptFormat(),
) -> TokenizedTexts:
    """The tokens of all questions of a source, made on first use.

    `answer_prefix` is prepended to every answer. Raises `OperationalError` if the cache folder cannot be written.
    """
    key = _cache_key(source, tokenizer, answer_prefix, prompt_format)
    if key not in _cache:
        dtypes = {
            "ids": id_dtype(tokenizer.vocabulary),
            "starts": np.int64,
            "prompts": np.int32,
            "used": np.int64,
            "values": np.float32,
        }
        folder = tokenized_folder() / key if source.num_examples > MAX_IN_MEMORY else None
        tokenize = partial(_tokenize, source, tokenizer, answer_prefix, prompt_format)
        columns = build_columns(tokenize, dtypes, folder).arrays
        values = columns["values"] if len(columns["values"]) else None
        _cache[key] = TokenizedTexts(columns["ids"], columns["starts"], columns["prompts"], columns["used"], values)
    _cache.move_to_end(key)
    while len(_cache) > 32:
        _cache.popitem(last=False)
    return _cache[key]


def tokenized_folder() -> Path:
    """The cache folder."""
    return cache_folder() / "tokenised"


def _cache_key(source: TextSource, tokenizer: FastTokenizer, answer_prefix: str, prompt_format: PromptFormat) -> str:
    source_fingerprint = _fingerprints.get(source)
    if source_fingerprint is None:
        source_fingerprint = _fingerprints[source] = source.fingerprint
    key_fields = [
        _VERSION,
        source_fingerprint,
        source.num_examples,
        tokenizer.file.fingerprint,
        repr(tokenizer.number_format),
        answer_prefix,
        *([prompt_format.fingerprint()] if prompt_format != PromptFormat() else []),
    ]
    return hashlib.blake2b(json.dumps(key_fields).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _tokenize(
    source: TextSource,
    tokenizer: FastTokenizer,
    answer_prefix: str,
    prompt_format: PromptFormat,
    columns: AnyColumns,
) -> dict[str, Any]:
    """Writes the columns of `TokenizedTexts` chunk by chunk, from question `columns.num_done` on."""
    dtype, num_tokens = id_dtype(tokenizer.vocabulary), 0
    if columns.num_done:
        num_tokens = int(columns.read("starts", np.int64)[-1])
    else:
        columns.append("starts", np.zeros(1, np.int64))
    for start in range(columns.num_done, source.num_examples, _CHUNK_SIZE):
        end = min(start + _CHUNK_SIZE, source.num_examples)
        examples = source.read_examples(np.arange(start, end))
        pairs = [
            (prompt_format.render(one.question, source.few_shot_examples), answer_prefix + one.answer)
            for one in examples
        ]
        encoded = tokenizer.encode_pairs(pairs)
        prompt_lengths, answer_lengths = encoded.lengths[0::2], encoded.lengths[1::2]
        columns.append("ids", encoded.ids.astype(dtype))
        columns.append("starts", num_tokens + (prompt_lengths + answer_lengths).cumsum())
        columns.append("prompts", prompt_lengths.astype(np.int32))
        if encoded.number_values is not None:
            columns.append("values", encoded.number_values)
        num_tokens += len(encoded.ids)
        columns.save_progress(end)
    ids, is_used = columns.read("ids", dtype), np.zeros(tokenizer.vocabulary.size, dtype=np.bool_)
    for first in range(0, len(ids), _USED_CHUNK_TOKENS):
        is_used[ids[first : first + _USED_CHUNK_TOKENS]] = True
    columns.append("used", np.flatnonzero(is_used))
    return {}
