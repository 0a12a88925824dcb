"""LoRA: a low-rank change to the linear layers of a Hugging Face model, which alone is trained."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization, remove_parametrizations

from numerate.config import Spec, setting
from numerate.errors import UserError
from numerate.text.models.pretrained_weights import new_ids, token_embeddings
from numerate.vocabulary import Vocabulary

LORA_HELP = "LoRA(r=8,alpha=16): low-rank adapters, which alone are trained; null: all weights are trained"


@dataclass(frozen=True)
class LoRA(Spec):
    """Low-rank adapters on linear layers, of the package peft; all other pretrained weights are frozen.

    Hu et al. (2021), https://arxiv.org/abs/2106.09685. A weight W becomes W + alpha / r x B A with r rows in A, random,
    and r columns in B, 0 at first, so that training starts from the pretrained model. Embeddings and the head are
    frozen but for the rows of tokens that are new to the weights, as with peft's `trainable_token_indices`. A number
    embedding and a number head are trained.

    >>> from numerate.models import PretrainedDecoder
    >>> spec = PretrainedDecoder(weights="HuggingFaceTB/SmolLM2-135M-Instruct", lora=LoRA(r=16, alpha=32))
    """

    r: int = setting(8, "rank of the adapters", at_least=1)
    alpha: int = setting(16, "scale: adapters are multiplied by alpha / r", at_least=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = setting(
        "all-linear",
        "names of the layers with an adapter, [q_proj,v_proj]; all-linear: every linear layer but the head",
    )
    dropout: float = setting(0.0, "dropout before an adapter", at_least=0, below=1)

    def conflicts(self) -> Iterator[str]:
        if not self.target_modules:
            yield "target_modules: must name a layer, [q_proj,v_proj], or be all-linear"

    def add_to(self, model: Any) -> None:
        """Adds the adapters to a model of transformers in place, and freezes its weights (`train_new_rows` is next).

        Raises `UserError` where peft is missing, for a name in `target_modules` that no linear layer has, and for
        a rank above the width of the layers."""
        try:
            from peft import LoraConfig, inject_adapter_in_model
        except ImportError as error:
            raise UserError("model.lora needs peft: pip install 'numerate[finetune]'") from error
        width = max(min(part.weight.shape) for part in model.modules() if is_linear(part))
        if self.r > width:
            raise UserError(f"model.lora.r: must be at most {width}, the width of the layers, not {self.r}")
        target_modules: str | list[str] = "all-linear"
        if isinstance(self.target_modules, tuple):
            self._check_targets(model, self.target_modules)
            target_modules = list(self.target_modules)
        config = LoraConfig(r=self.r, lora_alpha=self.alpha, target_modules=target_modules, lora_dropout=self.dropout)
        with warnings.catch_warnings():  # layers of GPT-2 are transposed, which peft notices
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
            inject_adapter_in_model(config, model)
        for adapter in (parameter for parameter in model.parameters() if parameter.requires_grad):
            adapter.data = adapter.data.float()  # small steps are lost in the half precision of frozen weights

    @staticmethod
    def _check_targets(model: Any, target_modules: tuple[str, ...]) -> None:
        names = [f".{name}" for name, part in model.named_modules() if is_linear(part)]
        for target in target_modules:
            if not any(name.endswith(f".{target}") for name in names):
                raise UserError(
                    f"model.lora.target_modules: no linear layer of a {model.config.model_type} is called {target!r}; "
                    f"there are: {', '.join(sorted({name.rpartition('.')[2] for name in names}))}; or all-linear"
                )


class _NewRows(nn.Module):
    """A frozen table with some rows in their place that are trained, in float32."""

    ids: Tensor

    def __init__(self, table: Tensor, ids: list[int]) -> None:
        super().__init__()
        self.register_buffer("ids", torch.tensor(ids), persistent=False)
        self.rows = nn.Parameter(table.detach()[ids].float())

    def forward(self, table: Tensor) -> Tensor:
        return table.index_copy(0, self.ids, self.rows.to(table.dtype))


def train_new_rows(model: Any, vocabulary: Vocabulary) -> None:
    """Makes the rows of tokens that are new to the weights of a model trainable, in its embeddings and its head."""
    if not (ids := new_ids(vocabulary)):
        return
    tables = {part.weight for part in (*token_embeddings(model), model.get_output_embeddings())}
    rows = {id(table): _NewRows(table, ids) for table in tables}
    for part in list(model.modules()):
        if (found := rows.get(id(part._parameters.get("weight")))) is not None:
            register_parametrization(part, "weight", found)


def merge_lora(model: nn.Module) -> None:
    """Puts the adapters and the trained rows of a model into its weights, in place: the same function without peft."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for part in list(model.modules()):
        if is_parametrized(part, "weight"):
            remove_parametrizations(part, "weight")
    for name, part in list(model.named_modules()):
        if isinstance(part, BaseTunerLayer):
            part.merge()
            model.set_submodule(name, part.get_base_layer())


def is_linear(part: nn.Module) -> bool:
    """Whether a module is a linear map; GPT-2 has its own class of them."""
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"
