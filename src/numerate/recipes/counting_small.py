"""Counting, small enough for a laptop: three tasks of one paper, recurrent nets against transformers.

After Chang and Bisk (2024), https://arxiv.org/abs/2405.20131, at smaller sizes (width 64 to 128, one or two
layers, some thousand steps): each model is trained up to 50 and evaluated up to about 100.

- `mod10`: `counting_samesymbol_mod10`, where counts restart after 10. Without a distinct first token, NoPE
  and rotary transformers see the same at every position of such a row, and cannot count at all.
- `shifted`: `counting_samesymbol_shiftedstart3`, counting up from 1 to 50.
- `items`: `counting_selective_10items2bos`, ten kinds of items, each counted separately.
"""

from dataclasses import replace

from numerate.architectures.delta import DeltaProduct
from numerate.architectures.lru import LRU
from numerate.architectures.slot_lstm import SlotLSTM
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.mixers.attention import Attention
from numerate.mixers.min_gru import MinGRU
from numerate.mixers.mixer import Mixer
from numerate.mixers.recurrent import LSTM, RNN
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.positions.added import Sinusoidal
from numerate.positions.bias import ALiBi
from numerate.positions.position import Position
from numerate.positions.position_ids import Shifted
from numerate.positions.rotary import Rotary
from numerate.published.counting_names import published_tasks
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import Cosine

MOD10 = "counting_samesymbol_mod10"
MOD10_BOS = "counting_samesymbol_mod10bos"
SHIFTED = "counting_samesymbol_shiftedstart3"
ITEMS = "counting_selective_10items2bos"


def counting() -> Recipe:
    """A small LSTM that counts modulo 10; `task=counting_samesymbol_shiftedstart3` or any other published name."""
    return replace(counting_mod10_lstm(), title="counting", evaluation=Evaluation(examples_per_cell=100))


# Modulo 10 ---------------------------------------------------------------------------------------------------------


def counting_mod10_lstm() -> Recipe:
    """Counting modulo 10: LSTM."""
    return _counting(
        "counting_mod10_lstm", MOD10, recurrent_model(LSTM(output_projection=False)), learning_rate=5e-3, steps=1200
    )


def counting_mod10_rnn() -> Recipe:
    """Counting modulo 10: tanh RNN."""
    return _counting(
        "counting_mod10_rnn", MOD10, recurrent_model(RNN(output_projection=False)), learning_rate=1e-3, steps=2000
    )


def counting_mod10_nope() -> Recipe:
    """Counting modulo 10: transformer without positions, with the same input at every position."""
    return _counting("counting_mod10_nope", MOD10, transformer(), steps=1200, paper="nope")


def counting_mod10_rotary() -> Recipe:
    """Counting modulo 10: rotary transformer, with the same input at every position."""
    return _counting("counting_mod10_rotary", MOD10, transformer(Rotary()), steps=1200, paper="rotary")


def counting_mod10_sinusoidal() -> Recipe:
    """Counting modulo 10: transformer with shifted sinusoidal positions, width 128."""
    return _counting(
        "counting_mod10_sinusoidal", MOD10, transformer(shifted_sinusoidal(26), hidden_size=128), steps=4000
    )


def counting_mod10_alibi() -> Recipe:
    """Counting modulo 10: transformer with ALiBi, with the same input at every position."""
    return _counting("counting_mod10_alibi", MOD10, transformer(ALiBi()), steps=1200, paper="alibi")


def counting_mod10_min_gru() -> Recipe:
    """Counting modulo 10: minGRU, a diagonal recurrence whose decays are positive."""
    model = two_layer_model(MinGRU(positive_candidates=True, max_initial_memory=100))
    return _counting("counting_mod10_min_gru", MOD10, model, learning_rate=5e-3, steps=4000, paper="min_gru")


def counting_mod10_lru() -> Recipe:
    """Counting modulo 10: LRU, a diagonal recurrence whose eigenvalues are complex."""
    return _counting(
        "counting_mod10_lru",
        MOD10,
        two_layer_model(LRU(r_min=0.9, r_max=0.999)),
        learning_rate=2e-3,
        steps=1200,
        paper="lru",
    )


def counting_mod10_delta_product() -> Recipe:
    """Counting modulo 10: DeltaProduct with two reflections a token."""
    model = two_layer_model(DeltaProduct())
    return _counting(
        "counting_mod10_delta_product", MOD10, model, learning_rate=2e-3, steps=1200, paper="delta_product"
    )


