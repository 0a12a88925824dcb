"""Promises of tokens that are kept: they are those of the texts, made once, and never half."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from numerate.tasks.questions import Example, Questions
from numerate.tasks.texts import TextSource
from numerate.text.tasks import columns
from numerate.text.tokenizers import tokenized_texts as kept
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import PerDigit, XVal
from numerate.text.tokenizers.tokenized_texts import TokenizedTexts, tokenize_texts

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

HERE = Path(__file__).parent
TINY = str(HERE / "tiny")
COUNT = 300


class Sums(TextSource):
    """Sums that count how often they are read."""

    def __init__(self, count: int = COUNT, name: str = "sums") -> None:
        self.num_examples, self.name, self.read = count, name, 0

    @property
    def fingerprint(self) -> str:
        return self.name

    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        self.read += len(rows)
        return [Example(f"{row} + -{row % 7}.5 =" if row else "", f"{row - row % 7 - 0.5}") for row in rows.tolist()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMERATE_CACHE", str(tmp_path))
    monkeypatch.setattr(kept, "MAX_IN_MEMORY", 10)
    monkeypatch.setattr(kept, "_CHUNK_SIZE", 64)
    kept._cache.clear()
    yield tmp_path / "tokenised"
    kept._cache.clear()


def spelled(numbers: Any = XVal()) -> Subwords:
    return Subwords(tokenizer=TINY, number_format=numbers)


def the_same(one: TokenizedTexts, other: TokenizedTexts) -> bool:
    names = ("ids", "starts", "prompt_lengths", "used_ids", "number_values")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def only(folder: Path) -> Path:
    (found,) = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return found


def test_rows_of_files_are_rows_of_their_texts() -> None:
    source, chosen = Sums(), np.array([299, 0, 64, 63, 64])
    for numbers in (XVal(), PerDigit()):
        tokenizer = spelled(numbers)
        vocabulary = tokenizer.build_vocabulary([])
        ours = tokenizer.encode_examples(Questions.from_source(source, chosen), vocabulary)
        plain = tokenizer.encode_examples(source.read_examples(chosen), vocabulary)
        for name in ("ids", "lengths", "target_mask", "number_values"):
            assert np.array_equal(getattr(ours, name), getattr(plain, name)), name


def test_a_source_is_read_once_and_never_again() -> None:
    first = Sums()
    tokenize_texts(first, spelled().fast_tokenizer)
    assert first.read == COUNT
    again, other = Sums(), Sums(name="others")
    tokenize_texts(again, spelled().fast_tokenizer)
    kept._cache.clear()
    tokenize_texts(again, spelled().fast_tokenizer)
    assert again.read == 0
    for changed in ((other, spelled(), ""), (Sums(), spelled(PerDigit()), ""), (Sums(), spelled(), " ")):
        tokenize_texts(changed[0], changed[1].fast_tokenizer, changed[2])
        assert changed[0].read == COUNT


def changed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda place: (place / "ids").write_bytes((place / "ids").read_bytes()[:-2]),
    "changed": lambda place: changed(place / "values"),
    "head": lambda place: (place / "head.json").write_text("{"),
    "missing": lambda place: (place / "starts").unlink(),
    "empty": lambda place: [file.unlink() for file in place.iterdir()],
    "of an earlier version": lambda place: (place / "head.json").rename(place / "sums.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_made_anew(folder: Path, damage: str) -> None:
    names = ("ids", "starts", "prompt_lengths", "used_ids", "number_values")
    whole = tokenize_texts(Sums(), spelled().fast_tokenizer)
    sound = {name: np.array(getattr(whole, name)) for name in names}
    del whole
    kept._cache.clear()
    DAMAGE[damage](only(folder))
    source = Sums()
    assert the_same(tokenize_texts(source, spelled().fast_tokenizer), TokenizedTexts(**sound))
    assert source.read == COUNT
    assert {path.name for path in only(folder).iterdir()} == {"ids", "starts", "prompts", "used", "values", "head.json"}


class SlowSums(Sums):
    def read_examples(self, rows: NDArray[np.int64]) -> list[Example]:
        time.sleep(0.2)
        return super().read_examples(rows)


def num_done(progress: Path) -> int:
    done: int = json.loads(progress.read_text())["done"]
    return done


def begun() -> None:
    """What a process does that is killed meanwhile."""
    kept.MAX_IN_MEMORY, kept._CHUNK_SIZE, columns._SECONDS_BETWEEN_SAVES = 10, 64, 0.0
    tokenize_texts(SlowSums(), spelled().fast_tokenizer)


@pytest.mark.parametrize("damage", [False, True], ids=["whole", "damaged"])
def test_what_a_killed_process_has_done_is_kept_if_it_is_whole(
    folder: Path, damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "import test_tokenized_texts as t; t.begun()"], cwd=HERE)
    while not (saved := [path for path in folder.glob(".*.partial/progress.json") if num_done(path)]):
        time.sleep(0.02)
        assert killed.poll() is None
    killed.kill()
    killed.wait()
    partial, done = saved[0].parent, num_done(saved[0])
    assert done < COUNT
    with open(partial / "ids", "r+b" if damage else "ab") as file:
        file.write(b"\xff" * 7)  # over what is saved, or behind it, as after a kill between two saves
    source = Sums()
    resumed = tokenize_texts(source, spelled().fast_tokenizer)
    assert source.read == (COUNT if damage else COUNT - done)
    kept._cache.clear()
    monkeypatch.setattr(kept, "MAX_IN_MEMORY", COUNT)
    assert the_same(resumed, tokenize_texts(Sums(), spelled().fast_tokenizer))
    assert not [*folder.glob(".*.partial")]


def made() -> tuple[int, int]:
    """What another process has and reads: how many rows there are in the end, and how many texts it took for them."""
    kept.MAX_IN_MEMORY = 10
    source = Sums()
    return len(tokenize_texts(source, spelled().fast_tokenizer)), source.read


def test_several_processes_make_it_once(folder: Path) -> None:
    words = [sys.executable, "-c", "import test_tokenized_texts as t; print(*t.made())"]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=HERE) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].split()[-2:] for process in both]
    assert sorted(int(read) for _, read in outputs) == [0, COUNT]
    assert [int(rows) for rows, _ in outputs] == [COUNT, COUNT]
    assert only(folder).is_dir()
