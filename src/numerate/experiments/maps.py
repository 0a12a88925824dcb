"""Attention maps of a run for a prompt: the weights of every head of every layer."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import Batch, Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import SPARE, prompts_of
from numerate.evaluation.generate import greedy
from numerate.experiments.stored_run import StoredRun
from numerate.mixers.attention_maps import LayerMaps, Sort, observed
from numerate.reports.map_records import FOLDER, FORMAT, packed
from numerate.tasks.questions import Questions
from numerate.text.models.hugging_face import HuggingFaceModel
from numerate.vocabulary import END

MOST = 256
"""Default maximum of tokens in a prompt: every pair of them has a number in every head."""

BEGINNING = 64
"""Tokens of running text that are read where no prompt is given."""


@dataclass(frozen=True)
class Head:
    """One head: `weights[i, j]` says how much token i takes of token j, or how the two relate (`relations`)."""

    sort: Sort
    number: int
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class Layer:
    """The heads of one layer, in one iteration of a loop; `part` is encoder or decoder where a model has both.

    Layers, iterations (`turn`) and heads count from 0.
    """

    name: str
    layer: int
    turn: int
    part: str
    heads: tuple[Head, ...]

    def sorts(self) -> tuple[Sort, ...]:
        """The sorts of its maps: attention, relational attention, relations, symbols, cross attention."""
        return tuple(dict.fromkeys(head.sort for head in self.heads))

    def of(self, sort: Sort) -> NDArray[np.float32]:
        """All heads of a sort: heads x query x key. Raises `UserError` where it has none."""
        if sort not in self.sorts():
            raise UserError(f"{self.name}: has no maps of {sort!r}; there are: {', '.join(self.sorts())}")
        return np.stack([head.weights for head in self.heads if head.sort == sort])


@dataclass(frozen=True)
class AttentionMaps:
    """The attention maps of one prompt; displays as an interactive page in a notebook.

    - `tokens` are the symbols that the model read, and `source` those that an encoder read, None without one.
    - `answered`: index of the first generated token; None where nothing was generated.
    - `order`: how the tokenizer orders the digits of numbers, "reversed", "answer reversed" or "normal".
    - Rows of attention, symbols and cross attention add up to 1; relations are any numbers, 0 where nothing is seen.
    """

    prompt: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    source: tuple[str, ...] | None = None
    answered: int | None = None
    checkpoint: str = "final"
    step: int = 0
    position_offset: int = 0
    settings: tuple[tuple[str, Any], ...] = ()
    order: str = "normal"

    @property
    def name(self) -> str:
        """Base name of its files: the same for the same prompt, checkpoint and settings."""
        content = [
            self.prompt,
            self.tokens,
            self.source,
            self.step,
            self.position_offset,
            self.settings,
            self._layer_names(),
        ]
        digest = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=3).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower())[:32].strip("-")
        return "-".join(part for part in (words, f"step{self.step}", digest) if part)

    def _layer_names(self) -> list[str]:
        return [layer.name for layer in self.layers]

    def record(self) -> dict[str, Any]:
        """The record of `maps/NAME.json`: see `numerate.reports.map_records`."""
        layers = [
            {
                "name": layer.name,
                "layer": layer.layer,
                "turn": layer.turn,
                "part": layer.part,
                "maps": [{"sort": sort, **packed(layer.of(sort))} for sort in layer.sorts()],
            }
            for layer in self.layers
        ]
        return {
            "format": FORMAT,
            "prompt": self.prompt,
            "tokens": list(self.tokens),
            "source": None if self.source is None else list(self.source),
            "answered": self.answered,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "position_offset": self.position_offset,
            "settings": dict(self.settings),
            "order": self.order,
            "layers": layers,
        }

    def _repr_html_(self) -> str:
        from numerate.reports.attention_maps import fragment

        return fragment([self.record()])


def maps_of(
    run: StoredRun,
    prompt: str,
    *,
    checkpoint: str = "final",
    layers: Sequence[int] | None = None,
    answer: bool = True,
    max_tokens: int = MOST,
    position_offset: int = 0,
) -> AttentionMaps:
    """Implements `Run.maps`."""
    if checkpoint == "all":
        raise UserError("checkpoint: all are several, and maps are of one; final, best or a step is right")
    found = run.checkpoints(checkpoint)[0]
    model = run.model(found)
    with torch.no_grad():
        tokens, source, answered = _read(run, model, prompt, answer, max_tokens, position_offset)
        for part, read in (("", tokens), ("source: ", source)):
            if read is not None and read.ids.shape[1] > max_tokens:
                raise UserError(
                    f"prompt: {part}{read.ids.shape[1]:,} tokens are more than {max_tokens}, and every pair of "
                    f"them is a "
                    f"number in every head; a shorter prompt, or max_tokens={read.ids.shape[1]}, is right"
                )
        for warning in model.check(tokens):
            run.warn(warning)
        seen = _observed(model, tokens, source, position_offset)
    if not seen:
        raise UserError(_without(run))
    chosen = [one for one in seen if layers is None or one.layer in layers]
    if not chosen:
        there = sorted({one.layer for one in seen})
        raise UserError(f"layer: {_listed(layers or ())} has no maps; there are: {_listed(there)}")
    looped = max(one.turn for one in seen) > 0
    return AttentionMaps(
        prompt,
        _symbols(run, tokens),
        tuple(_layer(one, looped) for one in chosen),
        source=None if source is None else _symbols(run, source),
        answered=answered,
        checkpoint=str(checkpoint),
        step=found.step,
        position_offset=position_offset,
        settings=tuple(sorted(run.settings.items())),
        order=getattr(getattr(run.recipe.tokenizer, "number_format", None), "digit_order", "normal"),
    )


def keep(run: StoredRun, maps: AttentionMaps) -> None:
    """Writes the record into the run's folder, from which reports draw it."""
    (run.path / FOLDER).mkdir(exist_ok=True)
    run.folder.write(f"{FOLDER}/{maps.name}.json", json.dumps(maps.record(), ensure_ascii=False))


