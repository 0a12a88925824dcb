"""Promises of the metrics of texts: they are those of sacrebleu and rouge_score, and cells pool exactly."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from importlib import util

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.evaluation.answer_metrics import pooled_metrics
from numerate.evaluation.text_metrics import TEXT_METRICS, TextScores, perplexity

WORDS = st.sampled_from(
    ["the", "cat", "sat", "on", "mats", "running", "12", "1,000.5", "it's", "-3", "x.", "(a)", "&amp;"]
)
SENTENCE = st.lists(WORDS, max_size=9).map(" ".join)
CORPUS = st.lists(st.tuples(SENTENCE, SENTENCE), min_size=1, max_size=5)


def scores_of(corpus: list[tuple[str, str]]) -> TextScores:
    return TextScores.from_texts([predicted for predicted, _ in corpus], [correct for _, correct in corpus])


@given(CORPUS)
@example([("the cat sat on the mat", "the cat sat on a mat")])
@example([("a b c d e", "a x c y e")])
@example([("", "a"), ("a b", "")])
def test_bleu_and_rouge_are_those_of_the_packages(corpus: list[tuple[str, str]]) -> None:
    """Five words of six match in the first example, three pairs of five, two of four, one of three."""
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu import corpus_bleu

    predictions, references = ([pair[side] for pair in corpus] for side in (0, 1))
    metrics = scores_of(corpus).metrics()
    assert metrics["bleu"] == pytest.approx(corpus_bleu(predictions, [references], force=True).score, abs=1e-9)
    oracle = RougeScorer(["rouge1", "rougeL"])
    expected = [oracle.score(reference, predicted) for predicted, reference in corpus]
    for name in ("rouge1", "rougeL"):
        mean = sum(one[name].fmeasure for one in expected) / len(corpus)
        assert metrics[name] == pytest.approx(mean, abs=1e-12)


def test_bleu_and_rouge_by_hand() -> None:
    # Of "the cat sat on" and "the dog sat down on" three words are common, in order; no pair is.
    found = scores_of([("the cat sat on", "the dog sat down on")]).metrics()
    assert (found["rouge1"], found["rouge2"], found["rougeL"]) == pytest.approx((2 * 3 / 9, 0.0, 2 * 3 / 9))
    one, stemmed = (TextScores.from_texts(["running"], ["runs"], use_stemmer=use) for use in (False, True))
    assert (one.metrics()["rouge1"], stemmed.metrics()["rouge1"]) == (0.0, 1.0)


@given(st.lists(CORPUS, min_size=1, max_size=4))
def test_cells_taken_together_are_all_their_questions_at_once(cells: list[list[tuple[str, str]]]) -> None:
    def of(corpus: list[tuple[str, str]]) -> TextScores:
        tokens = sum(len(references) for _, references in corpus)
        return replace(scores_of(corpus), nll=0.5 * tokens, tokens=tokens, ended=len(corpus))

    whole = of([pair for cell in cells for pair in cell])
    read = [TextScores.from_record({"texts": json.loads(json.dumps(of(cell).to_record()))}) for cell in cells]
    together = TextScores.merge([scores for scores in read if scores is not None])
    assert (together.matches, together.totals) == (whole.matches, whole.totals)
    assert together.metrics() == pytest.approx(whole.metrics(), abs=1e-7)


def test_perplexity_weighs_every_token_alike() -> None:
    short, long = TextScores(count=1, nll=4.0, tokens=1), TextScores(count=1, nll=3.0, tokens=6)
    metrics = pooled_metrics([], [short, long])
    assert metrics["perplexity"] == pytest.approx(math.exp(7 / 7))
    assert metrics["perplexity (mean of modules)"] == pytest.approx((math.exp(4.0) + math.exp(0.5)) / 2)
    assert perplexity(1e6, 1) is None


def test_nothing_is_made_up_where_nothing_was_predicted() -> None:
    assert TextScores().metrics() == TextScores.from_texts([], []).metrics() == dict.fromkeys(TEXT_METRICS)
    assert scores_of([("42", "42")]).metrics()["bleu"] == 0.0, "no run of four words"
    assert TextScores.from_record({"correct": 1}) is None
    with pytest.raises(UserError, match="1 answers to 0"):
        TextScores.from_texts(["a"], [])


def test_without_the_packages_texts_are_refused_and_reading_the_module_needs_neither(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import sys, numerate.evaluation.evaluator; print({'sacrebleu', 'rouge_score', 'scipy'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    monkeypatch.setattr("numerate.evaluation.text_metrics.find_spec", lambda name: None)
    assert util.find_spec("sacrebleu") is not None
    with pytest.raises(UserError, match=r'sacrebleu and rouge_score: pip install "numerate\[text\]"'):
        TextScores.from_texts(["a"], ["a"])


def test_recorded_scores_are_read_without_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = scores_of([("a b c d e", "a b c d f"), ("x y", "x z")])
    record = {"texts": scores.to_record()}
    for name in ("sacrebleu", "sacrebleu.metrics.bleu", "rouge_score"):
        monkeypatch.setitem(sys.modules, name, None)
    again = TextScores.from_record(record)
    assert again is not None
    assert again.metrics() == pytest.approx(scores.metrics())
