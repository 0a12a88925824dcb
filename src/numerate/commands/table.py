"""The table of commands: their arguments, options with types and bounds, and examples. Imports nothing.

`numerate.cli` makes help and flags of it, `numerate.commands.arguments` reads the words of a command by it, and the
function that a row names receives typed values.
"""

from typing import Any, Literal, NamedTuple

ANY_SETTING, MODEL_SETTING = "", r"model\."
DOTTED_SETTING = r"(task|max_new_tokens|num_fewshot)=|[A-Za-z_]\w*\."


class Option(NamedTuple):
    """An option of a command: `count=200`; if its name has dashes, `--size 4096` or `size=4096`, and `--dry-run`.

    `type` is a type as of a setting, or a list of one (`layer=0,1`); `is_new` is for a file or folder that must not
    exist; `setting` is what a flag stands for, if it is a setting; `other_names` are answered with the name. An option
    that is not given is not passed to the function, so that defaults are those of its signature.
    """

    name: str
    example: str
    help: str
    type: Any = str
    at_least: int | None = None
    required: bool = False
    repeated: bool = False
    is_new: bool = False
    setting: str = ""
    other_names: str = ""

    @property
    def word(self) -> str:
        """The name without dashes: `dry_run`."""
        return self.name.lstrip("-").replace("-", "_")

    @property
    def key(self) -> str:
        """The parameter of the function."""
        return f"{self.word}_" if self.word in ("as", "from") else self.word

    @property
    def is_flag(self) -> bool:
        return self.name.startswith("--")


class Command(NamedTuple):
    """A command: `arguments` as in the usage, `settings` a pattern of those it takes (None: none), `engine` whether
    it takes one, `context` the parameters that are not its own: `traceback`, `parts`."""

    help: str
    function: str
    arguments: str
    examples: str
    options: tuple[Option, ...] = ()
    settings: str | None = None
    engine: bool = False
    context: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        text = f"{self.help[0].upper()}{self.help[1:]}"
        return text if text.endswith("...") else f"{text}."


RUNS_DIR = Option("runs_dir", "runs", "the folder of runs, by default NUMERATE_RUNS or `runs`")
DEVICE = Option("device", "cuda", "cpu, cuda, cuda:1 or mps, by default the device of training or a free one")
CHECKPOINT = Option("checkpoint", "best", "final (default), best or a step")
RUN_OPTIONS = (CHECKPOINT, DEVICE, RUNS_DIR)
SKIP_BAD = Option(
    "--skip-bad", "", "skip and count records of a file that cannot be read", bool, setting="task.skip_invalid=true"
)
PRESET = Option("preset", "debug", "a small model and few steps, to try a recipe", Literal["debug"])
METRIC = Option("metric", "ood_accuracy", "of labels: exact_match, ood_accuracy, accuracy, last_label, correct_prefix")
SPLIT = Option("split", "test", "train (default), test, validation or ood_validation")
SEED = Option("seed", "1", "seed of what is drawn", int)
ROWS = Option("count", "20M", "number of rows; by default all, or those of a sample", int, at_least=1)
NEW_FOLDER = Option("out", "files", "the new folder", required=True, is_new=True)
TEXTS = (
    Option("field", "body", "the field of JSON lines that has the text"),
    Option("separator", r"\n\n", r"the text between documents, with \n for a new line"),
)
PROCESSES = Option("processes", "2", "processes that tokenize, by default one for each core", int, at_least=1)


def dry_run(help: str) -> Option:
    return Option("--dry-run", "", help, bool)