def _observed(model: Model, tokens: Tokens, source: Tokens | None, position_offset: int) -> list[LayerMaps]:
    placed = model.assign_positions(tokens, StepContext.fixed(position_offset))
    if isinstance(model, HuggingFaceModel):
        return model.maps(placed, source)
    with observed(model) as seen:
        model(placed, source)
    return seen.layers


def _read(
    run: StoredRun, model: Model, prompt: str, answer: bool, most: int, position_offset: int
) -> tuple[Tokens, Tokens | None, int | None]:
    """The tokens of the model and of its encoder, and the index of the first generated token."""
    exam, device = run.exam, next(model.parameters()).device
    task = exam.task
    questions = task.read(prompt) if prompt else task.examples("test", run.recipe.seed, 0, 1)
    if questions.tokens is not None:
        # All of a prompt; of running text so much as can be looked at.
        wanted = int(questions.tokens.lengths[0]) + 1 if prompt else min(BEGINNING, most)
        ids = torch.from_numpy(np.array(questions.tokens.ids[:1, :wanted])).to(device)
        return _row(ids), None, None
    batch = exam.batch(questions).to(device)
    if not exam.layout.continues or exam.layout.masks:
        return batch.tokens, batch.source, None
    prompts, _ = prompts_of(batch)
    room = most - prompts.ids.shape[1]
    if not answer or room < 1:
        return prompts, batch.source, None
    return _with_answer(model, prompts, batch, min(room, _longest(questions, batch)), position_offset)


def _longest(questions: Questions, batch: Batch) -> int:
    """Maximum tokens of an answer: two more than the correct one, which is unknown for a text."""
    return batch.target_ids.shape[1] + (2 if questions.texts is None else SPARE)


def _with_answer(
    model: Model, prompts: Tokens, batch: Batch, most: int, position_offset: int
) -> tuple[Tokens, Tokens | None, int | None]:
    """The prompt and the generated answer without its END token, which the model never reads."""
    generated = greedy(model, prompts, most, source=batch.source, position_offset=position_offset)
    ids = generated.ids[:, : int(generated.lengths[0])]
    if int(ids[0, -1]) == END:
        ids = ids[:, :-1]
    values = None
    if prompts.values is not None:
        more = torch.ones_like(ids, dtype=prompts.values.dtype)
        more = more if generated.values is None else generated.values[:, : ids.shape[1]].to(more.dtype)
        values = torch.cat([prompts.values, more], dim=1)
    hidden = None
    if prompts.blocked_keys is not None:
        hidden = torch.cat([prompts.blocked_keys, torch.zeros_like(ids, dtype=torch.bool)], dim=1)
    whole = torch.cat([prompts.ids, ids], dim=1)
    read = replace(prompts, ids=whole, lengths=prompts.lengths + ids.shape[1], values=values, blocked_keys=hidden)
    return read, batch.source, prompts.ids.shape[1] if ids.shape[1] else None


def _row(ids: torch.Tensor) -> Tokens:
    count = torch.tensor([ids.shape[1]], device=ids.device)
    return Tokens(ids, count, torch.zeros_like(count))


def _symbols(run: StoredRun, tokens: Tokens) -> tuple[str, ...]:
    """The symbols of a row; a number stored beside its [NUM] token replaces it."""
    symbols = run.exam.vocabulary.symbols
    length = int(tokens.lengths[0])
    named = [symbols[i] for i in tokens.ids[0, :length].tolist()]
    if tokens.values is not None:
        values = tokens.values[0, :length].tolist()
        named = [f"{value:g}" if name == "[NUM]" else name for name, value in zip(named, values, strict=True)]
    return tuple(named)


def _layer(one: LayerMaps, looped: bool) -> Layer:
    heads = [
        Head(sort, number, weights)
        for sort, found in one.maps.items()
        for number, weights in enumerate(found[0].float().cpu().numpy())
    ]
    name = " ".join(part for part in (one.part, f"layer {one.layer}") if part)
    return Layer(f"{name}, turn {one.turn}" if looped else name, one.layer, one.turn, one.part, tuple(heads))


def _without(run: StoredRun) -> str:
    """Why there are no maps, and which mixers have some."""
    from numerate import catalogue

    names = catalogue.kinds()["Mixer"]
    attending = [name for name in names if catalogue.find("Mixer", name)().attends()]
    mixer = getattr(run.recipe.model, "mixer", None)
    what = "model" if mixer is None else "model.mixer"
    name = type(run.recipe.model if mixer is None else mixer).__name__
    return f"{what}: {name} does not attend, so there is nothing to show; mixers that do: {', '.join(attending)}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
