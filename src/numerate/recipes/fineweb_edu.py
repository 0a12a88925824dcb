"""Dual attention on FineWeb-Edu: 10 billion tokens with models of 343 million to 1.37 billion parameters.

Altabaa and Lafferty (2025), https://arxiv.org/abs/2405.16727, with the settings of
https://github.com/Awni00/abstract_transformer, `fineweb/`. The shards (`edufineweb_train_000001.npy` ..., 100 million
tokens of GPT-2's each, and one with `val` in its name) are those of https://github.com/karpathy/build-nanogpt, in the
folder `fineweb_edu` of the user's data; `task.train=FOLDER` names another. Parameters are those that learn: the symbol
library is frozen. Heads are 64 wide, as which the published numbers of parameters come out; the perplexities beside the
names are published, of one run each.

Differences from the published code: no tokens are left out at a shard's end, an evaluation reads batches of a whole
step, of which 3 are some 1.6 million tokens, and rows of a part (`training.micro_batch_size`) are ours.
"""

from numerate.evaluation.evaluator import Evaluation
from numerate.models.decoder import Decoder
from numerate.published.dual_attention_models import current
from numerate.tasks.language_modeling import LanguageModeling
from numerate.text.tokenizers.token_ids import TokenIds
from numerate.tokenizers.layout import NextToken
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Cosine

STEPS, CONTEXT_LENGTH, TOKENS_PER_STEP = 19_073, 1024, 524_288
"""The training settings for steps of this many tokens, in rows as long as the context."""


def fineweb_edu_transformer_353m() -> Recipe:
    """Transformer, width 1,024, 16 heads; published perplexity 16.94."""
    return _recipe("transformer_353m", transformer(1024))


def fineweb_edu_dual_343m() -> Recipe:
    """Dual attention, width 1,024, 8+8 heads, 4 of keys and values, 64 relations; published perplexity 16.09."""
    return _recipe("dual_343m", dual_attention(1024, num_relations=64, num_key_value_heads=4))


def fineweb_edu_dual_343m_r32() -> Recipe:
    """Dual attention, width 1,024, 8+8 heads, 4 of keys and values, 32 relations; published perplexity 16.14."""
    return _recipe("dual_343m_r32", dual_attention(1024, num_relations=32, num_key_value_heads=4))


def fineweb_edu_dual_343m_r8() -> Recipe:
    """Dual attention, width 1,024, 8+8 heads, 4 of keys and values, 8 relations; published perplexity 16.26."""
    return _recipe("dual_343m_r8", dual_attention(1024, num_relations=8, num_key_value_heads=4))


def fineweb_edu_dual_368m() -> Recipe:
    """Dual attention, width 1,024, 8+8 heads, each with its own keys and values; published perplexity 15.97.

    The paper does not give its number of relations; 32 here."""
    return _recipe("dual_368m", dual_attention(1024, num_relations=32, num_key_value_heads=8))


def fineweb_edu_transformer_757m() -> Recipe:
    """Transformer, width 1,536, 24 heads; published perplexity 14.65."""
    return _recipe("transformer_757m", transformer(1536))


def fineweb_edu_dual_734m() -> Recipe:
    """Dual attention, width 1,536, 12+12 heads, 6 of keys and values, 64 relations; published perplexity 14.31."""
    return _recipe("dual_734m", dual_attention(1536, num_relations=64, num_key_value_heads=6))


def fineweb_edu_transformer_1_31b() -> Recipe:
    """Transformer, width 2,048, 32 heads; published perplexity 13.63."""
    return _recipe("transformer_1_31b", transformer(2048))


def fineweb_edu_dual_1_27b() -> Recipe:
    """Dual attention, width 2,048, 16+16 heads, 8 of keys and values, 64 relations; published perplexity 13.44."""
    return _recipe(
        "dual_1_27b",
        dual_attention(2048, num_relations=64, num_key_value_heads=8, num_symbols=2048, num_symbol_heads=16),
    )


def fineweb_edu_dual_1_37b() -> Recipe:
    """Dual attention, width 2,048, 16+16 heads, each with its own keys and values; published perplexity 13.43."""
    return _recipe(
        "dual_1_37b",
        dual_attention(2048, num_relations=64, num_key_value_heads=None, num_symbols=2048, num_symbol_heads=16),
    )


def transformer(hidden_size: int) -> Decoder:
    """The published Transformer of a width, of 24 layers."""
    return current(
        hidden_size=hidden_size,
        num_layers=24,
        num_self_heads=hidden_size // 64,
        num_relational_heads=0,
        context_length=CONTEXT_LENGTH,
        activation="gelu",
        dropout=0.0,
    )


def dual_attention(
    hidden_size: int,
    *,
    num_relations: int,
    num_key_value_heads: int | None,
    num_symbols: int = 1024,
    num_symbol_heads: int = 8,
) -> Decoder:
    """The published dual attention of a width: half of its heads relational, a frozen symbol library."""
    return current(
        hidden_size=hidden_size,
        num_layers=24,
        num_self_heads=hidden_size // 128,
        num_relational_heads=hidden_size // 128,
        context_length=CONTEXT_LENGTH,
        activation="gelu",
        dropout=0.0,
        num_relations=num_relations,
        num_key_value_heads=num_key_value_heads,
        trainable_symbols=False,
        num_symbols=num_symbols,
        num_symbol_heads=num_symbol_heads,
    )


def _recipe(name: str, model: Decoder) -> Recipe:
    return Recipe(
        task=LanguageModeling("fineweb_edu", tokenizer="gpt2", context_length=CONTEXT_LENGTH, order="sequential"),
        tokenizer=TokenIds(pad_to_multiple_of=128),
        layout=NextToken(),
        model=model,
        optimizer=AdamW(learning_rate=6e-4, betas=(0.9, 0.95), weight_decay=0.1, max_grad_norm=1.0),
        schedule=Cosine(warmup=715, min_lr_ratio=0.1, warmup_endpoints="to_one", decay_end=STEPS),
        training=Training(
            steps=STEPS,
            batch_tokens=TOKENS_PER_STEP,
            micro_batch_size=16,
            shuffle_window=1,
            precision="bf16",
            tf32=True,
            compile=True,
            log_every=1,
            evaluate_every=250,
            checkpoint_every=1000,
            checkpoint_minutes=30,
            best_metric="loss",
            log_layer_grad_norms=True,
        ),
        evaluation=Evaluation(validation_batches=3),
        title=f"fineweb_edu_{name}",
        paper="dual_attention",
    )