COMMANDS: dict[str, Command] = {
    "list": Command(
        "list tasks, positional encodings, mixers, losses, recipes, studies ...",
        "catalogue:list_parts",
        "[KIND ...] [PART_OF_A_NAME]",
        "numerate list\nnumerate list mixers\nnumerate list recipes mod10bos\nnumerate list --parts my.py",
    ),
    "list runs": Command(
        "list your runs: name, seed, step, how they ended and when they started",
        "catalogue:list_runs",
        "",
        "numerate list runs\nnumerate list runs runs_dir=/data/runs",
        (RUNS_DIR,),
    ),
    "show": Command(
        "show a recipe, part or dataset: settings with meanings and bounds, source, BibTeX, recipes that use it",
        "show:show",
        "RECIPE|PART|DATASET",
        "numerate show addition_abacus\nnumerate show LSTM   (a part: its settings, and how a recipe uses it)\n"
        "numerate show addition_abacus model.mixer=LSTM model.positions=[]\n"
        "numerate show my.py:recipe",
        settings=ANY_SETTING,
    ),
    "sample": Command(
        "print examples of a task, recipe or file, as text and as model inputs",
        "samples:sample",
        "RECIPE|TASK|FILE",
        "numerate sample Arithmetic digits=1:3\nnumerate sample addition_abacus count=2 split=test",
        (
            Option("count", "8", "number of examples, by default 8 of a task and 3 of a recipe", int, at_least=1),
            SPLIT._replace(type=Literal["train", "test", "validation", "ood_validation"]),
            SKIP_BAD,
        ),
        settings=ANY_SETTING,
    ),
    "data write": Command(
        "write the examples of a task, recipe or file to files",
        "data:write",
        "TASK|RECIPE|FILE",
        "numerate data write Arithmetic out=sums count=20M\n"
        "numerate data write addition_abacus task.digits=1:5 out=short count=100k split=test\n"
        "numerate data write sums/rows.txt tokenizer.number_format.digit_order=normal out=normal\n"
        "numerate data write hf_tokenized_dataset/ out=rows split=test vocabulary=pad\n"
        "numerate data write counting_samesymbol_mod10 --as published out=files   (the files of its paper)\n"
        "numerate data write gsm8k --as published out=prepared",
        (
            NEW_FOLDER,
            ROWS,
            SPLIT,
            SEED,
            Option("--as", "published", "the files of a paper", Literal["published"]),
            SKIP_BAD,
        ),
        settings=ANY_SETTING,
    ),
    "data fetch": Command(
        "download datasets, or list them",
        "data:fetch_datasets",
        "[DATASET ...]",
        "numerate data fetch   (which datasets there are)\n"
        "numerate data fetch gsm8k   (resumes)\n"
        "numerate data fetch svamp --from /mnt/datasets",
        (Option("--from", "FOLDER", "copy from this folder instead"),),
    ),
    "data tokenise": Command(
        "tokenize texts; the same command again resumes",
        "corpora:tokenize",
        "FILE|FOLDER|DATASET ...",
        "numerate data tokenise tinystories out=stories tokenizer=tok4096   (resumes)\n"
        "numerate data tokenise mine.jsonl field=body out=mine tokenizer=tokenizer.model processes=2",
        (
            Option("out", "stories", "the folder, in which the same command resumes", required=True),
            Option("tokenizer", "tok4096", "a tokenizer.json, SentencePiece model, or folder with one", required=True),
            *TEXTS,
            PROCESSES,
        ),
    ),
    "data prepare": Command(
        "prepare a corpus, or your own texts, to train on: held-out split, vocabulary and tokens",
        "corpora:prepare",
        "CORPUS|FILE ...",
        "numerate data prepare tiny_stories_2048   (stories with a vocabulary of 2,048, for task=tiny_stories_2048)\n"
        "numerate data prepare mine.txt out=mine size=4096   (one document in twenty is held out)",
        (
            Option("out", "mine", "the name of your own corpus"),
            Option("size", "4096", "vocabulary size", int),
            Option("tokenizer", "tok4096", "a tokenizer, instead of a new vocabulary"),
            Option("held_out", "0.05", "the held-out fraction", float),
            *TEXTS,
            PROCESSES,
        ),
    ),
    "tokens train-vocabulary": Command(
        "train a tokenizer on text files",
        "corpora:train",
        "FILE|FOLDER|DATASET ...",
        "numerate tokens train-vocabulary tinystories --size 4096   (to the datasets, as tok4096)\n"
        "numerate tokens train-vocabulary stories.txt size=2048 out=tok2048",
        (
            Option("--size", "4096", "vocabulary size; also as size=4096", int, required=True),
            Option("out", "tok2048", "the new folder, by default in the datasets", is_new=True),
            Option("files", "10", "maximum number of files to read", int, at_least=1),
            *TEXTS,
        ),
    ),
    "train": Command(
        "train a recipe; the same command again resumes from the last checkpoint",
        "runs:train",
        "RECIPE",
        "numerate train addition_abacus\nnumerate train addition_abacus training.steps=9000   (resumes)\n"
        "numerate train addition_abacus seed=0,1,2 name=mine runs_dir=/data/runs\n"
        "numerate train addition_abacus preset=debug --dry-run\n"
        "numerate train addition_abacus init_from=3f2a device=cuda training.precision=bf16\n"
        "torchrun --standalone --nproc-per-node 2 -m numerate train addition_abacus training.parallel=ddp",
        (PRESET, RUNS_DIR, dry_run("build the model, time a few steps, print an estimate; write nothing"), SKIP_BAD),
        settings=ANY_SETTING,
    ),
    "finetune": Command(
        "fine-tune a Hugging Face model: its answers before and after; the same command again resumes",
        "finetuning:finetune",
        "hf:MODEL",
        "numerate finetune hf:HuggingFaceTB/SmolLM2-135M-Instruct task=gsm8k loss=NumberToken\n"
        "numerate finetune hf:folder task=gsm8k 'loss=NumberToken(weight=0.3,digit_weight_ratio=2)' lora=LoRA\n"
        "numerate finetune hf:folder task=gsm8k loss=CrossEntropy,NumberToken seeds=3   (six runs, compared)\n"
        "numerate finetune hf:folder 'task=QuestionFiles(train_file=my.jsonl)' lr=1e-5 training.micro_batch_size=4",
        (
            Option("out", "compare.html", "the page with the answers before and after"),
            RUNS_DIR,
            dry_run("print estimates of the evaluation and the training; write nothing"),
        ),
        settings=ANY_SETTING,
    ),
    "evaluate": Command(
        "evaluate a run or a Hugging Face model: exact match, errors of numbers, or loss of text; with intervals",
        "runs:evaluate",
        "RUN|hf:MODEL",
        "numerate evaluate latest\nnumerate evaluate latest grid=1:20x1:20 count=200 checkpoint=best\n"
        "numerate evaluate hf:HuggingFaceTB/SmolLM2-135M-Instruct task=gsm8k   (a folder, or a name on the hub)\n"
        "numerate evaluate hf:folder task=gsm8k,svamp evaluation.generation.num_fewshot=0,8\n"
        "numerate evaluate 3f2a checkpoint=all workers=8   (resumes by cell)\n"
        "numerate evaluate latest grid=1:100x1:100 engine=slurm engine.partition=cpu --dry-run\n"
        "numerate evaluate latest grid=1:100x1:100 shard=1/4 --dry-run   (its cells and estimated time)\n"
        "numerate evaluate latest grid=diagonal:101:160+diagonal:200:1000:100   (equal lengths; :100 is a step)\n"
        "numerate evaluate latest model.mixer.logit_scale=1,1.4,log   (other settings at inference, same weights)\n"
        "numerate evaluate stories grid=256+512+1024   (text: the validation split at three context lengths)",
        (
            Option("grid", "1:20x1:20", "the lengths, or context lengths of text; by default those of the recipe"),
            Option(
                "count",
                "200",
                "questions per cell; 100 give +-10 points at 50 %",
                int,
                at_least=1,
                other_names="limit examples num_examples num_questions",
            ),
            Option("checkpoint", "best", "final (default), best, all or a step"),
            Option(
                "method", "decoding", "one pass (default), decoding or beams", Literal["one pass", "decoding", "beams"]
            ),
            Option("predictions", "true", "write the answer to every question as well", bool),
            Option("shard", "1/4", "the first of four shards of equal cost"),
            DEVICE,
            RUNS_DIR,
            dry_run("cells and estimated time; with engine=slurm the job script; write nothing"),
        ),
        settings=DOTTED_SETTING,
        engine=True,
    ),
    "report": Command(
        "write a run's report.html: recipe, training curves, heat maps, samples",
        "runs:report",
        "RUN",
        "numerate report latest\nnumerate report runs/addition_abacus/3f2a9c01b7de",
        (RUNS_DIR,),
    ),
    "run": Command(
        "train, evaluate and report a recipe, or a study of several recipes",
        "studies:run",
        "RECIPE|STUDY",
        "numerate run quickstart\nnumerate run quickstart seeds=3\n"
        "numerate run addition_abacus model.hidden_size=64,128\n"
        "numerate run quickstart workers=1 preset=debug\n"
        "numerate run abacus_laptop seeds=10 engine=ray engine.address=auto timeout=3600\n"
        "numerate run abacus_laptop seeds=100 engine=slurm engine.partition=cpu --dry-run   (the job script)\n"
        "numerate run abacus_laptop retry=true   (retries failed runs)",
        (
            PRESET,
            Option("retry", "true", "run failed ones again", bool),
            RUNS_DIR,
            dry_run("list which runs are new, done or failed; with engine=slurm print the job script; start nothing"),
            SKIP_BAD,
        ),
        settings=ANY_SETTING,
        engine=True,
        context=("traceback",),
    ),
    "status": Command(
        "show the progress of a study: runs done, running, failed and remaining, and the time left",
        "status:status",
        "STUDY",
        "numerate status quickstart\nnumerate status abacus_laptop watch=true\nnumerate status runs/abacus_laptop",
        (Option("watch", "true", "refresh until all runs are done", bool), RUNS_DIR),
    ),
    "results": Command(
        "tabulate the results of a study, as text, CSV, Markdown, LaTeX, JSON lines or Parquet",
        "results:results",
        "STUDY",
        "numerate results abacus_laptop\nnumerate results abacus_laptop group=label\n"
        "numerate results abacus_laptop group=label columns=best statistic=iqm   (or mean; with bootstrap intervals)\n"
        "numerate results mine group=label success=final.ood_test.ood_accuracy threshold=0.99\n"
        "numerate results abacus_laptop columns=label,seed,final.ood_test where=label=Abacus sort=-final.ood_test\n"
        "numerate results abacus_laptop out=results.csv   (every column; also .md, .tex, .jsonl, .parquet)\n"
        "numerate results abacus_laptop where=status=failed columns=label,seed,error\n"
        "numerate results abacus_laptop cells=true out=cells.parquet   (a row per run, checkpoint and cell)",
        (
            Option("columns", "label,seed,final.ood_test", "names of columns, or all"),
            Option("where", "label=Abacus", "rows with this value; may be given several times", repeated=True),
            Option("sort", "-final.ood_test", "columns to sort by, with - for descending order"),
            Option("group", "label", "a row for each value of these columns"),
            Option(
                "statistic", "iqm", "of a group: median (default) with extremes, mean or iqm with bootstrap intervals"
            ),
            Option("threshold", "0.99", "of a group: what counts as success", float),
            Option("success", "final.ood_test", "of a group: the column that the threshold is for"),
            Option("cells", "true", "a row for each run, checkpoint and cell", bool),
            Option("format", "csv", "text, csv, markdown, latex, jsonl or parquet"),
            Option("out", "results.csv", "a file, whose suffix is the format"),
            RUNS_DIR,
        ),
    ),
    "search": Command(
        "search hyperparameters of a recipe, by a validation score, never by the test grid",
        "studies:search",
        "RECIPE",
        "numerate search addition_abacus 'optimizer.learning_rate=log(1e-4,1e-2)' model.hidden_size=32,64 trials=30\n"
        "numerate search addition_abacus 'training.batch_size=between(16,128,16)' training.steps=500 trials=20 "
        "workers=2\n"
        "numerate search addition_abacus 'optimizer.weight_decay=between(0,0.1)' seeds=3 pruner=median name=mine\n"
        "numerate search addition_abacus model.hidden_size=32,64 'training.batch_size=between(16,64,16)' "
        "sampler=grid metric=loss",
        (
            Option("trials", "30", "number of trials in total", int),
            Option("metric", "loss", "ood_validation (default), validation, loss or validation_loss"),
            Option("sampler", "grid", "tpe (default), random or grid"),
            Option("pruner", "median", "none (default), median or hyperband"),
            Option("seed", "1", "seed of the points, and of the first run of each trial", int),
            Option("seeds", "3", "runs of each trial, of which the median counts", int),
            Option("name", "mine", "the name of the search"),
            RUNS_DIR,
        ),
        settings=ANY_SETTING,
        engine=True,
        context=("traceback", "parts"),
    ),
    "compare": Command(
        "compare runs and seeds, or Hugging Face models, side by side: median, spread, success rate",
        "compare:compare",
        "RUN|STUDY|hf:MODEL ...",
        "numerate compare runs/addition_abacus/* runs/addition_rotary/*\nnumerate compare mine yours out=page.html\n"
        "numerate compare hf:first hf:second task=gsm8k   (evaluates what has not been evaluated)\n"
        "numerate compare abacus_laptop   (all completed runs of a study)\n"
        "numerate compare mine yours out=figure.pdf   (or .png, .svg)",
        (
            Option("out", "compare.html", "the page, or a figure: .png, .svg, .pdf"),
            Option("baseline", "rotary", "the variant that others are compared with"),
            METRIC,
            DEVICE,
            RUNS_DIR,
        ),
        settings=DOTTED_SETTING,
    ),
    "plot": Command(
        "plot figures of runs: grid, curves, counts, compare, intervals, training or validation",
        "compare:plot",
        "KIND RUN|STUDY ...",
        "numerate plot grid latest out=grid.png\nnumerate plot curves runs/addition_*/* out=curves.pdf\n"
        "numerate plot compare mine yours labels=Abacus,rotary checkpoint=best size=column\n"
        "numerate plot intervals runs/addition_*/* out=intervals.pdf   (medians and intervals over seeds)\n"
        "numerate plot counts runs/counting_*/* out=counts.pdf   (labels: accuracy per count, with the baseline)\n"
        "numerate plot training latest out=a.svg\n"
        "numerate plot validation stories out=b.pdf   (text: validation loss by step, FLOPs, time)",
        (
            Option("out", "grid.png", "the file: .png, .svg or .pdf"),
            Option("checkpoint", "best", "final or best; by default as evaluated", Literal["final", "best"]),
            Option("labels", "Abacus,rotary", "a label for each run or recipe", list[str]),
            METRIC,
            Option("size", "column", "as wide as a column or a page (default) of a paper, or for a slide"),
            RUNS_DIR,
        ),
    ),
    "export": Command(
        "export a run to Hugging Face: AutoModelForCausalLM, AutoTokenizer, generate, Trainer",
        "runs:export",
        "RUN",
        "numerate export latest out=exported\nnumerate export 3f2a out=exported checkpoint=best tokenizer=false\n"
        "numerate export latest out=adder license=apache-2.0   (for `hf upload`)",
        (
            NEW_FOLDER,
            CHECKPOINT,
            Option("license", "apache-2.0", "its licence in the model card, as the Hub names it: apache-2.0, mit"),
            Option("tokenizer", "false", "whether to export the tokenizer as well", bool),
            RUNS_DIR,
        ),
    ),
    "import": Command(
        "import a Hugging Face checkpoint of an exported run, or published dual attention weights, as a run",
        "runs:import_run",
        "FOLDER|FILE",
        "numerate import finetuned\nnumerate import finetuned name=mine task.tokenizer=finetuned\n"
        "numerate import ckpt.pt recipe=tiny_stories_d64_l4_4+4_symbolic name=theirs check=logits.safetensors",
        (
            Option("name", "mine", "the name of the run"),
            Option("recipe", "NAME", "the recipe of published weights"),
            Option("check", "logits.safetensors", "logits that the imported model must reproduce"),
            Option("tolerance", "0.001", "maximum difference of these logits", float),
            RUNS_DIR,
        ),
        settings=ANY_SETTING,
    ),
    "ask": Command(
        "answer questions with a run: the model's answer, its probability, and the correct answer",
        "prompts:ask",
        "RUN QUESTION ...",
        "numerate ask latest '321+654='\nnumerate ask latest '321+654=' model.backbone.num_loops=4,8\n"
        "numerate ask latest '12345+9=' '7+8=' checkpoint=best",
        RUN_OPTIONS,
        settings=MODEL_SETTING,
    ),
    "generate": Command(
        "generate text from prompts, streamed token by token",
        "prompts:generate",
        "RUN [PROMPT|- ...]",
        "numerate generate latest 'Once upon a time'\n"
        "numerate generate latest 'Once upon a time' temperature=0.8 top_p=0.95 max_new_tokens=300 seed=1\n"
        "numerate generate latest do_sample=false   (from the start of a document)\n"
        "numerate generate latest 'Emma went to' 'On a rainy day,' count=3 out=generated.jsonl\n"
        "numerate generate mine prompts=prompts.txt checkpoint=best stop='The end'\n"
        "echo 'Once upon a time' | numerate generate latest -\n"
        "numerate generate latest '12+34='   (a model of sums)",
        (
            Option(
                "max_new_tokens",
                "300",
                "by default 200, or as many as fit into the context",
                int,
                other_names="max_tokens tokens most length",
            ),
            Option("temperature", "0.8", "of sampling, by default 1", float, other_names="temp"),
            Option("top_k", "40", "sample from this number of tokens", int | None),
            Option("top_p", "0.95", "sample from the likeliest tokens with this probability in total", float | None),
            Option("min_p", "0.1", "sample from tokens above this fraction of the highest probability", float | None),
            Option("do_sample", "false", "false is greedy decoding", bool, other_names="greedy"),
            Option("seed", "1", "seed of sampling, by default 0", int),
            Option("count", "3", "completions for each prompt", int, other_names="samples num_samples"),
            Option("stop", "'The end'", "text that ends a completion"),
            Option("context_length", "256", "read this number of the last tokens", int),
            Option("prompts", "prompts.txt", "a file with a prompt in each line, or JSON lines"),
            Option("out", "generated.jsonl", "a new file for all completions", is_new=True),
            *RUN_OPTIONS,
        ),
        settings=MODEL_SETTING,
    ),
    "maps": Command(
        "draw the attention maps of a prompt: one figure of layers x heads",
        "prompts:maps",
        "RUN [PROMPT]",
        "numerate maps latest '321+654='\nnumerate maps latest '321+654=' checkpoint=best layer=0,1 out=maps.pdf\n"
        "numerate maps latest '321+654=' answer=false   (the prompt alone, without the generated answer)\n"
        "numerate maps latest   (a question of the test split, or the start of the validation text)",
        (
            Option("layer", "0,1", "layers, by default all", list[int]),
            Option("answer", "false", "whether the generated answer is included", bool),
            Option("max_tokens", "256", "maximum number of tokens", int, at_least=1),
            Option("out", "maps.pdf", "the figure (.png, .svg, .pdf), by default in the folder of the run"),
            *RUN_OPTIONS,
        ),
        settings=MODEL_SETTING,
    ),
}

SETTINGS_HELP = {
    None: "",
    ANY_SETTING: """settings are path=value: model.hidden_size=64, training.steps=500, task.digits=1:8
a component by its class name: model.mixer=LSTM, 'model.positions=[Rotary(base=500)]'
a list item by its index: model.positions.0.base=500; several values are a sweep: seed=0,1,2, seeds=3""",
    MODEL_SETTING: "settings of the model, at inference: model.SETTING=VALUE; several values are a sweep",
    DOTTED_SETTING: """settings of the model, at inference: model.SETTING=VALUE; several values are a sweep
of hf:MODEL all settings: task=gsm8k, tokenizer.chat_template=false, evaluation.generation.num_fewshot=8""",
}
ENGINE_OPTIONS = (
    Option("engine", "slurm", "local (default), inprocess, ray or slurm"),
    Option("engine.SETTING", "..", "a setting of the engine: engine.partition=cpu"),
    Option("workers", "2", "number of workers at once"),
    Option("timeout", "3600", "maximum seconds of an item of work"),
)
