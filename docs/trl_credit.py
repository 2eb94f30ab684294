"""IGPO's credit in trl: steps 1 to 3 are those of train_igpo.py, trl's GRPOTrainer does the update.

    .venv-peer/bin/python docs/trl_credit.py [--steps 3]      make .venv-peer/installed makes it
"""

import sys
from contextlib import closing
from pathlib import Path

import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import train_igpo
from minvenus.igpo.advantage import token_advantages
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.recipes import RECIPES
from minvenus.model.weights import start_folder
from minvenus.train.checkpoint import load_start
from minvenus.train.settings import IGPOConfig


class IGPOTrainer(GRPOTrainer):
    """GRPO with an advantage for each token. `rollout` leaves them in `token_advantages`."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        rows = [torch.tensor(row) for row in self.token_advantages]
        batch["advantages"] = pad_sequence(rows, batch_first=True).to(batch["advantages"].device)
        return batch


class Rollouts:
    """What trl calls to get completions: rollouts of minvenus with the trainer's weights."""

    def __init__(self, config: IGPOConfig):
        self.config, prompt_format = train_igpo.with_prompt_format(config)
        self.questions = train_igpo.question_source(self.config)
        self.model, self.tokenizer = load_start(self.config)
        self.engine, self.scorer = train_igpo.load_engines(
            self.model, None, self.tokenizer, self.config)
        self.loop = train_igpo.rollout_loop(
            self.config, prompt_format, self.questions, self.engine, self.tokenizer)

    def __call__(self, prompts: list[str], trainer: IGPOTrainer) -> dict[str, list]:
        config = self.config
        weights = trainer.model.state_dict()
        self.model.load_state_dict(weights, strict=False)      # tied embeddings are in it twice
        self.engine.load_weights(self.model)
        samples = []
        step = trainer.state.global_step + 1
        for episodes in train_igpo.rollouts(self.loop, self.questions, step, config.group):
            samples += train_igpo.score_truth(self.scorer, episodes, self.tokenizer, config)
        with closing(train_igpo.grader_of(config)) as grader:
            self.batch = train_igpo.grade(samples, grader)
        self.credit = assign_credit(self.batch.samples, config.recipe)

        fields = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        trainer.token_advantages = []
        for rollout, advantages in zip(self.batch.rollouts, self.credit.advantages, strict=True):
            start = rollout.turns[0].start                     # the prompt ends here
            spans = [(turn.start, turn.end) for turn in rollout.turns]
            tokens = token_advantages(advantages, spans, len(rollout.tokens))
            trainer.token_advantages.append(tokens[start:])
            fields["prompt_ids"].append(rollout.tokens[:start])
            fields["completion_ids"].append(rollout.tokens[start:])
            fields["logprobs"].append([logprob or 0.0 for logprob in rollout.logprobs[start:]])
            fields["env_mask"].append([int(sampled) for sampled in rollout.sampled[start:]])
        outcomes = [sample.outcome for sample in self.batch.samples]
        return fields | {"outcome": outcomes}


def trainer_of(config: IGPOConfig, steps: int, out: str) -> tuple[IGPOTrainer, Rollouts]:
    rollouts = Rollouts(config)
    count = config.questions * config.group
    settings = GRPOConfig(
        out,
        max_steps=steps,
        per_device_train_batch_size=count,
        num_generations=config.group,
        learning_rate=config.learning_rate,
        beta=0.0,                          # no KL term
        loss_type="grpo",                  # mean over rollouts of token means, as in minvenus
        lr_scheduler_type="constant",
        weight_decay=config.weight_decay,
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    trainer = IGPOTrainer(
        str(start_folder(config.model)),
        lambda completions, outcome, **_: outcome,             # for trl's log of rewards
        settings,
        train_dataset=Dataset.from_dict({"prompt": ["a question of minvenus"] * count}),
        rollout_func=rollouts,
    )
    return trainer, rollouts


if __name__ == "__main__":
    steps = int(sys.argv[2]) if sys.argv[1:2] == ["--steps"] else 3
    recipe = RECIPES["uncentred"]
    trainer_of(IGPOConfig(recipe=recipe, questions=2), steps, "runs/trl")[0].train()
