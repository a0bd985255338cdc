"""Questions about a plan before it rules: can a tool run after another, without a third, within a window?"""

from __future__ import annotations

from wardwright.prove.question import Question, load_questions, make_question, parse_question, standard_questions
from wardwright.prove.search import LIMIT, Proof, Step, Verdict, prove

__all__ = [
    "LIMIT",
    "Proof",
    "Question",
    "Step",
    "Verdict",
    "load_questions",
    "make_question",
    "parse_question",
    "prove",
    "standard_questions",
]
