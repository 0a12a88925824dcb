"""Training byte pair encoding (BPE) vocabularies on texts."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from numerate.errors import UserError, did_you_mean
from numerate.text.data.new_folder import new_folder, refuse_taken
from numerate.text.tokenizers.sentencepiece_files import SPACE, tokenizer_json
from numerate.text.tokenizers.stored_tokenizer import StoredTokenizer, pieces
from numerate.text.tokenizers.tokenizer_files import TokenizerFile
from numerate.training import disk

KINDS = ("characters", "bytes")

_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_DIGITS = "0123456789"
_LONGEST = 16
_RUNS = rf"{SPACE}*[\p{{L}}\p{{M}}]+|{SPACE}*[^\p{{L}}\p{{M}}{SPACE}]+|{SPACE}+"
"""Letters, or anything but letters, with the spaces before them."""
_PORTION = 1 << 22


def train_vocabulary(
    texts: Callable[[], Iterable[str]],
    size: int,
    kind: Literal["characters", "bytes"] = "characters",
    *,
    fewer: bool = False,
) -> str:
    """Learns a vocabulary of `size` ids from texts and returns it as a tokenizer.json.

    By byte pair encoding (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909); no piece is longer than 16
    characters, reaches over the end of a word, or joins letters and other signs; each digit is a piece of its own. With
    `kind="characters"` it is as SentencePiece makes them for llama2.c: `<unk>`, `<s>` and `</s>` are ids 0 to 2, the
    256 bytes 3 to 258, and a character that is not among the pieces is written as its bytes; the rarest characters are
    not, where all of them would take more than a quarter of the pieces. A line's end is a byte. With `kind="bytes"` it
    is as GPT-2's: pieces are made of bytes, and `<|endoftext|>` is id 0. For *Once upon a time, 42* either may have
    `▁Once ▁upon ▁a ▁time , ▁ 4 2` (`Ġ` for `▁`).

    `texts` is called twice, for texts in the same order; memory does not grow with them, but with their different
    words. The result is a function of the texts. Raises `UserError` for a size that the single bytes do not leave room
    in, or that the texts are too short for; with `fewer` it has then as many ids as the texts give.
    """
    if kind not in KINDS:
        raise UserError(f"kind: there is no {kind!r}; there are: {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    least = 256 + (len(_SPECIAL) + 16 if kind == "characters" else 2)  # the ten digits, and some letters
    if size < least:
        raise UserError(f"size: {size} ids leave no room beside the bytes and special tokens; {least} or more is right")
    library()
    found = _of_characters(texts, size) if kind == "characters" else _of_bytes(texts(), size)
    count = len(found["model"]["vocab"])
    if count < size and not fewer:
        bare = 256 + (len(_SPECIAL) if kind == "characters" else 1)
        raise UserError(
            f"size: the texts are too short for {size:,} ids; they give {count:,}, of which {bare} are the bytes and "
            f"special tokens. {count:,} or less (size={count}), or more text, is right"
        )
    return json.dumps(found, ensure_ascii=False, indent=1)


def library() -> None:
    """Raises `UserError` where the package tokenizers is not here."""
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UserError("tokenizer: the package tokenizers is not here: pip install 'numerate[huggingface]'") from error


def save_vocabulary(tokenizer: str, out: str | Path) -> Path:
    """Writes a tokenizer.json and its tokenizer_config.json to a new folder, which `pieces` reads, and returns it.

    Raises `UserError` for a folder that is there already, or where none may be written.
    """
    out = Path(out).expanduser()
    refuse_taken(out)
    with new_folder(out) as beside:
        keep_tokenizer(StoredTokenizer(tokenizer_file(tokenizer)), beside)
    return out


def keep_tokenizer(known: StoredTokenizer, folder: Path) -> None:
    """Writes a tokenizer to a folder as tokenizer.json and tokenizer_config.json, whatever it was read from."""
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | {f"{role}_token": name for role, name in known.file.roles}
    with disk.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        disk.replace(folder / "tokenizer_config.json", json.dumps(config, indent=1, ensure_ascii=False).encode())
        disk.replace(folder / "tokenizer.json", known.file.text.encode())
    if pieces(str(folder)).fingerprint != known.fingerprint:
        raise UserError(f"tokenizer: it does not read the same from {folder}; a folder with a tokenizer.json is right")


def tokenizer_file(tokenizer: str) -> TokenizerFile:
    """A vocabulary of `train_vocabulary` with what its special tokens are called."""
    end = "<|endoftext|>" in json.loads(tokenizer)["model"]["vocab"]
    roles = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"} if end else {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
    return TokenizerFile(tokenizer, tuple(roles.items()))


def _of_characters(texts: Callable[[], Iterable[str]], size: int) -> dict[str, Any]:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    room = size - len(_SPECIAL) - len(_BYTES)
    alphabet = _alphabet(texts(), max(room // 4, 1))
    learner = Tokenizer(models.BPE(unk_token=_SPECIAL[0], byte_fallback=True, fuse_unk=True))
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_RUNS), "isolated"),
            pre_tokenizers.Split(Regex("[0-9]"), "isolated"),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*_SPECIAL, *_BYTES],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        max_token_length=_LONGEST,
        show_progress=False,
    )
    learner.train_from_iterator(_as_lines(texts()), trainer)
    model = json.loads(learner.to_str())["model"]
    return tokenizer_json(model) | {"added_tokens": [_special(i, name) for i, name in enumerate(_SPECIAL)]}


def _of_bytes(texts: Iterable[str], size: int) -> dict[str, Any]:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[0-9]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_LONGEST,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    found: dict[str, Any] = json.loads(learner.to_str())
    return found


def _special(i: int, name: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": name, **flags, "special": True}


def _as_lines(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts as the tokenizer will see them."""
    for text in texts:
        for line in text.split("\n"):
            if line:
                yield SPACE + line.replace(" ", SPACE)


def _alphabet(texts: Iterable[str], most: int) -> list[str]:
    """The commonest characters but line ends, and the digits, in the order of their code points."""
    counts = np.zeros(0x110000, dtype=np.int64)
    portion: list[str] = []
    held = 0
    for text in texts:
        portion.append(text)
        held += len(text)
        if held > _PORTION:
            _count(portion, counts)
            portion, held = [], 0
    _count(portion, counts)
    counts[ord(SPACE)] += counts[ord(" ")] + 1
    counts[[ord(" "), ord("\n")]] = 0
    order = np.argsort(-counts, kind="stable")[:most]
    found = {chr(code) for code in order[counts[order] > 0].tolist()}
    return sorted(found.union(_DIGITS))


def _count(texts: list[str], counts: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
    found = np.bincount(codes)
    counts[: len(found)] += found
