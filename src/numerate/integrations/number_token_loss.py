"""Cross-entropy and a number token loss for any model and training loop."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.errors import OperationalError, UserError, check_choice, raise_first
from numerate.integrations.hf_number_tokens import NumberTokenSelection, number_tokens
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss
from numerate.kernels.number_loss import LossFunction, NumberDistance, warn_number_term_dominates
from numerate.kernels.number_table import NumberTokenTable

DEFAULT_SAMPLE = ("The answer is 7, 42, 365, 1024 or 31415.", "12 + 30 = 42, 2.5 x 4 = 10.0, 1998 - 2019 = -21")
"""The default sample for the coverage of a tokenizer."""

NUM_COMPARED_BATCHES = 10
"""Number of training batches whose mean terms are compared: a number term above cross-entropy gives a warning."""


class NumberTokenLoss(nn.Module):
    """Cross-entropy + `weight` x number token loss, from the logits and labels of any model of tokens.

    Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083: where a label is a number token,
    the probabilities of all number tokens measure the distance from its value. `numerate.kernels.number_loss` has
    the definitions.

    - `values`: the value of each number token, by id. `from_tokenizer` determines them.
    - `loss_function`: "was" and "was-cdf" (Wasserstein-1 distance), or "mse", "mae", "huber" of the expected value.
    - `weight`: the factor of the number part; 0.3 in the paper.
    - `cross_entropy=False`: only the number part (x `weight`), to be added to your own cross-entropy.
    - `mean_over`: the number part is a mean over the "numbers" among the labels, as published, or over all "labels".
      The cross-entropy is a mean over all labels that are not ignored.
    - `shift`: whether the logits at a position predict the *next* label. A decoder-only model of Hugging Face
      needs True, since its labels are its inputs; an encoder-decoder needs False, and so do labels that are shifted
      already, as for `torch.nn.functional.cross_entropy`.
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
        values: Mapping[int, float],
        *,
        loss_function: LossFunction = "was",
        weight: float = 0.3,
        cross_entropy: bool = True,
        mean_over: Literal["numbers", "labels"] = "numbers",
        shift: bool = False,
        reweigh: bool = False,
        gaussian_sigma: float | None = None,
        squash_factor: float | None = None,
        ignore_index: int = -100,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        NumberDistance(loss_function, gaussian_sigma, reweigh, squash_factor)  # raises for invalid settings
        if not 0 <= weight < float("inf"):
            raise UserError(
                f"weight: must be finite and 0 or more, not {weight}; 0.3 in the paper, 0 is cross-entropy alone"
            )
        check_choice("mean_over", mean_over, ("numbers", "labels"))
        if not isinstance(shift, bool):
            raise UserError(f"shift: must be True (decoder-only) or False (encoder-decoder), not {shift!r}")
        self.table = NumberTokenTable.from_values(values, vocabulary_size=max(values, default=-1) + 1)
        self.loss_function: LossFunction = loss_function
        self.gaussian_sigma, self.reweigh, self.squash_factor = gaussian_sigma, reweigh, squash_factor
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
        return cls(tokens.values, **settings)

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
        of the whole. `loss_weights` are weights of number labels, `is_quantity` is False at numbers that name
        something instead of counting it; both stand where the labels stand. Without a number label the number part is
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
        raise_first(self._input_problems(logits, labels, loss_weights, is_quantity))
        if self.table.ids.device != logits.device:
            self.to(logits.device)
        unshifted_labels = labels
        labels = self._shift_left(labels.to(logits.device).long(), self.ignore_index)
        sums = cross_entropy_and_number_loss(
            logits,
            labels,
            self.table,
            loss_function=self.loss_function,
            gaussian_sigma=self.gaussian_sigma,
            reweigh=self.reweigh,
            squash_factor=self.squash_factor,
            loss_weights=None if loss_weights is None else self._shift_left(loss_weights, 0),
            quantity_mask=None if is_quantity is None else self._shift_left(is_quantity, False),
            ignore_index=self.ignore_index,
        )
        label_count = sums.num_labels if num_items is None else _scalar_count(num_items, "num_items")
        if self.shift and num_items is not None:
            # A trainer that counts before the shift has counted the first label of each row too.
            unshifted_count = (unshifted_labels != self.ignore_index).sum().to(label_count.device)
            label_count = torch.where(
                label_count == unshifted_count, sums.num_labels.to(label_count.device, label_count.dtype), label_count
            )
        if self.mean_over == "labels":
            number_count = label_count
        elif num_numbers is not None:
            number_count = _scalar_count(num_numbers, "num_numbers")
        else:
            if num_items is not None and self.weight and int(label_count) != int(sums.num_labels):
                raise UserError(
                    f"num_items: {int(label_count)} labels in all, and {int(sums.num_labels)} in this part; the mean "
                    "over numbers needs num_numbers= of all too (`NumberTokenLoss.counts`; `number_loss_trainer` of "
                    "numerate.integrations.hf_trainer counts them), or mean_over='labels'"
                )
            number_count = sums.total_number_weight
        means = {
            "cross_entropy": _mean(sums.cross_entropy, label_count),
            "number": _mean(sums.number_loss, number_count),
        }
        if self.check_finite and not all(bool(term.isfinite()) for term in means.values()):
            self._raise_non_finite(logits)
        if not torch.compiler.is_compiling() and self._first_terms is not None and logits.requires_grad:
            batch_count = sums.num_labels if self.mean_over == "labels" else sums.total_number_weight
            number = self.weight * _mean(sums.number_loss.detach(), batch_count)
            self._warn_if_outweighed(
                self._first_terms, torch.stack([number, _mean(sums.cross_entropy.detach(), sums.num_labels)])
            )
        return means

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
        """How many labels are not ignored, and how many of them are number tokens (with `loss_weights`, their sum)."""
        device = self.table.ids.device
        shifted = self._shift_left(labels.to(device), self.ignore_index)
        is_number = (self.table.number_indices(shifted) >= 0) & (shifted != self.ignore_index)
        if is_quantity is not None:
            is_number &= self._shift_left(is_quantity.to(device), False)
        weights = (
            is_number
            if loss_weights is None
            else torch.where(is_number, self._shift_left(loss_weights.to(device), 0), 0)
        )
        return (shifted != self.ignore_index).sum(), weights.sum().float()

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

    def _input_problems(
        self, logits: Tensor, labels: Tensor, loss_weights: Tensor | None, is_quantity: Tensor | None
    ) -> Iterator[str]:
        described_labels = _describe_tensor(labels)
        if not logits.is_floating_point() or logits.ndim < 2:
            yield f"logits: must be floating point [rows, time, vocabulary], not {_describe_tensor(logits)}"
        if labels.is_floating_point() or labels.dtype == torch.bool:
            yield f"labels: must be integer token ids, not {described_labels}"
        if logits.shape[:-1] != labels.shape:
            hint = " (shift=True shifts them here: pass both unshifted)" if self.shift else ""
            yield (
                f"labels: must have one label per position of the logits {_describe_tensor(logits)}, not "
                f"{described_labels}{hint}"
            )
        for name, tensor in (("loss_weights", loss_weights), ("is_quantity", is_quantity)):
            if tensor is not None and tensor.shape != labels.shape:
                yield f"{name}: must have the shape of the labels {described_labels}, not {_describe_tensor(tensor)}"
        if is_quantity is not None and is_quantity.dtype != torch.bool:
            yield f"is_quantity: must be boolean, one per label, not {_describe_tensor(is_quantity)}"
        if logits.shape[-1] <= self.table.max_id:
            yield (
                f"logits: {logits.shape[-1]} wide, and token {self.table.max_id} is a number; logits as wide as the "
                "tokenizer's vocabulary or wider are required; do model and tokenizer belong together?"
            )

    def _raise_non_finite(self, logits: Tensor) -> None:
        non_finite = (~logits.isfinite()).nonzero()
        if len(non_finite):
            *position, token_id = non_finite[0].tolist()
            raise OperationalError(
                f"logits: {logits[tuple(non_finite[0])].item()} for token {token_id} at position {tuple(position)}, "
                f"and {len(non_finite) - 1} more that are not finite"
            )
        raise OperationalError("the loss is not finite although the logits are; check loss_weights")


def _describe_tensor(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _scalar_count(count: int | float | Tensor, name: str) -> Tensor:
    tensor = torch.as_tensor(count)
    if tensor.numel() != 1:
        raise UserError(
            f"{name}: {_describe_tensor(tensor)}; must be one number (torch.nn.DataParallel gives several: use "
            "DistributedDataParallel)"
        )
    if not tensor.is_cuda and not float(tensor) >= 0:
        raise UserError(f"{name}: must be a count of 0 or more, not {float(tensor):g}")
    return tensor.reshape(())


def _mean(total: Tensor, count: Tensor) -> Tensor:
    divisor = count.to(total.device, total.dtype)
    return total / torch.where(divisor > 0, divisor, 1)
