"""Language modeling tasks in `numerate sample` and `numerate data stats`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numerate import catalogue
from numerate.config import override
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.tasks.corpus_files import CORPUS_FILE, Corpus, validation_shard_indices
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task

_MAX_COUNTED_TOKENS = 1 << 24
"""Maximum number of tokens of a split that are counted, in slices spread over it."""

_NUM_SLICES = 64
_NUM_FREQUENT = 20
_BYTE_SAMPLE_TOKENS = 1 << 18


def split_language_tasks(names: list[str], settings: list[str]) -> tuple[list[str], list[tuple[str, LanguageModeling]]]:
    """Splits names into language modeling tasks, recipes and token folders, and others."""
    other_names, language_tasks = [], []
    for name in names:
        task = _find_task(name, settings)
        if isinstance(task, LanguageModeling):
            language_tasks.append((name, task))
        else:
            other_names.append(name)
    return other_names, language_tasks


def _find_task(name: str, settings: list[str]) -> Task | None:
    plain, kinds = name.replace("-", "_"), catalogue.parts_by_kind()
    task_settings = [word.removeprefix("task.") for word in settings]
    if plain == "LanguageModeling" or plain in catalogue.presets("Task"):
        preset = catalogue.get_part("Task", plain)
        return override(preset, task_settings) if isinstance(preset, LanguageModeling) else None
    if plain in kinds["Recipe"] or name.endswith((".yaml", ".yml")) or catalogue.is_in_family("Recipe", plain):
        from numerate.studies.naming import load_recipe

        recipe = load_recipe(name)
        return override(recipe, settings).task if isinstance(recipe.task, LanguageModeling) else None
    if _has_tokens(Path(name).expanduser()):
        return override(LanguageModeling(train=name), task_settings)
    return None


def _has_tokens(path: Path) -> bool:
    if path.is_dir():
        return (path / CORPUS_FILE).is_file() or (any(path.glob("*.bin")) and not (path / "head.json").is_file())
    return path.suffix == ".bin" and not (path.parent / "head.json").is_file()


def corpus_statistics(name: str, task: LanguageModeling, option_values: Mapping[str, Any]) -> str:
    """Documents, tokens, bytes and the most frequent tokens of each split of a corpus, as a page of text.

    Counts in the headers of shards are used; the rest is counted in up to 16 million tokens of each split, so that
    large corpora take no longer than small ones. Raises `UserError` as `LanguageModeling.corpus` does.
    """
    for option in ("count", "seed", "out"):
        if option in option_values:
            raise UserError(f"{option}: not supported for language modeling data, which is read as it is")
    task.prepare_files()
    tokenizer = task.load_tokenizer()
    splits = (
        _splits(task) if "split" not in option_values else {option_values["split"]: task.corpus(option_values["split"])}
    )
    lines = [f"{name}: language modeling, {tokenizer.size:,} tokens, chunks of {task.context_length:,} tokens", ""]
    table, frequent_lines = [], []
    for split, corpus in splits.items():
        counts, counted = _count_pieces(corpus, tokenizer.size)
        documents, approximately = corpus.num_documents, ""
        if documents is None:
            documents = round(counts[tokenizer.document_start_id] * corpus.num_tokens / counted)
            approximately = "about " * (counted < corpus.num_tokens)
        size, about = corpus.text_bytes, ""
        if size is None:
            part = corpus.shards[0].ids[:_BYTE_SAMPLE_TOKENS]
            size = round(tokenizer.text_bytes(part) * corpus.num_tokens / len(part))
            about = "about " * (len(part) < corpus.num_tokens)
        corpus.release_memory()
        table.append(
            (
                split,
                f"{len(corpus.shards):,}",
                f"{approximately}{documents:,}",
                f"{corpus.num_tokens:,}",
                f"{about}{size:,}",
                f"{size / corpus.num_tokens:.2f}",
                f"{corpus.num_tokens / max(documents, 1):.1f}",
                f"{np.count_nonzero(counts):,}",
            )
        )
        shown = np.argsort(-counts, kind="stable")[:_NUM_FREQUENT]
        pieces = ", ".join(f"{tokenizer.symbols[i]!r} {counts[i] / counted:.1%}" for i in shown.tolist() if counts[i])
        of = "" if counted == corpus.num_tokens else f" (of {counted:,} tokens, spread over it)"
        frequent_lines.append(f"most frequent in {split}{of}: {pieces}")
    head = ("", "shards", "documents", "tokens", "bytes", "bytes a token", "tokens a document", "different pieces")
    return "\n".join([*lines, text_table(head, table), "", *frequent_lines])


def _splits(task: LanguageModeling) -> dict[str, Corpus]:
    """The splits of a corpus; a single one where no shard is held out."""
    if task.validation is None and len(validation_shard_indices(whole := task.full_corpus())) == len(whole.shards):
        return {"all": whole}
    return {"train": task.corpus("train"), "validation": task.corpus("test")}


def _count_pieces(corpus: Corpus, size: int) -> tuple[Any, int]:
    """The count of each token id in a corpus, or in slices spread over it, and the number of tokens counted."""
    counts, num_counted = np.zeros(size, dtype=np.int64), 0
    fraction = min(1.0, _MAX_COUNTED_TOKENS / corpus.num_tokens)
    for shard in corpus.shards:
        slices = 1 if fraction == 1.0 else min(_NUM_SLICES, len(shard))
        slice_length = int(len(shard) * fraction / slices) if fraction < 1.0 else len(shard)
        for begin in np.linspace(0, len(shard) - slice_length, slices).astype(int).tolist():
            ids = shard.ids[begin : begin + slice_length]
            counts += np.bincount(ids, minlength=size)
            num_counted += len(ids)
        shard.release_memory()
    return counts, max(num_counted, 1)


def sample_chunks(task: LanguageModeling, split: str, seed: int, count: int) -> str:
    """Chunks of a corpus, each below a line with its number."""
    task.prepare_files()
    rows = task.examples(split, seed, 0, count).tokens
    if rows is None:
        raise UserError("task: must be a language modeling task")
    tokenizer, num_chunks = task.load_tokenizer(), task.num_chunks(split)
    lines = []
    for row, (ids, length) in enumerate(zip(rows.ids, rows.lengths.tolist(), strict=True)):
        lines += [f"chunk {row + 1} of {num_chunks:,}, {length:,} tokens:", _decode(tokenizer, ids[: length + 1]), ""]
    return "\n".join(lines)


def _decode(tokenizer: Any, ids: Any) -> str:
    """Decodes ids; each document starts on a new line with the BOS token."""
    name = tokenizer.symbols[tokenizer.document_start_id]
    parts = np.split(ids, np.flatnonzero(ids == tokenizer.document_start_id))
    return "\n".join(
        f"{name} {tokenizer.decode(part[1:])}"
        if len(part) and part[0] == tokenizer.document_start_id
        else tokenizer.decode(part)
        for part in parts
        if len(part)
    )
