"""Fine-tune a pretrained decoder on GSM8K with and without a number token loss, on a CPU if need be.

    numerate data fetch gsm8k
    python examples/finetune_gsm8k.py --steps 100 --seeds 0 1 2 --out gsm8k.json

For each seed one run per weight, from the same pretrained weights, with the same LoRA at its start and the same rows in
the same order: only the weight of the number token loss differs. Only answers are learnt. Rows of more than `--longest`
tokens are left out, of the test too, so that the questions are the shorter ones: say so when you tell the numbers.

Measured on rows of the test, before and after, in float32:

- cross-entropy, in nats per label, and the number token loss itself: the mean distance of the digits' probabilities
  from the right digit. Each row has dozens of labels, so these tell runs of this size apart.
- digits: the share of the answers' digits that are the likeliest token, given what is right before them.
- answers decoded greedily: how many have the exact number behind `####`, how many have a number there at all, and the
  mean error of log10(|x| + 1), which is 3 for an answer without a number.

With a hundred questions or fewer the last three are noise: look at their intervals. docs/finetuning-peft.md says more.
"""

import argparse
import copy
import importlib.util
import json
import platform
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from numerate import NumberTokenLoss
from numerate.errors import UserError
from numerate.evaluation.number_metrics import NumberScores
from numerate.evaluation.numbers_in_texts import ParsedNumber, last_number
from numerate.evaluation.statistics import (
    min_p_value,
    paired_permutation_test,
    stratified_bootstrap_interval,
    wilson_interval,
)
from numerate.kernels.number_loss import LOSS_FUNCTIONS
from numerate.text.tasks.gsm8k import ANSWER_MARK, GSM8K
from numerate.text.tasks.text_task import SplitRows

WORST = 999.0
"""An answer without a number has the error of one that is off by this much: 3 on the scale of log10(|x| + 1)."""

FEW = 500
"""With fewer questions a difference in exact answers is hard to tell from noise."""

ROW_MEASURES = {"cross_entropy": "labels", "distance": "numbers", "digits": "numbers"}
"""What is measured of each test row as a sum, and what the mean is over."""


@dataclass(frozen=True)
class Row:
    """A question as ids, its correct answer as ids, and as text."""

    prompt_ids: list[int]
    answer_ids: list[int]
    answer: str

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


# Data -----------------------------------------------------------------------------------------------------------------


def rows_of(stock: SplitRows, tokenizer: Any, prompt: str, longest: int) -> list[Row]:
    """The rows that are short enough, in the order of their file."""
    found = []
    for pair in stock.source.read_examples(stock.rows.astype(np.int64)):
        if prompt == "chat":
            messages = [{"role": "user", "content": pair.question}]
            question = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        else:
            question = f"Question: {pair.question}\nAnswer: "
        prompt_ids = tokenizer(question, add_special_tokens=False)["input_ids"]
        answer_ids = tokenizer(pair.answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        row = Row(prompt_ids, answer_ids, pair.answer)
        if len(row) <= longest:
            found.append(row)
    return found


def padded(rows: Sequence[Row], padding: int, device: str) -> dict[str, Tensor]:
    """Inputs and labels, padded on the right; a label is -100 where there is nothing to learn."""
    longest = max(map(len, rows))
    ids = [[*row.prompt_ids, *row.answer_ids, *[padding] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    labels = [[-100] * len(row.prompt_ids) + row.answer_ids + [-100] * (longest - len(row)) for row in rows]
    named = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: torch.tensor(values, device=device) for name, values in named.items()}


def batches(rows: list[Row], size: int, seed: int) -> Iterator[list[Row]]:
    """Without end: all rows in an order of their own for each pass."""
    draw = random.Random(seed)
    while True:
        order = draw.sample(rows, len(rows))
        yield from (order[i : i + size] for i in range(0, len(order) - size + 1, size))


# Measuring ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def losses_by_row(
    model: Any, loss: NumberTokenLoss, rows: list[Row], size: int, padding: int
) -> dict[str, list[float]]:
    """Of each row: the counts of labels and of numbers, and the sums of `ROW_MEASURES`."""
    model.eval()
    found = {name: [0.0] * len(rows) for name in ("labels", "numbers", *ROW_MEASURES)}
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        batch = padded([rows[i] for i in places], padding, model.device.type)
        labels = batch.pop("labels")
        logits = model(**batch).logits.float()
        for i, row_logits, row_labels in zip(places, logits, labels, strict=True):
            terms, (count, numbers) = loss.loss_terms(row_logits, row_labels), loss.counts(row_labels)
            number = torch.isin(row_labels[1:], loss.table.ids)
            likeliest = row_logits[:-1].argmax(dim=-1)
            found["labels"][i], found["numbers"][i] = float(count), float(numbers)
            found["cross_entropy"][i] = float(terms["cross_entropy"] * count)
            found["distance"][i] = float(terms["number"] * numbers)
            found["digits"][i] = float(((likeliest == row_labels[1:]) & number).sum())
    return found


@torch.no_grad()
def decoded(model: Any, tokenizer: Any, rows: list[Row], size: int, most: int, padding: int) -> list[str]:
    """The likeliest continuation of each question, with a cache of keys and values."""
    model.eval()
    texts = [""] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt_ids))
    for start in range(0, len(order), size):
        places = order[start : start + size]
        longest = max(len(rows[i].prompt_ids) for i in places)
        ids = torch.tensor([[padding] * (longest - len(rows[i].prompt_ids)) + rows[i].prompt_ids for i in places])
        mask = torch.tensor([[0] * (longest - len(rows[i].prompt_ids)) + [1] * len(rows[i].prompt_ids) for i in places])
        generated = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=most,
            do_sample=False,
            use_cache=True,
            pad_token_id=padding,
            eos_token_id=tokenizer.eos_token_id,
        )
        for i, text in zip(
            places, tokenizer.batch_decode(generated[:, longest:], skip_special_tokens=True), strict=True
        ):
            texts[i] = text
    return texts


