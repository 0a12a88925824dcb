"""Tokenizes prompts, and decodes generated tokens to text, also as a stream."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from numerate.batch import Model, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, extract_prompts
from numerate.evaluation.text_answers import restore_number_format
from numerate.tasks.language_modeling import LanguageModeling
from numerate.vocabulary import BOS, EOS, PAD, SPECIAL, UNK

DEFAULT_MAX_NEW_TOKENS = 200
"""Default of `max_new_tokens`, if they fit into the context."""

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""The Unicode replacement character, for invalid or incomplete UTF-8."""


@dataclass(frozen=True)
class Prompt:
    """A prompt, its token ids, and its parts that are unknown to the tokenizer.

    For a question of the task `answer_length` is the number of tokens of the correct answer, and `has_numbers` whether
    it has numbers, which are in the format of the model. `number_values` are the numeric values of its tokens, if any.
    """

    text: str
    ids: tuple[int, ...]
    unknown_parts: tuple[str, ...] = ()
    has_numbers: bool = False
    answer_length: int | None = None
    number_values: tuple[float, ...] | None = None


class PromptProcessor(ABC):
    """Tokenizes the prompts of a run, and decodes what it generates."""

    stop_ids: tuple[int, ...]
    """The tokens that end a text."""

    @abstractmethod
    def encode(self, text: str) -> Prompt:
        """Tokenizes a prompt. Raises `UserError` for one without tokens."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids, without special tokens."""

    def postprocess(self, prompt: Prompt, text: str) -> str:
        """The generated text in plain notation."""
        return text


class LanguageModelingPrompts(PromptProcessor):
    """Language modeling: a prompt starts a document, after its start token.

    A text ends with the start token of the next document, or with an end token if the tokenizer has one.
    """

    def __init__(self, task: LanguageModeling) -> None:
        self.tokenizer = task.load_tokenizer()
        roles = self.tokenizer.special_token_ids
        self.stop_ids = tuple(
            sorted({self.tokenizer.document_start_id, roles.get("eos", self.tokenizer.document_start_id)})
        )

    def encode(self, text: str) -> Prompt:
        ids = self._encode_ids(text)
        characters = dict.fromkeys(text) if self._is_lossy(text, ids) else ()
        unknown = tuple(one for one in characters if self._is_lossy(one, self._encode_ids(one)))
        return Prompt(text, (self.tokenizer.document_start_id, *ids), unknown)

    def _is_lossy(self, text: str, ids: Sequence[int]) -> bool:
        """Whether tokenization loses or changes characters of a text, other than spaces."""
        is_same = "".join(self.decode(ids).split()) == "".join(text.split())
        return self.tokenizer.special_token_ids.get("unk") in ids or not is_same

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)  # type: ignore[no-any-return]

    def _encode_ids(self, text: str) -> list[int]:
        try:
            ids: list[int] = self.tokenizer.encode([text])[0].tolist()
        except ValueError as error:
            raise UserError(f"prompt: {text!r} {error}") from error
        return ids


class QuestionPrompts(PromptProcessor):
    """Questions of a task (`12+34=`), and any text in its symbols.

    A question is parsed as in `numerate ask`: its numbers are converted to the format of the model, and those of the
    answer back. Any other text is tokenized unchanged.
    """

    stop_ids = (EOS,)

    def __init__(self, evaluation_data: EvaluationData) -> None:
        self.evaluation_data = evaluation_data
        self.begin_ids = (BOS,) if getattr(evaluation_data.tokenizer, "add_bos_token", False) else ()

    def encode(self, text: str) -> Prompt:
        vocabulary = self.evaluation_data.vocabulary
        ids = [*self.evaluation_data.tokenizer.encode(text, vocabulary)]
        unknown = tuple(dict.fromkeys(_unknown_parts(text, ids, vocabulary.token_to_id))) if UNK in ids else ()
        if not unknown and text:
            try:
                questions = self.evaluation_data.task.parse_question(text)
                batch = self.evaluation_data.batch(questions)
            except (UserError, NotImplementedError):
                pass  # not a question of the task, but a text to continue
            else:
                prompt, answer_length = extract_prompts(batch)
                values = None if prompt.number_values is None else tuple(prompt.number_values[0].tolist())
                return Prompt(text, tuple(prompt.ids[0].tolist()), (), questions.has_numbers, answer_length, values)
        if self.evaluation_data.has_number_tokens:
            raise UserError(
                f"prompt: {text!r} must be a question of {type(self.evaluation_data.task).__name__}, whose tokens have "
                "numbers"
            )
        if not (*self.begin_ids, *ids):
            raise UserError("prompt: must not be empty, as this run needs a question such as '12+34='")
        return Prompt(text, (*self.begin_ids, *ids), unknown)

    def decode(self, ids: Sequence[int]) -> str:
        return self.evaluation_data.tokenizer.decode(ids, self.evaluation_data.vocabulary)

    def postprocess(self, prompt: Prompt, text: str) -> str:
        return restore_number_format(self.evaluation_data.tokenizer, text) if prompt.has_numbers else text


def _unknown_parts(text: str, ids: Sequence[int], known: Iterable[str]) -> Iterable[str]:
    """The parts of a text without a token: characters for character tokenizers, otherwise words."""
    tokens = set(known)
    parts = list(text) if len(ids) == len(text) else text.split()
    return [part for part in parts if part not in tokens]


