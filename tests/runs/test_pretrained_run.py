"""Promises of Hugging Face models evaluated as they are: answers are those of transformers, and none is made twice."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hugging_face import QUIET, save_model, save_models, transformers
from numerate.api import load, recipe, train
from numerate.cli import main
from numerate.errors import UserError
from numerate.evaluation.completions import generate_completions
from numerate.evaluation.evaluation_data import EvaluationData
from numerate.evaluation.kinds import generated_answers
from numerate.evaluation.samples import sample_answers
from numerate.evaluation.sampling import Sampling
from numerate.runs.pretrained_run import pretrained_run
from numerate.tasks.plain import plain_examples

pytestmark = QUIET

SETTINGS = ["task.digits=1:2", "evaluation.generation.max_new_tokens=12", "evaluation.grid=1:2x1:2"]
STOP = "evaluation.generation.stop=[e]"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def generated(folder: Path, prompt: Any, **options: Any) -> list[int]:
    """The ids that transformers generates greedily after a text, or after the messages of a chat."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    auto = "AutoModelForSeq2SeqLM" if folder.name == "t5" else "AutoModelForCausalLM"
    model = getattr(transformers, auto).from_pretrained(folder)
    if isinstance(prompt, list):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
    else:
        ids = tokenizer(prompt)["input_ids"]
    with torch.no_grad():
        output = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12, **options)[0].tolist()
    return output[1 if folder.name == "t5" else len(ids) :]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["llama", "t5", "chat"])
