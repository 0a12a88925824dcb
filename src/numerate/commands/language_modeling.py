"""Running text in `numerate sample` and `numerate data stats`: chunks as text, and counts of a corpus."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numerate import catalogue
from numerate.config import override
from numerate.errors import UserError
from numerate.reports.table import text_table
from numerate.tasks.corpus_files import CORPUS, Corpus, held_out_shards
from numerate.tasks.language_modeling import LanguageModeling
from numerate.tasks.task import Task
from numerate.text.data.prepared import ready

_COUNTED = 1 << 24
"""Most tokens of a part that are counted, in slices spread over it."""

_SLICES = 64
_FREQUENT = 20
_BYTES_OF = 1 << 18


def texts_among(names: list[str], settings: list[str]) -> tuple[list[str], list[tuple[str, LanguageModeling]]]:
    """Splits names into other ones, and tasks, recipes and token folders of running text."""
    rest, found = [], []
    for name in names:
        task = _task_of(name, settings)
        if isinstance(task, LanguageModeling):
            found.append((name, task))
        else:
            rest.append(name)
    return rest, found


def _task_of(name: str, settings: list[str]) -> Task | None:
    plain, kinds = name.replace("-", "_"), catalogue.kinds()
    of_task = [word.removeprefix("task.") for word in settings]
    if plain == "LanguageModeling" or plain in catalogue.presets("Task"):
        made = catalogue.made("Task", plain)
        return override(made, of_task) if isinstance(made, LanguageModeling) else None
    if plain in kinds["Recipe"] or name.endswith((".yaml", ".yml")) or catalogue.in_family("Recipe", plain):
        from numerate.studies.naming import named_recipe

        recipe = named_recipe(name)
        return override(recipe, settings).task if isinstance(recipe.task, LanguageModeling) else None
    if _holds_tokens(Path(name).expanduser()):
        return override(LanguageModeling(train=name), of_task)
    return None


def _holds_tokens(path: Path) -> bool:
    if path.is_dir():
        return (path / CORPUS).is_file() or (any(path.glob("*.bin")) and not (path / "head.json").is_file())
    return path.suffix == ".bin" and not (path.parent / "head.json").is_file()


def stats_of_text(name: str, task: LanguageModeling, own: Mapping[str, Any]) -> str:
    """Documents, tokens, bytes and the most frequent pieces of each part of a corpus, as a page of text.

    Counts in the heads of shards are used; the rest is counted in up to 16 million tokens of each part, so
    that large corpora take as long as small ones. Raises `UserError` as `LanguageModeling.corpus` does.
    """
    for option in ("count", "seed", "out"):
        if option in own:
            raise UserError(
                f"{option}: running text is looked at as it stands, and nothing is drawn from it or written"
            )
    ready(task)
    known = task.pieces()
    splits = _splits(task) if "split" not in own else {own["split"]: task.corpus(own["split"])}
    lines = [f"{name}: running text, {known.size:,} pieces, chunks of {task.context_length:,} tokens", ""]
    table, often = [], []
    for split, corpus in splits.items():
        counts, counted = _counts(corpus, known.size)
        documents, approximately = corpus.documents, ""
        if documents is None:
            documents = round(counts[known.begin] * corpus.tokens / counted)
            approximately = "about " * (counted < corpus.tokens)
        size, about = corpus.text_bytes, ""
        if size is None:
            part = corpus.shards[0].ids[:_BYTES_OF]
            size = round(known.text_bytes(part) * corpus.tokens / len(part))
            about = "about " * (len(part) < corpus.tokens)
        corpus.release()
        table.append(
            (
                split,
                f"{len(corpus.shards):,}",
                f"{approximately}{documents:,}",
                f"{corpus.tokens:,}",
                f"{about}{size:,}",
                f"{size / corpus.tokens:.2f}",
                f"{corpus.tokens / max(documents, 1):.1f}",
                f"{np.count_nonzero(counts):,}",
            )
        )
        shown = np.argsort(-counts, kind="stable")[:_FREQUENT]
        pieces = ", ".join(f"{known.symbols[i]!r} {counts[i] / counted:.1%}" for i in shown.tolist() if counts[i])
        of = "" if counted == corpus.tokens else f" (of {counted:,} tokens, spread over it)"
        often.append(f"most frequent in {split}{of}: {pieces}")
    head = ("", "shards", "documents", "tokens", "bytes", "bytes a token", "tokens a document", "different pieces")
    return "\n".join([*lines, text_table(head, table), "", *often])


def _splits(task: LanguageModeling) -> dict[str, Corpus]:
    """The splits of a corpus; a single one where no shard is held out."""
    if task.validation is None and len(held_out_shards(whole := task.everything())) == len(whole.shards):
        return {"all": whole}
    return {"train": task.corpus("train"), "validation": task.corpus("test")}


def _counts(corpus: Corpus, size: int) -> tuple[Any, int]:
    """The counts of each piece in a corpus, or in slices spread over it, and the number of tokens counted."""
    counts, counted = np.zeros(size, dtype=np.int64), 0
    share = min(1.0, _COUNTED / corpus.tokens)
    for shard in corpus.shards:
        slices = 1 if share == 1.0 else min(_SLICES, len(shard))
        wide = int(len(shard) * share / slices) if share < 1.0 else len(shard)
        for begin in np.linspace(0, len(shard) - wide, slices).astype(int).tolist():
            ids = shard.ids[begin : begin + wide]
            counts += np.bincount(ids, minlength=size)
            counted += len(ids)
        shard.release()
    return counts, max(counted, 1)


def sample_of_text(task: LanguageModeling, split: str, seed: int, count: int) -> str:
    """Chunks of running text, each below a line with its number."""
    ready(task)
    rows = task.examples(split, seed, 0, count).tokens
    if rows is None:
        raise UserError("task: gives no running text")
    known, whole = task.pieces(), task.chunks(split)
    lines = []
    for row, (ids, length) in enumerate(zip(rows.ids, rows.lengths.tolist(), strict=True)):
        lines += [f"chunk {row + 1} of {whole:,}, {length:,} tokens:", _shown(known, ids[: length + 1]), ""]
    return "\n".join(lines)


def _shown(known: Any, ids: Any) -> str:
    """Decodes ids; each document starts on a line of its own with the BOS token."""
    name = known.symbols[known.begin]
    parts = np.split(ids, np.flatnonzero(ids == known.begin))
    return "\n".join(
        f"{name} {known.decode(part[1:])}" if len(part) and part[0] == known.begin else known.decode(part)
        for part in parts
        if len(part)
    )
