"""Data parallelism: forward, gradient reduction and sharding over several processes.

Losses are divided by global counts (see `numerate.losses.loss`), so the same global batch gives the same gradient for
any number of processes, up to the order of additions.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from numerate.batch import Model
from numerate.models.backbone import LoopModule
from numerate.models.block import Block
from numerate.models.strict_weights import match_state_dict
from numerate.training.compilation import CompileMode, allow_compiling
from numerate.training.distributed import World

_SHARED_MODULES_NAME = "shared_by_blocks"


class ParallelStrategy:
    """One process, or several with replicated weights that sum their gradients by one all-reduce (`all_reduce`).

    The all-reduce of one flat gradient adds in the same order in every run: a resumed run is bit-identical for any
    number of processes.
    """

    loss_multiplier = 1.0
    """Factor on the loss of a micro-batch if gradients are averaged over processes."""

    def __init__(self, model: Model, world: World, *, compile_mode: CompileMode | None = None) -> None:
        self.model, self.world = model, world
        self.training_model: nn.Module = model if compile_mode is None else compile_forward(model, compile_mode)
        """The model as training calls it: compiled, or wrapped by DDP."""

    def backward(self, is_last: bool) -> AbstractContextManager[None]:
        """The context of the forward and backward pass of one micro-batch; `is_last`: the last one of a step."""
        return nullcontext()

    @contextmanager
    def evaluation_mode(self) -> Iterator[Model]:
        """The model in evaluation mode; every process must call it equally often."""
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    def generation_mode(self) -> AbstractContextManager[Model]:
        """The model for generation token by token; otherwise as `evaluation_mode`."""
        return self.evaluation_mode()

    def sync_gradients(self) -> None:
        """Called after the last backward pass of a step; every process then has the full gradient (or its shard)."""
        self.world.all_reduce_gradients(list(self.model.parameters()))

    def clip_grad_norm(self, max_norm: float | None) -> Tensor:
        """Scales the gradient down to the norm `max_norm`; returns its norm before."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if max_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        return norm

    def layer_grad_norms(self) -> dict[str, Tensor]:
        """The gradient norm of each block, and of each module outside of them, by name, before clipping. Parameters
        shared by blocks count in the first."""
        grads_by_layer: dict[str, list[Tensor]] = {}
        name_by_id = {id(block): name for name, block in self.model.named_modules()}
        blocks = [name_by_id[id(block)] for block in model_blocks(self.model)]
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                layer = next((block for block in blocks if name.startswith(f"{block}.")), name.split(".")[0])
                grads_by_layer.setdefault(layer, []).append(parameter.grad)
        return {name: _full_tensor(torch.nn.utils.get_total_norm(grads)) for name, grads in grads_by_layer.items()}

    def full_state_dict(self) -> dict[str, Tensor]:
        """All weights by name, unsharded, on the main process. Every process must call it."""
        return dict(self.model.state_dict())

    def load_weights(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Loads unsharded weights. Raises `UserError` if they are another model's."""
        self.model.load_state_dict(match_state_dict(self.model, weights, source))

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The optimizer's state as `parameter name/entry`, unsharded, on the main process. Every process must call
        it."""
        return {
            f"{name}/{entry}": torch.as_tensor(value)
            for name, parameter in self.model.named_parameters()
            for entry, value in optimizer.state.get(parameter, {}).items()
        }

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Tensor]) -> None:
        """Loads what `full_optimizer_state` returned, of this or another parallel strategy."""
        parameters = dict(self.model.named_parameters())
        for key, value in state.items():
            name, entry = key.rsplit("/", 1)
            optimizer.state[parameters[name]][entry] = self._local_state(value, parameters[name], optimizer)

    def _local_state(self, value: Tensor, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
        stays_on_cpu = value.dim() == 0 and not optimizer.defaults.get("fused")
        return value if stays_on_cpu else value.to(parameter.device)


class DDPStrategy(ParallelStrategy):
    """PyTorch's DistributedDataParallel (`ddp`): gradients are summed in buckets during the backward pass. Buckets
    change after the first step of a session, so that with three or more processes a resumed run may differ from an
    uninterrupted one in the last bits; `all_reduce` does not.
    """

    def __init__(self, model: Model, world: World, *, compile_mode: CompileMode | None = None) -> None:
        super().__init__(model, world, compile_mode=compile_mode)
        self.loss_multiplier = float(world.size)
        self.ddp_model = nn.parallel.DistributedDataParallel(
            self.training_model,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            process_group=world.nccl_group,
            gradient_as_bucket_view=True,
            **_no_buffer_sync(),
        )
        self.training_model = self.ddp_model

    def backward(self, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else self.ddp_model.no_sync()

    def sync_gradients(self) -> None:
        """Does nothing: the buckets are summed during the backward pass."""


class FSDPStrategy(ParallelStrategy):
    """PyTorch's FSDP2 (`fsdp`): each process holds a shard of every weight, gradient and moment. Blocks are gathered
    one by one. Embedding, final norm and head stay gathered from the forward pass to the end of the backward pass,
    since the head is used after the forward pass (see `numerate.batch.Output`). So do modules that several blocks
    share, such as a symbol library, which would otherwise be gathered and freed once per block.
    """

    def __init__(self, model: Model, world: World, *, compile_mode: CompileMode | None = None) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, world)
        self.loss_multiplier = float(world.size)
        self.mesh = DeviceMesh.from_group(world.nccl_group or dist.group.WORLD, world.device.type)  # type: ignore[arg-type]
        names = set(parameters_shared_by_blocks(model))
        shared = {parameter for name, parameter in model.named_parameters() if name in names}
        for block in model_blocks(model):
            if compile_mode is not None:
                block.compile(dynamic=False, mode=compile_mode)
            fully_shard(block, mesh=self.mesh, ignored_params=shared)
        sharded = {parameter for parameter in model.parameters() if _is_dtensor(parameter)}
        with _registered_outside_blocks(model, shared):
            self.root: Any = fully_shard(model, mesh=self.mesh, ignored_params=sharded)

    @contextmanager
    def backward(self, is_last: bool) -> Iterator[None]:
        self.root.set_requires_gradient_sync(is_last)
        self.root.set_is_last_backward(is_last)
        yield

    @contextmanager
    def evaluation_mode(self) -> Iterator[Model]:
        with super().evaluation_mode() as model:
            try:
                yield model
            finally:
                self.root.reshard()  # otherwise only a backward pass would do it

    @contextmanager
    def generation_mode(self) -> Iterator[Model]:
        """Gathers all weights on every device, since generation token by token calls no forward pass that would gather
        them."""
        sharded_modules: list[Any] = [self.root, *model_blocks(self.model)]
        with super().evaluation_mode() as model:
            try:
                for part in sharded_modules:
                    part.unshard()
                yield model
            finally:
                for part in sharded_modules:
                    part.reshard()

    def sync_gradients(self) -> None:
        """Does nothing: the shards are summed during the backward pass."""

    def clip_grad_norm(self, max_norm: float | None) -> Tensor:
        return _full_tensor(super().clip_grad_norm(max_norm))

    def full_state_dict(self) -> dict[str, Tensor]:
        return self._gather(self.model.state_dict(keep_vars=True))

    def load_weights(self, weights: Mapping[str, Tensor], source: str) -> None:
        full_weights = match_state_dict(self.model, weights, source)
        with torch.no_grad():
            for name, shard in self.model.state_dict().items():
                shard.copy_(self._shard(full_weights[name], shard))

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return self._gather(super().full_optimizer_state(optimizer))

    def _local_state(self, value: Tensor, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
        return self._shard(value, parameter) if value.dim() else super()._local_state(value, parameter, optimizer)

    def _gather(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Unsharded tensors, on the main process only. A tensor with two names stays one tensor."""
        gathered: dict[str, Tensor] = {}
        name_by_id: dict[int, str] = {}
        for name, shard in shards.items():
            stored_name = name_by_id.setdefault(id(shard), name)
            full_tensor = _full_tensor(shard.detach()) if stored_name == name else None
            if self.world.is_main_process:
                gathered[name] = gathered[stored_name] if full_tensor is None else full_tensor.cpu()
        return gathered

    def _shard(self, value: Tensor, like: Tensor) -> Tensor:
        """This process's shard of an unsharded tensor that every process has."""
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device), self.mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


