"""Promises of the loss for anybody's loop: what it adds up, what it divides by, what it refuses."""

import math
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import numerate
from numerate import AbacusEmbedding
from numerate.errors import OperationalError, UserError
from numerate.integrations.number_token_loss import NUM_COMPARED_BATCHES, NumberTokenLoss
from simulated_device import DEVICE, simulated_device

DIGITS = {4 + digit: float(digit) for digit in range(10)}
WIDTH = 20


def batch(rows: int = 3, time: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random logits, and labels of which a third is ignored, a half numbers."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, time, WIDTH, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, WIDTH, (rows, time), generator=draw)
    labels[torch.rand(rows, time, generator=draw) < 0.3] = -100
    return logits.requires_grad_(), labels


def was(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    """The sum of NTL-WAS over the digits among the labels, and how many there are, one by one."""
    total, count = 0.0, 0
    for z, label in zip(logits.detach().reshape(-1, logits.shape[-1]).numpy(), labels.flatten().tolist(), strict=True):
        if label in DIGITS:
            odds = np.exp(z[4:14])
            total += float((odds / odds.sum() * abs(np.arange(10) - DIGITS[label])).sum())
            count += 1
    return total, count


def test_the_loss_is_cross_entropy_and_three_tenths_of_the_wasserstein_distance() -> None:
    logits, labels = batch()
    total, count = was(logits, labels)
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten()).item() + 0.3 * total / count
    assert NumberTokenLoss(DIGITS)(logits, labels).item() == pytest.approx(expected, rel=1e-12)
    alone = NumberTokenLoss(DIGITS, weight=1, cross_entropy=False)
    assert alone(logits, labels).item() == pytest.approx(total / count, rel=1e-12)
    every = NumberTokenLoss(DIGITS, weight=1, cross_entropy=False, mean_over="labels")
    assert every(logits, labels).item() == pytest.approx(total / int((labels != -100).sum()), rel=1e-12)


@pytest.mark.parametrize("cut", [slice(None), slice(0, 2)])
def test_shifting_here_is_shifting_by_hand(cut: slice) -> None:
    logits, labels = batch()
    logits, labels = logits[:, cut], labels[:, cut]
    weights = torch.rand(labels.shape)
    quantity = weights > 0.3
    ours = NumberTokenLoss(DIGITS, shift=True)(logits, labels, loss_weights=weights, is_quantity=quantity)
    theirs = NumberTokenLoss(DIGITS)(
        logits[:, :-1], labels[:, 1:], loss_weights=weights[:, 1:], is_quantity=quantity[:, 1:]
    )
    torch.testing.assert_close(ours, theirs)
    (gradient,) = torch.autograd.grad(ours, logits)
    assert gradient[:, -1].abs().max() == 0


def test_a_mean_over_numbers_is_not_made_up_where_their_count_is_unknown() -> None:
    logits, labels = batch()
    loss = NumberTokenLoss(DIGITS)
    items = int((labels != -100).sum())
    torch.testing.assert_close(loss(logits, labels, num_items=torch.tensor(items)), loss(logits, labels))
    with pytest.raises(UserError, match=rf"{items + 9} labels in all, and {items} in this part.*mean_over='labels'"):
        loss(logits, labels, num_items=items + 9)
    assert NumberTokenLoss(DIGITS, mean_over="labels")(logits, labels, num_items=items + 9) > 0


def test_without_a_number_the_number_part_is_zero_and_attached() -> None:
    logits, _ = batch()
    for labels in (torch.full((3, 7), 15), torch.full((3, 7), -100)):
        alone = NumberTokenLoss(DIGITS, cross_entropy=False)(logits, labels)
        assert alone.item() == 0
        (gradient,) = torch.autograd.grad(alone, logits)
        assert gradient.abs().max() == 0
    assert NumberTokenLoss(DIGITS)(logits, labels).item() == 0  # not one label


def test_a_weight_of_nothing_and_a_number_that_is_a_name_cost_nothing() -> None:
    logits, labels = batch()
    loss = NumberTokenLoss(DIGITS, cross_entropy=False)
    first = int((labels.flatten() >= 4).logical_and(labels.flatten() < 14).nonzero()[0])
    quantity = torch.ones_like(labels, dtype=torch.bool)
    quantity.view(-1)[first] = False
    without = labels.clone()
    without.view(-1)[first] = -100
    expected = loss(logits, without)
    torch.testing.assert_close(loss(logits, labels, is_quantity=quantity), expected)
    torch.testing.assert_close(loss(logits, labels, loss_weights=quantity.double()), expected)


def test_logits_may_be_wider_than_the_tokenizer_and_labels_may_stand_there() -> None:
    logits, labels = batch()
    wide = torch.cat([logits, torch.full((3, 7, 44), -math.inf, dtype=torch.float64)], dim=-1)
    torch.testing.assert_close(NumberTokenLoss(DIGITS)(wide, labels), NumberTokenLoss(DIGITS)(logits, labels))
    assert NumberTokenLoss(DIGITS)(torch.zeros(1, 2, 64), torch.tensor([[5, 63]])) > 0


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(2, 5, 13), torch.zeros(2, 5, dtype=torch.long), "13 wide, and token 13 is a number"),
        (torch.zeros(2, 5, 20), torch.full((2, 6), 0), r"logits \(2, 5, 20\) of float32, not \(2, 6\) of int64"),
        (torch.zeros(2, 5, 20), torch.full((2, 5), 20), "20 is outside the vocabulary; 0 to 19"),
        (torch.zeros(2, 5, 20), torch.full((2, 5), -1), "-1 is outside the vocabulary"),
        (torch.zeros(2, 5, 20), torch.zeros(2, 5), r"integer token ids, not \(2, 5\) of float32"),
        (torch.zeros(20), torch.tensor(3), "floating point"),
        (OrderedDict(), torch.tensor(3), r"logits: must be a tensor, such as output\.logits .* not a OrderedDict"),
    ],
)
def test_logits_and_labels_that_are_no_pair_are_refused(logits: Any, labels: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        NumberTokenLoss(DIGITS)(logits, labels)


def test_what_stands_beside_the_labels_has_their_shape() -> None:
    logits, labels = batch()
    loss = NumberTokenLoss(DIGITS)
    with pytest.raises(UserError, match=r"loss_weights: must have the shape of the labels .* not \(7,\)"):
        loss(logits, labels, loss_weights=torch.ones(7))
    with pytest.raises(UserError, match=r"is_quantity: must be boolean"):
        loss(logits, labels, is_quantity=torch.ones(3, 7))
    with pytest.raises(UserError, match=r"num_items: .* one number"):
        loss(logits, labels, num_items=torch.ones(2))


def test_logits_that_are_not_finite_are_named_when_requested() -> None:
    logits, labels = batch()
    logits = logits.detach()
    logits[1, 2, 3] = math.nan
    labels[1, 2] = 5
    assert NumberTokenLoss(DIGITS)(logits, labels).isnan()
    with pytest.raises(OperationalError, match=r"nan for token 3 at position \(1, 2\)"):
        NumberTokenLoss(DIGITS, check_finite=True)(logits, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss_function": "wasserstein"}, "loss_function: .*not 'wasserstein'"),
        ({"weight": -1.0}, "weight: .*not -1.0"),
        ({"weight": "a"}, "weight: must be finite and 0 or more, not 'a'"),
        ({"digit_weight_ratio": "2"}, "digit_weight_ratio: must be finite and above 0, not '2'"),
        ({"digit_weight_ratio": 0}, "digit_weight_ratio: must be finite and above 0, not 0"),
        ({"exclude": "years"}, r"exclude: must be a function from a text to a list of spans .*, not 'years'"),
        ({"mean_over": "tokens"}, "mean_over: .*not 'tokens'"),
        ({"shift": None}, "shift: .*not None"),
        ({"squash_factor": 0.5}, "squash_factor: .*not 0.5"),
        ({"gaussian_sigma": -1.0}, "gaussian_sigma: .*not -1.0"),
        ({"loss_function": "mse", "squash_factor": 2.0}, "squash_factor: must be null for loss_function=mse"),
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NumberTokenLoss(DIGITS, **settings)


COMPILED = """
import torch
from numerate import NumberTokenLoss

loss = NumberTokenLoss({4: 0.0, 5: 1.0, 6: 2.0}, shift=True)
compiled = torch.compile(loss, fullgraph=True, backend="eager")
logits, labels = torch.randn(2, 5, 9, requires_grad=True), torch.tensor([[1, 4, 5, 6, 2], [-100, 5, 5, 0, 4]])
expected, found = (torch.autograd.grad(part(logits, labels), logits)[0] for part in (loss, compiled))
torch.testing.assert_close(found, expected)
"""


@pytest.mark.slow
def test_the_loss_compiles_in_one_graph() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True)  # by itself: what checks types here does not compile


MODULES: dict[str, Callable[[], nn.Module]] = {
    "AbacusEmbedding": lambda: AbacusEmbedding([*range(4, 8), *range(9, 15)], 16, max_offset=3, max_digits=9),
    "NumberTokenLoss": lambda: of_characters(loss_function="number-level"),
}
"""Every `nn.Module` of `import numerate`."""


def computed_by(module: Any) -> Tensor:
    if isinstance(module, AbacusEmbedding):
        return module.eval()(torch.arange(16)[None])
    labels = labels_of("1-25.5x", "3x-4x7x")
    return module(random_logits(labels), labels)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODULES)
