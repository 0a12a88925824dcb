"""The commands of `make golden-outside`, in the order in which they are run, in one folder.

They are written in today's words. A word that was renamed is in `RENAMED`, which also says what the base calls it. The
files that they read, `stories.txt` and `held.txt`, are made by `outside.py`.
"""

RENAMED: dict[str, str] = {
    "model.width": "model.hidden_size",
    "model.trunk.depth": "model.backbone.num_layers",
    "model.mixer.heads": "model.mixer.num_heads",
    "optimizer.rate": "optimizer.learning_rate",
    "training.batch": "training.batch_size",
    "evaluation.count": "evaluation.examples_per_cell",
    "LanguageModelling": "LanguageModeling",
    "context": "context_length",
    "MathematicsStandIn": "GeneratedMathematics",
    "Written": "ExampleFile",
    "Trapezoid": "WarmupStableDecay",
    "list numberings": "list position-ids",
    "top_p=0.95 most=40": "top_p=0.95 max_new_tokens=40",
    "greedy=true most=30": "do_sample=false max_new_tokens=30",
    "layer=0 most=8": "layer=0 max_tokens=8",
    "executor": "engine",
}
"""Old words and what they are now, for example "model.width": "model.hidden_size", or "Mistake": "UserError". In the
output of the base they are replaced before it is compared, and in its commands the other way round. An old word may be
several words, where one is not enough to tell: "maps sums 12+34= most"."""

COMMANDS = (
    *(
        "list",
        "show",
        "sample",
        "data",
        "tokens",
        "train",
        "finetune",
        "evaluate",
        "report",
        "run",
        "status",
        "results",
    ),
    *("search", "compare", "plot", "export", "import", "ask", "generate", "maps"),
)
KINDS = ("tasks", "tokenizers", "layouts", "position-ids", "positions", "mixers", "models", "losses", "studies")
SHOWN = (
    *("addition_abacus", "addition_lt_abacus_8x2", "sorting_lt_abacus_fire", "counting_mod10_lstm", "gsm8k_t5_ntl_was"),
    *("counting_universal_jointly", "mathematics_numformer", "number_loss_small_regression"),
    *("tiny_stories_d64_l4_4+4_symbolic", "fineweb_edu_dual_343m", "Attention", "WarmupStableDecay", "counting_laptop"),
)
TASKS = (
    *("AdditionTable", "Arithmetic", "BitwiseOr", "Counting", "GeneratedMathematics", "Mixture", "Multiplication"),
    *("NumberLine", "RaspCounting", "SelectiveCounting", "Sorting", "counting_samesymbol_mod10bos"),
)
SUMS = (
    "addition_abacus task.digits=1:2 model.hidden_size=64 model.backbone.num_layers=1 schedule.warmup=20 "
    "optimizer.learning_rate=0.005 "
    "training.evaluate_every=200 training.checkpoint_every=200"
)
COUNTING = (
    "counting_mod10_lstm task.count=1:8 training.steps=300 training.evaluate_every=100 training.batch_size=16 "
    "optimizer.learning_rate=0.01 evaluation.grid=1:12 evaluation.examples_per_cell=10"
)
BRIEF = (
    "training.steps=60 training.batch_size=16 training.evaluate_every=30 evaluation.grid=1:2x1:2 "
    "evaluation.examples_per_cell=20"
)
SEARCHED = f"addition_abacus task.digits=1:2 {BRIEF} 'optimizer.learning_rate=log(1e-4,1e-2)' model.hidden_size=8,16"
LANGUAGE = "task=LanguageModeling(train=stories,validation=held,tokenizer=characters,context_length=32)"

