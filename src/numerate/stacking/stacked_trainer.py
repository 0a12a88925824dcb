"""Several runs trained as one model: batches, forwards and optimisers together, all else one by one."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from numerate.batch import IGNORE, Batch, Model, StepContext, Tokens
from numerate.errors import UserError
from numerate.stacking.flat_optimizer import Flat
from numerate.stacking.folding import Folding
from numerate.tokenizers.tokenizer import Rows
from numerate.training.data_stream import StreamPosition
from numerate.training.objective import ObjectivePart
from numerate.training.optimizer import AdamW
from numerate.training.stopping import Stop
from numerate.training.trainer import Outcome, Trainer
from numerate.vocabulary import PAD

TOGETHER = 2e9
"""Floating-point operations that a step of several models may have on a CPU before it is split: beyond, it no longer
fits into the cache, and the overhead that stacking saves is small beside it."""

Ended = Callable[[int, Outcome | Exception], None]
"""Called when a run ends: its index, and its outcome or error."""


class StackedTrainer:
    """Trains runs of one shape, each with a seed, data, budget, optimiser, schedule and folder of its own.

    Each has its own `Trainer`, which evaluates, logs, saves and decides when it is over; only the step is one for all
    of them: the forward of every model at once (`torch.vmap` over weights stacked upon each other), one backward, one
    step of all optimisers. Shorter batches are padded to the longest. What comes of each run is what training it alone
    gives, but for rounding.

    A run that is over, or whose loss is not finite, leaves; the others continue. Raises `UserError` for models that are
    not of one shape, and whatever goes wrong with the step of all.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        for trainer in trainers[1:]:
            _refuse_unlike(trainers[0].model, trainer.model)
        self.trainers = list(trainers)
        self._at = list(range(len(self.trainers)))
        self._pile = _Pile(self.trainers)

    def train(self, stop: Stop, ended: Ended = lambda index, outcome: None) -> list[Outcome | Exception]:
        """Trains until each is over; `ended` is called for each as soon as it is. In the order of the trainers."""
        outcomes: dict[int, Outcome | Exception] = {}

        def over(index: int, outcome: Outcome | Exception) -> None:
            outcomes[index] = outcome
            ended(index, outcome)

        for trainer in self.trainers:
            trainer.share = 1 / len(self.trainers)
            trainer.begin(stop)
        while True:
            for index in self._at:
                if not self.trainers[index].should_continue():
                    over(index, self._tried(index, Trainer.end))
            self._leave(outcomes)
            if not self._at:
                return [outcomes[index] for index in range(len(self.trainers))]
            self._pile.step()
            for index in self._at:
                if (error := self._tried(index, Trainer.after_step)) is not None:
                    over(index, error)
            self._leave(outcomes)

    def _tried(self, index: int, do: Callable[[Trainer], Any]) -> Any:
        """The result or the error of one run alone."""
        try:
            return do(self.trainers[index])
        except Exception as error:
            return error

    def _leave(self, outcomes: Mapping[int, Any]) -> None:
        """Continues without the runs that are over."""
        left = [index for index in self._at if index not in outcomes]
        if left != self._at:
            self._pile.release([member for member, index in enumerate(self._at) if index in outcomes])
            self._at = left
            if left:
                self._pile = _Pile([self.trainers[index] for index in left])


@dataclass
class _Step:
    """The inputs of a step. Positions and target positions are padded to the longest of all members.

    `batches` are the members' own, as each would have by itself. `fields` are members x rows x ...: ids, lengths, row,
    targets, target_positions, target_ids; `positions` too, or 1 x time where all rows of all members have the same.
    """

    batches: list[Batch]
    draws: list[StepContext]
    forms: list[Hashable]
    flops: list[int]
    fields: dict[str, Tensor]
    positions: tuple[Tensor, ...]


