"""What processes send each other in a training step, counted in one process whose group only pretends to send."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from numerate.api import recipe
from numerate.training.distributed import World
from numerate.training.parallel import DDPStrategy
from numerate.training.trainer import Trainer

PROCESSES, LAYERS = 4, 3
SMALL = (
    "task.digits=1:4 model.hidden_size=24 training.batch_size=48 model.tie_word_embeddings=true device=cpu "
    f"model.backbone=Stack(num_layers={LAYERS}) model.positions=[Rotary,FIRE(share_across_layers=true)] "
    "model.mixer=DualAttention(num_self_heads=2,num_relational_heads=2)"
).split()
SUMS = {
    "all_reduce": {"allreduce_": 1},
    "ddp": {"bucket": 1},  # of up to 25 MiB
    "fsdp": {"_reduce_scatter_base_": 1 + LAYERS},  # what layers share is summed with the embedding and the head
}
"""How gradients are summed, and by how many collective operations in a step."""


class Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts collective operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "c10d":
            self.counts[operator._opname] += 1
        return operator(*args, **(kwargs or {}))

    def bucket(self, state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        """Sums a bucket of DDP, whose operations are out of sight."""
        self.counts["bucket"] += 1
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PROCESSES)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("way", list(SUMS))
def test_gradients_are_summed_once_in_a_step_of_any_number_of_micro_batches(way: str, parts: int) -> None:
    settings = (f"training.parallel={way}", f"training.gradient_accumulation_steps={parts}")
    trainer = Trainer(recipe("addition_abacus", *SMALL, *settings), World(torch.device("cpu"), 0, PROCESSES))
    sent = Sent()
    if isinstance(trainer.parallel_strategy, DDPStrategy):
        trainer.parallel_strategy.ddp_model.register_comm_hook(None, sent.bucket)
    batches = trainer.next_batch()
    assert len(batches.micro_batches) == parts
    for _ in range(2):  # DDP plans its buckets in the first step, and agrees on them in the second
        trainer.compute_gradients(batches)
    sent.counts.clear()
    with sent:
        trainer.compute_gradients(batches)
    gathered = sent.counts.pop("_allgather_base_", 0)
    assert sent.counts == SUMS[way]
    assert gathered == (parts * (1 + 2 * LAYERS) if way == "fsdp" else 0)
