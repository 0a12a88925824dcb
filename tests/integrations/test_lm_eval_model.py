"""Promises of runs in lm-evaluation-harness: its numbers are those of `numerate evaluate`."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import QUIET
from numerate.errors import UserError
from numerate.evaluation.evaluation_data import cell_questions, make_batches
from numerate.evaluation.exact_match import target_likelihood
from numerate.integrations.hf_export import export
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.tasks.plain import format_question
from numerate.vocabulary import BOS
from small_runs import small

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: make test-integrations")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402

from numerate.integrations.lm_eval_model import NumerateLM, check_version  # noqa: E402

pytestmark = QUIET

CELL, COUNT = {"first_digits": 1, "second_digits": 1}, 40
LEARNING = "task.digits=1 tokenizer.add_bos_token=true optimizer.learning_rate=2e-2 training.batch_size=64"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with units first, which answers some sums of one digit."""
    return train(small(f"{LEARNING} training.steps=200"), quiet=True, runs_dir=tmp_path_factory.mktemp("runs")).run


@pytest.fixture(scope="module")
def model(run: Run) -> Any:
    return NumerateLM(run=str(run.path), device="cpu", batch_size=7)


@pytest.fixture(scope="module")
def exported(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(export(run, tmp_path_factory.mktemp("exported") / "run"))


def requests(kind: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def pairs(run: Run, count: int = COUNT) -> list[tuple[str, str]]:
    """Questions with answers of one and of two digits."""
    questions = cell_questions(run.recipe.task, CELL, count=count)
    return [format_question(questions, row) for row in range(len(questions))]


def test_exact_match_is_that_of_an_evaluation(run: Run, model: Any, tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"question": one, "answer": other}) + "\n" for one, other in pairs(run)))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "doc_to_text": "question",
        "doc_to_target": "answer",
        "target_delimiter": "",
        "output_type": "generate_until",
        "generation_kwargs": {"do_sample": False, "max_gen_toks": 12, "until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    found = lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0)["results"]
    (record,) = run.evaluate("1x1", count=COUNT)
    assert 0 < record["correct"] < COUNT, "neither all nor none is right"
    assert found["sums"]["exact_match,none"] == pytest.approx(record["correct"] / COUNT)


def test_likelihoods_are_those_of_the_run(run: Run, model: Any) -> None:
    asked = pairs(run)
    found = model.loglikelihood(
        requests("loglikelihood", *((question, f"{answer}[EOS]") for question, answer in asked))
    )
    questions = cell_questions(run.recipe.task, CELL, count=COUNT)
    (batch,) = make_batches(run.evaluation_data, questions, run.load_model())
    nll, _, _ = target_likelihood(run.load_model(), batch)
    assert sum(value for value, _ in found) == pytest.approx(-nll, abs=1e-4)
    (record,) = run.evaluate("1x1", count=COUNT)
    assert sum(is_greedy for _, is_greedy in found) == record["correct"]


def test_the_likelihood_of_a_text_begins_behind_one_bos_token(run: Run, model: Any, exported: str) -> None:
    texts = ["21+4=", "7+8=51", "1"]
    asked = requests("loglikelihood_rolling", *((text,) for text in texts))
    found = model.loglikelihood_rolling(asked)
    theirs = HFLM(exported, device="cpu", add_bos_token=False)
    assert theirs.loglikelihood_rolling(asked) == pytest.approx(found, abs=1e-4)
    for text, value in zip(texts, found, strict=True):
        ids = torch.tensor([[BOS, *run.recipe.tokenizer.encode(text, run.evaluation_data.vocabulary)]])
        with torch.no_grad():
            scores = model.model(ids).logits.log_softmax(-1)
        assert value == pytest.approx(float(scores[0, :-1].gather(1, ids[0, 1:, None]).sum()), abs=1e-4), text


def test_answers_are_those_of_the_run_in_plain_notation(run: Run, model: Any) -> None:
    asked = [*pairs(run, 8), ("4+17=", "21")]
    stop = {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}
    found = model.generate_until(requests("generate_until", *((question, stop) for question, _ in asked)))
    samples = [run.ask(question) for question, _ in asked]
    ended = [index for index, sample in enumerate(samples) if sample.ended]
    assert len(ended) > 4, "the others are cut at different lengths"
    assert [found[index] for index in ended] == [samples[index].prediction for index in ended]


def test_an_exported_run_reads_texts_as_they_are(run: Run, exported: str) -> None:
    theirs = HFLM(exported, device="cpu", batch_size=4)
    stop = {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}
    samples = [sample for question, _ in pairs(run, 8) if (sample := run.ask(question)).ended]
    prompts = [sample.question for sample in samples]  # one digit each: the same with units first
    found = theirs.generate_until(requests("generate_until", *((prompt, stop) for prompt in prompts)))
    assert [f"{prompt}{text}" for prompt, text in zip(prompts, found, strict=True)] == [
        one.model_text for one in samples
    ]
    ours = NumerateLM(exported, device="cpu").generate_until(requests("generate_until", (prompts[0], stop)))
    assert ours == [samples[0].prediction]


@pytest.mark.parametrize("version", ["0.3.0", "0.4.12", None])
def test_another_version_of_lm_eval_is_named(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(UserError, match=f"lm-eval: must be 0.4.13 or newer, not {version or 'none'}; install it"):
        check_version()


def test_a_model_is_a_run_or_an_exported_folder(exported: str, tmp_path: Path) -> None:
    for arguments in ({}, {"pretrained": exported, "run": "latest"}):
        with pytest.raises(UserError, match="model_args: must be either run=latest or pretrained=exported"):
            NumerateLM(**arguments)
    from hugging_face import byte_tokenizer, tiny_llama

    tiny_llama().save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="must be a folder of `numerate export`; for others use --model hf"):
        NumerateLM(str(tmp_path), device="cpu")
