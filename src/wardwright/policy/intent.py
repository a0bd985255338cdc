"""What a user asks for, as the names of effects: read once when the words are seen, by a lexicon that is data.

A verb and, where the lexicon lists some, a noun must stand in one sentence; a verb that is a noun as well counts only where an
order puts a verb; "send me" and what is denied do not count. Nothing here reads what tools or models say.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, cast

from wardwright.config import Node, Problems, parse_yaml

MAX_SENTENCE: Final = 400
"""Tokens of a sentence that are read together."""
MAX_TEXT: Final = 65_536
"""Characters of one text of the user that are read for effects."""
NEAR: Final = 3
"""How many tokens before a verb a negation still reaches it."""

_SENTENCE: Final[re.Pattern[str]] = re.compile(r"[.!?](?=\s|\Z)|\n\s*\n|\n(?=\s*(?:[-*•]|\d+[.)]))|;")
_WORD: Final[re.Pattern[str]] = re.compile(r"[^\W_]+(?:['’][^\W_]+)?|[$€£]|[,:\"()\n-]")
_CLAUSE: Final[re.Pattern[str]] = re.compile(r",\s|\s(?:and|then|but)\s", re.IGNORECASE)
_PART: Final[re.Pattern[str]] = re.compile(r"[^\W_]+")
_BREAKS: Final = frozenset(',:"()\n-')

EFFECT_KEYS: Final[tuple[str, ...]] = ("verbs", "commands", "nouns", "alone", "mine", "instrumental", "extends")
LANGUAGE_KEYS: Final[tuple[str, ...]] = ("effects", "negations", "receivers", "asking", "questions", "links", "common")


@dataclass(frozen=True, slots=True)
class Effect:
    """The words that ask for one effect, in one language."""

    verbs: frozenset[str] = frozenset()
    commands: frozenset[str] = frozenset()
    nouns: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()
    """Verbs and commands that need no noun beside them."""
    mine: bool = False
    """Whether it is asked for just as well on the user's own behalf: "book me a room"."""
    instrumental: bool = False
    shown: tuple[str, ...] = ()
    """Some of its words, for explanations."""


