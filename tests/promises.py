"""What every part promises, as tests.

They run on every part of numerate. A mixer never looks ahead, and token by token it computes what it computes for whole
rows; so does a model. Data is a function of its key; no question is in two splits. A loss is a sum with a gradient, and
a count that the batch alone tells. Position ids do not depend on later tokens or other rows. Nothing is random in
evaluation. A part survives saving; a recipe trains, and resumes exactly.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numerate.batch import IGNORE_INDEX, Batch, ModelSpec, Output, StepContext, Tokens
from numerate.config import from_tree, identity, override, parse_yaml, to_tree, yaml_text
from numerate.losses.loss import LossModule
from numerate.mixers.mixer import Context, Mixer, TokenMixer
from numerate.positions.position import Position
from numerate.positions.position_ids import PositionIds
from numerate.tasks.questions import Questions
from numerate.tasks.task import EVAL_BLOCK_SIZE, SPLITS, Task
from numerate.training.own_parts import (
    evaluating,
    first_tokens,
    model_problems,
    position_ids_problems,
)
from numerate.training.recipe import Recipe
from numerate.vocabulary import HELPER, PAD, Vocabulary

VOCABULARY = Vocabulary.with_digits(["+", "-", "x", "=", " "])
EXACT: dict[str, Any] = {"atol": 1e-9, "rtol": 1e-9}

# All parts -----------------------------------------------------------------------------------------------------------


def through_a_file(spec: Any) -> Any:
    return from_tree(parse_yaml(yaml_text(to_tree(spec))), expected_class=type(spec))


def test_it_is_a_frozen_dataclass_of_explained_settings(any_part: type) -> None:
    assert is_dataclass(any_part)
    assert any_part.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in fields(any_part):
        assert len(field.metadata["help"]) > 5, field.name
        assert field.metadata["help"][-1] != ".", field.name
        assert isinstance(field.metadata["identity"], bool), field.name


def test_the_defaults_survive_saving(any_part: type) -> None:
    spec = any_part()
    assert through_a_file(spec) == spec
    assert identity(through_a_file(spec)) == identity(spec)


# Mixers, in float64 --------------------------------------------------------------------------------------------------


class Mixing:
    """A layer's mixer with the position ids that its positions would get, read at once or token by token."""

    def __init__(self, part: TokenMixer, positions: Sequence[Position]) -> None:
        self.part, self.count = part, len(positions)

    def context(self, lengths: Tensor, time: int, **more: Any) -> Context:
        return Context(lengths, tuple(torch.arange(time)[None] for _ in range(self.count)), **more)

    def at_once(self, x: Tensor, lengths: Tensor | None = None, **more: Any) -> Tensor:
        rows, time, _ = x.shape
        sizes = torch.full((rows,), time) if lengths is None else lengths
        output: Tensor = self.part(x, self.context(sizes, time, **more))
        return output

    def token_by_token(self, x: Tensor, prompts: Sequence[int], more: int) -> tuple[Tensor, Tensor]:
        """Reads each row's prompt, then `more` further tokens of it; the outputs of the prompt and of the tokens."""
        rows = torch.arange(x.shape[0])
        lengths = torch.tensor(prompts)
        longest, capacity = max(prompts), max(prompts) + more
        first, state = self.part.prefill(x[:, :longest], self.context(lengths, longest, capacity=capacity))
        outputs = []
        for step in range(more):
            index = lengths + step
            context = self.context(
                index + 1, longest + step + 1, cache_position=index, cached_length=longest + step + 1
            )
            out, state = self.part.step(x[rows, index][:, None], context, state)
            outputs.append(out[:, 0])
        return first, torch.stack(outputs, dim=1)


def mix(mixing: tuple[Mixer, tuple[Position, ...]], width: int = 16) -> Mixing:
    """The first of two layers, in float64 and evaluation."""
    mixer, positions = mixing
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        part = mixer.build(width, 0, 2, positions).double().eval()
    return Mixing(part, positions)


