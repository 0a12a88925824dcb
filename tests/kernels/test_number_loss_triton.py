"""The Triton kernels of cross-entropy and number losses give what the plain form gives in float64.

They run with `triton_stand_in`; with TRITON_INTERPRET=1 where triton is installed, in Triton's own interpreter.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode

from layers import assert_same, drawn
from numerate.batch import IGNORE_INDEX
from numerate.kernels import (
    chunked_head,
    fused_head_cross_entropy,
    fused_head_number_loss,
    fused_number_loss,
    number_loss,
    number_table,
)
from numerate.kernels.fused_head_cross_entropy import linear_cross_entropy
from numerate.kernels.fused_head_number_loss import linear_cross_entropy_and_number_loss
from numerate.kernels.fused_number_loss import cross_entropy_and_number_loss, cross_entropy_and_token_logits
from numerate.kernels.number_loss import LOSS_FUNCTIONS, NumberDistance, reference_loss_sums
from numerate.kernels.number_table import NumberTokenTable, is_traced
from triton_stand_in import imported

KERNELS = "numerate.kernels.number_loss_triton"
IN_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
# The interpreter computes with numpy, which warns of NaN and of the logarithm of 0.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning")] * IN_INTERPRETER

VOCABULARY, WIDTH = 45, 5
TABLE = NumberTokenTable.from_values({3: 0.0, 5: 1.0, 6: 2.5, 7: -4.0, 20: 10.0, 44: 10.0}, VOCABULARY)
LABELS = torch.tensor([[IGNORE_INDEX, 5, 0, 44, 16, 15, IGNORE_INDEX], [20, 7, 1, 44, 3, 43, 31]])
SETTINGS: list[dict[str, Any]] = [
    {"loss_function": loss_function, "gaussian_sigma": sigma, "reweigh": reweigh}
    for loss_function, sigma, reweigh in itertools.product(LOSS_FUNCTIONS, (None, 1.3), (False, True))
]
SETTINGS += [
    {"squash_factor": 3.0, "reweigh": True},
    {"loss_function": "was-cdf", "unit_spacing": True, "reweigh": False},
]

Sums = Callable[..., tuple[Tensor, ...]]


@pytest.fixture(scope="module")
def imported_kernels() -> Iterator[Any]:
    """Imported once, since an operator of torch has one definition."""
    if IN_INTERPRETER:
        yield import_module(KERNELS)
        return
    with pytest.MonkeyPatch.context() as patch, imported(KERNELS, patch) as module:
        patch.undo()  # torch may look for triton, too
        yield module


@pytest.fixture
def kernels(imported_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the kernels, with blocks of 16 columns and chunks of 4 rows; the rest is what a device does, where
    nothing looks at the values of a tensor."""
    for module in (fused_number_loss, chunked_head, fused_head_cross_entropy, fused_head_number_loss):
        monkeypatch.setattr(
            module, "should_use_kernel", lambda z: z.element_size() < 8 and not is_traced(z), raising=False
        )
        monkeypatch.setattr(module, "can_read_values", lambda tensor: False, raising=False)
    monkeypatch.setattr(chunked_head, "CHUNK_LOGITS", {"cpu": 4 * VOCABULARY})
    monkeypatch.setattr(imported_kernels, "MAX_BLOCK", 16)
    return imported_kernels


def from_logits(**settings: Any) -> tuple[Sums, Sums, list[Tensor]]:
    """A fused form, the plain one, and what they are given besides labels, in float64."""
    more = {name: settings.pop(name) for name in ("loss_weights", "quantity_mask") if name in settings}
    return (
        lambda z, y: cross_entropy_and_number_loss(z, y, TABLE, **settings, **more)[:2],
        lambda z, y: reference_loss_sums(z, y, TABLE, NumberDistance(**settings), **more)[:2],
        [2 * drawn(2, 7, VOCABULARY)],
    )


def from_head(**settings: Any) -> tuple[Sums, Sums, list[Tensor]]:
    _, plain, _ = from_logits(**settings)
    return (
        lambda h, w, b, y: linear_cross_entropy_and_number_loss(h, w, y, TABLE, bias=b, **settings)[:2],
        lambda h, w, b, y: plain(linear(h, w, b), y),
        [drawn(2, 7, WIDTH, seed=5), drawn(VOCABULARY, WIDTH, seed=6), drawn(VOCABULARY, seed=7)],
    )


