"""Promises of the commands: their help, how quickly they start, and what they say to bad input."""

import hashlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from forked import Ended, run_command
from newcomers import forget_parts_of_users
from numerate import catalogue
from numerate.cli import Call, main
from numerate.commands import studies
from numerate.commands.compare import resolve_runs
from numerate.commands.runs import sweep
from numerate.commands.table import COMMANDS
from numerate.recipes import addition_abacus
from numerate.recipes.study import Study
from numerate.records.schema import checksum
from numerate.runs.end import End, write_end
from numerate.runs.study_folder import StudyFolder, StudyRun
from numerate.training.run_folder import RunFolder
from run_records import cell_record, write_run

torch.set_num_threads(1)

SMALL = "preset=debug"


class Shell:
    """Runs commands in this process, in a folder of its own."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *words: str) -> Ended:
        self.capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as leaving:  # argparse's way of ending
            status = int(leaving.code or 0)
        out, err = self.capsys.readouterr()
        return Ended(status, out, err)


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMERATE_RUNS", raising=False)
    forget_parts_of_users(monkeypatch)
    return Shell(capsys)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one small run in it, which no test changes."""
    folder = tmp_path_factory.mktemp("small") / "runs"
    assert main(["train", "addition_abacus", SMALL, "training.evaluate_every=6", f"runs_dir={folder}"]) == 0
    return folder


@pytest.fixture
def run(runs: Path) -> Path:
    return next(head.parent for head in runs.glob("*/*/recipe.yaml"))


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(ended: Ended, *messages: str) -> None:
    """Wrong input: status 2, one or two lines that contain all of `messages`, nothing else."""
    lines = ended.err.splitlines()
    assert ended.status == 2, ended
    assert 1 <= len(lines) <= 2, ended.err
    assert lines[0].startswith("numerate"), ended.err
    assert "Traceback" not in ended.err + ended.out
    assert "fault of the program" not in ended.err
    for text in messages:
        assert text in ended.err, f"{text!r} is not in: {ended.err}"


# Help and start-up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_its_options_and_examples_that_begin_with_it(
    command: str, shell: Shell
) -> None:
    ended = shell(*command.split(), "--help")
    assert ended.status == 0
    examples = ended.out.partition("examples:\n")[2].strip().splitlines()
    assert examples, ended.out
    assert all(f"numerate {command} " in f"{line} " for line in examples)
    for option in COMMANDS[command].options:
        assert f"  {option.name}" in ended.out
        assert option.help.split()[0] in ended.out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_function_of_a_command_takes_what_its_row_promises(command: str) -> None:
    row = COMMANDS[command]
    taken = inspect.signature(Call(command, [], {}).function).parameters.values()
    names = {one.name for one in taken if one.kind is one.KEYWORD_ONLY}
    promised = {option.key for option in row.options if not option.setting} | set(row.context)
    promised |= {"settings"} if row.settings is not None else set()
    promised |= {"engine"} if row.engine else set()
    assert names <= promised
    assert not promised & {one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD}
    assert promised == names or any(one.kind is one.VAR_KEYWORD for one in taken)
    assert {one.name for one in taken if one.kind is one.KEYWORD_ONLY and one.default is one.empty} <= (
        {option.key for option in row.options if option.required} | set(row.context) | {"settings", "engine"}
    )


def test_help_without_a_command_names_every_command(shell: Shell) -> None:
    assert all(f"\n    {command}" in shell("--help").out for command in COMMANDS)
    assert shell().out == shell("--help").out
    assert "data write" in shell("data", "--help").out


MODULES = """
import sys
from numerate.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
heavy = {"numpy", "torch", "matplotlib", "yaml", "einops", "jaxtyping", "sysconfig"} & {*sys.modules}
print("\\nHEAVY", *heavy)
"""


