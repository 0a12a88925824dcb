"""Several runs trained together: batches, forward passes and optimizer steps are joint, everything else is separate."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from numerate.batch import IGNORE_INDEX, Batch, Model, StepContext, Tokens, copies_from_pinned_memory, to_device
from numerate.errors import UserError
from numerate.stacking.flat_optimizer import FlatParameters
from numerate.stacking.folding import FoldedAttentionMode
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.training.data_stream import StreamPosition
from numerate.training.objective import ObjectiveModule
from numerate.training.optimizer import AdamW
from numerate.training.precision import autocast
from numerate.training.prefetch import Prefetcher
from numerate.training.step import StepSize, TrainingStep, weighted_loss
from numerate.training.stopping import Stop
from numerate.training.trainer import BatchKey, Trainer, TrainingResult
from numerate.vocabulary import PAD

MAX_STACKED_FLOPS = 2e9
"""Maximum floating-point operations of a joint step on a CPU before it is split: larger steps do not fit into the
cache, and save little overhead."""

EndCallback = Callable[[int, TrainingResult | Exception], None]
"""Called when a run ends: its index, and its outcome or error."""


class StackedTrainer:
    """Trains runs with models of one shape together; seed, data, budget, optimizer, schedule and folder may differ.

    Each run has its own `Trainer`, which evaluates, logs, saves and decides when to stop; only the step is joint: one
    forward pass of all models (`torch.vmap` over stacked weights), one backward pass, one step of all optimizers.
    Shorter batches are padded to the longest. The results are those of separate training up to rounding. A run that has
    ended, or whose loss is not finite, is removed; the others continue. Raises `UserError` for models of different
    shapes, and any error of the joint step.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        for trainer in trainers[1:]:
            _check_same_structure(trainers[0].model, trainer.model)
        self.trainers = list(trainers)
        self._active = list(range(len(self.trainers)))
        self._stack = _Stack(self.trainers)
        self._prefetcher: Prefetcher[_Keys, _CPUBatches] = Prefetcher(
            lambda keys: self._stack.make_batches(keys), lambda keys: self._stack.next_batch_keys(keys)
        )
        for trainer in self.trainers:
            trainer.prefetcher = self._prefetcher

    def train(self, stop: Stop, on_end: EndCallback = lambda index, outcome: None) -> list[TrainingResult | Exception]:
        """Trains until all runs have ended, and returns results in the order of the trainers; `on_end` is called as
        soon as a run ends."""
        with self._prefetcher.running(enabled=self.trainers[0].makes_batches_ahead):
            return self._train(stop, on_end)

    def _train(self, stop: Stop, on_end: EndCallback) -> list[TrainingResult | Exception]:
        outcomes: dict[int, TrainingResult | Exception] = {}

        def finish(index: int, outcome: TrainingResult | Exception) -> None:
            outcomes[index] = outcome
            on_end(index, outcome)

        for trainer in self.trainers:
            trainer.time_share = 1 / len(self.trainers)
            trainer.start_training(stop)
        while True:
            for index in self._active:
                if not self.trainers[index].should_continue():
                    finish(index, self._try(index, Trainer.finish_training))
            self._remove_finished(outcomes)
            if not self._active:
                return [outcomes[index] for index in range(len(self.trainers))]
            self._stack.take_step([trainer.learning_rate(trainer.total_steps) for trainer in self._stack.trainers])
            for index in self._active:
                if (error := self._try(index, Trainer.after_step)) is not None:
                    finish(index, error)
            self._remove_finished(outcomes)

    def _try(self, index: int, action: Callable[[Trainer], Any]) -> Any:
        """The result or the error of one run."""
        try:
            return action(self.trainers[index])
        except Exception as error:
            return error

    def _remove_finished(self, outcomes: Mapping[int, Any]) -> None:
        """Removes the runs that have ended."""
        remaining = [index for index in self._active if index not in outcomes]
        if remaining != self._active:
            self._prefetcher.wait()  # for what the old stack makes
            self._stack.remove([member for member, index in enumerate(self._active) if index in outcomes])
            self._active = remaining
            if remaining:
                self._stack = _Stack([self.trainers[index] for index in remaining])


