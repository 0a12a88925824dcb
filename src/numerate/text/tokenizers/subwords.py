"""Subword tokenization with a Hugging Face tokenizer and a number format of choice."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tasks.texts import InMemorySource, Texts, TextSource
from numerate.text.tokenizers import hf_vocabulary as foreign
from numerate.text.tokenizers import tokenizer_files
from numerate.text.tokenizers.coverage import Coverage
from numerate.text.tokenizers.hf_vocabulary import split_digits as split_digits
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit, TextNumberFormat
from numerate.text.tokenizers.tokenized_texts import TokenizedTexts, tokenize_texts
from numerate.tokenizers.number_formats import Digits, Ids, id_dtype
from numerate.tokenizers.tokenizer import Characters, TokenizedExamples, Tokenizer
from numerate.vocabulary import BOS, EOS, PAD, POINT, SIGN, SPECIAL, UNK, Vocabulary

MASK_TOKENS = ("<extra_id_0>", "<mask>", "[MASK]")
"""Mask tokens that a layout may use, kept in every vocabulary."""


LOW = 0.9
"""A smaller share of the digit characters of answers in number tokens gives a warning."""

SAMPLE = 256
"""Training answers that the share is counted on."""


@dataclass(frozen=True)
class Subwords(Tokenizer):
    """Subword tokenizer of Hugging Face (tokenizers), with numbers in `number_format`.

    It loads a folder with a tokenizer.json, such a file, or a model of the hub by name, with the library tokenizers
    (`pip install 'numerate[huggingface]'`); `characters` needs no file and has one token per character. A model name is
    looked up in the user's data first, where `numerate data fetch t5_tokenizer` puts T5's. For T5 `What is 12+9?` and
    `21` are `▁What ▁is ▁12 + 9 ?` and `▁21 [EOS]`, with `number_format=PerDigit` `▁What ▁is ▁ 1 2 + 9 ?` and `▁ 2 1
    [EOS]`. Ids are numerate's own; `Vocabulary.pretrained_ids` has the tokenizer's, which index pretrained embeddings.

    With `vocabulary="occurring"` the vocabulary has only the tokens of the training data, signs, points, single ASCII
    characters, masks and number symbols, so that a small model has a small embedding table. Other tokens are [UNK].

    An answer has several tokenizations, so answers are generated, not scored by one forward pass. Question and answer
    have at most `max_length` tokens each. Longer answers lose their end; longer questions the side that their task
    names (`truncation_side`), with a warning that counts them.

    Raises `UserError` for a tokenizer that cannot be read, and for one without the ten digits unless
    `number_format=AsIs`.
    """

    has_unique_tokenization: ClassVar[bool] = False

    tokenizer: str = setting("google-t5/t5-small", "a folder, a tokenizer.json, a model on the hub, or characters")
    number_format: TextNumberFormat = setting(AsIs(), "how numbers in texts are tokenized")
    vocabulary: Literal["all", "occurring"] = setting(
        "all", "the tokenizer's whole vocabulary (all), or only tokens of the training data (occurring)"
    )
    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")
    answer_prefix: str = setting("", "a text before every answer; a space for most decoders")
    max_length: int = setting(
        512, "largest number of tokens of a question, and of an answer without its [EOS]", at_least=1
    )
    revision: str | None = setting(None, "revision of a model on the hub; null: the newest")

    @property
    def fast_tokenizer(self) -> foreign.FastTokenizer:
        """The tokenizer with its number format, loaded once per process."""
        return foreign.load_fast_tokenizer(
            tokenizer_files.load_tokenizer_file(self.tokenizer, self.revision), self.number_format
        )

    def fingerprint(self) -> str:
        """A hash of the tokenizer's content, whatever its name: equal hashes give equal ids."""
        return self.fast_tokenizer.file.fingerprint

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        full_vocabulary = self.fast_tokenizer.vocabulary
        if self.vocabulary == "all":
            return full_vocabulary
        used_mask = np.zeros(full_vocabulary.size, dtype=np.bool_)
        used_mask[self._used_ids(task)] = True
        used_mask |= np.isin(full_vocabulary.token_kinds, (SPECIAL, SIGN, POINT))
        used_mask[[full_vocabulary.token_to_id[symbol] for symbol in self.number_format.symbols()]] = True
        used_mask |= np.array(
            [(len(symbol) == 1 and symbol.isascii()) or symbol in MASK_TOKENS for symbol in full_vocabulary.tokens]
        )
        return foreign.restrict_vocabulary(full_vocabulary, np.flatnonzero(used_mask))

    def _used_ids(self, task: Task | Iterable[str]) -> NDArray[np.int64]:
        """The ids of a task's training data: all of its files, or the first block drawn."""
        if not isinstance(task, Task):
            return np.unique(self.fast_tokenizer.encode([*task]).ids).astype(np.int64)
        questions = task.examples("train", 0, 0, task.block_size)
        if questions.labels is not None:
            return self._used_ids(questions.alphabet)
        texts = questions.texts if questions.texts is not None else _texts_from_questions(questions)
        return np.concatenate([self._tokenize_source(texts, number).used_ids for number in range(len(texts.sources))])

    def _tokenize_source(self, texts: Texts, source_index: int) -> TokenizedTexts:
        return tokenize_texts(texts.sources[source_index], self.fast_tokenizer, self.answer_prefix)

    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        if not isinstance(questions, Questions):
            texts = _texts_from_examples(questions)
        else:
            texts = questions.texts if questions.texts is not None else _texts_from_questions(questions)
        bos_length = int(self.add_bos_token)
        source_rows = [
            _SourceRows(
                np.flatnonzero(texts.source_indices == number),
                self._tokenize_source(texts, number),
                texts.row_indices,
                texts.sources[number],
            )
            for number in range(len(texts.sources))
        ]
        prompt_lengths, answer_lengths = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        for part in source_rows:
            prompt_lengths[part.block_indices], answer_lengths[part.block_indices] = part.num_tokens()
        for part in source_rows:
            self._warn_truncated(part, np.maximum(prompt_lengths, answer_lengths)[part.block_indices])
        prompt_lengths, answer_lengths = (
            np.minimum(prompt_lengths, self.max_length),
            np.minimum(answer_lengths, self.max_length),
        )
        lengths = bos_length + prompt_lengths + answer_lengths + 1
        time = int(lengths.max(initial=0))
        ids = np.full((len(texts), time), PAD, dtype=id_dtype(vocabulary))
        number_values = np.ones((len(texts), time), dtype=np.float32) if self.number_format.has_number_values else None
        id_table = self._id_table(vocabulary)
        for part in source_rows:
            part.copy_tokens(ids, number_values, bos_length, prompt_lengths, answer_lengths, id_table)
        ids[np.arange(len(texts)), lengths - 1] = EOS
        if self.add_bos_token:
            ids[:, 0] = BOS
        positions = np.arange(time)
        target_mask = (positions >= (bos_length + prompt_lengths)[:, None]) & (positions < lengths[:, None])
        return TokenizedExamples(ids, lengths, target_mask, None, number_values, vocabulary)

    def _id_table(self, vocabulary: Vocabulary) -> Ids:
        """Maps ids of the full vocabulary to ids of this one."""
        full_vocabulary = self.fast_tokenizer.vocabulary
        id_tables = _id_table_cache.setdefault(vocabulary, WeakKeyDictionary())
        if full_vocabulary not in id_tables:
            id_of_symbol = vocabulary.token_to_id
            ids = [id_of_symbol.get(symbol, UNK) for symbol in full_vocabulary.tokens]
            id_tables[full_vocabulary] = np.array(ids, dtype=id_dtype(vocabulary))
        return id_tables[full_vocabulary]

    def _warn_truncated(self, part: "_SourceRows", lengths: NDArray[np.int64]) -> None:
        """Warns how many rows of a part's source are truncated, if any row of the part is."""
        side = "beginning" if part.source.truncation_side == "left" else "end"
        if (lengths > self.max_length).any():
            prompt_lengths, answer_lengths = part.tokenized_texts.num_tokens(slice(None))
            all_lengths = np.maximum(prompt_lengths, answer_lengths)
            warnings.warn(
                f"tokenizer.max_length: {int((all_lengths > self.max_length).sum())} of {len(all_lengths)} questions "
                f"({part.source.description}), or "
                f"their answers, have more than {self.max_length} tokens and lose their {side}; the "
                f"longest has "
                f"{int(all_lengths.max())}",
                stacklevel=3,
            )

    def coverage_warnings(self, task: Task, number_ids: frozenset[int]) -> list[str]:
        questions = task.examples("train", 0, 0, SAMPLE)
        if questions.texts is not None:
            examples = questions.texts.read_examples()
        else:
            examples = [Example(*format_question(questions, row)) for row in range(len(questions))]
        found = self._coverage(task, examples, number_ids)
        if not found.num_digits or found.covered_fraction >= LOW:
            return []
        message = (
            f"objective.loss: {found.covered_fraction:.0%} of the digit characters of a sample of the training answers "
            "stand in number tokens, and the others get no number loss"
        ).replace("%", " %")
        missed = ", ".join(repr(piece) for piece, _ in found.other_tokens[:4])
        message += f" ({missed})" if missed else ""
        per_digit = replace(self, number_format=PerDigit(), vocabulary="all")
        try:
            better = per_digit._coverage(task, examples)
        except UserError:  # a tokenizer without digits
            return [message]
        if better.covered_fraction > found.covered_fraction:
            message += f"; tokenizer.number_format=PerDigit makes it {better.covered_fraction:.0%}".replace("%", " %")
        return [message]

    def _coverage(self, task: Task, examples: Sequence[Example], number_ids: frozenset[int] | None = None) -> Coverage:
        """Coverage of answers by these tokens; None: by the digits of the vocabulary. Raises `UserError` if none."""
        vocabulary = self.build_vocabulary(task)
        number_ids = frozenset(vocabulary.number_ids()) if number_ids is None else number_ids
        if not number_ids:
            raise UserError(f"tokenizer: none of the {vocabulary.size} tokens of this vocabulary has a value")
        rows = replace(self, max_length=10**9).encode_examples(
            [Example("", one.answer) for one in examples], vocabulary
        )
        answers = [ids[mask].tolist() for ids, mask in zip(rows.ids, rows.target_mask, strict=True)]
        return Coverage.from_token_ids([one.answer for one in examples], answers, vocabulary.tokens, number_ids)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        ids: list[int] = self._id_table(vocabulary)[self.fast_tokenizer.encode([text]).ids].tolist()
        return ids

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary, number_values: Iterable[float] | None = None) -> str:
        """The text of ids, with the numbers that they carry if `number_values` are given."""
        float_values = None if number_values is None else [float(value) for value in number_values]
        return self.fast_tokenizer.decode([int(i) for i in ids], vocabulary, float_values)

    def decode_with_number_values(
        self, ids: Sequence[int], number_values: Sequence[float], vocabulary: Vocabulary
    ) -> str:
        return self.decode(ids, vocabulary, number_values)


