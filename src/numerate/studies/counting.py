"""Counting by many architectures at a laptop's size, and one architecture on three counting tasks."""

from numerate import recipes
from numerate.studies.study import Study, comparison_study

SEEDS = 5
"""Seeds of each architecture: differences between architectures are often small compared with those between seeds."""


def counting_laptop() -> Study:
    """Three counting tasks, recurrent nets against transformers and diagonal recurrences, five seeds each."""
    return comparison_study(
        "counting_laptop",
        "Which architectures count beyond 50, the largest trained count: modulo 10, up from any number, and ten "
        "kinds of items, each counted separately?",
        {
            recipes.counting_mod10_rnn: "modulo 10: RNN",
            recipes.counting_mod10_lstm: "modulo 10: LSTM",
            recipes.counting_mod10_nope: "modulo 10: NoPE",
            recipes.counting_mod10_rotary: "modulo 10: rotary",
            recipes.counting_mod10_min_gru: "modulo 10: minGRU",
            recipes.counting_mod10_lru: "modulo 10: LRU",
            recipes.counting_mod10_delta_product: "modulo 10: DeltaProduct",
            recipes.counting_shifted_lstm: "shifted: LSTM",
            recipes.counting_shifted_rnn: "shifted: RNN",
            recipes.counting_shifted_nope: "shifted: NoPE",
            recipes.counting_shifted_sinusoidal: "shifted: sinusoidal",
            recipes.counting_shifted_rotary: "shifted: rotary",
            recipes.counting_shifted_alibi: "shifted: ALiBi",
            recipes.counting_items_nope: "items: NoPE",
            recipes.counting_items_lstm: "items: LSTM",
            recipes.counting_items_rnn: "items: RNN",
        },
        seeds=SEEDS,
    )


def counting_universal() -> Study:
    """One architecture, trained separately on three counting tasks with up to 50 symbols, evaluated up to 200."""
    return comparison_study(
        "counting_universal",
        "Does one small architecture count up from any number, modulo 10, and ten kinds of items, each far beyond the "
        "50 symbols it was trained on?",
        {
            recipes.counting_universal_shifted: "shifted start",
            recipes.counting_universal_modular: "modulo 10",
            recipes.counting_universal_items: "ten items",
        },
        seeds=SEEDS,
    )
