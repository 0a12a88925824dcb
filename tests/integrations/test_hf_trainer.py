"""Promises of the loss in other people's trainers, and of the pages that show it."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hugging_face import QUIET, byte_tokenizer, examples_of, pair_tokenizer, tiny_llama, tiny_t5, transformers
from numerate import NumberTokenLoss
from numerate.errors import UserError
from numerate.integrations.hf_trainer import compute_loss_func, number_loss_trainer

pytestmark = QUIET


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, nothing written outside, and no state that a trainer leaves for the next one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    state = pytest.importorskip("accelerate.state", reason="the extra finetune: Hugging Face's Trainer needs it")
    state.AcceleratorState._reset_state(True)


def t5() -> Any:
    return tiny_t5(dropout_rate=0.0)


def rows() -> list[dict[str, list[int]]]:
    """Eight sums of different lengths; some answers have no number at all."""
    made, read = [], byte_tokenizer()
    for a, b in [(1, 2), (123, 4), (7, 88), (9, 9), (1000, 24), (3, 3), (55, 5), (6, 70)]:
        question, answer = read(f"{a}+{b}=")["input_ids"], read("none" if a == 3 else str(a + b))["input_ids"]
        made.append({"input_ids": question + answer, "labels": [-100] * len(question) + answer})
    return made


def pairs() -> list[dict[str, list[int]]]:
    made = []
    for row in rows():
        labels = [label for label in row["labels"] if label != -100]
        made.append({"input_ids": row["input_ids"][: -len(labels)], "labels": labels})
    return made


def arguments_of(kind: Any = None, **settings: Any) -> Any:
    """Arguments of a trainer that writes nothing, reports to nobody and uses the CPU."""
    fixed = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return (kind or transformers.TrainingArguments)("out", **fixed | settings)


def after_a_step(
    trainer: type[Any], model: Any, data: Any, size: int, parts: int, arguments: Any = None, **more: Any
) -> dict[str, Tensor]:
    """The weights after one step of plain gradient descent on all eight rows."""
    settings = arguments_of(
        arguments,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=parts,
        max_steps=1,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=1e9,
    )
    if "processing_class" not in more:  # else the trainer has a collator of its own
        more = {"data_collator": transformers.DataCollatorForSeq2Seq(byte_tokenizer(), model=model)} | more
    trainer(model, settings, train_dataset=data, **more).train()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def by_hand(model: Any, data: Any, loss: NumberTokenLoss, quantities: Any = None) -> dict[str, Tensor]:
    """The same step without any trainer."""
    batch = transformers.DataCollatorForSeq2Seq(byte_tokenizer(), model=model)(data)
    labels = batch.pop("labels")
    loss(model(**batch).logits, labels, is_quantity=None if quantities is None else quantities(labels)).backward()
    return {
        name: parameter.detach() - (0 if parameter.grad is None else parameter.grad)
        for name, parameter in model.named_parameters()
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("over", ["numbers", "labels"])
@pytest.mark.parametrize(("make", "data"), [(tiny_llama, rows), (t5, pairs)])
def test_accumulated_parts_give_the_step_of_the_whole_batch(
    make: Callable[[], Any], data: Callable[[], Any], over: Any
) -> None:
    loss = NumberTokenLoss.from_tokenizer(byte_tokenizer(), model=make(), mean_over=over, weight=2.0)
    named: dict[str, Any] = {}
    if make is t5:
        named["arguments"] = transformers.Seq2SeqTrainingArguments
    trainer = number_loss_trainer(transformers.Seq2SeqTrainer if make is t5 else None)
    expected = by_hand(make(), data(), loss)
    same(after_a_step(trainer, make(), data(), 8, 1, number_loss=loss, **named), expected)
    same(after_a_step(trainer, make(), data(), 2, 4, number_loss=loss, **named), expected)


def test_the_trainers_own_argument_is_exact_over_labels_and_refuses_parts_of_a_mean_over_numbers() -> None:
    own = functools.partial(after_a_step, transformers.Trainer)
    over_labels = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True, mean_over="labels", weight=2.0)
    expected = by_hand(tiny_llama(), rows(), over_labels)
    for size, parts in ((8, 1), (2, 4)):
        same(own(tiny_llama(), rows(), size, parts, compute_loss_func=compute_loss_func(over_labels)), expected)
    over_numbers = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True)
    function = compute_loss_func(over_numbers)
    found = own(tiny_llama(), rows(), 8, 1, compute_loss_func=function)
    same(found, by_hand(tiny_llama(), rows(), over_numbers))
    with pytest.raises(UserError, match="number_loss_trainer"):
        own(tiny_llama(), rows(), 2, 4, compute_loss_func=function)


@pytest.mark.slow
def test_a_trainer_of_trl_gives_the_step_of_the_whole_batch_too() -> None:
    trl = pytest.importorskip("trl", reason="the extra finetune")
    datasets = pytest.importorskip("datasets", reason="the extra finetune")
    texts = [
        {"prompt": byte_tokenizer().decode(pair["input_ids"]), "completion": byte_tokenizer().decode(pair["labels"])}
        for pair in pairs()
    ]
    loss = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True, weight=2.0)
    ended = [
        {"input_ids": [*row["input_ids"], 2], "labels": [*row["labels"], 2]}  # TRL ends each completion
        for row in rows()
    ]
    expected = by_hand(tiny_llama(), ended, loss)
    for size, parts in ((8, 1), (2, 4)):
        found = after_a_step(
            number_loss_trainer(trl.SFTTrainer),
            tiny_llama(),
            datasets.Dataset.from_list(texts),
            size,
            parts,
            functools.partial(trl.SFTConfig, bf16=False),
            processing_class=byte_tokenizer(),
            number_loss=loss,
        )
        same(found, expected)


def test_the_log_has_both_terms_and_the_evaluation_its_loss() -> None:
    loss = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True, weight=0.5)
    arguments = arguments_of(
        max_steps=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=1,
        learning_rate=0.0,
        per_device_eval_batch_size=8,
    )
    trainer = number_loss_trainer()(
        tiny_llama(),
        arguments,
        train_dataset=rows(),
        eval_dataset=rows(),
        data_collator=transformers.DataCollatorForSeq2Seq(byte_tokenizer()),
        number_loss=loss,
    )
    trainer.train()
    records = [record for record in trainer.state.log_history if "loss" in record]
    assert len(records) == 2
    batch = transformers.DataCollatorForSeq2Seq(byte_tokenizer())(rows())
    labels = batch.pop("labels")
    terms = loss.loss_terms(trainer.model(**batch).logits, labels)
    for record in records:
        assert record["cross_entropy"] == pytest.approx(terms["cross_entropy"].item(), rel=1e-4)
        assert record["number_loss"] == pytest.approx(terms["number"].item(), rel=1e-4)
        assert record["loss"] == pytest.approx(record["cross_entropy"] + 0.5 * record["number_loss"], rel=1e-3)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(records[0]["loss"], rel=1e-3)


def test_what_a_collator_says_is_no_quantity_does_not_count_in_the_mean_of_accumulated_parts() -> None:
    def even(labels: Tensor) -> Tensor:
        return labels % 2 == 0

    def collator(examples: Any) -> Any:
        batch = transformers.DataCollatorForSeq2Seq(byte_tokenizer())(examples)
        return {**batch, "quantity": even(batch["labels"])}

    loss = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True)
    found = after_a_step(number_loss_trainer(), tiny_llama(), rows(), 2, 4, number_loss=loss, data_collator=collator)
    same(found, by_hand(tiny_llama(), rows(), loss, even))


def test_a_shift_that_does_not_fit_the_model_stops_the_first_step() -> None:
    aligned, shifted = (NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=shift) for shift in (False, True))
    ours, function = number_loss_trainer(), compute_loss_func(shifted)
    with pytest.raises(UserError, match="learn to copy its inputs"):
        after_a_step(ours, tiny_llama(), rows(), 8, 1, number_loss=aligned)
    with pytest.raises(UserError, match="shift: must be False for an encoder-decoder"):
        after_a_step(transformers.Trainer, t5(), pairs(), 8, 1, compute_loss_func=function)


def test_what_a_trainer_cannot_do_with_this_loss_is_refused() -> None:
    loss = NumberTokenLoss.from_tokenizer(byte_tokenizer(), shift=True)
    arguments = arguments_of(label_smoothing_factor=0.1)
    with pytest.raises(UserError, match=r"label_smoothing_factor: 0\.1"):
        number_loss_trainer()(tiny_llama(), arguments, number_loss=loss)
    with pytest.raises(UserError, match="compute_loss_func: cannot be combined with number_loss"):
        number_loss_trainer()(tiny_llama(), compute_loss_func=print, number_loss=loss)
    with pytest.raises(UserError, match="labels: missing from the batch"):
        compute_loss_func(loss)({"logits": torch.zeros(1, 2, 300)}, None)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the pages load by name is tiny and random here, whatever the name."""

    def read(name: str, **_: Any) -> Any:
        special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        pairs = transformers.PreTrainedTokenizerFast(tokenizer_object=pair_tokenizer(), **special)
        return pairs if "t5" in name else byte_tokenizer()

    made = {"AutoTokenizer": read, "AutoModelForCausalLM": lambda *_, **__: tiny_llama()}
    made["AutoModelForSeq2SeqLM"] = lambda *_, **__: t5()
    for name, make in made.items():
        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", staticmethod(make))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("page", "needed"),
    [
        ("finetuning.md", ()),
        ("finetuning-trainer.md", ()),
        ("finetuning-trl.md", ("trl", "datasets")),
        ("finetuning-peft.md", ("peft",)),
    ],
)
@pytest.mark.slow
def test_what_a_page_shows_runs_as_it_stands_there(page: str, needed: tuple[str, ...]) -> None:
    for package in needed:
        pytest.importorskip(package, reason="the extra finetune")
    shown = examples_of(page)
    assert shown
    names: dict[str, Any] = {}
    for block in shown:
        exec(compile(block, page, "exec"), names)
    if "trainer" in names:
        assert names["trainer"].state.global_step == 2
        if "number_loss_trainer" in names:
            records = [record for record in names["trainer"].state.log_history if "loss" in record]
            assert all(0 <= 0.3 * record["number_loss"] < record["cross_entropy"] for record in records)
            assert records
    else:
        assert names["losses"][-1] < names["losses"][0]
    if isinstance(names.get("eval_loss"), float):
        assert 0 < names["eval_loss"] < 100
    assert isinstance(names["model"], nn.Module)