def imported(*words: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", MODULES, *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("\nHEAVY")[2].split())


@pytest.mark.parametrize("words", [("--help",), ("train", "--help"), ("--version",), ("trian",)])
def test_help_imports_nothing_heavy(words: tuple[str, ...]) -> None:
    assert imported(*words) == set()


@pytest.mark.parametrize("words", ["list", "list mixers", "list recipes counting_", "sample Arithmetic digits=1:3"])
def test_listing_and_sampling_a_task_need_no_torch(words: str) -> None:
    assert "torch" not in imported(*words.split())


# What the quick commands show ----------------------------------------------------------------------------------------


def test_list_names_every_part_of_every_room_with_one_line(shell: Shell) -> None:
    lines = shell("list").out.splitlines()
    for parts in catalogue.parts_by_kind().values():
        for name in parts:
            assert any(line.split()[:1] == [name] and len(line.split()) > 3 for line in lines), name


def test_list_takes_one_kind(shell: Shell) -> None:
    assert shell("list", "mixers").out.splitlines()[0] == "mixers"
    assert shell("list", "mixer").out == shell("list", "Mixer").out == shell("list", "mixers").out
    assert shell("list", "number-formats").out.splitlines()[0] == "number formats"


def test_sample_shows_labels_below_what_they_are_of(shell: Shell) -> None:
    read, targets, empty = shell("sample", "counting_samesymbol_mod10bos", "count=1").out.split("\n")[:3]
    words, labels = read.split(), targets.split()
    assert words == ["0", *"a" * (len(words) - 1)]
    assert labels == [".", *(str((n - 1) % 10 + 1) for n in range(1, len(words)))]
    assert empty == ""
    assert [read.index(word) for word in "0a"] == [targets.index(label) for label in ".1"]


def test_sample_distinguishes_how_many_are_shown_from_what_a_task_counts(shell: Shell) -> None:
    assert len(shell("sample", "Counting", "task.count=3", "count=2").out.split("a a a\n1 2 3\n")) == 3
    assert "count: must be an integer, not '1:3'" in shell("sample", "Counting", "count=1:3").err


def test_sample_of_a_file_draws_its_rows(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("321+654=975\n21+9=12\n9+1=01\n")
    lines = shell("sample", "rows.txt", "count=6").out.splitlines()
    assert len(lines) == 6
    assert set(lines) <= {"123+456=579", "12+9=21", "9+1=10"}


def test_sample_of_a_recipe_shows_what_the_model_reads_says_and_where(shell: Shell) -> None:
    text = shell("sample", "addition_abacus", "count=1", "split=test").out
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["inputs", "targets", "position", "token"]
    assert "as in evaluation" in text


def test_sample_of_a_recipe_shows_the_number_that_a_token_carries(shell: Shell) -> None:
    pytest.importorskip("transformers", reason="T5 is held by transformers")
    words = ["task=multiplication", "tokenizer.tokenizer=characters"]  # weights on the hub, which are not needed
    lines = shell("sample", "mathematics_xval", *words, "count=1").out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:4]}
    assert lines[0] == "What is 5 times 5?25"
    assert rows["question"].count("[NUM]=5") == 2
    assert rows["inputs"] == ["[PAD]", "[NUM]=25"]
    assert rows["targets"] == ["[NUM]=25", "[EOS]"]


def test_show_gives_every_setting_its_meaning_and_the_papers_bibtex(shell: Shell) -> None:
    text = shell("show", "addition_abacus", "model.hidden_size=64").out
    assert re.search(r"^model\.hidden_size=64 +hidden size of the residual stream$", text, re.M)
    assert "@inproceedings{mcleish2024transformers" in text


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(shell: Shell, tmp_path: Path) -> None:
    ended = shell("train", "addition_abacus", SMALL, "--dry-run")
    assert ended.status == 0
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == [
        "parameters",
        "memory",
        "first",
        "budget",
        "compute",
        "time",
    ]
    assert list(tmp_path.iterdir()) == []