def inputs(rows: int, time: int, width: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(rows, time, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_never_looks_ahead(any_mixing: Any) -> None:
    mixing, x = mix(any_mixing), inputs(3, 9)
    whole = mixing.at_once(x)
    for place in range(1, 9):
        changed = x.clone()
        changed[:, place:] = inputs(3, 9 - place, seed=place)
        after = mixing.at_once(changed)
        torch.testing.assert_close(after[:, :place], whole[:, :place], **EXACT)
        assert not torch.allclose(after[:, place:], whole[:, place:], **EXACT)


def test_earlier_tokens_matter(any_mixing: Any) -> None:
    mixing, x = mix(any_mixing), inputs(2, 7)
    whole, changed = mixing.at_once(x), x.clone()
    changed[:, 0] = inputs(2, 1, seed=1)[:, 0]
    assert not torch.allclose(mixing.at_once(changed)[:, -1], whole[:, -1], **EXACT), "it mixes nothing"


def test_rows_do_not_see_each_other(any_mixing: Any) -> None:
    mixing, x = mix(any_mixing), inputs(4, 6)
    whole, changed = mixing.at_once(x), x.clone()
    changed[1] = inputs(1, 6, seed=1)[0]
    after = mixing.at_once(changed)
    torch.testing.assert_close(after[[0, 2, 3]], whole[[0, 2, 3]], **EXACT)
    torch.testing.assert_close(mixing.at_once(x[2:3]), whole[2:3], **EXACT)


def test_evaluation_is_not_random(any_mixing: Any) -> None:
    mixing, x = mix(any_mixing), inputs(2, 6)
    torch.testing.assert_close(mixing.at_once(x), mixing.at_once(x), **EXACT)


def test_padding_on_the_right_changes_nothing(any_mixing: Any) -> None:
    mixing, x = mix(any_mixing), inputs(2, 10)
    lengths = torch.tensor([4, 6])
    whole = mixing.at_once(x, lengths)
    for row, length in enumerate([4, 6]):
        alone = mixing.at_once(x[row : row + 1, :length])
        torch.testing.assert_close(whole[row, :length], alone[0], **EXACT)


def test_reading_at_once_is_reading_token_by_token(each_mixing: Any) -> None:
    assert_both_forms_agree(mix(each_mixing), [1, 4, 7])


def test_prompts_may_have_any_lengths(any_mixing: Any) -> None:
    for prompts in ([5, 5, 5], [7, 1, 2], [1, 1, 1]):
        assert_both_forms_agree(mix(any_mixing), prompts)


def assert_both_forms_agree(mixing: Mixing, prompts: list[int]) -> None:
    x = inputs(3, 12)
    whole = mixing.at_once(x)
    first, further = mixing.token_by_token(x, prompts, more=5)
    for row, length in enumerate(prompts):
        torch.testing.assert_close(first[row, :length], whole[row, :length], **EXACT)
        torch.testing.assert_close(further[row], whole[row, length : length + 5], **EXACT)


# Position ids --------------------------------------------------------------------------------------------------------

WITH_HELPER = replace(VOCABULARY, token_kinds=np.append(VOCABULARY.token_kinds[:-1], np.int8(HELPER)))
"""The vocabulary with a helper token, which takes a position id of its own or not, as its last."""


def make_tokens(lengths: Sequence[int], seed: int = 0, width: int | None = None) -> Tokens:
    """Rows of these lengths with any ids, numbered from 1000 on."""
    generator = torch.Generator().manual_seed(seed)
    time = max(lengths) if width is None else width
    ids = torch.randint(1, 19, (len(lengths), time), generator=generator)
    sizes = torch.tensor(lengths)
    ids[torch.arange(time) >= sizes[:, None]] = PAD
    return Tokens(ids, sizes, torch.arange(1000, 1000 + len(lengths)))


def position_ids_of(scheme: PositionIds, tokens: Tokens, vocabulary: Vocabulary, context: StepContext) -> Tensor:
    token_kinds = torch.from_numpy(vocabulary.token_kinds).long()[tokens.ids]
    ids = scheme.assign(tokens, token_kinds, context)
    assert ids.dtype == (torch.int64 if scheme.is_integer else torch.float32)
    assert ids.shape[0] in (1, tokens.ids.shape[0])
    assert ids.shape[1] == tokens.ids.shape[1]
    return ids.expand(tokens.ids.shape)


def assert_rows_may_grow(scheme: PositionIds, whole: Tokens, vocabulary: Vocabulary) -> None:
    for position_offset in range(scheme.num_position_offsets()):
        context = StepContext.for_evaluation(position_offset)
        for length in range(1, 14):
            prefix = replace(whole, ids=whole.ids[:, :length], lengths=torch.full((3,), length))
            padded = torch.where(torch.arange(14) < length, whole.ids, 0)
            behind = replace(whole, ids=padded, lengths=torch.full((3,), length))
            expected = position_ids_of(scheme, whole, vocabulary, context)[:, :length]
            assert torch.equal(position_ids_of(scheme, prefix, vocabulary, context), expected)
            assert torch.equal(position_ids_of(scheme, behind, vocabulary, context)[:, :length], expected)


def test_a_longer_row_never_changes_earlier_position_ids(any_causal_position_ids: Any) -> None:
    assert_rows_may_grow(any_causal_position_ids, make_tokens([14, 14, 14]), WITH_HELPER)


def test_position_ids_start_at_0_and_depend_on_the_row_and_the_context_alone(any_causal_position_ids: Any) -> None:
    tokens = make_tokens([14, 9, 3])
    token_kinds = torch.from_numpy(WITH_HELPER.token_kinds).long()[tokens.ids]
    evaluations = map(StepContext.for_evaluation, range(any_causal_position_ids.num_position_offsets()))
    for context in (*evaluations, StepContext(0, 0), StepContext(5, 17)):
        ids = any_causal_position_ids.assign(tokens, token_kinds, context)
        assert ids.shape in ((3, 14), (1, 14))
        assert ids.dtype == (torch.int64 if any_causal_position_ids.is_integer else torch.float32)
        problems = position_ids_problems(any_causal_position_ids, tokens, token_kinds, context)
        assert next(problems, None) is None


# Models --------------------------------------------------------------------------------------------------------------


def test_a_model_learns_and_computes_each_row_from_its_earlier_tokens(any_model: ModelSpec) -> None:
    model = any_model.build(VOCABULARY, 0)
    assert any(parameter.requires_grad for parameter in model.parameters()), "it has no parameters to train"
    tokens = first_tokens(make_tokens([14]), 14)
    hidden = model(model.assign_positions(tokens, StepContext.for_evaluation())).hidden_states
    assert hidden.isfinite().all()
    assert hidden.requires_grad
    with evaluating(model, [model]):
        assert next(model_problems(model, tokens, VOCABULARY.size), None) is None


# Losses --------------------------------------------------------------------------------------------------------------

NUMBER = 14
RAGGED = [[1, 2, 3], [4], [2, 3, 4, 5], [5]]
"""The positions with a label of four rows."""


def labelled_rows(positions: list[list[int]], time: int = 6, seed: int = 0) -> tuple[Tensor, Batch]:
    """Logits for every position, and a batch that has any target tokens at these positions of each row."""
    generator = torch.Generator().manual_seed(seed)
    rows, most = len(positions), max(1, *map(len, positions))
    logits = torch.randn(rows, time, VOCABULARY.size, generator=generator)
    wanted = torch.randint(4, 14, (rows, time), generator=generator)
    wanted[::2, 3] = NUMBER  # a token that carries a number, for losses of number heads
    values = torch.randn(rows, time, generator=generator) * 10
    targets = torch.full((rows, time), IGNORE_INDEX)
    places = torch.zeros(rows, most, dtype=torch.long)
    target_ids = torch.full((rows, most), IGNORE_INDEX)
    for row, own in enumerate(positions):
        targets[row, own] = wanted[row, own]
        places[row] = own[-1] if own else 0
        places[row, : len(own)] = torch.tensor(own, dtype=torch.long)
        target_ids[row, : len(own)] = wanted[row, own]
    counts = {"tokens": sum(map(len, positions)), "examples": rows}
    tokens = Tokens(wanted, torch.full((rows,), time), torch.arange(rows))
    return logits, Batch(tokens, targets, places, target_ids, counts, rows * time, target_number_values=values)


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    target_ids, targets = batch.target_ids[rows], batch.targets[rows]
    tokens = Tokens(batch.tokens.ids[rows], batch.tokens.lengths[rows], batch.tokens.example_indices[rows])
    values = None if batch.target_number_values is None else batch.target_number_values[rows]
    return replace(
        batch,
        tokens=tokens,
        targets=targets,
        target_positions=batch.target_positions[rows],
        target_ids=target_ids,
        counts={"tokens": int((targets != IGNORE_INDEX).sum()), "examples": len(targets)},
        target_number_values=values,
    )


def output_everywhere(logits: Tensor) -> Output:
    """An output with these logits, and a number head that depends on every one of them."""
    return Output(logits, lambda hidden: hidden, number_head=lambda hidden: hidden.float().tanh().sum(-1))


def test_every_term_has_a_weight_and_a_count_that_the_batch_alone_tells(any_loss: Any) -> None:
    loss: LossModule = any_loss.build(VOCABULARY)
    logits, batch = labelled_rows(RAGGED)
    terms, counts = loss(output_everywhere(logits), batch), loss.counts(batch)
    assert set(terms) == set(loss.weights) == set(counts)
    for name, term in terms.items():
        assert term.shape == ()
        assert term.isfinite()
        assert isinstance(counts[name], int)
        assert counts[name] > 0


def test_a_batch_in_parts_has_the_sums_and_counts_of_the_whole(any_loss: Any) -> None:
    loss: LossModule = any_loss.build(VOCABULARY)
    logits, batch = labelled_rows(RAGGED)
    terms, counts = loss(output_everywhere(logits), batch), loss.counts(batch)
    for cuts in ([0, 1, 4], [0, 2, 4], [0, 1, 2, 3, 4]):
        parts = [slice(low, high) for low, high in pairwise(cuts)]
        for name in terms:
            found = sum(loss(output_everywhere(logits[part]), rows_of(batch, part))[name] for part in parts)
            torch.testing.assert_close(found, terms[name], rtol=1e-5, atol=1e-7)
            assert sum(loss.counts(rows_of(batch, part))[name] for part in parts) == counts[name]


# Tasks whose questions are generated ---------------------------------------------------------------------------------


def splits_of(task: Task) -> list[str]:
    """The splits that a task has."""
    return [split for split in SPLITS if split != "ood_validation" or task.ood_validation_task() is not None]


def test_an_example_does_not_depend_on_the_portions(any_generated_task: Task) -> None:
    for split in splits_of(any_generated_task):
        size = any_generated_task.block_size if split == "train" else EVAL_BLOCK_SIZE
        start, count = size - 30, 60
        whole = any_generated_task.examples(split, 3, start, count)
        assert len(whole) == count
        portions = [any_generated_task.examples(split, 3, start + i, n) for i, n in ((0, 7), (7, 40), (47, 13))]
        assert whole.is_same(Questions.concatenate(portions))
        assert whole.is_same(any_generated_task.examples(split, 3, 0, size + 30).take(slice(start, None)))


def test_seed_and_split_change_what_is_drawn(any_generated_task: Task) -> None:
    keys = [("train", 0), ("train", 1), ("test", 0), ("validation", 0)]
    drawn = {any_generated_task.examples(split, seed, 0, 200).hashes().tobytes() for split, seed in keys}
    assert len(drawn) == len(keys)


def test_no_question_that_can_be_held_out_is_in_two_splits(any_generated_task: Task) -> None:
    task = any_generated_task
    if task.all_questions() is not None:
        return  # its questions are listed, not divided by their hashes
    # One at a time is slower by far, and thirty are drawn for each that is held out.
    count = 3000 if type(task).example is Task.example else 150
    seen: dict[str, set[int]] = {}
    for split in splits_of(task):
        source = (task.ood_validation_task() if split == "ood_validation" else None) or task
        block = task.examples(split, 0, 0, count)
        hashes = source.question_hashes(block)
        assert hashes is not None
        seen[split] = set(hashes[source.splittable_mask(block)].tolist())
        assert len(seen[split]) > count / 3 or not task.is_held_out(split)
    for one in seen:
        for other in seen:
            assert one == other or not seen[one] & seen[other], f"{one} and {other} have questions in common"


def test_its_alphabet_holds_all_the_texts_it_uses(any_generated_task: Task) -> None:
    used = set(any_generated_task.examples("train", 0, 0, 500).alphabet)
    assert used <= set(any_generated_task.alphabet())


def test_the_axes_of_its_grid_are_fields_that_can_be_fixed(any_generated_task: Task) -> None:
    spans = any_generated_task.training_spans()
    assert set(spans) == set(any_generated_task.axes())
    drawn = any_generated_task.at_cell(**{axis: span.low for axis, span in spans.items()}).examples("test", 0, 0, 50)
    for axis, span in spans.items():
        assert set(drawn.metadata[axis].tolist()) == {span.low}


def test_its_strata_have_questions_of_their_sizes(any_generated_task: Task) -> None:
    for cell in (cell for cells in any_generated_task.strata(6).values() for cell in cells):
        drawn = any_generated_task.at_cell(**cell).examples("test", 0, 0, 10)
        for axis in any_generated_task.axes():
            assert drawn.metadata[axis].max() <= cell[axis], f"{cell['stratum']} has longer questions"
        assert all(len(values) == 10 for values in any_generated_task.question_facts(drawn).values())


# Recipes -------------------------------------------------------------------------------------------------------------


def test_a_recipe_trains_and_resumes_exactly(any_recipe: Callable[[], Recipe], tmp_path: Path) -> None:
    from numerate.recipes.preset import debug
    from numerate.runs.train import train
    from numerate.training.checkpoint import step_folder

    settings = ["training.steps=4", "training.checkpoint_every=2", "training.threads=1", "device=cpu"]
    recipe = override(debug(any_recipe()), settings)
    assert through_a_file(recipe) == recipe
    run = train(recipe, runs_dir=tmp_path, quiet=True).run
    last = run.folder.checkpoints / step_folder(4)
    unbroken = run.checkpoints("final")[0].read(only=["weights"])["weights"]
    shutil.rmtree(last)
    again = train(recipe, runs_dir=tmp_path, quiet=True).run.checkpoints("final")[0]
    assert again.step == 4
    resumed = again.read(only=["weights"])["weights"]
    assert all(torch.equal(resumed[name], unbroken[name]) for name in unbroken), "it resumes, but not exactly"
    assert run.evaluate(count=2)
