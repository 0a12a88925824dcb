"""What parts and settings of PyTorch, Hugging Face and papers are called here, to answer such a name with ours."""

_LEARNING_RATE, _BATCH_SIZE, _NUM_LAYERS = (
    ("optimizer.learning_rate",),
    ("training.batch_size",),
    ("model.backbone.num_layers", "model.num_layers"),
)
_HIDDEN_SIZE, _NUM_HEADS, _EPOCHS = ("model.hidden_size",), ("model.mixer.num_heads",), ("training.epochs",)
_MAX_NEW_TOKENS, _NUM_FEWSHOT = ("evaluation.generation.max_new_tokens",), ("evaluation.generation.num_fewshot",)
PATHS_BY_COMMON_NAME = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr"), _LEARNING_RATE),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "train_batch_size"), _BATCH_SIZE),
    "micro_batch_size": ("training.micro_batch_size",),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum_steps"), ("training.gradient_accumulation_steps",)),
    **dict.fromkeys(("hidden_size", "hidden_dim", "d_model", "n_embd", "embed_dim", "dim"), _HIDDEN_SIZE),
    **dict.fromkeys(("num_layers", "num_hidden_layers", "n_layer", "n_layers", "layers", "depth"), _NUM_LAYERS),
    **dict.fromkeys(("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads"), _NUM_HEADS),
    **dict.fromkeys(("weight_decay", "wd"), ("optimizer.weight_decay",)),
    **dict.fromkeys(("eps", "adam_epsilon", "epsilon"), ("optimizer.eps",)),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip_val", "clip"), ("optimizer.max_grad_norm",)),
    **dict.fromkeys(("warmup", "warmup_steps", "warmup_iters", "warmup_ratio"), ("schedule.warmup",)),
    **dict.fromkeys(("lr_scheduler", "lr_scheduler_type", "scheduler"), ("schedule",)),
    **dict.fromkeys(("max_steps", "max_iters", "num_steps", "steps", "iterations"), ("training.steps",)),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_epochs"), _EPOCHS),
    **dict.fromkeys(("eval_steps", "eval_interval"), ("training.evaluate_every",)),
    **dict.fromkeys(("save_steps", "save_interval"), ("training.checkpoint_every",)),
    **dict.fromkeys(("logging_steps", "log_interval"), ("training.log_every",)),
    "label_smoothing": ("objective.loss.label_smoothing",),
    **dict.fromkeys(("tie_word_embeddings", "tie_weights"), ("model.tie_word_embeddings",)),
    **dict.fromkeys(("fp16", "bf16", "mixed_precision"), ("training.precision",)),
    **dict.fromkeys(("dtype", "torch_dtype"), ("model.dtype", "training.precision")),
    **dict.fromkeys(("random_seed", "manual_seed"), ("seed",)),
    **dict.fromkeys(("position", "pos_emb", "positional_encoding", "position_embedding"), ("model.positions",)),
    **dict.fromkeys(("operation", "op"), ("task.operator",)),
    **dict.fromkeys(("wandb", "use_wandb", "report_to"), ("trackers=wandb",)),
    **dict.fromkeys(("max_tokens", "max_length", "max_gen_toks"), _MAX_NEW_TOKENS),
    **dict.fromkeys(("few_shot", "fewshot", "num_few_shot", "n_shot", "shots"), _NUM_FEWSHOT),
}
"""Names of settings in PyTorch, Hugging Face and nanoGPT, with the paths of the equivalent settings here."""

SHORT_PATHS = {
    "lr": "optimizer.lr",
    "loss": "objective.loss",
    "lora": "model.lora",
    "epochs": _EPOCHS[0],
    "max_new_tokens": _MAX_NEW_TOKENS[0],
    "num_fewshot": _NUM_FEWSHOT[0],
}
"""Short forms of the paths of settings."""

PARTS_BY_COMMON_NAME = {
    **dict.fromkeys(("abacus", "abacusembedding"), ("Learned(position_ids=DigitIndex)",)),
    **dict.fromkeys(("addition", "sum", "subtraction"), ("Arithmetic",)),
    **dict.fromkeys(("bpe", "wordpiece"), ("Subwords",)),
    **dict.fromkeys(("ce", "nll"), ("CrossEntropy",)),
    **dict.fromkeys(("char", "character"), ("Characters",)),
    **dict.fromkeys(("gpt", "llama", "transformer", "selfattention", "mha"), ("Decoder", "Attention")),
    "gpt2": ("Decoder", "Subwords(tokenizer=gpt2)"),
    "mse": ("Regression",),
    **dict.fromkeys(("nope", "nopositions"), ("model.positions=[]",)),
    **dict.fromkeys(("ntl", "ntlwas", "ntlmse"), ("NumberToken",)),
    **dict.fromkeys(("rope", "rotaryembedding"), ("Rotary",)),
}
"""Names of parts in papers and PyTorch, in lower case without `-` and `_`, with those here, of whatever kind."""
