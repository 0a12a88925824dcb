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
from numerate.tasks.plain import plain_text
from numerate.tasks.questions import Example, Questions
from numerate.tasks.task import Task
from numerate.tasks.texts import Listed, Texts, TextSource
from numerate.text.tokenizers import hf_vocabulary as foreign
from numerate.text.tokenizers import tokenizer_files
from numerate.text.tokenizers.coverage import Coverage
from numerate.text.tokenizers.hf_vocabulary import per_digit as per_digit
from numerate.text.tokenizers.text_number_formats import AsIs, PerDigit, TextNumberFormat
from numerate.text.tokenizers.tokenized_texts import Tokenised, tokenised
from numerate.tokenizers.number_formats import Digits, Ids, id_type
from numerate.tokenizers.tokenizer import Characters, Rows, Tokenizer
from numerate.vocabulary import BEGIN, END, PAD, POINT, SIGN, SPECIAL, UNKNOWN, Vocabulary

MASKS = ("<extra_id_0>", "<mask>", "[MASK]")
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
    [EOS]`. Ids are numerate's own; `Vocabulary.foreign` has the tokenizer's, which index pretrained embeddings.

    With `vocabulary="occurring"` the vocabulary has only the tokens of the training data, signs, points, single ASCII
    characters, masks and number symbols, so that a small model has a small embedding table. Other tokens are [UNK].

    An answer has several tokenizations, so answers are generated, not scored by one forward pass. Question and answer
    have at most `max_length` tokens each. Longer answers lose their end; longer questions the side that their task
    names (`truncation_side`), with a warning that counts them.

    Raises `UserError` for a tokenizer that cannot be read, and for one without the ten digits unless
    `number_format=AsIs`.
    """

    unique: ClassVar[bool] = False

    tokenizer: str = setting("google-t5/t5-small", "a folder, a tokenizer.json, a model on the hub, or characters")
    number_format: TextNumberFormat = setting(AsIs(), "how numbers in texts are tokenized")
    vocabulary: Literal["all", "occurring"] = setting(
        "all", "the tokenizer's whole vocabulary (all), or only tokens of the training data (occurring)"
    )
    add_bos_token: bool = setting(False, "whether every sequence starts with [BOS]")
    answer_prefix: str = setting("", "a text before every answer; a space for most decoders")
    max_length: int = setting(512, "largest number of tokens of a question, and of an answer without its [EOS]")
    revision: str | None = setting(None, "revision of a model on the hub; null: the newest")

    def __post_init__(self) -> None:
        if self.vocabulary not in ("all", "occurring"):
            raise UserError(f"vocabulary: {self.vocabulary!r} is neither 'all' nor 'occurring'")
        if self.max_length < 1:
            raise UserError(f"max_length: {self.max_length} tokens are nothing to read; 1 or more are")

    @property
    def speller(self) -> foreign.Speller:
        """The tokenizer with its number format, loaded once per process."""
        return foreign.speller(tokenizer_files.stored(self.tokenizer, self.revision), self.number_format)

    def fingerprint(self) -> str:
        """A hash of the tokenizer's content, whatever its name: equal hashes give equal ids."""
        return self.speller.file.fingerprint

    def build_vocabulary(self, task: Task | Iterable[str]) -> Vocabulary:
        whole = self.speller.vocabulary
        if self.vocabulary == "all":
            return whole
        used = np.zeros(whole.size, dtype=np.bool_)
        used[self._used(task)] = True
        used |= np.isin(whole.kinds, (SPECIAL, SIGN, POINT))
        used[[whole.ids[symbol] for symbol in self.number_format.symbols()]] = True
        used |= np.array([(len(symbol) == 1 and symbol.isascii()) or symbol in MASKS for symbol in whole.symbols])
        return foreign.cut(whole, np.flatnonzero(used))

    def _used(self, task: Task | Iterable[str]) -> NDArray[np.int64]:
        """The ids of a task's training data: all of its files, or the first block drawn."""
        if not isinstance(task, Task):
            return np.unique(self.speller.encode([*task]).ids).astype(np.int64)
        questions = task.examples("train", 0, 0, task.block)
        if questions.labels is not None:
            return self._used(questions.alphabet)
        texts = questions.texts if questions.texts is not None else _texts(questions)
        return np.concatenate([self._tokens(texts, number).used for number in range(len(texts.sources))])

    def _tokens(self, texts: Texts, number: int) -> Tokenised:
        return tokenised(texts.sources[number], self.speller, self.answer_prefix)

    def rows(self, questions: Questions | Sequence[Example], vocabulary: Vocabulary) -> Rows:
        if not isinstance(questions, Questions):
            texts = _listed(questions)
        else:
            texts = questions.texts if questions.texts is not None else _texts(questions)
        first = int(self.add_bos_token)
        parts = [
            _Part(
                np.flatnonzero(texts.source == number), self._tokens(texts, number), texts.rows, texts.sources[number]
            )
            for number in range(len(texts.sources))
        ]
        prompts, answers = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
        for part in parts:
            prompts[part.at], answers[part.at] = part.sizes()
        for part in parts:
            self._say_cut(part, np.maximum(prompts, answers)[part.at])
        prompts, answers = np.minimum(prompts, self.max_length), np.minimum(answers, self.max_length)
        lengths = first + prompts + answers + 1
        time = int(lengths.max(initial=0))
        ids = np.full((len(texts), time), PAD, dtype=id_type(vocabulary))
        values = np.ones((len(texts), time), dtype=np.float32) if self.number_format.carries else None
        table = self._table(vocabulary)
        for part in parts:
            part.write(ids, values, first, prompts, answers, table)
        ids[np.arange(len(texts)), lengths - 1] = END
        if self.add_bos_token:
            ids[:, 0] = BEGIN
        positions = np.arange(time)
        target_mask = (positions >= (first + prompts)[:, None]) & (positions < lengths[:, None])
        return Rows(ids, lengths, target_mask, None, values, vocabulary)

    def _table(self, vocabulary: Vocabulary) -> Ids:
        """Maps ids of the full vocabulary to ids of this one."""
        whole = self.speller.vocabulary
        tables = _tables.setdefault(vocabulary, WeakKeyDictionary())
        if whole not in tables:
            known = vocabulary.ids
            ids = [known.get(symbol, UNKNOWN) for symbol in whole.symbols]
            tables[whole] = np.array(ids, dtype=id_type(vocabulary))
        return tables[whole]

    def _say_cut(self, part: "_Part", sizes: NDArray[np.int64]) -> None:
        """Warns how many rows of a part's source are truncated, if any row of the part is."""
        side = "beginning" if part.source.cut == "left" else "end"
        if (sizes > self.max_length).any():
            prompts, answers = part.tokens.sizes(slice(None))
            every = np.maximum(prompts, answers)
            warnings.warn(
                f"tokenizer.max_length: {int((every > self.max_length).sum())} of {len(every)} questions "
                f"({part.source.place}), or "
                f"their answers, have more than {self.max_length} tokens and lose their {side}; the "
                f"longest has "
                f"{int(every.max())}",
                stacklevel=3,
            )

    def coverage_warnings(self, task: Task, number_ids: frozenset[int]) -> list[str]:
        questions = task.examples("train", 0, 0, SAMPLE)
        if questions.texts is not None:
            examples = questions.texts.pairs()
        else:
            examples = [Example(*plain_text(questions, row)) for row in range(len(questions))]
        found = self._coverage(task, examples, number_ids)
        if not found.digits or found.share >= LOW:
            return []
        message = (
            f"objective.loss: {found.share:.0%} of the digit characters of a sample of the training answers stand in "
            "number tokens, and the others get no number loss"
        ).replace("%", " %")
        missed = ", ".join(repr(piece) for piece, _ in found.others[:4])
        message += f" ({missed})" if missed else ""
        per_digit = replace(self, number_format=PerDigit(), vocabulary="all")
        try:
            better = per_digit._coverage(task, examples)
        except UserError:  # a tokenizer without digits
            return [message]
        if better.share > found.share:
            message += f"; tokenizer.number_format=PerDigit makes it {better.share:.0%}".replace("%", " %")
        return [message]

    def _coverage(self, task: Task, examples: Sequence[Example], number_ids: frozenset[int] | None = None) -> Coverage:
        """Coverage of answers by these tokens; None: by the digits of the vocabulary. Raises `UserError` if none."""
        vocabulary = self.build_vocabulary(task)
        number_ids = frozenset(vocabulary.number_ids()) if number_ids is None else number_ids
        if not number_ids:
            raise UserError(f"tokenizer: none of the {vocabulary.size} tokens of this vocabulary has a value")
        rows = replace(self, max_length=10**9).rows([Example("", one.answer) for one in examples], vocabulary)
        answers = [ids[mask].tolist() for ids, mask in zip(rows.ids, rows.target_mask, strict=True)]
        return Coverage.of([one.answer for one in examples], answers, vocabulary.symbols, number_ids)

    def encode(self, text: str, vocabulary: Vocabulary) -> list[int]:
        found: list[int] = self._table(vocabulary)[self.speller.encode([text]).ids].tolist()
        return found

    def encode_with_values(self, text: str, vocabulary: Vocabulary) -> tuple[list[int], list[float]]:
        """The ids of a text, and the number that each carries: 1 if none."""
        encoded = self.speller.encode([text])
        values = np.ones(len(encoded.ids), np.float32) if encoded.values is None else encoded.values
        return self._table(vocabulary)[encoded.ids].tolist(), values.tolist()

    def decode(self, ids: Iterable[int], vocabulary: Vocabulary, values: Iterable[float] | None = None) -> str:
        """The text of ids, with the numbers that they carry if `values` are given."""
        carried = None if values is None else [float(value) for value in values]
        return self.speller.decode([int(i) for i in ids], vocabulary, carried)

    def decode_with_values(self, ids: Sequence[int], values: Sequence[float], vocabulary: Vocabulary) -> str:
        return self.decode(ids, vocabulary, values)


_tables: "WeakKeyDictionary[Vocabulary, WeakKeyDictionary[Vocabulary, Ids]]" = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows of a block from one source: `at` are their indices in the block, `rows` the indices in the source."""

    at: NDArray[np.int64]
    tokens: Tokenised
    rows: NDArray[np.int64]
    source: TextSource

    def sizes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The number of tokens of the questions and of the answers."""
        return self.tokens.sizes(self.rows[self.at])

    def write(
        self,
        ids: Ids,
        values: NDArray[np.float32] | None,
        first: int,
        prompts: NDArray[np.int64],
        answers: NDArray[np.int64],
        table: Ids,
    ) -> None:
        """Writes `prompts` tokens of each question from column `first` on (the last ones if truncated on the left),
        then the first `answers` tokens of its answer."""
        which = self.rows[self.at]
        begins, ends = self.tokens.starts[which], self.tokens.starts[which] + self.tokens.prompts[which]
        kept = ends - prompts[self.at] if self.source.cut == "left" else begins
        for start, source, counts in (
            (np.full(len(which), first), kept, prompts[self.at]),
            (first + prompts[self.at], ends, answers[self.at]),
        ):
            inside = np.arange(int(counts.sum())) - np.repeat(counts.cumsum() - counts, counts)
            to = np.repeat(self.at, counts), np.repeat(start, counts) + inside
            taken = np.repeat(source, counts) + inside
            ids[to] = table[self.tokens.ids[taken]]
            if values is not None and self.tokens.values is not None:
                values[to] = self.tokens.values[taken]


def _listed(examples: Sequence[Example]) -> Texts:
    return Texts.of(Listed(tuple(examples)), np.arange(len(examples)))


def _texts(questions: Questions) -> Texts:
    """Questions with number slots as texts with plain numbers. Raises `UserError` for labels."""
    if questions.labels is not None:
        raise UserError("tokenizer: Subwords writes texts, and these questions have a label per token; take Words")
    writer = Characters(Digits("normal"))
    vocabulary = writer.build_vocabulary(questions.alphabet)
    rows = writer.rows(questions, vocabulary)
    written = [vocabulary.symbols[i] for i in rows.ids.reshape(-1).tolist()]
    time = rows.ids.shape[1]
    prompts = rows.target_mask.argmax(axis=1).tolist()
    return _listed(
        [
            Example("".join(written[at : at + prompt]), "".join(written[at + prompt : at + length - 1]))
            for at, prompt, length in zip(range(0, time * len(rows), time), prompts, rows.lengths.tolist(), strict=True)
        ]
    )
