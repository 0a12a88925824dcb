"""Promises of vocabularies of one's own: a function of the texts, of the requested size, and every text comes back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numerate.errors import UserError
from numerate.text.data.vocabularies import save_vocabulary, train_vocabulary
from numerate.text.tokenizers.stored_tokenizer import PretrainedTokenizer, load_tokenizer

pytest.importorskip("tokenizers", reason="the extra huggingface has it")

TEXTS = tuple(
    f'Once upon a time, there were {n} little cats.\n\nThe {n + 7} cats said: "Where is the caf\u00e9 of Lily?"'
    for n in range(50)
)


def texts() -> tuple[str, ...]:
    return TEXTS


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> PretrainedTokenizer:
    folder = tmp_path_factory.mktemp("vocabulary") / "known"
    return load_tokenizer(str(save_vocabulary(train_vocabulary(texts, 300), folder)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=20), st.text("aeilt \n0123<s>/\u2019\u00e9", max_size=30)))
def test_every_text_comes_back(known: PretrainedTokenizer, text: str) -> None:
    text = text.replace("\u2581", "_")  # which is a space to SentencePiece
    assert known.decode(known.encode([text])[0]) == text


def test_each_digit_is_a_token_and_special_names_in_texts_are_text(known: PretrainedTokenizer) -> None:
    with_digits, without = (len(known.encode([f"a{middle}b"])[0]) for middle in ("2024", ""))
    assert with_digits - without >= 4
    for name in ("<s>", "</s>", "<|endoftext|>", "<0x41>"):
        assert not set(known.encode([name])[0].tolist()) & set(known.special_token_ids.values())


def test_the_layout_of_ids_is_that_of_llama(tmp_path: Path) -> None:
    stored = json.loads(train_vocabulary(texts, 300))
    ids = stored["model"]["vocab"]
    assert [ids[name] for name in ("<unk>", "<s>", "</s>", "<0x00>", "<0xFF>")] == [0, 1, 2, 3, 258]
    assert {*"0123456789"} <= set(ids)
    assert max(map(len, set(ids) - {f"<0x{byte:02X}>" for byte in range(256)})) <= 16
    assert [token["content"] for token in stored["added_tokens"]] == ["<unk>", "<s>", "</s>"]


def test_it_is_a_function_of_the_texts() -> None:
    program = f"""
import hashlib, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_vocabularies import texts
from numerate.text.data.vocabularies import train_vocabulary
print(hashlib.sha256(train_vocabulary(texts, 300).encode()).hexdigest())
"""
    each = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    ]
    assert each[0] == each[1]


def test_rare_characters_are_bytes_where_there_is_no_room(tmp_path: Path) -> None:
    many = ["".join(map(chr, range(0x4E00, 0x4E00 + 500))), *TEXTS, *TEXTS]
    known = load_tokenizer(str(save_vocabulary(train_vocabulary(lambda: many, 300), tmp_path / "v")))
    assert known.size == 300
    assert len(known.encode(["\u4e00"])[0]) == 4  # the space before a text, and three bytes
    assert known.decode(known.encode(["\u4e00"])[0]) == "\u4e00"


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(UserError, match=r"size: must be at least 275 .*, not 200"):
        train_vocabulary(texts, 200)
    with pytest.raises(UserError, match=r"size: the texts are too short for 5,000 ids; they give \d+"):
        train_vocabulary(lambda: ["ab ab"], 5000)
    assert len(json.loads(train_vocabulary(lambda: ["ab ab"], 5000, allow_fewer=True))["model"]["vocab"]) < 280