# Bad input -----------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, tuple[str, ...]]] = [
    # names
    ("trian addition_abacus", ("'trian'", "Did you mean 'train'?")),
    ("train additon_abacus", ("'additon_abacus'", "Did you mean 'addition_abacus'?")),
    ("run quikstart", ("Did you mean 'quickstart'?",)),
    ("train addition_abacus loss=NTL", ("no Loss is named 'NTL'", "Did you mean 'NumberToken'?")),
    ("train addition_abacus model.positions=[RoPE]", ("'RoPE'", "Did you mean 'Rotary'?")),
    ("train addition_abacus model.positions=NoPE", ("'NoPE'", "Did you mean 'model.positions=[]'?")),
    ("show latest", ("latest: must be a recipe", "numerate report latest")),
    ("show LTSM", ("Did you mean 'LSTM'?",)),
    ("show nowhere.py", ("nowhere.py: there is no such file",)),
    ("show LSTM hidden_size=3", ("a part has its settings in brackets", "numerate show 'LSTM(hidden_size=3)'")),
    ("show Learned(max_position_embeddings=0)", ("Learned.max_position_embeddings: must be 1 or more, not 0",)),
    ("run quickstart engine=rya", ("engine", "'rya'", "Did you mean 'Ray'?")),
    ("train addition_abacus device=gpu", ("device", "'gpu'", "cuda (a GPU")),
    ("train addition_abacus wandb=true", ("has no setting 'wandb'", "Did you mean 'trackers=wandb'?")),
    ("train quickstart", ("is a study", "numerate run quickstart")),
    ("train addition_abacus preset=fast", ("preset", "debug")),
    ("list --parts nowhere.py", ("nowhere.py", "there is no such file")),
    ("train addition_abacus init_from=nothing --dry-run", ("init_from: no run in runs", "'nothing'")),
    ("train addition_abacus addition_rotary", ("'addition_rotary'", "the recipe is addition_abacus already")),
    ("train addition_abacus tokenizer=gpt2", ("'gpt2'", "Did you mean 'Subwords(tokenizer=gpt2)'?")),
    ("train LSTM", ("LSTM is a Mixer, not a recipe", "numerate show LSTM")),
    ("run nowhere.py", ("nowhere.py:NAME",)),
    ("evaluate addition_abacus", ("there is no run of addition_abacus in runs", "numerate train addition_abacus")),
    ("compare quickstart", ("there is no run of quickstart", "numerate run quickstart")),
    ("finetune addition_abacus", ("addition_abacus: must be hf: with the name or folder of a model",)),
    ("finetune hf:folder", ("task: must be set", "numerate finetune hf:folder task=gsm8k")),
    ("search addition_abacus lr=1e-4:1e-2", ("nothing to search over", "log(1e-4,1e-2)")),
    # values
    ("train addition_abacus model.hidden_size=130", ("hidden_size=130, not 4", "heads")),
    (
        "train addition_abacus model.positions.0.max_position_embeddings=4",
        ("model.positions.0", "max_position_embeddings="),
    ),
    ("train addition_rotary model.mixer=LSTM", ("model.positions.0", "LSTM")),
    ("train addition_abacus training.steps=null", ("training.steps", "budget")),
    (
        "train addition_abacus training.batch_size=10 training.gradient_accumulation_steps=3",
        ("training.gradient_accumulation_steps",),
    ),
    ("train addition_abacus training.precision=fp16 device=cpu", ("training.precision", "fp16", "bf16")),
    ("train addition_abacus seeds=1:3", ("seeds: must be the number of seeds", "'1:3'", "seed=0,1,2")),
    ("train addition_abacus seed=1:3", ("seed: must be an integer", "several values are seed=1,3")),
    ("train addition_abacus training.steps=1,000", ("'1,000' is read as several values; one number is 1000",)),
    ("train addition_abacus training.steps=\u22125", ("training.steps: must be from 0", "not -5")),
    # what is missing or left over
    ("show", ("numerate show addition_abacus",)),
    ("status", ("the study is missing", "numerate status quickstart")),
    ("status quickstart", ("no study in runs", "numerate run quickstart")),
    ("train model.hidden_size=64", ("numerate train addition_abacus",)),
    ("evaluate", ("numerate evaluate latest",)),
    ("evaluate latest", ("there is no run here yet", "numerate train")),
    ("report nothing", ("'nothing'",)),
    ("ask latest", ("question",)),
    ("train addition_abacus --dryrun", ("--dryrun", "Did you mean '--dry-run'?")),
    ("train addition_abacus dry_run=perhaps", ("--dry-run: must be true or false, not 'perhaps'",)),
    (
        "train addition_abacus training=5",
        ("training: must be Training, or Training(steps=...) with settings, not '5'",),
    ),
    ("train addition_abacus --steps 5", ("'--steps'", "without dashes, such as steps=..")),
]


