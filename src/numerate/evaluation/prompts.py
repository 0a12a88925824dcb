"""Tokenizes prompts as people type them, and decodes generated tokens to text, also as a stream."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from numerate.batch import Model, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import SPARE, EvaluationData, prompts_of
from numerate.evaluation.text_answers import plainly
from numerate.tasks.language_modeling import LanguageModeling
from numerate.vocabulary import BEGIN, END, PAD, SPECIAL, UNKNOWN

MOST = 200
"""Default of `max_new_tokens`, where the context has room for them."""

LOST = "\N{REPLACEMENT CHARACTER}"
"""The character for bytes that are no character, or not yet."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as typed, its token ids, and the parts of it that the tokenizer does not know.

    `question` is whether it was parsed as a question of the task, with its numbers in the format of the model;
    then `answer` is how many tokens the right answer has. `values` are the numbers beside its tokens, if they have any.
    """

    text: str
    ids: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    question: bool = False
    answer: int | None = None
    values: tuple[float, ...] | None = None


class Writing(ABC):
    """Tokenizes the prompts of a run, and decodes what it generates."""

    stop: tuple[int, ...]
    """The tokens that end a text."""

    @abstractmethod
    def read(self, text: str) -> Prompt:
        """Tokenizes a prompt. Raises `UserError` for one without tokens."""

    @abstractmethod
    def text(self, ids: Sequence[int]) -> str:
        """Decodes ids, without special tokens."""

    def postprocess(self, prompt: Prompt, text: str) -> str:
        """The generated text as a person writes it."""
        return text


def writing_of(exam: EvaluationData) -> Writing:
    """The `Writing` of a run. Raises `UserError` where its layout does not continue a text."""
    if isinstance(exam.task, LanguageModeling):
        return RunningText(exam.task)
    if not exam.layout.continues:
        raise UserError(
            f"layout: {type(exam.layout).__name__} predicts every position by itself and cannot continue a text; "
            "`numerate ask` shows the predictions"
        )
    return QuestionPrompts(exam)


class RunningText(Writing):
    """Running text: a prompt is at the start of a document, behind its start token.

    A text ends with the start token of the next one, or with an end token where the tokenizer has one.
    """

    def __init__(self, task: LanguageModeling) -> None:
        self.pieces = task.pieces()
        roles = self.pieces.roles
        self.stop = tuple(sorted({self.pieces.begin, *(roles[role] for role in ("eos",) if role in roles)}))

    def read(self, text: str) -> Prompt:
        ids = self._ids(text)
        unknown: tuple[str, ...] = ()
        if self._loses(text, ids):
            unknown = tuple(one for one in dict.fromkeys(text) if self._loses(one, self._ids(one)))
        return Prompt(text, (self.pieces.begin, *ids), unknown)

    def _loses(self, text: str, ids: Sequence[int]) -> bool:
        """Whether characters of a text have no token, or become others; spaces do not count."""
        return self.pieces.roles.get("unk") in ids or "".join(self.text(ids).split()) != "".join(text.split())

    def text(self, ids: Sequence[int]) -> str:
        return self.pieces.decode(ids)  # type: ignore[no-any-return]

    def _ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self.pieces.encode([text])[0].tolist()
        except ValueError as error:
            raise UserError(f"prompt: {text!r} {error}") from error
        return ids


class QuestionPrompts(Writing):
    """Questions of a task (`12+34=`), and any text in its symbols.

    A question is parsed as in `numerate ask`: its numbers are converted to the format of the model, and those of the
    answer back. Any other text is tokenized as it stands.
    """

    stop = (END,)

    def __init__(self, exam: EvaluationData) -> None:
        self.exam = exam
        self.begin = (BEGIN,) if getattr(exam.tokenizer, "add_bos_token", False) else ()

    def read(self, text: str) -> Prompt:
        vocabulary = self.exam.vocabulary
        ids = [*self.exam.tokenizer.encode(text, vocabulary)]
        unknown = tuple(dict.fromkeys(_not_known(text, ids, vocabulary.ids))) if UNKNOWN in ids else ()
        if not unknown and text:
            try:
                batch = self.exam.batch(self.exam.task.read(text))
            except (UserError, NotImplementedError):
                pass  # no question of the task: a text to continue
            else:
                return self._question(text, *prompts_of(batch))
        if self.exam.carries:
            raise UserError(
                f"prompt: {text!r} is no question of {type(self.exam.task).__name__}, whose tokens have numbers"
            )
        if not (*self.begin, *ids):
            raise UserError("prompt: is empty, and rows of this run begin with a question; '12+34=' is one of sums")
        return Prompt(text, (*self.begin, *ids), unknown)

    def _question(self, text: str, prompt: Tokens, answer: int) -> Prompt:
        values = None if prompt.values is None else tuple(prompt.values[0].tolist())
        return Prompt(text, tuple(prompt.ids[0].tolist()), (), True, answer, values)

    def text(self, ids: Sequence[int]) -> str:
        return self.exam.tokenizer.decode(ids, self.exam.vocabulary)

    def postprocess(self, prompt: Prompt, text: str) -> str:
        return plainly(self.exam.tokenizer, text) if prompt.question else text


def _not_known(text: str, ids: Sequence[int], known: Iterable[str]) -> Iterable[str]:
    """The characters of a text that have no token, where each has one; else the words of it that have none."""
    tokens = set(known)
    parts = list(text) if len(ids) == len(text) else text.split()
    return [part for part in parts if part not in tokens]


class TextStreamer:
    """Decodes tokens to text as they come; incomplete characters are buffered.

    Only the tokens since the last piece of text are decoded again, behind those of the piece before it, as the text of
    a token depends on what precedes it (the space in front of a word, the bytes of a character).

    >>> streamer = TextStreamer(pieces.decode, [1])
    >>> "".join(map(streamer.put, [9038, 2501])) + streamer.rest()
    'Once upon'
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(before)
        self._first, self._end = 0, len(before)

    def put(self, token: int) -> str:
        """The new text with this token: often a word, sometimes nothing yet."""
        self._ids.append(token)
        return self._new(whole=False)

    def rest(self) -> str:
        """The buffered text, also of an incomplete character."""
        return self._new(whole=True)

    def _new(self, *, whole: bool) -> str:
        old = self._decode(self._ids[self._first : self._end])
        now = self._decode(self._ids[self._first :])
        new = now[len(old) :]
        if new.endswith(LOST) and not whole:
            return ""
        if new:
            self._first, self._end = self._end, len(self._ids)
        return new