class _Pile:
    """Stacked models, and one step of all of them."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = trainers
        first = trainers[0]
        self.flat = Flat([t.model for t in trainers], [t.optimizer for t in trainers], first.settings)
        self.device, self.objective, self.model = first.world.device, first.objective, first.model
        self.forward = _Forward(self.model, self.objective)
        self.fixed = _differing([t.model for t in trainers], set(self.flat.names))
        self.parameter_names = _parameter_names(self.model, set(self.flat.names))
        self.specs = [_adamw(trainer) for trainer in trainers]
        clips = [float("inf") if spec.max_grad_norm is None else spec.max_grad_norm for spec in self.specs]
        self.most = torch.tensor(clips, device=self.device)
        self.sums: dict[str, Tensor] = {}
        self.flops: dict[tuple[int, Hashable], int] = {}
        for trainer in trainers:
            trainer.settling = self.settle

    def settle(self) -> None:
        """Hands every trainer the sums since the last time, and its optimiser the counts of steps."""
        for name, sums in self.sums.items():
            for trainer, value in zip(self.trainers, sums.tolist(), strict=True):
                trainer.add(name, value)
        self.sums.clear()
        self.flat.settle()

    def release(self, members: Sequence[int]) -> None:
        """Lets go of some members, whose weights and moments then have memory of their own."""
        self.settle()
        for member in members:
            self.flat.release(member)
            self.trainers[member].settling = lambda: None

    def step(self) -> None:
        """One optimiser step of each."""
        rates = [trainer.rate(trainer.steps) for trainer in self.trainers]
        step = self._drawn()
        for group in self._groups(step):
            self._differentiate(step, group)
        self._add("gradient norm", self.flat.clip(self.most))
        self.flat.step(self.specs, rates)
        for trainer, batch, flops in zip(self.trainers, step.batches, step.flops, strict=True):
            rows, time = batch.tokens.ids.shape
            trainer.count_step(rows, batch.real, rows * time, flops)

    def _drawn(self) -> _Step:
        """The next batch of each, laid out and placed together."""
        parts = [trainer.stream.rows(StreamPosition(trainer.progress.examples)) for trainer in self.trainers]
        index = np.concatenate([index for _, index in parts])
        batch = self.trainers[0].stream.layout.batch(_joined([rows for rows, _ in parts]), index)
        draws = [StepContext(trainer.recipe.seed, trainer.progress.step) for trainer in self.trainers]
        forms = [self.objective.form(self.model, draw) for draw in draws]
        members, rows = len(parts), len(parts[0][1])
        batches = _apart(batch, members)
        moved = batch.to(self.device)
        placed = self.model.assign_positions(moved.tokens, StepContext.of_several(draws, rows)).position_ids or ()
        tokens, many = moved.tokens, members * rows
        fields = {
            "ids": tokens.ids,
            "lengths": tokens.lengths,
            "row": tokens.row,
            "targets": moved.targets,
            "target_positions": moved.target_positions,
            "target_ids": moved.target_ids,
        }
        return _Step(
            batches,
            draws,
            forms,
            [self._operations(*given) for given in zip(batches, draws, forms, strict=True)],
            {name: field.view(members, rows, *field.shape[1:]) for name, field in fields.items()},
            tuple(x.view(members, rows, *x.shape[1:]) if len(x) == many else x for x in placed),
        )

    def _operations(self, batch: Batch, draw: StepContext, form: Hashable) -> int:
        """What a step of one member costs, worked out once for each length and form."""
        at = (batch.tokens.ids.shape[1], form)
        if at not in self.flops:
            self.flops[at] = self.trainers[0].budget.flops_of(batch, draw)
        return self.flops[at]

    def _groups(self, step: _Step) -> list[list[int]]:
        """Members whose forwards are made at once: of one form, and of like length where there are too many for one."""
        most = TOGETHER if self.device.type == "cpu" else float("inf")
        alike: dict[Hashable, list[list[int]]] = {}
        for member in sorted(range(len(self.trainers)), key=step.flops.__getitem__):
            groups = alike.setdefault(step.forms[member], [[]])
            if (len(groups[-1]) + 1) * step.flops[member] > most and groups[-1]:
                groups.append([])
            groups[-1].append(member)
        return [sorted(group) for groups in alike.values() for group in groups]

    def _differentiate(self, step: _Step, group: list[int]) -> None:
        """Losses and gradients of some members."""
        half = self.trainers[0].training.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=half):
            leaves, terms = self._alone(step, group[0]) if len(group) == 1 else self._together(step, group)
        counts = [self.objective.counts(step.batches[member]) for member in group]
        means = {
            term: value / torch.tensor([float(max(1, own[term])) for own in counts], device=value.device)
            for term, value in terms.items()
        }
        total = sum((self.objective.weights[term] * mean for term, mean in means.items()), torch.zeros(()))
        self.flat.take(group, torch.autograd.grad(total.sum(), leaves, allow_unused=True))
        self._add("loss", total.detach(), group)
        if len(means) > 1:
            for term, mean in means.items():
                self._add(f"loss {term}", mean.detach(), group)

    def _alone(self, step: _Step, member: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The weights and terms of one member, as it would compute them by itself."""
        batch = step.batches[member].to(self.device)
        time = batch.tokens.ids.shape[1]
        positions = tuple((x[member] if x.dim() == 3 else x)[..., :time] for x in step.positions)
        batch = replace(batch, tokens=replace(batch.tokens, position_ids=positions))
        terms = self.objective(self.trainers[member].model, batch, step.draws[member])
        return list(self.flat.parameters[member]), {term: value[None] for term, value in terms.items()}

    def _together(self, step: _Step, group: list[int]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The weights and terms of some members, each with the members in front."""
        batches = [step.batches[member] for member in group]
        time = max(batch.tokens.ids.shape[1] for batch in batches)
        targets = max(batch.target_positions.shape[1] for batch in batches)
        chosen: Any = slice(None) if len(group) == len(self.trainers) else group
        fields = {name: _cut(field[chosen], name, time, targets) for name, field in step.fields.items()}
        positions = tuple((x[chosen] if x.dim() == 3 else x)[..., :time] for x in step.positions)
        leaves = self.flat.leaves(group)
        tensors = {own: leaves[name] for own, name in self.parameter_names.items()}
        tensors |= {name: field[chosen] for name, field in self.fixed.items()}
        draw = step.draws[group[0]]

        def forward(tensors: Mapping[str, Tensor], fields: Mapping[str, Tensor], positions: tuple[Tensor, ...]) -> Any:
            tokens = Tokens(fields["ids"], fields["lengths"], fields["row"], position_ids=positions)
            batch = Batch(tokens, fields["targets"], fields["target_positions"], fields["target_ids"], {}, 0)
            named = {f"model.{name}": tensor for name, tensor in tensors.items()}
            return functional_call(self.forward, named, (batch, draw), tie_weights=False)

        alone = tuple(0 if x.dim() == 3 else None for x in positions)
        with Folding():
            terms = vmap(forward, in_dims=(0, 0, alone))(tensors, fields, positions)
        return list(leaves.values()), terms

    def _add(self, name: str, values: Tensor, chosen: Any = slice(None)) -> None:
        """Sums on the device, for all members or some."""
        if name not in self.sums:
            self.sums[name] = torch.zeros(len(self.trainers), dtype=torch.float64, device=self.device)
        self.sums[name][chosen] += values


class _Forward(nn.Module):
    """Model and objective as one module: a loss may call the head after the model's own forward."""

    def __init__(self, model: Model, objective: ObjectivePart) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, draw: StepContext) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.objective(self.model, batch, draw)
        return terms