def test_the_settings_of_a_module_outlast_the_meta_device_and_a_file_of_weights(name: str, tmp_path: Path) -> None:
    public = {one for one in numerate.__all__ if isinstance(getattr(numerate, one), type)}
    assert set(MODULES) == {one for one in public if issubclass(getattr(numerate, one), nn.Module)}
    module = MODULES[name]()
    expected, weights = computed_by(module), module.state_dict()
    assert weights or not list(module.parameters()), "a loss has nothing to train and nothing to save"
    with torch.device("meta"):
        built_there = MODULES[name]()
    for empty in (built_there, MODULES[name]().to("meta")):
        empty.to_empty(device="cpu").load_state_dict(weights)
        assert torch.equal(computed_by(empty), expected)
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")

    class WithModule(transformers.GPT2LMHeadModel):  # type: ignore[name-defined, misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.module = MODULES[name]()

    saved = WithModule(transformers.GPT2Config(vocab_size=19, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    saved.save_pretrained(tmp_path)
    assert torch.equal(computed_by(WithModule.from_pretrained(tmp_path).module), computed_by(saved.module))


def tokenizer(tokens: str) -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra huggingface")
    found = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({token: i for i, token in enumerate(tokens.split())}, unk_token="?")
    )
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return found


def test_a_tokenizer_makes_the_loss_in_one_line_and_stays_as_it_is() -> None:
    plain = tokenizer("? a 7 8 9 7.5")
    before = plain.to_str()
    with pytest.warns(UserWarning, match="of the digit characters of this sample are in number tokens"):
        loss = numerate.NumberTokenLoss.from_tokenizer(plain, which="numbers")
    assert plain.to_str() == before
    assert loss.table.ids.tolist() == [2, 3, 4, 5]
    assert loss.table.values.tolist() == [7, 8, 9, 7.5]
    chosen = NumberTokenLoss.from_tokenizer(plain, sample=["7 8 9"], loss_function="mse", override={5: None, 1: -3.0})
    assert chosen.table.ids.tolist() == [1, 2, 3, 4]
    assert "4 number tokens, loss_function=mse" in repr(chosen)


def test_a_model_says_whether_its_labels_are_shifted() -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")

    class Wrapped:
        def __init__(self, config: Any) -> None:
            self.config = config

    plain = tokenizer("? 1 2 3 4 5 6 7 8 9 0")
    make = {"tokenizer": plain, "sample": ["1"]}
    assert NumberTokenLoss.from_tokenizer(model=Wrapped(transformers.GPT2Config()), **make).shift
    assert not NumberTokenLoss.from_tokenizer(model=Wrapped(transformers.T5Config()), **make).shift
    assert not NumberTokenLoss.from_tokenizer(**make).shift
    with pytest.raises(UserError, match="shift: must be True for Wrapped, which is decoder-only, not False"):
        NumberTokenLoss.from_tokenizer(model=Wrapped(transformers.GPT2Config()), shift=False, **make)


def test_a_count_from_before_the_shift_is_understood() -> None:
    logits, labels = batch()
    loss = NumberTokenLoss({token: float(token) for token in range(4, 14)}, shift=True)
    assert loss(logits, labels, num_items=int((labels != -100).sum())) == loss(logits, labels)
    for wrong in (-3, math.nan):
        with pytest.raises(UserError, match="num_items: must be a count of 0 or more, not"):
            loss(logits, labels, num_items=wrong)


def trained(loss: NumberTokenLoss, batches: int) -> list[str]:
    """The warnings of so many batches with all tokens equally likely."""
    labels = torch.full((2, 3), 4)  # the digit 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(batches):
            loss(torch.zeros(2, 3, WIDTH, requires_grad=True), labels)
            loss(torch.zeros(2, 3, WIDTH), labels)  # no training: not counted
    return [str(warning.message) for warning in caught]


def test_a_number_term_above_cross_entropy_warns_once_with_both_values_and_the_remedy() -> None:
    large = NumberTokenLoss({id_: 10 * value for id_, value in DIGITS.items()})
    assert trained(large, 9) == []
    warned = trained(large, 20)
    assert warned == [
        "number term 13.5, cross-entropy 3 (means over the first 10 batches): 82 % of the loss; use a lower weight "
        "(now 0.3) or squash_factor=20"
    ]
    assert "squash" not in trained(NumberTokenLoss(DIGITS, loss_function="mse", weight=3), 10)[0]
    assert trained(NumberTokenLoss(DIGITS), 12) == [], "below cross-entropy"


# Whole numbers, places and quantities ---------------------------------------------------------------------------------

CHARACTERS = "0123456789-.,# abcdefghijklmnopqrstuvwxyz"


def of_characters(**settings: Any) -> NumberTokenLoss:
    """The loss for one token a character, as for any tokenizer."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra huggingface")
    model = tokenizers.models.WordLevel({text: i for i, text in enumerate(CHARACTERS)}, unk_token="a")
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    plain.decoder = tokenizers.decoders.Fuse()
    return NumberTokenLoss.from_tokenizer(plain, **settings)


def labels_of(*texts: str) -> Tensor:
    return torch.tensor([[CHARACTERS.index(character) for character in text] for text in texts])


def random_logits(labels: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (*labels.shape, len(CHARACTERS))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def native_terms(spec: Any, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The means of a loss of recipes, over the same logits."""
    from numerate.batch import Batch, Output, Tokens
    from numerate.vocabulary import Vocabulary

    vocabulary = Vocabulary.with_digits(list(CHARACTERS[10:]))
    ids = [vocabulary.token_to_id[character] for character in CHARACTERS]
    wide = torch.full((*labels.shape, vocabulary.size), -math.inf, dtype=torch.float64)
    wide[..., ids] = logits.detach()
    targets, lengths = torch.tensor(ids)[labels], torch.full((len(labels),), labels.shape[1])
    tokens = Tokens(targets, lengths, torch.arange(len(labels)))
    batch = Batch(tokens, targets, targets, targets, {"tokens": labels.numel(), "examples": len(labels)}, 0)
    module = spec.build(vocabulary)
    sums, counts = module(Output(wide, lambda x: x), batch), module.counts(batch)
    return {name: float(sums[name]) / counts[name] for name in sums}


def test_places_and_whole_numbers_are_those_of_recipes() -> None:
    from numerate.losses.number_level import NumberLevel
    from numerate.losses.number_token import NumberToken

    labels = labels_of("so 1,250.5 of -37 x", "7 and 4096 or 0.125")
    logits = random_logits(labels)
    for settings, spec in (
        ({"digit_weight_ratio": 3.0}, NumberToken(digit_weight_ratio=3.0)),
        ({"loss_function": "number-level"}, NumberLevel()),
        ({"loss_function": "number-level", "reweigh": True}, NumberLevel(reweigh=True)),
    ):
        found = of_characters(**settings).loss_terms(logits, labels)
        assert {name: term.item() for name, term in found.items()} == pytest.approx(native_terms(spec, logits, labels))


@pytest.mark.parametrize(
    "settings", [{}, {"mean_over": "labels"}, {"digit_weight_ratio": 3.0}, {"loss_function": "number-level"}], ids=str
)
@pytest.mark.parametrize("shift", [False, True])
def test_a_batch_in_parts_has_the_loss_and_the_gradient_of_the_whole(settings: Any, shift: bool) -> None:
    labels = labels_of("so 1,250.5 of -37 x", "7 and 4096 or 0.125", "no number at all...")
    labels[:, :2] = -100
    logits, weights = random_logits(labels), torch.rand(labels.shape, dtype=torch.float64)
    loss = of_characters(shift=shift, **settings)
    whole = loss(logits, labels, loss_weights=weights)
    items, numbers = loss.counts(labels, loss_weights=weights)
    parts = [
        loss(logits[cut], labels[cut], num_items=items, num_numbers=numbers, loss_weights=weights[cut])
        for cut in (slice(0, 2), slice(2, 3))
    ]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-6, atol=1e-9)
    (expected,), (found,) = (torch.autograd.grad(total, logits, retain_graph=True) for total in (whole, sum(parts)))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_rule_that_one_can_replace_says_which_numbers_are_no_quantities() -> None:
    labels = labels_of("in 1998 it had 30 beds", "they dug up #12 and 7.")

    def names(text: str) -> list[tuple[int, int]]:
        return [(i, i + 2) for i in range(len(text)) if text.startswith("30", i)]

    mask = of_characters(exclude=names).quantity_mask(labels)
    assert "".join(CHARACTERS[i] for i in labels[mask].tolist() if i < 10) == "1998127"
    logits = random_logits(labels)
    for settings in ({}, {"digit_weight_ratio": 2.0}, {"loss_function": "number-level"}):
        ruled, plain = of_characters(exclude=names, **settings), of_characters(**settings)
        mask = ruled.quantity_mask(labels)
        torch.testing.assert_close(ruled(logits, labels), plain(logits, labels, is_quantity=mask))
        assert ruled(logits, labels) != plain(logits, labels)
        assert ruled.counts(labels) == plain.counts(labels, is_quantity=mask)
        everything = torch.ones_like(mask)
        torch.testing.assert_close(ruled(logits, labels, is_quantity=everything), plain(logits, labels))


