"""Statistics in one place: which number answers which question, and all of them by name.

Two kinds of uncertainty are kept apart. *Questions*: another draw of questions would give the same model another
score. *Seeds*: another seed would give another model. An interval of the first kind says nothing about the second. All
shares are fractions from 0 to 1.

| To say | of | take |
|---|---|---|
| how well a model was measured | one cell | `wilson`; `clopper_pearson` where a claim must hold for certain |
| the same | a region of cells | `region_mean` |
| how far two models are apart | one seed each | `difference`; on the same questions `mcnemar` tests it |
| how often training succeeds | seeds | `success_rate`; `fisher_exact` tests two of them |
| what a typical seed gives | seeds | `median_spread`, `interquartile_mean` |
| how far that might move | five seeds or more | `bootstrap_interval`; over several tasks `stratified_bootstrap` |
| whether two recipes differ | the same seeds | `paired_permutation`; over tasks of unlike scales `signed_rank` |
| the same | other seeds each | `permutation`, and `probability_of_improvement` for how often |
| any of several differences | several tests | `holm` of their p-values |
| whether seeds are enough | before training | `smallest_p` |
| curves of seeds as one | seeds | `seeds_band` |
"""

from numerate.evaluation.comparisons import (
    fisher_exact,
    holm,
    mcnemar,
    paired_permutation,
    permutation,
    probability_of_improvement,
    sign_test,
    signed_rank,
    smallest_p,
)
from numerate.evaluation.intervals import (
    Proportion,
    binomial_tail,
    clopper_pearson,
    difference,
    region_mean,
    success_rate,
    wilson,
)
from numerate.evaluation.resampling import (
    Band,
    SeedSpread,
    bootstrap_interval,
    interquartile_mean,
    median_spread,
    seeds_band,
    stratified_bootstrap,
)

__all__ = [
    "Band",
    "Proportion",
    "SeedSpread",
    "binomial_tail",
    "bootstrap_interval",
    "clopper_pearson",
    "difference",
    "fisher_exact",
    "holm",
    "interquartile_mean",
    "mcnemar",
    "median_spread",
    "paired_permutation",
    "permutation",
    "probability_of_improvement",
    "region_mean",
    "seeds_band",
    "sign_test",
    "signed_rank",
    "smallest_p",
    "stratified_bootstrap",
    "success_rate",
    "wilson",
]
