r"""The files beside the weights of a checkpoint: what transformers, vLLM and llama.cpp's converter
need to read our stream and to stop where it stops.

    tokenizer.json, vocab.json, ...   copied from the start checkpoint
    tokenizer_config.json             the start's, or a new one; its end token and its chat template
                                      are ours
    generation_config.json            the start's, or Qwen3's sampling; a turn ends at im_end and
                                      end_of_text

A model that was trained here reads the stream of chat.py, so a chat template of the start
checkpoint is not kept: it may render another stream (that of Qwen3's hybrid models opens no thought
in the generation prompt, and drops thoughts before a new question). Ours renders any number of
turns with all their thoughts. For the messages that chat.stream takes it gives chat.stream's ids,
with the exceptions that chat.py names: text that spells an added token, and a thought that begins
with spaces and a newline. Calls and results are written into the messages, as in chat.stream, and
the tools are described in the system prompt: OpenAI's `tools`, `tool_calls` and role `tool` are
refused.
"""

from pathlib import Path

from minvenus.config import read_json

# What transformers reads beside tokenizer.json; none of it is needed here
COPIED = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")
# Qwen3's published defaults
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "unk_token": None,
    "pad_token": "<|endoftext|>",
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 2**31 - 1,
}

CHAT_TEMPLATE = r"""{%- for message in messages %}
    {%- if tools or message.tool_calls or message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('tools, calls and results must be text of system, assistant and user '
                            + 'messages') }}
    {%- endif %}
    {{- '' if loop.first else '\n' }}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\n') %}
        {{- '<think>\n' + thought + '\n</think>\n\n' }}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- text + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\n<|im_start|>assistant\n<think>\n' }}
{%- endif %}"""


def companions(tokenizer: Path, added: list[dict]) -> dict[str, Path | dict]:
    """Name in a folder -> file to copy, or JSON object to write, for a tokenizer.json with these
    added tokens. The start checkpoint's files lie beside the tokenizer's."""
    files: dict[str, Path | dict] = {"tokenizer.json": tokenizer}
    for name in COPIED:
        file = tokenizer.with_name(name)
        if file.is_file():
            files[name] = file

    special = [token["content"] for token in added if token.get("special")]
    settings = SETTINGS | {"additional_special_tokens": special}
    start_settings = tokenizer.with_name("tokenizer_config.json")
    if start_settings.is_file():
        settings = read_json(start_settings)
    ours = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    files["tokenizer_config.json"] = settings | ours

    ids = {token["content"]: token["id"] for token in added}
    stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    generation = GENERATION | {"pad_token_id": ids["<|endoftext|>"]}
    start_generation = tokenizer.with_name("generation_config.json")
    if start_generation.is_file():
        generation = read_json(start_generation)
        start_stops = generation.get("eos_token_id") or []
        if not isinstance(start_stops, list):
            start_stops = [start_stops]
        stops += [i for i in start_stops if i not in stops]
    files["generation_config.json"] = generation | {"eos_token_id": stops}
    return files
