"""Promises of the words that say who does the work of a command."""

import sys
from subprocess import run

import pytest

from numerate.commands.arguments import read_words
from numerate.commands.engines import parse_engine
from numerate.commands.table import COMMANDS
from numerate.errors import UserError
from numerate.runs.engines import Local, Ray


def test_words_that_concern_the_engine_are_taken_out_and_all_others_stay_in_their_order() -> None:
    words = "quickstart workers=3 seeds=2 engine=local engine.threads=2 model.hidden_size=64 timeout=60"
    arguments, values = read_words(COMMANDS["run"], words.split())
    assert (arguments, values["settings"]) == (["quickstart"], ["seeds=2", "model.hidden_size=64"])
    assert values["engine"] == Local(workers=3, threads=2, timeout=60.0)
    assert read_words(COMMANDS["run"], ["quickstart"])[1]["engine"] is None


@pytest.mark.parametrize("name", ["ray", "Ray", "RAY", "ray()"])
def test_an_engine_goes_by_its_name_in_any_case_and_its_settings_in_any_order(name: str) -> None:
    words = [
        "engine.num_gpus=0.25",
        f"engine={name}",
        "engine.address=auto",
        "workers=null",
    ]
    assert parse_engine(words) == Ray(num_gpus=0.25, address="auto")
    assert parse_engine(["engine=ray(num_cpus=0.5, num_gpus=1)", "timeout=9"]) == Ray(
        num_cpus=0.5, num_gpus=1.0, timeout=9.0
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["engine=rayy"],
            "engine: no Engine is named 'rayy'; there are: InProcess, Local, Ray, Slurm. Did you mean 'Ray'?",
        ),
        (
            ["engine=ray", "engine.num_gpu=1"],
            "engine.num_gpu: Ray has no setting .* Did you mean 'num_gpus'?",
        ),
        (["engine.address=auto"], "engine.address: Local has no such setting, Ray has: engine=ray"),
        (["workers=0"], "engine.workers: must be 1 or more, or null, not 0"),
        (
            ["engine.timeout=10m"],
            "engine.timeout: must be a number .*, not '10m'",
        ),
        (["engine=ray", "engine.num_gpus=1.5"], "engine.num_gpus: must be an integer if above 1, not 1.5"),
    ],
)
def test_words_that_make_no_engine_say_what_would(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message.replace('?', '[?]')}"):
        parse_engine(words)


def test_finding_an_engine_imports_no_heavy_library() -> None:
    script = (
        "import sys; from numerate.commands.engines import parse_engine; parse_engine(['engine=ray', "
        "'workers=2'])\nprint([name for name in ('torch', 'numpy', 'ray', 'submitit', 'yaml') if name in sys.modules])"
    )
    assert run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"
