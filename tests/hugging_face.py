"""What tests of Hugging Face's libraries share: the libraries, imported at first use, tiny models, exported runs."""

import re
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerate.architectures.dual_attention import DualAttention
from numerate.architectures.mamba import Mamba
from numerate.architectures.symbols import PositionRelativeSymbols, SymbolicAttention
from numerate.batch import Tokens
from numerate.config import identity, to_tree
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.mixers.alternating import Alternating
from numerate.mixers.attention import Attention
from numerate.mixers.recurrent import LSTM
from numerate.models.backbone import Loop
from numerate.models.decoder import Decoder
from numerate.positions.added import Learned
from numerate.positions.bias import FIRE
from numerate.positions.position_ids import DigitIndex
from numerate.positions.rotary import Rotary
from numerate.runs.run import Run
from numerate.tasks.arithmetic import Arithmetic
from numerate.training import checkpoint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="the extra huggingface")

QUIET = [
    needs_transformers,
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""The `pytestmark` of a file whose tests use transformers."""


class _Transformers:
    """The module transformers, whose import takes seconds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("transformers"), name)


transformers: Any = _Transformers()


def examples_of(page: str) -> list[str]:
    """The blocks of Python in a page of the documentation."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def pair_tokenizer() -> Any:
    """A tokenizer of the library tokenizers, whose numbers of two digits are one piece each, as T5 has them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = ["<pad>", "</s>", "<unk>", *map(str, range(10)), *map(str, range(10, 100)), "+", "=", " "]
    made = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[0-9]{1,2}|."), "isolated")
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return made


def byte_tokenizer(*more_tokens: str) -> Any:
    """One token a byte, and special tokens, of which the fourth may be `<unk>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(
        models.BPE({token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *more_tokens, *letters])}, [])
    )
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    roles |= {"unk_token": "<unk>"} if "<unk>" in more_tokens else {}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **roles)


def tiny_llama(num_layers: int = 1, vocab_size: int = 272) -> Any:
    """A random decoder for `byte_tokenizer`, whose rows are padded: the tokenizer has 259 tokens."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(config)


def generate(model: Any, inputs: Any, max_new_tokens: int) -> tuple[list[list[int]], list[float]]:
    """The ids that transformers generates greedily for each row, up to the end token 2, and their log-probability."""
    output = model.generate(
        **{name: inputs[name] for name in ("input_ids", "attention_mask")},
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    ids = [until(row, 2) for row in output.sequences[:, -len(output.scores) :].tolist()]
    return ids, [float(row[: len(own)].sum()) for row, own in zip(scores, ids, strict=True)]


def until(ids: list[int], end: int) -> list[int]:
    """The ids up to the end token."""
    return ids[: ids.index(end) + 1] if end in ids else ids


CHAT_TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)


def tiny_t5(dropout_rate: float = 0.1) -> Any:
    """A random encoder-decoder for `byte_tokenizer`."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=259,
        dropout_rate=dropout_rate,
        d_model=16,
        num_layers=1,
        num_heads=2,
        d_kv=8,
        d_ff=16,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def save_model(folder: Path, kind: str = "llama", *, chat_template: str | None = None, scale: float = 8.0) -> Path:
    """A folder of a random `llama` or `t5` with its tokenizer, as `save_pretrained` writes it. Its weights are `scale`
    times those of initialization, so that no two tokens are about equally likely."""
    model, tokenizer = tiny_t5() if kind == "t5" else tiny_llama(vocab_size=259), byte_tokenizer()
    if kind == "t5":
        from tokenizers.processors import TemplateProcessing

        with_eos = TemplateProcessing(single="$0 </s>", special_tokens=[("</s>", tokenizer.eos_token_id)])
        tokenizer.backend_tokenizer.post_processor = with_eos
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    tokenizer.chat_template = chat_template
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_models(folder: Path) -> dict[str, Path]:
    """Folders of a `llama`, of a `t5`, and of a `chat` model, which has a chat template."""
    return {
        "llama": save_model(folder / "llama"),
        "t5": save_model(folder / "t5", "t5"),
        "chat": save_model(folder / "chat", chat_template=CHAT_TEMPLATE),
    }


# Exported runs --------------------------------------------------------------------------------------------------------


DECODERS = {
    "dual_attention": Decoder(
        hidden_size=16,
        mixer=DualAttention(symbols=SymbolicAttention(trainable=False)),
        positions=(Rotary(),),
        tie_word_embeddings=True,
    ),
    "distances": Decoder(hidden_size=16, mixer=DualAttention(symbols=PositionRelativeSymbols()), positions=(Rotary(),)),
    "lstm": Decoder(hidden_size=16, mixer=LSTM()),
    "alternating": Decoder(hidden_size=16, mixer=Alternating(mixers=(Mamba(), Attention(num_heads=2)))),
    "loop": Decoder(
        hidden_size=16,
        backbone=Loop(num_layers=1, num_loops=3, input_injection="linear", initial_state="noise"),
        mixer=Attention(num_heads=2),
    ),
    "abacus": Decoder(
        hidden_size=16, mixer=Attention(num_heads=2), positions=(Learned(position_ids=DigitIndex(max_offset=9)),)
    ),
    "fire": Decoder(hidden_size=16, mixer=Attention(num_heads=2), positions=(FIRE(),)),
}


def recipe_of(model: Any = DECODERS["dual_attention"], **changes: Any) -> Recipe:
    return replace(Recipe(task=Arithmetic(), model=model, device="cpu", title="small"), **changes)


def run_of(recipe: Recipe, step: int = 7) -> Run:
    """A run as training leaves it, but for the training: no weight has its initial value."""
    exam = EvaluationData(recipe.task, recipe.tokenizer, recipe.layout)
    model = recipe.model.build(exam.vocabulary, recipe.seed)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    folder = RunFolder.create(Path("runs"), recipe.title, identity(recipe), {"recipe": to_tree(recipe)})
    with folder.lock():
        checkpoint.write(folder.checkpoints, step, {"weights": model.state_dict()}, {"progress": {}})
    return Run(folder)


def ids_of(lengths: tuple[int, ...] = (9, 4, 6)) -> tuple[Tokens, Tensor]:
    """Rows as our models read them, and which places are real."""
    ids = torch.randint(4, 19, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    sizes = torch.tensor(lengths)
    real = torch.arange(max(lengths)) < sizes[:, None]
    return Tokens(ids * real, sizes, torch.arange(len(lengths))), real


def on_the_left(tokens: Tokens, real: Tensor) -> tuple[Tensor, Tensor]:
    rolled = [
        (row.roll(int(-n)), mask.roll(int(-n))) for row, mask, n in zip(tokens.ids, real, tokens.lengths, strict=True)
    ]
    return torch.stack([row for row, _ in rolled]), torch.stack([mask for _, mask in rolled])
