"""A run as it is stored in its folder: its recipe, its weights, its results."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from math import exp
from pathlib import Path
from typing import Any

from numerate.batch import Model
from numerate.config import from_tree
from numerate.errors import UserError, check_positive
from numerate.evaluation.completions import Completion, TextCallback, generate_completions
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, EvaluationData, cell_questions
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import cell_entries
from numerate.evaluation.kinds.generated_answers import with_correct
from numerate.evaluation.prompts import check_lengths, resolve_max_new_tokens
from numerate.evaluation.samples import AnswerSample, sample_answers
from numerate.evaluation.sampling import Sampling
from numerate.models.strict_weights import match_state_dict
from numerate.records.heads import read_metrics
from numerate.records.reading import parse_record
from numerate.runs.changes import TASK_PATH, diff_settings, override_for_evaluation
from numerate.runs.engines.engine import Engine
from numerate.runs.estimating import estimate
from numerate.runs.maps import AttentionMaps, compute_attention_maps
from numerate.runs.plan import CellTask, EvaluationPlan
from numerate.runs.presenting import of_results
from numerate.runs.results import Results
from numerate.runs.shards import EvaluateShard, check_no_shard, evaluate_shards, make_shards
from numerate.runs.store import json_lines
from numerate.tasks.task import Task
from numerate.training.checkpoint import Checkpoint, last_state
from numerate.training.distributed import resolve_device
from numerate.training.finding import find_run, select_checkpoints
from numerate.training.preflight import check_same_tokenizer, check_unchanged_files, tokenizer_fingerprint
from numerate.training.recipe import Recipe
from numerate.training.run_folder import RunFolder, resolve_runs_dir

ProgressCallback = Callable[[int, int], None]
"""Called with the number of questions done and of all."""


def load(address: str | Path, runs_dir: str | Path | None = None, device: str | None = None) -> "Run":
    """Loads a run by its path, a prefix of its id, its name, or `latest`. Raises `UserError` if there is none.

    For example:

        run = numerate.load("latest")
        run.ask("321+654=")
    """
    return Run(find_run(address, resolve_runs_dir(runs_dir)), device=device)


class Run:
    """A trained run; a notebook displays its results."""

    def __init__(self, folder: RunFolder, *, device: str | None = None, changes: Sequence[str] = ()) -> None:
        self.folder, self.path = folder, folder.path
        self.device, self.changes = device, tuple(changes)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.path.absolute(), self.device, self.changes)

    # Recipe and weights -------------------------------------------------------------------------------------------

    @cached_property
    def trained_recipe(self) -> Recipe:
        """The recipe that it was trained with."""
        recipe: Recipe = from_tree(self.folder.metadata()["recipe"], self.folder.file("recipe.yaml"), Recipe)
        return recipe

    @cached_property
    def recipe(self) -> Recipe:
        """The current recipe: as trained, unless `with_settings` changed it."""
        return override_for_evaluation(self.trained_recipe, self.changes) if self.changes else self.trained_recipe

    @cached_property
    def changed_settings(self) -> dict[str, Any]:
        """Settings that differ from training: {} unless `with_settings` changed something."""
        return diff_settings(self.trained_recipe, self.recipe)

    @cached_property
    def training_task(self) -> Task:
        """The task whose sizes count as trained: that of training, where the evaluation reads another file."""
        return self.trained_recipe.task if TASK_PATH in self.changed_settings else self.recipe.task

    def with_settings(self, *settings: str) -> "Run":
        """The same weights with other settings, such as more loop iterations or another scale of the attention logits.

            run.with_settings("model.backbone.num_loops=8").ask("321+654=")

        Raises `UserError` for settings other than the model's, and for those that change the names or shapes of
        weights.
        """
        if not settings:
            return self
        other = Run(self.folder, device=self.device, changes=(*self.changes, *settings))
        untrained_model = other.untrained_model
        try:
            match_state_dict(untrained_model, self.untrained_model.state_dict(), "the trained model")
        except UserError as error:
            raise UserError(
                f"{', '.join(settings)}: these settings change the weights ({error}); an evaluation may only change "
                "settings that keep their names and shapes"
            ) from error
        return other

    @cached_property
    def evaluation_data(self) -> EvaluationData:
        return EvaluationData.from_recipe(self.recipe)

    @cached_property
    def untrained_model(self) -> Model:
        """The initialized model on the CPU, or a pretrained one on the meta device, for what needs no trained weights
        (position offsets, tables)."""
        pretrained_config = last_state(self.folder.checkpoints).get("origin")
        model, vocabulary = self.recipe.model, self.evaluation_data.vocabulary
        build = model.rebuild if pretrained_config is None else model.build_on_meta
        return build(vocabulary, self.recipe.seed, pretrained_config)

    def checkpoints(self, name: str = "final") -> list[Checkpoint]:
        """The checkpoints selected by `final`, `best`, `all` or a step."""
        found, texts = select_checkpoints(self.folder.checkpoints, str(name))
        for text in texts:
            self.warn(text)
        return found

    def checkpoint(self, name: str = "final") -> Checkpoint:
        """The checkpoint selected by `final`, `best` or a step."""
        if name == "all":
            raise UserError("checkpoint: must be final, best or a step, not all")
        return self.checkpoints(name)[0]

    def check_data_unchanged(self) -> None:
        """Raises `UserError` if data files have changed since the run was started."""
        check_unchanged_files(self.trained_recipe.task, self.folder.metadata(), self.path)

    def load_model(self, checkpoint_name: str | Checkpoint = "final") -> Model:
        """The model with the weights of a checkpoint, in evaluation mode.

        Raises `UserError` if it was trained with another tokenizer file of the same name, or if its data files have
        changed since."""
        found = self.checkpoint(checkpoint_name) if isinstance(checkpoint_name, str) else checkpoint_name
        if tokenizer_fingerprint(self.recipe.tokenizer, self.recipe.task) is None:
            self.check_data_unchanged()  # its vocabulary depends on its questions
        check_same_tokenizer(self.recipe.tokenizer, self.recipe.task, found)
        vocabulary, seed = self.evaluation_data.vocabulary, self.recipe.seed
        if found.is_pretrained:
            from numerate.recipes.hugging_face import check_unchanged_weights

            check_unchanged_weights(self.recipe.model)
            model = self.recipe.model.build(vocabulary, seed)
        else:
            weights = found.read(only=["weights"])["weights"]
            model = self.recipe.model.rebuild(vocabulary, seed, found.state.get("origin"))
            model.load_state_dict(match_state_dict(model, weights, str(found.path)))
        return model.to(resolve_device(self.device or self.recipe.device)).eval()

    def warn(self, text: str) -> None:
        warnings.warn(text, stacklevel=3)

    # Evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        shard: str | None = None,
        predictions: bool = False,
        settings: Sequence[str] = (),
        on_progress: ProgressCallback | None = None,
        engine: Engine | None = None,
    ) -> Results:
        """Exact match on a grid of cells, with intervals, at every fixed position offset of the model.

            results = run.evaluate("1:12x1:12", count=200, checkpoint="best")
            results.frame.groupby("region")["exact_match"].mean()
            run.evaluate("diagonal:1:18", settings=["model.backbone.num_loops=4,8,16"])
            run.evaluate("1:100x1:100", count=10, checkpoint="all", engine=Local(workers=2))

        Cells already in `cells.jsonl` are not computed again, and repeating the call writes identical files.
        `checkpoint` is final, best, all or a step. `predictions` also writes the answer to every question, as is always
        done of answers that are generated freely. `settings` override settings for the evaluation, which records then
        contain; several values of one form a sweep. Raises `UserError` for a grid that the model cannot read, and for
        settings that would need other weights, before any work is done.

        `shard="2/4"` computes the second of four shards of equal cost, beside other processes that compute the others.
        An `engine` distributes the missing cells over its workers, in shards; if one fails, the others are completed
        first, and then an error names it: `UserError` if the user caused it, otherwise `OperationalError`.
        """
        check_no_shard(engine, shard)
        if engine is None and self.device is not None:
            resolve_device(self.device)
        plan = EvaluationPlan(
            self, grid, count=count, checkpoint=checkpoint, method=method, predictions=predictions, settings=settings
        )
        tasks = plan.tasks(shard)
        with nullcontext() if shard else self.folder.lock("evaluation"), plan.store as store:
            plan.read()
            read_metrics(self.path, self.folder.metadata(), self.warn)
            missing = plan.missing(tasks)
            plan.check(missing)
            if missing and engine is None:
                plan.model(missing[0])  # reading its weights is no progress
            total = sum(map(plan.num_questions, tasks))
            done, report = total - sum(map(plan.num_left, missing)), on_progress or (lambda done, total: None)
            report(done, total)

            def advance(count: int) -> None:
                nonlocal done
                if count and done < total:
                    done = min(done + count, total)
                    report(done, total)

            if engine is not None and missing:
                evaluate_shards(plan, missing, advance, engine)
            for task in missing if engine is None else ():
                plan.perform(task, advance)
            if shard is None:
                _write_samples(plan)
                store.sort(plan.records_predictions, {plan.key(task) for task in tasks} if plan.predicts else ())
            advance(total)
        records = [store.records[plan.key(task)] for task in tasks]
        return Results(plan.kind, self.path, records, self._best_checkpoint())

    def script(self, engine: Engine, grid: str | None = None, **options: Any) -> str:
        """The script that `evaluate` would submit with this engine and these options. Nothing is started or written."""
        plan = EvaluationPlan(self, grid, **options).read()
        shards = make_shards(plan, plan.missing(plan.tasks()), engine.num_workers)
        return engine.script(EvaluateShard(plan), shards, self.path)

    def estimate(self, grid: str | None = None, *, shard: str | None = None, **options: Any) -> str:
        """What `evaluate` would take in this process with these options, estimated from a short sample.

            print(run.estimate("1:100x1:100", shard="3/20"))

        Cells already recorded cost nothing. Nothing is written. Raises `UserError` as `evaluate` does.
        """
        return estimate(EvaluationPlan(self, grid, **options).read(), shard)

    def _best_checkpoint(self) -> Mapping[str, Any] | None:
        """The best step so far and the metric it was selected by, from the last valid checkpoint."""
        progress = self.checkpoints("final")[0].state.get("progress", {})
        entries = {"step": "best", "score": "best_score", "split": "best_split", "metric": "best_metric"}
        best = {name: progress.get(entry) for name, entry in entries.items()}
        return None if best["step"] is None else best

    # Questions, generation, maps ----------------------------------------------------------------------------------

    def ask(self, question: str, checkpoint: str = "final", *, settings: Sequence[str] = ()) -> AnswerSample:
        """The model's answer to a question in plain text, its probability, and the correct answer.

            run.ask("321+654=").prediction  # '975'

        A task of texts takes any text, whose correct answer is unknown: `correct_answer` and `correct` are None.
        Answers may then be somewhat longer than those of its longest rows. A language-modeling run continues the text
        by greedy decoding; `generate` has more options. `settings` are as in `evaluate`, with one value each.
        """
        if settings:
            return self.with_settings(*settings).ask(question, checkpoint)
        data, task, model = self.evaluation_data, self.recipe.task, self.untrained_model
        if task.is_language_modeling:
            (completion,) = self.generate(question, do_sample=False, checkpoint=checkpoint)
            text, whole, probability = completion.text, str(completion), exp(max(completion.log_probability, -700.0))
            return AnswerSample(question, None, text, None, whole, probability, None, completion.stopped)
        self.check_data_unchanged()
        questions = data.task.parse_question(question)
        batch, extra_tokens, is_text = data.batch(questions), None, questions.texts is not None
        for warning in model.check_tokens(batch.tokens, data.longest_rows(task)):
            self.warn(warning)
        if is_text:
            longest = task.longest_questions()
            longest = task.examples("validation", 0, 0, 64) if longest is None else longest
            length = data.batch(longest).target_ids.shape[1] + EXTRA_TEXT_TOKENS
            extra_tokens = max(0, length - batch.target_ids.shape[1])
        model = self.load_model(checkpoint)
        return sample_answers(model, data, questions, extra_tokens=extra_tokens, are_answers_known=not is_text)[0]

    def generate(
        self,
        prompts: str | Sequence[str] = (),
        *,
        max_new_tokens: int | None = None,
        count: int = 1,
        checkpoint: str = "final",
        stop: str | Sequence[str] = (),
        context_length: int | None = None,
        on_text: TextCallback | None = None,
        should_stop: Callable[[], bool] | None = None,
        **sampling: Any,
    ) -> list[Completion]:
        """Continues texts: `count` completions after each prompt; without one, from the start of a document.

            [completion] = run.generate("Once upon a time", max_new_tokens=50, temperature=0.8)
            print(completion)
            run.generate(["12+34=", "5+6="])[0].text  # '46'

        `max_new_tokens` defaults to 200, or as many as fit into the context. `stop` are strings that end a completion.
        With `context_length` only that many of the last tokens are read. `sampling` has fields of
        `numerate.evaluation.sampling.Sampling`: `temperature`, `top_k`, `top_p`, `min_p`, `seed` and
        `do_sample=False` for greedy decoding. `on_text` is called with the text of each completion as it is
        generated; when `should_stop` returns True, generation stops. Each completion depends only on its prompt, its
        sample index and the seed, not on the rest of the batch (except for rounding).

        Raises `UserError` for a run that cannot continue texts, and for more tokens than the model has positions.
        """
        settings = Sampling(**sampling)
        for name, number in (("max_new_tokens", max_new_tokens), ("context_length", context_length), ("count", count)):
            check_positive(name, number)
        stop_texts = [stop] if isinstance(stop, str) else stop
        if count > 1 and settings.is_greedy:
            raise UserError(f"count: greedy decoding gives the same text each time; count must be 1, not {count}")
        if "" in stop_texts:
            raise UserError("stop: must not be empty")
        data, model = self.evaluation_data, self.untrained_model
        processor, trained_length = data.kind.prompt_processor(data), data.kind.context_length(data)
        if (reason := model.non_causal_reason()) is not None:
            raise UserError(f"model: {reason}; it cannot continue a text")
        encoded = [processor.encode(text) for text in ([prompts] if isinstance(prompts, str) else prompts) or ("",)]
        max_tokens = resolve_max_new_tokens(encoded, max_new_tokens, trained_length, context_length)
        for warning in check_lengths(model, encoded, max_tokens, trained_length, context_length):
            self.warn(warning)
        return generate_completions(
            self.load_model(checkpoint),
            processor,
            encoded,
            settings,
            max_tokens,
            count=count,
            stop_texts=stop_texts,
            window=context_length,
            on_text=on_text,
            should_stop=should_stop,
        )

    def maps(self, prompt: str = "", *, settings: Sequence[str] = (), **options: Any) -> AttentionMaps:
        """Attention maps of a prompt and the generated answer: every head of every layer.

            maps = run.maps("321+654=")
            maps.tokens[:4]  # ('1', '2', '3', '+')
            maps.layers[0].maps["attention"].shape  # (4, 12, 12)

        Without a prompt, a question of the test split is used, or the beginning of the validation text. The options are
        `checkpoint`, `layers` (by default all), `answer` (False: no answer is generated), `max_tokens` (256) and
        `position_offset` (0). Raises `UserError` for a model without attention, and for more than `max_tokens` tokens.
        Nothing is written; `numerate maps` does.
        """
        return compute_attention_maps(self.with_settings(*settings), prompt, **options)

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        return Path(of_results("page").write_run_page(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return str(of_results("page").run_iframe(self.path))


def _open(path: Path, device: str | None, changes: Sequence[str]) -> Run:
    return Run(RunFolder(path), device=device, changes=changes)


def _write_samples(plan: EvaluationPlan, examples_per_cell: int = 4) -> None:
    """A few answers in and out of distribution of the last checkpoint as trained, for the report."""
    for index, run in enumerate(plan.runs):
        cells = plan.kind.sample_cells({cell: plan.region(index, cell) for cell in plan.grid.cells()})
        if run.changed_settings or not cells:
            continue
        records: list[Mapping[str, Any]] = []
        for cell in cells:
            task = CellTask(index, len(plan.checkpoints) - 1, cell, 0)
            if plan.kind.keeps_predictions:
                lines = sorted(plan.store.predictions[plan.key(task)].items())[:examples_per_cell]
                records += [with_correct(run.evaluation_data.generation, parse_record(line) or {}) for _, line in lines]
                continue
            questions = cell_questions(run.evaluation_data.task, dict(cell), count=examples_per_cell, seed=plan.seed)
            samples = sample_answers(plan.model(task), run.evaluation_data, questions, method=plan.method)
            step = {"step": plan.checkpoints[-1][1].step}
            records += [sample.record(dict(cell)) | cell_entries(cell) | step for sample in samples]
        generated_in_training, _ = run.folder.split_records("samples.jsonl", lambda record: "prompt" in record)
        run.folder.write("samples.jsonl", generated_in_training + json_lines(records))
