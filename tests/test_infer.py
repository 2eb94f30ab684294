"""infer.py as its users meet it: what it writes, and how it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import infer
from minvenus.config import InferConfig, ModelConfig
from minvenus.model import weights
from minvenus.model.qwen3 import Qwen3
from minvenus.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[1]


def test_a_run_prints_what_was_loaded_and_how_fast_and_saves_its_config_and_text(tmp_path, capsys):
    config = InferConfig(max_new_tokens=3, out=str(tmp_path / "run"))
    text = infer.main(config)
    shown = capsys.readouterr().out
    assert "492,288 parameters, random weights" in shown and "tokens/s" in shown
    assert InferConfig(**json.loads((tmp_path / "run" / "run.json").read_text())) == config
    assert json.loads((tmp_path / "run" / "output.json").read_text()) == {"question": config.question, "text": text}


def test_the_same_seed_writes_the_same_text_and_another_seed_another(tmp_path):
    texts = [infer.main(InferConfig(max_new_tokens=6, seed=seed, out=str(tmp_path))) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_a_saved_checkpoint_writes_what_the_model_in_memory_wrote(tmp_path):
    model = Qwen3(ModelConfig.preset("tiny"), seed=7)
    weights.save(model, tmp_path / "model", tokenizer_files=Tokenizer.tiny().files)
    loaded = infer.main(InferConfig(model=str(tmp_path / "model"), max_new_tokens=5, temperature=0.0, out=str(tmp_path / "run")))
    config = InferConfig(max_new_tokens=5, temperature=0.0, seed=7, out=str(tmp_path / "run"))
    assert infer.main(config) == loaded


@pytest.mark.parametrize(("argv", "words"), [
    (["--model", "tinny"], ["'tiny' or a folder with a config.json", "'tinny'"]),
    (["--max-new-tokens", "0"], ["at least 1"]),
    (["--temprature", "1"], ["unknown flag --temprature", "--temperature"]),
])
def test_a_wrong_command_line_is_one_message_and_exit_code_2(argv, words):
    done = subprocess.run([sys.executable, "infer.py", *argv], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_broken_checkpoint_is_one_message_and_exit_code_2(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(ModelConfig.preset("tiny").to_hf()))
    done = subprocess.run([sys.executable, "infer.py", "--model", str(tmp_path), "--out", str(tmp_path / "run")], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "holds neither model.safetensors" in done.stderr
