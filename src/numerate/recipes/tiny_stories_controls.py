"""The Transformer that is equal to a model of dual attention: in parameters, in operations of training, or in time.

At equal width and depth dual attention has more parameters and takes more operations and time, so that its
advantage may only reflect the larger budget.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Literal

from numerate.architectures.dual_attention import DualAttention
from numerate.errors import UserError
from numerate.mixers.attention import Attention
from numerate.models.backbone import Stack
from numerate.models.block import FeedForward
from numerate.models.decoder import Decoder
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
        """What was matched, as text: `1.2e+17 operations of training, target 1.2e+17 (+0.0%)`."""
        units = {"parameters": "parameters beside embedding and head", "flops": "operations of training"}
        unit = units.get(self.quantity, "steps' time of it")
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
    - `ratio`: of time, how many times as long a step of the recipe takes as one of `reference`: `numerate train RECIPE
      --dry-run` measures a step. Where width or depth are sought, a step is as long as its operations.

    >>> import numerate
    >>> recipe = numerate.recipe("tiny_stories_d64_l4_4+4_symbolic")
    >>> match_transformer("parameters", recipe, vary="depth").description
    '331,840 parameters beside embedding and head, target 360,256 (-7.9%)'

    Raises `UserError` for what cannot be equal so: parameters by steps, time without a ratio, no dual attention.
    """
    spec, steps = recipe.model, recipe.training.steps
    if not isinstance(spec, Decoder):
        raise UserError(f"model: must be a Decoder with DualAttention, not {type(spec).__name__}")
    if steps is None:
        raise UserError("training.steps: must be set: matching needs a budget in steps")
    if quantity == "parameters" and vary == "steps":
        raise UserError("vary: must be width or depth to match parameters")
    transformer = without_relational_heads(spec) if reference is None else reference
    unit = step_flops(recipe, transformer, vocabulary) if quantity == "time" else 1.0

    def measure(model: Decoder) -> float:
        """What is matched: parameters, or of one step."""
        if quantity == "parameters":
            return float(num_parameters(model))
        return step_flops(recipe, model, vocabulary) / unit

    if quantity == "time":
        if ratio is None or not ratio > 0:
            raise UserError("ratio: must be given to match time; `numerate train RECIPE --dry-run` measures a step")
        target = ratio
    else:
        target = measure(spec)
    if vary == "steps":
        model, num_steps = transformer, round(steps * target / measure(transformer))
    else:
        adjust_feed_forward = quantity == "parameters" and vary == "width"
        model, num_steps = _resize_to(transformer, vary, target, measure, adjust_feed_forward), steps
    matched = replace(recipe, model=model, training=replace(recipe.training, steps=num_steps))
    if quantity == "parameters":
        return MatchedTransformer(matched, quantity, target, measure(model))
    return MatchedTransformer(matched, quantity, steps * target, num_steps * measure(model))


def without_relational_heads(spec: Decoder) -> Decoder:
    """The Transformer of equal width, depth and heads, and all else: relational heads become those of self-attention.

    Raises `UserError` for a model without dual attention."""
    mixer = spec.mixer
    if not isinstance(mixer, DualAttention):
        raise UserError(f"model.mixer: {type(mixer).__name__} must be DualAttention")
    heads = mixer.num_self_heads + mixer.num_relational_heads
    if mixer.num_key_value_heads is None:
        return replace(spec, mixer=Attention(heads, dropout=mixer.dropout))
    groups, dropout, bias = mixer.num_key_value_heads, mixer.dropout, mixer.bias
    grouped = DualAttention(heads, 0, num_key_value_heads=groups, dropout=dropout, bias=bias, out_bias=mixer.out_bias)
    return replace(spec, mixer=grouped)


def num_parameters(spec: Decoder) -> int:
    """Parameters beside those of embedding and head; a frozen symbol library is none."""
    model = spec.build_on_meta(_SMALL_VOCABULARY, 0)
    return sum(part.numel() for name, part in model.named_parameters() if not name.startswith(("embedding.", "head.")))


def step_flops(recipe: Recipe, spec: Decoder, vocabulary: int = 32_000) -> float:
    """Floating-point operations of a step: forward and backward pass of its batch, with rows as long as the context."""
    context = getattr(recipe.task, "context_length", None)
    if not isinstance(context, int):
        raise UserError(f"task: must be a language modeling task, not {type(recipe.task).__name__}, whose rows differ")
    model = spec.build_on_meta(_SMALL_VOCABULARY, 0)
    head = 2 * recipe.training.batch_size * context * spec.hidden_size * (vocabulary - _SMALL_VOCABULARY.size)
    return 3.0 * (model.flops(recipe.training.batch_size, context) + head)


def _resize_to(
    transformer: Decoder, vary: Size, target: float, measure: Callable[[Decoder], float], adjust_feed_forward: bool
) -> Decoder:
    """The Transformer whose measure is nearest to what is wanted; with `adjust_feed_forward`, its feed-forward makes up
    the rest."""
    backbone, feed_forward, mixer = transformer.backbone, transformer.feed_forward, transformer.mixer
    if not isinstance(backbone, Stack) or not isinstance(feed_forward, FeedForward):
        raise UserError("model.backbone: must be a Stack with feed-forwards")
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
    larger = replace(found, feed_forward=replace(feed_forward, intermediate_size=intermediate_size + 1))
    cost_per_unit = measure(larger) - measure(found)
    adjusted_size = max(1, intermediate_size + round((target - measure(found)) / cost_per_unit))
    return replace(found, feed_forward=replace(feed_forward, intermediate_size=adjusted_size))


def _nearest(
    sizes: Sequence[int], make: Callable[[int], Decoder], target: float, measure: Callable[[Decoder], float]
) -> Decoder:
    """Of models that grow with their sizes, the one whose measure is nearest by its ratio."""
    index = bisect_left(sizes, target, key=lambda size: measure(make(size)))
    candidates = [make(size) for size in sizes[max(0, index - 1) : index + 1]]
    return min(candidates, key=lambda model: abs(log(measure(model) / target)))
