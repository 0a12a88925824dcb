"""The tokenizer of a run as a Hugging Face tokenizer with the same ids."""

import json
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from numerate.errors import UserError
from numerate.tasks.task import Task
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, Groups, PerDigit, TextNumberFormat
from numerate.text.tokenizers.token_ids import TokenIds, get_tokenizer
from numerate.tokenizers.tokenizer import Characters, Tokenizer
from numerate.tokenizers.words import Words
from numerate.vocabulary import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, Vocabulary

_ROLES = {"eos": EOS, "bos": BOS, "unk": UNK, "pad": PAD}


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
    start, roles = stored_tokenizer.document_start_id, stored_tokenizer.special_token_ids
    end = tuple(dict.fromkeys([start, roles.get("eos", start)]))
    return SpecialIds(start, end, roles.get("pad", end[-1]))


def to_fast_tokenizer(tokenizer: Tokenizer, task: Task, vocabulary: Vocabulary, max_length: int | None = None) -> Any:
    """The tokenizer of a run as a `PreTrainedTokenizerFast`.

    - `TokenIds`: the stored one, with the token that starts documents in front of every text, as in training.
    - `Subwords`: its file with the ids of the run, and `PerDigit` and `Groups` as rules.
    - `Characters` and `Words`: a token for every character or word, as the model sees a text (numbers stay as
      formatted: least significant digit first, say), with [BOS] in front where the recipe has it.

    Names of special tokens in a text are those tokens there, where ours reads them as text. Rows are padded on the
    left. Raises `UserError` for a tokenizer whose tokens carry numbers or formats that no tokenizer.json can hold.
    """
    if isinstance(tokenizer, TokenIds):
        backend, special_tokens = _from_stored_tokenizer(get_tokenizer(vocabulary))
    elif isinstance(tokenizer, Characters | Words):
        backend, special_tokens = _build_word_level(tokenizer, vocabulary)
    elif isinstance(tokenizer, Subwords) and (made := _from_subwords(tokenizer, vocabulary)) is not None:
        backend, special_tokens = made
    else:
        raise UserError(
            f"tokenizer: {type(tokenizer).__name__} of {type(task).__name__} cannot be written as a tokenizer.json; "
            "Characters, Words, TokenIds can, and Subwords with vocabulary=all and AsIs, PerDigit or Groups; "
            "tokenizer=false exports the model without a tokenizer"
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
    return backend, {f"{role}_token": SPECIAL_TOKENS[i] for role, i in _ROLES.items()}


def _from_subwords(tokenizer: Subwords, vocabulary: Vocabulary) -> tuple[Any, dict[str, str]] | None:
    """Its file with our ids, and the rules of its number format; None where that gives other ids."""
    from tokenizers import Tokenizer as Theirs

    file, numbers, names = tokenizer.fast_tokenizer.file, tokenizer.number_format, list(vocabulary.tokens)
    if tokenizer.vocabulary != "all" or (numbers not in (AsIs(), PerDigit()) and not isinstance(numbers, Groups)):
        return None
    for role, i in _ROLES.items():
        name = dict(file.special_tokens).get(role, names[i])
        names[i] = names[i] if name in names else name
    ids, tree = {name: i for i, name in enumerate(names)}, json.loads(Theirs.from_str(file.json_text).to_str())
    _add_number_rules(tree, numbers)
    model = tree["model"]
    if "merges" in model:
        model["merges"] += [[one[:cut], one[cut:]] for one in numbers.symbols() for cut in range(1, len(one))]
    if isinstance(model["vocab"], dict):
        model["vocab"] = ids
    else:  # of Unigram, where the most probable pieces of a group have to be the group
        scores = dict(model["vocab"]) | {group: len(group) ** 2.0 for group in numbers.symbols() if len(group) > 1}
        model["vocab"] = [[name, scores.get(name, min(scores.values()))] for name in names]
    unknown = {"unk_token": names[UNK], "unk_id": UNK}
    model |= {key: value for key, value in unknown.items() if model.get(key) is not None}
    tree["added_tokens"] = [one | {"id": ids[one["content"]]} for one in tree["added_tokens"] if one["content"] in ids]
    begin = _bos_post_processor(names[BOS], BOS) if tokenizer.add_bos_token else None
    backend = Theirs.from_str(json.dumps(tree | {"truncation": None, "padding": None, "post_processor": begin}))
    for text in ("a 1 12, 123 (1234)", "Is -98765.43210 + 1234567 = .5?", "2.345x", "10.123456789"):
        if backend.encode(text, add_special_tokens=False).ids != tokenizer.encode(text, vocabulary):
            return None
    return backend, {f"{role}_token": names[i] for role, i in _ROLES.items()}


def _add_number_rules(tree: dict[str, Any], numbers: TextNumberFormat) -> None:
    """Splits digits or groups of them off in a tokenizer.json. Where to cut from the right its normalizer marks, which
    sees whole numbers: integers, and up to 90 digits of a fraction."""
    splits = [("[0-9]", "Isolated")] if isinstance(numbers, PerDigit) else []
    if isinstance(numbers, Groups):  # no other rule cuts a run of digits
        rules = json.dumps(tree["pre_tokenizer"]).replace('"individual_digits": true', '"individual_digits": false')
        rules = rules.replace(r"\\p{N}{1,3}", r"(?:(?![0-9])\\p{N}){1,3}").replace('{"Regex": "', '{"Regex": "[0-9]+|')
        tree["pre_tokenizer"], size = json.loads(rules), numbers.group_size
        splits = [(f"{_CUT}|{_CUT_BYTES}", "Removed"), (rf"(?<=[0-9])\.(?=[0-9])|[0-9]{{1,{size}}}", "Isolated")]
        if numbers.group_from == "right":
            digits = [rf"[0-9]\.[0-9]{{{count}}}" for count in range(1, 91)]  # a lookbehind has fixed lengths
            cuts = rf"(?<={'|'.join(digits[size - 1 :: size])})(?=[0-9])"
            cuts += rf"|(?<=[0-9])(?<!{'|'.join(digits)})(?=(?:[0-9]{{{size}}})+(?![0-9]))"
            marks = [tree["normalizer"], {"type": "Replace", "pattern": {"Regex": cuts}, "content": _CUT}]
            tree["normalizer"] = {"type": "Sequence", "normalizers": [*filter(None, marks)]}
    more = [{"type": "Split", "pattern": {"Regex": one}, "behavior": how, "invert": False} for one, how in splits]
    if more:
        tree["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*filter(None, [tree["pre_tokenizer"]]), *more]}


_CUT, _CUT_BYTES = "\ue000", "îĢĢ"
"""The mark of a cut, and what pre-tokenizers of bytes make of it."""


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
