"""trl's update on our credit has the gradient of our own update (part of make interop).

    .venv-peer/bin/python -m tests.interop_trl

trl's GRPOTrainer gets one batch of rollouts with the advantages of docs/trl_credit.py. Its gradient
is caught before clipping and compared with that of train/update.py on the same batch.
"""

import sys
import tempfile
from pathlib import Path

from transformers import TrainerCallback

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
from trl_credit import trainer_of

from minvenus.igpo.loss import LossConfig
from minvenus.igpo.recipes import RECIPES
from minvenus.train.checkpoint import load_start
from minvenus.train.settings import IGPOConfig
from minvenus.train.update import backward, make_row

TOLERANCE = 1e-4        # of the largest entry: float32, other kernels for attention and log-probs


class Gradients(TrainerCallback):
    """Copies the gradients of the first step."""

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.of = {name: weight.grad.clone() for name, weight in model.named_parameters()}


def main() -> int:
    worst = 0.0
    for name in ("grpo", "paper", "uncentred"):
        config = IGPOConfig(
            recipe=RECIPES[name], loss=LossConfig(kl_coef=0.0), questions=4, hops=None)
        with tempfile.TemporaryDirectory() as out:
            trainer, rollouts = trainer_of(config, 1, out)
            gradients = Gradients()
            trainer.args.max_grad_norm = 0.0                    # not clipped
            trainer.add_callback(gradients)
            trainer.train()

        model, _ = load_start(config)
        rows = [*map(make_row, rollouts.batch.rollouts, rollouts.credit.advantages)]
        backward(model, rows, config)
        largest = max(weight.grad.abs().max().item() for weight in model.parameters())
        apart = 0.0
        for parameter, weight in model.named_parameters():
            apart = max(apart, (weight.grad - gradients.of[parameter]).abs().max().item())
        print(f"{name:10} largest entry of the gradient {largest:.3e}, furthest apart {apart:.1e}")
        if largest < 1e-5:
            print("nothing was trained: choose another batch")
            return 1
        worst = max(worst, apart / largest)
    print(f"trl's gradient is ours to {worst:.1e} of its largest entry ({TOLERANCE:g} allowed)")
    return int(worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
