"""Language modeling: next-token prediction on chunks of text."""

import hashlib
import shlex
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from numerate import catalogue
from numerate.config import setting
from numerate.config.path_names import shortest_unique_names
from numerate.errors import UserError, check_choice, did_you_mean
from numerate.tasks.chunk_orders import ChunkOrder, PublishedChunks, SequentialChunks, ShuffledChunks
from numerate.tasks.corpus_files import (
    CORPUS_FILE,
    METADATA_SUFFIX,
    ChunkRows,
    Corpus,
    TokenizerProtocol,
    open_corpus,
    split_validation_shards,
)
from numerate.tasks.counter_rng import CounterRNG
from numerate.tasks.folders import corpora_folder, data_folder
from numerate.tasks.questions import LANGUAGE_MODELING_TOKENIZER_ERROR, Questions
from numerate.tasks.task import Task
from numerate.tasks.token_rows import TokenRows

TEXT_SUFFIXES = (".txt", ".json", ".jsonl", ".ndjson")
"""Endings of text files, which are tokenized once before training."""

PREPARED_CORPORA = ("tiny_stories", "tiny_stories_2048")
"""The names that `numerate data prepare` knows."""

_NUM_PASSAGES, _PASSAGE_LENGTH = 16, 64
"""Number of completions of held-out text, and tokens of each, that are searched for in the training text."""

_MAX_SEARCHED_TOKENS, _SEARCH_CHUNK_TOKENS = 1 << 23, 1 << 20
"""Number of training tokens that are searched, in total and at once."""