def entropy(weighted: bool = False) -> tuple[Sums, Sums, list[Tensor]]:
    weights = drawn(2, 7, seed=8).sigmoid() if weighted else torch.ones(2, 7, dtype=torch.float64)

    def plain(h: Tensor, w: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        losses = cross_entropy(linear(h, w, b).flatten(0, 1), y.flatten(), reduction="none")
        return ((losses * weights.flatten()).sum(),)

    return (
        lambda h, w, b, y: (linear_cross_entropy(h, w, y, bias=b, weights=weights if weighted else None),),
        plain,
        from_head()[2],
    )


def columns() -> tuple[Sums, Sums, list[Tensor]]:
    return (
        lambda z, y: cross_entropy_and_token_logits(z, y, TABLE.ids),
        lambda z, y: (
            cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum"),
            z[..., TABLE.ids],
            z.logsumexp(-1),
        ),
        from_logits()[2],
    )


def assert_is_plain(
    form: tuple[Sums, Sums, list[Tensor]], labels: Tensor = LABELS, dtype: torch.dtype = torch.float32
) -> None:
    """Sums, and the gradients of each and of all together, are the plain ones of the same numbers in float64."""
    fused, plain, inputs = form
    given = [part.to(dtype).requires_grad_() for part in inputs]
    exact = [part.detach().double().requires_grad_() for part in given]
    found, expected = fused(*given, labels), plain(*exact, labels)
    assert {part.dtype for part in found} == {torch.float32}
    assert_same([part.double() for part in found], expected, atol=1e-4, rtol=1e-5)
    factors = [drawn(*part.shape, seed=number) for number, part in enumerate(expected)]
    for wanted in {(1, *(0,) * (len(expected) - 1)), (0,) * (len(expected) - 1) + (1,), (1,) * len(expected)}:
        totals = (
            sum(use * (factor.to(part) * part).sum() for use, factor, part in zip(wanted, factors, parts, strict=True))
            for parts in (found, expected)
        )
        ours, theirs = (
            torch.autograd.grad(total, leaves, retain_graph=True)  # type: ignore[arg-type]
            for total, leaves in zip(totals, (given, exact), strict=True)
        )
        assert {gradient.dtype for gradient in ours} == {dtype}
        tolerance = 2 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-4
        assert_same([gradient.double() for gradient in ours], theirs, atol=1e-5, rtol=tolerance)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_number_loss_and_its_gradients_are_the_plain_ones(kernels: Any, settings: dict[str, Any]) -> None:
    quantity = torch.ones(2, 7, dtype=torch.bool)
    quantity[1, 1] = False
    weights = {"loss_weights": drawn(2, 7, seed=4).sigmoid(), "quantity_mask": quantity}
    assert_is_plain(from_head(**settings) if settings["reweigh"] else from_logits(**settings))
    assert_is_plain(from_logits(**settings, **weights) if settings["reweigh"] else from_head(**settings, **weights))


@pytest.mark.parametrize("form", [entropy, lambda: entropy(weighted=True), columns])
def test_cross_entropy_alone_and_with_columns_is_the_plain_one(kernels: Any, form: Any) -> None:
    assert_is_plain(form())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32_and_its_gradient_rounded_once(kernels: Any, dtype: torch.dtype) -> None:
    assert_is_plain(from_logits(), dtype=dtype)
    assert_is_plain(from_logits(loss_function="was-cdf", gaussian_sigma=1.0, reweigh=True), dtype=dtype)


@pytest.mark.parametrize("form", [from_head, entropy])
def test_a_head_in_half_precision_differs_by_its_products_alone(kernels: Any, form: Any) -> None:
    fused, plain, inputs = form()
    given = [part.bfloat16().requires_grad_() for part in inputs]
    exact = [part.detach().double().requires_grad_() for part in given]
    found, expected = sum(fused(*given, LABELS)), sum(plain(*exact, LABELS))
    assert_same(found.double(), expected, rtol=1e-2)
    for one, other in zip(torch.autograd.grad(found, given), torch.autograd.grad(expected, exact), strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-2


@pytest.mark.parametrize("vocabulary", [45, 64, 16, 1000])
def test_one_row_and_the_first_and_the_last_token_of_any_vocabulary(kernels: Any, vocabulary: int) -> None:
    table = NumberTokenTable.from_values({0: 1.0, 3: 4.0, vocabulary - 1: 2.0}, vocabulary)
    for label in (0, 1, vocabulary - 1):
        logits, labels = 2 * drawn(1, vocabulary), torch.tensor([label])
        assert_is_plain(
            (
                lambda z, y: cross_entropy_and_number_loss(z, y, table)[:2],
                lambda z, y: reference_loss_sums(z, y, table, NumberDistance())[:2],
                [logits],
            ),
            labels,
        )


@pytest.mark.parametrize("masked", [slice(0, 32), slice(16, 32), slice(0, 44), slice(0, 20)])
def test_masked_logits_have_no_probability_whole_blocks_of_them_included(kernels: Any, masked: slice) -> None:
    table, logits = NumberTokenTable.from_values({44: 3.0}, VOCABULARY), 2 * drawn(2, 7, VOCABULARY)
    logits[..., masked] = -torch.inf
    assert_is_plain(
        (
            lambda z, y: cross_entropy_and_number_loss(z, y, table, reweigh=True)[:2],
            lambda z, y: reference_loss_sums(z, y, table, NumberDistance(reweigh=True))[:2],
            [logits],
        ),
        torch.full((2, 7), 44),
    )


@pytest.mark.parametrize("form", [from_logits, from_head, entropy])
def test_rows_without_a_label_may_hold_anything_and_a_nan_at_a_label_is_not_hidden(kernels: Any, form: Any) -> None:
    fused, _, inputs = form(reweigh=True) if form is not entropy else form()
    given = [part.float().requires_grad_() for part in inputs]
    with torch.no_grad():
        given[0][0, 0], given[0][0, 6] = torch.nan, -torch.inf
    sums = fused(*given, LABELS)
    gradients = torch.autograd.grad(sum(sums), given)
    assert all(bool(part.isfinite().all()) for part in (*sums, *gradients))
    assert not gradients[0][0, [0, 6]].any()
    with torch.no_grad():
        given[0][1, 0, 2] = torch.nan
    assert fused(*given, LABELS)[0].isnan()


def test_without_any_label_everything_is_zero(kernels: Any) -> None:
    for fused, _, inputs in (from_logits(reweigh=True), from_head(reweigh=True), entropy()):
        given = [part.float().requires_grad_() for part in inputs]
        sums = fused(*given, torch.full((2, 7), IGNORE_INDEX))
        assert not any(torch.autograd.grad(sum(sums), given)[0].flatten().tolist() + [one.item() for one in sums])


def test_logits_with_more_between_their_rows_are_read_where_they_are(kernels: Any) -> None:
    fused, plain, _ = from_logits()
    cut, turned = (lambda z: z[..., 3 : 3 + VOCABULARY]), (lambda z: z.movedim(0, -1))
    for view, wide in ((cut, drawn(2, 7, VOCABULARY + 8)), (turned, drawn(VOCABULARY, 2, 7))):
        assert_is_plain((lambda z, y, v=view: fused(v(z), y), lambda z, y, v=view: plain(v(z), y), [wide]))


def test_without_gradients_nothing_as_wide_as_the_vocabulary_is_made(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, plain, (logits,) = from_logits()
    monkeypatch.delattr(kernels, "scaled_softmax")
    assert_same([one.double() for one in fused(logits.float(), LABELS)], plain(logits, LABELS), rtol=1e-5)


# The gradient in place ------------------------------------------------------------------------------------------------


def leaf_and_logits(change: Callable[[Tensor], Tensor] = lambda z: z * 2) -> tuple[Tensor, Tensor]:
    leaf = drawn(2, 7, VOCABULARY).float().requires_grad_()
    return leaf, change(leaf)


def test_the_gradient_is_written_over_the_logits_only_where_the_caller_allows_it(kernels: Any) -> None:
    found = []
    for allowed in (False, True):
        leaf, logits = leaf_and_logits()
        before = logits.detach().clone()
        sums = cross_entropy_and_number_loss(logits, LABELS, TABLE, reweigh=True, overwrite_logits=allowed)
        (sums.cross_entropy + sums.number_loss).backward()
        assert torch.equal(logits, before) == (not allowed)
        found.append(leaf.grad)
        if allowed:
            assert leaf.grad is not None
            assert torch.equal(logits * 2, leaf.grad)
    assert torch.equal(*found)  # type: ignore[arg-type]


def test_overwritten_logits_that_are_needed_again_are_an_error_and_no_wrong_gradient(kernels: Any) -> None:
    _, saved = leaf_and_logits(torch.tanh)  # its backward reads its output
    sums = cross_entropy_and_number_loss(saved, LABELS, TABLE, overwrite_logits=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sums.cross_entropy.backward()
    _, logits = leaf_and_logits()
    sums = cross_entropy_and_number_loss(logits, LABELS, TABLE, overwrite_logits=True)
    sums.cross_entropy.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sums.cross_entropy.backward()
    _, logits = leaf_and_logits()
    sums = cross_entropy_and_number_loss(logits, LABELS, TABLE)
    for _ in range(2):
        sums.cross_entropy.backward(retain_graph=True)


# Where they are used --------------------------------------------------------------------------------------------------


def test_they_are_used_on_a_device_with_triton_for_what_they_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    choose = fused_number_loss.should_use_kernel
    monkeypatch.setattr(fused_number_loss, "has_triton", lambda: True)
    assert not choose(torch.zeros(2, 3))
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            assert choose(torch.zeros(2, 3, dtype=dtype, device="cuda")) == (dtype.itemsize < 8)
        stacked: list[bool] = []
        torch.vmap(lambda z: stacked.append(choose(z)) or z)(torch.zeros(2, 3, device="cuda"))
        assert stacked == [False]
        monkeypatch.setattr(fused_number_loss, "has_triton", lambda: False)
        assert not choose(torch.zeros(2, 3, device="cuda"))


def test_fake_tensors_pass_through_the_operators_which_tell_autograd_what_they_overwrite(imported_kernels: Any) -> None:
    with FakeTensorMode():
        logits, mask = torch.empty(3, 9, device="cuda").bfloat16(), torch.empty(3, device="cuda").bool()
        lse = imported_kernels.logsumexp(logits, mask)
        assert (lse.shape, lse.dtype, lse.device.type) == ((3,), torch.float32, "cuda")
        before = logits._version
        assert imported_kernels.scaled_softmax(logits, lse, lse, overwrite_logits=True).shape == (3, 9)
        assert logits._version > before


class WideOperators(TorchDispatchMode):
    """Notes the operators that are given all logits, and refuses those that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal"}, name
        assert name != "index" or all(index is None or index.dtype != torch.bool for index in args[1])
        if any(isinstance(one, Tensor) and sorted(one.shape) == [LABELS.numel(), VOCABULARY] for one in args):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", [from_logits, from_head, entropy])
def test_a_device_is_not_waited_for_and_passes_over_the_logits_are_few(
    kernels: Any, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (number_loss, number_table):  # inputs are checked on a CPU alone
        monkeypatch.setattr(module, "is_traced", lambda tensor: True)
    monkeypatch.setattr(chunked_head, "CHUNK_LOGITS", {})
    fused, _, inputs = form()
    given = [part.bfloat16().requires_grad_() for part in inputs]
    with WideOperators() as operators:
        torch.autograd.grad(sum(fused(*given, LABELS)), given)
    free = {
        "gather",
        "index",
        "index_put_",
        "scatter_",
        "detach",
        "empty_like",
        "view",
        "slice",
        "new_empty",
        "t",
        "permute",
    }
    passes = [name for name in operators.found if name not in free]
    assert passes == ["logsumexp", "scaled_softmax", *(["mm", "mm", "sum"] if form is not from_logits else [])]


@pytest.mark.skipif(find_spec("triton") is None or IN_INTERPRETER, reason="triton comes with PyTorch for CUDA")
@pytest.mark.slow
def test_they_are_the_plain_form_in_tritons_interpreter() -> None:
    line = [sys.executable, "-m", "pytest", "-n", "0", "-q", __file__]
    done = subprocess.run(line, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocabulary", [50257, 128256])
def test_on_a_device_they_are_the_plain_form(dtype: torch.dtype, vocabulary: int) -> None:
    table = NumberTokenTable.from_values({100 + i: float(i) for i in range(10)}, vocabulary)
    logits = (2 * drawn(64, vocabulary)).to("cuda", dtype).requires_grad_()
    labels = torch.randint(0, 200, (64,), generator=torch.Generator().manual_seed(0)).cuda()
    labels[:9] = IGNORE_INDEX
    exact, table = logits.detach().double().requires_grad_(), table.cuda()
    found = cross_entropy_and_number_loss(logits, labels, table, reweigh=True)
    expected = reference_loss_sums(exact, labels, table, NumberDistance(reweigh=True))
    assert_same([one.double() for one in found[:2]], expected[:2], rtol=1e-5)
    ours, theirs = (torch.autograd.grad(a + b, of)[0] for (a, b, *_), of in ((found, logits), (expected, exact)))
    assert_same(ours.double(), theirs, rtol=max(1e-3, 2 * torch.finfo(dtype).eps), atol=1e-6)
