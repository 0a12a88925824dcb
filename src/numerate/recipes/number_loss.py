"""Number losses and number formats: the published runs on four datasets, and small recipes.

Zausinger et al. (2025), "Regress, Don't Guess", https://arxiv.org/abs/2411.02083, and the settings of
https://github.com/tum-ai/number-token-loss. Where published rows differ from the published code on purpose, and why,
is in docs/coming-from-number-token-loss.md. `numerate data fetch mathematics gsm8k multirc rjokes` gets the datasets.

Plain T5 keeps its own tokens there, in which a number is one piece or several, and every model with a number loss has
one token a digit: two differences at once. So each dataset has a row `..._custom_tokenizer`, plain cross-entropy over
one token a digit, to compare a number loss with.

The notes of published rows say the memory of weights, gradients and moments in float32 (16 bytes a weight), and the
hours of all steps on one GPU at 10 TFLOP/s, half of what an A100 does in float32.
"""

from numerate.recipes.rows import Row, recipe_functions

# Published ------------------------------------------------------------------------------------------------------------

DIGITS = "tokenizer.number_format=PerDigit"
BASE = "tokenizer.tokenizer=google-t5/t5-base model=T5(size=base,weights=google-t5/t5-base)"
LARGE = "tokenizer.tokenizer=google-t5/t5-{0} model=T5(size={0},weights=google-t5/t5-{0},gradient_checkpointing=true)"
RT = (
    "tokenizer.number_format=RegressionTransformer paper=regression_transformer "
    "model.number_embedding=RegressionTransformerEmbedding(scale=log)"
)
XVAL = "tokenizer.number_format=XVal objective.loss=XValLoss"

NTL = "tokenizer.number_format=PerDigit objective.loss=NumberToken({},weight={})"
"""Cross-entropy + weight x number token loss over the ten digits."""

GAUSSIAN = "cross-entropy smoothed by a Gaussian of width"
SMOOTHED = "tokenizer.number_format=PerDigit objective.loss=GaussianCrossEntropy({})"
SMOOTHED_NTL = "tokenizer.number_format=PerDigit objective.loss=NumberToken(was-cdf,gaussian_sigma={})"
NTL_OF_TOKENS = "objective.loss=NumberToken(was,number_tokens=numbers)"
WITHOUT_LOSS = "T5-small with one token a digit, no number loss"
EVALUATION = "evaluation.examples_per_cell={} evaluation.validation_examples={}"
T5_SMALL = "T5-small: 61 million weights, 1.0 GB and activations, {} hours."

DATASETS = {
    "mathematics": (
        f"task=Mathematics {EVALUATION.format(10000, 13026)} training.steps=1050000 {BASE}",
        "T5-base: 223 million weights, 3.6 GB and activations, 57 hours.",
    ),
    "arithmetic": (f"task=mathematics_arithmetic {EVALUATION.format(10000, 3000)}", T5_SMALL.format(12)),
    "rJokes": (f"task=RJokes {EVALUATION.format(43246, 43246)}", T5_SMALL.format(39)),
    "MultiRC": (f"task=MultiRC {EVALUATION.format(953, 953)}", T5_SMALL.format(135)),
    "GSM8K": (
        f"task=GSM8K {EVALUATION.format(1319, 1120)} {LARGE.format('3b')}",
        "T5-3B: 2,852 million weights, 45.6 GB and activations, 6,866 hours.",
    ),
}
"""Each dataset with the settings of its rows, and what they cost.

Parts 1 to 13 of the evaluation of mathematics are interpolation, 14 to 20 extrapolation. Arithmetic has sums and
differences of several numbers, longer ones in part 2. rJokes has a score from 0 to 11; most answers of MultiRC have no
number. 12,500 passes through GSM8K: its best checkpoint comes early; in bf16 T5-3B takes about a tenth of the hours.
"""


def _published(
    dataset: str, summary: str, settings: str = "", notes: str = "", *, cost: str = "", base: str = "published"
) -> Row:
    dataset_settings, dataset_cost = DATASETS[dataset]
    summary, notes = f"Published {dataset}: {summary}.", f"{cost or dataset_cost} {notes}".strip()
    return Row(summary, f"number_loss_paper.{base}", f"{dataset_settings} {settings}", notes)


