"""The Transformer that is equal to a model of dual attention: in parameters, in operations of training, or in time.

At equal width and depth dual attention has more parameters and takes more operations and time, so that its
advantage may only reflect the larger budget.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal

import torch

from numerate.architectures.dual_attention import DualAttention
from numerate.batch import Tokens
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
from numerate.training.distributed import resolve_device
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

_SMALL_VOCABULARY = Vocabulary.with_digits(["+"])
"""For models of which only what does not depend on the vocabulary is counted."""

MatchedQuantity = Literal["parameters", "flops", "time"]
Size = Literal["width", "depth"]
VariedSetting = Literal[Size, "steps"]


@dataclass(frozen=True)
class MatchedTransformer:
    """A Transformer beside another model, and what was matched: `target` and `actual` are parameters beside embedding
    and head, floating-point operations of the whole training, or times that of a step of the Transformer."""

    recipe: Recipe
    quantity: MatchedQuantity
    target: float
    actual: float

    @property
    def description(self) -> str:
        """What was matched, as text.

        `1.2e+17 operations of training, 1.2e+17 target (+0.0 %)`
        """
        unit = {
            "parameters": "parameters beside embedding and head",
            "flops": "operations of training",
            "time": "steps' time of it",
        }[self.quantity]
        found, wanted = (f"{x:.4g}" if x > 1e7 else f"{x:,.0f}" for x in (self.actual, self.target))
        return f"{found} {unit}, target {wanted} ({self.actual / self.target - 1:+.1%})"


def match_transformer(
    quantity: MatchedQuantity,
    recipe: Recipe,
    *,
    vary: VariedSetting,
    reference: Decoder | None = None,
    vocabulary: int = 32_000,
    ratio: float | None = None,
) -> MatchedTransformer:
    """The recipe of the Transformer that is equal to that of a recipe, and what it matched.

    - `vary`: what is found: its width, in steps that keep heads even, and then its feed-forward's; its depth; or how
      long it is trained. All else is as in `reference`, `without_relational_heads` the recipe's model if None.
    - `vocabulary`: the vocabulary size with which operations are counted.
    - `ratio`: of time, how many times as long a step of the recipe takes as one of `reference`: `step_seconds` measures
      it here. Where width or depth are sought, a step is as long as its operations.

    >>> import numerate
    >>> recipe = numerate.recipe("tiny_stories_d64_l4_4+4_symbolic")
    >>> match_transformer("parameters", recipe, vary="depth").description
    '331,840 parameters beside embedding and head, target 360,256 (-7.9%)'

    Raises `UserError` for what cannot be equal so: parameters by steps, time without a ratio, no dual attention.
    """
    spec = recipe.model
    if not isinstance(spec, Decoder):
        raise UserError(
            f"model: {type(spec).__name__} has no matching Transformer; must be a Decoder with DualAttention"
        )
    transformer = without_relational_heads(spec) if reference is None else reference
    steps = recipe.training.steps
    if steps is None:
        raise UserError("training.steps: must be set: matching needs a budget in steps")
    if quantity == "parameters":
        if vary == "steps":
            raise UserError("vary: must be width or depth to match parameters")
        target = float(num_parameters(spec))
        model = _resize_to(
            transformer, vary, target, lambda one: float(num_parameters(one)), adjust_feed_forward=vary == "width"
        )
        return MatchedTransformer(replace(recipe, model=model), quantity, target, float(num_parameters(model)))
    model_flops = step_flops(recipe, spec, vocabulary)
    if quantity == "flops":
        target = model_flops * steps
        if vary != "steps":
            model = _resize_to(transformer, vary, model_flops, lambda one: step_flops(recipe, one, vocabulary))
            return MatchedTransformer(
                replace(recipe, model=model), quantity, target, step_flops(recipe, model, vocabulary) * steps
            )
        transformer_flops = step_flops(recipe, transformer, vocabulary)
        num_steps = round(target / transformer_flops)
        return MatchedTransformer(
            _with_model_and_steps(recipe, transformer, num_steps), quantity, target, transformer_flops * num_steps
        )
    if ratio is None or not ratio > 0:
        raise UserError("ratio: must be given to match time; measure it with step_seconds")
    if vary == "steps":
        num_steps = round(steps * ratio)
        return MatchedTransformer(
            _with_model_and_steps(recipe, transformer, num_steps), quantity, steps * ratio, float(num_steps)
        )
    transformer_flops = step_flops(recipe, transformer, vocabulary)
    model = _resize_to(
        transformer, vary, transformer_flops * ratio, lambda found: step_flops(recipe, found, vocabulary)
    )
    return MatchedTransformer(
        replace(recipe, model=model),
        quantity,
        steps * ratio,
        steps * step_flops(recipe, model, vocabulary) / transformer_flops,
    )


def without_relational_heads(spec: Decoder) -> Decoder:
    """The Transformer of equal width, depth and heads, and all else: relational heads become those of self-attention.

    Raises `UserError` for a model without dual attention."""
    mixer = spec.mixer
    if not isinstance(mixer, DualAttention):
        raise UserError(f"model.mixer: {type(mixer).__name__} must be DualAttention")
    heads = mixer.num_self_heads + mixer.num_relational_heads
    if mixer.num_key_value_heads is None:
        return replace(spec, mixer=Attention(heads, dropout=mixer.dropout))
    grouped = DualAttention(
        heads,
        0,
        num_key_value_heads=mixer.num_key_value_heads,
        dropout=mixer.dropout,
        bias=mixer.bias,
        out_bias=mixer.out_bias,
    )
    return replace(spec, mixer=grouped)


def num_parameters(spec: Decoder) -> int:
    """Parameters beside those of embedding and head; a frozen symbol library is none."""
    model = spec.build_on_meta(_SMALL_VOCABULARY, 0)
    embedding_and_head_ids = {
        id(part) for name, part in model.named_parameters() if name.startswith(("embedding.", "head."))
    }
    return sum(part.numel() for part in model.parameters() if id(part) not in embedding_and_head_ids)


def step_flops(recipe: Recipe, spec: Decoder, vocabulary: int = 32_000) -> float:
    """Floating-point operations of a step: forward and backward pass of its batch, with rows as long as the context."""
    context = _context_length(recipe)
    model = spec.build_on_meta(_SMALL_VOCABULARY, 0)
    head = 2 * recipe.training.batch_size * context * spec.hidden_size * (vocabulary - _SMALL_VOCABULARY.size)
    return 3.0 * (model.flops(recipe.training.batch_size, context) + head)


def step_seconds(
    recipe: Recipe, spec: Decoder | None = None, *, vocabulary: int = 2048, rows: int = 4, repeats: int = 3
) -> float:
    """Seconds of a forward and backward pass of a few rows on this device, the minimum of several: used for `ratio`.

    Weights are random and so are the rows; `device` is the recipe's."""
    model_spec = spec if spec is not None else recipe.model
    device = resolve_device(recipe.device)
    vocabulary_of_size = Vocabulary.with_digits(
        [f"{i}." for i in range(max(1, vocabulary - Vocabulary.with_digits([]).size))]
    )
    model = model_spec.build(vocabulary_of_size, 0).to(device).train()
    context = _context_length(recipe)
    ids = torch.randint(4, vocabulary_of_size.size, (rows, context + 1), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    tokens = Tokens(ids[:, :-1], torch.full((rows,), context, device=device), torch.arange(rows, device=device))
    times = []
    for _ in range(repeats + 1):
        start_time = time.perf_counter()
        logits = model(tokens).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].flatten())
        torch.autograd.backward(loss)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start_time)
        model.zero_grad(set_to_none=True)
    return min(times[1:])