def _adamw(trainer: Trainer) -> AdamW:
    spec = trainer.recipe.optimizer
    if not isinstance(spec, AdamW):
        raise UserError(f"optimizer: {type(spec).__name__} has no step for several models at once; AdamW has")
    return spec


def _joined(parts: Sequence[Rows]) -> Rows:
    """Rows one below the other, padded to the longest."""
    longest = max(rows.ids.shape[1] for rows in parts)

    def below(name: str, filled: int) -> Any:
        arrays = [getattr(rows, name) for rows in parts]
        if arrays[0] is None:
            return None
        whole = np.full((sum(map(len, arrays)), longest), filled, dtype=arrays[0].dtype)
        first = 0
        for array in arrays:
            whole[first : first + len(array), : array.shape[1]] = array
            first += len(array)
        return whole

    lengths = np.concatenate([rows.lengths for rows in parts])
    labels, values = below("labels", PAD), below("values", 0)
    return Rows(below("ids", PAD), lengths, below("target_mask", False), labels, values, parts[0].vocabulary)


def _apart(batch: Batch, members: int) -> list[Batch]:
    """The batch of each member as it would be by itself, from one of all of them. Raises `UserError` for a batch with
    more fields than can be split by member."""
    if batch.source is not None or batch.target_values is not None or set(batch.counts) != {"tokens", "examples"}:
        raise UserError("layout: its batches hold more than tokens and targets, and those cannot be stacked")
    if batch.tokens.values is not None or batch.tokens.blocked_keys is not None:
        raise UserError("tokenizer: tokens with values, or hidden ones, cannot be stacked")
    rows = len(batch.tokens.ids) // members
    each = (batch.target_ids != IGNORE).sum(1).view(members, rows)
    lengths = batch.tokens.lengths.view(members, rows)
    facts = torch.stack([lengths.amax(1), lengths.sum(1), each.amax(1), each.sum(1)], dim=1).tolist()
    batches = []
    for member, (time, real, most, targets) in enumerate(facts):
        own, tokens = slice(member * rows, (member + 1) * rows), batch.tokens
        batches.append(
            Batch(
                Tokens(tokens.ids[own, :time], tokens.lengths[own], tokens.row[own]),
                batch.targets[own, :time],
                batch.target_positions[own, :most],
                batch.target_ids[own, :most],
                {"tokens": targets, "examples": rows},
                real,
            )
        )
    return batches


