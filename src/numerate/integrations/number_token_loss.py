"""Cross-entropy and a number token loss for any model and training loop."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.errors import UserError, check_choice, raise_first
from numerate.integrations.hf_number_tokens import NumberTokens, NumberTokenSelection, number_tokens
from numerate.integrations.loss_inputs import input_problems, raise_non_finite, scalar_count
from numerate.integrations.text_spans import TextSpans, tokens_outside
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss, cross_entropy_and_token_logits
from numerate.kernels.number_loss import (
    LOSS_FUNCTIONS,
    LossFunction,
    LossSums,
    NumberDistance,
    number_indices_and_weights,
    warn_number_term_dominates,
)
from numerate.kernels.number_table import NumberTokenTable
from numerate.losses.number_level import number_losses
from numerate.losses.number_spans import NumberNotation, digits_of, find_number_spans, place_value_weights
from numerate.vocabulary import POINT, TEXT

DEFAULT_SAMPLE = ("The answer is 7, 42, 365, 1024 or 31415.", "12 + 30 = 42, 2.5 x 4 = 10.0, 1998 - 2019 = -21")
"""The default sample for the coverage of a tokenizer."""

NUM_COMPARED_BATCHES = 10
"""Number of training batches whose mean terms are compared: a number term above cross-entropy gives a warning."""


class NumberTokenLoss(nn.Module):
    """Cross-entropy + `weight` x number token loss, from the logits and labels of any model of tokens.

    Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083: where a label is a number token,
    the probabilities of all number tokens measure the distance from its value. `numerate.kernels.number_loss` has
    the definitions.

    - `values`: the value of each number token, by id, or `numerate.number_tokens(...)`, which `from_tokenizer` passes.
    - `loss_function`: "was" and "was-cdf" (Wasserstein-1 distance), or "mse", "mae", "huber" of the expected value, of
      each number token; or "number-level", the relative error of each whole number: `numerate.losses.NumberLevel`.
    - `weight`: the factor of the number part; 0.3 in the paper.
    - `cross_entropy=False`: only the number part (x `weight`), to be added to your own cross-entropy.
    - `mean_over`: the number part is a mean over the "numbers" among the labels, as published, or over all "labels".
      The cross-entropy is a mean over all labels that are not ignored.
    - `shift`: whether the logits at a position predict the *next* label. A decoder-only model of Hugging Face
      needs True, since its labels are its inputs; an encoder-decoder needs False, and so do labels that are shifted
      already, as for `torch.nn.functional.cross_entropy`.
    - `digit_weight_ratio`: the weight of a digit relative to the next less significant one, with mean 1 in each number;
      1, the default, weights all equally.
    - `exclude`: a function from a text to the spans (start, end) in which numbers are no quantities and have no number
      loss, such as years; None: all are quantities. It reads the labels as text, on the CPU.
    - `reweigh`, `gaussian_sigma`, `squash_factor`: as of `numerate.kernels.number_loss.NumberDistance`.
    - `check_finite`: NaN or infinity in the loss is a `OperationalError` that names the position; costs a
      synchronization with the device.

    >>> loss = NumberTokenLoss({4: 0.0, 5: 1.0, 6: 2.0}, loss_function="mae", weight=1.0)
    >>> logits, labels = torch.zeros(1, 2, 8, requires_grad=True), torch.tensor([[3, 6]])
    >>> round(loss(logits, labels).item(), 3)  # ln 8 + |1 - 2|
    3.079

    With a model of Hugging Face:

        loss = NumberTokenLoss.from_tokenizer(tokenizer, shift=True)
        loss(model(input_ids).logits, labels).backward()

    It warns once where, in the mean over the first 10 batches with a gradient, the number part is above the
    cross-entropy; the device is waited for at the tenth of them alone, and a compiled call does not look.

    It has no parameters or checkpointed state, and follows the logits to their device. float16, bfloat16 and
    float32 logits are computed with in float32, float64 in float64. Raises `UserError` for invalid settings.
    """

    def __init__(
        self,
        values: Mapping[int, float] | NumberTokens,
        *,
        loss_function: LossFunction | Literal["number-level"] = "was",
        weight: float = 0.3,
        cross_entropy: bool = True,
        mean_over: Literal["numbers", "labels"] = "numbers",
        shift: bool = False,
        digit_weight_ratio: float = 1.0,
        exclude: TextSpans | None = None,
        reweigh: bool = False,
        gaussian_sigma: float | None = None,
        squash_factor: float | None = None,
        ignore_index: int = -100,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(values, Mapping | NumberTokens):
            raise UserError(f"values: must be numbers by id, not {type(values).__name__}; from_tokenizer takes that")
        check_choice("loss_function", loss_function, (*LOSS_FUNCTIONS, "number-level"))
        self.number_distance: NumberDistance | None = None
        if loss_function != "number-level":
            self.number_distance = NumberDistance(loss_function, gaussian_sigma, reweigh, squash_factor)
        elif (gaussian_sigma, squash_factor, digit_weight_ratio) != (None, None, 1):
            raise UserError(
                "loss_function: number-level compares whole numbers; it has no gaussian_sigma, squash_factor or "
                "digit_weight_ratio"
            )
        if not (isinstance(weight, int | float | np.number) and 0 <= weight < float("inf")):
            raise UserError(
                f"weight: must be finite and 0 or more, not {weight!r}; 0.3 in the paper, 0 is cross-entropy alone"
            )
        if not (isinstance(digit_weight_ratio, int | float | np.number) and 0 < digit_weight_ratio < float("inf")):
            raise UserError(
                f"digit_weight_ratio: must be finite and above 0, not {digit_weight_ratio!r}; 1: equal weights"
            )
        check_choice("mean_over", mean_over, ("numbers", "labels"))
        if not isinstance(shift, bool):
            raise UserError(f"shift: must be True (decoder-only) or False (encoder-decoder), not {shift!r}")
        self.table, self.notation = _table_and_notation(values)
        self.table.read_logits_of(self.notation.minus_ids)
        if exclude is not None and not callable(exclude):
            raise UserError(f"exclude: must be a function from a text to a list of spans (start, end), not {exclude!r}")
        if exclude is not None and not isinstance(values, NumberTokens):
            raise UserError("exclude: needs the texts of tokens; use NumberTokenLoss.from_tokenizer")
        self.exclude, self._token_texts = exclude, values.token_texts if isinstance(values, NumberTokens) else ()
        self.loss_function, self.squash_factor, self.reweigh = loss_function, squash_factor, reweigh
        self.digit_weight_ratio = digit_weight_ratio
        self.weight, self.cross_entropy, self.mean_over, self.shift = weight, cross_entropy, mean_over, shift
        self.ignore_index, self.check_finite = ignore_index, check_finite
        self._first_terms: list[Tensor] | None = []
        """The two terms of the first batches, until they are compared."""

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        *,
        which: NumberTokenSelection = "digits",
        override: Mapping[int, float | None] | None = None,
        sample: Iterable[str] | None = None,
        model: Any = None,
        **settings: Any,
    ) -> "NumberTokenLoss":
        """The loss for the number tokens of a tokenizer, which is not changed; `settings` as of the class.

        `which` and `override` are those of `numerate.number_tokens`. Where less than 95 % of the digit characters of
        `sample` (texts of yours; without them some of ours) stand in number tokens, it warns. With `model`, a model of
        transformers, `shift` is what that model needs: its configuration tells whether it has an encoder.

        >>> from tokenizers import Tokenizer, models
        >>> tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "5": 1, "+": 2}, unk_token="[UNK]"))
        >>> loss = NumberTokenLoss.from_tokenizer(tokenizer, loss_function="mse", sample=["5"])
        >>> loss.table.values.tolist()
        [5.0]
        """
        tokens = number_tokens(tokenizer, which=which, override=override)
        with suppress(UserError) if sample is None else nullcontext():  # a tokenizer may fail on the default sample
            tokens.coverage(DEFAULT_SAMPLE if sample is None else sample)
        if model is not None:
            needs_shift = not model.config.is_encoder_decoder
            if settings.setdefault("shift", needs_shift) != needs_shift:
                raise UserError(
                    f"shift: must be {needs_shift} for {type(model).__name__}, which is "
                    f"{'decoder-only' if needs_shift else 'an encoder-decoder'}, not {settings['shift']}"
                )
        return cls(tokens, **settings)

    def forward(
        self,
        logits: Float[Tensor, "*positions vocabulary"],
        labels: Int[Tensor, "*positions"],
        *,
        num_items: int | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        is_quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss, a scalar in nats (and `weight` x the units of the values).

        Where a batch is cut into parts (gradient accumulation, several processes), `num_items` is how many labels and
        `num_numbers` how many number labels the whole of it has (`counts`): the parts' losses then add up to the loss
        of the whole. `loss_weights` are weights of number labels (of a whole number at its first label),
        `is_quantity` is False at numbers that name something instead of counting it, in place of what `exclude` finds;
        both stand where the labels stand. Without a number label the number part is
        0, and still attached.

        Raises `UserError` for logits and labels that do not belong together.
        """
        terms = self.loss_terms(
            logits,
            labels,
            num_items=num_items,
            num_numbers=num_numbers,
            loss_weights=loss_weights,
            is_quantity=is_quantity,
        )
        number = self.weight * terms["number"]
        return terms["cross_entropy"] + number if self.cross_entropy else number

    def loss_terms(
        self,
        logits: Float[Tensor, "*positions vocabulary"],
        labels: Int[Tensor, "*positions"],
        *,
        num_items: int | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        is_quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """The two means separately, before `weight`: `cross_entropy` and `number`. Arguments as of a call."""
        raise_first(input_problems(logits, labels, self.table.max_id, self.shift, loss_weights, is_quantity))
        if self.table.ids.device != logits.device:
            self.to(logits.device)
        unshifted_labels = labels
        labels, weights, quantities = self._number_labels(labels, loss_weights, is_quantity, logits.device)
        sums = self._sums(logits, labels, weights, quantities)
        label_count: float | Tensor = sums.num_labels if num_items is None else scalar_count(num_items, "num_items")
        if self.shift and num_items is not None:
            # A trainer that counts before the shift has counted the first label of each row too.
            unshifted_count = (unshifted_labels != self.ignore_index).sum().to(labels.device)
            label_count = torch.where(unshifted_count == label_count, sums.num_labels, label_count)
        if self.mean_over == "labels":
            number_count = label_count
        elif num_numbers is not None:
            number_count = scalar_count(num_numbers, "num_numbers")
        else:
            if num_items is not None:
                self._check_whole_batch(label_count, sums.num_labels)
            number_count = sums.total_number_weight
        means = {
            "cross_entropy": _mean(sums.cross_entropy, label_count),
            "number": _mean(sums.number_loss, number_count),
        }
        if self.check_finite and not all(bool(term.isfinite()) for term in means.values()):
            raise_non_finite(logits)
        if not torch.compiler.is_compiling() and self._first_terms is not None and logits.requires_grad:
            batch_count = sums.num_labels if self.mean_over == "labels" else sums.total_number_weight
            number = self.weight * _mean(sums.number_loss.detach(), batch_count)
            self._warn_if_outweighed(
                self._first_terms, torch.stack([number, _mean(sums.cross_entropy.detach(), sums.num_labels)])
            )
        return means

    def _number_labels(
        self, labels: Tensor, loss_weights: Tensor | None, is_quantity: Tensor | None, device: torch.device
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The labels, the weights of number labels and which numbers are quantities: shifted, and on `device`."""
        if is_quantity is None and self.exclude is not None:
            is_quantity = self.quantity_mask(labels)
        labels = self._shift_left(labels.to(device).long(), self.ignore_index)
        quantities = None if is_quantity is None else self._shift_left(is_quantity.to(device), False)
        weights = None if loss_weights is None else self._shift_left(loss_weights.to(device), 0)
        if self.digit_weight_ratio != 1:
            rows, _ = self._number_rows(labels, None, quantities)
            place_weights = place_value_weights(rows, self.table, self.notation, self.digit_weight_ratio)
            weights = place_weights.view(labels.shape) * (1 if weights is None else weights)
        return labels, weights, quantities

    def _number_rows(self, labels: Tensor, weights: Tensor | None, quantities: Tensor | None) -> tuple[Tensor, Tensor]:
        """The labels as rows, -1 where none is part of a quantity, and the weight of each number, where it starts."""
        is_kept = labels != self.ignore_index if quantities is None else quantities & (labels != self.ignore_index)
        rows = torch.where(is_kept, labels, -1).reshape(-1, labels.shape[-1])
        starts = find_number_spans(rows, self.table.number_indices(rows), self.table, self.notation).start_mask
        return rows, starts if weights is None else torch.where(starts, weights.reshape(rows.shape), 0)

    def _sums(self, logits: Tensor, labels: Tensor, weights: Tensor | None, quantities: Tensor | None) -> LossSums:
        """The sums of both terms; the arguments are shifted."""
        if self.number_distance is not None:
            return cross_entropy_and_number_loss(
                logits,
                labels,
                self.table,
                **vars(self.number_distance),
                loss_weights=weights,
                quantity_mask=quantities,
                ignore_index=self.ignore_index,
            )
        self.table.check_logits_and_labels(logits.shape[-1], labels, self.ignore_index)
        rows, number_weights = self._number_rows(labels, weights, quantities)
        cross_entropy, token_logits, lse = cross_entropy_and_token_logits(
            logits, labels, self.table.logit_ids, ignore_index=self.ignore_index
        )
        losses = number_losses(
            token_logits.view(*rows.shape, -1),
            lse.view(rows.shape),
            rows,
            self.table,
            self.notation,
            reweigh=self.reweigh,
        )
        return LossSums(
            cross_entropy,
            (losses * number_weights).sum(),
            (labels != self.ignore_index).sum(),
            number_weights.sum().to(losses.dtype),
        )

    def _check_whole_batch(self, label_count: float | Tensor, num_labels: Tensor) -> None:
        """Raises `UserError` for a part of a batch, in which the numbers of the whole are not known. On an accelerator
        the first batches alone are looked at, since the comparison waits for it."""
        if not self.weight or (num_labels.device.type != "cpu" and self._first_terms is None):
            return
        if (total := int(label_count)) != (own := int(num_labels)):
            raise UserError(
                f"num_items: {total} labels in all, and {own} in this part; the mean over numbers needs num_numbers= "
                "of all too (`NumberTokenLoss.counts`; `number_loss_trainer` of numerate.integrations.hf_trainer "
                "counts them), or mean_over='labels'"
            )

    def _warn_if_outweighed(self, first_terms: list[Tensor], terms: Tensor) -> None:
        """Keeps the two terms of a batch, and after the last one warns where the number part is larger."""
        first_terms.append(terms)
        if len(first_terms) < NUM_COMPARED_BATCHES:
            return
        number, cross_entropy = torch.stack(first_terms).mean(0).tolist()
        self._first_terms = None
        squash = " or squash_factor=20" * (self.loss_function == "was" and self.squash_factor is None)
        advice = f"a lower weight (now {self.weight:g}){squash}"
        for text in warn_number_term_dominates(
            number, cross_entropy, f"the first {NUM_COMPARED_BATCHES} batches", advice
        ):
            warnings.warn(text, stacklevel=4)

    def counts(
        self,
        labels: Int[Tensor, "*positions"],
        *,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        is_quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> tuple[Int[Tensor, ""], Float[Tensor, ""]]:
        """How many labels are not ignored, and how many of them are number tokens, or how many whole numbers there are
        with number-level (with `loss_weights`, the sum of those)."""
        device = self.table.ids.device
        labels, weights, quantities = self._number_labels(labels, loss_weights, is_quantity, device)
        if self.number_distance is None:
            _, counted = self._number_rows(labels, weights, quantities)
        else:
            _, counted = number_indices_and_weights(
                labels, self.table, weights, quantities, self.ignore_index, torch.float32
            )
        return (labels != self.ignore_index).sum(), counted.sum().float()

    def quantity_mask(self, labels: Int[Tensor, "*positions"]) -> Bool[Tensor, "*positions"]:
        """Whether each label (unshifted) is outside all spans that `exclude` finds in the text of its row; ignored
        labels are a space. A call computes it, unless a collator has passed it as `is_quantity`."""
        if self.exclude is None:
            return torch.ones_like(labels, dtype=torch.bool)
        rows = labels.reshape(-1, labels.shape[-1]).tolist()
        mask = [tokens_outside(self.exclude, ids, self._token_texts) for ids in rows]
        return torch.tensor(mask, device=labels.device).view(labels.shape)

    def extra_repr(self) -> str:
        return (
            f"{self.table.count} number tokens, loss_function={self.loss_function}, weight={self.weight}, "
            f"mean_over={self.mean_over}, shift={self.shift}"
        )

    def _shift_left(self, positions: Tensor, fill_value: int | bool) -> Tensor:
        """Shifts left by one position and fills the last with `fill_value`. The logits are not copied."""
        if not self.shift:
            return positions
        return torch.cat([positions[..., 1:], torch.full_like(positions[..., :1], fill_value)], dim=-1)


def _mean(total: Tensor, count: float | Tensor) -> Tensor:
    if not isinstance(count, Tensor):
        return total / (count if count > 0 else 1)
    divisor = count.to(total.device, total.dtype)
    return total / torch.where(divisor > 0, divisor, 1)


def _table_and_notation(values: Mapping[int, float] | NumberTokens) -> tuple[NumberTokenTable, NumberNotation]:
    """The number tokens, and those that can be part of a number; the latter are known for a tokenizer alone."""
    if not isinstance(values, NumberTokens):
        return NumberTokenTable.from_values(values, max(values, default=-1) + 1), NumberNotation()
    texts, kinds, has_space = values.token_texts, values.token_kinds, values.has_leading_space
    table = NumberTokenTable.from_values(
        values.values,
        max(values.values) + 1,
        {i: digits_of(texts[i].strip(), value) for i, value in values.values.items()},
        starting_ids=frozenset(np.flatnonzero(has_space).tolist()),
    )
    return table, NumberNotation.from_tokens(texts, np.where(has_space & (kinds == POINT), TEXT, kinds))
