"""The command line: commands, help and exit statuses. Each command is a module of `numerate.commands`.

Nothing but argparse is imported before a command runs, so that help is quick.
"""

import argparse
import atexit
import gc
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import NoReturn

from numerate import terminal
from numerate.errors import OperationalError, UserError, describe_error, did_you_mean, user_code_location

SETTINGS_HELP = """settings are path=value: model.hidden_size=64, training.steps=500, task.digits=1:8
a component by its class name: model.mixer=LSTM, 'model.positions=[Rotary(base=500)]'
a list item by its index: model.positions.0.base=500; several values are a sweep: seed=0,1,2, seeds=3"""

COMMANDS: dict[str, tuple[str, str, str]] = {
    "list": (
        "list tasks, positional encodings, mixers, losses, recipes, studies ..., or your runs",
        "[KIND [PART OF A NAME]|runs]",
        "numerate list\nnumerate list mixers\nnumerate list recipes mod10bos\nnumerate list runs\n"
        "numerate list --parts my.py",
    ),
    "show": (
        "show every setting of a recipe or component, with its value and meaning",
        "RECIPE|PART [SETTING ...]",
        "numerate show addition_abacus\nnumerate show LSTM   (a component: its settings, and how a recipe uses it)\n"
        "numerate show addition_abacus model.mixer=LSTM model.positions=[]\n"
        "numerate show my.py:recipe",
    ),
    "sample": (
        "print examples of a task or recipe, as text and as model inputs",
        "RECIPE|TASK [SETTING ...]",
        "numerate sample Arithmetic digits=1:3\nnumerate sample addition_abacus count=2 split=test",
    ),
    "data": (
        "write examples to files, show dataset statistics, download or tokenize datasets",
        "write|stats TASK|RECIPE|FILE [SETTING ...] [out=FOLDER] [count=..] [split=..] [seed=..] [format=..]\n"
        "                     [--as published]\n"
        "       numerate data fetch [DATASET ...] [--from FOLDER]\n"
        "       numerate data tokenise FILE|FOLDER|DATASET ... out=FOLDER tokenizer=.. [field=..] [separator=..] "
        "[processes=..]\n"
        "       numerate data prepare tiny_stories_2048|tiny_stories|FILE ... [out=NAME] [size=..|tokenizer=..] "
        "[held_out=0.05]",
        "numerate data write Arithmetic out=sums count=20M\n"
        "numerate data write addition_abacus task.digits=1:5 out=short count=100k split=test format=text\n"
        "numerate data write sums/rows.txt out=tokens format=memmap\n"
        "numerate data write counting_samesymbol_mod10 --as published out=files   (the files of its paper)\n"
        "numerate data stats Arithmetic count=1M out=figures\n"
        "numerate data stats rows.txt sums\n"
        "numerate data stats hf_tokenized_dataset/ split=test vocabulary=pad\n"
        "numerate data fetch   (which datasets there are)\n"
        "numerate data fetch gsm8k   (resumes)\n"
        "numerate data fetch svamp --from /mnt/datasets\n"
        "numerate data write gsm8k --as published out=prepared\n"
        "numerate data tokenise tinystories out=stories tokenizer=tok4096   (resumes)\n"
        "numerate data tokenise mine.jsonl field=body out=mine tokenizer=tokenizer.model processes=2\n"
        "numerate data prepare tiny_stories_2048   (stories with a vocabulary of 2,048, for task=tiny_stories_2048)\n"
        "numerate data prepare mine.txt out=mine size=4096   (one document in twenty is held out)",
    ),
    "tokens": (
        "train a tokenizer on text files",
        "train-vocabulary FILE|FOLDER|DATASET ... --size N [out=FOLDER] [kind=characters|bytes] [files=10] "
        "[field=..] [separator=..]",
        "numerate tokens train-vocabulary tinystories --size 4096   (to the datasets, as tok4096)\n"
        "numerate tokens train-vocabulary stories.txt size=2048 out=tok2048",
    ),
    "train": (
        "train a recipe; the same command again resumes from the last checkpoint",
        "RECIPE [SETTING ...]",
        "numerate train addition_abacus\nnumerate train addition_abacus training.steps=9000   (resumes)\n"
        "numerate train addition_abacus seed=0,1,2 name=mine runs_dir=/data/runs\n"
        "numerate train addition_abacus preset=debug\nnumerate train addition_abacus --dry-run\n"
        "numerate train addition_abacus init_from=3f2a device=cuda training.precision=bf16\n"
        "torchrun --standalone --nproc-per-node 2 -m numerate train addition_abacus training.parallel=ddp",
    ),
    "evaluate": (
        "evaluate a run: exact match on a grid of lengths, or loss and bits per byte of text; with intervals",
        "RUN [grid=..] [count=..] [checkpoint=..] [method=..] [predictions=true] [model.SETTING=.. ...] [shard=..]\n"
        "                             [workers=..] [executor=local|ray|slurm] [executor.SETTING=.. ...]",
        "numerate evaluate latest\nnumerate evaluate latest grid=1:20x1:20 count=200 checkpoint=best\n"
        "numerate evaluate 3f2a checkpoint=all workers=8   (resumes by cell)\n"
        "numerate evaluate latest grid=1:100x1:100 executor=slurm executor.partition=cpu --dry-run\n"
        "numerate evaluate latest grid=1:100x1:100 shard=1/4\n"
        "numerate evaluate latest grid=1:100x1:100 shard=1/4 --dry-run   (its cells, cost and estimated time)\n"
        "numerate evaluate latest grid=diagonal:101:160+diagonal:200:1000:100   (equal lengths; :100 is a step)\n"
        "numerate evaluate latest model.mixer.logit_scale=1,1.4,log   (other settings at inference, same weights)\n"
        "numerate evaluate latest method=decoding predictions=true\n"
        "numerate evaluate stories grid=256+512+1024   (text: the validation split at three context lengths)",
    ),
    "report": (
        "write a run's report.html: recipe, training curves, heat maps, samples",
        "RUN",
        "numerate report latest\nnumerate report runs/addition_abacus/3f2a9c01b7de",
    ),
    "run": (
        "train, evaluate and report a recipe, or a study of several recipes",
        "RECIPE|STUDY [SETTING ...] [workers=..] [executor=local|ray|slurm] [executor.SETTING=..] [retry=true]",
        "numerate run quickstart\nnumerate run quickstart seeds=3\nnumerate run addition_abacus "
        "model.hidden_size=64,128\n"
        "numerate run quickstart workers=1 preset=debug\n"
        "numerate run abacus_laptop seeds=10 executor=ray executor.address=auto timeout=3600\n"
        "numerate run abacus_laptop seeds=100 executor=slurm executor.partition=cpu --dry-run   (the job script)\n"
        "numerate run abacus_laptop retry=true   (retries failed runs)",
    ),
    "status": (
        "show the progress of a study: runs done, running, failed and remaining, and the time left",
        "STUDY [watch=true] [runs_dir=..]",
        "numerate status abacus_laptop\nnumerate status abacus_laptop watch=true\nnumerate status runs/abacus_laptop",
    ),
    "results": (
        "tabulate the results of a study, as text, CSV, Markdown, LaTeX, JSON lines or Parquet",
        "STUDY [columns=..] [where=..] [sort=..] [group=..] [statistic=..] [threshold=..] [success=..]\n"
        "                        [cells=true] [format=text|csv|markdown|latex|jsonl|parquet] [out=FILE] [runs_dir=..]",
        "numerate results abacus_laptop\nnumerate results abacus_laptop group=label\n"
        "numerate results abacus_laptop group=label columns=best statistic=iqm   (or median, mean; with intervals)\n"
        "numerate results mine group=label success=final.ood_test.ood_accuracy threshold=0.99\n"
        "numerate results abacus_laptop columns=label,seed,final.ood_test where=label=Abacus sort=-final.ood_test\n"
        "numerate results abacus_laptop where=label!=Abacus group=label out=table.tex\n"
        "numerate results abacus_laptop out=results.csv   (every column; also .md, .tex, .jsonl, .parquet)\n"
        "numerate results abacus_laptop where=status=failed columns=label,seed,error\n"
        "numerate results abacus_laptop cells=true out=cells.parquet   (a row per run, checkpoint and cell)",
    ),
    "search": (
        "search hyperparameters of a recipe, by a validation score, never by the test grid",
        "RECIPE SETTING=between(..)|log(..)|a,b,c ... [trials=..] [workers=..] [metric=..] [sampler=..] [pruner=..] "
        "[seeds=..] [name=..]",
        "numerate search addition_abacus 'optimizer.learning_rate=log(1e-4,1e-2)' model.hidden_size=32,64 trials=30\n"
        "numerate search addition_abacus 'training.batch_size=between(16,128,16)' training.steps=500 trials=20 "
        "workers=2\n"
        "numerate search addition_abacus 'optimizer.weight_decay=between(0,0.1)' seeds=3 pruner=median name=mine\n"
        "numerate search addition_abacus model.hidden_size=32,64 'training.batch_size=between(16,64,16)' "
        "sampler=grid metric=loss",
    ),
    "compare": (
        "compare runs and seeds side by side: median, spread, success rate",
        "RUN|STUDY ... [out=FILE] [baseline=..] [metric=exact_match|ood_accuracy|accuracy|last_label|correct_prefix]",
        "numerate compare runs/addition_abacus/* runs/addition_rotary/*\nnumerate compare mine yours out=page.html\n"
        "numerate compare abacus_laptop   (all completed runs of a study)\n"
        "numerate compare mine yours out=figure.pdf   (or .png, .svg)",
    ),
    "plot": (
        "plot figures of runs: grid, curves, counts, pair, compare, intervals, training or validation",
        "KIND RUN|STUDY ... [out=FILE] [checkpoint=..] [labels=..] [metric=..]",
        "numerate plot grid latest out=grid.png\nnumerate plot curves runs/addition_*/* out=curves.pdf\n"
        "numerate plot pair latest   (sorting: exact match, and the first label)\n"
        "numerate plot compare mine yours labels=Abacus,rotary checkpoint=best\n"
        "numerate plot intervals runs/addition_*/* out=intervals.pdf   (medians and intervals over seeds)\n"
        "numerate plot curves abacus_laptop   (all completed runs of a study)\n"
        "numerate plot counts runs/counting_*/* out=counts.pdf   (labels: accuracy per count, with the baseline)\n"
        "numerate plot training latest out=a.svg\n"
        "numerate plot validation stories out=b.pdf   (text: validation loss by step, FLOPs, time)",
    ),
    "export": (
        "export a run to Hugging Face: AutoModelForCausalLM, AutoTokenizer, generate, Trainer",
        "RUN out=FOLDER [checkpoint=..] [tokenizer=true|false] [runs_dir=..]",
        "numerate export latest out=exported\nnumerate export 3f2a out=exported checkpoint=best tokenizer=false",
    ),
    "import": (
        "import a Hugging Face checkpoint of an exported run, or published dual attention weights, as a run",
        "FOLDER|FILE [name=..] [recipe=RECIPE] [check=LOGITS] [tolerance=0.001] [runs_dir=..] [SETTING ...]",
        "numerate import finetuned\nnumerate import finetuned name=mine task.tokenizer=finetuned\n"
        "numerate import ckpt.pt recipe=tiny_stories_d64_l4_4+4_symbolic name=theirs check=logits.safetensors",
    ),
    "ask": (
        "answer questions with a run: the model's answer, its probability, and the correct answer",
        "RUN QUESTION ... [checkpoint=..] [model.SETTING=.. ...]",
        "numerate ask latest '321+654='\nnumerate ask latest '321+654=' model.backbone.num_loops=4,8\n"
        "numerate ask latest '12345+9=' '7+8=' checkpoint=best",
    ),
    "generate": (
        "generate text from prompts, streamed token by token",
        "RUN [PROMPT ...|-] [max_new_tokens=200] [temperature=1] [top_k=..] [top_p=..] [min_p=..] "
        "[do_sample=false] [seed=0]\n"
        "                         [repetition_penalty=1] [count=1] [stop=TEXT] [context_length=..] [checkpoint=..]\n"
        "                         [prompts=FILE] [out=FILE.jsonl] [model.SETTING=.. ...]",
        "numerate generate latest 'Once upon a time'\n"
        "numerate generate latest 'Once upon a time' temperature=0.8 top_p=0.95 max_new_tokens=300 seed=1\n"
        "numerate generate latest do_sample=false   (from the start of a document)\n"
        "numerate generate latest 'Emma went to' 'On a rainy day,' count=3 out=generated.jsonl\n"
        "numerate generate mine prompts=prompts.txt checkpoint=best stop='The end'\n"
        "echo 'Once upon a time' | numerate generate latest -\n"
        "numerate generate latest 'Once upon a time' max_new_tokens=2000 context_length=256   (the last 256 "
        "tokens are read)\n"
        "numerate generate latest '12+34='   (a model of sums)",
    ),
    "maps": (
        "write the attention maps of a prompt as an HTML page, with every head of every layer",
        "RUN [PROMPT] [checkpoint=..] [layer=..] [answer=true|false] [max_tokens=256] [out=FILE] "
        "[model.SETTING=.. ...]",
        "numerate maps latest '321+654='\nnumerate maps latest '321+654=' checkpoint=best layer=0,1 out=maps.html\n"
        "numerate maps latest '321+654=' answer=false   (the prompt alone, without the generated answer)\n"
        "numerate maps latest   (a question of the test split, or the start of the validation text)",
    ),
}

