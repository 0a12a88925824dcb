"""One small model that counts in three ways: up from any number, modulo 10, and ten kinds of items each for itself.

One architecture without positions (a layer of `Phasor`, 68,000 to 93,000 parameters) and one set of training settings,
trained on each task by itself up to 50 symbols, and evaluated up to 200 (items: up to 100, which is ten of each).
"""

from numerate.architectures.phasor import Phasor
from numerate.evaluation.evaluator import Evaluation
from numerate.losses.cross_entropy import CrossEntropy
from numerate.models.backbone import Stack
from numerate.models.decoder import Decoder
from numerate.published.counting_names import published_tasks
from numerate.tasks.mixture import Mixture
from numerate.tasks.task import Task
from numerate.tokenizers.layout import TokenClassification
from numerate.tokenizers.words import Words
from numerate.training.objective import Supervised
from numerate.training.optimizer import AdamW
from numerate.training.recipe import Recipe, Training
from numerate.training.schedule import WarmupStableDecay

SHIFTED = "counting_samesymbol_shiftedstart3__tr50_te200__"
MODULAR = "counting_samesymbol_mod10bos"
ITEMS = "counting_selective_10items2bos"


def counting_universal_shifted() -> Recipe:
    """Counting up from 0 to 150, trained on 50 symbols and evaluated up to 200; 100 % of unseen counts, 5 seeds."""
    return _universal("counting_universal_shifted", published_tasks()[SHIFTED].task, "50:60+65:200:5")


def counting_universal_modular() -> Recipe:
    """Counting modulo 10 after a first token, trained up to 50 symbols and evaluated up to 200, by the same model."""
    return _universal("counting_universal_modular", published_tasks()[MODULAR].task, "1:60+65:200:5")


def counting_universal_items() -> Recipe:
    """Counting ten kinds of items, trained on lists of up to 50 and evaluated up to 100, by the same model."""
    return _universal("counting_universal_items", published_tasks()[ITEMS].task, "1:100")


def counting_universal_jointly() -> Recipe:
    """All three with the same weights, trained on a third of each; task.task_index=0,1,2 evaluates one of them."""
    tasks = tuple(published_tasks()[name].task for name in (SHIFTED, MODULAR, ITEMS))
    return _universal("counting_universal_jointly", Mixture(tasks), "50:100", steps=15_000)


def _universal(title: str, task: Task, grid: str, *, steps: int = 5000) -> Recipe:
    return Recipe(
        task=task,
        tokenizer=Words(),
        layout=TokenClassification(),
        model=Decoder(hidden_size=64, backbone=Stack(num_layers=1), mixer=Phasor(exclusive=True)),
        objective=Supervised(loss=CrossEntropy(label_smoothing=0.1)),
        optimizer=AdamW(learning_rate=5e-3, betas=(0.9, 0.98), weight_decay=0.2, max_grad_norm=1.0),
        schedule=WarmupStableDecay(warmup=100, decay_start=0.6, min_lr_ratio=0.02),
        training=Training(steps=steps, batch_size=32, threads=1),
        evaluation=Evaluation(grid=grid, examples_per_cell=100),
        title=title,
        paper="counting",
    )