_Keys = tuple[BatchKey, ...]
"""What the batches of a step are a function of, of each member."""


@dataclass
class _CPUBatches:
    """The joint batch of a step, padded to the longest of all members, and what is read of it on the CPU.

    `batches` are the separate batches of the members.
    """

    batch: Batch
    batches: list[Batch]
    step_contexts: list[StepContext]
    forward_keys: list[Hashable]
    sizes: list[StepSize]


@dataclass
class _StackedBatches:
    """The inputs of a step, on the device.

    `made` is what they were made of. `fields` are members x rows x ...: ids, lengths, row,
    targets, target_positions, target_ids; `position_ids` too, or 1 x time where all rows of all members have the same.
    """

    made: _CPUBatches
    fields: dict[str, Tensor]
    position_ids: tuple[Tensor, ...]


class _Stack(TrainingStep):
    """Stacked models, and their joint steps."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = trainers
        first = trainers[0]
        self.flat_parameters = FlatParameters(
            [t.model for t in trainers], [t.optimizer for t in trainers], first.parameter_options
        )
        self.device, self.objective, self.model = first.world.device, first.objective, first.model
        self.forward = _Forward(self.model, self.objective)
        self.untrained_tensors = _differing_tensors([t.model for t in trainers], set(self.flat_parameters.names))
        self.parameter_names = _parameter_names(self.model, set(self.flat_parameters.names))
        self.specs = [_adamw(trainer) for trainer in trainers]
        clips = [float("inf") if spec.max_grad_norm is None else spec.max_grad_norm for spec in self.specs]
        self.max_norms = torch.tensor(clips, device=self.device)
        self.sums: dict[str, Tensor] = {}
        self.flops: dict[tuple[int, Hashable], int] = {}
        for trainer in trainers:
            trainer.flush_hook = self.flush

    def flush(self) -> None:
        """Adds the sums to every trainer, and copies step counts to its optimizer."""
        for name, sums in self.sums.items():
            for trainer, value in zip(self.trainers, sums.tolist(), strict=True):
                trainer.add_metric(name, value)
        self.sums.clear()
        self.flat_parameters.sync_step_counts()

    def remove(self, members: Sequence[int]) -> None:
        """Removes members; their weights and moments then have their own memory."""
        self.flush()
        for member in members:
            self.flat_parameters.detach_member(member)
            self.trainers[member].flush_hook = lambda: None

    def next_batch_keys(self, keys: _Keys) -> _Keys | None:
        """The keys of the step after that of `keys`; None if a member ends there."""
        next_keys = [trainer.next_batch_key(key) for trainer, key in zip(self.trainers, keys, strict=True)]
        return None if None in next_keys else tuple(key for key in next_keys if key is not None)

    def make_batches(self, keys: _Keys) -> _CPUBatches:
        """The batches of a step of all members, padded to one shape."""
        rows_and_indices = [
            trainer.stream.rows(StreamPosition(key.examples)) for trainer, key in zip(self.trainers, keys, strict=True)
        ]
        index = np.concatenate([index for _, index in rows_and_indices])
        batch = self.trainers[0].stream.layout.build_batch(
            _concatenate_rows([rows for rows, _ in rows_and_indices]), index
        )
        step_contexts = [
            StepContext(trainer.recipe.seed, key.step) for trainer, key in zip(self.trainers, keys, strict=True)
        ]
        forward_keys = [self.objective.forward_key(self.model, draw) for draw in step_contexts]
        members, rows = len(rows_and_indices), len(rows_and_indices[0][1])
        batches = _split_batch(batch, members)
        sizes = [
            StepSize(
                rows, own.num_input_tokens, own.tokens.ids.numel(), self._step_flops(own, step_context, forward_key)
            )
            for own, step_context, forward_key in zip(batches, step_contexts, forward_keys, strict=True)
        ]
        joint_context = StepContext.from_contexts(step_contexts, rows)
        batch = replace(batch, tokens=self.model.assign_positions(batch.tokens, joint_context))
        batch = batch.pin_memory() if copies_from_pinned_memory(self.device) else batch
        return _CPUBatches(batch, batches, step_contexts, forward_keys, sizes)

    def next_batches(self) -> tuple[_StackedBatches, list[StepSize]]:
        """The next batches of all members, moved to the device together."""
        made: _CPUBatches = self.trainers[0].prefetcher.get(
            tuple(trainer.batch_key(trainer.state) for trainer in self.trainers)
        )
        batch, members, rows = made.batch.to(self.device), len(made.batches), made.sizes[0].examples
        tokens = batch.tokens
        fields = {
            "ids": tokens.ids,
            "lengths": tokens.lengths,
            "row": tokens.example_indices,
            "targets": batch.targets,
            "target_positions": batch.target_positions,
            "target_ids": batch.target_ids,
        }
        stacked_batches = _StackedBatches(
            made,
            {name: field.view(members, rows, *field.shape[1:]) for name, field in fields.items()},
            tuple(
                x.view(members, rows, *x.shape[1:]) if len(x) == members * rows else x
                for x in tokens.position_ids or ()
            ),
        )
        return stacked_batches, made.sizes

    def _step_flops(self, batch: Batch, step_context: StepContext, forward_key: Hashable) -> int:
        """The FLOPs of a step of one member, computed once per length and forward key."""
        key = (batch.tokens.ids.shape[1], forward_key)
        if key not in self.flops:
            self.flops[key] = self.trainers[0].budget.batch_flops(batch, step_context)
        return self.flops[key]

    def _groups(self, made: _CPUBatches) -> list[list[int]]:
        """Groups of members with joint forward passes: of the same precision (that with which each began) and the same
        forward key, and of similar length if a joint step would be too large."""
        max_flops = MAX_STACKED_FLOPS if self.device.type == "cpu" else float("inf")
        groups_by_key: dict[Hashable, list[list[int]]] = {}
        for member in sorted(range(len(self.trainers)), key=lambda at: made.sizes[at].flops):
            key = self.trainers[member].training.precision, made.forward_keys[member]
            groups = groups_by_key.setdefault(key, [[]])
            if (len(groups[-1]) + 1) * made.sizes[member].flops > max_flops and groups[-1]:
                groups.append([])
            groups[-1].append(member)
        return [sorted(group) for groups in groups_by_key.values() for group in groups]

    def compute_gradients(self, batches: _StackedBatches) -> None:
        for group in self._groups(batches.made):
            with autocast(self.device, self.trainers[group[0]].training.precision):
                forward = self._forward_member if len(group) == 1 else self._forward_group
                leaves, loss_sums = forward(batches, group)
            counts = [self.objective.counts(batches.made.batches[member]) for member in group]
            divisors = {
                term: to_device(torch.tensor([float(max(1, own[term])) for own in counts]), self.device)
                for term in loss_sums
            }
            loss, metrics = weighted_loss(loss_sums, divisors, self.objective.weights)
            gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
            self.flat_parameters.set_gradients(group, gradients)
            for name, values in metrics.items():
                self._add_metric(name, values, self.flat_parameters.member_index(group))

    def update_weights(self, learning_rates: Sequence[float]) -> None:
        self._add_metric("grad_norm", self.flat_parameters.clip_grad_norm(self.max_norms))
        self.flat_parameters.step(self.specs, learning_rates)

    def count_step(self, sizes: Sequence[StepSize]) -> None:
        for trainer, size in zip(self.trainers, sizes, strict=True):
            trainer.count_step([size])

    def _forward_member(self, batches: _StackedBatches, group: list[int]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The weights and terms of one member, as it would compute them by itself."""
        (member,) = group
        batch = batches.made.batches[member].to(self.device)
        time = batch.tokens.ids.shape[1]
        position_ids = tuple((x[member] if x.dim() == 3 else x)[..., :time] for x in batches.position_ids)
        batch = replace(batch, tokens=replace(batch.tokens, position_ids=position_ids))
        terms = self.objective(self.trainers[member].model, batch, batches.made.step_contexts[member])
        return list(self.flat_parameters.parameters[member]), {term: value[None] for term, value in terms.items()}

    def _forward_group(self, batches: _StackedBatches, group: list[int]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The weights and terms of some members, each with the members in front."""
        members = [batches.made.batches[member] for member in group]
        time = max(batch.tokens.ids.shape[1] for batch in members)
        targets = max(batch.target_positions.shape[1] for batch in members)
        member_index = self.flat_parameters.member_index(group)
        fields = {name: _truncate(field[member_index], name, time, targets) for name, field in batches.fields.items()}
        position_ids = tuple((x[member_index] if x.dim() == 3 else x)[..., :time] for x in batches.position_ids)
        leaves = self.flat_parameters.leaf_weights(group)
        tensors = {module_name: leaves[name] for module_name, name in self.parameter_names.items()}
        tensors |= {name: field[member_index] for name, field in self.untrained_tensors.items()}
        step_context = batches.made.step_contexts[group[0]]

        def forward(tensors: Mapping[str, Tensor], fields: Mapping[str, Tensor], positions: tuple[Tensor, ...]) -> Any:
            tokens = Tokens(fields["ids"], fields["lengths"], fields["row"], position_ids=positions)
            batch = Batch(tokens, fields["targets"], fields["target_positions"], fields["target_ids"], {}, 0)
            named = {f"model.{name}": tensor for name, tensor in tensors.items()}
            return functional_call(self.forward, named, (batch, step_context), tie_weights=False)

        position_dims = tuple(0 if x.dim() == 3 else None for x in position_ids)
        with FoldedAttentionMode():
            terms = vmap(forward, in_dims=(0, 0, position_dims))(tensors, fields, position_ids)
        return list(leaves.values()), terms

    def _add_metric(self, name: str, values: Tensor, member_index: Any = slice(None)) -> None:
        """Sums on the device, for all members or some."""
        if name not in self.sums:
            self.sums[name] = torch.zeros(len(self.trainers), dtype=torch.float64, device=self.device)
        self.sums[name][member_index] += values


class _Forward(nn.Module):
    """Model and objective as one module, since a loss may call the head after the model's forward pass."""

    def __init__(self, model: Model, objective: ObjectiveModule) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch, step_context: StepContext) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = self.objective(self.model, batch, step_context)
        return terms


