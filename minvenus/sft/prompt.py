"""The system prompt of cleaned trajectories is the agent's own: see agent/prompt.py."""

from minvenus.agent.prompt import SYSTEM_PROMPT, read_prompt

__all__ = ["SYSTEM_PROMPT", "read_prompt"]