@pytest.mark.parametrize("spans", [None, [3, 4], [(1, 2, 3)], [("a", "b")], [(-1, -1)], [(5, 2)], [(0, 99)]])
def test_a_rule_that_returns_no_spans_of_the_text_is_refused(spans: Any) -> None:
    with pytest.raises(
        UserError, match=r"exclude: (must return spans \(start, end\)|\(.*\) is no span of a text of 5)"
    ):
        of_characters(exclude=lambda text: spans).quantity_mask(labels_of("in 19"))


def test_settings_that_cannot_be_combined_are_refused() -> None:
    with pytest.raises(UserError, match="not dict_keys; from_tokenizer takes that"):
        NumberTokenLoss(DIGITS.keys())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="exclude: needs the texts of tokens; use NumberTokenLoss"):
        NumberTokenLoss(DIGITS, exclude=lambda text: [])
    for settings in ({"squash_factor": 2.0}, {"gaussian_sigma": 1.0}, {"digit_weight_ratio": 2.0}):
        with pytest.raises(UserError, match="loss_function: number-level compares whole numbers; it has no"):
            NumberTokenLoss(DIGITS, loss_function="number-level", **settings)


@pytest.mark.parametrize(
    "settings", [{}, {"mean_over": "labels"}, {"digit_weight_ratio": 2.0}, {"loss_function": "number-level"}], ids=str
)
@pytest.mark.parametrize("on_device", [False, True])
def test_after_the_first_batches_a_call_with_the_count_of_labels_waits_for_no_device(
    settings: Any, on_device: bool
) -> None:
    loss = of_characters(shift=True, **settings)
    labels = labels_of("so 1,250.5 of -37 x", "7 and 4096 or 0.125")
    with simulated_device() as log:
        logits, device_labels = random_logits(labels).detach().to(DEVICE).requires_grad_(), labels.to(DEVICE)
        count = (labels != -100).sum().to(DEVICE) if on_device else labels.numel()
        for _ in range(NUM_COMPARED_BATCHES):
            loss(logits, device_labels, num_items=count)
        log.clear()
        found = loss(logits, device_labels, num_items=count)
        found.backward()
        assert log.operators
        assert [wait.operator for wait in log.waits] == []
        value = found.item()
    assert value == pytest.approx(of_characters(shift=True, **settings)(random_logits(labels), labels).item())
