"""Promises of number tokens: what an id decodes to says what it is, whatever the tokenizer calls it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from numerate.errors import UserError
from numerate.integrations.hf_number_tokens import Coverage, number_tokens
from numerate.vocabulary import DIGIT, NUMBER, POINT, SIGN, SPECIAL, TEXT

tokenizers = pytest.importorskip("tokenizers", reason="the extra huggingface")
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers  # noqa: E402


def words(tokens: Sequence[str], space: str = "") -> Any:
    """A tokenizer of whole words with these tokens; `space="▁"` marks spaces as SentencePiece does."""
    found = Tokenizer(models.WordLevel({token: i for i, token in enumerate(["<unk>", *tokens])}, unk_token="<unk>"))
    found.add_special_tokens(["<unk>"])
    if space:
        found.pre_tokenizer = pre_tokenizers.Metaspace(replacement=space)
        found.decoder = decoders.Metaspace(replacement=space)
    else:
        found.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
        found.decoder = decoders.Fuse()
    return found


def byte_level(merges: Sequence[tuple[str, str]]) -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *("".join(pair) for pair in merges)]
    found = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, list(merges)))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    return found


def test_a_digit_is_a_digit_with_any_mark_of_a_space_before_it() -> None:
    tokenizer = words(["▁a", "▁5", "5", "▁17"], "▁")
    found = number_tokens(tokenizer)
    assert found.values == {2: 5.0, 3: 5.0}
    assert found.token_texts == ("<unk>", " a", " 5", "5", " 17")
    assert found.token_kinds.tolist() == [SPECIAL, TEXT, DIGIT, DIGIT, NUMBER]
    assert found.has_leading_space.tolist() == [False, True, True, False, True]

    tokenizer = byte_level([("Ġ", "7"), ("4", "2"), ("Ġ", "42")])
    ids = tokenizer.get_vocab()
    found = number_tokens(tokenizer)
    assert found.values == {**{ids[digit]: float(digit) for digit in "0123456789"}, ids["Ġ7"]: 7.0}
    assert found.has_leading_space[ids["Ġ7"]]
    assert not found.has_leading_space[ids["7"]]
    numbers = number_tokens(tokenizer, which="numbers").values
    assert {i: numbers[i] for i in set(numbers) - set(found.values)} == {ids["42"]: 42.0, ids["Ġ42"]: 42.0}


def test_marks_of_spaces_are_seen_through_where_a_tokenizer_has_no_decoder() -> None:
    tokenizer = Tokenizer(models.WordLevel({"▁5": 0, "Ġ6": 1, "7": 2, "a": 3}, unk_token="a"))
    assert number_tokens(tokenizer).values == {0: 5.0, 1: 6.0, 2: 7.0}


UNLIKE = ["inf", "nan", "Infinity", "1e5", "1_000", "1,000", "5%", "$5", "0x1", "--5", "1.2.3", "1.", ".", "9" * 400]


@pytest.mark.parametrize("text", [*UNLIKE, "\uff11", "\u0663", "\u00b2"])
def test_what_python_or_unicode_takes_for_a_number_is_none(text: str) -> None:
    found = number_tokens(words(["a", "0", text]), which="numbers")
    assert found.values == {2: 0.0}
    assert found.token_kinds[3] in (TEXT, POINT)


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("-5", -5), ("+4", 4), (".5", 0.5), ("3.25", 3.25), ("007", 7)]
)
def test_numbers_of_several_characters_count_when_requested(text: str, value: float) -> None:
    tokenizer = words(["a", "0", text])
    assert number_tokens(tokenizer, which="numbers").values == {2: 0.0, 3: value}
    found = number_tokens(tokenizer)
    assert found.values == {2: 0.0}
    assert found.token_kinds[3] == NUMBER


def test_signs_points_and_special_tokens_are_named() -> None:
    tokenizer = words(["a", "5", "+", "-", ".", "−"])  # noqa: RUF001
    tokenizer.add_special_tokens(["8"])
    found = number_tokens(tokenizer)
    assert found.token_kinds.tolist() == [SPECIAL, TEXT, DIGIT, SIGN, SIGN, POINT, TEXT, SPECIAL]
    assert found.values == {2: 5.0}


def test_a_vocabulary_of_digits_alone_needs_no_letter_to_stand_before_them() -> None:
    tokenizer = Tokenizer(models.WordLevel({digit: i for i, digit in enumerate("0123456789")}, unk_token="?"))
    found = number_tokens(tokenizer)
    assert found.values == {i: float(i) for i in range(10)}
    with pytest.raises(UserError, match="does not read this sample"):
        found.coverage(["one 1"])


def test_an_override_has_the_last_word() -> None:
    tokenizer = words(["a", "5", "6", "half"])
    found = number_tokens(tokenizer, override={4: 0.5, 3: None, 900: 7})
    assert found.values == {2: 5.0, 4: 0.5, 900: 7.0}
    assert number_tokens(words(["a", "b"]), override={1: 3}).values == {1: 3.0}
    for wrong, message in (({-1: 2.0}, "not -1"), ({"5": 2.0}, "not '5'"), ({2: float("inf")}, "finite")):
        with pytest.raises(UserError, match=message):
            number_tokens(tokenizer, override=wrong)


def test_a_tokenizer_without_numbers_is_refused_in_plain_words() -> None:
    with pytest.raises(UserError, match="none of its 3 ids decodes to a digit; take one"):
        number_tokens(words(["a", "b"]))
    with pytest.raises(UserError, match="which='numbers' takes them"):
        number_tokens(words(["a", "12"]))
    with pytest.raises(UserError, match=r"tokenizer: must be a tokenizer of transformers .* not a str"):
        number_tokens("t5-small")
    with pytest.raises(UserError, match="which: must be one of digits, numbers, not"):
        number_tokens(words(["5"]), which="all")  # type: ignore[arg-type]


def test_a_tokenizer_is_left_as_it_is_and_texts_are_read_whole() -> None:
    tokenizer = words(["a", "1", "2", "3", "4"])
    tokenizer.enable_truncation(2, stride=1)
    tokenizer.enable_padding(length=9)
    before = tokenizer.to_str()
    coverage = number_tokens(tokenizer).coverage(["1234a1234"])
    assert (coverage.num_digits, coverage.num_covered_digits) == (8, 8)
    assert tokenizer.to_str() == before


def test_coverage_says_which_share_of_the_digits_is_covered_and_warns_of_a_low_one() -> None:
    tokenizer = words(["▁a", "▁5", "▁17", "▁2019"], "▁")
    found = number_tokens(tokenizer)
    with pytest.warns(UserWarning, match=r"33\.3 % of the digit characters .* which='numbers'"):
        coverage = found.coverage(["a 5 17", "5 17 a"])
    assert coverage == Coverage(6, 2, ((" 17", 2),))
    assert number_tokens(tokenizer, which="numbers").coverage(["a 5 17"]).covered_fraction == 1
    with pytest.warns(UserWarning, match=r"20\.0 %"):
        found.coverage("5 2019")  # one text
    with pytest.warns(UserWarning, match=r"50\.0 %"):
        assert number_tokens(words(["a", "1"])).coverage(["1a8"]).num_digits == 2, "8 is unknown to the tokenizer"
    rewriting = words(["a", "5"])
    rewriting.normalizer = normalizers.NFKC()
    assert number_tokens(rewriting).coverage(["\uff15"]).covered_fraction == 1
    assert str(number_tokens(words(["a", "1"])).coverage(["aaa"])) == "this sample has no digit characters"


def test_slow_and_fast_tokenizers_of_transformers_are_read_alike() -> None:
    transformers = pytest.importorskip("transformers", reason="the extra huggingface")
    slow = transformers.ByT5Tokenizer(extra_ids=3)
    assert not slow.is_fast
    found = number_tokens(slow)
    assert found.values == {ord(digit) + 3: float(digit) for digit in "0123456789"}
    assert found.token_kinds[0] == SPECIAL
    assert found.coverage(["What is 12 + 34?"]) == Coverage(4, 4)

    plain = words(["a", "5", "<s>"])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>")
    assert number_tokens(fast).values == number_tokens(plain).values
    assert number_tokens(fast).token_kinds.tolist() == [SPECIAL, TEXT, DIGIT, SPECIAL]


def test_numbers_of_t5_are_what_it_decodes_them_to(shared: Path) -> None:
    tokenizer = Tokenizer.from_file(str(shared / "data" / "tokenizers" / "t5-small" / "tokenizer.json"))
    found = number_tokens(tokenizer)
    assert (found.values[305], found.token_texts[305]) == (5.0, " 5")
    assert (found.values[755], found.token_texts[755]) == (5.0, "5")
    assert len(found.values) == 19  # there is no `▁0`
    numbers = number_tokens(tokenizer, which="numbers").values
    assert all(float(tokenizer.decode([i])) == value for i, value in numbers.items())
    missed = [i for i, piece in enumerate(found.token_texts) if piece.strip().isascii() and piece.strip().isdigit()]
    assert set(missed) <= set(numbers)
    with pytest.warns(UserWarning, match=r"; not those of ' 12'"):
        assert found.coverage(["12 + 30 = 42"]).covered_fraction < 0.5


def test_numbers_of_gpt2_are_found_with_and_without_their_space(shared: Path) -> None:
    folder = shared / "data" / "tokenizers" / "gpt2"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.decoder = decoders.ByteLevel()
    found = number_tokens(tokenizer)
    assert sorted(found.values.values()) == sorted(2 * [float(digit) for digit in range(10)])
    numbers = number_tokens(tokenizer, which="numbers").values
    assert (numbers[10163], numbers[1105], len(numbers)) == (123.0, 12.0, 1691)


def test_finding_number_tokens_needs_no_torch() -> None:
    program = (
        "import sys, numerate; from tokenizers import Tokenizer, models\n"
        "t = Tokenizer(models.WordLevel({'a': 0, '5': 1}, unk_token='a'))\n"
        "assert numerate.number_tokens(t).values == {1: 5.0}\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