def counting_mod10_slot_lstm() -> Recipe:
    """Counting modulo 10: a slot LSTM with several memories."""
    return _counting("counting_mod10_slot_lstm", MOD10, slot_lstm(), learning_rate=3e-3, steps=1200, paper=None)


def counting_mod10bos_nope() -> Recipe:
    """Counting modulo 10 after a distinct first token: transformer without positions."""
    return _counting("counting_mod10bos_nope", MOD10_BOS, transformer(), steps=1200, paper="nope")


def counting_mod10bos_rotary() -> Recipe:
    """Counting modulo 10 after a distinct first token: rotary transformer."""
    return _counting("counting_mod10bos_rotary", MOD10_BOS, transformer(Rotary()), steps=1200, paper="rotary")


# Up from any number ------------------------------------------------------------------------------------------------


def counting_shifted_lstm() -> Recipe:
    """Counting up from a number: LSTM with label smoothing."""
    found = _counting(
        "counting_shifted_lstm",
        SHIFTED,
        recurrent_model(LSTM(output_projection=False)),
        learning_rate=5e-3,
        steps=6000,
        batch_size=50,
    )
    return replace(found, objective=Supervised(loss=CrossEntropy(label_smoothing=0.1)))


def counting_shifted_rnn() -> Recipe:
    """Counting up from a number: tanh RNN."""
    return _counting(
        "counting_shifted_rnn",
        SHIFTED,
        recurrent_model(RNN(output_projection=False)),
        learning_rate=1e-3,
        steps=6000,
        batch_size=50,
    )


def counting_shifted_nope() -> Recipe:
    """Counting up from a number: transformer without positions."""
    return _counting("counting_shifted_nope", SHIFTED, transformer(), steps=2000, batch_size=25, paper="nope")


def counting_shifted_rotary() -> Recipe:
    """Counting up from a number: rotary transformer."""
    return _counting(
        "counting_shifted_rotary", SHIFTED, transformer(Rotary()), steps=2000, batch_size=25, paper="rotary"
    )


def counting_shifted_sinusoidal() -> Recipe:
    """Counting up from a number: transformer with shifted sines and cosines."""
    return _counting(
        "counting_shifted_sinusoidal", SHIFTED, transformer(shifted_sinusoidal(27)), steps=2000, batch_size=25
    )


def counting_shifted_alibi() -> Recipe:
    """Counting up from a number: transformer with ALiBi."""
    return _counting("counting_shifted_alibi", SHIFTED, transformer(ALiBi()), steps=2000, batch_size=25, paper="alibi")


def counting_shifted_min_gru() -> Recipe:
    """Counting up from a number: minGRU, a diagonal recurrence."""
    model = two_layer_model(MinGRU())
    return _counting(
        "counting_shifted_min_gru", SHIFTED, model, learning_rate=2e-3, steps=2000, batch_size=25, paper="min_gru"
    )


def counting_shifted_lru() -> Recipe:
    """Counting up from a number: LRU, a diagonal recurrence whose eigenvalues are complex."""
    model = two_layer_model(LRU(r_min=0.9, r_max=0.999))
    return _counting("counting_shifted_lru", SHIFTED, model, learning_rate=2e-3, steps=2000, batch_size=25, paper="lru")


def counting_shifted_delta_product() -> Recipe:
    """Counting up from a number: DeltaProduct with two reflections a token."""
    title, model = "counting_shifted_delta_product", two_layer_model(DeltaProduct())
    return _counting(title, SHIFTED, model, learning_rate=2e-3, steps=2000, batch_size=25, paper="delta_product")


def counting_shifted_slot_lstm() -> Recipe:
    """Counting up from a number: a slot LSTM with several memories."""
    return _counting(
        "counting_shifted_slot_lstm", SHIFTED, slot_lstm(), learning_rate=3e-3, steps=3000, batch_size=50, paper=None
    )


# Each kind of item separately --------------------------------------------------------------------------------------


def counting_items_lstm() -> Recipe:
    """Counting ten kinds of items: LSTM of width 128."""
    model = recurrent_model(LSTM(output_projection=False), hidden_size=128)
    return _counting("counting_items_lstm", ITEMS, model, learning_rate=5e-3, steps=4000, batch_size=32)