_id_table_cache: "WeakKeyDictionary[Vocabulary, WeakKeyDictionary[Vocabulary, Ids]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _SourceRows:
    """The rows of a block from one source: `block_indices` are their indices in the block, `source_indices` the indices
    in the source."""

    block_indices: NDArray[np.int64]
    tokenized_texts: TokenizedTexts
    source_indices: NDArray[np.int64]
    source: TextSource

    def num_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of tokens of the questions and of the answers."""
        return self.tokenized_texts.num_tokens(self.source_indices[self.block_indices])

    def copy_tokens(
        self,
        ids: Ids,
        number_values: NDArray[np.float32] | None,
        start_column: int,
        prompt_lengths: NDArray[np.int64],
        answer_lengths: NDArray[np.int64],
        id_table: Ids,
    ) -> None:
        """Writes `prompt_lengths` tokens of each question from column `start_column` on (the last ones if truncated on
        the left), then the first `answer_lengths` tokens of its answer."""
        indices = self.source_indices[self.block_indices]
        question_starts, question_ends = (
            self.tokenized_texts.starts[indices],
            self.tokenized_texts.starts[indices] + self.tokenized_texts.prompt_lengths[indices],
        )
        copied_starts = (
            question_ends - prompt_lengths[self.block_indices]
            if self.source.truncation_side == "left"
            else question_starts
        )
        for start, source, counts in (
            (np.full(len(indices), start_column), copied_starts, prompt_lengths[self.block_indices]),
            (start_column + prompt_lengths[self.block_indices], question_ends, answer_lengths[self.block_indices]),
        ):
            offsets = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
            target_index = np.repeat(self.block_indices, counts), np.repeat(start, counts) + offsets
            source_positions = np.repeat(source, counts) + offsets
            ids[target_index] = id_table[self.tokenized_texts.ids[source_positions]]
            if number_values is not None and self.tokenized_texts.number_values is not None:
                number_values[target_index] = self.tokenized_texts.number_values[source_positions]


def _texts_from_examples(examples: Sequence[Example]) -> Texts:
    return Texts.from_source(InMemorySource(tuple(examples)), np.arange(len(examples)))


def _texts_from_questions(questions: Questions) -> Texts:
    """Questions with number slots as texts with plain numbers. Raises `UserError` for labels."""
    if questions.labels is not None:
        raise UserError("tokenizer: Subwords does not support labels per token; use tokenizer=Words")
    tokenizer = Characters(Digits("normal"))
    vocabulary = tokenizer.build_vocabulary(questions.alphabet)
    rows = tokenizer.encode_examples(questions, vocabulary)
    symbols = [vocabulary.tokens[i] for i in rows.ids.reshape(-1).tolist()]
    row_length = rows.ids.shape[1]
    prompt_lengths = rows.target_mask.argmax(axis=1).tolist()
    return _texts_from_examples(
        [
            Example("".join(symbols[at : at + prompt]), "".join(symbols[at + prompt : at + length - 1]))
            for at, prompt, length in zip(
                range(0, row_length * len(rows), row_length), prompt_lengths, rows.lengths.tolist(), strict=True
            )
        ]
    )
