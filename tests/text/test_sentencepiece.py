"""Promises of SentencePiece models: their ids are those that the package sentencepiece gives, without it."""

import random
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import published_case
from numerate.errors import UserError
from numerate.text.tokenizers.sentencepiece_files import build_merges, load_sentencepiece
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer
from numerate.text.tokenizers.tokenizer_files import TokenizerFile

pytest.importorskip("tokenizers", reason="the extra huggingface has it")


def number(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])


def field(which: int, content: bytes) -> bytes:
    return number(which << 3 | 2) + number(len(content)) + content


def model(pieces: list[tuple[str, int]], kind: int = 2, prefix: bool = True) -> bytes:
    """A SentencePiece model by hand, as its protocol says: pieces with type, scores falling."""
    import struct

    whole = b"".join(
        field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", -float(place)) + b"\x18" + number(type_))
        for place, (name, type_) in enumerate(pieces)
    )
    return whole + field(2, b"\x18" + number(kind)) + field(3, b"\x18" + bytes([prefix]) + b"\x20\x00")


SPECIAL = [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<0x0A>", 6)]
BASIC = [*SPECIAL, *((name, 1) for name in ("\u2581a", "ab", "\u2581", "a", "b"))]


@pytest.fixture(scope="session")
def mistral(shared: Path) -> PretrainedTokenizer:
    return load_tokenizer(str(shared / "data/tokenizers/mistral/tokenizer.model.v1"))


def test_a_model_by_hand_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model(BASIC))
    known = load_tokenizer(str(tmp_path))  # a folder that has one
    assert (known.size, known.special_token_ids) == (9, {"unk": 0, "bos": 1, "eos": 2})
    ids = known.encode(["ab", "aab\n", "", "<s>c"])
    assert [ids[0].tolist(), ids[1].tolist()] == [[4, 8, 4, 5, 3, 6, 0], [2, 3, 0, 2]]
    assert known.decode([1, 4, 8, 6, 5, 2]) == "ab ab"
    path.write_bytes(model([*BASIC, ("[INST_7]", 3)]))
    assert load_tokenizer(str(tmp_path)).decode([4, 9, 8]) == "ab"


def test_merges_are_ranked_by_the_score_of_what_they_make() -> None:
    pieces = [("a", -3.0), ("b", -4.0), ("ab", -2.0), ("bb", -1.0), ("abb", -1.5)]
    assert build_merges(pieces) == [["b", "b"], ["a", "bb"], ["ab", "b"], ["a", "b"]]


def test_the_open_mistral_tokenizer_writes_what_sentencepiece_does(mistral: PretrainedTokenizer) -> None:
    ids, lengths = mistral.encode(["x ", "  x", "", " 42 caf\u00e9 <s> a   b\n\nx\tz\U0001f600"])
    by_sentencepiece = [259, 28781, 28750, 28345, 523, 28713, 28767, 264, 259, 287, 13, 13, 28744, 12, 28764, 30575]
    assert lengths.tolist() == [2, 2, 0, 16]
    assert ids.tolist() == [1318, 28705, 259, 1318, *by_sentencepiece]
    assert (
        mistral.size,
        mistral.document_start_id,
        mistral.special_token_ids["eos"],
        mistral.special_token_ids["unk"],
    ) == (32_000, 1, 2, 0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of its SWIG, when it is imported
def test_ids_are_those_of_the_package_sentencepiece(mistral: PretrainedTokenizer, shared: Path) -> None:
    package = pytest.importorskip("sentencepiece", reason="an oracle, never a dependency")
    theirs = package.SentencePieceProcessor(model_file=str(shared / "data/tokenizers/mistral/tokenizer.model.v1"))
    draw = random.Random(0)
    characters = "aabbnntteeo  \u2581\n\t\u00e9\U0001f6000123<s></s>'\".,\ufb01\u00a0\u3000\u4e2d"
    texts = ["".join(draw.choices(characters, k=draw.randint(0, 30))) for _ in range(2000)]
    stories = (shared / "data/tinystories/czhou578_train-gpt2/val.decoded.txt").read_text(encoding="utf-8")
    texts += [story.strip() for story in stories[:300_000].split("<|endoftext|>")]
    ids, lengths = mistral.encode(texts)
    expected = theirs.encode(texts)
    assert lengths.tolist() == [len(one) for one in expected]
    assert ids.tolist() == [i for one in expected for i in one]


def test_the_published_texts_come_back_from_the_open_tokenizer(shared: Path, mistral: PretrainedTokenizer) -> None:
    case = published_case(shared, "dual_attention.json", "llama_sentencepiece_ids")
    assert (mistral.size, mistral.document_start_id) == (case["config"]["vocab"], case["config"]["bos"])
    for text, expected in zip(case["inputs"]["texts"], case["expected"]["ids"], strict=True):
        ids = mistral.encode([text])[0]
        assert mistral.decode(ids) == text
        assert len(ids) < len(expected), "it has as many tokens as Llama's, or fewer"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (model(BASIC)[:-30], "no whole SentencePiece model"),
        (model([*BASIC, ("\n\n", 4)]), "has user-defined pieces"),
        (model(BASIC, kind=4), "must be a SentencePiece model of type BPE or Unigram"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "some.model"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as raised:
        load_sentencepiece(path)
    assert "some.model" in str(raised.value)


def test_a_tokenizer_without_begin_and_end_is_refused_for_documents(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model([("<unk>", 2), ("a", 1)]))
    known = load_tokenizer(str(path))
    known.special_token_ids.pop("bos", None)
    with pytest.raises(UserError, match="no token that begins a text"):
        _ = known.document_start_id


@given(st.lists(st.text("ab\u2581 \n<s>c\t1", max_size=15), max_size=6))
def test_words_that_are_looked_up_are_cut_as_the_library_cuts_them(texts: list[str]) -> None:
    file = by_hand()
    known = PretrainedTokenizer(file)
    assert known._word_cache is not None
    for _ in range(2):  # cut, then looked up
        ids, lengths = known.encode(texts)
        whole = [one.ids for one in known._text_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        assert ids.tolist() == [i for one in whole for i in one]
        assert lengths.tolist() == list(map(len, whole))


@lru_cache
def by_hand() -> TokenizerFile:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.model"
        path.write_bytes(model([*BASIC, ("\u2581\u2581", 1), ("\u2581ab", 1), ("1", 1)]))
        return load_sentencepiece(path)
