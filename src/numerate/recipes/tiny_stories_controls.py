"""The Transformer that is equal to a model of dual attention: in parameters, in operations of training, or in time.

At equal width and depth dual attention has more parameters and takes more operations and time, so that what it is
ahead by there may be had by spending the same on a Transformer.
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
from numerate.training.distributed import device_of
from numerate.training.recipe import Recipe
from numerate.vocabulary import Vocabulary

_FEW = Vocabulary.of(["+"])
"""For models of which only what does not depend on the vocabulary is counted."""

Equal = Literal["parameters", "flops", "time"]
Size = Literal["width", "depth"]
By = Literal[Size, "steps"]


@dataclass(frozen=True)
class Control:
    """A Transformer beside another model, and what was matched: `wanted` and `found` are parameters beside embedding
    and head, floating-point operations of the whole training, or times that of a step of the Transformer."""

    recipe: Recipe
    equal: Equal
    wanted: float
    found: float

    @property
    def description(self) -> str:
        """What was matched, as text.

        `1.2e+17 operations of training, 1.2e+17 wanted (+0.0 %)`
        """
        unit = {
            "parameters": "parameters beside embedding and head",
            "flops": "operations of training",
            "time": "steps' time of it",
        }[self.equal]
        found, wanted = (f"{x:.4g}" if x > 1e7 else f"{x:,.0f}" for x in (self.found, self.wanted))
        return f"{found} {unit}, {wanted} wanted ({self.found / self.wanted - 1:+.1%})"


def equal_in(
    equal: Equal,
    recipe: Recipe,
    *,
    by: By,
    against: Decoder | None = None,
    vocabulary: int = 32_000,
    ratio: float | None = None,
) -> Control:
    """The recipe of the Transformer that is equal to that of a recipe, and what it matched.

    - `by`: what is found: its width, in steps that keep heads even, and then its feed-forward's; its depth; or how long
      it is trained. All else is as in `against`, `transformer_of` the recipe's model if None.
    - `vocabulary`: with how many tokens operations are reckoned.
    - `ratio`: of time, how many times as long a step of the recipe takes as one of `against`: `step_seconds` measures
      it here. Where width or depth are sought, a step is as long as its operations.

    >>> equal_in("parameters", numerate.recipe("tiny_stories_d64_l4_4+4_symbolic"), by="depth").description
    '394,752 parameters beside embedding and head, 360,256 wanted (+9.6%)'

    Raises `UserError` for what cannot be equal so: parameters by steps, time without a ratio, no dual attention.
    """
    spec = recipe.model
    if not isinstance(spec, Decoder):
        raise UserError(
            f"model: {type(spec).__name__} has no Transformer beside it; a Decoder with DualAttention is right"
        )
    plain = transformer_of(spec) if against is None else against
    steps = recipe.training.steps
    if steps is None:
        raise UserError("training.steps: a budget in steps is what another is made equal to; training.steps= is right")
    if equal == "parameters":
        if by == "steps":
            raise UserError("by: steps change no parameters; width or depth is right")
        wanted = float(parameters_of(spec))
        model = _sought(plain, by, wanted, lambda one: float(parameters_of(one)), fill=by == "width")
        return Control(replace(recipe, model=model), equal, wanted, float(parameters_of(model)))
    each = flops_of(recipe, spec, vocabulary)
    if equal == "flops":
        wanted = each * steps
        if by != "steps":
            model = _sought(plain, by, each, lambda one: flops_of(recipe, one, vocabulary))
            return Control(replace(recipe, model=model), equal, wanted, flops_of(recipe, model, vocabulary) * steps)
        one = flops_of(recipe, plain, vocabulary)
        longer = round(wanted / one)
        return Control(_for(recipe, plain, longer), equal, wanted, one * longer)
    if ratio is None or not ratio > 0:
        raise UserError("ratio: time needs how many times as long a step takes; step_seconds of both measures it")
    if by == "steps":
        longer = round(steps * ratio)
        return Control(_for(recipe, plain, longer), equal, steps * ratio, float(longer))
    one = flops_of(recipe, plain, vocabulary)
    model = _sought(plain, by, one * ratio, lambda found: flops_of(recipe, found, vocabulary))
    return Control(
        replace(recipe, model=model), equal, steps * ratio, steps * flops_of(recipe, model, vocabulary) / one
    )


def transformer_of(spec: Decoder) -> Decoder:
    """The Transformer of equal width, depth and heads, and all else: relational heads become those of self-attention.

    Raises `UserError` for a model without dual attention."""
    mixer = spec.mixer
    if not isinstance(mixer, DualAttention):
        raise UserError(f"model.mixer: {type(mixer).__name__} has no relational heads to do without; DualAttention has")
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


def parameters_of(spec: Decoder) -> int:
    """Parameters beside those of embedding and head; a frozen symbol library is none."""
    model = spec.build_on_meta(_FEW, 0)
    ends = {id(part) for name, part in model.named_parameters() if name.startswith(("embedding.", "head."))}
    return sum(part.numel() for part in model.parameters() if id(part) not in ends)


def flops_of(recipe: Recipe, spec: Decoder, vocabulary: int = 32_000) -> float:
    """Floating-point operations of a step: forward and backward of its batch, rows as long as the context."""
    context = _context(recipe)
    model = spec.build_on_meta(_FEW, 0)
    head = 2 * recipe.training.batch_size * context * spec.hidden_size * (vocabulary - _FEW.size)
    return 3.0 * (model.flops(recipe.training.batch_size, context) + head)


def step_seconds(
    recipe: Recipe, spec: Decoder | None = None, *, vocabulary: int = 2048, rows: int = 4, repeats: int = 3
) -> float:
    """Seconds of a forward and backward of a few rows on this device, the quickest of some: what `ratio` is made of.

    Weights are random and so are the rows; `device` is the recipe's."""
    wanted = spec if spec is not None else recipe.model
    device = device_of(recipe.device)
    known = Vocabulary.of([f"{i}." for i in range(max(1, vocabulary - Vocabulary.of([]).size))])
    model = wanted.build(known, 0).to(device).train()
    context = _context(recipe)
    ids = torch.randint(4, known.size, (rows, context + 1), generator=torch.Generator().manual_seed(0)).to(device)
    tokens = Tokens(ids[:, :-1], torch.full((rows,), context, device=device), torch.arange(rows, device=device))
    taken = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        logits = model(tokens).logits.flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits.float(), ids[:, 1:].flatten())
        torch.autograd.backward(loss)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begun)
        model.zero_grad(set_to_none=True)
    return min(taken[1:])


