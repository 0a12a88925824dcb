"""The test sets of `numerate bench v1`: nine in this package, made by tools/bench_v1.py, and three of datasets' files.

They are never changed: each is read only if it has its sha256. Another choice of questions would be version 2.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

from numerate.errors import OperationalError, UserError, did_you_mean
from numerate.tasks.plain import plain_examples
from numerate.text.tasks.gsm8k import GSM8K

NUM_EXAMPLES = 4
"""Few-shot examples of each set."""

NUM_WORD_PROBLEMS = 200
"""Questions of each set of word problems: those whose text has the lowest hashes."""


@dataclass(frozen=True)
class TestSet:
    """One test set: `content` is its JSON lines, whose sha256 is `sha256`.

    A line has `question`, `answer` and `cell`, the part of the set by which results are also given; `plain` is the
    question as numerate's own tasks write it, where one can. Lines with `example` are the few-shot examples.
    """

    name: str
    description: str
    sha256: str
    max_new_tokens: int
    word_problems: int | None = None
    """Of a set from files: the number of the test of `GSM8K` with `EXTRA_TESTS`."""
    data_dir: str | None = None

    __test__ = False  # pytest takes its name for that of tests

    @cached_property
    def content(self) -> bytes:
        """Raises `UserError` where files of a dataset are missing, `OperationalError` if the set is not that of v1."""
        content = self._word_problems() if self.word_problems else self._packaged()
        if (found := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise OperationalError(
                f"bench v1: the test set {self.name} must have the sha256 {self.sha256[:12]}, not {found[:12]}: "
                + ("the files of its dataset are others" if self.word_problems else "reinstall numerate")
            )
        return content

    @cached_property
    def questions(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if "example" not in line]

    @cached_property
    def examples(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if "example" in line]

    @property
    def num_questions(self) -> int:
        return NUM_WORD_PROBLEMS if self.word_problems else len(self.questions)

    @property
    def cells(self) -> dict[str, list[dict[str, Any]]]:
        """The questions of each cell."""
        cells: dict[str, list[dict[str, Any]]] = {}
        for line in self.questions:
            cells.setdefault(line["cell"], []).append(line)
        return cells

    @property
    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.content.splitlines()]

    def _packaged(self) -> bytes:
        return (files("numerate.bench") / "v1" / f"{self.name}.jsonl").read_bytes()

    def _word_problems(self) -> bytes:
        task = GSM8K(data_dir=self.data_dir, extra_tests=EXTRA_TESTS, test=self.word_problems)
        try:
            task.num_rows("test")
        except UserError as error:
            raise UserError(f"{error}; or name other sets than {self.name}, such as sets=addition,counting") from error
        solved, asked = (
            sorted(plain_examples(questions), key=lambda one: hashlib.sha256(one.question.encode()).digest())
            for questions in (task.examples("train", 0, 0, 1_000), task.all_questions("test"))
            if questions is not None
        )
        lines = [{"question": one.question, "answer": one.answer, "example": True} for one in solved[:NUM_EXAMPLES]]
        lines += [
            {"question": one.question, "answer": one.answer.rpartition("####")[2].strip(), "cell": "all"}
            for one in asked[:NUM_WORD_PROBLEMS]
        ]
        return "".join(json.dumps(line) + "\n" for line in lines).encode()


EXTRA_TESTS: tuple[Literal["svamp", "gsm_hard"], ...] = ("svamp", "gsm_hard")

V1 = (
    TestSet(
        "addition",
        "sums of two numbers of the same length, 1 to 20 digits",
        "62de46e84bc7b1ea4714ce2aa5c15c014d399f894172b4c3542039f1a0634f7a",
        64,
    ),
    TestSet(
        "addition-strata",
        "sums without a carry, with one through all digits, 99...9 + a digit, up to a power of ten, uneven lengths",
        "b32649075aadd87684563222e0b6ddef87ef0aef955535ee1656bf57dfc3b084",
        64,
    ),
    TestSet(
        "subtraction",
        "differences of two numbers of the same length, 1 to 20 digits",
        "bd0650a305a5d4443642ecdff0b79ac45c97aaa5b68a61a99cdb709a00c9248e",
        64,
    ),
    TestSet(
        "multiplication",
        "products, up to 6 x 6 digits",
        "f9fc94a86e25a4e856f2f6d5d086ac5e068c4d5b055e1c71955864e13e38e72f",
        64,
    ),
    TestSet(
        "division",
        "quotients without a remainder, up to 4 digits by 4",
        "b2fcad0dd419f778f19178eb560d0f84993561f8301d7b5ebcd7ca008cfcd48e",
        64,
    ),
    TestSet(
        "comparison",
        "the larger of two decimals of different lengths",
        "5bbb57f3054b12d6dd54de41a08695e1f88351ba381fad0eb5cedcde330a3579",
        64,
    ),
    TestSet(
        "sorting",
        "labels in the order of their numbers, up to 15",
        "8ea2b59fa03eac0c08e4af0ca5eacf6b841352e5035a7596146ed556de38b254",
        64,
    ),
    TestSet(
        "counting",
        "how often a letter is in a row, up to 75 letters",
        "e59fb77c57e049b89dd93e1ee0b7483927d5fe6febad1ba57dc3686a2a56dea8",
        64,
    ),
    TestSet(
        "modular-counting",
        "the length of a row modulo 3 to 10, up to 50 letters",
        "4a5c04ca7033aba6584153ce9c79c754c05c6bdace0177032135c957bc051321",
        64,
    ),
    TestSet(
        "gsm8k",
        "GSM8K: grade school problems",
        "65feaf5a82e577fb38491e4448d7982fe2a7f4655eede821651bd54b8aa09f8b",
        256,
        1,
    ),
    TestSet(
        "svamp",
        "SVAMP: short problems with variations",
        "e5896580eba3ec91f073a5f713aadec0835314affde6029c7f0f563763af4c0b",
        256,
        2,
    ),
    TestSet(
        "gsm-hard",
        "GSM-Hard: those of GSM8K with larger numbers",
        "ffa100f697b4f7d979c3af1437ae804b3e2c21930d3b13075d8c7f07ce49e733",
        256,
        3,
    ),
)


def select(names: Sequence[str] = (), data_dir: str | None = None) -> list[TestSet]:
    """The sets with these names, by default all. Raises `UserError` for a name that none has."""
    known = [test_set.name for test_set in V1]
    for name in names:
        if name not in known:
            raise UserError(f"sets: there is no set {name!r}; there are {', '.join(known)}.{did_you_mean(name, known)}")
    return [replace(one, data_dir=data_dir) for one in V1 if one.name in (names or known)]