def _adamw(trainer: Trainer) -> AdamW:
    spec = trainer.recipe.optimizer
    if not isinstance(spec, AdamW):
        raise UserError(f"optimizer: {type(spec).__name__} must be AdamW for stacked models")
    return spec


def _concatenate_rows(parts: Sequence[TokenizedExamples]) -> TokenizedExamples:
    """Rows concatenated, padded to the longest."""
    longest = max(rows.ids.shape[1] for rows in parts)

    def pad_and_stack(name: str, filled: int) -> Any:
        arrays = [getattr(rows, name) for rows in parts]
        if arrays[0] is None:
            return None
        stacked = np.full((sum(map(len, arrays)), longest), filled, dtype=arrays[0].dtype)
        first = 0
        for array in arrays:
            stacked[first : first + len(array), : array.shape[1]] = array
            first += len(array)
        return stacked

    lengths = np.concatenate([rows.lengths for rows in parts])
    labels, number_values = pad_and_stack("labels", PAD), pad_and_stack("number_values", 0)
    ids, target_mask = pad_and_stack("ids", PAD), pad_and_stack("target_mask", False)
    return TokenizedExamples(ids, lengths, target_mask, labels, number_values, parts[0].vocabulary)


def _split_batch(batch: Batch, members: int) -> list[Batch]:
    """Splits a joint batch into the batches of its members. Raises `UserError` for a batch with fields that cannot be
    split."""
    if (
        batch.source is not None
        or batch.target_number_values is not None
        or set(batch.counts) != {"tokens", "examples"}
    ):
        raise UserError("layout: batches with other inputs than tokens and targets cannot be stacked")
    if batch.tokens.number_values is not None or batch.tokens.blocked_keys is not None:
        raise UserError("tokenizer: tokens with number values or blocked keys cannot be stacked")
    rows = len(batch.tokens.ids) // members
    targets_per_row = (batch.target_ids != IGNORE_INDEX).sum(1).view(members, rows)
    lengths = batch.tokens.lengths.view(members, rows)
    row_statistics = torch.stack(
        [lengths.amax(1), lengths.sum(1), targets_per_row.amax(1), targets_per_row.sum(1)], dim=1
    ).tolist()
    batches = []
    for member, (time, real, max_targets, targets) in enumerate(row_statistics):
        row_slice, tokens = slice(member * rows, (member + 1) * rows), batch.tokens
        batches.append(
            Batch(
                Tokens(tokens.ids[row_slice, :time], tokens.lengths[row_slice], tokens.example_indices[row_slice]),
                batch.targets[row_slice, :time],
                batch.target_positions[row_slice, :max_targets],
                batch.target_ids[row_slice, :max_targets],
                {"tokens": targets, "examples": rows},
                real,
            )
        )
    return batches