@pytest.mark.parametrize(("line", "messages"), BAD, ids=[line for line, _ in BAD])
def test_wrong_input_is_reported_in_a_line_or_two_and_nothing_is_written(
    line: str, messages: tuple[str, ...], shell: Shell, tmp_path: Path
) -> None:
    refused(shell(*line.split()), *messages)
    assert list(tmp_path.iterdir()) == []


BAD_OF_A_RUN: list[tuple[str, tuple[str, ...]]] = [
    ("evaluate RUN grid=1:100x1:100", ("grid", "1:100x1:100", "64 positions", "max_position_embeddings=")),
    ("evaluate RUN grid=1:2x1:2x1:2", ("grid", "first_digits, second_digits")),
    ("evaluate RUN gird=1:2", ("gird=1:2", "Did you mean 'grid'?")),
    ("evaluate RUN limit=5", ("limit=5", "Did you mean 'count'?")),
    ("evaluate RUN batch_size=5", ("batch_size is a setting of training (training.batch_size)",)),
    ("evaluate RUN max_new_tokens=5", ("max_new_tokens", "below model.")),
    ("evaluate RUN checkpoint=77", ("77",)),
    ("evaluate RUN checkpoint=last", ("checkpoint: 'last' must be final", "Did you mean 'final'?")),
    ("evaluate RUN shard=5/4", ("shard", "5/4")),
    ("evaluate RUN method=guessing", ("method", "decoding")),
    ("evaluate RUN grid=diagonal:101:160", ("grid", "diagonal:101:160", "64 positions", "max_position_embeddings=162")),
    ("evaluate RUN model.hidden_size=64", ("model.hidden_size=64", "these settings change the weights")),
    ("evaluate RUN task.digits=1:9", ("task.digits", "below model.")),
    ("evaluate RUN model.mixer.logit_scael=2", ("Did you mean 'logit_scale'?",)),
    ("plot gird RUN", ("'gird'", "Did you mean 'grid'?")),
    ("plot grid RUN out=", ("out", "grid.png")),
    ("plot grid RUN checkpoint=7", ("checkpoint", "must be final or best")),
    ("plot", ("the kind is missing", "numerate plot grid latest")),
    ("ask RUN how-much?", ("how-much?", "12+9=")),
    ("ask RUN 3*4=", ("3*4=",)),
    ("compare RUN out=", ("out", "compare.html")),
]


