"""Which pages a rollout on the toy web opened, and what each was worth: right, wrong, repeated or failed (see Case.classify)."""

from minvenus.tools.base import run_tool
from minvenus.tools.toyweb import ToyWeb
from minvenus.tools.toyweb_world import Visit
from minvenus.types import Rollout


def visit_labels(web: ToyWeb, rollout: Rollout) -> list[list[Visit]]:
    """Per turn, one label for each page that it asked for. The calls are made again, one page at a time: a call for several pages
    may have shown some of them and refused others."""
    tools, asked = web.for_question(rollout.question.id), []
    for t, turn in enumerate(rollout.turns):
        if turn.tool is None:
            continue
        if turn.kind == "search":
            run_tool(tools, "search", turn.tool["arguments"])
        elif turn.kind == "visit":
            for url in turn.tool["arguments"]["url"]:
                shown = run_tool(tools, "visit", turn.tool["arguments"] | {"url": [url]}).error is None
                asked.append((t, url, shown and turn.tool_error is None))
    labels: list[list[Visit]] = [[] for _ in rollout.turns]
    for (t, _, _), label in zip(asked, web.case(rollout.question.id).classify([(url, ok) for _, url, ok in asked]), strict=True):
        labels[t].append(label)
    return labels
