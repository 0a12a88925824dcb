"""Inductive counting as published: each of its 67 tasks with each of 12 models.

Chang and Bisk (2024), https://arxiv.org/abs/2405.20131. And small recipes: three tasks of the paper for a laptop, each
model trained up to 50 and evaluated up to about 100, and one small model that counts in three ways.
"""

from functools import cache

from numerate.recipes.rows import Row, recipe_functions

# Published ------------------------------------------------------------------------------------------------------------

MODELS = {
    "nope": "transformer without positions",
    "sine": "transformer, shifted sinusoidal positions (SinePE)",
    "ape": "transformer, shifted learned positions (APE)",
    "ape_randomised": "transformer, learned random positions",
    "rope": "transformer, rotary positions (RoPE)",
    "spe": "transformer, shifted scalar position (SPE)",
    "spe_zooming": "transformer, fractional position (not causal)",
    "rnn": "tanh RNN",
    "lstm": "LSTM",
    "s4": "S4",
    "mamba": "Mamba",
    "rwkv": "RWKV-6",
}
"""The published models, in the order of the paper, each with a description."""


@cache
def family() -> dict[str, Row]:
    """Every published task with every model, by name. Underscores at the end of a task's name are not doubled.

    >>> family()["counting_samesymbol_mod10bos_rope"].summary
    'counting_samesymbol_mod10bos, as published: transformer, rotary positions (RoPE).'
    """
    from numerate.published.counting_names import published_tasks

    return {
        f"{task.rstrip('_')}_{model}": Row(
            f"{task}, as published: {summary}.", "counting_paper.published", arguments=(task, model)
        )
        for task in published_tasks()
        if task != "debug"
        for model, summary in MODELS.items()
    }


# Small enough for a laptop --------------------------------------------------------------------------------------------

RECURRENT = "model.backbone.num_layers=1 model.feed_forward=null model.norm=none model.residual=false model.mixer={}"
"""One layer of a recurrent net between embedding and head, without norms or a residual connection."""

LSTM, RNN = RECURRENT.format("LSTM(output_projection=false)"), RECURRENT.format("RNN(output_projection=false)")
NOPE, ROTARY = "paper=nope", "model.positions=[Rotary] paper=rotary"
ALIBI = "model.positions=[ALiBi] paper=alibi"
SINUSOIDAL = "model.positions=[Sinusoidal(position_ids=Shifted(max_shift={},shift_within=128))]"
"""Sinusoidal positions, randomly shifted within 128 in training, with three fixed shifts in evaluation."""

MIN_GRU = "model.mixer=MinGRU paper=min_gru optimizer.learning_rate=2e-3"
LRU = "model.mixer=LRU(r_min=0.9,r_max=0.999) paper=lru optimizer.learning_rate=2e-3"
DELTA_PRODUCT = "model.mixer=DeltaProduct paper=delta_product optimizer.learning_rate=2e-3"
SLOT_LSTM = (
    "model.backbone.num_layers=1 model.mixer=SlotLSTM(num_slots=16,sharpness=2.0) paper=null "
    "optimizer.learning_rate=3e-3"
)
AFTER_BOS, MOD10_BOS = " after a distinct first token", "counting_samesymbol_mod10bos"


def _modulo_10(summary: str, model: str, steps: int = 1200, task: str = "counting_samesymbol_mod10") -> Row:
    """Counts restart after 10. Without a distinct first token, NoPE and rotary transformers see the same at every
    position of such a row, and cannot count at all."""
    settings = f"task={task} training.steps={steps} {model}"
    return Row(f"Counting modulo 10{summary}.", "counting_paper.small", settings)


def _shifted(summary: str, model: str, steps: int = 2000, batch_size: int = 25) -> Row:
    """Counting up from 1 to 50."""
    task = "task=counting_samesymbol_shiftedstart3 evaluation.grid=50:99"
    settings = f"{task} training.steps={steps} training.batch_size={batch_size} {model}"
    return Row(f"Counting up from a number: {summary}.", "counting_paper.small", settings)


def _items(summary: str, model: str, steps: int = 3000) -> Row:
    """Each kind of item is counted separately."""
    task = "task=counting_selective_10items2bos evaluation.grid=1:99"
    settings = f"{task} training.steps={steps} training.batch_size=32 {model}"
    return Row(f"Counting ten kinds of items: {summary}.", "counting_paper.small", settings)


def _universal(summary: str, settings: str) -> Row:
    return Row(summary, "counting_paper.universal", settings)


