"""Small faults put into the source, one at a time: does a test fail?

    python tools/mutations.py               # each fault with the tests of its row that are not slow: minutes
    python tools/mutations.py --all         # and with the whole suite where those do not fail: an hour
    python tools/mutations.py --only 3 17 --tests tests/mixers -k learns

The tree is copied to a temporary folder, where a fault is applied, its tests run, and the fault undone. Prints which
faults are found, and their number; exits with 1 if the text of a fault is no longer in the source exactly once, which
is checked before anything runs. A change of the tests finds at least as many faults as before.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

TOP = Path(__file__).resolve().parents[1]
TIME_LIMIT = 1200
"""Seconds for the tests of one fault; a fault that makes them hang is found."""


class Fault(NamedTuple):
    """A fault in `src/numerate/FILE`: what it breaks, the text that is replaced, and tests that might fail; by default
    those of the folder."""

    what: str
    file: str
    old: str
    new: str
    tests: str = ""


FAULTS = [
    Fault(
        "blocked keys mask queries",
        "mixers/attention_positions.py",
        "visible & ~context.blocked_keys[:, None, selected_keys]",
        "visible & ~context.blocked_keys[:, : visible.shape[1], None]",
        "tests/mixers tests/models/test_model.py",
    ),
    Fault(
        "the log scale counts one visible key less",
        "mixers/attention.py",
        "torch.arange(1, queries.shape[2] + 1, device=queries.device)",
        "torch.arange(queries.shape[2], device=queries.device)",
        "tests/mixers",
    ),
    Fault(
        "another gate than the forget gate starts at 1",
        "mixers/recurrent.py",
        "parameter[rnn.hidden_size : 2 * rnn.hidden_size] = 1.0",
        "parameter[: rnn.hidden_size] = 1.0",
        "tests/mixers",
    ),
    Fault(
        "a prompt's state is that after its padding",
        "kernels/token_shift.py",
        "x[torch.arange(x.shape[0], device=x.device), lengths - 1]",
        "x[:, -1]",
        "tests/mixers",
    ),
    Fault(
        "the gradient of decays is not conjugated",
        "kernels/linear_scan.py",
        "torch.mul(g[:, 1:], h[:, :-1].conj(), out=of_a[:, 1:])",
        "torch.mul(g[:, 1:], h[:, :-1], out=of_a[:, 1:])",
        "tests/kernels/test_recurrences.py",
    ),
    Fault(
        "probability of text tokens lowers the loss",
        "kernels/number_loss.py",
        "return number_mass * losses + TEXT_FACTOR * self.max_loss(table) * (1 - number_mass)",
        "return number_mass * losses + TEXT_FACTOR * self.max_loss(table) * number_mass",
        "tests/kernels/test_number_loss.py tests/kernels/test_fused_losses.py",
    ),
    Fault(
        "Abacus offsets are per batch where they should be per row",
        "positions/position_ids.py",
        'tokens.example_indices if self.offset_per == "row" else',
        'tokens.example_indices if self.offset_per != "row" else',
    ),
    Fault(
        "the last evaluation offset is not max_shift",
        "positions/position_ids.py",
        "step_context.position_offset // max(self.num_eval_offsets - 1, 1)",
        "step_context.position_offset // max(self.num_eval_offsets, 1)",
    ),
    Fault(
        "rotary embeddings turn the other way",
        "positions/rotary.py",
        "torch.cat([cosines, cosines], dim=-1), torch.cat([-sines, sines], dim=-1)",
        "torch.cat([cosines, cosines], dim=-1), torch.cat([sines, -sines], dim=-1)",
    ),
    Fault(
        "after a prompt the output is that of the longest one's last token",
        "models/decoder.py",
        "torch.take_along_dim(x, (tokens.lengths - 1)[:, None, None], dim=1)",
        "x[:, -1:]",
        "tests/models/test_model.py",
    ),
    Fault(
        "initial weights do not depend on the seed",
        "models/decoder.py",
        "torch.Generator().manual_seed(seed)",
        "torch.Generator().manual_seed(0)",
        "tests/models/test_model.py tests/models/test_initialization.py",
    ),
    Fault(
        "loops without a gradient have one",
        "models/backbone.py",
        "            with torch.no_grad():\n",
        "            with torch.enable_grad():\n",
        "tests/models",
    ),
    Fault(
        "the loss is divided by rows where it should be by tokens",
        "losses/cross_entropy.py",
        'batch.counts["examples" if self.per_example else "tokens"]',
        'batch.counts["tokens" if self.per_example else "examples"]',
    ),
    Fault(
        "the mean over numbers is one over their tokens",
        "losses/number_level.py",
        '"number": int(spans.start_mask.sum())',
        '"number": int(spans.number_mask.sum())',
    ),
    Fault(
        "dropout is the same at every step",
        "training/trainer.py",
        "_dropout_seed(self.recipe.seed, self.state.step, self.world.rank)",
        "_dropout_seed(self.recipe.seed, 0, self.world.rank)",
        "tests/training/test_trainer.py tests/training/test_resume.py",
    ),
    Fault(
        "the learning rate is that of the next step",
        "training/trainer.py",
        "schedule.multiplier(self.budget.schedule_step(state), total_steps)",
        "schedule.multiplier(self.budget.schedule_step(state) + 1, total_steps)",
        "tests/training/test_plateau.py tests/training/test_schedule.py tests/training/test_budget.py",
    ),
    Fault(
        "the warm-up ends a step early",
        "training/schedule.py",
        'warmup_steps + (self.warmup_endpoints == "between")',
        "warmup_steps",
        "tests/test_promises_training.py",
    ),
    Fault(
        "of equally good checkpoints the first is the best",
        "training/training_state.py",
        "return new.loss <= best.loss",
        "return new.loss < best.loss",
        "tests/training/test_best_checkpoint.py",
    ),
    Fault(
        "two processes hold one lock",
        "training/lock.py",
        "self.path, thread_local=False,",
        'f"{self.path}{os.getpid()}", thread_local=False,',
        "tests/training/test_lock.py",
    ),
    Fault(
        "the best checkpoint is removed with the old ones",
        "training/checkpoint.py",
        "kept_steps = {*steps[-keep_last:], best}",
        "kept_steps = {*steps[-keep_last:]}",
        "tests/training/test_checkpoint.py",
    ),
    Fault(
        "a file is renamed before its content is on disk",
        "training/disk.py",
        "                os.fsync(file.fileno())\n            os.replace(new_path, path)\n",
        "            os.replace(new_path, path)\n",
        "tests/training/test_run_folder.py tests/training/test_checkpoint.py",
    ),
    Fault(
        "every window has the same order of batches",
        "training/data_stream.py",
        'CounterRNG(random_key("window", self.seed, self.split, window_index))',
        'CounterRNG(random_key("window", self.seed, self.split))',
        "tests/training/test_data_stream.py tests/test_identities.py",
    ),
    Fault(
        "a stop reaches the other processes only if all have it",
        "training/distributed.py",
        "return max(int(value) for",
        "return min(int(value) for",
        "tests/training/test_processes.py",
    ),
    Fault(
        "progressive and plain loss have each other's weight",
        "training/objective.py",
        "(1 - alpha, (loops - max_grad_loops, max_grad_loops)),\n            (alpha, ",
        "(alpha, (loops - max_grad_loops, max_grad_loops)),\n            (1 - alpha, ",
        "tests/training/test_objective.py",
    ),
    Fault(
        "the first error of an answer is one token late",
        "evaluation/exact_match.py",
        "torch.where(wrong.any(1), wrong.long().argmax(1), -1)",
        "torch.where(wrong.any(1), wrong.long().argmax(1) + 1, -1)",
        "tests/evaluation/test_one_pass.py tests/evaluation/test_evaluator.py",
    ),
    Fault(
        "an interval has one tail of the whole error",
        "evaluation/statistics.py",
        "Z = NormalDist().inv_cdf((1.0 + LEVEL) / 2.0)",
        "Z = NormalDist().inv_cdf(LEVEL)",
        "tests/evaluation/test_statistics.py",
    ),
    Fault(
        "a size just above the limit is not of the region 100+",
        "evaluation/grid.py",
        'return "100+" if max(cell.values()) > MAX_OOD_TEST_SIZE else "ood_test"',
        'return "100+" if min(cell.values()) > MAX_OOD_TEST_SIZE else "ood_test"',
        "tests/evaluation/test_grid.py",
    ),
    Fault(
        "the nucleus lacks its last token",
        "evaluation/sampling.py",
        "nucleus_size = (sums - probabilities < sampling.top_p * sums[:, -1:])",
        "nucleus_size = (sums < sampling.top_p * sums[:, -1:])",
        "tests/evaluation/test_sampling.py",
    ),
    Fault(
        "a curve of seeds is the median over steps",
        "evaluation/statistics.py",
        "np.median(table, axis=0), table.min(axis=0)",
        "np.median(table, axis=1), table.min(axis=0)",
        "tests/evaluation/test_statistics.py tests/results",
    ),
    Fault(
        "decoding keeps the graph of every step",
        "evaluation/generate.py",
        "@torch.no_grad()\ndef greedy_decode(",
        "def greedy_decode(",
        "tests/evaluation/test_generate.py tests/evaluation/test_evaluator.py",
    ),
    Fault(
        "a+b in training and b+a in the test split",
        "tasks/arithmetic.py",
        "if not OPERATORS[self.operator].commutative:",
        "if OPERATORS[self.operator].commutative:",
        "tests/tasks/test_arithmetic.py tests/tasks/test_task.py",
    ),
    Fault(
        "the examples do not depend on the seed",
        "tasks/task.py",
        "CounterRNG(random_key(self, split, seed, block_index, attempt))",
        "CounterRNG(random_key(self, split, block_index, attempt))",
        "tests/tasks/test_task.py tests/test_identities.py",
    ),
    Fault(
        "rows without all targets repeat a position after their last",
        "tokenizers/layout.py",
        "last_index = np.maximum(num_targets - 1, 0)[:, None]",
        "last_index = np.maximum(num_targets, 0)[:, None]",
        "tests/tokenizers/test_layout.py tests/test_promises_layout.py",
    ),
    Fault(
        "the item of a worker that died comes last",
        "runs/engines/local.py",
        "self.waiting.appendleft(index)  # in the order",
        "self.waiting.append(index)  # in the order",
        "tests/runs/engines/test_local.py",
    ),
    Fault(
        "a requeued task runs finished items again",
        "runs/engines/slurm_task.py",
        "for item in self.items if not function.done(pickle.loads(item))]",
        "for item in self.items]",
        "tests/runs/engines/test_slurm.py",
    ),
    Fault(
        "a run that ran out of time counts as done",
        "runs/item.py",
        'if trained.stop_reason == "minutes":',
        "if False:",
        "tests/runs/studies/test_faults.py",
    ),
    Fault(
        "a search starts one trial too many",
        "runs/search.py",
        "else _NUM_TRIALS), space.size)),",
        "else _NUM_TRIALS), space.size)) + 1,",
        "tests/runs/test_search.py",
    ),
    Fault(
        "an archive may write above its folder",
        "text/data/archives.py",
        'any(part.startswith(".") or part == RECORD_FILE for part in parts)',
        "any(part == RECORD_FILE for part in parts)",
        "tests/text/test_fetching.py tests/test_security.py",
    ),
    Fault(
        "names of runs are markup in reports",
        "results/page.py",
        '{"autoescape": True, ',
        '{"autoescape": False, ',
        "tests/results tests/test_security.py",
    ),
    Fault(
        "the cheapest variant of a study is started first",
        "runs/study.py",
        "(one.seed, -_estimated_cost(one.recipe_tree()))",
        "(one.seed, _estimated_cost(one.recipe_tree()))",
        "tests/runs/studies/test_making.py",
    ),
    Fault(
        "a setting may be what it must be below",
        "config/settings.py",
        "and (self.below is None or number < self.below)",
        "and (self.below is None or number <= self.below)",
        "tests/test_config.py tests/test_overrides.py tests/test_promises_specs.py",
    ),
    Fault(
        "preset=debug undoes the settings beside it",
        "commands/runs.py",
        "    return recipes\n\n\ndef evaluate(",
        '    return [debug(one) for one in recipes] if preset == "debug" else recipes\n\n\ndef evaluate(',
        "tests/test_coming_from_number_token_loss.py tests/test_commands.py",
    ),
    Fault(
        "matrices of models that do not say otherwise have no weight decay",
        "batch.py",
        "{name: (1.0, parameter.dim() >= 2)",
        "{name: (1.0, parameter.dim() > 2)",
        "tests/text/test_hugging_face.py",
    ),
    Fault(
        "number tokens of any length lack the digits",
        "vocabulary.py",
        "wanted = (DIGIT,) if only_digits else (DIGIT, NUMBER)",
        "wanted = (DIGIT,) if only_digits else (NUMBER,)",
        "tests/losses tests/tokenizers tests/text/test_text_number_formats.py",
    ),
    Fault(
        "the tasks of a mixture draw the same random numbers",
        "tasks/mixture.py",
        'CounterRNG(random_key(rng.key, "member", task_index))',
        'CounterRNG(random_key(rng.key, "member"))',
        "tests/tasks/test_mixture.py tests/test_identities.py",
    ),
    Fault(
        "the remainder is taken before the item itself is counted",
        "tasks/selective.py",
        "        if self.inclusive:\n            counts += 1\n"
        "        if self.modulus is not None:\n            counts %= self.modulus\n",
        "        if self.modulus is not None:\n            counts %= self.modulus\n"
        "        if self.inclusive:\n            counts += 1\n",
        "tests/tasks/test_selective.py",
    ),
    Fault(
        "the tokens of a changed text are those of before",
        "tasks/language_modeling.py",
        'parts.append(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}")',
        'parts.append(f"{file.resolve()}")',
        "tests/tasks/test_language_modeling.py tests/text/test_prepared.py tests/runs/test_changed_files.py",
    ),
    Fault(
        "a second space is as probable as the first",
        "tokenizers/tokenizer.py",
        "        next_probability /= 10\n        cumulative_probability *= next_probability\n",
        "        cumulative_probability *= next_probability\n        next_probability /= 10\n",
        "tests/text/test_published_number_formats.py",
    ),
    Fault(
        "masks carry the number that is to be predicted",
        "tokenizers/layout.py",
        "np.where(is_masked, 1, rows.number_values)",
        "rows.number_values",
        "tests/tokenizers/test_layout.py tests/test_promises_layout.py tests/text/test_numformer.py",
    ),
    Fault(
        "the largest offset of Abacus is never drawn",
        "positions/abacus_embedding.py",
        "torch.randint(self.max_offset + 1, shape,",
        "torch.randint(self.max_offset, shape,",
        "tests/positions/test_abacus_embedding.py",
    ),
    Fault(
        "layers with one bias have the scale of the first",
        "mixers/attention.py",
        "*(self.logit_scale, self.log_scale_start, self.layer_scale),",
        "*(self.logit_scale, self.log_scale_start),",
        "tests/mixers/test_attention.py",
    ),
    Fault(
        "a regression is of all numbers of a row",
        "losses/number_heads.py",
        "mask = mask & (mask.long().cumsum(1) == 1)",
        "mask = mask & (mask.long().cumsum(1) >= 1)",
        "tests/losses tests/text/test_numformer.py tests/text/test_t5.py",
    ),
    Fault(
        "any run of digits is followed by thousands",
        "losses/number_spans.py",
        "        & (preceding_group_lengths <= 3)\n",
        "",
        "tests/losses",
    ),
    Fault(
        "residual outputs are divided by half as many as there are",
        "models/initialization.py",
        'if self.residual_count == "maps" else 2 * role.effective_depth',
        'if self.residual_count == "maps" else role.effective_depth',
        "tests/published/test_dual_attention_models.py",
    ),
    Fault(
        "the farthest number is one farther than the squash factor",
        "kernels/number_loss.py",
        "scale = (self.squash_factor - 1) / distance_range",
        "scale = self.squash_factor / distance_range",
        "tests/kernels/test_number_loss.py tests/kernels/test_fused_losses.py",
    ),
    Fault(
        "questions are drawn where just as many as there are were wanted",
        "evaluation/evaluation_data.py",
        "if all_questions is not None and len(all_questions) <= count:",
        "if all_questions is not None and len(all_questions) < count:",
        "tests/evaluation/test_labels.py tests/evaluation/test_tasks.py",
    ),
    Fault(
        "of two evaluations of a text the shorter one counts",
        "evaluation/likelihoods.py",
        "key=lambda portion: (portion[0], -portion[1].chunks)",
        "key=lambda portion: portion[0]",
        "tests/evaluation/test_language_modeling.py tests/runs/test_language_runs.py",
    ),
    Fault(
        "an answer may end in more beams than there are",
        "evaluation/beams.py",
        "is_ending & is_top_beam & can_improve,",
        "is_ending & can_improve,",
        "tests/evaluation/test_beams.py",
    ),
    Fault(
        "a row at three position offsets counts as three in its interval",
        "evaluation/labels.py",
        "rows = max(1, rows // num_offsets)",
        "rows = max(1, rows)",
        "tests/evaluation/test_labels.py",
    ),
    Fault(
        "behind a plateau each evaluation without progress lowers the learning rate",
        "training/schedule.py",
        "factor, worse = max(self.min_lr_ratio, factor * self.factor), 0",
        "factor = max(self.min_lr_ratio, factor * self.factor)",
        "tests/training/test_plateau.py",
    ),
    Fault(
        "a mean over batches is one over accumulated batches",
        "training/validation.py",
        "rows = training.batch_size // training.gradient_accumulation_steps",
        "rows = training.batch_size",
        "tests/training/test_language_modeling.py tests/training/test_validation.py",
    ),
    Fault(
        "a resumed step has its samples twice",
        "training/samples.py",
        '_samples_until(folder, step - 1) + b"".join(',
        '_samples_until(folder, step) + b"".join(',
        "tests/training/test_samples.py",
    ),
    Fault(
        "an evaluation that is made again is in the metrics twice",
        "training/run_folder.py",
        'record["step"] < step or (record["step"] == step and (is_evaluated or "split" not in record))',
        'record["step"] <= step',
        "tests/training/test_run_folder.py tests/training/test_resume.py",
    ),
    Fault(
        "eigenvalues learn at the full rate, and what is added to the output at half of it",
        "architectures/lru.py",
        '(1.0 if name == "D" else self.learning_rate_factor, False)',
        '(self.learning_rate_factor if name == "D" else 1.0, False)',
        "tests/architectures/test_lru.py tests/architectures/test_layers.py",
    ),
    Fault(
        "relational heads have the biases of self-attention",
        "architectures/dual_attention.py",
        "self_bias, relational_bias = bias[:, :num_self_heads], bias[:, num_self_heads:]",
        "self_bias, relational_bias = bias[:, num_self_heads:], bias[:, :num_self_heads]",
        "tests/architectures/test_dual_attention.py tests/architectures/test_layers.py",
    ),
    Fault(
        "only the first document of a file is divided at its own length",
        "text/data/prepared.py",
        "np.rint(fraction * document_sizes).astype(np.int64) - (before - before[first])",
        "np.rint(fraction * document_sizes).astype(np.int64) - before",
        "tests/text/test_prepared.py",
    ),
    Fault(
        "Fourier embeddings lack the highest digit",
        "text/models/number_inputs.py",
        "range(1 - self.fraction_digits, self.integer_digits + 1)",
        "range(-self.fraction_digits, self.integer_digits)",
        "tests/text/test_number_inputs.py",
    ),
    Fault(
        "questions of validation are trained",
        "text/tasks/text_task.py",
        "train.source.question_mask(test_questions.union(kept_validation.texts()))",
        "train.source.question_mask(test_questions)",
        "tests/text/test_text_tasks.py tests/text/test_mathematics.py tests/text/test_gsm8k.py",
    ),
    Fault(
        "tokens with another answer prefix are taken from the cache",
        "text/tokenizers/tokenized_texts.py",
        "        repr(tokenizer.number_format),\n        answer_prefix,\n",
        "        repr(tokenizer.number_format),\n",
        "tests/text/test_tokenized_texts.py tests/text/test_subwords.py",
    ),
    Fault(
        "R² of logarithms is about the mean of the numbers",
        "published/number_loss_metrics.py",
        "_r2(log_error, log_expected)",
        "_r2(log_error, expected)",
        "tests/published/test_number_loss_metrics.py",
    ),
    Fault(
        "the largest offset leaves no position for the first token",
        "recipes/counting_paper.py",
        'bool(task.prefix) + (isinstance(task, Counting) and task.start_number != "none")',
        '(isinstance(task, Counting) and task.start_number != "none")',
        "tests/recipes/test_counting_recipes.py",
    ),
    Fault(
        "names of things count in the mean over numbers of an accumulated batch",
        "integrations/hf_trainer.py",
        'sample["labels"], loss_weights=sample.get("loss_weights"), is_quantity=sample.get("quantity")',
        'sample["labels"], loss_weights=sample.get("loss_weights")',
        "tests/integrations/test_hf_trainer.py",
    ),
    Fault(
        "an evaluation with other questions is that of the first",
        "runs/store.py",
        'int(record.get("evaluation_seed", 0)),',
        "0,",
        "tests/runs/test_run.py",
    ),
    Fault(
        "the time left is less than that of the slowest run",
        "runs/status.py",
        "max(max(remaining), (sum(remaining) + sum(expected.get(one, default) for one in waiting)) / len(running))",
        "(sum(remaining) + sum(expected.get(one, default) for one in waiting)) / len(running)",
        "tests/runs/studies/test_status.py",
    ),
    Fault(
        "a trial is judged by steps beyond its budget",
        "runs/trials.py",
        'for line in (line for line in lines if budget is None or line["step"] <= budget):',
        "for line in lines:",
        "tests/runs/test_search.py",
    ),
    Fault(
        "a task asks Slurm for 1,000 megabytes a gigabyte",
        "runs/engines/slurm.py",
        'f"{round(self.mem_gb * 1024)}M"',
        'f"{round(self.mem_gb * 1000)}M"',
        "tests/runs/engines/test_slurm.py",
    ),
    Fault(
        "files of a later version are read",
        "records/reading.py",
        "if not isinstance(format_version, int) or format_version > FORMAT:",
        "if not isinstance(format_version, int):",
        "tests/records tests/training/test_run_folder.py",
    ),
    Fault(
        "questions that may be in training count in the mean of a region",
        "results/summary.py",
        "at = held_out if len(held_out) else index",
        "at = index",
        "tests/results/test_summary.py",
    ),
    Fault(
        "p-values are not corrected for the number of pairs",
        "results/summary.py",
        '**row, "p_holm": p}',
        '**row, "p_holm": row["p"]}',
        "tests/results/test_summary.py",
    ),
    Fault(
        "failed runs do not lower the success rate",
        "results/runs.py",
        '.where((status == "done") & is_causal).mask(status == "failed", 0.0)',
        '.where((status == "done") & is_causal)',
        "tests/results/test_tables.py",
    ),
]


def check(faults: list[Fault]) -> None:
    """Exits if the text of a fault is not there exactly once."""
    outdated = [
        f"{fault.file}: {(TOP / 'src/numerate' / fault.file).read_text(encoding='utf-8').count(fault.old)} times, "
        f"not once: {fault.old.strip()}"
        for fault in faults
        if (TOP / "src/numerate" / fault.file).read_text(encoding="utf-8").count(fault.old) != 1
    ]
    if outdated:
        sys.exit("\n".join(outdated))


def copy_tree(folder: Path) -> Path:
    """What git knows of the tree, in `folder/numerate`, with the published cases beside it."""
    tree = folder / "numerate"
    names = subprocess.check_output(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=TOP).decode()
    for name in filter(None, names.split("\0")):
        if (TOP / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, tree / name)
    if (TOP.parent / "shared").is_dir():
        (folder / "shared").symlink_to(TOP.parent / "shared")
    return tree


def write(path: Path, text: str) -> None:
    """Writes a module, and removes its compiled form, which might be of the same second and size."""
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def fails(tree: Path, arguments: list[str]) -> str:
    """The first test that fails, `hangs`, or nothing."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-n", "0", "--tb=no", *arguments]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    if run.returncode in (0, 5):  # 5: no test ran
        return ""
    failed = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if run.returncode != 1 and not failed:
        raise RuntimeError(f"pytest {' '.join(arguments)}\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else "fails"


def candidates(tree: Path, fault: Fault) -> list[str]:
    """The tests of a fault's row, or its folder where a file has another name now."""
    named = fault.tests.split() or [f"tests/{Path(fault.file).parent}"]
    return [name if (tree / name).exists() else str(Path(name).parent) for name in named]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="only these, by their number")
    parser.add_argument("--all", action="store_true", help="run the whole suite where the tests of a row do not fail")
    parser.add_argument("--tests", nargs=argparse.REMAINDER, help="arguments of pytest instead of the tests of a row")
    options = parser.parse_args()
    chosen = {number: fault for number, fault in enumerate(FAULTS, 1) if number in (options.only or [number])}
    check(list(chosen.values()))
    if options.list:
        print("\n".join(f"{number:3}  {fault.file:30}  {fault.what}" for number, fault in chosen.items()))
        return
    num_found = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = copy_tree(Path(folder))
        for number, fault in chosen.items():
            path, start_time = tree / "src/numerate" / fault.file, time.monotonic()
            original = path.read_text(encoding="utf-8")
            write(path, original.replace(fault.old, fault.new))
            found = fails(tree, options.tests or ["-m", "not slow", *candidates(tree, fault)])
            if not found and options.all:
                found = fails(tree, [])
            write(path, original)
            num_found += bool(found)
            seconds = time.monotonic() - start_time
            print(f"{number:3}  {found or 'NOT FOUND'}  {fault.what} ({seconds:.0f} s)", flush=True)
    print(f"{num_found} of {len(chosen)} faults are found")


if __name__ == "__main__":
    main()
