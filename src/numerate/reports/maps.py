"""Attention maps of a run for a prompt: the weights of every head of every layer."""

import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from numerate.batch import Batch, Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, extract_prompts
from numerate.evaluation.generate import greedy_decode
from numerate.mixers.attention_maps import LayerMaps, MapKind, record_maps
from numerate.reports.opened_run import OpenedRun
from numerate.vocabulary import EOS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_MAX_TOKENS = 256
"""Default maximum number of tokens in a prompt: every head has a number for every pair of them."""

DEFAULT_TEXT_TOKENS = 64
"""Number of tokens of text that are read without a prompt, for language modeling."""


class MapRow(NamedTuple):
    """The maps of one kind in one layer: `weights` (heads x query x key), with a label for each query and key."""

    kind: str
    layer: str
    weights: NDArray[np.float32]
    queries: Sequence[str]
    keys: Sequence[str]


@dataclass(frozen=True)
class Layer:
    """The maps of one layer by type, in one iteration of a loop; `component` is encoder or decoder if a model has both.

    `maps["attention"][h, i, j]` is the weight of token j for token i in head h; that of `relations` is a relation
    between them. Layers, iterations (`loop`) and heads count from 0.
    """

    name: str
    layer: int
    loop: int
    component: str
    maps: Mapping[MapKind, NDArray[np.float32]]

    def weights(self, map_type: MapKind) -> NDArray[np.float32]:
        """The maps of one type for all heads: heads x query x key. Raises `UserError` if there are none."""
        if map_type not in self.maps:
            raise UserError(f"{self.name}: has no maps of {map_type!r}; there are: {', '.join(self.maps)}")
        return self.maps[map_type]


@dataclass(frozen=True)
class AttentionMaps:
    """The attention maps of one prompt; displays as a figure in a notebook.

    - `tokens` are the tokens of the model's input, and `source` those of its encoder, None without one.
    - `answer_start`: index of the first generated token; None if nothing was generated.
    - Rows of attention, symbols and cross attention add up to 1; relations are any numbers, 0 at masked keys.
    """

    prompt: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    source: tuple[str, ...] | None = None
    answer_start: int | None = None
    checkpoint: str = "final"
    step: int = 0
    position_offset: int = 0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def file_stem(self) -> str:
        """Base name of its files: the same for the same prompt, checkpoint and settings."""
        names = [layer.name for layer in self.layers]
        content = [self.prompt, self.tokens, self.source, self.step, self.position_offset, self.settings, names]
        digest = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=3).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower())[:32].strip("-")
        return "-".join(part for part in (words, f"step{self.step}", digest) if part)

    def rows(self) -> list[MapRow]:
        """The rows of the figure: each kind of map of each layer."""
        found = []
        for layer in self.layers:
            queries = self.source or () if layer.component == "encoder" else self.tokens
            for kind, weights in layer.maps.items():
                keys = self.source or () if kind == "cross attention" else queries
                if kind == "symbols":
                    keys = tuple(map(str, range(weights.shape[-1])))
                found.append(MapRow(kind, layer.name, weights, queries, keys))
        return found

    def figure(self) -> "Figure":
        """All maps as one figure of matplotlib: a row for each layer and kind, a column for each head."""
        prompt = " ".join(self.prompt.split()) or "the beginning of a document"
        settings = [f"{name}={value}" for name, value in self.settings]
        where = ", ".join([f"{self.checkpoint} checkpoint, step {self.step:,}", *settings])
        figures = import_module("numerate.results.figures")  # which stands above runs
        found: Figure = figures.maps_figure(self.rows(), f"{shorten(prompt, 60)} ({where})")
        return found

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
    max_tokens: int = DEFAULT_MAX_TOKENS,
    position_offset: int = 0,
) -> AttentionMaps:
    """Implements `Run.maps`."""
    if checkpoint == "all":
        raise UserError("checkpoint: must be final, best or a step, not all")
    loaded_checkpoint = run.checkpoints(checkpoint)[0]
    model = run.load_model(loaded_checkpoint)
    with torch.no_grad():
        tokens, source, answer_start = _prepare_inputs(run, model, prompt, answer, max_tokens, position_offset)
        for prefix, ids in (("", tokens.ids), ("source: ", None if source is None else source.ids)):
            if ids is not None and (length := ids.shape[1]) > max_tokens:
                raise UserError(
                    f"prompt: {prefix}{length:,} tokens are more than {max_tokens}, and every pair of them is a number "
                    f"in every head; shorten the prompt, or set max_tokens={length}"
                )
        for warning in model.check_tokens(tokens):
            run.warn(warning)
        layer_maps = _collect_maps(model, tokens, source, position_offset)
    if not layer_maps:
        raise UserError(_no_maps_message(run))
    selected = [layer_map for layer_map in layer_maps if layers is None or layer_map.layer in layers]
    if not selected:
        requested, available = (
            ", ".join(map(str, one)) for one in (layers or (), sorted({m.layer for m in layer_maps}))
        )
        raise UserError(f"layer: {requested} has no maps; there are: {available}")
    is_looped = max(one.loop for one in layer_maps) > 0
    return AttentionMaps(
        prompt,
        _symbols(run, tokens),
        tuple(_make_layer(one, is_looped) for one in selected),
        source=None if source is None else _symbols(run, source),
        answer_start=answer_start,
        checkpoint=str(checkpoint),
        step=loaded_checkpoint.step,
        position_offset=position_offset,
        settings=tuple(sorted(run.changed_settings.items())),
    )


