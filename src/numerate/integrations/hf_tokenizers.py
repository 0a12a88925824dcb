"""The tokenizer of a run as a Hugging Face tokenizer with the same ids."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numerate.errors import UserError
from numerate.tasks.task import Task
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer
from numerate.text.tokenizers.token_ids import TokenIds, get_tokenizer
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words
from numerate.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Vocabulary


@dataclass(frozen=True)
class SpecialIds:
    """The ids that begin a text, that end it (any of several), and that pad rows."""

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int


def special_ids(tokenizer: Tokenizer, vocabulary: Vocabulary) -> SpecialIds:
    """The special ids of a run. Language modeling has no end token: it ends where the next document starts."""
    if not isinstance(tokenizer, TokenIds):
        return SpecialIds(BOS, (EOS,), PAD)
    stored_tokenizer = get_tokenizer(vocabulary)
    end = tuple(
        dict.fromkeys(
            [
                stored_tokenizer.document_start_id,
                stored_tokenizer.special_token_ids.get("eos", stored_tokenizer.document_start_id),
            ]
        )
    )
    return SpecialIds(stored_tokenizer.document_start_id, end, stored_tokenizer.special_token_ids.get("pad", end[-1]))


def to_fast_tokenizer(tokenizer: Tokenizer, task: Task, vocabulary: Vocabulary, max_length: int | None = None) -> Any:
    """The tokenizer of a run as a `PreTrainedTokenizerFast`.

    - `TokenIds`: the stored one, with the token that starts documents in front of every text, as in training.
    - `Characters` and `Words`: a token for every character or word, as the model sees a text (numbers stay as
      formatted: least significant digit first, say), with [BOS] in front where the recipe has it.

    Names of special tokens in a text are those tokens there, where ours reads them as text. Rows are padded on the
    left. Raises `UserError` for a tokenizer whose tokens carry numbers or formats that no tokenizer.json can hold.
    """
    if isinstance(tokenizer, TokenIds):
        backend, special_tokens = _from_stored_tokenizer(get_tokenizer(vocabulary))
    elif isinstance(tokenizer, Characters | Words):
        backend, special_tokens = _build_word_level(tokenizer, vocabulary)
    else:
        raise UserError(
            f"tokenizer: {type(tokenizer).__name__} of {type(task).__name__} cannot be written as a tokenizer.json; "
            "Characters, Words and TokenIds can; tokenizer=false exports the model without a tokenizer"
        )
    length_options = {} if max_length is None else {"model_max_length": max_length}
    fast: Any = import_module("transformers").PreTrainedTokenizerFast
    return fast(
        tokenizer_object=backend,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **special_tokens,
        **length_options,
    )


def _from_stored_tokenizer(stored: PretrainedTokenizer) -> tuple[Any, dict[str, str]]:
    from tokenizers import Tokenizer as Theirs

    tree = json.loads(stored.file.json_text)
    tree["truncation"] = tree["padding"] = None
    begin = stored.symbols[stored.document_start_id]
    tree["post_processor"] = _bos_post_processor(begin, stored.document_start_id)
    roles = dict(stored.file.special_tokens)
    end = roles.get("eos", begin)
    special_tokens = {"bos_token": begin, "eos_token": end, "pad_token": roles.get("pad", end)}
    if "unk" in roles:
        special_tokens["unk_token"] = roles["unk"]
    return Theirs.from_str(json.dumps(tree)), special_tokens


def _build_word_level(tokenizer: Characters | Words, vocabulary: Vocabulary) -> tuple[Any, dict[str, str]]:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Theirs

    backend = Theirs(
        models.WordLevel({text: i for i, text in enumerate(vocabulary.tokens)}, unk_token=SPECIAL_TOKENS[UNK])
    )
    if isinstance(tokenizer, Characters):
        backend.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
        backend.decoder = decoders.Fuse()
    else:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    if tokenizer.add_bos_token:
        tree = json.loads(backend.to_str())
        tree["post_processor"] = _bos_post_processor(SPECIAL_TOKENS[BOS], BOS)
        backend = Theirs.from_str(json.dumps(tree))
    special_tokens = {
        "pad": SPECIAL_TOKENS[PAD],
        "unk": SPECIAL_TOKENS[UNK],
        "bos": SPECIAL_TOKENS[BOS],
        "eos": SPECIAL_TOKENS[EOS],
    }
    return backend, {f"{role}_token": name for role, name in special_tokens.items()}


def _bos_post_processor(token: str, token_id: int) -> dict[str, Any]:
    """The post-processor of a tokenizer.json that puts a token in front of every text."""
    first = {"SpecialToken": {"id": token, "type_id": 0}}
    single = [first, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
