"""(3) What a task is: problems, and a mark for each completion of one.

A user's task is a subclass with `problems` and, where R1-Zero's two rules are not the right
ones, `mark`. Everything else has a default.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from markbook.records import Completion, Problem, Prompt, Verdict
from markbook.verify import MarkingRules, mark_answer, write_answer


class Task(ABC):
    """Problems with a rule that marks their completions.

    `name` appears in runs and reports. `rules` says which tags a completion must have and where
    its answer is looked for; the recipe's `[marking]` table sets it. `components` names the
    scores that `mark` puts into a verdict, all between 0 and 1 with 1 the best: rewards are
    weighted sums of them.
    """

    name: str = "task"
    components: tuple[str, ...] = ("accuracy", "format")

    def __init__(self, rules: MarkingRules | None = None) -> None:
        self.rules = rules if rules is not None else MarkingRules()

    @abstractmethod
    def problems(self, split: str) -> Sequence[Problem]:
        """Return the problems of a split (`train`, `test`, or another that the task names).

        The order must be the same at every call. A split that the task does not have is an
        empty sequence.
        """

    def prompt(self, problem: Problem) -> Prompt:
        """Return what the template is filled with: text, or chat messages."""
        return problem.prompt

    def mark(self, problem: Problem, completion: Completion) -> Verdict:
        """Mark one completion. The default compares the answer by rule and checks the format.

        A verdict `unscorable` says that marking failed; raising does the same and also names the
        exception. Neither ever becomes a reward of zero.
        """
        return mark_answer(completion.text, problem.answer, self.rules)

    def model_answer(self, problem: Problem) -> str:
        """Return a completion's text that must score full marks, for the start-up check."""
        return write_answer(problem.answer, self.rules)

    def splits(self) -> tuple[str, ...]:
        """Return the names of the splits this task can give."""
        return ("train", "test")