def _collect_maps(model: Model, tokens: Tokens, source: Tokens | None, position_offset: int) -> list[LayerMaps]:
    positioned_tokens = model.assign_positions(tokens, StepContext.for_evaluation(position_offset))
    if (layers := model.attention_maps(positioned_tokens, source)) is not None:
        return list(layers)
    with record_maps(model) as collector:
        model(positioned_tokens, source)
    return collector.layers


def _prepare_inputs(
    run: OpenedRun, model: Model, prompt: str, answer: bool, max_tokens: int, position_offset: int
) -> tuple[Tokens, Tokens | None, int | None]:
    """The tokens of the model and of its encoder, and the index of the first generated token."""
    evaluation_data, device = run.evaluation_data, next(model.parameters()).device
    task = evaluation_data.task
    questions = task.parse_question(prompt) if prompt else task.examples("test", run.recipe.seed, 0, 1)
    if questions.tokens is not None:
        # the complete prompt; otherwise as much text as can be shown
        num_tokens = int(questions.tokens.lengths[0]) + 1 if prompt else min(DEFAULT_TEXT_TOKENS, max_tokens)
        ids = torch.from_numpy(np.array(questions.tokens.ids[:1, :num_tokens])).to(device)
        count = torch.tensor([ids.shape[1]], device=device)
        return Tokens(ids, count, torch.zeros_like(count)), None, None
    batch = evaluation_data.batch(questions).to(device)
    if not evaluation_data.layout.is_autoregressive:
        return batch.tokens, batch.source, None
    prompts, _ = extract_prompts(batch)
    max_new_tokens = max_tokens - prompts.ids.shape[1]
    if not answer or max_new_tokens < 1:
        return prompts, batch.source, None
    # Two more than the correct answer has, which is unknown for a text.
    answer_tokens = batch.target_ids.shape[1] + (2 if questions.texts is None else EXTRA_TEXT_TOKENS)
    return _with_answer(model, prompts, batch, min(max_new_tokens, answer_tokens), position_offset)


def _with_answer(
    model: Model, prompts: Tokens, batch: Batch, max_new_tokens: int, position_offset: int
) -> tuple[Tokens, Tokens | None, int | None]:
    """The prompt and the generated answer without its END token, which is never an input."""
    generated = greedy_decode(model, prompts, max_new_tokens, source=batch.source, position_offset=position_offset)
    ids = generated.ids[:, : int(generated.lengths[0])]
    if int(ids[0, -1]) == EOS:
        ids = ids[:, :-1]
    number_values, blocked_keys = prompts.number_values, prompts.blocked_keys
    if number_values is not None:
        values = generated.number_values
        answer_values = torch.ones_like(ids) if values is None else values[:, : ids.shape[1]]
        number_values = torch.cat([number_values, answer_values.to(number_values.dtype)], dim=1)
    if blocked_keys is not None:
        blocked_keys = torch.cat([blocked_keys, torch.zeros_like(ids, dtype=torch.bool)], dim=1)
    full_tokens = replace(
        prompts,
        ids=torch.cat([prompts.ids, ids], dim=1),
        lengths=prompts.lengths + ids.shape[1],
        number_values=number_values,
        blocked_keys=blocked_keys,
    )
    return full_tokens, batch.source, prompts.ids.shape[1] if ids.shape[1] else None


def _symbols(run: OpenedRun, tokens: Tokens) -> tuple[str, ...]:
    """The symbols of a row; a number stored beside its [NUM] token replaces it."""
    symbols = run.evaluation_data.vocabulary.tokens
    length = int(tokens.lengths[0])
    token_texts = [symbols[i] for i in tokens.ids[0, :length].tolist()]
    if tokens.number_values is not None:
        number_values = tokens.number_values[0, :length].tolist()
        token_texts = [
            f"{value:g}" if name == "[NUM]" else name for name, value in zip(token_texts, number_values, strict=True)
        ]
    return tuple(token_texts)


def _make_layer(layer_maps: LayerMaps, is_looped: bool) -> Layer:
    name = " ".join(part for part in (layer_maps.component, f"layer {layer_maps.layer}") if part)
    return Layer(
        f"{name}, loop {layer_maps.loop}" if is_looped else name,
        layer_maps.layer,
        layer_maps.loop,
        layer_maps.component,
        {map_type: weights[0].float().cpu().numpy() for map_type, weights in layer_maps.maps.items()},
    )


def _no_maps_message(run: OpenedRun) -> str:
    """Why there are no maps, and which mixers have some."""
    from numerate import catalogue

    names = catalogue.parts_by_kind()["Mixer"]
    attending = [name for name in names if catalogue.get_class("Mixer", name)().has_attention()]
    mixer = getattr(run.recipe.model, "mixer", None)
    what = "model" if mixer is None else "model.mixer"
    name = type(run.recipe.model if mixer is None else mixer).__name__
    return f"{what}: {name} has no attention, so there are no maps; mixers with attention: {', '.join(attending)}"
