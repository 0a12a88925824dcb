"""Tokens outside of spans of a text."""

from numerate.integrations.text_spans import tokens_outside


def test_a_span_excludes_every_token_that_it_touches() -> None:
    texts = ["a", "12", "34", "", "b"]
    spans = {"touched": (2, 4), "between": (3, 3)}
    outside = {
        name: tokens_outside(lambda text, span=span: [span], [0, 1, 2, 3, 4], texts) for name, span in spans.items()
    }
    assert outside["touched"] == [True, False, False, True, True]
    assert outside["between"] == [True] * 5
