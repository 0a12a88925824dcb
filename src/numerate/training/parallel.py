"""Data parallelism: what is called for a forward, how gradients are summed, which process holds what.

Every way divides by global counts (see `numerate.losses.loss`), so the same global batch gives the same gradient for
any number of processes, up to the order of additions.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from numerate.batch import Model
from numerate.models.backbone import LoopPart
from numerate.models.block import Block
from numerate.models.strict_weights import weights_of
from numerate.training.distributed import World

_BESIDE = "shared_by_blocks"


class Parallel:
    """One process, or several that each hold all weights and add their gradients by one all-reduce (`flat`).

    The additions of an all-reduce of one flat gradient come in the same order in every run: a resumed run is
    bit-identical for any number of processes.
    """

    factor = 1.0
    """What a part's loss is multiplied by, where the way of summing takes a mean over processes."""

    def __init__(self, model: Model, world: World, *, compiled: bool = False) -> None:
        self.model, self.world = model, world
        self.forward: nn.Module = compiled_forward(model) if compiled else model

    def backward(self, last: bool) -> AbstractContextManager[None]:
        """Around the forward and backward of one part; `last` is the last part of a step."""
        return nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[Model]:
        """The model in evaluation mode; every process must call it equally often."""
        self.model.eval()
        try:
            yield self.model
        finally:
            self.model.train()

    def generating(self) -> AbstractContextManager[Model]:
        """The model to generate from, token by token; as `evaluating`."""
        return self.evaluating()

    def finish(self) -> None:
        """After the last backward of a step: every process then has the whole gradient (or its share of it)."""
        self.world.sum_gradients(list(self.model.parameters()))

    def clip(self, most: float | None) -> Tensor:
        """Scales the gradient down to the norm `most`; returns its norm before."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if most is not None:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), most, norm, foreach=True)
        return norm

    def layer_norms(self) -> dict[str, Tensor]:
        """The norm of the gradient of each block, and of each part outside of them, by name, before it is scaled down.
        Parameters of several blocks count in the first."""
        layers: dict[str, list[Tensor]] = {}
        named = {id(block): name for name, block in self.model.named_modules()}
        blocks = [named[id(block)] for block in blocks_of(self.model)]
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                layer = next((block for block in blocks if name.startswith(f"{block}.")), name.split(".")[0])
                layers.setdefault(layer, []).append(parameter.grad)
        return {name: _whole(torch.nn.utils.get_total_norm(own, foreach=True)) for name, own in layers.items()}

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, whole, on the first process. Every process must call it."""
        return dict(self.model.state_dict())

    def load_weights(self, weights: Mapping[str, Tensor], where: str) -> None:
        """Loads whole weights. Raises `UserError` where they are another model's."""
        self.model.load_state_dict(weights_of(self.model, weights, where))

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """The optimiser's state as `parameter name/entry`, whole, on the first process. Every process must call it."""
        return {
            f"{name}/{entry}": torch.as_tensor(value)
            for name, parameter in self.model.named_parameters()
            for entry, value in optimizer.state.get(parameter, {}).items()
        }

    def load_moments(self, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
        """Loads what `moments` returned, of this or another way of sharing."""
        parameters = dict(self.model.named_parameters())
        for key, value in moments.items():
            name, entry = key.rsplit("/", 1)
            optimizer.state[parameters[name]][entry] = self._own(value, parameters[name], optimizer)

    def _own(self, value: Tensor, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
        stays = value.dim() == 0 and not optimizer.defaults.get("fused")
        return value if stays else value.to(parameter.device)


class Replicated(Parallel):
    """PyTorch's DistributedDataParallel (`ddp`): gradients are summed in buckets while the backward still runs.

    Which bucket a gradient is in changes after the first step of a start, so that from three processes on a resumed run
    may differ from an uninterrupted one in the last bits; `flat` does not.
    """

    def __init__(self, model: Model, world: World, *, compiled: bool = False) -> None:
        super().__init__(model, world, compiled=compiled)
        self.factor = float(world.size)
        self.whole = nn.parallel.DistributedDataParallel(
            self.forward,
            device_ids=[world.device.index] if world.device.type == "cuda" else None,
            process_group=world.group,
            gradient_as_bucket_view=True,
            **_buffers_stay(),
        )
        self.forward = self.whole

    def backward(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.whole.no_sync()

    def finish(self) -> None:
        """The buckets are summed by then."""


class FullySharded(Parallel):
    """PyTorch's FSDP2 (`fsdp`): each process holds a share of every weight, gradient and moment.

    Blocks are gathered one by one. Embedding, final norm and head stay gathered from the forward to the end of the
    backward, since the head is used after the forward (see `numerate.batch.Output`). So does what several blocks share,
    such as a library of symbols, which would else be gathered and freed once per block.
    """

    def __init__(self, model: Model, world: World, *, compiled: bool = False) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        super().__init__(model, world)
        self.factor = float(world.size)
        self.mesh = DeviceMesh.from_group(world.group or dist.group.WORLD, world.device.type)  # type: ignore[arg-type]
        names = set(shared_by_blocks(model))
        shared = {parameter for name, parameter in model.named_parameters() if name in names}
        for block in blocks_of(model):
            if compiled:
                block.compile(dynamic=True)
            fully_shard(block, mesh=self.mesh, ignored_params=shared)
        self.root: Any = _sharded_with(model, shared, lambda: fully_shard(model, mesh=self.mesh))

    @contextmanager
    def backward(self, last: bool) -> Iterator[None]:
        self.root.set_requires_gradient_sync(last)
        self.root.set_is_last_backward(last)
        yield

    @contextmanager
    def evaluating(self) -> Iterator[Model]:
        with super().evaluating() as model:
            try:
                yield model
            finally:
                self.root.reshard()  # only a backward would do it otherwise

    @contextmanager
    def generating(self) -> Iterator[Model]:
        """All weights are whole on every device meanwhile: generation token by token calls no forward that would gather
        them."""
        spread: list[Any] = [self.root, *blocks_of(self.model)]
        with super().evaluating() as model:
            try:
                for part in spread:
                    part.unshard()
                yield model
            finally:
                for part in spread:
                    part.reshard()

    def finish(self) -> None:
        """The shares are summed by then."""

    def clip(self, most: float | None) -> Tensor:
        return _whole(super().clip(most))

    def weights(self) -> dict[str, Tensor]:
        return self._gathered(self.model.state_dict(keep_vars=True))

    def load_weights(self, weights: Mapping[str, Tensor], where: str) -> None:
        found = weights_of(self.model, weights, where)
        with torch.no_grad():
            for name, share in self.model.state_dict().items():
                share.copy_(self._share(found[name], share))

    def moments(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        return self._gathered(super().moments(optimizer))

    def _own(self, value: Tensor, parameter: nn.Parameter, optimizer: torch.optim.Optimizer) -> Tensor:
        return self._share(value, parameter) if value.dim() else super()._own(value, parameter, optimizer)

    def _gathered(self, shares: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, on the first process only. A tensor under two names stays one."""
        found: dict[str, Tensor] = {}
        seen: dict[int, str] = {}
        for name, share in shares.items():
            under = seen.setdefault(id(share), name)
            whole = _whole(share.detach()) if under == name else None
            if self.world.first:
                found[name] = found[under] if whole is None else whole.cpu()
        return found

    def _share(self, value: Tensor, like: Tensor) -> Tensor:
        """This process's share of a whole tensor that every process has."""
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(like.device), self.mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def _sharded_with(model: nn.Module, shared: set[nn.Parameter], shard: Callable[[], Any]) -> Any:
    """Shards a model with the parameters that its blocks share: FSDP does not look for them inside the blocks, so the
    modules that hold them are registered beside the blocks meanwhile."""
    holders = [part for part in model.modules() if any(own in shared for own in part.parameters(recurse=False))]
    if not holders:
        return shard()
    model.add_module(_BESIDE, nn.ModuleList(holders))
    try:
        return shard()
    finally:
        delattr(model, _BESIDE)


def _buffers_stay() -> dict[str, Any]:
    """The argument that makes DDP leave buffers alone, which are constants here: torch 2.13 renamed it."""
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}


def compiled_forward(model: Model) -> nn.Module:
    """The model, compiled once for all batch sizes and lengths. Position assignment and head are not part of it.

    Of a loop one iteration is compiled: a model compiled whole would recompile for every number of loops.
    """
    loops = [part for part in model.modules() if isinstance(part, LoopPart)]
    if loops:
        for loop in loops:
            loop.compile_loops()
        return model
    compiled: nn.Module = torch.compile(model, dynamic=True)  # type: ignore[assignment]
    return compiled


def _is_spread(tensor: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if _is_spread(tensor) else tensor  # type: ignore[attr-defined]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: our own blocks, or those of a Hugging Face model."""
    if isinstance(model, Model) and (own := model.blocks()):
        return own
    return [module for module in model.modules() if isinstance(module, Block)]


def shared_by_blocks(model: nn.Module) -> list[str]:
    """Names of the parameters that stand in more than one block."""
    blocks = blocks_of(model)
    stands = Counter(parameter for block in blocks for parameter in block.parameters())
    return [name for name, parameter in model.named_parameters() if stands[parameter] > 1]


def make_parallel(kind: str, model: Model, world: World, *, compiled: bool = False) -> Parallel:
    """`flat`, `ddp` or `fsdp`; alone, a process needs none of them."""
    ways: dict[str, type[Parallel]] = {"flat": Parallel, "ddp": Replicated, "fsdp": FullySharded}
    return (ways[kind] if world.size > 1 else Parallel)(model, world, compiled=compiled)