CASES: tuple[str, ...] = (
    "--help",
    *(f"{command} --help" for command in COMMANDS),
    "list",
    *(f"list {kind}" for kind in KINDS),
    "list recipes tiny_stories_",
    *(f"show {name}" for name in SHOWN),
    *(f"sample {name} count=4" for name in TASKS),
    "sample number_loss_small_xval count=3",
    "sample addition_abacus count=2 split=test",
    # Data.
    "data write Arithmetic digits=1:3 count=50 out=rows",
    "data write counting_samesymbol_mod10 --as published out=published count=40",
    "data tokenise stories.txt out=stories tokenizer=characters",
    "data tokenise held.txt out=held tokenizer=characters",
    "tokens train-vocabulary stories.txt size=280 out=vocabulary",
    # A run on sums.
    f"train {SUMS} --dry-run",
    f"train {SUMS} training.steps=600 name=sums",
    f"train {SUMS} training.steps=800 name=sums",
    f"train {SUMS} training.steps=800 name=sums",
    "evaluate sums grid=1:4x1:4 count=20",
    "evaluate sums grid=1:4x1:4 count=20 checkpoint=best predictions=true",
    "evaluate sums grid=diagonal:1:6 count=10 method=decoding",
    "evaluate sums grid=1:6x1:6 count=10 workers=2",
    "evaluate sums grid=1:20x1:20 shard=1/4 --dry-run",
    "evaluate sums grid=1:20x1:20 engine=slurm engine.partition=cpu --dry-run",
    "report sums",
    "ask sums 12+34= 7+8=",
    "generate sums 12+34=",
    "maps sums 12+34= layer=0",
    "plot grid sums out=grid.svg",
    "plot training sums out=training.svg",
    "export sums out=exported",
    "import exported name=back",
    "compare sums back out=compared.html",
    # Labels, an encoder and decoder, language modeling.
    f"train {COUNTING} model.hidden_size=16 name=counting",
    "evaluate counting grid=1:16 count=10",
    "report counting",
    "ask counting 'a a a'",
    "plot counts counting out=counts.svg",
    "train number_loss_small_ce preset=debug model.hidden_size=32 name=numbers",
    "evaluate numbers count=5",
    "report numbers",
    f"train tiny_stories_laptop_dual {LANGUAGE} preset=debug training.steps=30 name=stories",
    "evaluate stories grid=16+32+64",
    "report stories",
    "generate stories Story temperature=0.8 top_p=0.95 max_new_tokens=40 seed=1 count=2 out=said.jsonl",
    "generate stories Story do_sample=false max_new_tokens=30",
    "maps stories Story layer=0 max_tokens=8",
    "plot validation stories out=validation.svg",
    # Many runs.
    f"run {COUNTING} model.hidden_size=8,32 seeds=2 workers=1",
    "status counting_mod10_lstm",
    "results counting_mod10_lstm",
    "results counting_mod10_lstm out=results.csv",
    "results counting_mod10_lstm group=label statistic=iqm format=markdown",
    "results counting_mod10_lstm cells=true out=cells.csv",
    "results counting_mod10_lstm columns=label,seed,final.ood_test sort=-seed format=latex",
    "plot curves runs/counting_mod10_lstm out=curves.svg",
    "run quickstart preset=debug workers=1",
    f"run {SUMS.replace('abacus', 'rotary')} {BRIEF} seeds=3 workers=1",
    "status addition_rotary",
    "compare addition_rotary out=rotary.html",
    "run abacus_laptop seeds=10 --dry-run",
    "run abacus_laptop seeds=10 engine=slurm engine.partition=cpu engine.python=python --dry-run",
    f"search {SEARCHED} trials=3 workers=1",
    "list runs",
    # Errors of users.
    "trian addition_abacus",
    "train additon_abacus",
    "train addition_abacus --steps 5",
    "train addition_abacus model.widht=32",
    "train addition_abacus model.mixer=Mamba9",
    "train addition_abacus model.mixer.num_heads=3",
    "train addition_abacus training.batch_size=0",
    "train addition_abacus optimizer.learning_rate=quick",
    "train addition_abacus task=ExampleFile(path=nowhere.txt)",
    "train tiny_stories_laptop_dual",
    "evaluate nowhere",
    "evaluate sums grid=1:4",
    "ask sums hello",
    "plot curve sums",
    "results nowhere",
    "search addition_abacus trials=3",
    "import nowhere",
)
