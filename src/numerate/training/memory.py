"""Memory of a training step on a GPU that need not be there, by a step on the meta device.

On torch's meta device operations compute shapes but no values, so that a step of any model takes a second and no
memory. The memory of every tensor is counted from where it is made to where it is freed, as in
`torch.cuda.max_memory_allocated`. Where a GPU computes otherwise than the meta device, it is done as on a GPU: autocast
to half precision, which torch does not have there, and attention, which does not store its weights.

`StepMemory.needed` adds what is not counted: CUDA's libraries, workspaces of kernels and gaps between tensors. A
compiled step needs about as much or less. Recurrent networks by cuDNN (LSTM, GRU, RNN) need more than is counted here.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from numerate.batch import Batch, Model, StepContext
from numerate.errors import OperationalError
from numerate.training.objective import ObjectiveModule
from numerate.training.parallel import model_blocks
from numerate.training.precision import autocast
from numerate.training.recipe import Recipe
from numerate.training.step import weighted_loss
from numerate.vocabulary import Vocabulary

META = torch.device("meta")

BLOCK_BYTES = 512
"""What is allocated on a CUDA device is a multiple of this."""

CUDA_BYTES, FRAGMENTATION = 1e9, 0.1
"""Memory of CUDA's context, libraries and workspaces, and the fraction of all tensors lost between them."""

NUM_SEARCHED_STEPS = 64
"""The most expensive of so many steps is taken: an objective may draw how many loops of a step have a gradient."""

HALF_OPERATIONS = """
__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d
conv_transpose2d conv_transpose3d einsum linear matmul mm multi_dot mv prelu scaled_dot_product_attention
"""
FLOAT32_OPERATIONS = """
__pow__ __rdiv__ __rpow__ __rtruediv__ acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss
cosine_similarity cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm kl_div l1_loss layer_norm log log10
log1p log2 log_softmax mse_loss nll_loss norm normalize pow prod reciprocal rsqrt sinh smooth_l1_loss softmax softmin
softplus sum tan
"""
AUTOCAST_DTYPES = dict.fromkeys(HALF_OPERATIONS.split(), "half") | dict.fromkeys(FLOAT32_OPERATIONS.split(), "float32")
"""What CUDA's autocast computes in half precision, and what in float32; all else takes what it is given:
https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference"""


@dataclass(frozen=True)
class StepMemory:
    """The memory of a training step in bytes, of a batch of `batch_shape` (rows, tokens of a row).

    `peak` is the most that is allocated at one time: weights, moments and, with several micro-batches, gradients, and
    what else there is at that time. `activations` is what the forward pass leaves for the backward pass, by part of the
    model: "embeddings", the name of each block, and "head, loss". `num_kernels` is the number of operations of one
    micro-batch that compute something, each of which launches a kernel, or a few, unless it is compiled.
    """

    batch_shape: tuple[int, int]
    weights: int
    gradients: int
    moments: int
    activations: Mapping[str, int]
    peak: int
    num_kernels: int

    @property
    def needed(self) -> float:
        """The memory of a GPU that is needed: the peak, and what is stated of CUDA and fragmentation."""
        return self.peak * (1 + FRAGMENTATION) + CUDA_BYTES


def step_memory(
    recipe: Recipe,
    vocabulary: Vocabulary,
    batch: Batch,
    *,
    num_micro_batches: int = 1,
    pretrained_config: Mapping[str, Any] | None = None,
) -> StepMemory:
    """The memory of a step of a recipe on one device with this micro-batch, of which it has `num_micro_batches`.

    Raises `OperationalError` for a model that reads values of tensors in its forward pass, which the meta device does
    not have.
    """
    meter = MemoryMeter()
    model = recipe.model.build_on_meta(vocabulary, recipe.seed, pretrained_config).to(META).train()
    objective = recipe.objective.build(vocabulary).to(META)
    optimizer = recipe.optimizer.build(model, recipe.optimizer.parameter_options(model))
    step_context = _most_expensive_step(recipe.seed, objective, model, batch)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    if num_micro_batches == 1:
        optimizer.zero_grad(set_to_none=True)
    weights = meter.track(*model.parameters(), *model.buffers(), *objective.buffers())
    moments = meter.track(*tree_leaves([optimizer.state[parameter] for parameter in parameters]))
    meter.track(*(parameter.grad for parameter in parameters))  # of earlier micro-batches
    try:
        with meter, simulated_gpu(), meter.labels_of(model):
            _forward_and_backward(recipe, model, objective, batch, step_context, meter)
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise OperationalError(f"model: its memory cannot be estimated without running it: {reason}") from error
    return StepMemory(
        batch_shape=(batch.tokens.ids.shape[0], num_row_tokens(batch)),
        weights=weights,
        gradients=sum(_size(parameter.grad) for parameter in parameters if parameter.grad is not None),
        moments=moments,
        activations=dict(meter.activations),
        peak=meter.peak,
        num_kernels=meter.num_kernels,
    )


def num_row_tokens(batch: Batch) -> int:
    """Tokens of a row, padding included, and those of its encoder input."""
    return batch.tokens.ids.shape[1] + (0 if batch.source is None else batch.source.ids.shape[1])


def _most_expensive_step(seed: int, objective: ObjectiveModule, model: Model, batch: Batch) -> StepContext:
    steps = (StepContext(seed, step) for step in range(NUM_SEARCHED_STEPS))
    return max(steps, key=lambda step_context: objective.flops(model, batch, step_context))


