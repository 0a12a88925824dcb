"""Any `nn.Module` from token ids to logits as a model."""

from abc import ABC
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from numerate.batch import DecodingStep, Loops, Model, ModelSpec, Output, StepContext, Tokens
from numerate.config.function_specs import FunctionSpec, spec_from_function
from numerate.errors import UserError
from numerate.vocabulary import Vocabulary

Settings = ParamSpec("Settings")


def wrap_model(build: Callable[Concatenate[int, Settings], nn.Module]) -> Callable[Settings, ModelSpec]:
    """Makes a model of a function (or class) that builds an `nn.Module` for a number of tokens. Its other arguments are
    settings.

        @numerate.wrap_model
        def bigram(vocab_size: int, hidden_size: int = 64) -> nn.Module:
            return nn.Sequential(nn.Embedding(vocab_size, hidden_size), nn.Linear(hidden_size, vocab_size))

        recipe = Recipe(model=bigram(hidden_size=32))

    The module maps ids (rows x time) to logits (rows x time x vocabulary), or to an output with `logits`, as in
    transformers. It must be causal: rows are padded on the right, without a mask. For each generated token it reads the
    whole row again. Weights are drawn after `torch.manual_seed(seed)`; weight decay applies to matrices and tables.
    Type checkers understand a decorated function, but not a decorated class.

    Raises `UserError` for a module in place of what builds it, and for a setting without a default.
    """
    spec: Callable[Settings, ModelSpec] = spec_from_function(build, WrappedModelSpec, "wrap_model", ["vocab_size"])
    return spec


class WrappedModelSpec(ModelSpec, FunctionSpec, ABC):
    """The base of specs that `wrap_model` makes."""

    def build(self, vocabulary: Vocabulary, seed: int) -> "WrappedModel":
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            module = self.call_function(vocabulary.size)
        name = type(self).__name__
        if not isinstance(module, nn.Module):
            raise UserError(f"model: {name} must return an nn.Module, not {type(module).__name__}")
        return WrappedModel(module, name, vocabulary.size)


class WrappedModel(Model):
    """A module from ids to logits, which are its hidden states here."""

    def __init__(self, module: nn.Module, name: str, vocabulary_size: int) -> None:
        super().__init__()
        self.module, self.name, self.vocabulary_size = module, name, vocabulary_size

    def assign_positions(self, tokens: Tokens, step_context: StepContext) -> Tokens:
        return tokens

    def forward(
        self,
        tokens: Tokens,
        source: Tokens | None = None,
        *,
        loops: Loops | tuple[int, int] | int | None = None,
        target_positions: Int[Tensor, "rows targets"] | None = None,
    ) -> Output:
        self._check_inputs(tokens, source)
        logits = self._logits(tokens.ids)
        if target_positions is not None:
            logits = torch.take_along_dim(logits, target_positions[..., None], dim=1)
        return Output(logits, _identity, target_positions=target_positions)

    def prefill(
        self, tokens: Tokens, source: Tokens | None = None, *, capacity: int, position_offset: int = 0
    ) -> DecodingStep:
        self._check_inputs(tokens, source)
        return self._read_again(tokens)

    def step(self, ids: Int[Tensor, " rows"], number_values: Tensor | None, state: Any) -> DecodingStep:
        return self._read_again(state.append(ids))

    def check_tokens(self, tokens: Tokens, training_tokens: Tokens | None = None) -> list[str]:
        """Reads a row of this length, in evaluation mode."""
        self._check_inputs(tokens, None)
        time, was_training = tokens.ids.shape[1], self.training
        self.eval()
        try:
            with torch.no_grad():
                shape = tuple(self._logits(tokens.ids[:1]).shape)
        except torch.OutOfMemoryError:
            raise
        except (IndexError, RuntimeError) as error:
            raise UserError(f"model: {self.name} cannot read a row of {time} tokens: {error}") from error
        finally:
            self.train(was_training)
        if shape != (1, time, self.vocabulary_size):
            raise UserError(
                f"model: {self.name} must return logits of rows x time x vocabulary, here of the shape "
                f"{(1, time, self.vocabulary_size)}, not {shape}"
            )
        return []

    def flops(self, batch_size: int, sequence_length: int, loops: Loops | tuple[int, int] | int | None = None) -> int:
        """Two per parameter and token, without tables of embeddings: products without parameters, such as those of
        attention, are not counted."""
        weights = {
            parameter
            for part in self.module.modules()
            if not isinstance(part, nn.Embedding)
            for parameter in part.parameters(recurse=False)
        }
        return 2 * batch_size * sequence_length * sum(weight.numel() for weight in weights)

    def _logits(self, ids: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time vocabulary"]:
        output = self.module(ids)
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor):
            found = type(output).__name__
            raise UserError(f"model: {self.name} must return logits, or an output with .logits, not {found}")
        return logits

    def _read_again(self, tokens: Tokens) -> DecodingStep:
        """The logits behind the last token of each row, without a cache."""
        last = torch.take_along_dim(self._logits(tokens.ids), (tokens.lengths - 1)[:, None, None], dim=1)
        return DecodingStep(Output(last, _identity), tokens)

    def _check_inputs(self, tokens: Tokens, source: Tokens | None) -> None:
        if source is not None:
            raise UserError(f"layout: {self.name} has no encoder; use T5 for the layout Seq2Seq")
        if tokens.blocked_keys is not None:
            raise UserError(f"layout.blocked_tokens: {self.name} does not support blocked tokens")
        if tokens.number_values is not None:
            raise UserError(f"tokenizer: {self.name} reads ids alone, no values of number tokens")


def _identity(logits: Tensor) -> Tensor:
    return logits
