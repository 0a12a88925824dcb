"""Loads fast tokenizers from a folder, a file, the user's data, or the Hugging Face hub."""

import json
import re
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from numerate.errors import UserError
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.text.tasks.input_errors import file_error
from numerate.text.tasks.text_files import file_stamp
from numerate.text.tokenizers.fast_tokenizers import TokenizerFile, check_tokenizers_installed
from numerate.text.tokenizers.sentencepiece_files import is_sentencepiece, load_sentencepiece

CHARACTER_TOKENIZER = "characters"
"""The name of the built-in character tokenizer."""

TOKENIZERS_FOLDER = "tokenizers"
"""The folder of the user's data that has a folder for each tokenizer."""

FETCH_NAMES = {"t5-small": "t5_tokenizer"}
"""The names of tokenizers in `numerate data fetch`."""

SHARED_TOKENIZERS = dict.fromkeys(("t5-base", "t5-large", "t5-3b", "t5-11b"), "t5-small")
"""Models of `google-t5` that share a tokenizer: all sizes of T5 have one SentencePiece vocabulary
(https://huggingface.co/transformers/v3.0.2/_modules/transformers/tokenization_t5.html)."""

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")

DEFAULT_SPECIAL_TOKENS = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<s>", "[CLS]", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
"""Names of special tokens, used without a tokenizer_config.json."""


_SENTENCEPIECE_FILE_NAMES = ("tokenizer.model", "tokenizer.model.v1", "spiece.model")
"""File names of SentencePiece models in a folder without a tokenizer.json."""

_GPT2_FILE_NAMES = ("vocab.json", "merges.txt")

_CONFIG_FILE_NAMES = ("special_tokens_map.json", "tokenizer_config.json")


def load_tokenizer_file(name: str, revision: str | None = None) -> TokenizerFile:
    """The tokenizer of a folder, of a file (tokenizer.json or a SentencePiece model), of a prepared corpus, or of a
    model of the Hugging Face hub.

    A folder has a tokenizer.json, a SentencePiece model, or the vocab.json and merges.txt of GPT-2. A name without
    `revision` is looked up in the user's corpora and data before the hub: `google-t5/t5-small` is
    `tokenizers/google-t5/t5-small` there, else `tokenizers/t5-small`, which also serves the other sizes of T5.
    `characters` is built in: a token for each ASCII character. Raises `UserError` if there is none, or if the library
    tokenizers is not installed.
    """
    check_tokenizers_installed()
    if name == CHARACTER_TOKENIZER:
        return build_character_tokenizer()
    path = find_tokenizer(name) if revision is None else Path(name).expanduser()
    if not path.exists():
        path = _download_from_hub(name, revision)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        candidates = [path / model for model in _SENTENCEPIECE_FILE_NAMES if (path / model).is_file()]
        file = candidates[0] if candidates else file
    if not file.is_file() and all((path / part).is_file() for part in _GPT2_FILE_NAMES):
        return _read_cached(_read_gpt2_files, path, tuple(file_stamp(path / part) for part in _GPT2_FILE_NAMES))
    if not file.is_file():
        file_names = sorted(one.name for one in path.iterdir())[:8]
        raise file_error(
            path,
            f"has no tokenizer.json (it has: {', '.join(file_names) or 'nothing'}); transformers writes one: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    configs = [config for name in _CONFIG_FILE_NAMES if (config := file.parent / name).is_file()]
    read = load_sentencepiece if is_sentencepiece(file) else _read_tokenizer_json
    return _read_cached(read, file, tuple(map(file_stamp, (file, *configs))))


def find_tokenizer(name: str) -> Path:
    """The path of a tokenizer: that path itself, the folder of a prepared corpus, or a folder of the user's data. It
    does not exist if there is none."""
    path = Path(name).expanduser()
    if path.exists() or not name:
        return path
    tokenizers_folder = data_folder() / TOKENIZERS_FOLDER
    candidates = [corpora_folder() / name, tokenizers_folder / name]
    if _HUB_NAME.fullmatch(name):
        candidates += [tokenizers_folder / name.split("/")[-1], tokenizers_folder / _shared_folder_name(name)]
    files = ("tokenizer.json", "merges.txt", *_SENTENCEPIECE_FILE_NAMES)
    return next((one for one in candidates if one.is_file() or any((one / file).is_file() for file in files)), path)


@lru_cache(maxsize=16)
def _read_cached(
    read: Callable[[Path], TokenizerFile], path: Path, stamps: tuple[tuple[str, int, int], ...]
) -> TokenizerFile:
    return read(path)


def _read_tokenizer_json(file: Path) -> TokenizerFile:
    config: dict[str, Any] = {}
    try:
        for config_name in _CONFIG_FILE_NAMES:
            if (file.parent / config_name).is_file():
                config |= json.loads((file.parent / config_name).read_text(encoding="utf-8"))
        return tokenizer_from_json(file.read_text(encoding="utf-8"), config)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise file_error(file, "must be a tokenizer.json of the library tokenizers") from error


def tokenizer_from_json(text: str, config: Mapping[str, Any] | None = None) -> TokenizerFile:
    """A tokenizer of the library tokenizers from its JSON. Its special tokens are those that `config` (the content of
    a tokenizer_config.json) names, those with the usual names where it names none."""
    tokenizer = json.loads(text)
    vocabulary = tokenizer["model"]["vocab"]
    names = vocabulary if isinstance(vocabulary, dict) else (name for name, _ in vocabulary)
    tokens = {*names, *(added["content"] for added in tokenizer.get("added_tokens", ()))}
    special_tokens, names_any = {}, any((config or {}).get(f"{role}_token") for role in DEFAULT_SPECIAL_TOKENS)
    for role, usual_names in DEFAULT_SPECIAL_TOKENS.items():
        token = (config or {}).get(f"{role}_token")
        content = token.get("content") if isinstance(token, dict) else token
        name = next((name for name in ((content,) if names_any else usual_names) if name in tokens), None)
        if name is not None:
            special_tokens[role] = name
    lists = [(config or {}).get(f"{kind}_special_tokens") or () for kind in ("additional", "extra")]
    listed = [one for named in lists for one in (named.values() if isinstance(named, dict) else named)]
    listed += [one for one in ((config or {}).get("added_tokens_decoder") or {}).values() if one.get("special")]
    others: list[Any] = [one.get("content") if isinstance(one, dict) else one for one in listed]
    return TokenizerFile(text, tuple(sorted(special_tokens.items())), tuple(one for one in others if one in tokens))


@lru_cache(maxsize=4)
def build_character_tokenizer(extra_characters: frozenset[str] = frozenset()) -> TokenizerFile:
    """The tokenizer `characters`: a token for each printable ASCII character, newline and tab, then for each of
    `extra_characters`."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    special_tokens = ["<pad>", "<unk>", "<s>", "</s>", "<extra_id_0>"]
    default_characters = [*map(chr, range(ord(" "), 127)), "\n", "\t"]
    tokens = [*special_tokens, *default_characters, *sorted(extra_characters.difference(default_characters))]
    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?m:.)"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(special_tokens)
    return tokenizer_from_json(tokenizer.to_str())


def _read_gpt2_files(folder: Path) -> TokenizerFile:
    """GPT-2's two files as one tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [name for names in DEFAULT_SPECIAL_TOKENS.values() for name in names if tokenizer.token_to_id(name) is not None]
    )
    return tokenizer_from_json(tokenizer.to_str())


