"""How quickly short texts become tokens, with each spelling of numbers.

    python benchmarks/tokenising.py --tokenizer FOLDER [--texts FILE] [--repetitions 40]

One JSON line per spelling: 256 questions of up to 80 characters, every repetition with numbers that were never seen
before, so that nothing is remembered. The claim is under 5 ms for AsIs, PerDigit, RegressionTransformer and XVal; the
Python tokenizers of the published number token loss take 27 (as is), 74 (per digit), 184 (regression transformer) and
127 ms (xVal) for as many short texts, on another machine. Times are processor time of one thread; `ratio` is to the
tokenizer alone, its `encode_batch` and the lists of ids, and `as_rows` is with the rows that a layout takes.

`--tokenizer` is a folder with a tokenizer.json, such as that of T5. `--texts` is a file whose lines are taken instead
of the built-in questions, in turn.
"""

import argparse
import json
import os
import random
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one thread, before the library is there

from numerate.tasks.texts import Example
from numerate.text.tokenizers import hf_vocabulary as foreign
from numerate.text.tokenizers import tokenizer_files
from numerate.text.tokenizers.float_formats import FoNE, IEEEBits
from numerate.text.tokenizers.regression_transformer import RegressionTransformer
from numerate.text.tokenizers.subwords import Subwords
from numerate.text.tokenizers.text_number_formats import AsIs, Groups, PerDigit, TextNumberFormat, XVal
from numerate.tokenizers.tokenizer import TokenizedExamples
from numerate.vocabulary import Vocabulary

ROWS = 256
CLAIMED = 5.0
SHAPES = (
    "Solve -1467*v + 1502*v = -1050 for v.",
    "What is 7.25 - 301.4?",
    "Round 93821.0071 to the nearest 100.",
    "Calculate -841 + 0.19.",
    "What is the hundreds digit of 52918?",
    "Let p be 3*(-14)/(-6). What is 8 times p?",
)
SPELLINGS: tuple[TextNumberFormat, ...] = (
    AsIs(),
    PerDigit(),
    RegressionTransformer(),
    XVal(),
    Groups(3, "right"),
    FoNE(),
    IEEEBits(),
)


def texts(shapes: tuple[str, ...], rng: random.Random) -> list[str]:
    """Questions with every digit drawn anew."""
    drawn = (re.sub("[1-9]", lambda _: rng.choice("123456789"), shapes[i % len(shapes)]) for i in range(ROWS))
    return [text[:80] for text in drawn]


def median(work: Callable[[list[str]], object], repetitions: int, shapes: tuple[str, ...]) -> tuple[float, float]:
    """The median and the least time, in milliseconds."""
    rng, taken = random.Random(0), []
    for _ in range(repetitions + 3):
        drawn = texts(shapes, rng)
        begun = time.process_time()
        work(drawn)
        taken.append((time.process_time() - begun) * 1e3)
    return statistics.median(taken[3:]), min(taken[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--texts")
    parser.add_argument("--repetitions", type=int, default=40)
    told = parser.parse_args()
    shapes = tuple(Path(told.texts).read_text().splitlines()) if told.texts else SHAPES
    own = foreign.load_fast_tokenizer(tokenizer_files.load_tokenizer_file(told.tokenizer), AsIs()).hf_tokenizer
    alone, least = median(
        lambda drawn: [one.ids for one in own.encode_batch(drawn, add_special_tokens=False)], told.repetitions, shapes
    )
    print(json.dumps({"what": "the tokenizer alone", "milliseconds": round(alone, 2), "least": round(least, 2)}))
    for number_format in SPELLINGS:
        tokenizer = Subwords(tokenizer=told.tokenizer, number_format=number_format)
        speller = tokenizer.fast_tokenizer
        found, least = median(speller.encode, told.repetitions, shapes)
        vocabulary = tokenizer.build_vocabulary([])

        def rows(
            drawn: list[str], tokenizer: Subwords = tokenizer, vocabulary: Vocabulary = vocabulary
        ) -> TokenizedExamples:
            return tokenizer.encode_examples([Example(text, "") for text in drawn], vocabulary)

        written, _ = median(rows, told.repetitions, shapes)
        line = {"what": repr(number_format), "milliseconds": round(found, 2), "least": round(least, 2)}
        line |= {"as_rows": round(written, 2), "ratio": round(found / alone, 2)}
        if isinstance(number_format, AsIs | PerDigit | RegressionTransformer | XVal):
            line["at_most"] = CLAIMED
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
