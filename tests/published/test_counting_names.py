"""Promises of every published counting task: its labels by the definition, its cells, and the published sizes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.config import Span
from numerate.errors import UserError
from numerate.published.counting_names import AUXILIARY_TASKS, presets, published_tasks
from numerate.tasks.counting import Counting
from numerate.tasks.mixture import Mixture
from numerate.tasks.number_line import AdditionTable, NumberLine
from numerate.tasks.plain import format_question
from numerate.tasks.questions import Questions

PRESETS = presets()
every_name = pytest.mark.parametrize("name", PRESETS)


def labels_of(name: str, row: list[str]) -> list[str]:
    """The labels of a row as the paper defines them, by the name of its task; -1 for no label."""
    if "raspL" in name:
        return [*row[1:], "?"]
    if name in AUXILIARY_TASKS:
        return auxiliary_labels_of(name, row)
    helper = "<blk>" if "blankhelper" in name else "<pad>" if "padhelper" in name else None
    modulus = int(name.split("_mod")[1].split("_")[0].removesuffix("bos")) if "_mod1" in name or "_mod2" in name else 0
    selective, seen = "selective" in name or name == "debug", Counter[str]()
    found, pending, start, count = [], "", 0, 0
    for place, token in enumerate(row):
        if token == helper:
            found.append(pending)
            continue
        at_once = helper is None
        if selective and token == "<bos>":
            pending = "-1"
        elif selective:
            number = seen[token] + (token in "ab")
            pending = str(number % 4 if "modular_4items" in name else number)
            seen[token] += 1
        elif name.endswith("mod10bos") and place == 0:
            pending = "-1"
        elif token.isdecimal() and place == 0:
            start = int(token)
            pending = "-1" if helper is None else token
        elif token.isdecimal():
            pending, at_once = str(count + int(token)), True
        else:
            count += 1
            pending = str((count - 1) % modulus + 1 if modulus else start + count)
        found.append(pending if at_once else "-1")
    return found


def auxiliary_labels_of(name: str, row: list[str]) -> list[str]:
    if name.startswith("addtable"):
        first, last = int(row[0]), sum(int(token) for token in row if token != "<pad>")
        return ["-1", str(first), "-1", str(last)] if "padhelper" in name else [str(first), str(last)]
    if name in ("addbigram", "addbigram_upto200"):
        return [str(int(token) + 1) for token in row]
    return [str(int(row[0]) + place) for place in range(len(row))]


def written(questions: Questions, row: int) -> tuple[list[str], list[str]]:
    text, labels = format_question(questions, row)
    return text.split(), ["-1" if label == "." else label for label in labels.split()]


def is_right(name: str, questions: Questions) -> None:
    for row in range(len(questions)):
        text, labels = written(questions, row)
        auxiliary = "task" in questions.metadata and questions.metadata["task"][row] == 1
        wanted = labels_of(published_tasks()[name].auxiliary_folder or "" if auxiliary else name, text)
        if name == "counting_raspL":
            wanted = [
                label if labelled != "-1" else "-1" for label, labelled in zip(wanted[:-1], labels[:-1], strict=True)
            ]
            assert labels[:-1] == wanted
            check_stream([*text, labels[-1]])
            continue
        assert labels == wanted


def check_stream(tokens: list[str]) -> None:
    """Blocks of `<sos> a b < a ... b <eos>`, the last one cut."""
    assert tokens[0] == "<sos>"
    *blocks, last = [block.split() for block in " ".join(tokens).split("<sos>")[1:]]
    assert all(block[-1] == "<eos>" for block in blocks)
    for first, end, *rest in [*blocks, *([last] if len(last) > 2 else [])]:
        whole = ["<", *map(str, range(int(first), int(end) + 1)), "<eos>"]
        assert int(first) < int(end) <= 155
        assert rest == whole[: len(rest)]


def counts_of(name: str) -> range:
    """What a grid can ask: all that the numbers of the task go up to."""
    if name == "debug":
        return range(1, 7)
    if name == "counting_raspL":
        return range(2, 156)
    if "_te" in name:
        return range(1, int(name.split("_te")[1].strip("_")) + 1)
    if "modular_4items" in name:
        return range(1, 257)
    if "_mod" in name:
        return range(1, 10_000)
    return range(1, 101 if "selective" in name or "_plain_" in name or "nobos" in name else 100)


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((shared / "cases" / "counting.json").read_text())
    return found


def test_the_definition_gives_the_labels_of_every_published_row_and_it_is_read_with_them(
    cases: list[dict[str, Any]],
) -> None:
    """From the text a person types. The stream is read block by block, and the folder that no task uses not at all."""
    assert len(cases) == 27
    of_folder = {named.folder: named.task for named in published_tasks().values()}
    for case in cases:
        labels, folder = labels_of(case["task"], case["input"]), case["file"].split("/")[-2]
        if "raspL" in case["task"]:
            assert labels[:-1] == case["expected"][:-1], case["file"]
            continue
        assert labels == case["expected"], case["file"]
        plain = {"counting_samesymbol_addbigram": Counting()}
        task = plain.get(folder) or of_folder.get(folder) or AUXILIARY_TASKS[folder][0]
        found = written(task.parse_question(" ".join(case["input"])), 0)
        assert found == (case["input"], case["expected"]), case["file"]


def test_all_published_names_are_there() -> None:
    names = list(PRESETS)
    assert len(names) == len(set(names)) == 68
    assert sum("_mod" in name and "modular" not in name for name in names) == 25
    assert {"counting_samesymbol", "counting_raspL", "debug", "counting_samesymbol_shiftedstart3__tr25_te200__"} <= set(
        names
    )


def test_vocabularies_have_the_published_sizes_and_all_texts_of_the_task() -> None:
    sizes = Counter(len(named.vocabulary) for named in published_tasks().values())
    assert (sizes[103], sizes[104], sizes[53], sizes[203], sizes[128], sizes[129]) == (20, 7, 1, 2, 1, 2)
    for named in published_tasks().values():
        assert set(named.task.alphabet()) <= {*named.vocabulary, "0"}
        assert "<pad>" in named.vocabulary
    table = published_tasks()
    assert table["counting_samesymbol_plain2_addbigram_nullseq"].vocabulary[:2] == ("<null>", "0")
    assert table["counting_diffsymbol_shiftedstart"].vocabulary[101:104] == ("<pad>", "a", "a")
    assert table["counting_selective_10items2bos"].vocabulary[-2:] == ("<bos>", "<pad>")
    assert table["counting_samesymbol_mod17"].max_seq_len == 180
    assert (
        table["counting_samesymbol_padhelper"].max_seq_len,
        table["counting_samesymbol_padhelper"].max_position_embeddings,
    ) == (210, 128)
    assert [name for name, named in table.items() if not named.is_trainable] == ["counting_diffsymbol_addbigram"]


@every_name
def test_every_row_has_the_labels_of_the_definition(name: str) -> None:
    task = PRESETS[name]
    for split in ("train", "test", "validation", "ood_validation"):
        is_right(name, task.examples(split, 3, 0, 12))


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(list(PRESETS)), seed=st.integers(0, 9), count=st.integers(1, 220), data=st.data())
def test_every_cell_has_the_labels_of_the_definition(name: str, seed: int, count: int, data: st.DataObject) -> None:
    task = PRESETS[name]
    try:
        cell = task.at_cell(count=count)
    except UserError:
        assert count not in counts_of(name)
        return
    assert count in counts_of(name)
    questions = cell.all_questions() or cell.examples("test", seed, 0, 4)
    if len(questions) > 3:
        questions = questions.take(np.array([0, len(questions) - 1, data.draw(st.integers(0, len(questions) - 1))]))
    assert set(questions.metadata["count"].tolist()) == {count}
    assert questions.metadata.get("task", np.zeros(1)).max() == 0, "auxiliary tasks are no part of a grid"
    is_right(name, questions)


@every_name
def test_its_questions_can_be_typed(name: str) -> None:
    task = PRESETS[name]
    if name == "counting_raspL":
        task = task.at_cell(count=7)
    questions = task.examples("test", 0, 0, 4)
    for row in range(4):
        text, labels = written(questions, row)
        if name == "counting_raspL":
            text = text[:4]
        read = task.parse_question(" ".join(text))
        assert written(read, 0)[1] == labels
        bare = [piece for piece in text if piece not in ("<pad>", "<blk>", "<bos>")]
        assert written(task.parse_question(" ".join(bare)), 0)[1] == labels


@every_name
def test_the_best_checkpoint_is_chosen_on_the_next_fifth(name: str) -> None:
    task = PRESETS[name]
    ood_task, trained = task.ood_validation_task(), task.training_spans()["count"]
    assert ood_task is not None
    assert ood_task.training_spans() == {"count": Span(trained.high + 1, trained.high + max(1, trained.high // 5))}
    assert ood_task.is_held_out("test")
    assert ood_task.examples("test", 0, 0, 5).labels is not None


@every_name
def test_the_most_labels_of_a_training_row(name: str) -> None:
    task = PRESETS[name]
    main = task.tasks[0] if isinstance(task, Mixture) else task
    if name == "counting_raspL":
        assert task.max_training_labels() == 51
        return
    rows = main.all_questions("train") or main.examples("train", 0, 0, 2000)
    assert rows.labels is not None
    sums = isinstance(main, Counting) and main.start_number in ("after", "both") and main.helper == "none"
    helped = isinstance(main, Counting) and main.start_number == "after" and main.helper != "none"
    most = int((rows.labels >= 0).sum(axis=1).max()) - (sums or helped)  # the last of them is the addend's sum
    assert most == task.max_training_labels() == main.max_training_labels()


ROWS = {
    "counting_samesymbol": 3425,
    "counting_samesymbol_blankhelper": 3425,
    "counting_samesymbol_padhelper": 3425,
    "counting_samesymbol_shiftedstart": 6850,
    "counting_samesymbol_shiftedstart2": 3425,
    "counting_samesymbol_shiftedstart3": 50,
    "counting_samesymbol_shiftedstart3_padhelper": 50,
    "counting_samesymbol_shiftedstart3__tr50_te100__": 51,
    "counting_samesymbol_shiftedstart3__tr25_te50__": 26,
    "counting_samesymbol_shiftedstart3__tr25_te100__": 76,
    "counting_samesymbol_shiftedstart3__tr50_te200__": 151,
    "counting_samesymbol_shiftedstart3__tr25_te200__": 176,
    "counting_samesymbol_mod10": 50,
    "counting_samesymbol_mod13": 65,
    "counting_samesymbol_mod20": 100,
    "counting_samesymbol_mod10bos": 50,
    "counting_samesymbol_mod10_padhelper": 50,
    "counting_samesymbol_mod10_100_200": 100,
    "counting_samesymbol_plain_addbigram": 1 + 1,
    "counting_samesymbol_plain2_addbigram": 1 + 1,
    "counting_samesymbol_shiftedstart4_addbigram_blkseq": 50 + 50,
    "counting_samesymbol_shiftedstart3_addtablelarge": 50 + 4950,
}


@pytest.mark.parametrize("name", ROWS)
def test_training_has_as_many_different_rows_as_published(name: str) -> None:
    task = PRESETS[name]
    members = task.tasks if isinstance(task, Mixture) else (task,)
    known = [rows.hashes() for member in members if (rows := member.all_questions("train")) is not None]
    assert len(known) == len(members)
    assert len(np.unique(np.concatenate(known))) == sum(map(len, known)) == ROWS[name]
    assert {*task.examples("train", 1, 0, 20_000).hashes().tolist()} <= {*np.concatenate(known).tolist()}


def test_the_law_of_counts_and_starts_is_the_published_one() -> None:
    """A count from 1 to 50, then a start from 1 to 100 - c, drawn again where the pair is held out."""
    task, num_rows = PRESETS["counting_samesymbol"], 100_000
    known, drawn = task.all_questions("train"), task.examples("train", 1, 0, num_rows)
    assert known is not None
    chance = 1 / (100 - known.metadata["count"])
    different, often = np.unique(np.concatenate([known.hashes(), drawn.hashes()]), return_counts=True)
    wanted = num_rows * (chance / chance.sum())[np.argsort(known.hashes())]
    assert len(different) == len(wanted)
    spread, freedom = (((often - 1 - wanted) ** 2) / wanted).sum(), len(wanted) - 1
    assert abs(spread - freedom) < 5 * np.sqrt(2 * freedom)


def test_auxiliary_rows_come_as_often_as_published() -> None:
    task = PRESETS["counting_samesymbol_shiftedstart3_addtablelarge"]
    drawn = task.examples("train", 0, 0, 20_000)
    assert drawn.metadata["task"].mean() == pytest.approx(499_950 / 1_499_950, abs=0.015)
    assert isinstance(task, Mixture)
    assert task.at_cell(task_index=1).examples("test", 0, 0, 50).metadata["task"].min() == 1
    whole = task.at_cell(task_index=1, count=40).all_questions()
    assert whole is not None
    assert len(whole) == 60
    assert task.at_cell(task_index=1).num_questions() == 4950
    assert task.training_spans() == {"count": Span(50, 50)}
    assert task.at_cell(task_index=1).training_spans() == {"count": Span(1, 99)}
    assert task.cells() == [(count,) for count in range(1, 100)]
    assert task.is_held_out("test") is False
    assert task.at_cell(count=60).is_held_out("test")


def test_the_auxiliary_tasks_have_the_published_rows() -> None:
    sizes = {name: task.num_questions() for name, (task, _) in AUXILIARY_TASKS.items()}
    assert sizes["addbigram"] == sizes["addbigram_blkseq"] == sizes["addbigram_upto200"] == 1
    assert sizes["addbigram_shiftednullseq"] == 50
    assert sizes["addtable_large"] == sizes["addtable_padhelper"] == 4950
    for name, (task, _) in AUXILIARY_TASKS.items():
        questions = task.examples("train", 0, 0, 20)
        for row in range(20):
            text, labels = written(questions, row)
            assert labels == auxiliary_labels_of(name, text)
            assert written(task.parse_question(" ".join(text)), 0) == (text, labels)
    assert isinstance(AUXILIARY_TASKS["addbigram"][0], NumberLine)
    assert AUXILIARY_TASKS["addbigram"][0].ood_validation_task() is None, "its numbers end"
    assert isinstance(AUXILIARY_TASKS["addtable"][0], AdditionTable)


@pytest.mark.parametrize("text", ["7 9", "", "a a", "98 99 100", "x 3"])
def test_a_number_line_reads_only_lines(text: str) -> None:
    with pytest.raises(UserError, match=r"^question: "):
        NumberLine().parse_question(text)
    with pytest.raises(UserError, match=r"^question: "):
        AdditionTable().parse_question(text.replace("7 9", "60 41"))
