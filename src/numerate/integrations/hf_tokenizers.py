"""A run's tokenizer as one of Hugging Face: the same ids for the same texts."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numerate.errors import UserError
from numerate.tasks.task import Task
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer
from numerate.text.tokenizers.token_ids import TokenIds, pieces_of
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words
from numerate.vocabulary import BEGIN, END, PAD, SPECIALS, UNKNOWN, Vocabulary


@dataclass(frozen=True)
class SpecialIds:
    """Which ids begin a text, end it (any of several), and fill rows up."""

    begin: int | None
    end: tuple[int, ...]
    pad: int


def special_ids(tokenizer: Tokenizer, vocabulary: Vocabulary) -> SpecialIds:
    """The special ids of a run. Running text has no end of its own: it ends where the next document starts."""
    if not isinstance(tokenizer, TokenIds):
        return SpecialIds(BEGIN, (END,), PAD)
    known = pieces_of(vocabulary)
    end = tuple(dict.fromkeys([known.begin, known.roles.get("eos", known.begin)]))
    return SpecialIds(known.begin, end, known.roles.get("pad", end[-1]))


def tokenizer_of(tokenizer: Tokenizer, task: Task, vocabulary: Vocabulary, context: int | None = None) -> Any:
    """The tokenizer of a run as a `PreTrainedTokenizerFast`.

    - `TokenIds`: the stored one, with the token that starts documents in front of every text, as in training.
    - `Characters` and `Words`: a token for every character or word, as the model sees a text (numbers stay as
      formatted: least significant digit first, say), with [BOS] in front where the recipe has it.

    Names of special tokens in a text are those tokens there, where ours reads them as text. Rows are padded on the
    left. Raises `UserError` for a tokenizer whose tokens carry numbers or formats that no tokenizer.json can hold.
    """
    if isinstance(tokenizer, TokenIds):
        made, names = _stored(pieces_of(vocabulary))
    elif isinstance(tokenizer, Characters | Words):
        made, names = _own_tokenizer(tokenizer, vocabulary)
    else:
        raise UserError(
            f"tokenizer: {type(tokenizer).__name__} of {type(task).__name__} cannot be written as a tokenizer.json; "
            "Characters, Words and TokenIds can, and tokenizer=false exports the model without"
        )
    length = {} if context is None else {"model_max_length": context}
    fast: Any = import_module("transformers").PreTrainedTokenizerFast
    return fast(tokenizer_object=made, padding_side="left", clean_up_tokenization_spaces=False, **names, **length)


def _stored(known: StoredTokenizer) -> tuple[Any, dict[str, str]]:
    from tokenizers import Tokenizer as Theirs

    text = json.loads(known.file.text)
    text["truncation"] = text["padding"] = None
    begin = known.symbols[known.begin]
    text["post_processor"] = _beginning(begin, known.begin)
    roles = dict(known.file.roles)
    end = roles.get("eos", begin)
    names = {"bos_token": begin, "eos_token": end, "pad_token": roles.get("pad", end)}
    if "unk" in roles:
        names["unk_token"] = roles["unk"]
    return Theirs.from_str(json.dumps(text)), names


def _own_tokenizer(tokenizer: Characters | Words, vocabulary: Vocabulary) -> tuple[Any, dict[str, str]]:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Theirs

    made = Theirs(models.WordLevel({text: i for i, text in enumerate(vocabulary.symbols)}, unk_token=SPECIALS[UNKNOWN]))
    if isinstance(tokenizer, Characters):
        made.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
        made.decoder = decoders.Fuse()
    else:
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(SPECIALS))
    if tokenizer.add_bos_token:
        tree = json.loads(made.to_str())
        tree["post_processor"] = _beginning(SPECIALS[BEGIN], BEGIN)
        made = Theirs.from_str(json.dumps(tree))
    names = {"pad": SPECIALS[PAD], "unk": SPECIALS[UNKNOWN], "bos": SPECIALS[BEGIN], "eos": SPECIALS[END]}
    return made, {f"{role}_token": name for role, name in names.items()}


def _beginning(name: str, i: int) -> dict[str, Any]:
    """The post-processor of a tokenizer.json that puts a token in front of every text."""
    first = {"SpecialToken": {"id": name, "type_id": 0}}
    single = [first, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]}},
    }