_TOKEN_SUFFIXES = (".bin", ".npy")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class LanguageModeling(Task):
    """Language modeling on tokenized corpora: next-token prediction on chunks of `context_length` tokens.

    `train` and `validation` are folders of shards (.bin, .npy), such files, or files of text, JSON lines and lists of
    stories, which `numerate train` tokenizes once into the user's cache. A path that does not exist is looked up among
    the corpora of `numerate data prepare`, then in the user's data. Without `validation`, the shards of `train` with
    `val` in their names are used, or its first one, as in llama2.c. Without `tokenizer`, the one stored with the tokens
    or in the parent folder is used.

    `order` is the order of training: `shuffled` over all shards, each chunk once per epoch; `sequential`; or
    `published`, the order of the published iterator, where each process has its own order and validation during
    training uses it too. Stories may cross chunk boundaries. The last chunk of a shard is shorter.

        task = LanguageModeling("tiny_stories_2048/train", "tiny_stories_2048/validation", "tiny_stories_2048")
        task.examples("train", 0, 0, 64).tokens.ids.shape  # (64, 513)

    Raises `UserError` on first use if a file is missing, damaged, too short, or from another tokenizer.
    """

    is_language_modeling: ClassVar[bool] = True
    evaluation_kind: ClassVar[str | None] = "TextLikelihood"
    is_ordered: ClassVar[bool] = True
    has_ood_sizes: ClassVar[bool] = False

    train: str = setting("", "tokens or texts to train on: a folder or a file")
    validation: str | None = setting(None, "held-out tokens or texts; null: the validation shards of train")
    tokenizer: str = setting(
        "", "tokenizer of the corpus: a folder, a file or a name; '': the one stored with the tokens"
    )
    context_length: int = setting(512, "tokens of context; the corpus is cut into chunks of this length", at_least=1)
    order: Literal["shuffled", "published", "sequential"] = setting(
        "shuffled",
        "order of the chunks (contexts) in training; published: as the data loader of the dual attention code",
    )

    # What is read ----------------------------------------------------------------------------------------------------

    def load_tokenizer(self) -> Any:
        """The tokenizer, a `numerate.text.tokenizers.stored_tokenizer.PretrainedTokenizer`, loaded once per process.
        Raises `UserError` if there is none."""
        # Tasks do not import tokenizers, so this is looked up by name.
        stored = catalogue.get_class("Tokenizer", "TokenIds").load_tokenizer  # type: ignore[attr-defined]
        return stored(self.tokenizer_name())

    def token_bytes(self) -> Any:
        """The bytes of each of its tokens, a `numerate.text.tokenizers.stored_tokenizer.TokenBytes`."""
        return catalogue.get_class("Tokenizer", "TokenIds").token_bytes(self.tokenizer_name())  # type: ignore[attr-defined]

    def tokenizer_name(self) -> str:
        """`tokenizer`, or the folder of the one beside the tokens. Raises `UserError` if there is none."""
        if self.tokenizer:
            if not Path(self.tokenizer).expanduser().exists():
                _check_prepared(self.tokenizer, "tokenizer")
            return self.tokenizer
        path = resolve_path(self.train, "train")
        for folder in (path, path.parent):
            if (folder / "tokenizer.json").is_file():
                return str(folder)
        raise UserError(
            f"task.tokenizer: must be set, since {path} has none; use the one that its tokens were written with"
        )

    def text_token_folders(self) -> list[tuple[Path, Path]]:
        """The texts among `train` and `validation`, each with its folder of tokens in the cache."""
        settings = [("train", self.train), ("validation", self.validation)]
        paths = [resolve_path(name, setting_name) for setting_name, name in settings if name is not None]
        return [(place, self._token_folder(place)) for place in paths if contains_text(place)]

    def _token_folder(self, text: Path) -> Path:
        """The cache folder for the tokens of a text, which depends on the text and the tokenizer."""
        parts = [self.load_tokenizer().fingerprint]
        for file in _files_with_suffix(text, TEXT_SUFFIXES):
            stat = file.stat()
            parts.append(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}")
        digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).hexdigest()
        return corpora_folder() / "texts" / f"{text.stem}-{digest}"

    def _open(self, name: str, setting_name: str) -> Corpus:
        path = resolve_path(name, setting_name)
        if contains_text(path):
            text, path = path, self._token_folder(path)
            if not (path / CORPUS_FILE).is_file():
                command = [
                    "numerate",
                    "data",
                    "tokenise",
                    str(text),
                    f"out={path}",
                    f"tokenizer={self.tokenizer_name()}",
                ]
                raise UserError(f"{setting_name}: {text} must be tokenized first, with `{shlex.join(command)}`")
        return _open_cached_corpus(_file_stamps(path), str(path), self.load_tokenizer())

    def corpus(self, split: str) -> Corpus:
        """The shards of a split: `train`, or `validation` and `test`, which are both the held-out shards.

        Opened once per task, so that the data of a run does not change. Raises `UserError` as `open_corpus` does."""
        check_choice("split", split, _SPLITS)
        open_corpora: dict[Any, Corpus] = self.__dict__.setdefault("_corpora", {})
        cache_key = (split == "train", str(corpora_folder()), str(data_folder()))
        if cache_key not in open_corpora:
            open_corpora[cache_key] = self._open_split(split)
        return open_corpora[cache_key]

    def _open_split(self, split: str) -> Corpus:
        if self.validation is None:
            train, validation = split_validation_shards(self._open(self.train, "train"))
            return train if split == "train" else validation
        if split == "train":
            return self._open(self.train, "train")
        return self._open(self.validation, "validation")

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the settings only; other processes open the files themselves."""
        return {name: value for name, value in self.__dict__.items() if name != "_corpora"}

    def files(self) -> dict[str, Path]:
        """The text files, before tokenization."""
        return shortest_unique_names(
            file for place, _ in self.text_token_folders() for file in _files_with_suffix(place, TEXT_SUFFIXES)
        )

    def file_hashes(self) -> dict[str, str]:
        """The sha256 of its texts, or fingerprints of tokenized `train` and `validation`."""
        fingerprints = super().file_hashes()
        for setting_name, name, split in (("train", self.train, "train"), ("validation", self.validation, "test")):
            if not contains_text(resolve_path(self.train if name is None else name, setting_name)):
                fingerprints[setting_name] = self.corpus(split).fingerprint
        return fingerprints

    def small(self) -> "LanguageModeling":
        """Rows of at most 64 tokens, of `tiny_stories_2048` if its own corpus is missing and that is available."""
        stories = LanguageModeling("tiny_stories_2048/train", "tiny_stories_2048/validation", "tiny_stories_2048")
        task = self if self._is_available() or not stories._is_available() else replace(stories, order=self.order)
        return replace(task, context_length=min(task.context_length, 64))

    def _is_available(self) -> bool:
        try:
            return all(resolve_path(name, "train") for name in (self.train, self.validation) if name is not None)
        except UserError:
            return False

    def prepare_files(self, *, show_progress: bool = False) -> None:
        """Tokenizes its texts that are not tokenized yet. Raises `UserError` and `OperationalError` as writing does."""
        if self.text_token_folders():
            catalogue.import_by_name("text.data.prepared").tokenize_texts(self, show_progress=show_progress)

    def data_warnings(self) -> list[str]:
        """Warns if held-out text is also in the training text."""
        return _overlap_warnings(self.corpus("train"), self.corpus("test"))

    def check_files(self) -> None:
        """Raises `UserError` as reading does."""
        for split in ("train", "test"):
            self.corpus(split)

    def chunk_order(self, split: str, seed: int = 0, rank: int = 0) -> ChunkOrder:
        """The order in which a split is read; only the published one depends on `rank`.

        `test` is read sequentially. So is `validation`, except in the published order, which uses its first pass.
        """
        sizes = self.corpus(split).shard_sizes
        if split == "train" and self.order != "published" and max(sizes) <= self.context_length:
            raise UserError(
                f"context_length: {self.context_length:,} must be at most {max(sizes) - 1:,}, as the longest shard of "
                f"{self.train} has {max(sizes):,} tokens; or use more text"
            )
        order = self.order if split == "train" or (split, self.order) == ("validation", "published") else "sequential"
        return _cached_order(order, sizes, self.context_length, seed, rank if split == "train" else 0)

    def num_chunks(self, split: str) -> int:
        """Number of chunks per epoch of a split."""
        return self.chunk_order(split).chunks_per_epoch

    # The task's questions --------------------------------------------------------------------------------------------

    def examples(self, split: str, seed: int, start: int, count: int) -> Questions:
        """Chunks `start` .. `start + count - 1` of a split's order. `train` has any number of epochs, held-out splits
        only one, so that the last call may return fewer."""
        return self.examples_for_rank(split, seed, start, count, 0)

    def examples_for_rank(self, split: str, seed: int, start: int, count: int, rank: int) -> Questions:
        order = self.chunk_order(split, seed, rank)
        end = start + count if split == "train" else min(start + count, order.chunks_per_epoch)
        return self._read(split, order, np.arange(start, max(start, end), dtype=np.int64))

    def has_order_per_rank(self, split: str) -> bool:
        return split == "train" and self.order == "published"

    def draw(self, rng: CounterRNG, indices: NDArray[np.int64]) -> Questions:
        """Random training chunks, one per index."""
        order = SequentialChunks(self.corpus("train").shard_sizes, self.context_length)
        return self._read("train", order, rng.integers(order.chunks_per_epoch, (len(indices),)).astype(np.int64))

    def _read(self, split: str, order: ChunkOrder, chunks: NDArray[np.int64]) -> Questions:
        return self._questions(ChunkRows(self.corpus(split), order.locations(chunks), self.context_length))

    def _questions(self, rows: TokenRows) -> Questions:
        return Questions.from_tokens(rows, {"context_length": np.full(len(rows), self.context_length, dtype=np.int64)})

    def axes(self) -> tuple[str, ...]:
        return ("context_length",)

    def all_questions(self, split: str = "test") -> Questions | None:
        """Every chunk of a held-out split, read lazily; None for `train`."""
        if split == "train":
            return None
        order = self.chunk_order(split)
        return self._read(split, order, np.arange(order.chunks_per_epoch, dtype=np.int64))

    def longest_questions(self) -> Questions:
        """A chunk of zeros with the full context length."""
        return self._questions(
            TokenRows(np.zeros((1, self.context_length + 1), np.int64), np.array([self.context_length]))
        )

    def num_questions(self) -> int:
        """The number of chunks of a training epoch."""
        return self.num_chunks("train")

    def is_held_out(self, split: str) -> bool:
        """Held-out data is in other files."""
        return split != "train"

    def splittable_mask(self, questions: Questions) -> NDArray[np.bool_]:
        return np.ones(len(questions), dtype=np.bool_)

    def question_hashes(self, questions: Questions) -> None:
        """None: files define the splits."""

    def alphabet(self) -> tuple[str, ...]:
        """Raises `UserError`: language modeling uses the tokenizer of its corpus."""
        raise UserError(LANGUAGE_MODELING_TOKENIZER_ERROR)

    def parse_question(self, text: str) -> Questions:
        """A text as one chunk, after the id that starts documents."""
        tokenizer = self.load_tokenizer()
        ids = np.concatenate([np.array([tokenizer.document_start_id]), tokenizer.encode([text])[0]]).astype(np.int64)
        return self._questions(TokenRows(ids[None], np.array([len(ids) - 1])))


def resolve_path(name: str, setting_name: str = "train") -> Path:
    """The path of tokens or texts: a path, or a name in the folder of prepared corpora or of datasets.

    Raises `UserError`, with instructions for obtaining it, if it does not exist.
    """
    if not name:
        raise UserError(
            f"{setting_name}: must be a folder of tokens or a text file; or use task=tiny_stories_2048, "
            "whose data are created with `numerate data prepare tiny_stories_2048`"
        )
    path = Path(name).expanduser()
    for candidate in (path, corpora_folder() / path, data_folder() / path):
        if parts := [one for one in ("train", "validation", "tokens") if (candidate / one / CORPUS_FILE).is_file()]:
            text = " ".join(f"{part.replace('tokens', 'train')}={name.rstrip('/')}/{part}" for part in parts)
            raise UserError(f"{setting_name}: {name} is a folder of `numerate data prepare`; set {text}")
        if candidate.exists():
            return candidate
    first = path.parts[0] if path.parts else name
    _check_prepared(name, setting_name)
    if first in ("tinystories", "tinystories_texts"):
        raise UserError(f"{setting_name}: {name} does not exist yet; download it with `numerate data fetch {first}`")
    raise UserError(
        f"{setting_name}: there is no {name} here or in {corpora_folder()} or {data_folder()}; must be a folder of "
        "tokens (`numerate data tokenise` writes one) or a text file."
        f"{did_you_mean(first, PREPARED_CORPORA)}"
    )


def _check_prepared(name: str, setting_name: str) -> None:
    """Raises `UserError` for a missing corpus that `numerate data prepare` makes."""
    first = next(iter(Path(name).parts), name)
    if first in PREPARED_CORPORA and not (corpora_folder() / name).exists():
        raise UserError(f"{setting_name}: {name} does not exist yet; create it with `numerate data prepare {first}`")


def contains_text(path: Path) -> bool:
    """Whether a file or folder holds texts, not tokens."""
    if path.is_dir():
        return (
            not (path / CORPUS_FILE).is_file()
            and not _files_with_suffix(path, _TOKEN_SUFFIXES)
            and bool(_files_with_suffix(path, TEXT_SUFFIXES))
        )
    return path.suffix in TEXT_SUFFIXES


def _files_with_suffix(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in suffixes and file.is_file())


def _overlap_warnings(train: Corpus, held_out: Corpus) -> list[str]:
    """Warns if at least half of the sampled passages of held-out text are also in the training text. At most 8 million
    training tokens are searched, so overlaps in larger corpora may be missed."""
    passages = [
        shard.ids[start : start + _PASSAGE_LENGTH]
        for shard in held_out.shards
        if len(shard) >= _PASSAGE_LENGTH
        for start in np.linspace(0, len(shard) - _PASSAGE_LENGTH, -(-_NUM_PASSAGES // len(held_out.shards)))
        .astype(int)
        .tolist()
    ][:_NUM_PASSAGES]
    tokens_left, is_found = _MAX_SEARCHED_TOKENS, [False] * len(passages)
    for shard in train.shards:
        for begin in range(0, min(len(shard), tokens_left), _SEARCH_CHUNK_TOKENS):
            ids = shard.ids[begin : begin + _SEARCH_CHUNK_TOKENS + _PASSAGE_LENGTH]
            text = ids.tobytes()
            for number, passage in enumerate(passages):
                is_found[number] = is_found[number] or passage.astype(ids.dtype).tobytes() in text
        tokens_left -= len(shard)
        shard.release_memory()
    if not passages or 2 * sum(is_found) < len(is_found):
        return []
    return [
        f"task.validation: {sum(is_found)} of {len(is_found)} passages of {_PASSAGE_LENGTH} tokens are also in the "
        "training text, so that the loss says little about new text; `numerate data prepare` holds out other text"
    ]


def _file_stamps(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Sizes and modification times of the files of a corpus, to detect changes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path, path.with_name(path.name + METADATA_SUFFIX)]
    stats = [(file, file.stat()) for file in files if file.is_file() and file.name != "lock"]
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats)


@lru_cache(maxsize=64)
def _cached_order(order: str, sizes: tuple[int, ...], context_length: int, seed: int, rank: int) -> ChunkOrder:
    """A cached order: the published one keeps its shuffling state."""
    if order == "published":
        return PublishedChunks(sizes, context_length, rank=rank)
    return (
        ShuffledChunks(sizes, context_length, seed) if order == "shuffled" else SequentialChunks(sizes, context_length)
    )


@lru_cache(maxsize=8)
def _open_cached_corpus(stamps: tuple[tuple[str, int, int], ...], path: str, tokenizer: TokenizerProtocol) -> Corpus:
    return open_corpus(path, tokenizer)