@pytest.mark.parametrize(("line", "messages"), BAD_OF_A_RUN, ids=[line for line, _ in BAD_OF_A_RUN])
def test_wrong_input_about_a_run_leaves_the_run_as_it_was(
    line: str, messages: tuple[str, ...], shell: Shell, runs: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_RUNS", str(runs))
    before = contents(runs)
    refused(shell(*(str(run) if word == "RUN" else word for word in line.split())), *messages)
    assert contents(runs) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named_before_anything_is_written(shell: Shell, tmp_path: Path) -> None:
    for device in ("cuda", "cuda:1"):
        refused(shell("train", "addition_abacus", f"device={device}"), device, "device=cpu")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_is_refused(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "runs" / "something").mkdir(parents=True)
    for command in ("evaluate", "report", "compare"):
        refused(shell(command, str(tmp_path / "runs" / "something")), "no run", "recipe.yaml")
    refused(shell("ask", str(tmp_path / "elsewhere"), "1+1="), "no such folder")


def changed(run: Path, place: Path, path: str, value: object) -> Path:
    """A copy of a run whose recipe.yaml has another value at a path."""
    copy = place / "runs" / "copy" / run.name
    copy.mkdir(parents=True)
    node = head = RunFolder(run).metadata()
    *outer, last = path.split(".")
    for name in outer:
        node = node[name]
    node[last] = value
    head["checksum"] = checksum(head)
    (copy / "recipe.yaml").write_text(yaml.safe_dump(head, sort_keys=False))
    return copy


@pytest.mark.parametrize(
    ("path", "value", "messages"),
    [
        ("format", 99, ("99", "update numerate")),
        ("recipe.model.mixer.kind", "Mamba9", ("model.mixer", "'Mamba9'", "Alternating, Attention")),
        ("recipe.model.hidden_size", "wide", ("model.hidden_size", "wide")),
    ],
)
def test_a_recipe_of_another_version_is_refused_by_name(
    path: str, value: object, messages: tuple[str, ...], shell: Shell, run: Path, tmp_path: Path
) -> None:
    copy = changed(run, tmp_path, path, value)
    before = contents(tmp_path)
    for words in (("evaluate", str(copy)), ("ask", str(copy), "1+1="), ("train", str(copy / "recipe.yaml"))):
        ended = shell(*words)
        refused(ended, *messages)
        assert "recipe.yaml" in ended.err
    assert contents(tmp_path) == before


@pytest.fixture
def evaluated(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, trained and evaluated, in `runs` of this test's folder."""
    copy = tmp_path / "runs" / run.parent.name / run.name
    shutil.copytree(run, copy)
    assert main(["evaluate", str(copy), "grid=1:2x1:2", "count=4"]) == 0
    return copy


def train_again(run: Path) -> tuple[str, ...]:
    return ("train", "addition_abacus", SMALL, "training.evaluate_every=6", f"runs_dir={run.parents[1]}")


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda text: text.replace('"correct": ', '"correct": 900', 1), ("line 1", "`correct` must be at most")),
        (lambda text: text[:50] + text[text.index("\n") :], ("line 1",)),
    ],
)
def test_a_damaged_evaluation_is_refused_alike_by_all_that_read_it(
    change: Any, messages: tuple[str, ...], shell: Shell, evaluated: Path
) -> None:
    file = evaluated / "cells.jsonl"
    file.write_text(spoilt := change(file.read_text()))
    address = str(evaluated)
    for words in (("evaluate", address), ("report", address), ("compare", address), ("plot", "grid", address)):
        refused(shell(*words), "cells.jsonl", "damaged", "numerate evaluate", *messages)
        assert file.read_text() == spoilt


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("seed: 0", "seed: 1", 1),
        lambda text: text.replace("kind: Decoder", "kind: ki", 1),
    ],
)
def test_a_damaged_recipe_is_refused_alike_by_all_commands(change: Any, shell: Shell, evaluated: Path) -> None:
    head = evaluated / "recipe.yaml"
    before = head.read_text()
    head.write_text(change(before))
    assert head.read_text() != before
    address = str(evaluated)
    commands = [
        ("evaluate", address),
        ("report", address),
        ("compare", address),
        ("ask", address, "1+1="),
        ("maps", address, "1+1="),
    ]
    commands += [("plot", "curves", address), ("export", address, "out=there"), train_again(evaluated)]
    commands += [("train", str(head))] if head.read_text() else []
    for words in commands:
        refused(shell(*words), "recipe.yaml", "damaged")
    listed = shell("list", "runs")
    assert listed.status == 0
    assert "damaged" in listed.out


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(
    ("written", "message"),
    [
        (3, "was written by an earlier version of numerate and can only be read by that version"),
        (99, "update numerate"),
    ],
)
def test_a_run_of_another_version_is_listed_as_such_and_not_as_damaged(
    written: int, message: str, shell: Shell, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "sums" / "abc123").mkdir(parents=True)
    (tmp_path / "runs" / "sums" / "abc123" / "recipe.yaml").write_text(f"format: {written}\nrecipe: {{}}\n")
    listed = shell("list", "runs", f"runs_dir={tmp_path / 'runs'}")
    assert listed.status == 0
    assert message in listed.err
    assert "(another version)" in listed.out
    assert "damaged" not in listed.out + listed.err


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.unlink(), "it is missing, so it ends at step 0"),
        (lambda file: file.write_text(""), "it ends at step 0"),
        (lambda file: file.write_text(file.read_text()[:40]), "it ends at step 0"),
        (lambda file: file.write_text("oops\n" + file.read_text()), "line 1: damaged: no JSON object"),
    ],
)
def test_damaged_metrics_are_warned_of_on_the_terminal_and_on_the_page(
    change: Any, message: str, shell: Shell, evaluated: Path
) -> None:
    change(evaluated / "metrics.jsonl")
    for words in (
        train_again(evaluated),
        ("evaluate", str(evaluated), "grid=1:2x1:2", "count=4"),
        ("report", str(evaluated)),
    ):
        ended = shell(*words)
        assert ended.status == 0, ended.err
        assert "metrics.jsonl" in ended.err
        assert message in ended.err
    assert message in (evaluated / "report.html").read_text()


