"""Subword tokenization with a Hugging Face tokenizer and a number format of choice."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from numerate.config import setting
from numerate.errors import UserError
from numerate.tasks.plain import plain_texts
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tasks.texts import InMemorySource, Texts, TextSource
from numerate.text.tokenizers import hf_vocabulary as foreign
from numerate.text.tokenizers import tokenizer_files
from numerate.text.tokenizers.coverage import Coverage
from numerate.text.tokenizers.hf_vocabulary import split_digits as split_digits
from numerate.text.tokenizers.prompt_formats import QUESTION, PromptFormat
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit, TextNumberFormat
from numerate.text.tokenizers.tokenized_texts import TokenizedTexts, tokenize_texts
from numerate.tokenizers.number_formats import Ids, id_dtype
from numerate.tokenizers.tokenizer import TokenizedExamples, Tokenizer
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
    has_prompts: ClassVar[bool] = True

    tokenizer: str = setting(
        "google-t5/t5-small", "a folder, a tokenizer.json, a model on the hub, or characters", content_hash="revision"
    )
    number_format: TextNumberFormat = setting(AsIs(), "how numbers in texts are tokenized")
    vocabulary: Literal["all", "occurring"] = setting(
        "all", "the tokenizer's whole vocabulary (all), or only tokens of the training data (occurring)"
    )
    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")
    answer_prefix: str = setting("", "a text before every answer; a space for most decoders")
    max_length: int = setting(
        512, "largest number of tokens of a question, and of an answer without its [EOS]", at_least=1
    )
    revision: str | None = setting(
        None, "of a model on the hub its revision, of a folder the hash of its files; null: the newest"
    )
    question_template: str = setting(
        QUESTION, r"the text of a prompt, with \n for a new line: 'Question: {question}\nAnswer:'"
    )
    chat_template: bool = setting(False, "whether a question is a message in the chat template of the tokenizer")
    system_prompt: str | None = setting(None, "with chat_template: the system message")

    def conflicts(self) -> Iterator[str]:
        if self.question_template.count(QUESTION) != 1:
            yield f"question_template: must have {QUESTION} once, not {self.question_template!r}"
        if self.system_prompt is not None and not self.chat_template:
            yield "system_prompt: must be null without chat_template"

    @property
    def prompt_format(self) -> PromptFormat:
        """How a question becomes a prompt."""
        chat_tokenizer = (self.tokenizer, self.revision) if self.chat_template else None
        return PromptFormat(self.question_template.replace(r"\n", "\n"), chat_tokenizer, self.system_prompt)

    def stop_texts(self) -> tuple[str, ...]:
        return self.prompt_format.stop_texts()

    @property
    def fast_tokenizer(self) -> foreign.FastTokenizer:
        """The tokenizer with its number format, loaded once per process."""
        file = tokenizer_files.load_tokenizer_file(self.tokenizer, self.revision)
        return foreign.load_fast_tokenizer(file, self.number_format, self.chat_template)

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
        return np.concatenate([self._tokenize_source(source).used_ids for source in _to_texts(questions).sources])

    def _tokenize_source(self, source: TextSource) -> TokenizedTexts:
        return tokenize_texts(source, self.fast_tokenizer, self.answer_prefix, self.prompt_format)

    def encode_examples(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> TokenizedExamples:
        texts, bos_length = _to_texts(questions), int(self.add_bos_token)
        parts = []
        prompt_lengths, answer_lengths = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        for number, source in enumerate(texts.sources):
            block_indices = np.flatnonzero(texts.source_indices == number)
            part = _SourceRows(block_indices, texts.row_indices[block_indices], source, self._tokenize_source(source))
            prompts, answers = part.tokenized_texts.num_tokens(part.rows)
            self._warn_truncated(part, np.maximum(prompts, answers))
            prompt_lengths[block_indices] = np.minimum(prompts, self.max_length)
            answer_lengths[block_indices] = np.minimum(answers, self.max_length)
            parts.append(part)
        lengths = bos_length + prompt_lengths + answer_lengths + 1
        time = int(lengths.max(initial=0))
        ids = np.full((len(texts), time), PAD, dtype=id_dtype(vocabulary))
        number_values = np.ones((len(texts), time), dtype=np.float32) if self.number_format.has_number_values else None
        for part in parts:
            part.copy_tokens(ids, number_values, bos_length, prompt_lengths, answer_lengths, self._id_table(vocabulary))
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
                f"({part.source.description}), or their answers, have more than {self.max_length} tokens and lose "
                f"their {side}; the longest has {int(all_lengths.max())}",
                stacklevel=3,
            )

    def max_question_length(self) -> int:
        return self.max_length

    def coverage_warnings(self, task: Task, number_ids: frozenset[int]) -> list[str]:
        examples = _to_texts(task.examples("train", 0, 0, SAMPLE)).read_examples()
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
        self, ids: Sequence[int], number_values: Sequence[float] | None, vocabulary: Vocabulary
    ) -> str:
        return self.decode(ids, vocabulary, number_values)


_id_table_cache: "WeakKeyDictionary[Vocabulary, WeakKeyDictionary[Vocabulary, Ids]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _SourceRows:
    """The rows of a block from one source: `block_indices` are their indices in the block, `rows` those in the
    source."""

    block_indices: NDArray[np.int64]
    rows: NDArray[np.int64]
    source: TextSource
    tokenized_texts: TokenizedTexts

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
        tokens, is_cut_left = self.tokenized_texts, self.source.truncation_side == "left"
        prompts, answers = prompt_lengths[self.block_indices], answer_lengths[self.block_indices]
        starts = tokens.starts[self.rows]
        ends = starts + tokens.prompt_lengths[self.rows]
        for columns, sources, counts in (
            (np.full(len(starts), start_column), ends - prompts if is_cut_left else starts, prompts),
            (start_column + prompts, ends, answers),
        ):
            offsets = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
            targets = np.repeat(self.block_indices, counts), np.repeat(columns, counts) + offsets
            positions = np.repeat(sources, counts) + offsets
            ids[targets] = id_table[tokens.ids[positions]]
            if number_values is not None and tokens.number_values is not None:
                number_values[targets] = tokens.number_values[positions]


def _to_texts(questions: Questions | Sequence[Example]) -> Texts:
    """Questions as texts, those with number slots with plain numbers. Raises `UserError` for labels."""
    if not isinstance(questions, Questions):
        return Texts.from_source(InMemorySource(tuple(questions)), np.arange(len(questions)))
    if questions.labels is not None:
        raise UserError("tokenizer: Subwords does not support labels per token; use tokenizer=Words")
    return plain_texts(questions)
