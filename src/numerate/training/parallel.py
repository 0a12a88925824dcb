"""Data parallelism: forward, gradient reduction and sharding over several processes.

Losses are divided by global counts (see `numerate.losses.loss`), so the same global batch gives the same gradient for
any number of processes, up to the order of additions.
"""

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from numerate.batch import Model
from numerate.models.backbone import LoopModule
from numerate.models.block import Block
from numerate.models.strict_weights import match_state_dict
from numerate.training.distributed import World

MAX_GRAPHS = 512
"""Most graphs of one piece of code, such as the block of all layers; beyond them torch runs it uncompiled."""


class ParallelStrategy:
    """One process, or several with replicated weights that sum their gradients by one all-reduce (`all_reduce`), in the
    same order in every run: a resumed run is bit-identical for any number of processes."""

    averages_in_backward: ClassVar[bool] = False
    """Whether the backward pass averages gradients over processes, so that nothing is left to sum."""

    def __init__(self, model: Model, world: World, *, is_compiled: bool = False) -> None:
        self.model, self.world = model, world
        self.training_model: nn.Module = compile_forward(model) if is_compiled else model
        """The model as training calls it: compiled, or wrapped by DDP."""
        self.loss_multiplier = float(world.size) if self.averages_in_backward else 1.0
        """Factor on the loss of a micro-batch, whose divisor counts the examples of all processes."""

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
        if self.averages_in_backward or self.world.size == 1:
            return
        parameters = list(self.model.parameters())
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat_gradient = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat_gradient, group=self.world.nccl_group)
        for parameter, part in zip(
            parameters, torch.split(flat_gradient, [p.numel() for p in parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter)

    def clip_grad_norm(self, max_norm: float | None) -> Tensor:
        """Scales the gradient down to the norm `max_norm`; returns its norm before."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if max_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), max_norm, norm)
        return norm

    def layer_grad_norms(self) -> dict[str, Tensor]:
        """The gradient norm of each block, and of each module outside of them, by name, before clipping. Parameters
        shared by blocks count in the first."""
        names = {module: name for name, module in self.model.named_modules()}
        blocks = [names[block] for block in model_blocks(self.model)]
        layers: dict[str, list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                layer = next((block for block in blocks if name.startswith(f"{block}.")), name.split(".")[0])
                layers.setdefault(layer, []).append(parameter.grad)
        return {name: _full_tensor(torch.nn.utils.get_total_norm(grads)) for name, grads in layers.items()}

    def full_state_dict(self) -> dict[str, Tensor]:
        """All weights by name, unsharded, on the main process. Every process must call it."""
        return dict(self.model.state_dict())

    def load_weights(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Loads unsharded weights. Raises `UserError` if they are another model's."""
        self.model.load_state_dict(match_state_dict(self.model, weights, source))

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The optimizer's state as `parameter name/entry`; otherwise as `full_state_dict`."""
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
    change after the first step of a session: with three or more processes a resumed run may differ in the last bits."""

    averages_in_backward = True

    def __init__(self, model: Model, world: World, *, is_compiled: bool = False) -> None:
        super().__init__(model, world, is_compiled=is_compiled)
        ddp = nn.parallel.DistributedDataParallel
        # Buffers are constants here. The argument that stops their synchronization was renamed in torch 2.13.
        is_renamed = "forward_sync_buffers" in inspect.signature(ddp.__init__).parameters
        no_sync: dict[str, Any] = {"forward_sync_buffers" if is_renamed else "broadcast_buffers": False}
        devices = [world.device.index] if world.device.type == "cuda" else None
        self.training_model = self.ddp_model = ddp(
            self.training_model, devices, process_group=world.nccl_group, gradient_as_bucket_view=True, **no_sync
        )

    def backward(self, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext() if is_last else self.ddp_model.no_sync()


class FSDPStrategy(ParallelStrategy):
    """PyTorch's FSDP2 (`fsdp`): each process holds a shard of every weight, gradient and moment. Blocks are gathered
    one by one. Embedding, final norm and head, which is used after the forward pass, stay gathered to the end of the
    backward pass; so do modules that several blocks share, such as a symbol library."""

    averages_in_backward = True

    def __init__(self, model: Model, world: World, *, is_compiled: bool = False) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor

        super().__init__(model, world)
        self.mesh = DeviceMesh.from_group(world.nccl_group or dist.group.WORLD, world.device.type)  # type: ignore[arg-type]
        shared = {*parameters_shared_by_blocks(model).values()}
        for block in model_blocks(model):
            if is_compiled:
                block.compile()
            fully_shard(block, mesh=self.mesh, ignored_params=shared)
        sharded: set[nn.Parameter] = {one for one in model.parameters() if isinstance(one, DTensor)}
        # FSDP does not look into sharded blocks: while it shards the rest, modules with parameters shared by blocks are
        # registered outside of them too. They may also hold others, sharded with their block (`sharing=library`).
        holders = [part for part in model.modules() if any(own in shared for own in part.parameters(recurse=False))]
        model.add_module("shared_by_blocks", nn.ModuleList(holders))
        self.root: Any = fully_shard(model, mesh=self.mesh, ignored_params=sharded)
        del model.shared_by_blocks
        self._sharded: list[Any] = [self.root, *model_blocks(model)]

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
                for part in self._sharded:
                    part.reshard()  # otherwise only a backward pass would do it

    @contextmanager
    def generation_mode(self) -> Iterator[Model]:
        """Gathers all weights, since generation token by token calls no forward pass that would gather them."""
        with self.evaluation_mode() as model:
            for part in self._sharded:
                part.unshard()
            yield model

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


def allow_compiling() -> None:
    """Lets torch compile as many graphs as layers and kinds of batches need (its limit is 8), and models with a
    recurrent net of torch."""
    config = torch._dynamo.config
    config.recompile_limit = max(MAX_GRAPHS, config.recompile_limit)
    config.accumulated_recompile_limit = max(MAX_GRAPHS, config.accumulated_recompile_limit)
    config.allow_rnn = True


def compile_forward(model: Model) -> nn.Module:
    """The model, compiled; position assignment and head are not. Of a looped backbone one iteration is compiled, and
    not each number of loops."""
    loops = [part for part in model.modules() if isinstance(part, LoopModule)]
    for loop in loops:
        loop.compile_loops()
    if loops:
        return model
    return torch.compile(model)  # type: ignore[return-value]


def _full_tensor(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()


def model_blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: our own blocks, or those of a Hugging Face model."""
    if isinstance(model, Model) and (own := model.blocks()):
        return own
    return [module for module in model.modules() if isinstance(module, Block)]


def parameters_shared_by_blocks(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are in more than one block, by name."""
    num_blocks = Counter(parameter for block in model_blocks(model) for parameter in block.parameters())
    return {name: parameter for name, parameter in model.named_parameters() if num_blocks[parameter] > 1}


def make_parallel_strategy(name: str, model: Model, world: World, *, is_compiled: bool = False) -> ParallelStrategy:
    """`all_reduce`, `ddp` or `fsdp`; a single process always uses `all_reduce`."""
    if is_compiled:
        allow_compiling()
    strategies = {"all_reduce": ParallelStrategy, "ddp": DDPStrategy, "fsdp": FSDPStrategy}
    return strategies[name if world.size > 1 else "all_reduce"](model, world, is_compiled=is_compiled)