class TextStreamer:
    """Decodes tokens to text as they are generated; incomplete characters are buffered.

    Only recent tokens are decoded again, together with those of the previous output, since the text of a token depends
    on what precedes it (the space before a word, the bytes of a character).

    >>> streamer = TextStreamer(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [streamer.put(byte) for byte in "5 €".encode()]
    ['5', ' ', '', '', '€']
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context_ids: Sequence[int] = ()) -> None:
        self._decode = decode
        self._ids = list(context_ids)
        self._previous_start, self._printed_end = 0, len(context_ids)

    def put(self, token: int) -> str:
        """The new text with this token: often a word, sometimes nothing yet."""
        self._ids.append(token)
        return self._decode_new(is_final=False)

    def flush(self) -> str:
        """The buffered text, also of an incomplete character."""
        return self._decode_new(is_final=True)

    def _decode_new(self, *, is_final: bool) -> str:
        old = self._decode(self._ids[self._previous_start : self._printed_end])
        now = self._decode(self._ids[self._previous_start :])
        new = now[len(old) :]
        if new.endswith(REPLACEMENT_CHARACTER) and not is_final:
            return ""
        if new:
            self._previous_start, self._printed_end = self._printed_end, len(self._ids)
        return new


def pad_prompts(prompts: Sequence[Prompt], sample_indices: Sequence[int], device: torch.device) -> Tokens:
    """Prompts as rows, padded on the right; `sample_indices` are their indices among the samples of the same prompt.

    The example index of a row is a hash of its ids and sample index, so that its random numbers do not depend on other
    prompts.
    """
    longest = max(len(prompt.ids) for prompt in prompts)
    ids = [[*prompt.ids, *[PAD] * (longest - len(prompt.ids))] for prompt in prompts]
    values = None
    if any(prompt.number_values is not None for prompt in prompts):
        numbers = [prompt.number_values or (1.0,) * len(prompt.ids) for prompt in prompts]
        values = torch.tensor([[*one, *[1.0] * (longest - len(one))] for one in numbers], device=device)
    rows = [_row_key(prompt.ids, sample) for prompt, sample in zip(prompts, sample_indices, strict=True)]
    return Tokens(
        torch.tensor(ids, device=device),
        torch.tensor([len(prompt.ids) for prompt in prompts], device=device),
        torch.tensor(rows, device=device),
        values,
    )


def _row_key(ids: Sequence[int], sample: int) -> int:
    digest = hashlib.blake2b(f"{list(ids)} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def resolve_max_new_tokens(
    prompts: Sequence[Prompt],
    max_new_tokens: int | None,
    context: int,
    context_length: int | None,
    *,
    default: int = DEFAULT_MAX_NEW_TOKENS,
) -> int:
    """The maximum number of new tokens: `max_new_tokens` if given; for questions the length of their answers plus
    `EXTRA_TEXT_TOKENS`; otherwise `default`; but at most as many as fit into the context."""
    if max_new_tokens is not None:
        return max_new_tokens
    tokens_left = context + 1 - max(len(prompt.ids) for prompt in prompts)  # the last new token is not read
    answers = [prompt.answer_length for prompt in prompts if prompt.answer_length is not None]
    if len(answers) == len(prompts):
        return max(max(answers), min(max(answers) + EXTRA_TEXT_TOKENS, tokens_left))
    return default if context_length is not None or tokens_left < 1 else min(default, tokens_left)


@torch.no_grad()
def check_lengths(
    model: Model,
    evaluation_data: EvaluationData,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    context: int,
    window: int | None,
) -> list[str]:
    """Raises `UserError` if a row would exceed the learned positions or symbols of the model.

    Returns warnings of positions beyond training, and of characters that the tokenizer does not know."""
    warnings = [
        f"prompt {prompt.text!r}: the tokenizer does not know {', '.join(map(repr, prompt.unknown_parts))}"
        for prompt in prompts
        if prompt.unknown_parts
    ]
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    length = f"a prompt of {len(longest.ids)} tokens and {max_new_tokens} more"
    num_positions, what = len(longest.ids) + max_new_tokens - 1, length
    if window is not None and num_positions > window:
        num_positions, what = window, "a window"
    if num_positions > context:
        warnings.append(
            f"{what} reach to position {num_positions}, and rows of training had {context} tokens: text there may be "
            "poor"
        )
    # One forward pass of this length finds embeddings that are too short; rows as long as in training fit.
    kinds, is_digit = evaluation_data.vocabulary.token_kinds, evaluation_data.vocabulary.is_digit
    filler = next((i for i in reversed(longest.ids) if kinds[i] > SPECIAL and not is_digit[i]), UNK)  # not of a number
    row = Tokens(
        torch.full((1, num_positions), filler), torch.tensor([num_positions]), torch.zeros(1, dtype=torch.long)
    )
    try:
        model.check_tokens(row)
        if num_positions > context and not next(model.parameters()).is_meta:
            model(row, target_positions=torch.tensor([[num_positions - 1]]))
    except UserError as error:
        raise UserError(
            f"max_new_tokens: {length} do not fit: {error}. Or set context_length={context}: the last tokens alone are "
            "then read, as if the text began there"
        ) from error
    return warnings
