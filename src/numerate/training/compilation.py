"""`training.compile`: what torch is allowed, and what it is not asked for."""

from typing import Literal

import torch

from numerate.errors import UserError

CompileMode = Literal["default", "reduce-overhead", "max-autotune"]

MAX_GRAPHS = 512
"""Most graphs of one piece of code, such as the block of all layers; beyond them torch runs it uncompiled."""


def allow_compiling() -> None:
    """Lets torch compile as many graphs as layers and kinds of batches need (its limit is 8), and models with a
    recurrent net of torch."""
    config = torch._dynamo.config
    config.recompile_limit = max(MAX_GRAPHS, config.recompile_limit)
    config.accumulated_recompile_limit = max(MAX_GRAPHS, config.accumulated_recompile_limit)
    config.allow_rnn = True


def check_compile_mode(mode: CompileMode, device: torch.device, num_micro_batches: int) -> None:
    """Raises `UserError` where CUDA graphs would write the gradients of a micro-batch over those of the one before."""
    if mode != "default" and device.type == "cuda" and num_micro_batches > 1:
        raise UserError(
            f"training.compile_mode: must be default for {num_micro_batches} micro-batches per step, not {mode}, whose "
            "CUDA graphs reuse the memory of gradients"
        )