def final_number(text: str) -> ParsedNumber:
    """The number behind the last `####`, none where there is no such mark.

    >>> final_number("48 + 24 = 72 clips. #### 1,072").value, final_number("72").missing
    (Decimal('1072'), True)
    """
    return last_number(text.rpartition(ANSWER_MARK)[2]) if ANSWER_MARK in text else ParsedNumber(None)


def measured(given: argparse.Namespace, model: Any, tokenizer: Any, loss: NumberTokenLoss, test: list[Row]) -> Any:
    """Everything that is measured of one model, and what it takes to compare it with another, row by row."""
    padding = padding_of(tokenizer)
    by_row = losses_by_row(model, loss, test, given.batch, padding)
    found: dict[str, Any] = {
        name: sum(by_row[name]) / max(sum(by_row[count]), 1) for name, count in ROW_MEASURES.items()
    }
    questions = test[: given.questions]
    texts = decoded(model, tokenizer, questions, given.decode_batch, given.new_tokens, padding)
    predictions = [final_number(text) for text in texts]
    targets = [final_number(row.answer).value for row in questions]
    scores = NumberScores.from_numbers(predictions, targets)
    found |= {
        "questions": scores.count,
        "correct": scores.num_correct,
        "correct_interval": list(wilson_interval(scores.num_correct, scores.count)),
        "with_number": scores.count - scores.missing - scores.invalid,
        "log_error": scores.metrics(penalty=WORST)["log_mae"],
        "is_correct": [
            one.value is not None and one.value == number for one, number in zip(predictions, targets, strict=True)
        ],
        "texts": texts,
        "by_row": by_row,
    }
    return found


# Training -------------------------------------------------------------------------------------------------------------


def padding_of(tokenizer: Any) -> int:
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def adapted(given: argparse.Namespace, base: Any, seed: int) -> Any:
    """A copy of the pretrained model with a LoRA that is a function of the seed; with rank 0 the copy itself."""
    torch.manual_seed(seed)
    model = copy.deepcopy(base).to(getattr(torch, given.dtype))
    if not given.rank:
        return model
    from peft import LoraConfig, get_peft_model

    head, layers = model.get_output_embeddings(), model.config.num_hidden_layers
    linear = {name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and part is not head}
    adapter = LoraConfig(
        task_type="CAUSAL_LM",
        r=given.rank,
        lora_alpha=2 * given.rank,
        target_modules=sorted({name.rpartition(".")[2] for name in linear}),
        layers_to_transform=list(range(layers - given.layers, layers)) if given.layers else None,
    )
    return get_peft_model(model, adapter)


