"""Attention maps of a run for a prompt: the weights of every head of every layer."""

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, extract_prompts
from numerate.evaluation.generate import greedy_decode
from numerate.mixers.attention_maps import LayerMaps, MapKind, record_maps
from numerate.runs.presenting import of_results
from numerate.training.opened_run import OpenedRun
from numerate.vocabulary import EOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TOKENS = 256
"""Default maximum number of tokens in a prompt: every head has a number for every pair of them."""

TEXT_TOKENS = 64
"""Number of tokens of text that are read without a prompt, for language modeling."""


class MapRow(NamedTuple):
    """The maps of one kind in one layer: `weights` (heads x query x key), with a label for each key."""

    kind: str
    layer: str
    weights: NDArray[np.float32]
    keys: Sequence[str]


@dataclass(frozen=True)
class Layer:
    """The maps of one layer by kind, in one iteration of a loop; `component` is encoder or decoder if a model has both.

    `maps["attention"][h, i, j]` is the weight of token j for token i in head h; that of `relations` is a relation
    between them. Layers, iterations and heads count from 0.
    """

    name: str
    component: str
    maps: Mapping[MapKind, NDArray[np.float32]]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention maps of one prompt; displays as a figure in a notebook.

    - `tokens` are the tokens of the model's input, and `source` those of its encoder, None without one.
    - `answer_start`: index of the first generated token; None if nothing was generated.
    - Rows of attention, symbols and cross attention add up to 1; relations are any numbers, 0 at masked keys.
    """

    prompt: str
    tokens: tuple[str, ...]
    source: tuple[str, ...] | None
    layers: tuple[Layer, ...]
    answer_start: int | None
    checkpoint: str
    step: int
    position_offset: int
    settings: tuple[tuple[str, Any], ...]

    @property
    def file_stem(self) -> str:
        """Base name of its files: the same for the same prompt, checkpoint and settings."""
        names = [layer.name for layer in self.layers]
        content = [self.prompt, self.tokens, self.source, self.step, self.position_offset, self.settings, names]
        digest = hashlib.blake2b(repr(content).encode(), digest_size=3).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower())[:32].strip("-")
        return f"{words}-step{self.step}-{digest}".strip("-")

    def figure(self) -> "Figure":
        """All maps as one figure of matplotlib: a row for each layer and kind, a column for each head."""
        rows = []
        for layer in self.layers:
            for kind, weights in layer.maps.items():
                source = kind == "cross attention" or layer.component == "encoder"
                keys = (
                    map(str, range(weights.shape[-1])) if kind == "symbols" else self.source if source else self.tokens
                )
                rows.append(MapRow(kind, layer.name, weights, tuple(keys or ())))
        prompt = shorten(self.prompt, 60) or "the beginning of a document"
        settings = "".join(f", {name}={value}" for name, value in self.settings)
        title = f"{prompt} ({self.checkpoint} checkpoint, step {self.step:,}{settings})"
        figure: Figure = of_results("figures").maps_figure(rows, title)
        return figure

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.figure().savefig(content, format="png", dpi=150)
        return content.getvalue()


def compute_attention_maps(
    run: OpenedRun,
    prompt: str,
    *,
    checkpoint: str = "final",
    layers: Sequence[int] | None = None,
    answer: bool = True,
    max_tokens: int = MAX_TOKENS,
    position_offset: int = 0,
) -> AttentionMaps:
    """Implements `Run.maps`."""
    stored = run.checkpoint(checkpoint)
    model = run.load_model(stored)
    with torch.no_grad():
        tokens, source, answer_start = _inputs(run, model, prompt, max_tokens, answer, position_offset)
        longest = max(tokens.ids.shape[1], 0 if source is None else source.ids.shape[1])
        if longest > max_tokens:
            raise UserError(
                f"prompt: {longest:,} tokens are more than {max_tokens}, and every pair of them is a number in every "
                f"head; shorten the prompt, or set max_tokens={longest}"
            )
        for warning in model.check_tokens(tokens):
            run.warn(warning)
        positioned = model.assign_positions(tokens, StepContext.for_evaluation(position_offset))
        found = model.attention_maps(positioned, source)
        if found is None:
            with record_maps(model) as recorded:
                model(positioned, source)
            found = recorded.layers
    if not found:
        name = type(getattr(run.recipe.model, "mixer", run.recipe.model)).__name__
        raise UserError(f"model: {name} has no attention, so there are no maps")
    available = sorted({one.layer for one in found})
    if layers is not None and (missing := sorted({*layers} - {*available})):
        raise UserError(f"layer: {missing[0]} has no maps; there are: {', '.join(map(str, available))}")
    is_looped = any(one.loop for one in found)
    return AttentionMaps(
        prompt,
        _symbols(run, tokens),
        None if source is None else _symbols(run, source),
        tuple(_layer(one, is_looped) for one in found if layers is None or one.layer in layers),
        answer_start,
        checkpoint,
        stored.step,
        position_offset,
        tuple(sorted(run.changed_settings.items())),
    )


def _inputs(
    run: OpenedRun, model: Model, prompt: str, max_tokens: int, answer: bool, position_offset: int
) -> tuple[Tokens, Tokens | None, int | None]:
    """The tokens of the model and of its encoder, and the index of the first generated token."""
    data, device = run.evaluation_data, next(model.parameters()).device
    questions = data.task.parse_question(prompt) if prompt else data.task.examples("test", run.recipe.seed, 0, 1)
    if questions.tokens is not None:  # a text: all of the prompt, or otherwise as much as can be shown
        count = int(questions.tokens.lengths[0]) + 1 if prompt else min(TEXT_TOKENS, max_tokens)
        ids = torch.from_numpy(np.array(questions.tokens.ids[:1, :count])).to(device)
        lengths = torch.tensor([ids.shape[1]], device=device)
        return Tokens(ids, lengths, torch.zeros_like(lengths)), None, None
    batch = data.batch(questions).to(device)
    if not data.layout.is_autoregressive:
        return batch.tokens, batch.source, None
    tokens, answer_tokens = extract_prompts(batch)
    start = tokens.ids.shape[1]
    # two more than the correct answer has, which is unknown for a text
    count = min(max_tokens - start, answer_tokens + (2 if questions.texts is None else EXTRA_TEXT_TOKENS))
    if not answer or count < 1:
        return tokens, batch.source, None
    generated = greedy_decode(model, tokens, count, source=batch.source, position_offset=position_offset)
    for i, token in enumerate(generated.ids[:, : int(generated.lengths[0])].unbind(1)):
        if int(token[0]) != EOS:  # which is never an input
            values = None if tokens.number_values is None else generated.number_values
            tokens = tokens.append(token, None if values is None else values[:, i])
    return tokens, batch.source, start if tokens.ids.shape[1] > start else None


def _symbols(run: OpenedRun, tokens: Tokens) -> tuple[str, ...]:
    """The symbols of a row; a number stored beside its [NUM] token replaces it."""
    length = int(tokens.lengths[0])
    symbols = [run.evaluation_data.vocabulary.tokens[i] for i in tokens.ids[0, :length].tolist()]
    values = [0.0] * length if tokens.number_values is None else tokens.number_values[0, :length].tolist()
    return tuple(f"{value:g}" if name == "[NUM]" else name for name, value in zip(symbols, values, strict=True))


def _layer(maps: LayerMaps, is_looped: bool) -> Layer:
    name = f"{maps.component} layer {maps.layer}".strip() + f", loop {maps.loop}" * is_looped
    return Layer(name, maps.component, {kind: found[0].float().cpu().numpy() for kind, found in maps.maps.items()})