def test_a_file_in_the_place_of_the_folder_of_runs_is_an_error(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine\n")
    refused(shell("train", "addition_abacus", SMALL, f"runs_dir={tmp_path / 'taken'}"), "taken")
    assert (tmp_path / "taken").read_text() == "mine\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="to root no folder is read-only")
def test_a_read_only_folder_is_an_error(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    refused(shell("train", "addition_abacus", SMALL, f"runs_dir={folder}"), "closed")
    assert list(folder.iterdir()) == []


def test_traceback_shows_where_an_error_came_from(shell: Shell) -> None:
    with pytest.raises(Exception, match="no Mixer is named 'LTSM'"):
        shell("show", "addition_abacus", "model.mixer=LTSM", "--traceback")


def test_what_nobody_foresaw_is_called_a_fault_of_the_program(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numerate.commands.catalogue.TITLES", None)
    ended = shell("list")
    assert ended.status == 1
    message = "numerate: internal error, please report it: TypeError: Value after * must be an iterable, not NoneType"
    assert ended.err.splitlines() == [message, "numerate: --traceback shows where"]


BUSY = """
from dataclasses import dataclass
from helper import half
from numerate.models.decoder import Decoder
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.task import Example, Task
from numerate.training.recipe import Recipe, Training
import torch

@dataclass(frozen=True)
class Halves(Task):
    how: str = "half"

    def example(self, rng):
        if self.how == "half":
            return Example("1", half("2"))
        if self.how == "key":
            return {}["no such key"]
        return torch.zeros(2) @ torch.zeros(3)

def recipe():
    return Recipe(task=Halves(), model=Decoder(hidden_size=8), training=Training(steps=2, batch_size=2,
    shuffle_window=1, threads=1))

def broken():
    return Recipe(task=Arithmetic(), model=7 + "8")

@dataclass(frozen=True)
class Narrow(Decoder):
    def build(self, vocabulary, seed):
        raise ValueError("too narrow")
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train busy.py:recipe", "TypeError in helper.py, line 2: unsupported operand type(s) for /: 'str' and 'int'"),
        ("sample busy.py:recipe task.how=half", "TypeError in helper.py, line 2: unsupported operand"),
        ("train busy.py:recipe task.how=key", "KeyError in busy.py, line 18: 'no such key'"),
        ("train busy.py:recipe task.how=torch", "RuntimeError in busy.py, line 19: "),
        ("show busy.py:broken", "TypeError in busy.py, line 26: unsupported operand type(s) for +"),
        ("train addition_rotary --parts busy.py model=Narrow", "ValueError in busy.py, line 31: too narrow"),
        ("run busy.py:recipe workers=1", "TypeError in helper.py, line 2: unsupported operand"),
    ],
)
def test_an_error_in_a_users_file_is_reported_with_its_line_wherever_it_is_at_work(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    (tmp_path / "helper.py").write_text("def half(x):\n    return x / 2\n")
    try:
        ended = shell(*words.split())
    finally:
        sys.modules.pop("helper", None)
    assert ended.status == 2
    assert message in ended.err
    assert "fault of the program" not in ended.err
    assert "Traceback" not in ended.err


# A run from beginning to end -----------------------------------------------------------------------------------------


def test_a_run_is_evaluated_reported_queried_and_compared_by_its_commands(shell: Shell, runs: Path, run: Path) -> None:
    place = f"runs_dir={runs}"
    grid = shell("evaluate", "latest", "grid=1:2", "count=4", place)
    assert grid.status == 0, grid.err
    assert "in distribution" in grid.out
    assert (run / "cells.jsonl").read_text().count("\n") == 4
    assert shell("report", run.name[:6], place).out.strip() == str(run / "report.html")
    assert "<svg" in (run / "report.html").read_text()
    answer = shell("ask", "latest", "12+9=", place)
    assert answer.status == 0, answer.err
    assert answer.out.startswith("12+9=")
    assert "21" in answer.out
    both = shell("compare", "latest", "out=both.html", place)
    assert both.status == 0, both.err
    assert Path("both.html").is_file()
    for kind in ("grid", "curves", "compare", "training"):
        drawn = shell("plot", kind, "latest", f"out={kind}.svg", place)
        assert drawn.status == 0, drawn.err
        assert Path(f"{kind}.svg").read_text().startswith("<?xml")


def made_up_study(runs: Path, accuracies: Mapping[int, float], title: str = "addition_abacus") -> list[Path]:
    """A study in the folder of its only recipe, a run for each seed with this share right; it failed where that is
    negative. Beside the runs lie the files that a command leaves in a study's folder."""
    folder, wanted, places = StudyFolder.from_title(title, runs), [], []
    for seed, share in accuracies.items():
        model = {"kind": "Decoder", "hidden_size": 32 if share < 0 else 64}
        tree = {"kind": "Recipe", "title": "addition_abacus", "model": model, "seed": seed}
        wanted.append(StudyRun.of(f"addition_abacus/{seed:012x}", f"key{seed}", tree))
    planned = folder.update(wanted, labels={"addition_abacus": "Abacus"})
    failure = {"status": "failed", "kind": "operational error", "error": "the loss is nan"}
    sizes = [{"first_digits": a, "second_digits": b} for a in (1, 2) for b in (1, 2)]
    for one, share in zip(planned, accuracies.values(), strict=True):
        ended = failure if share < 0 else {"status": "done", "results": {}}
        if share >= 0:
            more = {"seed": one.seed, "step": 1, "digit_accuracy": share, "first_error_counts": None}
            more |= {"low": share / 2, "high": (1 + share) / 2}
            cells = [cell_record(size, round(100 * share), 100, "ood_test", **more) for size in sizes]
            places.append(write_run(runs / one.run, one.recipe_tree(), cells))
        write_end(RunFolder(runs / one.run), End.now(**{"key": one.key, "seconds": 1.0, **ended}))
    for name in ("log.txt", "report.html", "figure.png"):
        (folder.path / name).write_text("")
    return places


def test_of_all_that_is_in_the_folder_of_a_recipe_and_study_the_runs_are_compared(shell: Shell, tmp_path: Path) -> None:
    made_up_study(tmp_path / "runs", {0: 0.25, 1: 0.75})
    words = sorted(map(str, (tmp_path / "runs/addition_abacus").iterdir()))  # what a shell makes of folder/*
    assert {Path(word).name for word in words} > {"study.json", "study.lock", "log.txt"}
    compared = shell("compare", *words)
    assert compared.status == 0, compared.err
    assert "2 runs" in Path("compare.html").read_text()
    drawn = shell("plot", "curves", *words, "out=a.svg")
    assert drawn.status == 0, drawn.err
    assert shell("compare", *words, "runs/addition_abacus/rnu").status == 2
    refused(shell("compare", "runs/addition_abacus/log.txt"), "log.txt")
    refused(
        shell("compare", "runs/addition_abacus/log.txt", "runs/addition_abacus/study.json"),
        "none of these has a completed run",
    )


@pytest.mark.parametrize(
    "address", ["runs/addition_abacus", "runs/addition_abacus/", "addition_abacus", "addition-abacus"]
)
def test_a_study_stands_for_its_done_runs_under_its_labels(address: str, shell: Shell, tmp_path: Path) -> None:
    places = made_up_study(tmp_path / "runs", {2: 0.25, 0: 0.75, 1: -1.0})
    stranger = tmp_path / "runs/addition_abacus/ffffffffffff"
    shutil.copytree(places[0], stranger)  # a run of the recipe that the study did not ask for
    assert [path.resolve() for path in resolve_runs([address]).folders] == [place.resolve() for place in places]
    assert len(resolve_runs([address, str(places[0]), address]).folders) == 2
    compared = shell("compare", address)
    assert compared.status == 0, compared.err
    warning = "1 of 3 runs failed and is not in anything below: Abacus (hidden_size=32) seed 1 (the loss is nan). "
    warning += "No run of Abacus (hidden_size=32) succeeded."
    page = Path("compare.html").read_text()
    assert f'<p class="warning">{warning}</p>' in page
    assert "<h1>Abacus</h1>" in page
    assert compared.out.startswith(warning)
    drawn = shell("plot", "curves", address, "out=a.svg")
    assert drawn.status == 0, drawn.err
    assert "1 of 3 runs failed and is not in anything drawn" in drawn.out
    assert "Abacus" in Path("a.svg").read_text()


def test_a_study_of_which_nothing_is_done_has_nothing_to_compare(shell: Shell, tmp_path: Path) -> None:
    made_up_study(tmp_path / "runs", {0: -1.0}, "mine")
    refused(shell("compare", "mine"), "no run of this study is done yet", "numerate status mine")
    refused(shell("plot", "curves", "mine"), "no run of this study is done yet")


def test_many_runs_are_summed_up_by_the_table_of_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    folders = made_up_study(runs, {0: 0.25, 1: 0.75})
    study = Study("addition_abacus", "How good?", ())
    studies.show_summary(study, str(runs), folders)
    heat_maps = capsys.readouterr().out
    monkeypatch.setattr(studies, "MAX_RUNS", 1)
    studies.show_summary(study, str(runs), folders)
    table = capsys.readouterr().out
    assert main(["results", "addition_abacus", "group=label", f"runs_dir={runs}"]) == 0
    assert table == capsys.readouterr().out != heat_maps


def test_a_warning_is_one_plain_line(runs: Path, tmp_path: Path) -> None:
    done = run_command(["ask", "latest", f"{'1' * 30}+1=", f"runs_dir={runs}"], tmp_path)
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert lines[0].startswith("numerate: warning: model.positions.0: position")


def test_settings_beside_a_preset_are_kept() -> None:
    recipes = sweep(addition_abacus(), ["training.steps=7", "model.hidden_size=24,32"], "debug")
    assert [(one.training.steps, one.model.hidden_size) for one in recipes] == [(7, 24), (7, 32)]  # type: ignore[attr-defined]
