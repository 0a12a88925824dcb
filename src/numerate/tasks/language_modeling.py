"""Language modeling: next-token prediction on chunks of running text."""

import hashlib
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate import catalogue
from numerate.config import setting
from numerate.errors import UserError, did_you_mean
from numerate.tasks.chunk_orders import ChunkOrder, PublishedChunks, SequentialChunks, ShuffledChunks
from numerate.tasks.contents import named
from numerate.tasks.corpus_files import CORPUS, HEAD, ChunkRows, Corpus, open_corpus, published_split
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.questions import RUNNING, Questions
from numerate.tasks.task import Task
from numerate.tasks.token_rows import TokenRows

ORDERS = ("shuffled", "published", "sequential")
TEXTS = (".txt", ".json", ".jsonl", ".ndjson")
"""Endings of text files, which are tokenized once before training."""

PREPARED = ("tiny_stories", "tiny_stories_2048")
"""The names that `numerate data prepare` knows."""

_TOKENS = (".bin", ".npy")
_SPLITS = ("train", "development", "test")


@dataclass(frozen=True)
class LanguageModeling(Task):
    """Language modeling on tokenized corpora: next-token prediction on chunks of `context_length` tokens.

    `train` and `validation` are folders of shards (.bin, .npy), such files, or files of text, JSON lines and lists of
    stories, which `numerate train` tokenizes once into the user's cache. A path that does not exist is looked up among
    the corpora of `numerate data prepare`, then in the user's data. Without `validation` it is the shards of `train`
    with `val` in their names, else its first one, as in llama2.c. Without `tokenizer` it is the one beside the tokens,
    or in the folder above.

    `order` of training: every chunk once per pass, `shuffled` over all shards; `sequential`; or `published`, the order
    of the published iterator, where each process has its own order and validation during training uses it too. Stories
    may cross chunk boundaries. The last chunk of a shard is shorter.

    >>> task = LanguageModeling("tiny_stories_2048/train", "tiny_stories_2048/validation", "tiny_stories_2048")
    >>> task.examples("train", 0, 0, 64).tokens.ids.shape
    (64, 513)

    Raises `UserError` on first use if a file is missing, damaged, too short, or from another tokenizer.
    """

    running: ClassVar[bool] = True
    in_order: ClassVar[bool] = True
    endless: ClassVar[bool] = False

    train: str = setting("", "tokens or texts to train on: a folder or a file")
    validation: str | None = setting(None, "held-out tokens or texts; null: the validation shards of train")
    tokenizer: str = setting("", "tokenizer of the corpus: a folder, a file, a name; '': the one beside the tokens")
    context_length: int = setting(512, "tokens per chunk")
    order: Literal["shuffled", "published", "sequential"] = setting("shuffled", "order of the chunks in training")

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError(
                f"order: there is no {self.order!r}; there are: {', '.join(ORDERS)}.{did_you_mean(self.order, ORDERS)}"
            )
        if self.context_length < 1:
            raise UserError(f"context_length: {self.context_length} tokens are none; 1 or more is right")

    # What is read ----------------------------------------------------------------------------------------------------

    def pieces(self) -> Any:
        """The tokenizer, a `numerate.text.tokenizers.stored_tokenizer.StoredTokenizer`, loaded once per process.
        Raises `UserError` if there is none."""
        # Tasks do not import tokens, so this is looked up by name.
        stored = catalogue.find("Tokenizer", "TokenIds").stored  # type: ignore[attr-defined]
        return stored(self.tokenizer_name())

    def token_bytes(self) -> Any:
        """The bytes of each of its tokens, a `numerate.text.tokenizers.token_bytes.TokenBytes`."""
        return catalogue.find("Tokenizer", "TokenIds").token_bytes(self.tokenizer_name())  # type: ignore[attr-defined]

    def tokenizer_name(self) -> str:
        """`tokenizer`, or the folder of the one beside the tokens. Raises `UserError` if there is none."""
        if self.tokenizer:
            if not Path(self.tokenizer).expanduser().exists():
                _refuse_unprepared(self.tokenizer, "tokenizer")
            return self.tokenizer
        place = located(self.train, "train")
        for folder in (place, place.parent):
            if (folder / "tokenizer.json").is_file():
                return str(folder)
        raise UserError(f"tokenizer: is missing, and none stands beside {place}; the one of its tokens is right")

    def sources(self) -> list[tuple[Path, Path]]:
        """The texts among `train` and `validation`, each with its folder of tokens in the cache."""
        named = [("train", self.train), ("validation", self.validation)]
        places = [located(name, where) for where, name in named if name is not None]
        return [(place, self._kept(place)) for place in places if is_text(place)]

    def _kept(self, text: Path) -> Path:
        """The cache folder for the tokens of a text, which depends on the text and the tokenizer."""
        parts = [self.pieces().fingerprint]
        for file in _files(text, TEXTS):
            found = file.stat()
            parts.append(f"{file.resolve()} {found.st_size} {found.st_mtime_ns}")
        digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
        return corpora_folder() / "texts" / f"{text.stem}-{digest}"

    def _opened(self, name: str, where: str) -> Corpus:
        place = located(name, where)
        if is_text(place):
            text, place = place, self._kept(place)
            if not (place / CORPUS).is_file():
                words = [
                    "numerate",
                    "data",
                    "tokenise",
                    str(text),
                    f"out={place}",
                    f"tokenizer={self.tokenizer_name()}",
                ]
                raise UserError(f"{where}: {text} is a text that is not tokenised yet; `{shlex.join(words)}` does it")
        known = self.pieces()
        return _opened(_stamps(place), str(place), known.fingerprint, _Held(known))

    def corpus(self, split: str) -> Corpus:
        """The shards of a split: `train`, or `development` and `test`, which are both the held-out shards.

        Opened once per task, so that the data of a run does not change. Raises `UserError` as `open_corpus` does."""
        if split not in _SPLITS:
            raise UserError(
                f"split: running text has no {split!r}; there are: {', '.join(_SPLITS)}." + did_you_mean(split, _SPLITS)
            )
        held: dict[Any, Corpus] = self.__dict__.setdefault("_corpora", {})
        name = (split == "train", str(corpora_folder()), str(data_folder()))
        if name not in held:
            held[name] = self._split(split)
        return held[name]

    def _split(self, split: str) -> Corpus:
        if self.validation is None:
            train, validation = published_split(self._opened(self.train, "train"))
            return train if split == "train" else validation
        if split == "train":
            return self._opened(self.train, "train")
        return self._opened(self.validation, "validation")

    def everything(self) -> Corpus:
        """All shards of `train`, validation shards included."""
        return self._opened(self.train, "train")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings only; other processes open the files themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "_corpora"}

    def files(self) -> dict[str, Path]:
        """Its texts, before they are tokens."""
        return named(file for place, _ in self.sources() for file in _files(place, TEXTS))

    def contents(self) -> dict[str, str]:
        """The sha256 of its texts, or fingerprints of tokenized `train` and `validation`."""
        found = super().contents()
        for part, name, split in (("train", self.train, "train"), ("validation", self.validation, "test")):
            if not is_text(located(self.train if name is None else name, part)):
                found[part] = self.corpus(split).fingerprint
        return found

    def ready(self) -> None:
        """Raises `UserError` as reading does."""
        for split in ("train", "test"):
            self.corpus(split)

    def split_order(self, split: str, seed: int = 0, rank: int = 0) -> ChunkOrder:
        """The order in which a split is read; only the published one depends on `rank`.

        `test` is read sequentially. So is `development`, except in the published order, which uses its first pass.
        """
        sizes = self.corpus(split).sizes
        if split == "train" and self.order != "published" and max(sizes) <= self.context_length:
            raise UserError(
                f"context_length: {self.context_length:,} tokens with the one behind them are more than any "
                f"shard of {self.train} "
                f"has (at most {max(sizes):,}); {max(sizes) - 1:,} or less, or more text, is right"
            )
        order = self.order if split == "train" or (split, self.order) == ("development", "published") else "sequential"
        return _order(order, sizes, self.context_length, seed, rank if split == "train" else 0)

    def chunks(self, split: str) -> int:
        """How many chunks a pass over a split has."""
        return self.split_order(split).per_pass

    # The task's questions --------------------------------------------------------------------------------------------

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """Chunks `start` .. `start + count - 1` of a split's order. `train` has pass after pass; held-out splits have
        one pass, so that the last call may give fewer."""
        return self.examples_of(split, seed, start, count, 0)

    def examples_of(self, split: str, seed: int, start: int, count: int, rank: int) -> Questions:
        order = self.split_order(split, seed, rank)
        end = start + count if split == "train" else min(start + count, order.per_pass)
        return self._read(split, order, np.arange(start, max(start, end), dtype=np.int64))

    def own_order(self, split: str) -> bool:
        return split == "train" and self.order == "published"

    def draw(self, draws: CounterRNG, index: NDArray[np.int64]) -> Questions:
        """Chunks of training at random places, one for each index."""
        order = SequentialChunks(self.corpus("train").sizes, self.context_length)
        return self._read("train", order, draws.below(order.per_pass, (len(index),)).astype(np.int64))

    def _read(self, split: str, order: ChunkOrder, chunks: NDArray[np.int64]) -> Questions:
        return self._questions(ChunkRows(self.corpus(split), order.places(chunks), self.context_length))

    def _questions(self, rows: TokenRows) -> Questions:
        return Questions.of_tokens(rows, {"context_length": np.full(len(rows), self.context_length, dtype=np.int64)})

    def axes(self) -> tuple[str, ...]:
        return ("context_length",)

    def whole(self, split: str = "test") -> Questions | None:
        """Every chunk of a held-out split, read lazily; None for `train`."""
        if split == "train":
            return None
        order = self.split_order(split)
        return self._read(split, order, np.arange(order.per_pass, dtype=np.int64))

    def longest(self) -> Questions:
        """A chunk of zeros with the full context length."""
        return self._questions(
            TokenRows(np.zeros((1, self.context_length + 1), np.int64), np.array([self.context_length]))
        )

    def space(self) -> int:
        """The number of chunks of a training epoch."""
        return self.chunks("train")

    def held_out(self, split: str) -> bool:
        """Held-out data is in other files."""
        return split != "train"

    def divided(self, questions: Questions) -> NDArray[np.bool_]:
        return np.ones(len(questions), dtype=np.bool_)

    def canonical(self, questions: Questions) -> None:
        """None: files define the splits."""

    def alphabet(self) -> tuple[str, ...]:
        """Raises `UserError`: running text has its own tokenizer."""
        raise UserError(RUNNING)

    def read(self, text: str) -> Questions:
        """A text as one chunk, after the id that starts documents."""
        known = self.pieces()
        ids = np.concatenate([np.array([known.begin]), known.encode([text])[0]]).astype(np.int64)
        return self._questions(TokenRows(ids[None], np.array([len(ids) - 1])))


