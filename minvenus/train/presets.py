"""Named values of the training scripts' settings: `--preset NAME`. The defaults are those of the
tiny model.

    smollm2          two cores: all weights of SmolLM2-135M (`make real-model`), 1.5K context
    qwen3-0.6b       one card of 24 GB: all weights, 16K context
    qwen3-4b-lora    one card of 80 GB: adapters, 32K context; docs/scale.md has flags for 48 GB
    dr-venus-4b      eight cards of 80 GB, torchrun: the paper's settings, 200 turns, 256K context

The last three have not run on a GPU here. docs/scale.md has the memory that each needs, and
`--plan` prints it. `model` is a shape that a plan can use; a run needs --model FOLDER, and IGPO
beside it --data FILE --tools live --judge, and keys; smollm2 has an almanac as tools.
"""

# Every trajectory weighs the same. On the toy web that would weigh tokens of the few that answer at
# once 15 times as much as the others', which are 15 times longer: the tiny model would then answer
# a quarter of its questions without a search. One epoch over the release's 18,745 trajectories is
# 585 steps.
SFT_PRESETS: dict[str, dict] = {
    "tiny": {},
    "smollm2": {
        "model": "smollm2-135m",
        "steps": 100,
        "batch": 4,
        "validation": 16,
        "learning_rate": 2e-4,
        "max_tokens": 1536,
        "pack_tokens": 3072,
        "reduction": "trajectory-mean",
        "recompute": False,
    },
    "qwen3-0.6b": {
        "model": "qwen3-0.6b",
        "steps": 500,
        "batch": 32,
        "learning_rate": 1e-5,
        "max_tokens": 16_384,
        "pack_tokens": 16_384,
        "reduction": "trajectory-mean",
        "recompute": True,
    },
    "qwen3-4b-lora": {
        "model": "qwen3-4b",
        "steps": 500,
        "batch": 32,
        "learning_rate": 1e-4,
        "max_tokens": 32_768,
        "pack_tokens": 32_768,
        "reduction": "trajectory-mean",
        "recompute": True,
        "lora_rank": 32,
    },
    "dr-venus-4b": {
        "model": "qwen3-4b-thinking-2507",
        "like": "dr-venus",
        "steps": 585,
        "batch": 32,
        "learning_rate": 1e-5,
        "max_tokens": 200_000,
        "pack_tokens": 200_000,
        "reduction": "trajectory-mean",
        "recompute": True,
        "offload": True,
    },
}

# One epoch over 1,000 questions is 62 steps of 16. Adapters take about ten times the rate of all
# weights. The cache has room for 7, 8 and 1 rollouts at full length on each process; others wait.
IGPO_PRESETS: dict[str, dict] = {
    "tiny": {},
    "smollm2": {
        "model": "smollm2-135m",
        "steps": 40,
        "questions": 4,
        "group": 4,
        "learning_rate": 2e-5,
        "max_turns": 12,
        "max_turn_tokens": 96,
        "max_context": 1536,
        "max_observation_tokens": 256,
        "pages": 2048,
        "pack_tokens": 2048,
        "recompute": False,
        "save_every": 5,
    },
    "qwen3-0.6b": {
        "model": "qwen3-0.6b",
        "steps": 100,
        "questions": 8,
        "group": 8,
        "learning_rate": 1e-6,
        "max_turns": 40,
        "max_turn_tokens": 2048,
        "max_context": 16_384,
        "pages": 7168,
        "pack_tokens": 16_384,
        "recompute": True,
        "save_every": 10,
    },
    "qwen3-4b-lora": {
        "model": "qwen3-4b",
        "steps": 100,
        "questions": 8,
        "group": 8,
        "learning_rate": 1e-5,
        "max_turns": 80,
        "max_turn_tokens": 4096,
        "max_context": 32_768,
        "pages": 16_448,
        "pack_tokens": 32_768,
        "recompute": True,
        "save_every": 10,
        "lora_rank": 32,
    },
    "dr-venus-4b": {
        "model": "qwen3-4b-thinking-2507",
        "like": "dr-venus",
        "steps": 62,
        "questions": 16,
        "group": 8,
        "learning_rate": 1e-6,
        "top_p": 0.95,
        "max_turns": 200,
        "max_turn_tokens": 8192,
        "max_context": 262_144,
        "expected_context": 65_536,
        "pages": 16_512,
        "pack_tokens": 262_144,
        "recompute": True,
        "offload": True,
        "save_every": 5,
    },
}
