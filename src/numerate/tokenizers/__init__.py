"""Tokenizers, number formats, and layouts, which build model inputs and targets."""

from numerate.catalogue import lazily

CATALOGUE = {
    "NumberFormat": {"Digits": "number_formats"},
    "TextNumberFormat": {
        "AsIs": "text_number_formats",
        "PerDigit": "text_number_formats",
        "Groups": "text_number_formats",
        "XVal": "text_number_formats",
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
__getattr__ = lazily("tokenizers", CATALOGUE)
