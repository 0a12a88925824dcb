"""Promises of `numerate data tokenise` and `numerate tokens train-vocabulary`."""

from pathlib import Path

import pytest

from numerate.cli import main
from numerate.tasks.corpus_files import open_corpus
from numerate.text.tokenizers.stored_tokenizer import load_tokenizer

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

STORIES = [f"Once upon a time there were {n} little cats, and a dog named Tim.\nThe end." for n in range(80)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "stories.txt"
    path.write_text("\n<|endoftext|>\n".join(STORIES))
    return path


def test_a_vocabulary_is_trained_and_texts_are_written_with_it(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "tok300"
    assert main(["tokens", "train-vocabulary", str(texts), f"out={out}", "--size", "300"]) == 0
    assert "300 ids from 1 file," in capsys.readouterr().out
    assert load_tokenizer(str(out)).size == 300
    words = [str(texts), f"out={tmp_path / 'tokens'}", f"tokenizer={out}", "processes=1"]
    assert main(["data", "tokenise", *words]) == 0
    output = capsys.readouterr().out
    assert "80 documents" in output
    assert "bytes a token" in output
    corpus = open_corpus(tmp_path / "tokens", load_tokenizer(str(out)))
    assert corpus.num_documents == len(STORIES)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data tokenise", "the file or folder or dataset is missing"),
        ("data tokenise a.txt", "out: the value is missing"),
        ("data tokenise a.txt out=x", "tokenizer: the value is missing"),
        ("data tokenise a.txt out=x tokeniser=y", "'tokeniser=y' is not a known option"),
        ("data tokenise a.txt out=x tokenizer=characters processes=two", "processes: must be an integer, not 'two'"),
        ("tokens train-vocabulary TEXTS", "--size: the value is missing"),
        ("tokens train-vocabulary TEXTS size=300 out=.", "already exists"),
        ("tokens train", "there is no command 'train'; there are: train-vocabulary"),
    ],
)
def test_words_that_are_missing_or_wrong_are_reported(
    line: str, message: str, texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.replace("TEXTS", str(texts)).split()) == 2
    assert message in capsys.readouterr().err
