"""Promises of `numerate data tokenise` and `numerate tokens train-vocabulary`."""

from argparse import Namespace
from pathlib import Path

import pytest

from numerate.commands import corpora, tokens
from numerate.errors import UserError
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
    given = Namespace(words=["train-vocabulary", str(texts), f"out={out}"], size=300)
    assert tokens.command(given) == 0
    assert "300 ids from 1 file," in capsys.readouterr().out
    assert load_tokenizer(str(out)).size == 300
    assert corpora.tokenize([str(texts), f"out={tmp_path / 'tokens'}", f"tokenizer={out}", "processes=1"]) == 0
    output = capsys.readouterr().out
    assert "80 documents" in output
    assert "bytes a token" in output
    corpus = open_corpus(tmp_path / "tokens", load_tokenizer(str(out)))
    assert corpus.num_documents == len(STORIES)


def test_a_vocabulary_without_a_place_comes_to_the_users_data(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMERATE_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "mine").mkdir(parents=True)
    texts.rename(tmp_path / "data" / "mine" / "a.txt")
    assert corpora.train(["mine", "size=300", "kind=bytes"]) == 0
    assert load_tokenizer("tok300").size == 300


def test_separators_are_given_with_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n\n\n".join(STORIES))
    words = [str(path), f"out={tmp_path / 'out'}", "tokenizer=characters", "separator=\\n\\n\\n", "processes=1"]
    assert corpora.tokenize(words) == 0
    assert open_corpus(tmp_path / "out", load_tokenizer("characters")).num_documents == len(STORIES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the texts are missing"),
        (["a.txt"], "out: the folder is missing"),
        (["a.txt", "out=x"], "tokenizer: is missing"),
        (["a.txt", "out=x", "tokeniser=y"], "'tokeniser=y' is not a known option.*Did you mean 'tokenizer'"),
        (["a.txt", "out=x", "tokenizer=characters", "processes=two"], "processes: invalid value 'two'"),
    ],
)
def test_words_that_are_missing_or_wrong_are_reported(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        corpora.tokenize(words)


def test_words_of_training_that_are_missing_or_wrong_are_reported(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="size: is missing"):
        corpora.train([str(texts)])
    with pytest.raises(UserError, match=r"kind: invalid value 'byte' .*Did you mean 'bytes'"):
        corpora.train([str(texts), "size=300", "kind=byte"])
    with pytest.raises(UserError, match="already exists"):
        corpora.train([str(texts), "size=300", f"out={tmp_path}"])
    with pytest.raises(UserError, match=r"there is no 'train'; there is: train-vocabulary"):
        tokens.command(Namespace(words=["train"], size=None))
