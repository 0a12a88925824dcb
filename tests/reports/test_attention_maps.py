"""Promises of the page of maps: it holds what the record holds, fetches nothing, and no text can break it."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerate.errors import OperationalError
from numerate.reports import attention_maps
from numerate.reports.attention_maps import maps_content, maps_page, summarize_heads
from numerate.reports.map_records import pack_weights, read_map, token_label, unpack_weights
from numerate.reports.page import write_run_report


def record(prompt: str = "1+2=", tokens: tuple[str, ...] = ("1", "+", "2", "=")) -> dict[str, Any]:
    count = len(tokens)
    even = np.tril(np.ones((1, count, count))) / np.arange(1, count + 1)[:, None]
    own = np.eye(count)[None]
    maps = [
        {"map_type": "attention", **pack_weights(np.concatenate([even, own]))},
        {"map_type": "relations", **pack_weights(np.tril(-2.0 * np.ones((1, count, count))))},
        {"map_type": "symbols", **pack_weights(np.full((1, count, 5), 0.2))},
    ]
    data = {"format": 1, "prompt": prompt, "tokens": list(tokens), "source": None, "answer_start": None}
    data |= {"checkpoint": "final", "step": 10, "position_offset": 0, "settings": {}}
    return data | {"layers": [{"name": "layer 0", "layer": 0, "loop": 0, "component": "", "maps": maps}]}


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 5), (2, 4, 7), (1, 0, 3)])
def test_what_is_packed_comes_back_to_four_digits(shape: tuple[int, ...]) -> None:
    draws = np.random.default_rng(0)
    for weights in (draws.random(shape), np.tril(draws.normal(size=shape) * 7), np.zeros(shape)):
        back = unpack_weights(pack_weights(weights))
        assert back.shape == shape
        assert np.abs(back - weights).max(initial=0) <= np.abs(weights).max(initial=0) / 4000
        assert not back[weights == 0].any()  # 0 is exact
    assert pack_weights(np.array([[[1.0, 0.0], [0.5, 0.5]]]))["data"] == "/+f/f/"


def test_heads_in_words_say_over_how_many_they_spread_and_where_the_last_token_looks() -> None:
    even, own, relation, symbols = summarize_heads(record())
    assert even.effective_keys == pytest.approx(np.exp(np.mean(np.log([1, 2, 3, 4]))), rel=1e-3)
    assert even.top_keys[0] == ("1 (0)", pytest.approx(0.25, abs=1e-3))
    assert own.effective_keys == pytest.approx(1)
    assert own.top_keys == (("= (3)", 1.0),)
    assert relation.effective_keys is None
    assert relation.top_keys[0] == ("1 (0)", -2.0)
    assert (symbols.map_type, symbols.top_keys[0][0]) == ("symbols", "symbol 0")


@pytest.mark.parametrize(("order", "words"), [("reversed", "read and written"), ("answer_reversed", "of the answer")])
def test_digits_in_reverse_order_are_noted(order: str, words: str) -> None:
    assert f"Numbers {'are ' * (order == 'reversed')}{words}" in maps_page(record() | {"digit_order": order}, "adding")
    assert "reverse order" not in maps_page(record() | {"digit_order": "normal"}, "adding")


def test_a_page_fetches_nothing_and_no_prompt_can_break_it() -> None:
    evil = '</script><script>alert("&")</script>\u2028'
    page = maps_page(record(evil, (evil, "\n", " ", "▁a")), "adding")
    assert len(re.findall("<script", page)) == 2
    assert "http" not in page
    held = re.search(r'id="maps-data">(.*?)</script>', page, re.DOTALL)
    assert held is not None
    (labelled,) = json.loads(held[1])["records"]
    assert labelled["tokens"] == [evil.replace(" ", "␣"), "↵", "␣", "␣a"]
    assert token_label("") == "∅"


def test_the_report_of_a_run_draws_its_records_and_says_which_are_damaged_or_too_many(
    make_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run("abacus", lambda n: 1.0)
    assert maps_content(folder) == []
    (folder / "maps").mkdir()
    for name in ("a", "b"):
        (folder / "maps" / f"{name}.json").write_text(json.dumps(record(name)))
    corrupted = folder / "maps" / "c.json"
    corrupted.write_text(json.dumps(record())[:-40])
    with pytest.raises(OperationalError, match=r"^maps/c.json: cannot be read"):
        read_map(corrupted)
    page = write_run_report(folder).read_text()
    assert page == write_run_report(folder).read_text()
    assert "Attention and relations" in page
    assert "maps/c.json: cannot be read" in page
    assert '"prompt":"a"' in page
    assert '"prompt":"b"' in page
    monkeypatch.setattr(attention_maps, "MAX_CHARACTERS", 150)
    assert "1 of 2 prompts are too large" in str(maps_content(folder)[-1])


def test_the_script_is_understood_by_an_engine() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no engine for scripts is here")
    subprocess.run([node, "--check", str(Path(attention_maps.__file__).parent / "assets/maps.js")], check=True)