def _cut(field: Tensor, name: str, time: int, targets: int) -> Tensor:
    """A field of a batch, members x rows x ..., cut to so many positions or target positions."""
    if name in ("lengths", "row"):
        return field
    return field[..., : targets if name in ("target_positions", "target_ids") else time]


def _differing(models: Sequence[nn.Module], trained: set[str]) -> dict[str, Tensor]:
    """What is not trained but differs between models (buffers, frozen parameters): members x its shape."""
    found = {}
    for name, first in (*models[0].named_buffers(), *models[0].named_parameters()):
        if name in trained:
            continue
        every = [_tensor(model, name) for model in models]
        if not all(torch.equal(first, other) for other in every[1:]):
            found[name] = torch.stack([tensor.detach() for tensor in every])
    return found


def _parameter_names(model: nn.Module, trained: set[str]) -> dict[str, str]:
    """Where trained parameters stand in a model, by name, with the name that each is known by.

    Tied weights have two names. A module that layers share has one of its names: given under all
    of them, `functional_call` does not put the first weights back (torch 2.13)."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        f"{name}.{own}".lstrip("."): known[id(parameter)]
        for name, module in model.named_modules()
        for own, parameter in module._parameters.items()
        if parameter is not None
    }
    return {place: name for place, name in found.items() if name in trained}


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, own = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(owner), own)
    return found


def _refuse_unlike(first: nn.Module, other: nn.Module) -> None:
    """Raises `UserError` for modules that are not of one shape, or differ in a number that is no tensor."""
    if _shapes(first) != _shapes(other):
        raise UserError("stack: the models are not of one shape")
    for (name, ours), (_, theirs) in zip(first.named_modules(), other.named_modules(), strict=True):
        for attribute, value in vars(ours).items():
            found = vars(theirs).get(attribute)
            if isinstance(value, bool | int | float | str) and found != value:
                where = f"{name}.{attribute}".lstrip(".")
                raise UserError(f"stack: {where} is {value!r} in one model and {found!r} in another, and is no tensor")


def _shapes(model: nn.Module) -> list[tuple[str, torch.Size, bool]]:
    trained = [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
    return [*trained, *((name, buffer.shape, False) for name, buffer in model.named_buffers())]