def _context_length(recipe: Recipe) -> int:
    context = getattr(recipe.task, "context_length", None)
    if not isinstance(context, int):
        raise UserError(
            f"task: rows of {type(recipe.task).__name__} have no fixed length; must be a language modeling task"
        )
    return context


def _with_model_and_steps(recipe: Recipe, spec: Decoder, steps: int) -> Recipe:
    return replace(recipe, model=spec, training=replace(recipe.training, steps=steps))


def _resize_to(
    transformer: Decoder,
    vary: Size,
    target: float,
    measure: Callable[[Decoder], float],
    adjust_feed_forward: bool = False,
) -> Decoder:
    """The Transformer whose measure is nearest to what is wanted; with `adjust_feed_forward`, its feed-forward makes up
    the rest."""
    backbone, feed_forward = transformer.backbone, transformer.feed_forward
    if not isinstance(backbone, Stack) or not isinstance(feed_forward, FeedForward):
        raise UserError("model.backbone: must be a Stack with feed-forwards")
    mixer = transformer.mixer
    assert isinstance(mixer, Attention | DualAttention)
    if vary == "depth":
        return _nearest(
            range(1, 129), lambda n: replace(transformer, backbone=replace(backbone, num_layers=n)), target, measure
        )
    heads = mixer.num_heads if isinstance(mixer, Attention) else mixer.num_self_heads
    found = _nearest(range(2 * heads, 8193, 2 * heads), lambda n: replace(transformer, hidden_size=n), target, measure)
    if not adjust_feed_forward:
        return found
    intermediate_size = feed_forward.resolve_intermediate_size(found.hidden_size)
    cost_per_unit = measure(
        replace(found, feed_forward=replace(feed_forward, intermediate_size=intermediate_size + 1))
    ) - measure(found)
    adjusted_size = max(1, intermediate_size + round((target - measure(found)) / cost_per_unit))
    return replace(found, feed_forward=replace(feed_forward, intermediate_size=adjusted_size))


def _nearest(
    sizes: Sequence[int], make: Callable[[int], Decoder], target: float, measure: Callable[[Decoder], float]
) -> Decoder:
    """Of models that grow with their sizes, the one whose measure is nearest by its ratio."""
    upper = 1
    while upper < len(sizes) and measure(make(sizes[upper - 1])) < target:
        upper *= 2
    index = bisect_left(sizes, target, upper // 2, min(upper, len(sizes)), key=lambda size: measure(make(size)))
    candidates = [make(size) for size in sizes[max(0, index - 1) : index + 1]]
    return min(candidates, key=lambda model: abs(log(measure(model) / target)))
