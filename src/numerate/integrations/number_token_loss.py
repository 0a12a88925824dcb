"""Cross-entropy and a number token loss for any model and training loop."""

import warnings
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from numerate.errors import OperationalError, UserError
from numerate.integrations.hf_number_tokens import Which, number_tokens
from numerate.kernels.fused_number_loss import cross_entropy_and_number
from numerate.kernels.number_loss import KINDS, Kind, NumberDistance, outweighs
from numerate.kernels.number_table import NumberTable

PROBE = ("The answer is 7, 42, 365, 1024 or 31415.", "12 + 30 = 42, 2.5 x 4 = 10.0, 1998 - 2019 = -21")
"""The default sample for the coverage of a tokenizer."""

FIRST = 10
"""Training batches whose mean terms are compared: a number term above cross-entropy is a warning."""


class NumberTokenLoss(nn.Module):
    """Cross-entropy + `weight` x number token loss, from the logits and labels of any model of tokens.

    Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083: where a label is a number token,
    the probabilities of all number tokens measure the distance from its value. `numerate.kernels.number_loss` has
    the definitions.

    - `values`: what each number token is worth, by id. `from_tokenizer` finds them.
    - `kind`: "was" and "was-cdf" (Wasserstein-1 distance), or "mse", "mae", "huber" of the expected value.
    - `weight`: the factor of the number part; 0.3 in the paper.
    - `cross_entropy=False`: the number part alone (x `weight`), to be added to a cross-entropy that you have.
    - `over`: the number part is a mean over the "numbers" among the labels, as published, or over all "labels".
      The cross-entropy is a mean over all labels that are not ignored.
    - `shift`: whether the logits at a position predict the *next* label. A decoder-only model of Hugging Face
      needs True, since its labels are its inputs; an encoder-decoder needs False, and so do labels that are shifted
      already, as for `torch.nn.functional.cross_entropy`.
    - `reweigh`, `gaussian_sigma`, `squash`: as of `numerate.kernels.number_loss.Measure`.
    - `check_finite`: NaN or infinity in the loss is a `OperationalError` that names the position; costs a
      synchronisation with the device.

    >>> loss = NumberTokenLoss.from_tokenizer(tokenizer, shift=True)
    >>> loss(model(input_ids).logits, labels).backward()

    It warns once where, in the mean over the first 10 batches with a gradient, the number part is above the
    cross-entropy; the device is waited for at the tenth of them alone, and a compiled call does not look.

    It has no parameters or checkpointed state, and follows the logits to their device. float16, bfloat16 and
    float32 logits are computed with in float32, float64 in float64. Raises `UserError` for settings without sense.
    """

    def __init__(
        self,
        values: Mapping[int, float],
        *,
        kind: Kind = "was",
        weight: float = 0.3,
        cross_entropy: bool = True,
        over: Literal["numbers", "labels"] = "numbers",
        shift: bool = False,
        reweigh: bool = False,
        gaussian_sigma: float | None = None,
        squash: float | None = None,
        ignore_index: int = -100,
        check_finite: bool = False,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise UserError(f"kind: {kind!r} is no number token loss; there are: {', '.join(KINDS)}")
        NumberDistance(kind, gaussian_sigma, reweigh, squash)  # refuses what cannot be
        if not 0 <= weight < float("inf"):
            raise UserError(f"weight: {weight} is no factor; 0.3 is the paper's, 0 leaves cross-entropy alone")
        if over not in ("numbers", "labels"):
            raise UserError(f"over: {over!r} is neither 'numbers' nor 'labels'")
        if not isinstance(shift, bool):
            raise UserError(f"shift: {shift!r} is neither True (decoder-only) nor False (encoder-decoder)")
        self.table = NumberTable.of(values, width=max(values, default=-1) + 1)
        self.kind: Kind = kind
        self.gaussian_sigma, self.reweigh, self.squash = gaussian_sigma, reweigh, squash
        self.weight, self.cross_entropy, self.over, self.shift = weight, cross_entropy, over, shift
        self.ignore_index, self.check_finite = ignore_index, check_finite
        self._first: list[Tensor] | None = []
        """The two terms of the first batches, until they have been compared."""

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: Any,
        *,
        which: Which = "digits",
        override: Mapping[int, float | None] | None = None,
        sample: Iterable[str] | None = None,
        model: Any = None,
        **settings: Any,
    ) -> "NumberTokenLoss":
        """The loss for the number tokens of a tokenizer, which is not changed; `settings` as of the class.

        `which` and `override` are those of `numerate.number_tokens`. Where less than 95 % of the digit characters of
        `sample` (texts of yours; without them some of ours) stand in number tokens, it warns. With `model`, a model of
        transformers, `shift` is what that model needs: its configuration tells whether it has an encoder.

        >>> NumberTokenLoss.from_tokenizer(tokenizer, kind="mse", weight=2.0, model=model).shift
        True
        """
        found = number_tokens(tokenizer, which=which, override=override)
        with suppress(UserError) if sample is None else nullcontext():  # a tokenizer may fail on our sample
            found.coverage(PROBE if sample is None else sample)
        if model is not None:
            needed = not model.config.is_encoder_decoder
            if settings.setdefault("shift", needed) != needed:
                raise UserError(
                    f"shift: {settings['shift']} is wrong for {type(model).__name__}, which is "
                    f"{'decoder-only' if needed else 'an encoder-decoder'}; {needed} is right"
                )
        return cls(found.values, **settings)

    def forward(
        self,
        logits: Float[Tensor, "*positions vocabulary"],
        labels: Int[Tensor, "*positions"],
        *,
        num_items: int | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss, a scalar in nats (and `weight` x the units of the values).

        Where a batch is cut into parts (gradient accumulation, several processes), `num_items` is how many labels and
        `num_numbers` how many number labels the whole of it has (`counts`): the parts' losses then add up to the loss
        of the whole. `loss_weights` are weights of number labels, `quantity` is False at numbers that name
        something instead of counting it; both stand where the labels stand. Without a number label the number part is
        0, and still attached.

        Raises `UserError` for logits and labels that do not belong together.
        """
        terms = self.terms(
            logits, labels, num_items=num_items, num_numbers=num_numbers, loss_weights=loss_weights, quantity=quantity
        )
        number = self.weight * terms["number"]
        return terms["cross_entropy"] + number if self.cross_entropy else number

    def terms(
        self,
        logits: Float[Tensor, "*positions vocabulary"],
        labels: Int[Tensor, "*positions"],
        *,
        num_items: int | Tensor | None = None,
        num_numbers: int | float | Tensor | None = None,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> dict[str, Float[Tensor, ""]]:
        """The two means apart, before `weight`: `cross_entropy` and `number`. Arguments as of a call."""
        self._check(logits, labels, loss_weights, quantity)
        if self.table.ids.device != logits.device:
            self.to(logits.device)
        given = labels
        labels = self._shifted(labels.to(logits.device).long(), self.ignore_index)
        sums = cross_entropy_and_number(
            logits,
            labels,
            self.table,
            kind=self.kind,
            gaussian_sigma=self.gaussian_sigma,
            reweigh=self.reweigh,
            squash=self.squash,
            loss_weights=None if loss_weights is None else self._shifted(loss_weights, 0),
            quantity=None if quantity is None else self._shifted(quantity, False),
            ignore_index=self.ignore_index,
        )
        items = sums.labels if num_items is None else _one(num_items, "num_items")
        if self.shift and num_items is not None:
            # A trainer that counts before the shift has counted the first label of each row too.
            before = (given != self.ignore_index).sum().to(items.device)
            items = torch.where(items == before, sums.labels.to(items.device, items.dtype), items)
        if self.over == "labels":
            numbers = items
        elif num_numbers is not None:
            numbers = _one(num_numbers, "num_numbers")
        else:
            if num_items is not None and self.weight and int(items) != int(sums.labels):
                raise UserError(
                    f"num_items: {int(items)} labels in all, and {int(sums.labels)} in this part; the mean over "
                    "numbers needs num_numbers= of all too (`NumberTokenLoss.counts`; `number_loss_trainer` of "
                    "numerate.integrations.hf_trainer counts them), or over='labels'"
                )
            numbers = sums.numbers
        found = {"cross_entropy": _mean(sums.cross_entropy, items), "number": _mean(sums.number, numbers)}
        if self.check_finite and not all(bool(term.isfinite()) for term in found.values()):
            self._blame(logits)
        if not torch.compiler.is_compiling() and self._first is not None and logits.requires_grad:
            own = sums.labels if self.over == "labels" else sums.numbers
            number = self.weight * _mean(sums.number.detach(), own)
            self._compare(self._first, torch.stack([number, _mean(sums.cross_entropy.detach(), sums.labels)]))
        return found

    def _compare(self, first: list[Tensor], terms: Tensor) -> None:
        """Keeps the two terms of a batch, and after the last one warns where the number part is larger."""
        first.append(terms)
        if len(first) < FIRST:
            return
        number, cross_entropy = torch.stack(first).mean(0).tolist()
        self._first = None
        squash = " or squash=20" * (self.kind == "was" and self.squash is None)
        remedy = f"a lower weight (now {self.weight:g}){squash}"
        for text in outweighs(number, cross_entropy, f"the first {FIRST} batches", remedy):
            warnings.warn(text, stacklevel=4)

    def counts(
        self,
        labels: Int[Tensor, "*positions"],
        *,
        loss_weights: Float[Tensor, "*positions"] | None = None,
        quantity: Bool[Tensor, "*positions"] | None = None,
    ) -> tuple[Int[Tensor, ""], Float[Tensor, ""]]:
        """How many labels are not ignored, and how many of them are number tokens (with `loss_weights`, their sum)."""
        device = self.table.ids.device
        shifted = self._shifted(labels.to(device), self.ignore_index)
        number = (self.table.of_labels(shifted) >= 0) & (shifted != self.ignore_index)
        if quantity is not None:
            number &= self._shifted(quantity.to(device), False)
        weights = number if loss_weights is None else torch.where(number, self._shifted(loss_weights.to(device), 0), 0)
        return (shifted != self.ignore_index).sum(), weights.sum().float()

    def extra_repr(self) -> str:
        return (
            f"{self.table.count} number tokens, kind={self.kind}, weight={self.weight}, over={self.over}, "
            f"shift={self.shift}"
        )

    def _shifted(self, positions: Tensor, filling: int | bool) -> Tensor:
        """Shifts left by one position; the last one gets `filling`. The logits are not copied."""
        if not self.shift:
            return positions
        return torch.cat([positions[..., 1:], torch.full_like(positions[..., :1], filling)], dim=-1)

    def _check(self, logits: Tensor, labels: Tensor, loss_weights: Tensor | None, quantity: Tensor | None) -> None:
        if not logits.is_floating_point() or logits.ndim < 2:
            raise UserError(
                f"logits: {_shape(logits)}; floating point [rows, time, vocabulary] is right, as a model gives them"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise UserError(f"labels: {_shape(labels)}; whole numbers, the ids of tokens, are right")
        if logits.shape[:-1] != labels.shape:
            hint = " (shift=True shifts them here: give both whole)" if self.shift else ""
            raise UserError(
                f"labels: {_shape(labels)} for logits {_shape(logits)}; one label for each place is right{hint}"
            )
        for name, given in (("loss_weights", loss_weights), ("quantity", quantity)):
            if given is not None and given.shape != labels.shape:
                raise UserError(f"{name}: {_shape(given)} for labels {_shape(labels)}; one for each label is right")
        if quantity is not None and quantity.dtype != torch.bool:
            raise UserError(f"quantity: {_shape(quantity)}; true or false for each label is right")
        if logits.shape[-1] <= self.table.largest:
            raise UserError(
                f"logits: {logits.shape[-1]} wide, and token {self.table.largest} is a number; logits as wide as the "
                "tokenizer's vocabulary or wider are right: are model and tokenizer a pair?"
            )

    def _blame(self, logits: Tensor) -> None:
        wrong = (~logits.isfinite()).nonzero()
        if len(wrong):
            *place, i = wrong[0].tolist()
            raise OperationalError(
                f"logits: {logits[tuple(wrong[0])].item()} for token {i} at place {tuple(place)}, and "
                f"{len(wrong) - 1} more that are not finite"
            )
        raise OperationalError("the loss is not finite, and the logits are: look at loss_weights")


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _one(count: int | float | Tensor, name: str) -> Tensor:
    found = torch.as_tensor(count)
    if found.numel() != 1:
        raise UserError(
            f"{name}: {_shape(found)}; one number is right (torch.nn.DataParallel gives several: use processes)"
        )
    if not found.is_cuda and not float(found) >= 0:
        raise UserError(f"{name}: {float(found):g}; a count, 0 or more, is right")
    return found.reshape(())


def _mean(total: Tensor, count: Tensor) -> Tensor:
    divisor = count.to(total.device, total.dtype)
    return total / torch.where(divisor > 0, divisor, 1)
