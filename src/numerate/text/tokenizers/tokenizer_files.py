"""Loads fast tokenizers from a folder, a file, the user's data, or the Hugging Face hub."""

import hashlib
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from numerate.errors import UserError
from numerate.tasks.folders import data_folder

CHARACTERS = "characters"
"""The name of the built-in character tokenizer."""

TOKENIZERS = "tokenizers"
"""The folder of the user's data that has a folder for each tokenizer."""

FETCHED = {"t5-small": "t5_tokenizer"}
"""The names of tokenizers in `numerate data fetch`."""

SHARED = dict.fromkeys(("t5-base", "t5-large", "t5-3b", "t5-11b"), "t5-small")
"""Models of `google-t5` that share a tokenizer: all sizes of T5 have one SentencePiece vocabulary
(https://huggingface.co/transformers/v3.0.2/_modules/transformers/tokenization_t5.html)."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

USUAL = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
"""Names of special tokens, used without a tokenizer_config.json."""


@dataclass(frozen=True)
class TokenizerFile:
    """A stored fast tokenizer: its JSON, and the names of its special tokens."""

    text: str
    roles: tuple[tuple[str, str], ...]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of its content."""
        whole = json.dumps([self.text, self.roles]).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(whole, digest_size=16).hexdigest()


def stored(name: str, revision: str | None = None) -> TokenizerFile:
    """The tokenizer of a folder, of a tokenizer.json, or of a model of the Hugging Face hub.

    A folder has a tokenizer.json, or the vocab.json and merges.txt of GPT-2. A model name without `revision` is looked
    up in the user's data before the hub: `google-t5/t5-small` is `tokenizers/google-t5/t5-small` there, else
    `tokenizers/t5-small`, which also serves the other sizes of T5. `characters` is built in: a token for each ASCII
    character. Raises `UserError` if there is none.
    """
    _library()
    if name == CHARACTERS:
        return characters()
    path = Path(name).expanduser()
    if not path.exists():
        path = _in_data(name, revision) or _fetched(name, revision)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file() and all((path / part).is_file() for part in ("vocab.json", "merges.txt")):
        stamps = [(path / part).stat() for part in ("vocab.json", "merges.txt")]
        return _byte_level(path, *(stamp.st_mtime_ns for stamp in stamps))
    if not file.is_file():
        known = sorted(one.name for one in path.iterdir())[:8]
        raise UserError(
            f"tokenizer: {path} has no tokenizer.json (it has: {', '.join(known) or 'nothing'}); transformers writes "
            "one: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    stamp = file.stat()
    return _read(file, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=16)
def _read(file: Path, _changed: int, _size: int) -> TokenizerFile:
    try:
        text = file.read_text(encoding="utf-8")
        known = _tokens_of(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"tokenizer: {file} is no tokenizer.json of the library tokenizers") from error
    config: dict[str, Any] = {}
    for beside in ("special_tokens_map.json", "tokenizer_config.json"):
        if (file.parent / beside).is_file():
            config |= json.loads((file.parent / beside).read_text(encoding="utf-8"))
    return TokenizerFile(text, _roles(known, config))


@lru_cache(maxsize=4)
def characters(more: frozenset[str] = frozenset()) -> TokenizerFile:
    """The tokenizer `characters`: a token for each printable ASCII character, newline and tab, then for each of
    `more`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    special = ["<pad>", "<unk>", "<s>", "</s>", "<extra_id_0>"]
    usual = [*map(chr, range(ord(" "), 127)), "\n", "\t"]
    known = [*special, *usual, *sorted(more.difference(usual))]
    made = Tokenizer(models.WordLevel({text: i for i, text in enumerate(known)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(special)
    return TokenizerFile(made.to_str(), _roles(set(known), {}))


@lru_cache(maxsize=4)
def _byte_level(folder: Path, *_changed: int) -> TokenizerFile:
    """GPT-2's two files as one tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([name for names in USUAL.values() for name in names if made.token_to_id(name) is not None])
    return TokenizerFile(made.to_str(), _roles(set(made.get_vocab()), {}))


def _tokens_of(tokenizer: dict[str, Any]) -> set[str]:
    vocabulary = tokenizer["model"]["vocab"]
    names = vocabulary if isinstance(vocabulary, dict) else (name for name, _ in vocabulary)
    return {*names, *(added["content"] for added in tokenizer.get("added_tokens", ()))}


def _roles(known: set[str], config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found = {}
    for role, names in USUAL.items():
        token = config.get(f"{role}_token")
        content = token.get("content") if isinstance(token, dict) else token
        wanted = names if not config else (content,)
        name = next((name for name in wanted if name in known), None)
        if name is not None:
            found[role] = name
    return tuple(sorted(found.items()))


def _in_data(name: str, revision: str | None) -> Path | None:
    """The folder of the user's data with the tokenizer of a hub name; None if there is none."""
    if revision is not None or not _HUB_NAME.fullmatch(name):
        return None
    for folder in dict.fromkeys((name, name.split("/")[-1], _shared(name))):
        path = data_folder() / TOKENIZERS / folder
        if any((path / file).is_file() for file in ("tokenizer.json", "merges.txt")):
            return path
    return None


def _shared(name: str) -> str:
    """The folder name in the user's data for a hub name, which several models may share."""
    short = name.split("/")[-1]
    return SHARED.get(short, short) if name in (short, f"google-t5/{short}") else short


def _fetched(name: str, revision: str | None) -> Path:
    """The folder of the hub's local cache with a tokenizer, downloaded if missing."""
    if not _HUB_NAME.fullmatch(name):
        raise UserError(f"tokenizer: {name} is not there; a folder, a tokenizer.json or a name of the hub is right")
    try:
        from huggingface_hub import hf_hub_download

        file = hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not _hub_is_known())
    except Exception as error:  # of many kinds: no network, no such name, no permission
        short = name.split("/")[-1]
        place = data_folder() / TOKENIZERS / short / "tokenizer.json"
        fetched = FETCHED.get(_shared(name))
        way = f"`numerate data fetch {fetched}` gets it, or a copy" if fetched else "a copy of it"
        raise UserError(
            f"tokenizer: {name} is no folder here, and the Hugging Face hub did not give its tokenizer.json "
            f"({type(error).__name__}); {way} at {place} is read without the hub; the path of a folder that has one is "
            "right too"
        ) from error
    for beside in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            hf_hub_download(name, beside, revision=revision, local_files_only=not _hub_is_known())
        except Exception:  # many models have only one of the two
            continue
    return Path(file).parent


@lru_cache
def _hub_is_known() -> bool:
    """Whether the hub's host name resolves, or there is a proxy: otherwise each download would be retried for half a
    minute."""
    from huggingface_hub import constants

    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def _library() -> None:
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UserError(
            "tokenizer: Subwords needs the package tokenizers: pip install 'numerate[huggingface]'"
        ) from error
