"""All statistics, and when to use which.

Two kinds of uncertainty are kept apart. *Questions*: another draw of questions would give the same model another score.
*Seeds*: another seed would give another model. An interval of the first kind says nothing about the second. All
proportions are fractions from 0 to 1.

| Question | data | function |
|---|---|---|
| how well a model was measured | one cell | `wilson_interval`; `clopper_pearson_interval` for guaranteed coverage |
| the same | a region of cells | `region_mean` |
| how far two models are apart | one seed each | `newcombe_interval`; on the same questions `mcnemar_test` tests it |
| how often training succeeds | seeds | `success_rate`; `fisher_exact` tests two of them |
| what a typical seed gives | seeds | `interquartile_mean`, or the median |
| how uncertain that is | five seeds or more | `stratified_bootstrap_interval`, also over several tasks |
| whether two recipes differ | the same seeds | `paired_permutation_test`; over unlike tasks `scipy.stats.wilcoxon` |
| the same | different seeds | `permutation_test`, and `probability_of_improvement` for how often |
| any of several differences | several tests | `holm` of their p-values |
| whether seeds are enough | before training | `min_p_value` |
| combined curves | seeds | `seed_band` |
"""

from numerate.evaluation.comparisons import (
    fisher_exact,
    holm,
    mcnemar_test,
    min_p_value,
    paired_permutation_test,
    permutation_test,
    probability_of_improvement,
)
from numerate.evaluation.intervals import (
    Proportion,
    clopper_pearson_interval,
    newcombe_interval,
    region_mean,
    success_rate,
    wilson_interval,
)
from numerate.evaluation.resampling import SeedBand, interquartile_mean, seed_band, stratified_bootstrap_interval

__all__ = [
    "Proportion",
    "SeedBand",
    "clopper_pearson_interval",
    "fisher_exact",
    "holm",
    "interquartile_mean",
    "mcnemar_test",
    "min_p_value",
    "newcombe_interval",
    "paired_permutation_test",
    "permutation_test",
    "probability_of_improvement",
    "region_mean",
    "seed_band",
    "stratified_bootstrap_interval",
    "success_rate",
    "wilson_interval",
]
