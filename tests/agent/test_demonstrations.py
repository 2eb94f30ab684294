"""What the tiny model is taught is what it will meet: the loop writes a demonstration, given its
turns."""

import pytest

from minvenus.agent.prompt import TOYWEB
from minvenus.text.chat import stream
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_lessons import LAST_TURN, SYSTEM, Teacher, demonstrations
from tests.agent.scripted import TOKENIZER, budget, run


@pytest.mark.parametrize(
    "teacher",
    [
        Teacher(),
        Teacher(wrong_result=0.5, wrong_relation=0.5),
        Teacher(cut_off=1.0),
        Teacher(wrong_result=0.5, wrong_relation=0.3, cut_off=0.7),
    ],
    ids=["expert", "detours", "cut off", "all"],
)
def test_a_demonstration_played_through_the_loop_is_the_same_tokens(teacher):
    web = ToyWeb(6)
    for i, messages in enumerate(demonstrations(web, 8, teacher)):
        ids, sampled, spans = stream(messages, TOKENIZER)
        cut_off = messages[-2]["content"].endswith(f"\n\n{LAST_TURN}\n</tool_response>")
        script = [ids[start:end] for start, end in spans]
        turns = len(spans) if cut_off else len(spans) + 1
        question = web.case(f"train-{i}").question
        rollout = run(
            script,
            budget(turns),
            lambda question: web.for_question(question.id),
            questions=[question],
            notices=TOYWEB.notices,
            system=SYSTEM,
        )
        assert (rollout.tokens, rollout.sampled) == (ids, sampled)
        assert rollout.termination == ("answered_max_steps" if cut_off else "answered")
        assert not any(turn.malformed for turn in rollout.turns)
