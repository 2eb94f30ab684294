"""Rollouts and training batches for the tests of the pages: made-up texts and numbers in the
shipped records."""

import random
import xml.etree.ElementTree as ET
from pathlib import Path

from minvenus.agent.protocol import format_error, parse_turn
from minvenus.igpo.credit import assign_credit
from minvenus.igpo.gain import scored_turns
from minvenus.igpo.recipes import Recipe
from minvenus.report.saved import SavedBatch, path_of, save_batch
from minvenus.report.xray import write_page
from minvenus.text.chat import Stream
from minvenus.types import Question, Rollout, Sample, Turn
from tests.agent.scripted import BROKEN, QUESTION, SYSTEM, TOKENIZER, answer, search, visit


def rollout(
    turns: list[str], observations: list[str] | None = None, question: Question = QUESTION
) -> Rollout:
    """`turns` begin after <think>; an observation follows each but the last."""
    stream, made = Stream(TOKENIZER, SYSTEM, question.text), []
    for t, text in enumerate(turns):
        last = t == len(turns) - 1
        stream.ids += [*TOKENIZER.encode_tagged(text), TOKENIZER.im_end]
        start, end = stream.end_turn()
        whole = "<think>\n" + text
        parsed = parse_turn(whole)
        ran = parsed.arguments is not None and not last
        call = {"name": parsed.tool, "arguments": parsed.arguments} if ran else None
        kind = parsed.kind if ran or parsed.kind == "answer" else "none"
        malformed = bool(format_error(whole, last))
        seen = None if last else (observations[t] if observations else "Bob sings")
        made.append(Turn(kind, start, end, whole, call, seen, malformed))
        if seen is not None:
            stream.add_observation(seen)
    logprobs = [-0.5 - 0.001 * i if flag else None for i, flag in enumerate(stream.sampled)]
    ended = "answered" if made[-1].kind == "answer" else "max_steps"
    return Rollout(question, stream.ids, stream.sampled, logprobs, made, ended, system=SYSTEM)


def saved_batch(
    rollouts: list[Rollout],
    groups: list[int],
    outcomes: list[float],
    recipe: Recipe,
    logprobs=None,
    seed: int = 0,
    step: int = 19,
) -> SavedBatch:
    """`logprobs` of the answers, or made up: they rise with the visits of a rollout."""
    rng = random.Random(seed)
    measured = []
    for i, (r, group, outcome) in enumerate(zip(rollouts, groups, outcomes, strict=True)):
        needed = set(scored_turns([t.kind for t in r.turns], recipe))
        value, rows = rng.uniform(-6, -4), []
        for t, turn in enumerate(r.turns):
            rows.append([value + rng.uniform(-0.3, 0.3) for _ in range(3)] if t in needed else None)
            if turn.kind == "visit":
                value += rng.uniform(-0.7, 1.8)
        measured.append(Sample(r, logprobs[i] if logprobs else rows, outcome, group))
    return SavedBatch(step, "current", recipe, measured, assign_credit(measured, recipe))


# Everything that would act if it were taken for HTML or script, in the places where a model or a
# web page can put it.
HOSTILE = [
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<!-- <script>",
    "]]>",
    "<img src=x onerror='window.hit = 3'>",
    "<svg onload=window.hit=4>",
    '"><iframe src="https://example.com">',
    "' onclick='window.hit = 5",
    "javascript:window.hit=6",
    "&lt;b&gt; & \u2028\u2029 \u202e",
    "<style>body { display: none }</style>",
    "</textarea></title>",
]


def hostile_rollout() -> Rollout:
    words = " ".join(HOSTILE)
    quoted = words.replace("\\", "\\\\").replace('"', '\\"')
    broken = f"Start.\n</think>\n\n<tool_call>\n{words}\n</tool_call>"
    turns = [search(quoted, words), visit(quoted, words), broken, answer(words, words)]
    return rollout(turns, [words] * 4, Question(HOSTILE[0], words, [words]))


def random_batch(seed: int, recipe: Recipe) -> SavedBatch:
    """Groups of rollouts of any shape: searches, visits, malformed turns, an answer at the end or
    not."""
    rng = random.Random(seed)
    made, groups, outcomes = [], [], []
    for group in rng.sample(range(-5, 50), rng.randint(1, 3)):
        for _ in range(rng.randint(1, 4)):
            turns = rng.choices([search(), search("Ada"), visit(), visit("Ada"), BROKEN], k=6)
            turns = turns[: rng.randint(0, 6)]
            if not made:  # malformed turns between searches and their visit, and after the last one
                turns = [search(), BROKEN, search(), visit(), search(), BROKEN, visit(), BROKEN]
            made.append(rollout([*turns, rng.choice((answer(), answer("dog"), BROKEN))]))
            groups.append(group)
            outcomes.append(rng.choice((0.0, 1.0, 0.5, rng.random())))
    return saved_batch(made, groups, outcomes, recipe, seed=seed)


def group_of_four(recipe=None) -> SavedBatch:
    turns = [
        [search(), visit(), search("Ada"), visit("Ada"), answer()],
        [search(), visit(), answer("dog")],
        [BROKEN, visit(), answer()],
        [search(), answer("dog")],
    ]
    return saved_batch(
        [rollout(t) for t in turns], [0] * 4, [1.0, 0.0, 1.0, 0.0], recipe or Recipe.paper()
    )


def xray(folder, batch: SavedBatch, **options) -> Path:
    """The page of a batch that lies in a run."""
    save_batch(folder, batch)
    return write_page(path_of(folder, batch.step), folder / "xray.html", **options)


# ----------------------------------------------------------------------------------- reading a page


PAGES = Path(__file__).parents[1] / "fixtures" / "pages"


def words_of(document: str) -> str:
    """Everything that a page says, an element on each line, with its kind and what shows when the
    mouse is on it."""
    lines = []
    for element in ET.fromstring(document).iter():
        words = " ".join((element.text or "").split())
        tag = element.tag.rpartition("}")[2]
        attributes = map(element.get, ("class", "open", "title"))
        kind = " ".join(filter(None, (tag, *attributes)))
        if tag == "tr":
            words = " | ".join(cell.text or "" for cell in element)
        if tag not in ("style", "th", "td") and (words or element.get("class")):
            lines.append(f"{kind}: {words}".rstrip() + "\n")
    return "".join(lines)


class Part:
    """An element of a page, and what is inside it. Every page is well-formed XML, too."""

    def __init__(self, element: ET.Element):
        self.element = element
        self.get = element.get
        self.words = "".join(element.itertext())

    @classmethod
    def of(cls, path) -> "Part":
        return cls(ET.parse(path).find("body/main"))

    def __getitem__(self, place) -> "Part":
        return Part(self.element[place])

    def __len__(self) -> int:
        return len(self.element)

    def all(self, *names: str) -> list["Part"]:
        """Everything that has these classes."""
        return [
            Part(e) for e in self.element.iter() if set(names) <= set(e.get("class", "").split())
        ]

    def texts(self, *names: str) -> list[str]:
        return [part.words for part in self.all(*names)]

    @property
    def facts(self) -> dict[str, str]:
        return {pair[0].words: pair[1].words for listed in self.all("facts") for pair in listed}