ROWS = {
    "counting": Row(
        "A small LSTM that counts modulo 10; `task=counting_samesymbol_shiftedstart3` or any other published name.",
        "counting_paper.small",
        f"training.steps=1200 {LSTM} optimizer.learning_rate=5e-3 evaluation.grid=null",
    ),
    "counting_mod10_lstm": _modulo_10(": LSTM", f"{LSTM} optimizer.learning_rate=5e-3"),
    "counting_mod10_rnn": _modulo_10(": tanh RNN", RNN, steps=2000),
    "counting_mod10_nope": _modulo_10(": transformer without positions, with the same input at every position", NOPE),
    "counting_mod10_rotary": _modulo_10(": rotary transformer, with the same input at every position", ROTARY),
    "counting_mod10_sinusoidal": _modulo_10(
        ": transformer with shifted sinusoidal positions, width 128",
        f"{SINUSOIDAL.format(26)} model.hidden_size=128",
        steps=4000,
    ),
    "counting_mod10_alibi": _modulo_10(": transformer with ALiBi, with the same input at every position", ALIBI),
    "counting_mod10_min_gru": _modulo_10(
        ": minGRU, a diagonal recurrence whose decays are positive",
        f"{MIN_GRU} model.mixer=MinGRU(positive_candidates=true,max_initial_memory=100) optimizer.learning_rate=5e-3",
        steps=4000,
    ),
    "counting_mod10_lru": _modulo_10(": LRU, a diagonal recurrence whose eigenvalues are complex", LRU),
    "counting_mod10_delta_product": _modulo_10(": DeltaProduct with two reflections a token", DELTA_PRODUCT),
    "counting_mod10_slot_lstm": _modulo_10(": a slot LSTM with several memories", SLOT_LSTM),
    "counting_mod10bos_nope": _modulo_10(f"{AFTER_BOS}: transformer without positions", NOPE, task=MOD10_BOS),
    "counting_mod10bos_rotary": _modulo_10(f"{AFTER_BOS}: rotary transformer", ROTARY, task=MOD10_BOS),
    "counting_shifted_lstm": _shifted(
        "LSTM with label smoothing",
        f"{LSTM} optimizer.learning_rate=5e-3 objective.loss.label_smoothing=0.1",
        steps=6000,
        batch_size=50,
    ),
    "counting_shifted_rnn": _shifted("tanh RNN", RNN, steps=6000, batch_size=50),
    "counting_shifted_nope": _shifted("transformer without positions", NOPE),
    "counting_shifted_rotary": _shifted("rotary transformer", ROTARY),
    "counting_shifted_sinusoidal": _shifted("transformer with shifted sines and cosines", SINUSOIDAL.format(27)),
    "counting_shifted_alibi": _shifted("transformer with ALiBi", ALIBI),
    "counting_shifted_min_gru": _shifted("minGRU, a diagonal recurrence", MIN_GRU),
    "counting_shifted_lru": _shifted("LRU, a diagonal recurrence whose eigenvalues are complex", LRU),
    "counting_shifted_delta_product": _shifted("DeltaProduct with two reflections a token", DELTA_PRODUCT),
    "counting_shifted_slot_lstm": _shifted("a slot LSTM with several memories", SLOT_LSTM, steps=3000, batch_size=50),
    "counting_items_lstm": _items(
        "LSTM of width 128", f"{LSTM} model.hidden_size=128 optimizer.learning_rate=5e-3", steps=4000
    ),
    "counting_items_rnn": _items(
        "tanh RNN of width 128", f"{RNN} model.hidden_size=128 optimizer.learning_rate=5e-4", steps=4000
    ),
    "counting_items_nope": _items("transformer without positions", NOPE),
    "counting_items_rotary": _items("rotary transformer", ROTARY),
    "counting_items_sinusoidal": _items("transformer with shifted sines and cosines", SINUSOIDAL.format(27)),
    "counting_items_alibi": _items("transformer with ALiBi", ALIBI),
    "counting_items_min_gru": _items("minGRU, a diagonal recurrence", MIN_GRU),
    "counting_items_delta_product": _items("DeltaProduct with two reflections a token", DELTA_PRODUCT),
    "counting_items_slot_lstm": _items("a slot LSTM, one memory for each kind", SLOT_LSTM),
    "counting_universal_shifted": _universal(
        "Counting up from 0 to 150, trained on 50 symbols and evaluated up to 200; 100 % of unseen counts, 5 seeds.",
        "task=counting_samesymbol_shiftedstart3__tr50_te200__ evaluation.grid=50:60+65:200:5",
    ),
    "counting_universal_modular": _universal(
        "Counting modulo 10 after a first token, trained up to 50 symbols and evaluated up to 200, by the same model.",
        "task=counting_samesymbol_mod10bos evaluation.grid=1:60+65:200:5",
    ),
    "counting_universal_items": _universal(
        "Counting ten kinds of items, trained on lists of up to 50 and evaluated up to 100, by the same model.",
        "task=counting_selective_10items2bos evaluation.grid=1:100",
    ),
    "counting_universal_jointly": _universal(
        "All three with the same weights, trained on a third of each; task.task_index=0,1,2 evaluates one of them.",
        "task=Mixture([counting_samesymbol_shiftedstart3__tr50_te200__,counting_samesymbol_mod10bos,"
        "counting_selective_10items2bos]) evaluation.grid=50:100 training.steps=15000",
    ),
}
"""The small recipes by name."""

__getattr__ = recipe_functions(__name__, ROWS)