def located(name: str, where: str = "train") -> Path:
    """The path of tokens or texts: a path, or a name below the prepared corpora or the user's data.

    Raises `UserError`, which says how to get it, if it does not exist.
    """
    if not name:
        raise UserError(
            f"{where}: is missing; a folder of tokens, a text, or task=tiny_stories_2048 (which `numerate data prepare "
            "tiny_stories_2048` makes) is right"
        )
    path = Path(name).expanduser()
    for place in (path, corpora_folder() / path, data_folder() / path):
        if place.exists():
            return place
    first = path.parts[0] if path.parts else name
    _refuse_unprepared(name, where)
    if first in ("tinystories", "tinystories_texts"):
        raise UserError(f"{where}: {name} is not there yet; `numerate data fetch {first}` gets it")
    raise UserError(
        f"{where}: {name} is not there, nor below {corpora_folder()} or {data_folder()}; a folder of tokens (`numerate "
        f"data tokenise` writes one) or a file of text is right.{did_you_mean(first, PREPARED)}"
    )


def _refuse_unprepared(name: str, where: str) -> None:
    """Raises `UserError` for a missing corpus that `numerate data prepare` makes."""
    first = next(iter(Path(name).parts), name)
    if first in PREPARED and not (corpora_folder() / name).exists():
        raise UserError(f"{where}: {name} is not there yet; `numerate data prepare {first}` makes it")


