"""Training byte pair encoding (BPE) vocabularies on texts."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.text.data.new_folder import atomic_folder, check_not_existing
from numerate.text.tasks.input_errors import file_error
from numerate.text.tokenizers.fast_tokenizers import check_tokenizers_installed
from numerate.text.tokenizers.sentencepiece_files import SPACE_SYMBOL, build_tokenizer_config
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.tokenizer_files import tokenizer_from_json
from numerate.training import disk

_SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
_NUM_RESERVED = len(_SPECIAL_TOKENS) + len(_BYTE_TOKENS)
_DIGITS = "0123456789"
_MAX_TOKEN_LENGTH = 16
_WORD_PATTERN = rf"{SPACE_SYMBOL}*[\p{{L}}\p{{M}}]+|{SPACE_SYMBOL}*[^\p{{L}}\p{{M}}{SPACE_SYMBOL}]+|{SPACE_SYMBOL}+"
"""Letters, or anything but letters, with the spaces before them."""


def train_vocabulary(texts: Callable[[], Iterable[str]], size: int, *, allow_fewer: bool = False) -> str:
    """Learns a vocabulary of `size` ids from texts and returns it as a tokenizer.json.

    By byte pair encoding (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909); no piece is longer than 16
    characters, reaches over the end of a word, or joins letters and other signs; each digit is a piece of its own. It
    is as SentencePiece makes them for llama2.c: `<unk>`, `<s>` and `</s>` are ids 0 to 2, the 256 bytes 3 to 258, and a
    character that is not among the pieces is written as its bytes; the rarest characters are not, where all of them
    would take more than a quarter of the pieces. A line's end is a byte. *Once upon a time, 42* may be
    `▁Once ▁upon ▁a ▁time , ▁ 4 2`.

    `texts` is called twice, for texts in the same order; memory does not grow with them, but with their different
    words. The result is a function of the texts. Raises `UserError` for a size that the single bytes do not leave room
    in, or that the texts are too short for; with `allow_fewer` it has then as many ids as the texts give.
    """
    min_size = _NUM_RESERVED + 16  # the ten digits, and some letters
    if size < min_size:
        raise UserError(f"size: must be at least {min_size} (bytes and special tokens included), not {size}")
    check_tokenizers_installed()
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    alphabet = _frequent_characters(texts(), max((size - _NUM_RESERVED) // 4, 1))
    tokenizer = Tokenizer(models.BPE(unk_token=_SPECIAL_TOKENS[0], byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORD_PATTERN), "isolated"), pre_tokenizers.Split(Regex("[0-9]"), "isolated")]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*_SPECIAL_TOKENS, *_BYTE_TOKENS],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=_MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_split_lines(texts()), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    if (count := len(model["vocab"])) < size and not allow_fewer:
        raise UserError(
            f"size: the texts are too short for {size:,} ids; they give {count:,}, of which {_NUM_RESERVED} are the "
            f"bytes and special tokens. Set size={count} or less, or use more text"
        )
    added_tokens = [_special_token(i, name) for i, name in enumerate(_SPECIAL_TOKENS)]
    return json.dumps(build_tokenizer_config(model) | {"added_tokens": added_tokens}, ensure_ascii=False, indent=1)


def save_vocabulary(tokenizer: str, out: str | Path) -> Path:
    """Writes a tokenizer.json and its tokenizer_config.json to a new folder, which `pieces` reads, and returns it.

    Raises `UserError` for a folder that is there already, or where none may be written.
    """
    out = Path(out).expanduser()
    check_not_existing(out)
    with atomic_folder(out) as temporary:
        save_tokenizer(PretrainedTokenizer(tokenizer_from_json(tokenizer)), temporary)
    return out


def save_tokenizer(tokenizer: PretrainedTokenizer, folder: Path) -> None:
    """Writes a tokenizer to a folder as tokenizer.json and tokenizer_config.json, whatever it was read from."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | {
        f"{role}_token": name for role, name in tokenizer.file.special_tokens
    }
    with disk.convert_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_atomically(
            folder / "tokenizer_config.json", json.dumps(config, indent=1, ensure_ascii=False).encode()
        )
        disk.write_atomically(folder / "tokenizer.json", tokenizer.file.json_text.encode())
    if load_tokenizer(str(folder)).fingerprint != tokenizer.fingerprint:
        raise file_error(folder, "a tokenizer differs when it is read back from there; use one with a tokenizer.json")


def _special_token(i: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, **flags, "special": True}


def _split_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts as the tokenizer will see them."""
    for text in texts:
        for line in text.split("\n"):
            if line:
                yield SPACE_SYMBOL + line.replace(" ", SPACE_SYMBOL)


def _frequent_characters(texts: Iterable[str], max_characters: int) -> list[str]:
    """The commonest characters but line ends, and the digits, in the order of their code points."""
    counts = Counter({SPACE_SYMBOL: 1})
    for text in texts:
        counts.update(text)
    counts[SPACE_SYMBOL] += counts.pop(" ", 0)
    del counts["\n"]
    commonest = sorted(counts, key=lambda character: (-counts[character], character))[:max_characters]
    return sorted({*commonest, *_DIGITS})
