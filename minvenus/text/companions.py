r"""The files beside the weights of a checkpoint: what transformers, vLLM and llama.cpp's converter need to read our
stream and to stop where it stops.

    tokenizer.json, vocab.json, ...   copied from the start checkpoint
    tokenizer_config.json             the start's own, or a new one; its end token and its chat template are ours
    generation_config.json            the start's own, or Qwen3's sampling; a turn ends at im_end and end_of_text

A model that was trained here reads the stream of chat.py, so a chat template of the start checkpoint is not kept: it
may render another stream (that of Qwen3's hybrid models opens no thought in the generation prompt, and drops thoughts
before a new question). Ours renders any number of turns with all their thoughts. For the messages that chat.stream
takes it gives chat.stream's ids, with the exceptions that chat.py names: text that spells an added token, and a thought
that begins with spaces and a newline. Calls and results are written into the messages, as in chat.stream, and the tools
are described in the system prompt: OpenAI's `tools`, `tool_calls` and role `tool` are refused.
"""

from pathlib import Path

from minvenus.config import read_json

# What transformers reads beside tokenizer.json; none of it is needed here
COPIED = ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt")
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20}    # Qwen3's published defaults

CHAT_TEMPLATE = r"""{%- for message in messages %}
    {%- if tools or message.tool_calls or message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('tools, calls and results must be text of system, assistant and user messages') }}
    {%- endif %}
    {{- '' if loop.first else '\n' }}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- set text = message.content %}
    {%- if message.role == 'assistant' and '</think>' in text %}
        {{- '<think>\n' + text.split('</think>')[0].split('<think>')[-1].strip('\n') + '\n</think>\n\n' }}
        {%- set text = text.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {{- text + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\n<|im_start|>assistant\n<think>\n' }}
{%- endif %}"""


def companions(tokenizer: Path, added: list[dict]) -> dict[str, Path | dict]:
    """Name in a folder -> file to copy, or JSON object to write, for a tokenizer.json with these added tokens. The
    start checkpoint's own files lie beside the tokenizer's."""
    ids = {token["content"]: token["id"] for token in added}
    stops = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    special = [token["content"] for token in added if token.get("special")]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "unk_token": None,
                "pad_token": "<|endoftext|>", "additional_special_tokens": special, "add_bos_token": False,
                "clean_up_tokenization_spaces": False, "model_max_length": 2**31 - 1}
    generation: dict = {**GENERATION, "pad_token_id": ids["<|endoftext|>"]}
    own_settings, own_generation = (tokenizer.with_name(f"{name}_config.json") for name in ("tokenizer", "generation"))
    if own_settings.is_file():
        settings = read_json(own_settings)
    if own_generation.is_file():
        generation = read_json(own_generation)
    own_stops = generation.get("eos_token_id") or []
    stops += [i for i in (own_stops if isinstance(own_stops, list) else [own_stops]) if i not in stops]
    beside = {name: tokenizer.with_name(name) for name in COPIED}
    return {
        "tokenizer.json": tokenizer, **{name: file for name, file in beside.items() if file.is_file()},
        "tokenizer_config.json": settings | {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE},
        "generation_config.json": generation | {"eos_token_id": stops}}
