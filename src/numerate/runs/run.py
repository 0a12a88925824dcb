"""A stored run: its recipe, its weights, its results."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import exp
from pathlib import Path
from typing import Any

from numerate.errors import UserError
from numerate.evaluation.completions import Completion, GenerationLimits, TextCallback, generate_completions
from numerate.evaluation.evaluation_data import EXTRA_TEXT_TOKENS, cell_questions
from numerate.evaluation.evaluator import Method
from numerate.evaluation.grid import cell_entries, parse_shard
from numerate.evaluation.kinds.generated_answers import with_correct
from numerate.evaluation.prompts import check_lengths, resolve_max_new_tokens
from numerate.evaluation.samples import AnswerSample, sample_answers
from numerate.evaluation.sampling import Sampling
from numerate.records.heads import read_metrics
from numerate.reports.evaluation_results import Results
from numerate.reports.maps import DEFAULT_MAX_TOKENS, AttentionMaps, compute_attention_maps
from numerate.runs.engines.engine import Engine
from numerate.runs.estimating import EvaluationEstimate, estimate
from numerate.runs.plan import CellTask, EvaluationPlan, ProgressCallback, ProgressReporter
from numerate.runs.row_memory import check_row_fits
from numerate.runs.shards import EvaluateShard, check_no_shard, evaluate_shards, make_shards
from numerate.runs.store import EvaluationStore, json_lines
from numerate.runs.stored_run import StoredRun
from numerate.tasks.questions import Questions
from numerate.training.distributed import resolve_device
from numerate.training.finding import find_run
from numerate.training.run_folder import resolve_runs_dir


def load(address: str | Path, runs_dir: str | Path | None = None, device: str | None = None) -> "Run":
    """Loads a run by its path, a prefix of its id, its name, or `latest`. Raises `UserError` if there is none.

    For example:

        run = numerate.load("latest")
        run.ask("321+654=")
    """
    return Run(find_run(address, resolve_runs_dir(runs_dir)), device=device)


class Run(StoredRun):
    """A trained run; a notebook displays its results."""

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
            results.regions()[0]["mean"]
            run.evaluate("diagonal:1:18", settings=["model.backbone.num_loops=4,8,16"])
            run.evaluate("1:100x1:100", count=10, checkpoint="all", engine=Local(workers=2))

        Cells already in `cells.jsonl` are not computed again. `checkpoint` is final, best, all or a step.
        `shard="2/4"` computes the second of four shards of equal cost into its own file; a later evaluation without a
        shard collects them. `predictions` also writes the answer to every question, as is always done of answers that
        are generated freely. `settings` override settings for the evaluation; several values of one form a sweep.
        Records then contain the settings that differ from training. Repeating the call writes identical files. Raises
        `UserError` for a grid that the model cannot read, and for settings that would need other weights, before any
        work is done.

        An `engine` distributes the missing cells over its workers, in shards of equal cost; the files are identical.
        Cells that a worker has recorded are kept even if it fails: the same call computes only the remaining ones. If a
        shard fails, the others are completed first, and then an error names it: `UserError` if the user caused it,
        otherwise `OperationalError`.
        """
        check_no_shard(engine, shard)
        if engine is None and self.device is not None:
            resolve_device(self.device)
        plan = EvaluationPlan.from_run(self, grid, count, method, checkpoint, settings)
        keeps_predictions = plan.kind.keeps_predictions and engine is None
        writes_predictions = (predictions or plan.kind.keeps_predictions) and not keeps_predictions
        tasks = plan.tasks(plan.cells(shard), writes_predictions)
        store = self._store(shard)
        with store.lock():
            store.load(plan.steps_by_label())
            read_metrics(self.path, self.folder.metadata(), self.warn)
            missing = plan.missing(tasks, store)
            plan.check(missing)
            if keeps_predictions:
                logs = [plan.prediction_log(task, store) for task in missing]
                total, num_missing = (sum(map(plan.num_questions, some)) for some in (tasks, missing))
                num_missing -= sum(len(log.lines) for log in logs)
            else:
                total, num_missing = (sum(task.num_units for task in some) for some in (tasks, missing))
            if missing and engine is None:
                plan.model(missing[0])  # reading its weights is no progress
            progress = ProgressReporter(on_progress, total, num_missing)
            if engine is not None and missing:
                evaluate_shards(plan, missing, store, progress, engine)
            elif keeps_predictions:
                for task, log in zip(missing, logs, strict=True):
                    log.on_added = progress.increment
                    store.add(plan.key(task), plan.score(task, log))
            else:
                for task in (one for one in missing if one.needs_score):
                    store.add(plan.key(task), plan.score(task))
                    progress.increment()
            if writes_predictions:
                _write_predictions(plan, tasks, store, progress)
            if shard is None:
                _write_samples(plan, store)
            store.finalize()
            store.remove_worker_folders()
        records = [store.records[plan.key(task)] for task in tasks]
        return Results(plan.kind, records, [found for _, found in plan.checkpoints], self._best_checkpoint())

    def script(
        self,
        engine: Engine,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        predictions: bool = False,
        settings: Sequence[str] = (),
    ) -> str:
        """The script that `evaluate` would submit with this engine. Nothing is started or written."""
        plan = EvaluationPlan.from_run(self, grid, count, method, checkpoint, settings)
        tasks, store = plan.tasks(plan.cells(), predictions), self._store(None)
        store.load(plan.steps_by_label())
        shards = make_shards(plan, plan.missing(tasks, store), engine.num_workers)
        return engine.script(EvaluateShard.from_plan(plan), shards, store.pieces / "jobs")

    def estimate(
        self,
        grid: str | None = None,
        *,
        count: int | None = None,
        checkpoint: str = "final",
        method: Method = "one pass",
        shard: str | None = None,
        predictions: bool = False,
        settings: Sequence[str] = (),
    ) -> EvaluationEstimate:
        """Estimated cost of `evaluate` in this process: cells, questions, operations, and time from a short sample.

            run.estimate("1:100x1:100", shard="3/20").seconds

        Cells already recorded cost nothing. Nothing is written. Raises `UserError` as `evaluate` does.
        """
        plan = EvaluationPlan.from_run(self, grid, count, method, checkpoint, settings)
        tasks, store = plan.tasks(plan.cells(shard), predictions), self._store(shard)
        store.load(plan.steps_by_label())
        return estimate(plan, tasks, store)

    def _store(self, shard: str | None) -> EvaluationStore:
        """The records of the run, or those of a shard."""
        return EvaluationStore(self.folder, "{}-of-{}".format(*parse_shard(shard)) if shard is not None else None)

    def _best_checkpoint(self) -> Mapping[str, Any] | None:
        """The best step so far and the metric it was selected by, from the last valid checkpoint."""
        progress = self.checkpoints("final")[0].state.get("progress", {})
        if progress.get("best") is None:
            return None
        found = {"step": progress["best"], "score": progress["best_score"], "split": progress["best_split"]}
        return found | {"metric": progress.get("best_metric", "accuracy")}

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
        answer: AnswerSample = self.evaluation_data.kind.answer(self, question, checkpoint)
        return answer

    def answer_question(self, question: str, checkpoint: str) -> AnswerSample:
        """`ask` for a task with questions."""
        self.check_data_unchanged()
        questions = self.evaluation_data.task.parse_question(question)
        batch = self.evaluation_data.batch(questions)
        check_row_fits(self, batch.tokens)
        for warning in self.untrained_model.check_tokens(
            batch.tokens, self.evaluation_data.longest_rows(self.recipe.task)
        ):
            self.warn(warning)
        if questions.texts is None:
            return sample_answers(self.load_model(checkpoint), self.evaluation_data, questions)[0]
        max_answer_tokens = (
            self.evaluation_data.batch(self._longest_questions()).target_ids.shape[1] + EXTRA_TEXT_TOKENS
        )
        extra_tokens = max(0, max_answer_tokens - batch.target_ids.shape[1])
        model = self.load_model(checkpoint)
        return sample_answers(
            model, self.evaluation_data, questions, extra_tokens=extra_tokens, are_answers_known=False
        )[0]

    def generate(
        self,
        prompts: str | Sequence[str] = (),
        *,
        max_new_tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        do_sample: bool = True,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        count: int = 1,
        checkpoint: str = "final",
        stop: str | Sequence[str] = (),
        context_length: int | None = None,
        on_text: TextCallback | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> list[Completion]:
        """Continues texts: `count` completions after each prompt; without one, from the start of a document.

            [completion] = run.generate("Once upon a time", max_new_tokens=50, temperature=0.8)
            print(completion)
            run.generate(["12+34=", "5+6="])[0].text  # '46'

        `max_new_tokens` defaults to 200, or as many as fit into the context. `stop` are strings that end a completion.
        With `context_length` only that many of the last tokens are read; `do_sample=False` is greedy decoding.
        `on_text` is called with the text of each completion as it is generated; when `should_stop` returns True,
        generation stops. Each completion depends only on its prompt, its sample index and the seed, not on the rest of
        the batch (except for rounding).

        Raises `UserError` for a run that cannot continue texts, and for more tokens than the model has positions.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, do_sample, repetition_penalty, seed)
        limits = GenerationLimits(max_new_tokens, context_length, count)
        stop_texts = [stop] if isinstance(stop, str) else stop
        if count > 1 and sampling.is_greedy:
            raise UserError(f"count: greedy decoding gives the same text each time; count must be 1, not {count}")
        if "" in stop_texts or checkpoint == "all":
            raise UserError(
                "stop: must not be empty" if "" in stop_texts else "checkpoint: must be final, best or a step, not all"
            )
        evaluation_data, kind = self.evaluation_data, self.evaluation_data.kind
        processor = kind.prompt_processor(evaluation_data)
        if (reason := self.untrained_model.non_causal_reason()) is not None:
            raise UserError(f"model: {reason}; it cannot continue a text")
        encoded = [processor.encode(text) for text in ([prompts] if isinstance(prompts, str) else prompts) or ("",)]
        trained_length = kind.context_length(evaluation_data)
        max_tokens = resolve_max_new_tokens(encoded, limits.max_new_tokens, trained_length, context_length)
        for warning in check_lengths(
            self.untrained_model, evaluation_data, encoded, max_tokens, trained_length, context_length
        ):
            self.warn(warning)
        return generate_completions(
            self.load_model(checkpoint),
            processor,
            encoded,
            sampling,
            max_tokens,
            count=count,
            stop_texts=stop_texts,
            window=context_length,
            on_text=on_text,
            should_stop=should_stop,
        )

    def continue_text(self, text: str, checkpoint: str) -> AnswerSample:
        """`ask` for language modeling: the continuation of a text by greedy decoding."""
        (completion,) = self.generate(text, do_sample=False, checkpoint=checkpoint)
        probability = exp(max(completion.log_probability, -700.0))
        return AnswerSample(text, None, completion.text, None, str(completion), probability, None, completion.stopped)

    def _longest_questions(self) -> Questions:
        """The longest questions of the task if known, otherwise some of the validation split."""
        task = self.recipe.task
        longest = task.longest_questions()
        return task.examples("validation", 0, 0, 64) if longest is None else longest

    def maps(
        self,
        prompt: str = "",
        checkpoint: str = "final",
        *,
        layers: Sequence[int] | None = None,
        answer: bool = True,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        position_offset: int = 0,
        settings: Sequence[str] = (),
    ) -> AttentionMaps:
        """Attention maps of a prompt and the generated answer: every head of every layer.

            maps = run.maps("321+654=")
            maps.tokens[:4]  # ('1', '2', '3', '+')
            maps.layers[0].weights("attention").shape  # (4, 12, 12)
            maps.layers[0].weights("attention")[2, 7]

        Without a prompt, a question of the test split is used, or the beginning of the validation text. `layers`
        selects layers (default: all); with `answer=False` no answer is generated. Raises `UserError` for a model
        without attention, and for more than `max_tokens` tokens. Nothing is written; `numerate maps` does.
        """
        return compute_attention_maps(
            self.with_settings(*settings),
            prompt,
            checkpoint=checkpoint,
            layers=layers,
            answer=answer,
            max_tokens=max_tokens,
            position_offset=position_offset,
        )

    def report(self) -> Path:
        """Writes `report.html`, one self-contained page, and returns its path."""
        from numerate.reports.page import write_run_report

        return write_run_report(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def _repr_html_(self) -> str:
        from numerate.reports.page import run_iframe

        return run_iframe(self.path)


def _write_predictions(
    plan: EvaluationPlan, tasks: Sequence[CellTask], store: EvaluationStore, progress: ProgressReporter
) -> None:
    """Writes the answer to every question: as workers have recorded it, or computed here."""
    for _, same_model in groupby(tasks, lambda task: (task.run, task.checkpoint)):
        lines: list[dict[str, Any]] = []
        for task in same_model:
            if (predictions := store.find_predictions(plan.key(task))) is None:
                predictions = plan.predict(task)
                progress.increment()
            lines += predictions
        store.write_predictions(lines)


def _write_samples(plan: EvaluationPlan, store: EvaluationStore, examples_per_cell: int = 4) -> None:
    """A few answers in and out of distribution of the last checkpoint as trained, for the report."""
    _, last_checkpoint = plan.checkpoints[-1]
    for index, run in enumerate(plan.runs):
        cells = plan.kind.sample_cells(plan.regions(index, plan.grid.cells()))
        if run.changed_settings or not cells:
            continue
        model = None if plan.kind.keeps_predictions else run.load_model(last_checkpoint)
        records: list[Mapping[str, Any]] = []
        for cell in cells:
            if model is None:
                task = CellTask(index, len(plan.checkpoints) - 1, cell, 0, True, False)
                lines = [*store.prediction_lines(plan.key(task)).values()][:examples_per_cell]
                records += [with_correct(run.evaluation_data.generation, line) for line in lines]
                continue
            questions = cell_questions(run.evaluation_data.task, dict(cell), count=examples_per_cell, seed=plan.seed)
            samples = sample_answers(model, run.evaluation_data, questions, method=plan.method)
            records += [
                sample.record(dict(cell)) | cell_entries(cell) | {"step": last_checkpoint.step} for sample in samples
            ]
        generated_in_training, _ = run.folder.split_records("samples.jsonl", lambda record: "prompt" in record)
        run.folder.write("samples.jsonl", generated_in_training + json_lines(records))
