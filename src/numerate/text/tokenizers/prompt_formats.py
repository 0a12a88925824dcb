"""The text of a prompt: a question in a template, after examples with their answers, and in a chat template."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.tasks.texts import Example
from numerate.text.tokenizers.tokenizer_files import find_tokenizer, is_hub_reachable

QUESTION = "{question}"
"""Where the question stands in a template."""

SEPARATOR = "\n\n"
"""The text between an example and the next question."""


@dataclass(frozen=True)
class PromptFormat:
    """How a question becomes a prompt. `template` has `{question}` once; with `chat_tokenizer`, a tokenizer of
    transformers by its name and revision, each question is a message of a user, each answer one of the assistant.

    >>> prompts = PromptFormat("Question: {question}\\nAnswer:")
    >>> prompts.render("2+2=", [Example("1+1=", "2")])
    'Question: 1+1=\\nAnswer: 2\\n\\nQuestion: 2+2=\\nAnswer:'
    """

    template: str = QUESTION
    chat_tokenizer: tuple[str, str | None] | None = None
    system_prompt: str | None = None

    def render(self, question: str, examples: Sequence[Example] = ()) -> str:
        """The prompt of a question after these examples. Raises `UserError` without a chat template."""
        if self.chat_tokenizer is not None:
            return self._render_chat(question, examples)
        texts = [f"{self._fill(one.question)} {one.answer}{SEPARATOR}" for one in examples]
        return "".join([*texts, self._fill(question)])

    def stop_texts(self) -> tuple[str, ...]:
        """The texts with which another question begins, on a line of its own; none in a chat.

        >>> PromptFormat("- {question}").stop_texts(), PromptFormat().stop_texts()
        (('\\n- ',), ('\\n\\n',))
        """
        if self.chat_tokenizer is not None:
            return ()
        beginning = self.template.partition(QUESTION)[0].lstrip("\n")
        return (f"\n{beginning}" if beginning.strip() else SEPARATOR,)

    def fingerprint(self) -> str:
        """What the rendered texts depend on, besides questions and examples."""
        return repr([self, None if self.chat_tokenizer is None else _chat_template(*self.chat_tokenizer)])

    def _fill(self, question: str) -> str:
        return self.template.replace(QUESTION, question)

    def _render_chat(self, question: str, examples: Sequence[Example]) -> str:
        assert self.chat_tokenizer is not None
        name, revision = self.chat_tokenizer
        _chat_template(name, revision)
        messages = [] if self.system_prompt is None else [{"role": "system", "content": self.system_prompt}]
        for example in examples:
            messages.append({"role": "user", "content": self._fill(example.question)})
            messages.append({"role": "assistant", "content": example.answer})
        messages.append({"role": "user", "content": self._fill(question)})
        try:
            text = load_transformers_tokenizer(name, revision).apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template raises what it likes, as for a system message that it does not take
            hint = "; tokenizer.system_prompt=null leaves it out" if self.system_prompt is not None else ""
            raise UserError(f"tokenizer.chat_template: the chat template of {name} fails: {error}{hint}") from error
        return str(text)


@lru_cache(maxsize=4)
def load_transformers_tokenizer(name: str, revision: str | None = None) -> Any:
    """The tokenizer of transformers, for its chat template and special tokens. Raises `UserError` if it cannot be
    loaded."""
    path = find_tokenizer(name) if revision is None else Path(name)
    try:
        from transformers import AutoTokenizer

        options: dict[str, Any] = (
            {} if path.exists() else {"revision": revision, "local_files_only": not is_hub_reachable()}
        )
        return AutoTokenizer.from_pretrained(str(path) if path.exists() else name, trust_remote_code=False, **options)
    except Exception as error:  # of many kinds: no package, no network, no such name, another format
        if path.is_dir() and not any(path.glob("*token*")) and not any(path.glob("*.model")):
            advice = "`tokenizer.save_pretrained(folder)` of transformers writes one beside the weights"
            raise UserError(f"tokenizer: {path} has no files of a tokenizer; {advice}") from error
        reason = " ".join(str(error).split())
        raise UserError(f"tokenizer: {name}: transformers cannot load its tokenizer ({reason})") from error


def _chat_template(name: str, revision: str | None) -> str:
    """The chat template of a tokenizer. Raises `UserError` if it has none."""
    template = load_transformers_tokenizer(name, revision).chat_template
    if template is None:
        raise UserError(
            f"tokenizer.chat_template: must be false for {name}, whose tokenizer has no chat template; "
            "tokenizer.question_template is the text of its prompts"
        )
    return str(template)
