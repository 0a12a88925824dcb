"""The recipes of the golden comparison: each is a name and settings, made small by `preset=debug`.

Together they use every task, number format, positional encoding, mixer, loss, layout and objective that numerate has
(`tests/test_golden.py` holds it). The folders `stories` and `llama` are made by `record.py`, in the folder that
it works in.
"""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
TEXTS = TESTS / "text" / "texts"
TOKENIZER = TESTS / "text" / "tiny"

SUMS = ("addition_abacus", "task.digits=1:3", "model.hidden_size=32")
DECODER = ("number_loss_small_decoder_ce", "model.hidden_size=32")
T5 = ("number_loss_small_ce", "model.hidden_size=32")
SUBWORDS = f"tokenizer=Subwords(tokenizer={TOKENIZER},number_format=PerDigit)"
MATHEMATICS = (
    "task=Mathematics(modules=arithmetic__mul,extrapolation_modules=arithmetic__mul_big,difficulties=easy,"
    f"data_dir={TEXTS})"
)
COUNTING = ("counting_mod10_nope", "model.hidden_size=32")
WIDE = "model.hidden_size=64"  # for mixers whose heads need it

CASES: dict[str, tuple[str, ...]] = {
    # Published recipes, as they are.
    "abacus": ("addition_abacus",),
    "abacus looped, FIRE": ("addition6_looped",),
    "abacus, far": ("addition_far",),
    "published addition": ("addition_ff_ii_abacus_rope",),
    "published addition, randomised": ("addition_ff_randomised_fire",),
    "published addition, looped, progressive": ("addition_lt_abacus_8x2",),
    "addition and subtraction": ("addition_subtraction_lt_abacus_8x2",),
    "published multiplication": ("multiplication_abacus_fire",),
    "published sorting": ("sorting_lt_abacus_fire",),
    "published bitwise OR": ("bitwise_or_16x1_ii_fire",),
    "counting shifted": ("counting_shifted_slot_lstm",),
    "counting items": ("counting_items_min_gru",),
    "counting jointly": ("counting_universal_jointly",),
    "published counting": ("counting_mod10_delta_product",),
    "T5, regression": ("number_loss_small_regression",),
    "T5, xVal": ("number_loss_small_xval",),
    "T5, regression transformer": ("number_loss_small_rt",),
    "T5, number level": ("number_loss_small_number_level",),
    "decoder, Gaussian": ("number_loss_small_decoder_gaussian",),
    "decoder, NTL-MSE": ("number_loss_small_decoder_mse",),
    "Numformer": (
        "mathematics_numformer",
        MATHEMATICS,
        "tokenizer.tokenizer=characters",
        "tokenizer.number_format=XVal",
    ),
    # Tasks and layouts.
    "addition table": (*COUNTING, "task=AdditionTable"),
    "number line": (*COUNTING, "task=NumberLine"),
    "RASP counting": (*COUNTING, "task=RaspCounting"),
    "rows of a file": (*SUMS, f"task=ExampleFile(path={TESTS / 'text' / 'sums.txt'})"),
    "jokes": (*T5, f"task=RJokes(data_dir={TEXTS})", SUBWORDS),
    "mathematics": (*T5, MATHEMATICS),
    "files of questions": (*DECODER, f"task=QuestionFiles(train_file={TEXTS / 'questions.jsonl'})", SUBWORDS),
    "reading": (*T5, f"task=MultiRC(data_dir={TEXTS})"),
    "word problems": (*DECODER, f"task=GSM8K(data_dir={TEXTS})", SUBWORDS),
    "multiplication in words": (*T5, "task=Multiplication", SUBWORDS),
    "running text": (
        "tiny_stories_laptop_dual",
        "task=LanguageModeling(train=stories/train,validation=stories/validation,tokenizer=characters,context_length=32)",
    ),
    "pretrained decoder": (*DECODER, SUBWORDS, "model=PretrainedDecoder(weights=llama)"),
    # Number formats.
    "groups of digits": (*DECODER, SUBWORDS, "tokenizer.number_format=Groups"),
    "FoNE": (*DECODER, SUBWORDS, "tokenizer.number_format=FoNE"),
    "FoNE embeddings": (
        "number_loss_small_xval",
        "tokenizer.number_format=FoNE",
        "model.number_embedding=FoNEEmbedding",
    ),
    "bits of floats": (*DECODER, SUBWORDS, "tokenizer.number_format=IEEEBits"),
    "numbers as they are": (*DECODER, SUBWORDS, "tokenizer.number_format=AsIs"),
    # Losses, and number embeddings.
    "soft labels": (*DECODER, "objective.loss=SoftLabels"),
    "NTL-WAS": (*DECODER, "objective.loss=NumberToken"),
    # Positions, on sums.
    **{
        f"positions {name}": (*SUMS, f"model.positions=[{name}]")
        for name in (
            "ALiBi",
            "CoPE",
            "Learned(position_ids=RandomSubset(max_length=64))",
            "ScaledSinusoidal",
            "Sinusoidal(position_ids=Shifted(max_shift=9))",
            "T5Bias(position_ids=Coupled(max_offset=3))",
            "Rotary(partial_rotary_factor=0.5)",
        )
    },
    "positions by fractions of a row": (*COUNTING, "model.positions=[Scalar(position_ids=Zooming)]"),
    # Mixers, on sums, so that the answer is decoded by steps, too.
    **{
        f"mixer {name}": (*SUMS, WIDE, f"model.mixer={name}", "model.positions=[]")
        for name in (
            "DeltaNet",
            "GRU",
            "GatedDeltaNet",
            "LRU",
            "LSTM",
            "Mamba",
            "Mamba2",
            "Phasor",
            "RNN",
            "Alternating(mixers=[RWKV6,ChannelMix])",
            "RWKV6",
            "RWKV7",
            "S4",
            "SLSTM",
            "DualAttention(symbols=PositionalSymbols)",
            "DualAttention(symbols=PositionRelativeSymbols)",
            "DualAttention(symbols=SymbolicAttention,variant=rca)",
        )
    },
    # Initialisations, schedules, optimisation.
    **{
        f"initialisation {name}": (*SUMS, f"model.initialization={name}", f"schedule={schedule}")
        for name, schedule in (
            ("FanIn", "Cosine"),
            ("Normal", "Linear"),
            ("TorchDefault", "Plateau"),
            ("Xavier", "OneCycle"),
        )
    },
    "accumulated, dropout, no clipping": (
        *SUMS,
        "training.gradient_accumulation_steps=2",
        "model.dropout=0.1",
        "optimizer.max_grad_norm=null",
        "schedule=Constant",
    ),
    "abacus, farther": ("addition_1000",),
    "BART": (*T5, SUBWORDS, "model=PretrainedSeq2Seq", "layout.decoder_start_token=eos"),
}