def _shared_folder_name(name: str) -> str:
    """The folder name in the user's data for a hub name, which several models may share."""
    model_name = name.split("/")[-1]
    return (
        SHARED_TOKENIZERS.get(model_name, model_name) if name in (model_name, f"google-t5/{model_name}") else model_name
    )


def _download_from_hub(name: str, revision: str | None) -> Path:
    """The folder of the hub's local cache with a tokenizer, downloaded if missing."""
    if not _HUB_NAME.fullmatch(name):
        raise UserError(f"tokenizer: {name} not found; must be a folder, a tokenizer.json or a model name on the hub")
    try:
        from huggingface_hub import hf_hub_download

        file = hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not is_hub_reachable())
    except Exception as error:  # of many kinds: no network, no such name, no permission
        model_name = name.split("/")[-1]
        expected_path = data_folder() / TOKENIZERS_FOLDER / model_name / "tokenizer.json"
        fetch_name = FETCH_NAMES.get(_shared_folder_name(name))
        suggestion = f"`numerate data fetch {fetch_name}` gets it, or a copy" if fetch_name else "a copy of it"
        raise UserError(
            f"tokenizer: {name} is not a local folder, and its tokenizer.json could not be downloaded from the Hugging "
            f"Face hub ({type(error).__name__}); {suggestion} at {expected_path} is read without the hub; "
            "tokenizer= may also be the path of a folder that has one"
        ) from error
    for config_name in ("tokenizer_config.json", "special_tokens_map.json"):
        try:
            hf_hub_download(name, config_name, revision=revision, local_files_only=not is_hub_reachable())
        except Exception:  # many models have only one of the two
            continue
    return Path(file).parent


@lru_cache
def is_hub_reachable() -> bool:
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
