"""The tiny tokenizer: 752 ids that behave as Qwen3's 151,669 do. `python -m minvenus.text.tiny` writes tiny_tokenizer.json again.

    0 .. 255      the byte symbols, in the order of their printable stand-ins (so id 0 is "!", as in Qwen's file)
    256 .. 725    merges: first those that make one id of every word of the toy web, then what CORPUS below has most often
    726 .. 751    Qwen3's added tokens, in Qwen3's order, with Qwen3's `special` flags

Normaliser, split pattern and decoder are those of Qwen3's file: digits stay single, punctuation joins the newlines after it, a
word takes the space before it. So what a test proves about token borders with this file holds with the real one. The
tiny model has 768 rows; ids 752 .. 767 stand for nothing, as the last 267 rows of a Qwen3 model do.
"""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from minvenus.text.toy_words import NAMES, PETS, RELATIONS, VERBS

MERGES = 470
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
           "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
           "<|image_pad|>", "<|video_pad|>")
# Added, but not flagged special: a decoder that skips special tokens keeps these.
NOT_SPECIAL = ("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
               "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>")

# The toy web's text around its words, every piece between two of them as it is cut there.
TOY_FRAME = """\
system
Tools.
user
From old: own?
assistant
After own.
Open.
Answer.
{"name":"search","arguments":{"query":["the"]}}
{"name":"visit","arguments":{"url":["page"],"goal":"pet"}}
page old, own
<answer>
pets own
</answer>
[{"query": "x", "web_page_info_list": [{"title": "x", "url": "x", "snippet": "x"}, {"title": "x"}]}]
ERROR: nothing found.
ERROR: no such page.
ERROR: cannot read the call.
x

x
"""
TOY_TEXT = TOY_FRAME + "".join(f" {word}" for word in NAMES + PETS + RELATIONS + VERBS)
TOY_WEIGHT = 1000               # so often the trainer reads it: its pieces are merged before any of CORPUS

CORPUS = """\
system
You are a research assistant. Search the web, visit the pages, check what they say, and write the answer inside \
<answer></answer>.
user
In which city was the founder of the company born?
Which company published the book that the author wrote after the prize?
Who is the mayor of the city where the writer of the book was born?
assistant
I need to find the founder of the company. First I search for the company, then I visit the page about the person.
{"name": "search", "arguments": {"query": ["founder of the company"]}}
user
[{"query": "founder of the company", "web_page_info_list": [{"title": "The company", "url": "https://toy.example/company/1", \
"snippet": "The company was founded by the engineer and has its seat in the city."}]}]
assistant
The page about the company should name its founder. I visit it.
{"name": "visit", "arguments": {"url": ["https://toy.example/company/1"], "goal": "find the founder of the company"}}
user
The company

The company makes ships and engines. It was founded in the year 1 by a person who was born in the city near the river.
assistant
The founder is named. Now I need the city in which the founder was born, so I search for the person.
{"name": "search", "arguments": {"query": ["where was the founder born"]}}
user
[{"query": "where was the founder born", "web_page_info_list": [{"title": "The person", "url": \
"https://toy.example/person/2", "snippet": "She was born in the city and wrote the book."}]}]
assistant
{"name": "visit", "arguments": {"url": ["https://toy.example/person/2"], "goal": "the city where the person was born"}}
user
The person

The person is a writer, a teacher and the founder of the company. He was born in the city on the coast.
assistant
Now there is enough information to answer. The page says that the founder was born in the city.
<answer>
The city
</answer>
user
No page with this address was found. The search gave no results. The call could not be read.
assistant
The last search gave nothing. I try another query, with the name of the book and the author.
{"name": "search", "arguments": {"query": ["author of the book", "book published by the company"]}}
user
[{"query": "author of the book", "web_page_info_list": [{"title": "The book", "url": "https://toy.example/book/3", "snippet": \
"The book was written by the author and published by the house in the capital of the country."}, {"title": "The author", \
"url": "https://toy.example/person/4", "snippet": "The author lives in the town and works for the company."}]}]
assistant
{"name": "visit", "arguments": {"url": ["https://toy.example/book/3"], "goal": "who wrote the book and who published it"}}
user
The book

The book was written in the city of the author. It won the prize of the country and was translated into other languages.
assistant
So the author of the book is the person I was looking for. The question asks for the country of the city. I should check the \
city page.
{"name": "visit", "arguments": {"url": ["https://toy.example/city/5"], "goal": "in which country the city lies and who is its \
mayor"}}
user
The city

The city lies on the river in the north of the country. Its mayor is a former engineer. The university of the city was \
founded by the king.
assistant
Now there is enough information to answer. The mayor of the city is named on the page.
<answer>
The mayor of the city
</answer>
"""


def make_tiny_tokenizer() -> str:
    """The text of tiny_tokenizer.json. The trainer breaks ties between pairs by their ids, so it is the same on every run."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TOY_TEXT] * TOY_WEIGHT + [CORPUS], trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL]
                         + [AddedToken(token, normalized=False, special=False) for token in NOT_SPECIAL])
    return tokenizer.to_str(pretty=True) + "\n"


if __name__ == "__main__":
    path = Path(__file__).with_name("tiny_tokenizer.json")
    path.write_text(make_tiny_tokenizer(), encoding="utf-8")
    print(f"wrote {path}")
