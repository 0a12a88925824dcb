"""Tokenizers, number formats, and layouts, which build model inputs and targets."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "NumberFormat": {"Digits": "number_formats"},
    "TextNumberFormat": {
        "AsIs": "text.tokenizers.text_number_formats",
        "PerDigit": "text.tokenizers.text_number_formats",
        "Groups": "text.tokenizers.text_number_formats",
        "XVal": "text.tokenizers.text_number_formats",
        "RegressionTransformer": "text.tokenizers.regression_transformer",
        "FoNE": "text.tokenizers.float_formats",
        "IEEEBits": "text.tokenizers.float_formats",
    },
    "Tokenizer": {
        "Characters": "tokenizer",
        "Words": "words",
        "Subwords": "text.tokenizers.subwords",
        "TokenIds": "text.tokenizers.token_ids",
    },
    "Layout": {
        "Continuation": "layout",
        "TokenClassification": "layout",
        "Seq2Seq": "layout",
        "MaskedLM": "layout",
        "NextToken": "layout",
    },
}
__getattr__ = lazy_getattr("tokenizers", CATALOGUE)
