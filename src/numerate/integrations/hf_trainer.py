"""The number token loss in Hugging Face's trainers: `Trainer`, `Seq2SeqTrainer`, and those of TRL.

Two ways. `compute_loss_func` gives a function for the argument of that name, and is sufficient for batches that are not
split. `number_loss_trainer` makes a subclass that also counts the numbers of a batch that is accumulated or spread over
processes, so that splitting a batch does not change the gradient, and that logs the two terms separately.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from numerate.errors import UserError, raise_first
from numerate.integrations.number_token_loss import NumberTokenLoss

LossFunction = Callable[..., Tensor]


def compute_loss_func(loss: NumberTokenLoss) -> LossFunction:
    """A function for `Trainer(compute_loss_func=...)`, of outputs, labels and the total number of labels.

    Both terms are divided by the whole batch's count of labels, or the number part by its own numbers (`mean_over`).
    With mean_over="numbers" and a batch in several parts the count of the whole is not known, and the first step raises
    `UserError`: `number_loss_trainer` knows it, or take mean_over="labels".

        Trainer(model, arguments, train_dataset=rows, compute_loss_func=compute_loss_func(loss))
    """

    def compute(outputs: Any, labels: Tensor | None, num_items_in_batch: int | Tensor | None = None) -> Tensor:
        logits, labels = _logits_and_labels(loss, outputs, labels)
        total: Tensor = loss(logits, labels, num_items=num_items_in_batch)
        return total

    return compute


def number_loss_trainer(trainer_class: type | None = None) -> type[Any]:
    """A subclass of a trainer (of transformers' `Trainer` by default) that takes `number_loss=NumberTokenLoss(...)`.

    Batches may carry `loss_weights` and `quantity` beside `labels`, if the collator gives them and
    `remove_unused_columns=False` keeps them. The log has `cross_entropy` and `number_loss` (before its weight) beside
    `loss`. In evaluation the loss is the mean over batches of each one's own.

        trainer = number_loss_trainer(Seq2SeqTrainer)(model, arguments, train_dataset=rows, number_loss=loss)

    Raises `UserError` for a second loss function, and for label smoothing, which this loss has none of.
    """
    if trainer_class is None:
        from transformers import Trainer

        trainer_class = Trainer
    return type(f"NumberLoss{trainer_class.__name__}", (_NumberLossTrainer, trainer_class), {"__module__": __name__})


class _NumberLossTrainer:
    """The mixin for a trainer of transformers."""

    loss_is_scaled_for_ga = True
    accelerator: Any
    args: Any

    def __init__(self, *args: Any, number_loss: NumberTokenLoss, **kwargs: Any) -> None:
        if kwargs.get("compute_loss_func") is not None:
            raise UserError("compute_loss_func: cannot be combined with number_loss")
        super().__init__(*args, **kwargs)
        if self.args.label_smoothing_factor:
            raise UserError(
                f"label_smoothing_factor: {self.args.label_smoothing_factor} has no effect on a number token loss; "
                "must be 0; use gaussian_sigma= of the loss instead"
            )
        self.number_loss = number_loss.to(self.args.device)
        self._counts: tuple[Tensor, Tensor] | None = None
        self._loss_terms: dict[str, list[Tensor]] = {"cross_entropy": [], "number_loss": []}
        self._num_batches = 0

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)  # type: ignore[misc]
        self._num_batches += 1
        totals = torch.zeros(2, device=device)
        for sample in samples:
            if "labels" not in sample:
                raise UserError("labels: missing from the batch; use a collator that provides them")
            counts = self.number_loss.counts(
                sample["labels"], loss_weights=sample.get("loss_weights"), is_quantity=sample.get("quantity")
            )
            totals += torch.stack([count.float() for count in counts]).to(device)
        if self.accelerator.num_processes > 1:
            totals = self.accelerator.reduce(totals, reduction="sum") / self._tensor_parallel_size()
        self._counts = (totals[0], totals[1])
        return samples, num_items

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Any:
        inputs = dict(inputs)
        labels, *extra_inputs = (inputs.pop(name, None) for name in ("labels", "loss_weights", "quantity"))
        outputs = model(**inputs)
        logits, labels = _logits_and_labels(self.number_loss, outputs, labels)
        total_counts = self._counts if model.training else None
        terms = self.number_loss.loss_terms(
            logits,
            labels,
            num_items=None if total_counts is None else total_counts[0],
            num_numbers=None if total_counts is None else total_counts[1],
            loss_weights=extra_inputs[0],
            is_quantity=extra_inputs[1],
        )
        # The gradients of the processes are averaged, and each has its part of the sum.
        scale = 1 if total_counts is None else self.accelerator.num_processes // self._tensor_parallel_size()
        loss = scale * self.number_loss.weight * terms["number"]
        if self.number_loss.cross_entropy:
            loss = loss + scale * terms["cross_entropy"]
        if model.training:
            for name, term in zip(self._loss_terms, ("cross_entropy", "number"), strict=True):
                self._loss_terms[name].append(scale * terms[term].detach())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self._num_batches and self._loss_terms["number_loss"]:
            means = torch.stack([torch.stack(terms).sum() for terms in self._loss_terms.values()]) / self._num_batches
            if self.accelerator.num_processes > 1:
                means = self.accelerator.reduce(means, reduction="mean")
            logs.update(zip(self._loss_terms, means.tolist(), strict=True))
            self._num_batches = 0
            for terms in self._loss_terms.values():
                terms.clear()
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _tensor_parallel_size(self) -> int:
        """The number of processes with the same batch: those of one tensor-parallel group."""
        return int(self.get_tp_size())  # type: ignore[attr-defined]


def _logits_and_labels(loss: NumberTokenLoss, outputs: Any, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """The logits of a model's outputs and the labels; refused where the outputs say that `shift` is wrong."""
    if labels is None:
        raise UserError("labels: missing from the batch; use a collator that provides them")
    if not isinstance(outputs, Mapping):
        return outputs[0], labels
    raise_first(_output_problems(loss, outputs))
    return outputs["logits"], labels


def _output_problems(loss: NumberTokenLoss, outputs: Mapping[str, Any]) -> Iterator[str]:
    if "logits" not in outputs:
        yield f"outputs: {type(outputs).__name__} has no logits, only {', '.join(outputs)}"
    if loss.shift and "encoder_last_hidden_state" in outputs:
        yield "shift: must be False for an encoder-decoder, whose labels are aligned with its logits"
    if not loss.shift and "CausalLM" in type(outputs).__name__:
        yield (
            "shift: must be True for a decoder-only model, which would otherwise learn to copy its inputs: "
            "NumberTokenLoss(shift=True)"
        )