def _forward_and_backward(
    recipe: Recipe,
    model: Model,
    objective: ObjectiveModule,
    batch: Batch,
    step_context: StepContext,
    meter: "MemoryMeter",
) -> None:
    """What `Trainer.compute_gradients` does with a micro-batch."""
    precision = "bf16" if recipe.training.precision == "fp16" else recipe.training.precision
    batch = replace(batch, tokens=model.assign_positions(batch.tokens, step_context)).to(META)
    with autocast(META, precision):
        loss_sums = objective(model, batch, step_context)
    loss, _ = weighted_loss(loss_sums, dict.fromkeys(loss_sums, 1), objective.weights)
    meter.record_activations()
    # `loss.backward()` would leave the mode of `simulated_gpu`, in which checkpointed blocks are computed again.
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


# Memory of tensors ----------------------------------------------------------------------------------------------------


class MemoryMeter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the memory of tensors on the meta device, each from where an operation makes it to where it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocated, self.peak, self.num_kernels = 0, 0, 0
        self.activations: Mapping[str, int] = {}
        self._label = ""
        self._live: dict[int, Any] = {}
        self._by_label: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype == torch.bool:
            return False  # a condition on values, such as whether no row is padded
        result = func(*args, **(kwargs or {}))
        added = self.track(*tree_leaves(result))
        self.num_kernels += added > 0 or func._schema.is_mutable
        return result

    def track(self, *values: Any) -> int:
        """Counts the memory of these tensors until they are freed; returns that of those not counted before."""
        added = 0
        for value in values:
            if not isinstance(value, Tensor) or value.device != META:
                continue
            storage = value.untyped_storage()
            size, key = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES, storage._cdata
            if size and key not in self._live:
                self._live[key] = weakref.ref(storage, partial(self._release, key, size, self._label))
                self._by_label[self._label] += size
                added += size
        self.allocated += added
        self.peak = max(self.peak, self.allocated)
        return added

    def _release(self, key: int, size: int, label: str, _: object) -> None:
        del self._live[key]
        self._by_label[label] -= size
        self.allocated -= size

    def record_activations(self) -> None:
        """Records what the forward pass has left, by part of the model."""
        self.activations = {label: size for label, size in self._by_label.items() if label and size}

    @contextmanager
    def labels_of(self, model: nn.Module) -> Iterator[None]:
        """Labels what is made in the context by the block of the model that makes it."""
        name_by_block = {id(block): name for name, block in model.named_modules()}
        blocks = model_blocks(model)

        def set_label(label: str, *_: object) -> None:
            self._label = label

        hooks = [block.register_forward_pre_hook(partial(set_label, name_by_block[id(block)])) for block in blocks]
        hooks += [block.register_forward_hook(partial(set_label, "head, loss")) for block in blocks]
        hooks.append(model.register_forward_pre_hook(partial(set_label, "embeddings")))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# A GPU's way of computing ---------------------------------------------------------------------------------------------


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """A context in which tensors on the meta device are computed as by a GPU: with autocast, of which torch has none
    there, and attention by a kernel that does not store its weights."""
    mode = _GPUMode()
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch, "autocast", mode.autocast),
        (torch.amp, "autocast", mode.autocast),
        (torch.amp, "is_autocast_available", lambda: True),
        (torch, "is_autocast_enabled", lambda: mode.dtype is not None),
        (torch, "get_autocast_dtype", lambda: mode.dtype or torch.bfloat16),
    ]
    originals = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    try:
        for (module, name, simulated), (_, _, original) in zip(replaced, originals, strict=True):
            setattr(module, name, _where_simulated(simulated, original))
        with mode:
            yield
    finally:
        for module, name, original in originals:
            setattr(module, name, original)


def _where_simulated(simulated: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a device type that is simulated for the meta device."""

    def function(device_type: str = "cuda", *args: Any, **kwargs: Any) -> Any:
        return (simulated if device_type == "meta" else partial(original, device_type))(*args, **kwargs)

    return function


class _GPUMode(TorchFunctionMode):
    """Functions of tensors on the meta device as CUDA's autocast has them; `dtype` is its half precision, None outside
    of autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None
        self._half_weights: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def autocast(
        self, dtype: torch.dtype = torch.bfloat16, enabled: bool = True, cache_enabled: bool | None = None
    ) -> Iterator[None]:
        previous, self.dtype = self.dtype, dtype if enabled else None
        try:
            yield
        finally:
            self.dtype = previous
            if previous is None and enabled:
                self._half_weights.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if self.dtype is not None and "out" not in kwargs and name in AUTOCAST_DTYPES:
            dtype = self.dtype if AUTOCAST_DTYPES[name] == "half" else torch.float32
            args, kwargs = tree_map(partial(self._cast, dtype), (args, kwargs))
        if name == "scaled_dot_product_attention" and args[0].dim() == 4:
            return _fused_attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _cast(self, dtype: torch.dtype, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return value
        is_weight = value.dtype == torch.float32 and value.is_leaf and value.requires_grad
        if is_weight and dtype != torch.float32 and torch.is_grad_enabled():
            if id(value) not in self._half_weights:  # a weight is cast once
                self._half_weights[id(value)] = (value, value.to(dtype))
            return self._half_weights[id(value)][1]
        return value.to(dtype)


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`scaled_dot_product_attention` by the kernel that stores only its output and a number per query."""
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.empty_like(attn_mask, dtype=query.dtype)
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    needs_gradient = torch.is_grad_enabled()
    output: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_gradient, dropout_p, is_causal, scale=scale
    )[0]
    return output