def tokens_of(prompts: Sequence[Prompt], samples: Sequence[int], device: torch.device) -> Tokens:
    """Prompts as rows, padded on the right; `samples` are their numbers among those of the same prompt.

    A row's own number is a hash of its ids and its sample: what it draws depends on no other prompt.
    """
    longest = max(len(prompt.ids) for prompt in prompts)
    ids = [[*prompt.ids, *[PAD] * (longest - len(prompt.ids))] for prompt in prompts]
    values = None
    if any(prompt.values is not None for prompt in prompts):
        numbers = [prompt.values or (1.0,) * len(prompt.ids) for prompt in prompts]
        values = torch.tensor([[*one, *[1.0] * (longest - len(one))] for one in numbers], device=device)
    rows = [_row(prompt.ids, sample) for prompt, sample in zip(prompts, samples, strict=True)]
    return Tokens(
        torch.tensor(ids, device=device),
        torch.tensor([len(prompt.ids) for prompt in prompts], device=device),
        torch.tensor(rows, device=device),
        values,
    )


def _row(ids: Sequence[int], sample: int) -> int:
    digest = hashlib.blake2b(f"{list(ids)} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def most_of(
    prompts: Sequence[Prompt],
    max_new_tokens: int | None,
    context: int,
    context_length: int | None,
    *,
    usual: int = MOST,
) -> int:
    """The maximum number of new tokens: `max_new_tokens` if given; for questions as many as their answers have, and
    `SPARE` more; else the `usual` number; but no more than the context has room for."""
    if max_new_tokens is not None:
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens: {max_new_tokens} tokens are nothing to say; 1 or more is right")
        return max_new_tokens
    room = context + 1 - max(len(prompt.ids) for prompt in prompts)  # the last new token is not read
    answers = [prompt.answer for prompt in prompts if prompt.answer is not None]
    if len(answers) == len(prompts):
        return max(max(answers), min(max(answers) + SPARE, room))
    return usual if context_length is not None or room < 1 else min(usual, room)


@torch.no_grad()
def refuse_too_long(
    model: Model, exam: EvaluationData, prompts: Sequence[Prompt], most: int, context: int, window: int | None
) -> list[str]:
    """Raises `UserError` where a row would go beyond a table of the model (learned positions or symbols).

    Returns warnings of positions beyond training, and of characters that the tokenizer does not know."""
    warnings = [
        f"prompt {prompt.text!r}: the tokenizer does not know {', '.join(map(repr, prompt.unknown))}"
        for prompt in prompts
        if prompt.unknown
    ]
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    read = len(longest.ids) + most - 1
    if window is not None and read > window:
        warnings += [] if window <= context else [_beyond(window, context, "a window")]
        read = window
    elif read > context:
        warnings.append(_beyond(read, context, f"a prompt of {len(longest.ids)} tokens and {most} more"))
    # Tables that are too short are found by reading so many tokens once; rows as long as those of training fit.
    plain = _plainest(exam, longest)
    row = Tokens(torch.full((1, read), plain), torch.tensor([read]), torch.zeros(1, dtype=torch.long))
    try:
        model.check(row)
        if read > context:
            model(row, target_positions=torch.tensor([[read - 1]]))
    except UserError as error:
        raise UserError(
            f"max_new_tokens: a prompt of {len(longest.ids)} tokens and {most} more do not fit: {error}. Or "
            f"context_length={context}: "
            "the last tokens alone are then read, as if the text began there"
        ) from error
    return warnings


def _beyond(read: int, context: int, what: str) -> str:
    return f"{what} reach to position {read}, and rows of training had {context} tokens: text there may be poor"


def _plainest(exam: EvaluationData, prompt: Prompt) -> int:
    """A token that is part of no number: the last of a prompt that is, else that for unknown ones."""
    kinds = exam.vocabulary.kinds
    return next((i for i in reversed(prompt.ids) if kinds[i] > SPECIAL and not exam.vocabulary.is_digit[i]), UNKNOWN)


def context_of(exam: EvaluationData) -> int:
    """The most tokens that a row of training has."""
    if isinstance(exam.task, LanguageModeling):
        return exam.task.context_length
    return int(exam.longest(exam.task).lengths.max())
