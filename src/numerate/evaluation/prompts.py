"""Tokenizes prompts, and decodes generated tokens to text."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from numerate.batch import Model, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, extract_prompts
from numerate.evaluation.text_answers import restore_number_format
from numerate.tasks.language_modeling import LanguageModeling
from numerate.vocabulary import BOS, EOS, PAD, UNK


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
    """Tokenizes the prompts of a run, and decodes what it generates. `stop_ids` are the tokens that end a text."""

    stop_ids: tuple[int, ...]

    @abstractmethod
    def encode(self, text: str) -> Prompt:
        """Raises `UserError` for a prompt without tokens."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens."""

    def postprocess(self, prompt: Prompt, text: str) -> str:
        """The generated text in plain notation."""
        return text


class LanguageModelingPrompts(PromptProcessor):
    """Language modeling: a prompt starts a document, after its start token.

    A text ends with the start token of the next document, or with an end token if the tokenizer has one.
    """

    def __init__(self, task: LanguageModeling) -> None:
        self.tokenizer = task.load_tokenizer()
        start, roles = self.tokenizer.document_start_id, self.tokenizer.special_token_ids
        self.stop_ids = tuple(sorted({start, roles.get("eos", start)}))

    def encode(self, text: str) -> Prompt:
        ids = self._encode_ids(text)
        unknown = [one for one in dict.fromkeys(text) if self.decode(self._encode_ids(one)).strip() != one.strip()]
        return Prompt(text, (self.tokenizer.document_start_id, *ids), tuple(unknown))

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)  # type: ignore[no-any-return]

    def _encode_ids(self, text: str) -> list[int]:
        try:
            return self.tokenizer.encode([text])[0].tolist()  # type: ignore[no-any-return]
        except ValueError as error:
            raise UserError(f"prompt: {text!r} {error}") from error


class QuestionPrompts(PromptProcessor):
    """Questions of a task (`12+34=`), and any text in its symbols.

    A question is parsed as in `numerate ask`: its numbers are converted to the format of the model, and those of the
    answer back. Any other text is tokenized unchanged.
    """

    stop_ids = (EOS,)

    def __init__(self, evaluation_data: EvaluationData) -> None:
        self.evaluation_data, self.tokenizer = evaluation_data, evaluation_data.tokenizer
        self.vocabulary = evaluation_data.vocabulary

    def encode(self, text: str) -> Prompt:
        ids = [*self.tokenizer.encode(text, self.vocabulary)]
        parts = list(text) if len(ids) == len(text) else text.split()  # characters, or words
        unknown = [part for part in parts if part not in self.vocabulary.token_to_id] if UNK in ids else []
        if text and not unknown and (question := self._encode_question(text)) is not None:
            return question
        if self.evaluation_data.has_number_tokens:
            task_name = type(self.evaluation_data.task).__name__
            raise UserError(f"prompt: {text!r} must be a question of {task_name}, whose tokens have numbers")
        ids = [BOS, *ids] if getattr(self.tokenizer, "add_bos_token", False) else ids
        if not ids:
            raise UserError("prompt: must not be empty, as this run needs a question such as '12+34='")
        return Prompt(text, tuple(ids), tuple(dict.fromkeys(unknown)))

    def _encode_question(self, text: str) -> Prompt | None:
        """A question of the task; None for a text to continue."""
        try:
            questions = self.evaluation_data.task.parse_question(text)
            batch = self.evaluation_data.batch(questions)
        except (UserError, NotImplementedError):
            return None
        prompt, answer_length = extract_prompts(batch)
        values = None if prompt.number_values is None else tuple(prompt.number_values[0].tolist())
        return Prompt(text, tuple(prompt.ids[0].tolist()), (), questions.has_numbers, answer_length, values)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, self.vocabulary)

    def postprocess(self, prompt: Prompt, text: str) -> str:
        return restore_number_format(self.tokenizer, text) if prompt.has_numbers else text


def pad_prompts(prompts: Sequence[Prompt], sample_indices: Sequence[int], device: torch.device) -> Tokens:
    """Prompts as rows, padded on the right; the example index of each is a hash of its ids and its index among the
    samples of the same prompt, so that its random numbers do not depend on other prompts."""

    def padded(rows: Iterable[Sequence[float]], padding: float) -> Tensor:
        return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows], device=device)

    longest = max(len(prompt.ids) for prompt in prompts)
    values = None
    if any(prompt.number_values is not None for prompt in prompts):
        values = padded((prompt.number_values or (1.0,) * len(prompt.ids) for prompt in prompts), 1.0)
    keys = [
        int.from_bytes(blake2b(f"{list(prompt.ids)} {sample}".encode(), digest_size=8).digest(), "little") >> 1
        for prompt, sample in zip(prompts, sample_indices, strict=True)
    ]
    lengths = torch.tensor([len(prompt.ids) for prompt in prompts], device=device)
    return Tokens(padded((prompt.ids for prompt in prompts), PAD), lengths, torch.tensor(keys, device=device), values)


def resolve_max_new_tokens(
    prompts: Sequence[Prompt],
    max_new_tokens: int | None,
    context: int,
    context_length: int | None,
    *,
    default: int = 200,
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


def check_lengths(
    model: Model, prompts: Sequence[Prompt], max_new_tokens: int, context: int, window: int | None
) -> list[str]:
    """Raises `UserError` if a row would exceed the positions of the model.

    Returns warnings of positions beyond training, and of characters that the tokenizer does not know."""
    warnings = [
        f"prompt {prompt.text!r}: the tokenizer does not know {', '.join(map(repr, prompt.unknown_parts))}"
        for prompt in prompts
        if prompt.unknown_parts
    ]
    longest = max(len(prompt.ids) for prompt in prompts)
    length = f"a prompt of {longest} tokens and {max_new_tokens} more"
    num_positions, what = longest + max_new_tokens - 1, length
    if window is not None and num_positions > window:
        num_positions, what = window, "a window"
    if num_positions > context:
        reach = f"{what} reach to position {num_positions}, and rows of training had {context} tokens"
        warnings.append(f"{reach}: text there may be poor")
    row = Tokens(torch.full((1, num_positions), UNK), torch.tensor([num_positions]), torch.zeros(1, dtype=torch.long))
    try:
        model.check_tokens(row)
    except UserError as error:
        hint = f"Or set context_length={context}: the last tokens alone are then read, as if the text began there"
        raise UserError(f"max_new_tokens: {length} do not fit: {error}. {hint}") from error
    return warnings