def _truncate(field: Tensor, name: str, time: int, targets: int) -> Tensor:
    """A field of a batch, members x rows x ..., truncated to a number of positions or target positions."""
    if name in ("lengths", "row"):
        return field
    return field[..., : targets if name in ("target_positions", "target_ids") else time]


def _differing_tensors(models: Sequence[nn.Module], trained: set[str]) -> dict[str, Tensor]:
    """Untrained tensors that differ between models (buffers, frozen parameters), each members x its shape."""
    differing = {}
    for name, first in (*models[0].named_buffers(), *models[0].named_parameters()):
        if name in trained:
            continue
        tensors = [_tensor(model, name) for model in models]
        if not all(torch.equal(first, other) for other in tensors[1:]):
            differing[name] = torch.stack([tensor.detach() for tensor in tensors])
    return differing


def _parameter_names(model: nn.Module, trained: set[str]) -> dict[str, str]:
    """Where trained parameters stand in a model, by name, with the name that each is known by.

    Tied weights have two names. A module that layers share has one of its names: given under all
    of them, `functional_call` does not put the first weights back (torch 2.13)."""
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {
        f"{name}.{parameter_name}".lstrip("."): known[id(parameter)]
        for name, module in model.named_modules()
        for parameter_name, parameter in module._parameters.items()
        if parameter is not None
    }
    return {module_name: name for module_name, name in names.items() if name in trained}


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, own = name.rpartition(".")
    found: Tensor = getattr(model.get_submodule(owner), own)
    return found


def _check_same_structure(first: nn.Module, other: nn.Module) -> None:
    """Raises `UserError` for modules that are not of one shape, or differ in a number that is no tensor."""
    if _parameter_shapes(first) != _parameter_shapes(other):
        raise UserError("stack: the models are not of one shape")
    for (name, ours), (_, theirs) in zip(first.named_modules(), other.named_modules(), strict=True):
        for attribute, value in vars(ours).items():
            other_value = vars(theirs).get(attribute)
            if isinstance(value, bool | int | float | str) and other_value != value:
                where = f"{name}.{attribute}".lstrip(".")
                raise UserError(
                    f"stack: {where} is {value!r} in one model and {other_value!r} in another, but must be equal"
                )


def _parameter_shapes(model: nn.Module) -> list[tuple[str, torch.Size, bool]]:
    trained = [(name, p.shape, p.requires_grad) for name, p in model.named_parameters()]
    return [*trained, *((name, buffer.shape, False) for name, buffer in model.named_buffers())]
