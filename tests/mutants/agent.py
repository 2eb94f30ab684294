"""Known bugs of the protocol (23)."""

from tests.mutants.mutant import mutant

MUTANTS = (
    mutant(23, "an answer inside a tool response is the model's",
           "agent/test_protocol.py::test_everything_from_the_first_tool_response_on_is_dropped",
           ("minvenus.agent.protocol:parse_turn", 'text = text.split("<tool_response>", 1)[0]', "text = text")),
    mutant(23, "the observation is graded",
           "agent/test_protocol.py::test_only_the_last_turn_is_graded_and_never_an_observation",
           ("minvenus.agent.protocol:final_answer",
            "parse_turn(turns[-1].text).answer if turns",
            'parse_turn(turns[-1].text + (turns[-1].observation or "")).answer if turns')),
)
