"""Dual attention against Transformers on real stories, at a laptop's size."""

from numerate import recipes
from numerate.studies.study import Study, comparison_study

SEEDS = 3
"""Seeds of each model."""


def tiny_stories_laptop() -> Study:
    """Dual attention and Transformers equal to it in width and depth, in parameters, and in time; three seeds each."""
    return comparison_study(
        "tiny_stories_laptop",
        "Does dual attention model stories better than a Transformer: of equal width and depth, with equally many "
        "parameters, and in equal time?",
        {
            recipes.tiny_stories_laptop_dual: "dual attention",
            recipes.tiny_stories_laptop_width: "Transformer, equal width and depth",
            recipes.tiny_stories_laptop_parameters: "Transformer, equal parameters",
            recipes.tiny_stories_laptop_time: "Transformer, equal time",
        },
        seeds=SEEDS,
        missing_files_hint="`numerate data prepare tiny_stories_2048` creates them",
    )