DRY_RUN_HELP = {
    "train": "build the model, time a few steps, print an estimate; write nothing",
    "run": "list which runs are new, done or failed; with executor=slurm print the job script; start nothing",
    "evaluate": "print cells, cost and estimated time; with executor=slurm the job script; write nothing",
}
"""The commands with `--dry-run`, and its help text."""


SKIP_BAD_COMMANDS = ("sample", "data", "train", "run")
"""The commands with `--skip-bad`, which sets `task.skip_invalid=true` of tasks over files."""


MODULES = {"evaluate": "runs", "generate": "prompts", "run": "studies", "list": "catalogue"}
"""The modules that are not called as their command."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 2 for wrong input, 1 for a failure, 130 for Ctrl-C."""
    # Otherwise garbage collection of torch's objects at exit takes a fifth of a short command's time.
    atexit.register(gc.freeze)
    with terminal.command_output():
        return _run(sys.argv[1:] if words is None else words)


def _run(words: Sequence[str]) -> int:
    options = parse_args(words)
    if options.command is None:
        _parser().print_help()
        return 0
    warnings.showwarning = _warn  # type: ignore[assignment]
    try:
        _load_user_parts(options.parts)
        status: int = _module(options.command).command(options)
        sys.stdout.flush()
        return status
    except (UserError, OperationalError) as error:
        if options.traceback:
            raise
        _print_once(error)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("numerate: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if options.traceback:
            raise
        traceback.clear_frames(error.__traceback__)  # frees memory for the message below
        memory = import_module("numerate.executors.memory")
        if (cause := memory.out_of_memory_error(error, is_limited=memory.is_memory_limited())) is not None:
            _print_once(OperationalError(f"out of memory: {memory.out_of_memory_text(cause)}"))
            return 1
        is_user_error = user_code_location(error) is not None
        print(f"numerate: {describe_error(error)}", file=sys.stderr)
        print("numerate: --traceback shows where", file=sys.stderr)
        return 2 if is_user_error else 1


def _module(command: str) -> ModuleType:
    return import_module(f"numerate.commands.{MODULES.get(command, command)}")


def _load_user_parts(files: Sequence[str]) -> None:
    """Loads the user's own components."""
    for file in files:
        import_module("numerate.config").load_user_parts(file)


def _warn(message: Warning | str, *_: object) -> None:
    """Prints a warning without Python's source line."""
    print(f"numerate: warning: {message}", file=sys.stderr)


def _print_once(error: UserError | OperationalError) -> None:
    """Prints an error in one of the processes of a run; the others wait, since a launcher ends all of them as soon as
    one has ended."""
    is_speaker = os.environ.get("RANK", "0") == "0" if error.should_print is None else error.should_print
    if is_speaker:
        print(f"numerate: {error}", file=sys.stderr, flush=True)
    else:
        time.sleep(3)


def parse_args(words: Sequence[str]) -> argparse.Namespace:
    """Parses the command line, with options in any order. Exits if it is invalid."""
    parser = _parser()
    if words and words[0] == "help":
        words = [*words[1:], "--help"]
    options, extra_words = parser.parse_known_args(words)  # argparse does not accept positional words after an option
    if unknown := next((word for word in extra_words if word.startswith("-") and not word[1:2].isdigit()), None):
        known = ["--parts", "--traceback", "--help", *(["--dry-run"] if options.command in DRY_RUN_HELP else [])]
        known += ["--as", "--from"] if options.command == "data" else []
        known += ["--size"] if options.command == "tokens" else []
        known += ["--skip-bad"] if options.command in SKIP_BAD_COMMANDS else []
        hint = _setting_hint(unknown, words, options.command) or f".{did_you_mean(unknown, known)}"
        parser.error(f"unknown option {unknown!r}{hint}")
    skip_settings = ["task.skip_invalid=true"] if getattr(options, "skip_bad", False) else []
    options.words = [*getattr(options, "words", []), *extra_words, *skip_settings]
    return options


def _setting_hint(option: str, words: Sequence[str], command: str | None) -> str:
    """A hint for an option that is a setting: `--steps 5` of a recipe is `training.steps=5`, `--count 200` of
    `evaluate` is `count=200`."""
    if command is None:
        return ""
    _, usage, examples = COMMANDS[command]
    name, equals, value = option.lstrip("-").partition("=")
    name, next_index = name.replace("-", "_"), words.index(option) + 1
    if not equals:
        value = (
            words[next_index]
            if next_index < len(words) and not words[next_index].startswith("--") and "=" not in words[next_index]
            else ".."
        )
    paths = [name] if f"[{name}=" in usage or f" {name}=" in examples else []
    if "SETTING ..." in usage:
        paths += sorted(_setting_paths(words), key=lambda path: path.count("."))
    found = next((path for path in paths if f".{path}".endswith(f".{name}")), None)
    return "" if found is None else f"; settings are written without dashes: {found}={value}"


def _setting_paths(words: Sequence[str]) -> list[str]:
    """The setting paths of the recipe, or of the first recipe of the study, in `words`; none without one."""
    for word in words:
        if word in COMMANDS or word.startswith("-"):
            continue
        try:
            found = import_module("numerate.studies.naming").load_recipe_or_study(word)
        except (UserError, OperationalError):
            continue
        recipe = next(iter(getattr(found, "recipes", [found])))
        return [path for path, *_ in import_module("numerate.config").describe_settings(recipe)]
    return []


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and self.prog == "numerate":
            word = message.split("'")[1]
            message = f"unknown command {word!r}; commands: {', '.join(COMMANDS)}.{did_you_mean(word, COMMANDS)}"
        print(f"{self.prog}: {message}", file=sys.stderr)
        print(f"{self.prog}: see --help", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="numerate",
        description="Train and evaluate language models on numbers and algorithms.",
        epilog="start with: numerate run quickstart",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="numerate COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (meaning, usage, examples) in COMMANDS.items():
        settings = SETTINGS_HELP if "SETTING" in usage else ""
        epilog = "\n\n".join(part for part in (settings, f"examples:\n{_indented(examples)}") if part)
        subparser = commands.add_parser(
            name,
            help=meaning,
            description=meaning[0].upper() + meaning[1:] + ".",
            usage=f"numerate {name} {usage}",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.add_argument("words", nargs="*", metavar=usage.split(" ")[0], help=argparse.SUPPRESS)
        subparser.add_argument(
            "--parts", action="append", default=[], metavar="FILE", help="a Python file with your own components"
        )
        subparser.add_argument(
            "--traceback", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        if name == "data":
            subparser.add_argument(
                "--as",
                dest="published_as",
                metavar="published",
                help="write: the files of a paper",
            )
            subparser.add_argument(
                "--from", dest="mirror", metavar="FOLDER", help="fetch: copy from this folder instead"
            )
        if name == "tokens":
            subparser.add_argument("--size", type=int, metavar="N", help="vocabulary size")
        if name in SKIP_BAD_COMMANDS:
            subparser.add_argument(
                "--skip-bad",
                action="store_true",
                help="skip and count records of a file that cannot be read",
            )
        if name in DRY_RUN_HELP:
            subparser.add_argument("--dry-run", action="store_true", help=DRY_RUN_HELP[name])
    return parser


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _version() -> str:
    from numerate import __version__

    return f"numerate {__version__}"
