"""Fine-tune a pretrained decoder on GSM8K with and without a number token loss, on a CPU if need be.

    python examples/finetune_gsm8k.py train.jsonl --steps 100

Both runs begin with the same weights and see the same examples in the same order; every tenth row is held out. Printed
are, on held-out rows, the cross-entropy (nats per label) and the mean distance from the right digit, over the
probabilities of the number tokens (the number token loss itself). docs/finetuning-peft.md says more.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from numerate import NumberTokenLoss

Example = tuple[list[int], list[int]]
"""The ids of a question and its answer, and as many labels: -100 in the question, which is not learnt."""


def read(path: Path) -> list[tuple[str, str]]:
    """Questions and answers of a JSONL file, without the marks of the calculator (`<<48/2=24>>`)."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            rows.append((row["question"], re.sub(r"<<[^>]*>>", "", row["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}, line {number}: {error!r}; a row has `question` and `answer`") from error
    return rows


def encoded(tokenizer: Any, question: str, answer: str, longest: int) -> Example:
    """As a chat where the tokenizer has a template for one, else one text after the other."""
    if tokenizer.chat_template:
        said = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    else:
        prompt = question + "\n"
    asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answered = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return (asked + answered)[:longest], ([-100] * len(asked) + answered)[:longest]


def padded(examples: list[Example], padding: int, device: str) -> dict[str, Tensor]:
    longest = max(len(ids) for ids, _ in examples)
    return {
        "input_ids": torch.tensor([ids + [padding] * (longest - len(ids)) for ids, _ in examples], device=device),
        "attention_mask": torch.tensor(
            [[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in examples], device=device
        ),
        "labels": torch.tensor([labels + [-100] * (longest - len(ids)) for ids, labels in examples], device=device),
    }


def batches(examples: list[Example], size: int, seed: int) -> Iterator[list[Example]]:
    """Without end: all examples in an order of their own for each round."""
    draw = random.Random(seed)
    while True:
        order = draw.sample(examples, len(examples))
        yield from (order[i : i + size] for i in range(0, len(order) - size + 1, size))


@torch.no_grad()
def evaluated(model: Any, loss: NumberTokenLoss, held_out: list[Example], size: int, padding: int) -> dict[str, float]:
    """Means over all labels and over all number labels of these examples."""
    model.eval()
    sums, counts = torch.zeros(2), torch.zeros(2)
    for start in range(0, len(held_out), size):
        batch = padded(held_out[start : start + size], padding, model.device.type)
        labels = batch.pop("labels")
        terms = loss.terms(model(**batch).logits, labels)
        count = torch.stack([number.float() for number in loss.counts(labels)]).cpu()
        sums += torch.stack([terms["cross_entropy"], terms["number"]]).float().cpu() * count
        counts += count
    cross_entropy, number = (sums / counts.clamp(min=1)).tolist()
    return {"cross_entropy": cross_entropy, "distance": number}


def trained(given: argparse.Namespace, weight: float, tokenizer: Any, rows: list[Example]) -> dict[str, Any]:
    """One run from the pretrained weights: what it was before and after, on held-out rows."""
    torch.manual_seed(given.seed)
    options = {"gguf_file": given.gguf} if given.gguf else {}
    model: Any = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32, **options).to(given.device)
    if given.rank:
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(
            task_type="CAUSAL_LM", r=given.rank, lora_alpha=2 * given.rank, target_modules="all-linear"
        )
        model = get_peft_model(model, adapter)
    loss = NumberTokenLoss.from_tokenizer(tokenizer, model=model, weight=weight, which=given.which)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=given.rate, weight_decay=0.0)
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    held_out = [row for i, row in enumerate(rows) if i % 10 == 9][: given.held_out]
    source = batches([row for i, row in enumerate(rows) if i % 10 != 9], given.batch, given.seed)

    before = evaluated(model, loss, held_out, given.batch, padding)
    model.train()
    started = time.perf_counter()
    for step in range(given.steps):
        for group in optimizer.param_groups:
            group["lr"] = given.rate * min(1.0, (step + 1) / 10) * (1 - step / given.steps)
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
    after = evaluated(model, loss, held_out, given.batch, padding)
    return {"weight": weight, "before": before, "after": after, "seconds_per_step": seconds}


def main(words: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="GSM8K's train.jsonl, or any with `question` and `answer`")
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="hub name or folder")
    parser.add_argument("--gguf", help="name of a GGUF file in the folder; needs the package gguf")
    parser.add_argument("--tokenizer", help="hub name or folder, where it is not the model's")
    parser.add_argument("--which", choices=("digits", "numbers"), default="digits", help="which tokens are numbers")
    parser.add_argument("--weight", type=float, default=0.3, help="of the number token loss in the second run")
    parser.add_argument("--rank", type=int, default=8, help="of the LoRA; 0 trains all weights")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="examples per step")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--longest", type=int, default=384, help="tokens of question and answer; the rest is cut off")
    parser.add_argument("--held-out", type=int, default=100, help="how many rows to evaluate on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log-every", type=int, default=10)
    given = parser.parse_args(words)

    options = {"gguf_file": given.gguf} if given.gguf and not given.tokenizer else {}
    tokenizer: Any = AutoTokenizer.from_pretrained(given.tokenizer or given.model, **options)
    rows = [encoded(tokenizer, question, answer, given.longest) for question, answer in read(given.rows)]
    rows = [row for row in rows if any(label != -100 for label in row[1])]
    if len(rows) < 10 * given.batch:
        raise SystemExit(f"{given.rows}: {len(rows)} rows are too few for batches of {given.batch} and held-out rows")
    found = []
    for weight in (0.0, given.weight):
        print(f"number token loss x {weight:g}", flush=True)
        found.append(trained(given, weight, tokenizer, rows))
    print("weight  cross-entropy  distance   (before -> after, held-out rows)  seconds/step")
    for run in found:
        spans = [f"{run['before'][name]:.4f} -> {run['after'][name]:.4f}" for name in ("cross_entropy", "distance")]
        print(f"{run['weight']:<7g} {spans[0]}  {spans[1]}  {run['seconds_per_step']:.2f}")
    return found


if __name__ == "__main__":
    main()
