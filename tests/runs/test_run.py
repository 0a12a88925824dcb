"""A stored run: found again, evaluated to the byte, questioned, reported, continued."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import numerate
from numerate.commands.runs import sweep
from numerate.config import Span, identity
from numerate.errors import UserError
from numerate.evaluation.evaluator import Evaluation
from numerate.positions.added import Learned
from numerate.positions.position_ids import DigitIndex
from numerate.recipes import number_loss_small_was
from numerate.recipes.preset import debug
from numerate.results.summary import summary
from numerate.results.variants import training_note
from numerate.runs import trial
from numerate.runs.run import Run
from numerate.runs.train import train
from numerate.runs.trial import dry_run
from numerate.tasks.arithmetic import Arithmetic
from numerate.tasks.multiplication import Multiplication
from numerate.text.models.numformer import Numformer
from numerate.text.models.t5 import T5, T5Model
from numerate.text.tasks.generated_mathematics import GeneratedMathematics
from numerate.text.tasks.question_files import QuestionFiles
from numerate.text.tasks.rjokes import RJokes
from numerate.training.distributed import World
from numerate.training.recipe import Training
from numerate.training.schedule import Constant, Linear, Schedule, WarmupStableDecay
from numerate.training.trainer import Trainer
from numerate.vocabulary import Vocabulary
from small_runs import ADDING


def test_the_recipe_of_a_run_comes_back_as_it_was(run: Run) -> None:
    assert run.recipe == ADDING
    assert identity(run.recipe) == run.path.name


def test_twice_the_same_evaluation_leaves_the_same_bytes(run: Run) -> None:
    run.evaluate()
    first = run.folder.file("cells.jsonl").read_bytes()
    samples = run.folder.file("samples.jsonl").read_bytes()
    run.evaluate()
    assert run.folder.file("cells.jsonl").read_bytes() == first
    run.folder.file("cells.jsonl").unlink()
    run.evaluate()
    assert run.folder.file("cells.jsonl").read_bytes() == first
    assert run.folder.file("samples.jsonl").read_bytes() == samples


def test_an_evaluation_with_other_questions_is_not_that_of_the_first(run: Run) -> None:
    tree = run.folder.metadata()["recipe"]
    for seed in (1, 0):
        run.folder.update_metadata(recipe=tree | {"evaluation": tree["evaluation"] | {"seed": seed}})
        (record,) = numerate.load(run.path).evaluate("2")
        assert record["evaluation_seed"] == seed
    assert [record["evaluation_seed"] for record in run.folder.records("cells.jsonl")] == [0, 1]


def test_an_evaluation_continues_by_cell(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from numerate.runs import plan

    whole = [dict(record) for record in run.evaluate()]
    file = run.folder.file("cells.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    computed = []
    real = plan.EvaluationPlan.score

    def counted(self: plan.EvaluationPlan, task: plan.CellTask) -> object:
        computed.append(task.cell)
        return real(self, task)

    monkeypatch.setattr(plan.EvaluationPlan, "score", counted)
    assert [dict(record) for record in run.evaluate()] == whole
    assert len(computed) == 5
    assert file.read_bytes() == b"".join(lines)


def test_one_pass_and_decoding_agree_and_are_kept_apart(run: Run) -> None:
    fast, slow = run.evaluate(), run.evaluate(method="decoding")
    assert [record["correct"] for record in fast] == [record["correct"] for record in slow]
    assert {record["method"] for record in slow} == {"decoding"}
    assert len(run.folder.records("cells.jsonl")) == 18


def test_predictions_are_those_of_the_method_and_say_which(run: Run) -> None:
    predictions = {}
    for method in ("one pass", "decoding", "beams"):
        (record,) = run.evaluate("2x2", count=40, method=method, predictions=True)  # type: ignore[arg-type]
        lines = run.folder.records("predictions.jsonl")
        assert {line["method"] for line in lines} == {method}
        assert sum(line["correct"] for line in lines) == record["correct"]
        predictions[method] = [line["prediction"] for line in lines]
    assert predictions["one pass"] == predictions["decoding"] != predictions["beams"]


def test_regions_leave_out_what_could_not_be_held_out(run: Run) -> None:
    results = run.evaluate()
    seen = {tuple(record["cell"].values()) for record in results if record["overlaps_training"]}
    assert seen == {(1, 1), (1, 2), (2, 1)}
    found = re.findall(r"^final +8 +(\D+?) +(\d) .*\[.*\]", str(results), re.MULTILINE)
    assert found == [("in distribution", "1"), ("OOD validation", "1"), ("OOD test", "4")]
    assert "may occur in training: 1+1 digits, 1+2 digits and 2+1 digits" in str(results)
    assert max(map(len, results.text(80).splitlines())) <= 80
    assert results._repr_html_().count("<tr>") == results._repr_html_().count("<table") + 2


def test_all_checkpoints_are_evaluated_and_best_says_what_it_was_chosen_on(run: Run) -> None:
    assert {record["step"] for record in run.evaluate("1x1", checkpoint="all")} == {4, 8}
    best = run.evaluate("1x1", checkpoint="best")
    assert best.best is not None
    assert best.best["split"] == "ood_validation"
    assert {record["step"] for record in best} == {best.best["step"]}


def test_a_final_checkpoint_that_is_no_longer_final_keeps_its_results_under_its_step(run: Run) -> None:
    run.evaluate("1x1")
    longer = replace(ADDING, training=replace(ADDING.training, steps=10))
    train(longer, runs_dir=run.path.parent.parent, quiet=True)
    Run(run.folder).evaluate("1x1")
    labels = {(record["checkpoint"], record["step"]) for record in run.folder.records("cells.jsonl")}
    assert labels == {("final", 10), ("step 8", 8)}


def test_strata_are_evaluated_resumed_and_in_no_region(run: Run) -> None:
    grid = "1:2x1:2+uneven:3+cascade:2:5:3+carries:3"
    results = run.evaluate(grid, count=5, predictions=True)
    strata = [record for record in results if "stratum" in record]
    assert {record["count"] for record in strata if record["stratum"] == "nines_plus_one"} == {1}
    by_size = {record["cell"]["first_digits"]: record for record in strata if record["stratum"] == "nines_plus_one"}
    assert (by_size[2]["region"], by_size[2]["overlaps_training"]) == ("in_distribution", True)
    assert not by_size[5]["overlaps_training"], "99...9 + 1 of 5 digits is new to a model of shorter sums"
    chains = {record["cell"]["longest_carry_chain"] for record in strata if record["stratum"] == "carries"}
    assert chains == {0, 1, 2, 3}
    alone = run.evaluate("1:2x1:2", count=5)
    assert summary(results.frame, by=["region"]).equals(summary(alone.frame, by=["region"]))
    assert re.search("n = 2 +n = 3 +n = 5", str(results))
    assert "n = 5" not in str(alone)
    before = run.folder.file("cells.jsonl").read_bytes()
    steps: list[tuple[int, int]] = []
    run.evaluate(grid, count=5, predictions=True, on_progress=lambda done, total: steps.append((done, total)))
    assert steps[0][0] >= len(results), "nothing is evaluated again"
    assert run.folder.file("cells.jsonl").read_bytes() == before
    lines = [line for line in run.folder.records("predictions.jsonl") if line.get("stratum") == "carries"]
    assert all(line["longest_carry_chain"] == line["cell"]["longest_carry_chain"] <= line["carries"] for line in lines)
    assert "Strata" in run.report().read_text()


def test_predictions_hold_every_question_and_where_it_went_wrong(run: Run) -> None:
    results = run.evaluate(predictions=True)
    lines = run.folder.records("predictions.jsonl")
    assert len(lines) == 9 * 12
    for record in results:
        own = [line for line in lines if line["cell"] == record["cell"]]
        assert sum(line["correct"] for line in own) == record["correct"]
    for line in lines:
        first, second = line["question"].rstrip("=").split("+")
        assert line["correct_answer"] == str(int(first) + int(second))
        assert (line["first_error"] is None) == line["correct"]
    before = run.folder.file("predictions.jsonl").read_bytes()
    run.evaluate(predictions=True)
    assert run.folder.file("predictions.jsonl").read_bytes() == before


def test_a_question_is_answered_with_the_truth_beside_it(run: Run) -> None:
    answer = run.ask("12+9=")
    assert (answer.question, answer.correct_answer) == ("12+9=", "21")
    assert answer.model_text.startswith("21+9=")
    assert 0 < answer.probability <= 1
    with pytest.raises(UserError, match="an example is 12"):
        run.ask("twelve and nine")


def test_a_question_beyond_the_table_is_refused_and_one_beyond_training_is_warned_of(run: Run) -> None:
    with pytest.raises(UserError, match="position 15 is out of range for Learned"):
        run.ask("111111111111111+1=")
    with pytest.warns(UserWarning, match="position 7 and later ones do not occur in training"):
        run.ask("1111111+1=")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grid": "1:20x1:20"}, r"^grid: 1:20x1:20: model.positions.0: position 2\d is out of range for Learned"),
        ({"grid": "1:2x1:2+0:1x1"}, r"^grid: 1:2x1:2\+0:1x1: first_digits: must be from 1 to 10000, or null, not 0$"),
        ({"grid": "1:2x1:2x1:2"}, "has 3 axes, the task has 2"),
        ({"grid": "3:1x1:2"}, "a span must go from low to high"),
        ({"count": 0}, "count: must be at least 1, not 0"),
        ({"checkpoint": "finl"}, "must be final, best, all or a step"),
        ({"checkpoint": "5"}, "has no checkpoint of step 5; there are: 4, 8"),
        ({"shard": "3/2"}, "shard: must be from 1/4 to 4/4, for example, not '3/2'"),
        ({"method": "guessing"}, "must be one of one pass, decoding, beams"),
    ],
)
def test_an_impossible_evaluation_is_refused_and_harms_nothing(run: Run, settings: dict, reason: str) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=reason):
        run.evaluate(**settings)
    after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


@pytest.mark.parametrize(
    ("schedule", "budgets", "note"),
    [
        (Linear(warmup=0), (2, 4), "extended from 2 steps"),
        (Linear(warmup=0), (2, 2, 4, 6), "extended from 2 and 4 steps"),
        (WarmupStableDecay(warmup=0), (4, 2), None),  # nothing was trained
        (WarmupStableDecay(warmup=9), (2, 4), None),  # both were still warming up
        (Constant(warmup=0), (2, 4), None),
    ],
)
def test_an_extended_run_says_so_unless_it_is_as_if_trained_in_one_go(
    schedule: Schedule, budgets: tuple[int, ...], note: str | None, tmp_path: Path
) -> None:
    for steps in budgets:
        training = replace(ADDING.training, steps=steps, evaluate_every=9)
        extended = train(replace(ADDING, schedule=schedule, training=training), runs_dir=tmp_path, quiet=True)
    assert training_note(extended.run.folder.metadata()) == (note or "")


def test_a_dry_run_counts_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    estimate = dry_run(ADDING)
    model = ADDING.model.build(ADDING.tokenizer.build_vocabulary(ADDING.task), 0)
    assert estimate.num_parameters == sum(p.numel() for p in model.parameters())
    assert estimate.flops_per_step > 0
    assert estimate.memory_bytes == 16 * estimate.num_parameters
    assert (estimate.num_steps, estimate.first_batch_shape[0]) == (8, 16)
    stream = Trainer(ADDING, World.join("cpu")).stream
    window = [stream.batch(n * stream.batch_size).num_input_tokens for n in range(stream.window)]
    assert estimate.num_tokens == round(8 * sum(window) / len(window))
    assert "FLOP a step" in str(estimate)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_counts_what_an_encoder_reads_among_the_tokens_of_a_batch() -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    recipe = debug(number_loss_small_was())
    batch = Trainer(recipe, World.join("cpu")).stream.batch(0)
    assert batch.source is not None
    time = batch.tokens.ids.shape[1] + batch.source.ids.shape[1]
    assert dry_run(recipe, num_timed_steps=1).first_batch_shape == (8, time)


def test_a_dry_run_of_billions_of_random_weights_counts_them_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the extra huggingface is not installed")
    recipe = debug(number_loss_small_was())
    tried = dry_run(recipe, num_timed_steps=1)
    devices: set[str] = set()
    build = T5.build

    def watched(self: T5, vocabulary: Vocabulary, seed: int) -> T5Model:
        model = build(self, vocabulary, seed)
        devices.update(parameter.device.type for parameter in model.parameters())
        return model

    monkeypatch.setattr(T5, "build", watched)
    monkeypatch.setattr(trial, "MAX_TIMED_PARAMETERS", 1000)
    counted = dry_run(recipe)
    assert devices == {"meta"}, "a real one was built"
    assert "time              not measured" in str(counted)
    assert counted == replace(tried, seconds_per_step=None)


def test_the_debug_preset_makes_large_models_small_and_asks_for_sizes_that_there_are() -> None:
    large = debug(replace(ADDING, model=T5("base"), task=Multiplication()))
    assert isinstance(large.model, T5)
    assert (large.model.hidden_size, large.model.num_layers) == (32, 1)
    assert large.model.weights is None
    small = debug(replace(ADDING, model=Numformer(), task=GeneratedMathematics(kinds=("mul",))))
    assert isinstance(small.model, Numformer)
    assert small.model.hidden_size == 32
    assert small.evaluation.grid == "1:1", "the one kind that is trained"


def test_a_model_without_its_weights_is_small_too_and_settings_are_texts() -> None:
    pretrained = replace(ADDING, model=T5(weights="someone/t5-huge"))
    assert debug(pretrained).model == pretrained.model
    assert sweep(pretrained, ["model.weights=null"], "debug")[0].model == debug(replace(ADDING, model=T5())).model
    with pytest.raises(UserError, match=r"^recipe: settings are texts .* recipe\('addition_abacus', 'training\.steps="):
        numerate.recipe("addition_abacus", steps=10)


def test_the_debug_preset_is_a_run_of_its_own(tmp_path: Path) -> None:
    small = debug(ADDING)
    assert small.title == "adding-debug"
    run = train(small, runs_dir=tmp_path, quiet=True).run
    assert run.path.parent.name == "adding-debug"
    assert len(run.evaluate()) == 4


def test_the_names_of_the_package_are_there() -> None:
    assert set(numerate.__all__) <= set(dir(numerate)) | {"__version__"}
    recipe = numerate.recipe("addition-abacus", "training.steps=7")
    assert recipe.training.steps == 7
    with pytest.raises(UserError, match="Did you mean 'addition_abacus'"):
        numerate.recipe("addition_abcus")
    with pytest.raises(AttributeError):
        numerate.nothing  # noqa: B018


def test_a_start_that_trains_nothing_leaves_the_head_alone(run: Run) -> None:
    before = run.folder.file("recipe.yaml").read_bytes()
    smaller = replace(ADDING, training=replace(ADDING.training, steps=3), name="other")
    messages: list[str] = []
    again = train(smaller, runs_dir=run.path.parent.parent, quiet=True, on_message=messages.append)
    assert again.stop_reason == "done"
    assert "already trained to step 8, with a budget of 3 steps" in messages[-1]
    assert run.folder.file("recipe.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        ("1:20x1:20", r"evaluation.grid: model.positions.0: position 2\d is out of range for Learned"),
        ("abc", "evaluation.grid: a span must be low:high, .* not 'abc'"),
        ("1:2x1:2x1:2", "evaluation.grid: '1:2x1:2x1:2' has 3 axes"),
        ("0:3x1:2", "evaluation.grid: first_digits: must be from 1 to"),
    ],
)
def test_a_grid_that_could_not_be_evaluated_is_refused_before_training(tmp_path: Path, grid: str, reason: str) -> None:
    recipe = replace(ADDING, evaluation=replace(ADDING.evaluation, grid=grid))
    with pytest.raises(UserError, match=reason):
        train(recipe, runs_dir=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_grid_of_parts_that_files_have_not_is_refused_with_what_takes_those_they_have(tmp_path: Path) -> None:
    mine = QuestionFiles(train_file=str(Path(__file__).parents[1] / "text" / "texts" / "questions.jsonl"))
    recipe = replace(number_loss_small_was(), task=mine, device="cpu")
    message = r"^evaluation.grid: test: there is no \d; there are: 1 test \(null: the default grid\)$"
    with pytest.raises(UserError, match=message):
        train(recipe, runs_dir=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_rows_of_files_are_evaluated_once_and_a_grid_of_another_task_is_refused(tmp_path: Path) -> None:
    jokes = RJokes(data_dir=str(Path(__file__).parents[1] / "text" / "texts"))
    recipe = replace(
        number_loss_small_was(),
        task=jokes,
        model=T5(hidden_size=8, num_layers=1, num_decoder_layers=1, num_heads=1, head_dim=8, intermediate_size=8),
        training=replace(ADDING.training, steps=1, batch_size=2, evaluate_every=1),
        evaluation=Evaluation(grid="1:12x1:12", examples_per_cell=43_246, validation_examples=43_246),
        device="cpu",
    )
    with pytest.raises(UserError, match=r"^evaluation.grid: '1:12x1:12' has 2 axes, the task has 1: test; use e.g."):
        train(recipe, runs_dir=tmp_path, quiet=True)
    recipe = replace(recipe, evaluation=replace(recipe.evaluation, grid=None))
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    (record,) = run.evaluate()
    assert record["count"] == jokes.num_rows("test")
    (developed,) = [one for one in run.folder.records("metrics.jsonl") if one.get("split") == "validation"]
    assert developed["count"] == jokes.num_rows("validation")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.evaluate("1")


def test_an_odd_name_and_a_seed_out_of_range_are_refused() -> None:
    for name in ("latest", "", "a/b", "../x"):
        with pytest.raises(UserError, match=r"name: must not be empty, `latest` or contain a slash"):
            replace(ADDING, name=name)
    for seed in (-1, 2**63):
        with pytest.raises(UserError, match=r"seed: must be from 0 to 9223372036854775807, not"):
            replace(ADDING, seed=seed)


def test_a_start_from_another_run_is_the_same_run_however_that_is_addressed(trained: Path) -> None:
    runs = trained.parent.parent
    short = replace(ADDING, name=None, seed=9, training=replace(ADDING.training, steps=1))
    addresses = ("small", trained.name, trained.name[:5], str(trained))
    paths = {train(replace(short, init_from=one), runs_dir=runs, quiet=True).run.path for one in addresses}
    assert len(paths) == 1


def test_the_latest_run_is_another_source_once_another_run_was_started(run: Run) -> None:
    runs = run.path.parent.parent
    warm = replace(ADDING, name=None, seed=9, init_from="latest", training=replace(ADDING.training, steps=1))
    first = train(warm, runs_dir=runs, quiet=True).run
    assert train(warm, runs_dir=runs, quiet=True).run.path == first.path
    assert first.recipe.init_from == run.path.name
    other = train(replace(ADDING, name=None, seed=3, training=warm.training), runs_dir=runs, quiet=True).run
    second = train(warm, runs_dir=runs, quiet=True).run
    assert second.path != first.path
    assert second.recipe.init_from == other.path.name


def test_a_tracker_gets_the_run_by_its_id_and_again_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate.integrations import trackers
    from numerate.integrations.tracked_results import track_results

    calls: list[tuple[str, object]] = []

    class Recorder(trackers.Tracker):
        package, install = "json", "json"

        def start(self, head: object, folder: Path, step: int) -> None:
            calls.append(("start", (trackers.run_id(head), step)))  # type: ignore[arg-type]

        def log_metrics(self, step: int, values: object) -> None:
            calls.append(("log", step))

        def log_figure(self, step: int, name: str, png: bytes) -> None:
            calls.append(("figure", png[:4]))

        def log_table(self, step: int, name: str, columns: object, rows: object) -> None:
            calls.append(("table", name))

        def finish(self) -> None:
            calls.append(("finish", None))

    monkeypatch.setitem(trackers.TRACKERS, "recorder", Recorder)
    tracked = replace(ADDING, trackers=("recorder",))
    run = train(tracked, runs_dir=tmp_path, quiet=True).run
    train(replace(tracked, training=replace(ADDING.training, steps=10)), runs_dir=tmp_path, quiet=True)
    run.evaluate()
    track_results(run.path, run.recipe)
    starts = [what for kind, what in calls if kind == "start"]
    keys = {key for key, _ in starts}  # type: ignore[misc]
    assert len(starts) == 3
    assert len(keys) == 1
    assert keys.pop().startswith(run.path.name)
    assert [step for _, step in starts] == [0, 8, 10]  # type: ignore[misc]
    assert ("figure", b"\x89PNG") in calls
    assert ("table", "samples") in calls


def test_an_answer_with_several_tokenisations_is_decoded_and_not_computed_twice(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate.tokenizers.tokenizer import Characters

    monkeypatch.setattr(Characters, "has_unique_tokenization", False)
    results = run.evaluate("1:2x1")
    assert {record["method"] for record in results} == {"decoding"}
    before = run.folder.file("cells.jsonl").read_bytes()
    run.evaluate("1:2x1")
    assert run.folder.file("cells.jsonl").read_bytes() == before


def test_a_default_grid_beyond_the_table_and_sizes_that_hold_nothing_out_are_reported_at_the_start(
    tmp_path: Path,
) -> None:
    model = replace(ADDING.model, positions=(Learned(position_ids=DigitIndex(), max_position_embeddings=3),))
    messages: list[str] = []
    recipe = replace(
        ADDING,
        task=Arithmetic(digits=1),
        model=model,
        evaluation=Evaluation(validation_examples=8),
        training=Training(steps=1, batch_size=8),
    )
    train(recipe, runs_dir=tmp_path, quiet=True, on_message=messages.append)
    assert any("too few questions to hold any out" in text for text in messages)
    assert any(
        "the best step is selected in distribution" in text and "is out of range for Learned" in text
        for text in messages
    )
    messages.clear()
    wider = replace(
        recipe,
        task=Arithmetic(digits=Span(1, 2)),
        model=replace(model, positions=(Learned(max_position_embeddings=9),)),
    )
    train(wider, runs_dir=tmp_path, quiet=True, on_message=messages.append)
    assert any("evaluation.grid (by default)" in text and "is out of range for Learned" in text for text in messages)


def test_a_signal_is_passed_on_to_a_script_after_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numerate import api
    from numerate.runs.train import TrainedRun

    for status, error in ((130, KeyboardInterrupt), (143, SystemExit)):
        monkeypatch.setattr(api, "train_in_folder", lambda *_, status=status, **__: TrainedRun(None, "stopped", status))  # type: ignore[arg-type]
        with pytest.raises(error):
            numerate.train(ADDING, runs_dir=tmp_path)