PUBLISHED = {
    "mathematics_t5": _published("mathematics", "T5-base with its own tokens"),
    "mathematics_t5_custom_tokenizer": _published(
        "mathematics", "T5-base with one token a digit, no number loss", DIGITS
    ),
    "mathematics_t5_ntl_mse": _published(
        "mathematics", "T5-base with NTL-MSE", NTL.format("mse", 0.3), "The command of the README runs NTL-WAS."
    ),
    "mathematics_t5_ntl_was": _published("mathematics", "T5-base with NTL-WAS", NTL.format("was", 0.3)),
    "mathematics_rt": _published(
        "mathematics",
        "T5-base with the tokens of the regression transformer",
        RT,
        "Pretrained rows of the vocabulary are kept; the published code draws all of them anew.",
    ),
    "mathematics_rt_ntl_mse": _published(
        "mathematics",
        "T5-base with the tokens of the regression transformer, NTL-MSE",
        f"{RT} objective.loss=NumberToken(mse)",
        "Padding has no loss; the published one trains it towards the digit 8.",
    ),
    "mathematics_xval": _published(
        "mathematics",
        "T5-base with [NUM] for every number, and a number head",
        f"{XVAL} paper=xval model.max_position_embeddings=512 model.number_embedding=XValScaling(scale=log10) "
        "model.number_head=NumberHead(scale=ln)",
        "No row of the paper, whose xVal is `mathematics_numformer`. Numbers are compared as signed logarithms; "
        "theirs is `objective.loss.published=true model.number_head.scale=number`.",
    ),
    "mathematics_numformer": _published(
        "mathematics",
        "xVal, an encoder of 12 layers from random weights",
        f"{XVAL} paper=xval training.evaluate_every=10000 training.checkpoint_every=10000 optimizer.max_grad_norm=null "
        "model=Numformer(final_norm=false,head_bias=false) layout=MaskedLM(mask_token=<extra_id_0>)",
        "It sees how many tokens the answer has. As published no gradient is clipped.",
        cost="Numformer: 213 million weights, 3.4 GB and activations, 61 hours.",
        base="with_constant_rate",
    ),
    "mathematics_t5_big": _published(
        "mathematics",
        "T5-11B with its own tokens, 8 questions a step",
        f"{LARGE.format('11b')} training.batch_size=8 training.steps=2500000",
        "Several GPUs share it with `training.parallel=fsdp`.",
        cost="T5-11B: 11,307 million weights, 180.9 GB and activations, 1,881 hours.",
    ),
    "arithmetic_t5_ce": _published("arithmetic", "T5-small with its own tokens"),
    "arithmetic_t5_ntl_mse": _published("arithmetic", "NTL-MSE with weight 0.3", NTL.format("mse", 0.3)),
    "arithmetic_t5_ntl_mse_lambda08": _published("arithmetic", "NTL-MSE with weight 0.8", NTL.format("mse", 0.8)),
    "arithmetic_t5_ntl_mse_lambda2": _published("arithmetic", "NTL-MSE with weight 2", NTL.format("mse", 2.0)),
    "arithmetic_t5_ntl_was": _published("arithmetic", "NTL-WAS with weight 0.3", NTL.format("was", 0.3)),
    "arithmetic_t5_ntl_was_lambda08": _published("arithmetic", "NTL-WAS with weight 0.8", NTL.format("was", 0.8)),
    "arithmetic_t5_ntl_was_lambda2": _published("arithmetic", "NTL-WAS with weight 2", NTL.format("was", 2.0)),
    "arithmetic_t5_ntl_mae": _published("arithmetic", "NTL-MAE with weight 0.3", NTL.format("mae", 0.3)),
    "arithmetic_t5_ntl_huber": _published("arithmetic", "NTL-Huber with weight 0.3", NTL.format("huber", 0.3)),
    "arithmetic_t5_gaussian_sigma1": _published("arithmetic", f"{GAUSSIAN} 1", SMOOTHED.format(1.0)),
    "arithmetic_t5_gaussian_sigma2": _published("arithmetic", f"{GAUSSIAN} 2", SMOOTHED.format(2.0)),
    "arithmetic_t5_gaussian_ntl_was_sigma1": _published(
        "arithmetic", f"{GAUSSIAN} 1, NTL-WAS to the same", SMOOTHED_NTL.format(1.0)
    ),
    "arithmetic_t5_gaussian_ntl_was_sigma2": _published(
        "arithmetic", f"{GAUSSIAN} 2, NTL-WAS to the same", SMOOTHED_NTL.format(2.0)
    ),
    "arithmetic_t5_custom_tokenizer": _published("arithmetic", WITHOUT_LOSS, DIGITS),
    "arithmetic_t5_ntl_default_tokenizer": _published(
        "arithmetic", "NTL-WAS over T5's own tokens that are numbers", f"{NTL_OF_TOKENS} objective.loss.weight=0.3"
    ),
    "rjokes_t5": _published("rJokes", "T5-small with its own tokens"),
    "rjokes_t5_ntl_was": _published("rJokes", "NTL-WAS with weight 2", NTL.format("was", 2.0)),
    "rjokes_t5_regression_head": _published(
        "rJokes",
        "a linear head on T5-small predicts the score",
        "tokenizer.number_format=AsIs(number_answers=true) objective.loss=Regression "
        "model.number_head=NumberHead(read_at=start)",
        "Squared error of the score alone. `tokenizer.number_format=XVal model.number_embedding=XValScaling` makes the "
        "numbers of a joke [NUM], too, with vectors multiplied by them.",
    ),
    "rjokes_t5_custom_tokenizer": _published("rJokes", WITHOUT_LOSS, DIGITS),
    "rjokes_t5_ntl_default_tokenizer": _published(
        "rJokes",
        "NTL-WAS with weight 2 over T5's own tokens that are numbers",
        f"{NTL_OF_TOKENS} objective.loss.weight=2.0",
    ),
    "multirc_t5": _published("MultiRC", "T5-small with its own tokens"),
    "multirc_t5_custom_tokenizer": _published("MultiRC", WITHOUT_LOSS, DIGITS),
    "multirc_t5_ntl_was": _published("MultiRC", "NTL-WAS with weight 2", NTL.format("was", 2.0)),
    "gsm8k_t5": _published("GSM8K", "T5-3B with its own tokens"),
    "gsm8k_t5_custom_tokenizer": _published("GSM8K", "T5-3B with one token a digit, no number loss", DIGITS),
    "gsm8k_t5_ntl_was": _published("GSM8K", "NTL-WAS with weight 0.3", NTL.format("was", 0.3)),
}
"""The published recipes by name: T5-base, 1,050,000 steps of 32 questions, or T5-small, 2,500,000 steps."""