def is_text(place: Path) -> bool:
    """Whether a file or folder holds texts, not tokens."""
    if place.is_dir():
        return not (place / CORPUS).is_file() and not _files(place, _TOKENS) and bool(_files(place, TEXTS))
    return place.suffix in TEXTS


def _files(place: Path, endings: tuple[str, ...]) -> list[Path]:
    if not place.is_dir():
        return [place]
    return sorted(file for file in place.iterdir() if file.suffix in endings and file.is_file())


def _stamps(place: Path) -> tuple[tuple[str, int, int], ...]:
    """Sizes and times by which a change of a corpus is noticed."""
    files = sorted(place.iterdir()) if place.is_dir() else [place, place.with_name(place.name + HEAD)]
    found = [(file, file.stat()) for file in files if file.is_file() and file.name != "lock"]
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found)


class _Held:
    """Hides a tokenizer from the cache key of `lru_cache`, which has its fingerprint instead."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = pieces

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _order(order: str, sizes: tuple[int, ...], context: int, seed: int, rank: int) -> ChunkOrder:
    """A cached order: the published one keeps its shuffling state."""
    if order == "published":
        return PublishedChunks(sizes, context, rank=rank)
    return ShuffledChunks(sizes, context, seed) if order == "shuffled" else SequentialChunks(sizes, context)


@lru_cache(maxsize=8)
def _opened(stamps: tuple[tuple[str, int, int], ...], place: str, fingerprint: str, held: _Held) -> Corpus:
    return open_corpus(place, held.pieces)