def counting_items_rnn() -> Recipe:
    """Counting ten kinds of items: tanh RNN of width 128."""
    model = recurrent_model(RNN(output_projection=False), hidden_size=128)
    return _counting("counting_items_rnn", ITEMS, model, learning_rate=5e-4, steps=4000, batch_size=32)


def counting_items_nope() -> Recipe:
    """Counting ten kinds of items: transformer without positions."""
    return _counting("counting_items_nope", ITEMS, transformer(), steps=3000, batch_size=32, paper="nope")


def counting_items_rotary() -> Recipe:
    """Counting ten kinds of items: rotary transformer."""
    return _counting("counting_items_rotary", ITEMS, transformer(Rotary()), steps=3000, batch_size=32, paper="rotary")


def counting_items_sinusoidal() -> Recipe:
    """Counting ten kinds of items: transformer with shifted sines and cosines."""
    return _counting("counting_items_sinusoidal", ITEMS, transformer(shifted_sinusoidal(27)), steps=3000, batch_size=32)


def counting_items_alibi() -> Recipe:
    """Counting ten kinds of items: transformer with ALiBi."""
    return _counting("counting_items_alibi", ITEMS, transformer(ALiBi()), steps=3000, batch_size=32, paper="alibi")


def counting_items_min_gru() -> Recipe:
    """Counting ten kinds of items: minGRU, a diagonal recurrence."""
    model = two_layer_model(MinGRU())
    return _counting(
        "counting_items_min_gru", ITEMS, model, learning_rate=2e-3, steps=3000, batch_size=32, paper="min_gru"
    )


def counting_items_delta_product() -> Recipe:
    """Counting ten kinds of items: DeltaProduct with two reflections a token."""
    title, model = "counting_items_delta_product", two_layer_model(DeltaProduct())
    return _counting(title, ITEMS, model, learning_rate=2e-3, steps=3000, batch_size=32, paper="delta_product")


def counting_items_slot_lstm() -> Recipe:
    """Counting ten kinds of items: a slot LSTM, one memory for each kind."""
    return _counting(
        "counting_items_slot_lstm", ITEMS, slot_lstm(), learning_rate=3e-3, steps=3000, batch_size=32, paper=None
    )


# Models ---------------------------------------------------------------------------------------------


def recurrent_model(mixer: Mixer, *, hidden_size: int = 64) -> Decoder:
    """One layer of a recurrent net between embedding and head, without norms or a residual connection."""
    return Decoder(
        hidden_size=hidden_size,
        backbone=Stack(num_layers=1),
        mixer=mixer,
        feed_forward=None,
        norm="none",
        residual=False,
    )


def two_layer_model(mixer: Mixer) -> Decoder:
    """Two layers of width 64, each a mixer and a feed-forward."""
    return Decoder(hidden_size=64, backbone=Stack(num_layers=2), mixer=mixer)


def transformer(*positions: Position, hidden_size: int = 64) -> Decoder:
    """A transformer of two layers and four heads."""
    return Decoder(
        hidden_size=hidden_size, backbone=Stack(num_layers=2), mixer=Attention(num_heads=4), positions=positions
    )


def shifted_sinusoidal(max_shift: int) -> Position:
    """Sinusoidal positions, randomly shifted within 128 in training, with three shifts of 0 to `max_shift` in
    evaluation."""
    return Sinusoidal(position_ids=Shifted(max_shift=max_shift, shift_within=128))


def slot_lstm() -> Decoder:
    """One layer of an LSTM with 16 memories."""
    return Decoder(hidden_size=64, backbone=Stack(num_layers=1), mixer=SlotLSTM(num_slots=16, sharpness=2.0))


def _counting(
    title: str,
    task: str,
    model: Decoder,
    *,
    learning_rate: float = 1e-3,
    steps: int,
    batch_size: int = 16,
    paper: str | None = "counting",
) -> Recipe:
    grids = {SHIFTED: "50:99", ITEMS: "1:99"}
    return Recipe(
        task=published_tasks()[task].task,
        tokenizer=Words(),
        layout=TokenClassification(),
        model=model,
        optimizer=AdamW(learning_rate=learning_rate, weight_decay=0.01, max_grad_norm=1.0),
        schedule=Cosine(warmup=200),
        training=Training(steps=steps, batch_size=batch_size, threads=1),
        evaluation=Evaluation(grid=grids.get(task, "1:100"), examples_per_cell=100),
        title=title,
        paper=paper,
    )
