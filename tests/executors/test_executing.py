"""Promises of the words that say who does the work of a command."""

import sys
from subprocess import run

import pytest

from numerate.commands.arguments import read_words
from numerate.commands.executing import parse_executor
from numerate.commands.table import COMMANDS
from numerate.errors import UserError
from numerate.executors import Local, Ray


def test_words_that_concern_the_executor_are_taken_out_and_all_others_stay_in_their_order() -> None:
    words = "quickstart workers=3 seeds=2 executor=local executor.threads=2 model.hidden_size=64 timeout=60"
    arguments, values = read_words(COMMANDS["run"], words.split())
    assert (arguments, values["settings"]) == (["quickstart"], ["seeds=2", "model.hidden_size=64"])
    assert values["executor"] == Local(workers=3, threads=2, timeout=60.0)
    assert read_words(COMMANDS["run"], ["quickstart"])[1]["executor"] is None


@pytest.mark.parametrize("name", ["ray", "Ray", "RAY", "ray()"])
def test_an_executor_goes_by_its_name_in_any_case_and_its_settings_in_any_order(name: str) -> None:
    words = [
        "executor.num_gpus=0.25",
        f"executor={name}",
        "executor.address=auto",
        "executor.memory=4e9",
        "workers=null",
    ]
    assert parse_executor(words) == Ray(num_gpus=0.25, address="auto", memory=4e9)
    assert parse_executor(["executor=ray(num_cpus=0.5, num_gpus=1)", "timeout=9"]) == Ray(
        num_cpus=0.5, num_gpus=1.0, timeout=9.0
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["executor=rayy"],
            "executor: no Executor is named 'rayy'; there are: InProcess, Local, Ray, Slurm. Did you mean 'Ray'?",
        ),
        (
            ["executor=ray", "executor.num_gpu=1"],
            "executor.num_gpu: Ray has no setting .* Did you mean 'num_gpus'?",
        ),
        (["executor.address=auto"], "executor.address: Local has no such setting, Ray has: executor=ray"),
        (["workers=0"], "executor.workers: must be 1 or more, or null, not 0"),
        (
            ["executor.timeout=10m"],
            "executor.timeout: must be a number .*, not '10m'",
        ),
        (["executor=ray", "executor.num_gpus=1.5"], "executor.num_gpus: must be an integer if above 1, not 1.5"),
    ],
)
def test_words_that_make_no_executor_say_what_would(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}"):
        parse_executor(words)


def test_finding_an_executor_imports_no_heavy_library() -> None:
    script = (
        "import sys; from numerate.commands.executing import parse_executor; parse_executor(['executor=ray', "
        "'workers=2'])\nprint([name for name in ('torch', 'numpy', 'ray', 'submitit', 'yaml') if name in sys.modules])"
    )
    assert run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"