def _context(recipe: Recipe) -> int:
    context = getattr(recipe.task, "context_length", None)
    if not isinstance(context, int):
        raise UserError(f"task: rows of {type(recipe.task).__name__} have no length of their own; running text has")
    return context


def _for(recipe: Recipe, spec: Decoder, steps: int) -> Recipe:
    return replace(recipe, model=spec, training=replace(recipe.training, steps=steps))


def _sought(
    plain: Decoder, by: Size, wanted: float, measured: Callable[[Decoder], float], fill: bool = False
) -> Decoder:
    """The Transformer whose measure is nearest to what is wanted; with `fill`, its feed-forward makes up the rest."""
    trunk, fed = plain.backbone, plain.feed_forward
    if not isinstance(trunk, Stack) or not isinstance(fed, FeedForward):
        raise UserError("model.backbone: a Stack with feed-forwards is what width and depth are sought of")
    mixer = plain.mixer
    assert isinstance(mixer, Attention | DualAttention)
    if by == "depth":
        return _nearest(
            range(1, 129), lambda n: replace(plain, backbone=replace(trunk, num_layers=n)), wanted, measured
        )
    heads = mixer.num_heads if isinstance(mixer, Attention) else mixer.num_self_heads
    found = _nearest(range(2 * heads, 8193, 2 * heads), lambda n: replace(plain, hidden_size=n), wanted, measured)
    if not fill:
        return found
    hidden = fed.hidden_width(found.hidden_size)
    one = measured(replace(found, feed_forward=replace(fed, intermediate_size=hidden + 1))) - measured(found)
    made_up = max(1, hidden + round((wanted - measured(found)) / one))
    return replace(found, feed_forward=replace(fed, intermediate_size=made_up))


def _nearest(
    sizes: Sequence[int], make: Callable[[int], Decoder], wanted: float, measured: Callable[[Decoder], float]
) -> Decoder:
    """Of models that grow with their sizes, the one whose measure is nearest by its ratio."""
    most = 1
    while most < len(sizes) and measured(make(sizes[most - 1])) < wanted:
        most *= 2
    over = bisect_left(sizes, wanted, most // 2, min(most, len(sizes)), key=lambda size: measured(make(size)))
    near = [make(size) for size in sizes[max(0, over - 1) : over + 1]]
    return min(near, key=lambda model: abs(log(measured(model) / wanted)))