def test_one_command_gives_the_answers_of_transformers(
    folders: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", f"hf:{folders[name]}", *SETTINGS, STOP, "count=3"]) == 0
    printed = capsys.readouterr().out
    (run,) = (tmp_path / "runs" / f"hf-{name}").iterdir()
    assert f"runs/hf-{name}/{run.name}\n" in printed
    lines = lines_of(run / "predictions.jsonl")
    assert len(lines) == 12
    templates: dict[str, Any] = {"llama": "Question: {}\nAnswer:", "t5": "{}"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[name])
    for line in lines:
        question = line["question"]
        prompt = [{"role": "user", "content": question}] if name == "chat" else templates[name].format(question)
        text = tokenizer.decode(generated(folders[name], prompt), skip_special_tokens=True)
        assert line["prediction"] == text.partition("e")[0].strip(), question
    assert len({line["prediction"] for line in lines}) > 3, "the model answers all questions alike"


@torch.no_grad()
@pytest.mark.parametrize("case", [("llama", 1, 0), ("llama", 2, 1), ("llama", 3, 2), ("t5", 3, None)], ids=str)
def test_answers_end_token_for_token_where_transformers_ends_them(
    folders: dict[str, Path], case: tuple[str, int, int | None], tmp_path: Path
) -> None:
    (name, num_ends, pad), folder = case, shutil.copytree(folders[case[0]], tmp_path / case[0])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = recipe(f"hf:{folder}", *SETTINGS)
    examples = plain_examples(questions := wanted.task.examples("test", 0, 0, 6))
    prompts = [wanted.tokenizer.prompt_format.render(one.question) for one in examples]  # type: ignore[attr-defined]
    free = [generated(folder, prompt, eos_token_id=[]) for prompt in prompts]
    ends = [2 if name == "t5" else free[0][7], free[1][5], free[2][3]][:num_ends]
    if pad is not None:
        tokenizer.eos_token, tokenizer.pad_token = tokenizer.convert_ids_to_tokens([ends[0], ends[pad]])
        tokenizer.save_pretrained(folder)
    config = {"eos_token_id": ends, "pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(config))
    found = [generated(folder, prompt) for prompt in prompts]
    assert (len({*ends}), ends[-1] in {row[-1] for row in found}) == (num_ends, True)
    texts = [tokenizer.decode(row[:-1] if row[-1] in ends else row, skip_special_tokens=True).strip() for row in found]
    expected = [(text, row[-1] in ends) for text, row in zip(texts, found, strict=True)]
    wanted = recipe(f"hf:{folder}", *SETTINGS, "evaluation.generation.stop=[zz]")
    data: Any = EvaluationData.from_recipe(wanted)
    model = pretrained_run(wanted, runs_dir=tmp_path).load_model()
    trained = wanted.model.rebuild(data.vocabulary, 0, model.pretrained_config())
    trained.load_state_dict(model.state_dict())
    batch, processor = data.batch(questions), data.kind.prompt_processor(data)
    asked_prompts = [processor.encode(example.question) for example in examples]
    for one in (model, trained.eval()):
        assert [(*answer.values(),) for answer in generated_answers.generate_texts(one, data, batch)] == expected
        asked = sample_answers(one, data, questions, extra_tokens=12 - batch.target_ids.shape[1])
        assert [(answer.prediction.strip(), answer.ended) for answer in asked] == expected
        if name == "llama":
            completions = generate_completions(one, processor, asked_prompts, Sampling(do_sample=False), 12)
            assert [data.vocabulary.pretrained_ids[[*each.tokens]].tolist() for each in completions] == found


@pytest.mark.parametrize("content", ['{"eos_token_id": [2, ', '{"eos_token_id": "</s>"}', "[2]"])
def test_end_tokens_that_cannot_be_read_are_an_error(folders: dict[str, Path], content: str, tmp_path: Path) -> None:
    (shutil.copytree(folders["llama"], tmp_path / "llama") / "generation_config.json").write_text(content)
    with pytest.raises(UserError, match=r"^model\.weights: .*/generation_config\.json, which .* cannot be read \("):
        recipe(f"hf:{tmp_path / 'llama'}")


def test_the_weights_are_not_copied_and_cells_are_not_generated_again(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pretrained_run(recipe(f"hf:{folders['llama']}", *SETTINGS), runs_dir=tmp_path)
    first = run.evaluate(count=3)
    assert not list(run.path.rglob("*.safetensors"))
    files = {name: (run.path / name).read_bytes() for name in ("cells.jsonl", "predictions.jsonl")}
    monkeypatch.setattr(generated_answers, "generate_texts", None)
    again = load(run.path).evaluate(count=3)
    assert list(again) == list(first)
    assert {name: (run.path / name).read_bytes() for name in files} == files


def test_an_interrupted_cell_resumes_after_the_answers_that_it_has(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_answers, "MAX_TOKENS_PER_BATCH", 100)  # two questions
    wanted = recipe(f"hf:{folders['llama']}", *SETTINGS, "evaluation.grid=2x2")
    whole, run = (pretrained_run(wanted, runs_dir=tmp_path / name) for name in ("whole", "interrupted"))
    whole.evaluate(count=6)
    generate, batches = generated_answers.generate_texts, []

    def interrupted(*arguments: Any) -> Any:
        batches.append(len(arguments[2].targets))
        if len(batches) == 3:
            raise KeyboardInterrupt
        return generate(*arguments)

    monkeypatch.setattr(generated_answers, "generate_texts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.evaluate(count=6)
    kept = (run.path / "predictions.jsonl").read_bytes()
    assert len(kept.splitlines()) == 4
    truncated = kept[:-30]  # as if killed while the last line was written
    prediction = json.dumps(json.loads(kept.splitlines()[0])["prediction"], ensure_ascii=False)
    for old, new in ((prediction.encode(), b'"4"'), (b'"correct": false', b'"correct": true')):
        (run.path / "predictions.jsonl").write_bytes(truncated.replace(old, new, 1))
        with pytest.raises(UserError, match=r"predictions.jsonl, line 1: damaged: `checksum` must be that of the line"):
            run.evaluate(count=6)
    (run.path / "predictions.jsonl").write_bytes(truncated)
    progress: list[tuple[int, int]] = []
    run.evaluate(count=6, on_progress=lambda done, total: progress.append((done, total)))
    assert batches[3:] == [2, 2], "the second and third batch"
    assert progress == [(3, 6), (4, 6), (6, 6)]
    for name in ("cells.jsonl", "samples.jsonl", "predictions.jsonl"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_changed_weights_are_refused_and_are_another_run(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "mine")
    run = pretrained_run(recipe(f"hf:{folder}", *SETTINGS), runs_dir=tmp_path / "runs")
    save_model(folder, scale=4.0)
    with pytest.raises(UserError, match=r"^model\.weights: the files of .*mine have changed .*`numerate evaluate hf:"):
        load(run.path).evaluate(count=1, on_progress=lambda *_: pytest.fail("the weights are read after it began"))
    assert pretrained_run(recipe(f"hf:{folder}", *SETTINGS), runs_dir=tmp_path / "runs").path != run.path


def test_a_folder_that_was_moved_keeps_its_answers(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(folders["llama"], tmp_path / "here" / "llama")
    run = pretrained_run(recipe(f"hf:{here}", *SETTINGS), runs_dir=tmp_path / "runs")
    run.evaluate(count=1)
    there = here.rename(tmp_path / "llama")
    again = pretrained_run(recipe(f"hf:{there}", *SETTINGS), runs_dir=tmp_path / "runs")
    assert again.path == run.path
    assert len(again.evaluate(count=2)) == 4, "with the weights where they are now"


def test_other_questions_in_a_file_are_another_run(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    wanted = [f"task=QuestionFiles(train_file={file})", SETTINGS[1]]
    runs = []
    for answer in (1, 2):
        file.write_text("".join(f"{i}+{answer}=\t{i + answer}\n" for i in range(20)))
        runs.append(pretrained_run(recipe(f"hf:{folders['llama']}", *wanted), runs_dir=tmp_path / "runs"))
        assert len(runs[-1].evaluate()) == 1
    assert runs[0].path != runs[1].path
    with pytest.raises(UserError, match=r"the contents of .* have changed since"):
        load(runs[0].path).evaluate()


def test_a_trained_model_is_another_run_than_that_of_the_model_as_it_is(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    more = ("training.batch_size=4", "training.steps=2", "evaluation.validation_examples=4", "device=cpu")
    wanted = recipe(f"hf:{folders['llama']}", *SETTINGS, *more)
    trained = train(wanted, runs_dir=tmp_path, quiet=True)
    before = pretrained_run(wanted, runs_dir=tmp_path)
    assert before.path.parent == trained.path.parent
    assert [len(one.evaluate(count=3)) for one in (before, trained)] == [4, 4]
    steps = [{line["step"] for line in lines_of(one.path / "cells.jsonl")} for one in (before, trained)]
    assert steps == [{0}, {2}]
    assert not any(line["overlaps_training"] for line in lines_of(before.path / "cells.jsonl"))
    with pytest.raises(UserError, match=r"step-000000: has no weights; it stands for those that the recipe"):
        before.checkpoints("0")[0].read()


def test_several_models_are_evaluated_and_compared_by_one_command(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    models = [f"hf:{folders[name]}" for name in ("llama", "chat")]
    assert main(["compare", *models, *SETTINGS, "evaluation.examples_per_cell=3"]) == 0
    table = capsys.readouterr().out.partition("Results\n=======\n")[2].splitlines()
    assert [line.split()[0] for line in table[:4]] == ["variant", "-" * len(table[1]), "hf-llama", "hf-chat"]
    assert "in distribution: exact match, %" in table[0]
    assert "hf-llama" in (tmp_path / "compare.html").read_text(encoding="utf-8")
    shutil.copytree(folders["chat"], tmp_path / "other" / "llama")  # another model in a folder of the same name
    assert main(["compare", models[0], "hf:other/llama", *SETTINGS, "evaluation.examples_per_cell=3"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    labels = [f"weights={folders['llama'].parent.name}/llama", "weights=other/llama"]
    assert "Results" in shown
    page = (tmp_path / "compare.html").read_text(encoding="utf-8")
    assert all(label in page for label in labels)
    assert main(["compare", "runs/hf-llama", "task=gsm8k"]) == 2
    assert "task=gsm8k: a comparison has settings of hf: models only" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_weights_may_be_in_half_the_memory(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    run = pretrained_run(recipe(f"hf:{folders[name]}", *SETTINGS, "model.dtype=bfloat16"), runs_dir=tmp_path)
    run.evaluate(count=1)
    assert {parameter.dtype for parameter in run.load_model().parameters()} == {torch.bfloat16}
    whole = pretrained_run(recipe(f"hf:{folders[name]}", *SETTINGS), runs_dir=tmp_path).load_model()
    half = run.load_model().state_dict()
    inner = {key: tensor for key, tensor in whole.state_dict().items() if "layer" in key}  # others have a new row
    assert all(torch.equal(tensor.bfloat16(), half[key]) for key, tensor in inner.items())
    assert len(inner) > 5


def test_prompts_beyond_the_positions_of_the_model_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    wanted = recipe(f"hf:{folders['llama']}", "task.digits=1:2", "evaluation.generation.max_new_tokens=2040")
    run = pretrained_run(wanted, runs_dir=tmp_path)
    with pytest.raises(UserError, match=r"3 of 3 prompts are too long: .* 2,048 positions; set a smaller .*tokens="):
        run.evaluate("2x2", count=3, on_progress=lambda done, total: pytest.fail("refused before any progress"))
    with pytest.raises(UserError, match=r"^model\.weights: must be set to evaluate a Decoder without training it"):
        pretrained_run(recipe("addition_rotary"), runs_dir=tmp_path)
    with pytest.raises(UserError, match=r"^method: must be decoding where answers are generated freely, not beams"):
        run.evaluate("1x1", count=1, method="beams")
