"""The runs of an evaluation, by question and number."""

from dataclasses import dataclass

from minvenus.evaluation.questions import Entry


@dataclass(frozen=True)
class Job:
    """One run of one question."""

    entry: Entry
    run: int

    @property
    def key(self) -> tuple[str, int]:
        return self.entry.question.id, self.run

    @property
    def name(self) -> str:
        """Decides the sampling, with the seed. The first run of a question is what infer.py gives."""
        return self.entry.question.id if self.run == 0 else f"{self.entry.question.id} run {self.run}"


def jobs(entries: list[Entry], runs: int) -> list[Job]:
    """All first runs, then all second ones: whatever is there early is about all questions alike."""
    return [Job(entry, run) for run in range(runs) for entry in entries]
