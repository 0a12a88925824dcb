"""Exact match and other scores on grids of cells, by kinds of evaluation; statistics."""

from numerate.catalogue import lazy_getattr

CATALOGUE = {
    "EvaluationKind": {
        "ExactMatch": "evaluation.kinds.answers",
        "GeneratedAnswers": "evaluation.kinds.generated_answers",
        "TextAnswers": "evaluation.kinds.answers",
        "TextLikelihood": "evaluation.kinds.text_likelihood",
        "TokenLabels": "evaluation.kinds.token_labels",
    }
}
__getattr__ = lazy_getattr("evaluation", CATALOGUE)