# Small enough for a laptop --------------------------------------------------------------------------------------------

MATHEMATICS = (
    "task=Mathematics(modules=[numbers__place_value,numbers__round_number,arithmetic__add_or_sub],"
    "extrapolation_modules=[numbers__place_value_big,numbers__round_number_big,arithmetic__add_or_sub_big],"
    "validation_fraction=0.05) tokenizer=Subwords(google-t5/t5-small,{},vocabulary=occurring)"
)
"""Three modules of the mathematics dataset, over the tokens of T5, and only those that occur. One row in twenty of each
file of training is validation. Parts 1 to 3 of the evaluation are the test of interpolation, 4 to 6 that of
extrapolation. `numerate data fetch mathematics` and `numerate data fetch t5_tokenizer` get what it takes."""

SMALL = {
    "ce": ("plain cross-entropy", "CrossEntropy", ""),
    "mse": ("NTL-MSE", "NumberToken(mse)", ""),
    "was": ("NTL-WAS", "NumberToken(was)", ""),
    "mae": ("NTL-MAE", "NumberToken(mae)", ""),
    "huber": ("NTL-Huber", "NumberToken(huber)", ""),
    "gaussian": (f"{GAUSSIAN} 1", "GaussianCrossEntropy(1.0)", ""),
    "number_level": ("a loss on number values instead of digits", "NumberLevel", ""),
    "rt": (
        "the tokens and the vectors of the regression transformer",
        "CrossEntropy model.number_embedding=RegressionTransformerEmbedding",
        "RegressionTransformer",
    ),
    "xval": (
        "[NUM] for every number, and a number head",
        "XValLoss model.number_embedding=XValScaling model.number_head=NumberHead(scale=ln)",
        "XVal(round_to_float32=true)",
    ),
    "regression": (
        "a regression head, one number per question",
        "Regression(scale=ln) model.number_embedding=XValScaling model.number_head=NumberHead(scale=ln,read_at=start)",
        "XVal(round_to_float32=true)",
    ),
}
SMALL |= {f"decoder_{variant}": SMALL[variant] for variant in ("ce", "mse", "was", "gaussian")}
SMALL["decoder_rt"] = ("the tokens of the regression transformer", "CrossEntropy", "RegressionTransformer")
"""Each variant with its description, its loss (and what of the model belongs to it), and its number format, if not one
token a digit. Models of one architecture differ in these alone, not in data or budget."""


def _small_row(variant: str, *, on_dataset: bool) -> Row:
    summary, loss, number_format = SMALL[variant]
    model, base = ("decoder", "small_decoder") if variant.startswith("decoder_") else ("T5", "small_t5")
    task, settings = "generated mathematics", f"objective.loss={loss}"
    if on_dataset:
        task, settings = "three modules of mathematics", f"{settings} {MATHEMATICS.format(number_format or 'PerDigit')}"
    elif number_format:
        settings = f"{settings} tokenizer=Subwords(characters,{number_format})"
    return Row(f"A small {model} on {task}: {summary}.", f"number_loss_paper.{base}", settings)


ROWS = (
    PUBLISHED
    | {f"number_loss_small_{variant}": _small_row(variant, on_dataset=False) for variant in SMALL}
    | {
        f"number_loss_laptop_{variant}": _small_row(variant, on_dataset=True)
        for variant in SMALL
        if variant not in ("mae", "huber", "number_level")
    }
)
"""Every recipe by name. `number_loss_small_*` take no file, `number_loss_laptop_*` are the same on the dataset."""

__getattr__ = recipe_functions(__name__, ROWS)