@dataclass(frozen=True, slots=True)
class Language:
    effects: Mapping[str, Effect]
    negations: frozenset[str] = frozenset()
    receivers: frozenset[str] = frozenset()
    asking: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    common: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All languages a rule reads. Immutable."""

    languages: Mapping[str, Language]
    name: str = ""
    """Hash of its content: what was asked for by one lexicon says nothing about another."""

    def knows(self, effect: str) -> bool:
        return any(effect in language.effects for language in self.languages.values())

    def instrumental(self, effect: str) -> bool:
        return any(
            effect in language.effects and language.effects[effect].instrumental for language in self.languages.values()
        )

    @property
    def effects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for language in self.languages.values() for name in language.effects))

    @property
    def vocabulary(self) -> frozenset[str]:
        """Words for what is done, and for kinds of things."""
        return frozenset[str]().union(
            *(
                part
                for language in self.languages.values()
                for effect in language.effects.values()
                for part in (effect.verbs, effect.commands, effect.nouns)
            )
        )

    @property
    def links(self) -> frozenset[str]:
        return frozenset[str]().union(*(language.links for language in self.languages.values()))

    @property
    def common(self) -> frozenset[str]:
        return frozenset[str]().union(*(language.common for language in self.languages.values()))

    def words(self, effect: str) -> tuple[str, ...]:
        """Some words that would ask for an effect, for explanations."""
        for language in self.languages.values():
            known = language.effects.get(effect)
            if known is not None and (known.verbs or known.commands):
                return known.shown
        return ()


def asked(text: str, lexicon: Lexicon) -> set[str]:
    """The effects that a text of the user asks for."""
    found: set[str] = set()
    text = unicodedata.normalize("NFKC", text[:MAX_TEXT]).replace("’", "'")
    for sentence in _SENTENCE.split(text):
        spoken = [word.casefold() for word in _WORD.findall(sentence)[:MAX_SENTENCE]]
        if spoken:
            for language in lexicon.languages.values():
                _read(spoken, language, found)
    return found


def asked_about(text: str, lexicons: Iterable[Lexicon]) -> set[str]:
    """The words, and up to three in a row, of clauses that do more than ask to be told something: "tell me my card number"
    uses no card number."""
    known = [language for lexicon in lexicons for language in lexicon.languages.values()]
    found: set[str] = set()
    for sentence in _SENTENCE.split(unicodedata.normalize("NFKC", text[:MAX_TEXT]).replace("’", "'")):
        for clause in _CLAUSE.split(sentence):
            spoken = [word.casefold() for word in _WORD.findall(clause)[:MAX_SENTENCE]]
            effects: set[str] = set()
            for language in known:
                _read(spoken, language, effects)
            if effects or not any(_only_asks(spoken, language) for language in known):
                said = _PART.findall(clause.casefold())[:MAX_SENTENCE]
                found.update(" ".join(said[at:end]) for at in range(len(said)) for end in range(at + 1, at + 4))
    return found


def _only_asks(spoken: list[str], language: Language) -> bool:
    first = next((word for word in spoken if word not in _BREAKS and word not in language.asking), "")
    return first in language.questions or any(word in language.receivers for word in spoken[1:3])


def _read(spoken: list[str], language: Language, found: set[str]) -> None:
    said = set(spoken)
    for name, effect in language.effects.items():
        if name in found or effect.instrumental:
            continue
        if not (said & effect.verbs or said & effect.commands):
            continue
        for place, word in enumerate(spoken):
            command = word in effect.commands
            if word not in effect.verbs and not (command and _ordered(spoken, place, language)):
                continue
            if _denied(spoken, place, language):
                continue
            following = spoken[place + 1] if place + 1 < len(spoken) else ""
            if following in language.receivers and not effect.mine:
                continue
            if effect.nouns and word not in effect.alone and not _thing(spoken, place, effect.nouns):
                continue
            found.add(name)
            break


def _thing(spoken: list[str], place: int, nouns: frozenset[str]) -> bool:
    """Whether one of the nouns, or its plural, stands beside the verb."""
    return any(
        at != place and (word in nouns or (word.endswith("s") and word[:-1] in nouns)) for at, word in enumerate(spoken)
    )


def _ordered(spoken: list[str], place: int, language: Language) -> bool:
    """Whether a verb could stand here as an order: at the beginning, or behind a word that asks."""
    before = spoken[place - 1] if place else ","
    return before in _BREAKS or before in language.asking


def _denied(spoken: list[str], place: int, language: Language) -> bool:
    for before in reversed(spoken[max(0, place - NEAR) : place]):
        if before in _BREAKS:
            return False
        if before in language.negations:
            return True
    return False


@lru_cache(maxsize=1)
def default_lexicon() -> Lexicon:
    """The lexicon that ships."""
    text = importlib.resources.files("wardwright.policy").joinpath("lexicon.yaml").read_text("utf-8")
    problems = Problems("lexicon.yaml")
    lexicon = read_lexicon(parse_yaml(text, problems), problems, Lexicon({}))
    if problems.found:
        raise AssertionError("\n".join(str(problem) for problem in problems.found))
    return lexicon


def read_lexicon(node: Node, problems: Problems, onto: Lexicon) -> Lexicon:
    """`language → {effects, negations, receivers, asking, questions, links, common}` added to a lexicon; an effect that is given again is replaced, or extended if it says so."""
    languages: dict[str, Language] = dict(onto.languages)
    if not isinstance(node.value, dict) or not node.value:
        problems.error(node, "expected a mapping of languages to their words")
    for name, child in node.items().items():
        given = problems.mapping(child, (), LANGUAGE_KEYS)
        before = languages.get(name, Language({}))
        effects: dict[str, Effect] = dict(before.effects)
        if "effects" in given:
            for effect, spoken in given["effects"].items().items():
                effects[effect] = _effect(spoken, problems, effects.get(effect))
        lists: dict[str, frozenset[str]] = {}
        for key in LANGUAGE_KEYS[1:]:
            kept = cast("frozenset[str]", getattr(before, key))
            lists[key] = kept | _words(given, key, problems)
        languages[name] = Language(effects, **lists)
    return Lexicon(languages, _hash(languages))


def _hash(languages: Mapping[str, Language]) -> str:
    content = [
        [
            name,
            sorted(
                [
                    effect,
                    sorted(one.verbs),
                    sorted(one.commands),
                    sorted(one.nouns),
                    sorted(one.alone),
                    one.mine,
                    one.instrumental,
                ]
                for effect, one in language.effects.items()
            ),
            *(
                sorted(part)
                for part in (
                    language.negations,
                    language.receivers,
                    language.asking,
                    language.questions,
                    language.links,
                    language.common,
                )
            ),
        ]
        for name, language in sorted(languages.items())
    ]
    return hashlib.blake2b(repr(content).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _effect(node: Node, problems: Problems, before: Effect | None) -> Effect:
    given = problems.mapping(node, (), EFFECT_KEYS)
    mine, instrumental, extends = (problems.boolean(given[key]) if key in given else False for key in EFFECT_KEYS[4:])
    verbs, commands, nouns, alone = (_words(given, key, problems) for key in EFFECT_KEYS[:4])
    written = [word for key in EFFECT_KEYS[:2] if key in given for word in problems.texts(given[key])]
    shown = tuple([word for word in written if not word.endswith("ing") or len(word) < 6][:4])
    effect = Effect(verbs, commands, nouns, alone, mine, instrumental, shown)
    if extends and before is None:
        problems.error(given["extends"], "there is no such effect to extend")
    elif extends and before is not None:
        effect = Effect(
            before.verbs | verbs,
            before.commands | commands,
            # An effect whose verbs are enough stays one.
            before.nouns | nouns if before.nouns else before.nouns,
            before.alone | alone,
            before.mine or mine,
            before.instrumental or instrumental,
            before.shown,
        )
    if not instrumental and not effect.verbs and not effect.commands and isinstance(node.value, dict):
        problems.error(node, "needs 'verbs' or 'commands', or 'instrumental: true'")
    return effect


def _words(given: Mapping[str, Node], key: str, problems: Problems) -> frozenset[str]:
    if key not in given:
        return frozenset()
    return frozenset(unicodedata.normalize("NFKC", word).casefold() for word in problems.texts(given[key]))


def needed(effects: Iterable[str], lexicon: Lexicon) -> tuple[str, ...]:
    """The effects of a tool that need words of the user."""
    return tuple(effect for effect in effects if not lexicon.instrumental(effect))


def told(effect: str, lexicon: Lexicon) -> dict[str, Any]:
    """What a finding says of an effect that nobody asked for."""
    if not lexicon.knows(effect):
        return {"effect": effect, "why": f"the lexicon has no effect '{effect}'"}
    words = ", ".join(f"'{word}'" for word in lexicon.words(effect))
    return {"effect": effect, "why": f"no sentence of the user asks for '{effect}' (with a word such as {words})"}