def trained(
    given: argparse.Namespace, base: Any, loss: NumberTokenLoss, seed: int, rows: list[Row], padding: int
) -> tuple[Any, float]:
    """A model after the steps, in float32 and without an adapter beside it; and the seconds of a step."""
    model = adapted(given, base, seed)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=given.rate, weight_decay=0.0)
    source = batches(rows, given.batch, seed)
    warm = max(1, min(10, given.steps // 5))
    model.train()
    started = time.perf_counter()
    for step in range(given.steps):
        for group in optimizer.param_groups:
            group["lr"] = given.rate * min((step + 1) / warm, 1 - (step + 1 - warm) / (given.steps + 1 - warm))
        batch = padded(next(source), padding, given.device)
        labels = batch.pop("labels")
        found = loss(model(**batch).logits, labels)
        found.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % given.log_every == 0 or step + 1 == given.steps:
            print(f"  step {step + 1}: loss {found.item():.4f}", flush=True)
    seconds = (time.perf_counter() - started) / max(given.steps, 1)
    model = model.float()
    return (model.merge_and_unload() if given.rank else model), seconds


# Output ---------------------------------------------------------------------------------------------------------------


HEAD = "seed  weight  cross-entropy  distance    digits    exact (Wilson's 95 %)  with number  log error"


def line(seed: object, weight: object, found: dict[str, Any]) -> str:
    low, high = found["correct_interval"]
    error = "-" if found["log_error"] is None else f"{found['log_error']:.3f}"
    exact = f"{found['correct']}/{found['questions']} ({100 * low:.1f} to {100 * high:.1f} %)"
    return (
        f"{seed!s:>4}  {weight!s:>6}  {found['cross_entropy']:13.4f}  {found['distance']:8.4f}  "
        f"{100 * found['digits']:6.1f} %  {exact:>24}  {found['with_number']:11}  {error:>9}"
    )


def compared(without: list[dict[str, Any]], with_it: list[dict[str, Any]]) -> dict[str, Any]:
    """How far the second of two weights is from the first, over the same seeds in the same order.

    `rows` is the interval of the mean over these seeds for another draw of test rows and the same models; `p` is that
    of the paired permutation test over seeds.
    """
    found: dict[str, Any] = {}
    for name, count in ROW_MEASURES.items():
        gaps = [two[name] - one[name] for one, two in zip(without, with_it, strict=True)]
        total = sum(without[0]["by_row"][count])
        pairs = zip(without, with_it, strict=True)
        sums = np.mean([np.subtract(two["by_row"][name], one["by_row"][name]) for one, two in pairs], axis=0)
        scaled = (sums * len(sums) / max(total, 1)).tolist()
        found[name] = {
            "by_seed": gaps,
            "mean": statistics.fmean(gaps),
            "rows": list(stratified_bootstrap_interval([scaled], name, statistic=lambda rows: rows.mean(axis=-1))),
            "p": paired_permutation_test([one[name] for one in without], [two[name] for two in with_it]),
        }
    found["mcnemar"] = [
        mcnemar_p_value(two["is_correct"], one["is_correct"]) for one, two in zip(without, with_it, strict=True)
    ]
    return found


def mcnemar_p_value(first: list[bool], second: list[bool]) -> float:
    """That of the exact form of McNemar's test (1947, https://doi.org/10.1007/BF02295996): the sign test on the
    questions that only one of two models answers correctly."""
    from scipy.stats import binomtest

    wins, losses = (sum(a and not b for a, b in zip(*pair, strict=True)) for pair in ((first, second), (second, first)))
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0


def table(record: dict[str, Any]) -> str:
    """The runs, and each weight against the first, as text."""
    runs, before = record["runs"], record["before"]
    lines = [HEAD]
    lines.append(line("-", "before", before))
    lines += [line(run["seed"], f"{run['weight']:g}", run) for run in runs]
    weights = list(dict.fromkeys(run["weight"] for run in runs))
    for weight in weights[1:]:
        one, two = ([run for run in runs if run["weight"] == chosen] for chosen in (weights[0], weight))
        least = min_p_value(len(one), len(two), paired=True)
        lines.append(f"\nweight {weight:g} less weight {weights[0]:g}, {len(one)} seeds:")
        for name, gap in compared(one, two).items():
            if name == "mcnemar":
                lines.append(f"  exact answers: p {', '.join(f'{p:.2f}' for p in gap)} (McNemar's, seed by seed)")
                continue
            by_seed = ", ".join(f"{value:+.4f}" for value in gap["by_seed"])
            low, high = gap["rows"]
            lines.append(
                f"  {name}: {gap['mean']:+.4f} ({by_seed}); over test rows {low:+.4f} to {high:+.4f}; "
                f"p over seeds {gap['p']:.2f}, which {len(one)} cannot bring below {least:.2f}"
            )
    if 0 < before["questions"] < FEW:
        lines.append(f"\n{before['questions']} questions are few: differences in exact answers here are noise.")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="hub name or folder")
    parser.add_argument("--gguf", help="name of a GGUF file in the folder; needs the package gguf")
    parser.add_argument("--tokenizer", help="hub name or folder, where it is not the model's")
    parser.add_argument("--data", help="folder of GSM8K's train.jsonl and test.jsonl; else that of `numerate data`")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.3], help="of the number token loss")
    parser.add_argument("--kind", choices=LOSS_FUNCTIONS, default="was", help="of the number token loss")
    parser.add_argument("--which", choices=("digits", "numbers"), default="digits", help="which tokens are numbers")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the LoRA and the order of the rows")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="rows per step")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA; 0 trains all weights")
    parser.add_argument("--layers", type=int, default=0, help="how many of the last layers have a LoRA; 0: all")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--longest", type=int, default=200, help="most tokens of a row; longer ones are left out")
    parser.add_argument("--prompt", choices=("chat", "plain"), default="chat", help="the tokenizer's template, or none")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the frozen weights")
    parser.add_argument("--test-rows", type=int, default=200, help="how many rows have their losses measured")
    parser.add_argument("--questions", type=int, default=100, help="how many of them are decoded; 0: none")
    parser.add_argument("--new-tokens", type=int, default=200, help="most tokens of a decoded answer")
    parser.add_argument("--decode-batch", type=int, default=25)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--out", type=Path, help="a JSON file of everything measured, written anew after each run")
    return parser


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments()
    given = parser.parse_args(words)
    if given.rank and importlib.util.find_spec("peft") is None:
        parser.error("--rank: a LoRA needs the package peft; --rank 0 trains all weights without it")
    if len({*given.weights}) < len(given.weights) or len({*given.seeds}) < len(given.seeds):
        parser.error("--weights, --seeds: name each once")
    if not given.rank and (given.dtype != "float32" or given.layers):
        parser.error("--rank 0 trains all weights: in float32, and without --layers")
    began = time.perf_counter(), time.process_time()
    options = {"gguf_file": given.gguf} if given.gguf else {}
    tokenizer: Any = AutoTokenizer.from_pretrained(
        given.tokenizer or given.model, **({} if given.tokenizer else options)
    )
    if given.prompt == "chat" and not tokenizer.chat_template:
        parser.error("--prompt chat: this tokenizer has no template of a chat; --prompt plain needs none")
    try:
        held = GSM8K(data_dir=given.data).splits
    except UserError as error:
        parser.error(f"--data: {error}")
    rows, every = (rows_of(stock, tokenizer, given.prompt, given.longest) for stock in (held.train, held.test))
    test = every[: given.test_rows]
    if len(rows) < given.batch or not test:
        parser.error(f"--longest {given.longest}: so short are {len(rows)} rows of training, {len(test)} of the test")
    print(f"up to {given.longest} tokens: {len(rows)} of {len(held.train)} rows of training, {len(every)} of "
          f"{len(held.test)} of the test, the first {len(test)} of which are measured", flush=True)  # fmt: skip

    base: Any = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32, **options).to(given.device)
    if given.layers > base.config.num_hidden_layers:
        parser.error(f"--layers {given.layers}: the model has {base.config.num_hidden_layers}")
    sample = [row.answer for row in test]
    settings: dict[str, Any] = {"model": base, "which": given.which, "loss_function": given.kind, "sample": sample}
    losses = [NumberTokenLoss.from_tokenizer(tokenizer, weight=weight, **settings) for weight in given.weights]
    record: dict[str, Any] = {
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(given).items()},
        "machine": {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.processor()},
        "rows": {"train": len(rows), "of": len(held.train), "test": len(every), "of_test": len(held.test)},
        "before": measured(given, base, tokenizer, losses[0], test),
        "runs": [],
    }
    print(HEAD, line("-", "before", record["before"]), sep="\n", flush=True)
    for seed in given.seeds:
        for weight, loss in zip(given.weights, losses, strict=True):
            print(f"seed {seed}, number token loss x {weight:g}", flush=True)
            model, seconds = trained(given, base, loss, seed, rows, padding_of(tokenizer))
            found = measured(given, model, tokenizer, loss, test)
            record["runs"].append({"seed": seed, "weight": weight, "seconds_per_step": seconds} | found)
            record["seconds"] = time.perf_counter() - began[0]
            record["processor_seconds"] = time.process_time() - began[1]
            print(line(seed, f"{weight:g}", found), flush=True)
            if given.out:
                given.out.parent.mkdir(parents=True, exist_ok=True)
                given.out.write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(table(record), flush=True)
    return record


if __name__ == "__main__":
    main()