@contextmanager
def _registered_outside_blocks(model: nn.Module, shared: set[nn.Parameter]) -> Iterator[None]:
    """Registers the modules that hold parameters shared by blocks outside of the blocks too, since FSDP does not look
    into sharded blocks. Such a module may also hold parameters that its block has sharded (`sharing=library`)."""
    holders = [part for part in model.modules() if any(own in shared for own in part.parameters(recurse=False))]
    model.add_module(_SHARED_MODULES_NAME, nn.ModuleList(holders))
    try:
        yield
    finally:
        delattr(model, _SHARED_MODULES_NAME)


def _no_buffer_sync() -> dict[str, Any]:
    """The argument that stops DDP from synchronizing buffers, which are constants here; torch 2.13 renamed it."""
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def compile_forward(model: Model, mode: CompileMode = "default") -> nn.Module:
    """The model, compiled once for each shape of a batch; position assignment and head are not compiled. Of a looped
    backbone one iteration is compiled; otherwise it would be recompiled for every number of loops.
    """
    loops = [part for part in model.modules() if isinstance(part, LoopModule)]
    if loops:
        for loop in loops:
            loop.compile_loops(mode)
        return model
    compiled: nn.Module = torch.compile(model, dynamic=False, mode=mode)  # type: ignore[assignment]
    return compiled


def _is_dtensor(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if _is_dtensor(tensor) else tensor  # type: ignore[attr-defined]


def model_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: our own blocks, or those of a Hugging Face model."""
    if isinstance(model, Model) and (own := model.blocks()):
        return own
    return [module for module in model.modules() if isinstance(module, Block)]


def parameters_shared_by_blocks(model: nn.Module) -> list[str]:
    """Names of the parameters that are in more than one block."""
    blocks = model_blocks(model)
    num_blocks = Counter(parameter for block in blocks for parameter in block.parameters())
    return [name for name, parameter in model.named_parameters() if num_blocks[parameter] > 1]


def make_parallel_strategy(
    name: str, model: Model, world: World, *, compile_mode: CompileMode | None = None
) -> ParallelStrategy:
    """`all_reduce`, `ddp` or `fsdp`; a single process always uses `all_reduce`."""
    strategies: dict[str, type[ParallelStrategy]] = {
        "all_reduce": ParallelStrategy,
        "ddp": DDPStrategy,
        "fsdp": FSDPStrategy,
    }
    if compile_mode is not None:
        allow_compiling()
    return (strategies[name] if world.size > 1 else ParallelStrategy)(model, world, compile_mode=compile_mode)
