"""Tokenizers, number formats, and layouts, which build model inputs and targets."""

from numerate.catalogue import lazily

CATALOGUE = {
    "NumberFormat": {"Digits": "numbers"},
    "TextNumberFormat": {
        "AsIs": "text_spellings",
        "PerDigit": "text_spellings",
        "Groups": "text_spellings",
        "XVal": "text_spellings",
        "RegressionTransformer": "regression_transformer",
        "FoNE": "fone",
        "IEEEBits": "ieee",
    },
    "Tokenizer": {"Characters": "tokenizer", "Words": "words", "Subwords": "subwords", "TokenIds": "token_ids"},
    "Layout": {
        "Continuation": "layout",
        "TokenClassification": "layout",
        "Seq2Seq": "layout",
        "Masked": "layout",
        "NextToken": "layout",
    },
}
__getattr__ = lazily("tokens", CATALOGUE)
