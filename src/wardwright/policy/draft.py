"""A catalog drafted from tool schemas: what names, types and descriptions suggest, every guess marked as one.

A name is read as a verb and its nouns; where it says too little the first sentence of the description does. Guesses lean towards less
trust: what nothing suggests stays unlabelled, and `check` lists it. Nothing here is read by the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from wardwright.errors import WardwrightError


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _row(text: str) -> tuple[str, ...]:
    return tuple(text.split())


READING: Final = _set(
    "get list read search find fetch browse view check show query lookup describe count see look retrieve calculate load scan compare "
    "estimate verify validate preview summarize summarise analyze analyse track monitor return returns compute detect inspect diff is "
    "has whoami peek cat ls grep glob explain recommend suggest forecast extract parse download poll watch stat translate display "
    "determine filter discover what which who when where current"
)
WRITING: Final = _set(
    "resolve collect convert send create delete remove pay write update set add invite cancel move grant revoke publish upload submit buy purchase reserve forward reply "
    "append edit modify rename insert execute exec run install deploy kill reset donate wire approve reject merge close assign subscribe "
    "unsubscribe enroll register unlock lock put patch replace archive unarchive copy clone fork push pull commit save store make generate draft "
    "erase purge trash drop clear empty stop start restart pause resume enable disable turn switch adjust change book rent schedule "
    "reschedule transfer refund tip reimburse withdraw deposit share unshare post tweet comment rate like follow unfollow block unblock report "
    "mute pin star flag mark label tag snooze dismiss accept decline confirm respond email mail message text sms dm call dial notify alert remind "
    "broadcast announce order checkout redeem claim apply sign file request prescribe refill refer admit discharge record log import export sync "
    "attach detach link unlink connect disconnect promote demote ban kick leave join open upsert eval shell bash terminal issue charge void "
    "settle remit rotate escalate complete finish launch invoke trigger dispatch ship return_item exchange increase decrease play skip print "
    "upgrade downgrade renew extend release rollback revert restore assume vote sell trade"
)
NOUNS_TOO: Final = _set(
    "book order post email mail message text comment report file label tag share call transfer refund tip like rate flag mark record log draft "
    "copy link alert schedule request claim sign rent sms block pin star open trade issue charge release export import print return play vote"
)
"""Words for writing that are things as well: in front of a name they are verbs only if the description does not begin with a word for reading."""
TELLING: Final = _set(
    "get list read search find fetch view show lookup look retrieve return returns display describe count"
)
"""Words that a description of a tool which only reads begins with."""
FAMILIES: Final[Sequence[frozenset[str]]] = (
    _set("create make add open start generate build new register raise set"),
    _set("update change edit modify adjust set correct revise replace rename move amend"),
    _set("delete remove erase discard clear drop purge cancel"),
    _set("approve accept confirm allow authorize authorise sign"),
    _set("reject decline deny refuse dismiss"),
    _set("assign give delegate hand allocate"),
    _set("submit file send apply hand"),
    _set("start run launch begin trigger resume turn play"),
    _set("stop pause halt end turn disable shut"),
    _set("enable activate turn switch allow"),
    _set("import load sync upload"),
    _set("export download save extract back"),
    _set("record log note enter track write add"),
    _set("request ask order apply"),
    _set("close resolve finish complete end"),
    _set("like follow subscribe join vote rate star"),
    _set("restore revert undo rollback recover"),
    _set("sell trade exchange buy"),
)
"""Verbs that users say for one another."""

MONEY: Final = _set(
    "money payment payments transaction transactions fund funds transfer transfers cash payout remittance bill bills rent donation sepa ach wire "
    "crypto"
)
PEOPLE: Final = _set(
    "user users member members participant participants attendee attendees guest guests collaborator collaborators reviewer reviewers people "
    "person invitee invitees player teammate"
)
DOCUMENTS: Final = _set(
    "file files document documents doc docs note notes page pages sheet spreadsheet folder directory presentation wiki entry notebook memo"
)
EVENTS: Final = _set(
    "event events meeting meetings appointment appointments calendar reminder reminders alarm slot visit consultation shift timer"
)
TICKETS: Final = _set(
    "issue issues ticket tickets task tasks bug bugs card cards todo todos pr branch milestone story incident case epic sprint"
)
DEVICES: Final = _set(
    "light lights lamp thermostat temperature door doors lock garage volume speaker tv camera blinds heating oven vacuum device"
)
SECRETS: Final = _set("password passcode passphrase credentials credential pin 2fa mfa otp")
_ANY: Final[frozenset[str]] = frozenset()
EFFECTS: Final[Sequence[tuple[frozenset[str], frozenset[str], str]]] = (
    (_ANY, SECRETS, "change_password"),
    (_set("cancel void decline abort"), _ANY, "cancel"),
    (
        _set("delete remove erase trash purge drop clear empty revoke unshare kick ban leave destroy wipe"),
        _ANY,
        "delete",
    ),
    (_set("schedule"), MONEY, "schedule_payment"),
    (_set("create add set setup make send new"), _set("standing recurring scheduled autopay"), "schedule_payment"),
    (
        _set("update modify edit change adjust reschedule"),
        MONEY | _set("standing recurring scheduled"),
        "schedule_payment",
    ),
    (_set("transfer"), _set("file files ownership domain call ticket patient repository repo"), "share"),
    (_set("pay donate wire refund remit reimburse tip withdraw deposit settle charge transfer"), _ANY, "pay"),
    (_set("send make create initiate issue submit execute request new"), MONEY, "pay"),
    (_set("add create save update new edit"), _set("contact contacts"), "save_contact"),
    (_set("add create save update new edit register"), _set("payee payees beneficiary beneficiaries"), "save_payee"),
    (_set("invite"), _ANY, "invite"),
    (_set("add enroll join"), PEOPLE, "invite"),
    (_set("create make generate enable publish"), _set("link public"), "publish"),
    (_set("share grant promote"), _ANY, "share"),
    (
        _set("set update add change create modify"),
        _set("permission permissions access role roles sharing acl"),
        "share",
    ),
    (_set("mark"), _set("read unread seen"), "mark_read"),
    (_set("create save write update make"), _set("draft drafts"), "draft"),
    (_set("draft"), _ANY, "draft"),
    (
        _set("create add schedule reschedule update move set book edit change make modify new postpone"),
        EVENTS,
        "schedule",
    ),
    (_set("schedule reschedule remind"), _ANY, "schedule"),
    (_set("reserve book rent"), _ANY, "book"),
    (_set("make create add new"), _set("reservation booking"), "book"),
    (_set("add put"), _set("cart basket"), "cart"),
    (_set("buy purchase checkout order subscribe"), _ANY, "buy"),
    (_set("place create submit"), _set("order orders"), "buy"),
    (_set("post publish tweet comment announce broadcast rate upload"), _ANY, "post"),
    (
        _set("send create add write submit make new"),
        _set("post comment review tweet story channel announcement webpage website blog"),
        "post",
    ),
    (_set("send email mail reply forward notify message text sms dm call dial alert respond"), _ANY, "send"),
    (_set("update edit change set modify"), _set("profile account settings preferences info"), "update_account"),
    (_set("write save put store"), DOCUMENTS, "write_file"),
    (_set("create new make generate"), DOCUMENTS, "create_file"),
    (_set("append edit update rename move copy insert replace patch overwrite modify change"), DOCUMENTS, "edit_file"),
    (_set("append write"), _ANY, "edit_file"),
    (_set("merge approve push release deploy rollback"), _ANY, "merge"),
    (_set("create open update close assign add edit move reopen complete transition resolve"), TICKETS, "ticket"),
    (_set("run exec execute shell install eval launch invoke bash terminal start restart kill"), _ANY, "run"),
    (_set("label tag star flag archive unarchive mute pin snooze mark move"), _ANY, "organize"),
    (_set("turn switch lock unlock dim open close adjust set"), DEVICES, "control"),
    (_set("turn switch lock unlock"), _ANY, "control"),
    (_set("prescribe refill refer"), _ANY, "prescribe"),
    (_set("submit apply register enroll sign claim file"), _ANY, "submit"),
)
"""Verb, noun (either may be any) → what the tool does. The first that fits."""
_FINAL: Final = _set("pay schedule_payment delete change_password buy cancel save_payee prescribe merge run")
_LOCAL: Final = _set(
    "write_file create_file edit_file update_account draft mark_read organize cart save_contact schedule control ticket"
)

ID: Final = _set("id ids uuid guid key ref slug sku identifier identifiers")
PARTY: Final = _set(
    "to cc bcc recipient recipients receiver receivers payee beneficiary participant participants attendee attendees invitee invitees guest guests "
    "user users username usernames member members contact contacts assignee assignees reviewer reviewers collaborator collaborators counterparty "
    "person people destination target owner"
)
MAILBOX: Final = _set("email emails mail phone mobile fax msisdn")
OUTWARD: Final = _set("send invite share pay schedule_payment post save_contact save_payee publish schedule ticket")
"""Effects that reach somebody: an id of a person there is whom it reaches."""
URLS: Final = _set("url urls uri link links website webpage webhook endpoint callback domain host site href")
PATHS: Final = _set("path paths filename filepath directory dir folder cwd")
DATES: Final = _set(
    "date dates day start end time when deadline due until since from departure arrival checkin checkout birthday dob month year datetime at begin expiry expires "
    "timestamp"
)
THINGS: Final = _set(
    "channel event hotel restaurant company item items product order ticket issue repo repository branch project board calendar room flight table "
    "database bucket cluster service server playlist device account card workspace group team attachment attachments file files document thread conversation "
    "task appointment slot reservation booking doctor patient prescription vehicle car airport train seat shop store folder collection label space database"
)
FREE: Final = _set(
    "body content text message subject title description comment note notes reason summary caption name names first last middle street city country zip postal code "
    "state location reference memo topic label labels tag tags keyword keywords instructions details remarks feedback review bio question answer prompt template data "
    "symptoms dosage dose medication greeting headline color colour type kind status priority category mode format language currency unit level query sort amount "
    "signature heading quote purpose position role job department section field value values attributes metadata frequency"
)
COMMANDS: Final = _set("command commands cmd code script sql shell expression program")
CONFIDENTIAL: Final[re.Pattern[str]] = re.compile(
    r"passport|ssn|social_security|credit_card|card_number|cvv|cvc|password|passcode|secret|api_key|private_key|access_token|\botp\b|security_code|security_answer"
)

SENDERS: Final = _set(
    "sender from author organizer organiser creator owner created_by posted_by from_email from_address sent_by uploaded_by host"
)
RECEIVERS: Final = _set(
    "recipient recipients to cc bcc participants attendees guests invitees assignee assignees reviewers shared_with watchers followers"
)
TITLES: Final = _set(
    "name title subject filename file_name display_name full_name username label headline topic from_name sender_name counterparty merchant "
    "patient customer client supplier vendor company organization employee student passenger driver tenant guest doctor product"
)
TEXTS: Final = _set(
    "body content text description notes note message comment comments review reviews snippet preview bio about memo reference location remark remarks details reason "
    "instructions html markdown readme"
)
SYSTEMS: Final = _set(
    "status type currency amount price balance total count size path url link permalink html_url web_link state unread starred read priority iban bic account account_number "
    "email phone sku rating recurring"
)
WHEN: Final[re.Pattern[str]] = re.compile(
    r"date|time|created|updated|modified|^start|^end|_at$|^due|expires|deadline|day"
)
NAMES: Final = TITLES - _set("label topic headline")
AUTHORS: Final = _set("sender from author posted_by created_by sent_by user")
LOCATORS: Final[re.Pattern[str]] = re.compile(
    r"path|file|url|folder|channel|^ids?$|_ids?$|^user$|username|sender|^name$|_name$|^email$|thread|page|document|repo|hotel|restaurant|company|account"
)

GUESS: Final = "# guessed"
_VOWELS: Final = frozenset("aeiou")


class BadTools(WardwrightError, ValueError):
    """What was given is no list of tools."""


@dataclass(slots=True)
class Tool:
    """A tool as its list describes it, and what is read into its name."""

    name: str
    description: str
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    hints: Mapping[str, Any]
    words: list[str] = field(default_factory=list[str])
    verb: str = ""
    nouns: frozenset[str] = frozenset()
    reads: bool = False
    effect: str = ""
    own: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Words that ask for an effect that the lexicon does not have."""


def read_tools(text: str) -> list[Tool]:
    """Every tool of a list as MCP, OpenAI or Anthropic write it."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise BadTools(f"no JSON: {error}") from None
    if isinstance(given, dict):
        given = cast("dict[str, Any]", given).get("tools")
    if not isinstance(given, list):
        raise BadTools("expected a list of tools, or an object with 'tools'")
    found: list[Tool] = []
    for one in cast("list[Any]", given):
        tool = _object(one)
        tool = _object(tool.get("function")) or tool
        name: Any = tool.get("name")
        if not isinstance(name, str) or not name:
            raise BadTools("a tool has no name")
        schema: Any = tool.get("input_schema") or tool.get("inputSchema") or tool.get("parameters") or {}
        output: Any = tool.get("output_schema") or tool.get("outputSchema") or {}
        description = str(tool.get("description") or "")
        read = Tool(name, description, _object(schema), _object(output), _object(tool.get("annotations")))
        _understand(read)
        found.append(read)
    if not found:
        raise BadTools("there is no tool in it")
    return found


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


# what a tool does


def _parts(name: str) -> list[str]:
    """The words of a name, however it is written."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return [part for part in re.split(r"[^a-z0-9]+", split.lower()) if part]


def _stem(word: str) -> str:
    """A verb without its ending, as far as the lists of verbs know it."""
    for end, instead in (
        ("", ""),
        ("s", ""),
        ("es", ""),
        ("ies", "y"),
        ("ing", ""),
        ("ing", "e"),
        ("ed", ""),
        ("ed", "e"),
    ):
        if end and not word.endswith(end):
            continue
        stem = word[: len(word) - len(end)] + instead
        if stem in READING or stem in WRITING:
            return stem
    return ""


def _told(description: str) -> str:
    """The verb that a description begins with."""
    first = re.split(r"[.\n]", description, maxsplit=1)[0]
    for word in _parts(first)[:8]:
        stem = _stem(word)
        if stem and stem not in _SMALL:
            return stem
    return ""


_SMALL: Final = _set("is has what which who when where current view")
"""Words that stand in any sentence."""


def _understand(tool: Tool) -> None:
    """Verb, nouns, and whether it only reads. What is not known to read counts as writing."""
    words = tool.words = _parts(tool.name)
    told = _told(tool.description)
    place = next((at for at, word in enumerate(words) if word in READING or word in WRITING), -1)
    verb = words[place] if place >= 0 else ""
    strong = [word for word in words[place + 1 :] if word in WRITING - NOUNS_TOO]
    if verb == "check" and words[place + 1 : place + 2] in (["in"], ["out"]):
        verb = "book"
    elif strong and (verb in NOUNS_TOO or (verb in READING and told not in TELLING)):
        verb = strong[0]  # `email_delete`, `get_or_create_note`
    elif verb in NOUNS_TOO and told in TELLING:
        verb = told  # `order_status`: "Returns the status of an order"
    # With nothing but a description to go by, only what begins with a word for reading reads.
    tool.reads = verb in READING if verb else told in TELLING
    tool.verb = verb = verb or told
    tool.nouns = frozenset(words) - {verb}
    if tool.hints.get("readOnlyHint") is True and (verb not in WRITING or told in TELLING):
        tool.reads = True
    elif tool.hints.get("readOnlyHint") is False or tool.hints.get("destructiveHint") is True:
        tool.reads = False
    if not tool.reads:
        head = _head(words)
        tool.effect = _effect(verb, tool.nouns, head)
        if not tool.effect and (verb in WRITING or told in WRITING):
            tool.effect = _effect(told, tool.nouns, head) if verb not in WRITING else ""
            if not tool.effect:
                tool.effect, tool.own = _own_effect(tool, verb if verb in WRITING else told)


def _effect(verb: str, nouns: frozenset[str], head: str) -> str:
    for verbs, things, effect in EFFECTS:
        # Whom `add_guest_code` is about is not whom it invites.
        meant = {head} if things is PEOPLE else nouns
        if (not verbs or verb in verbs) and (not things or meant & things):
            return effect
    return ""


def _head(words: Sequence[str]) -> str:
    """What a name is about: the last word of what stands before "to", "for", "in" …"""
    end = next((at for at, word in enumerate(words) if at > 1 and word in _PREPOSITIONS), len(words))
    return words[end - 1] if end else ""


_PREPOSITIONS: Final = _set("to from in for with by of on at into as")


def _own_effect(tool: Tool, verb: str) -> tuple[str, Mapping[str, Sequence[str]]]:
    """An effect that the lexicon has no words for is asked for with those of the name: "adjust the thermostat"."""
    verbs: list[str] = []
    for one in (verb, *(word for family in FAMILIES if verb in family for word in sorted(family))):
        verbs += [one, _going(one)]
    first = re.split(r"[.\n]", tool.description, maxsplit=1)[0]
    told = [word for word in _parts(first) if len(word) > 3 and not _stem(word) and word not in _EMPTY]
    nouns: list[str] = []
    for noun in [*(word for word in tool.words if word != verb and word not in _EMPTY and len(word) > 2), *told[:8]]:
        single = noun[:-1] if noun.endswith("s") and not noun.endswith("ss") else noun
        nouns += [single, f"{single}s"]
    own: dict[str, Sequence[str]] = {"verbs": list(dict.fromkeys(verbs))}
    if nouns:
        own["nouns"] = list(dict.fromkeys(nouns))
    return "_".join(tool.words), own


_EMPTY: Final = _set(
    "the a an and or for of to in on with by from this that tool function given specified user their your into about using will which when "
    "existing current specific based some other them then also only"
)


def _going(verb: str) -> str:
    if verb.endswith("e"):
        return f"{verb[:-1]}ing"
    if len(verb) == 3 and verb[1] in _VOWELS and verb[2] not in _VOWELS and verb[2] not in "wxy":
        return f"{verb}{verb[2]}ing"
    return f"{verb}ing"


# schemas


def _resolved(schema: Any, root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """A schema with its references followed and `null` left out of its choices."""
    found = _object(schema)
    reference: Any = found.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and depth < 8:
        inner: Any = root
        for part in reference[2:].split("/"):
            inner = _object(inner).get(part)
        return {**_resolved(inner, root, depth + 1), **{key: one for key, one in found.items() if key != "$ref"}}
    for key in ("anyOf", "oneOf", "allOf"):
        choices = found.get(key)
        if isinstance(choices, list) and depth < 8:
            known = [_resolved(one, root, depth + 1) for one in cast("list[Any]", choices)]
            known = [one for one in known if one.get("type") != "null"]
            typed = next((one for one in known if one.get("properties") or one.get("items")), known[0] if known else {})
            return {**typed, **{other: one for other, one in found.items() if other != key}}
    kinds = found.get("type")
    if isinstance(kinds, list):
        rest = [one for one in cast("list[Any]", kinds) if one != "null"]
        return {**found, "type": rest[0] if rest else "null"}
    return found


def _leaves(schema: Any, root: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(path, schema) of every value."""
    found = _resolved(schema, root)
    if depth > 8:
        return
    properties = _object(found.get("properties"))
    if properties:
        for key, one in properties.items():
            yield from _leaves(one, root, f"{path}/{key}", depth + 1)
    elif found.get("items"):
        items = _resolved(found["items"], root)
        if items.get("properties") or items.get("items"):
            yield from _leaves(items, root, path, depth + 1)
        elif path:
            yield path, {**items, "description": found.get("description") or items.get("description") or ""}
    elif path:
        yield path, found


# the draft


def draft(tools: str, source: str = "tools.json") -> str:
    """A plan with a catalog of these tools and a rule of each kind, as commented YAML."""
    lines = [
        f"# Drafted from {source}. Lines marked '{GUESS[2:]}' are guesses from names, types and descriptions: read every one of them.",
        "# What is not labelled is untrusted, and refused where it could do harm: `wardwright check` lists it.",
        "",
        "model_id: drafted",
        "",
        "catalog:",
    ]
    known = read_tools(tools)
    # Where no id is asked for, names are what things are told apart by.
    handles = frozenset(
        word
        for tool in known
        if not tool.reads
        for path, one in _leaves(tool.arguments, tool.arguments, "", 0)
        if _sink(path, one, tool) == "object" and not set(_parts(path)) & ID
        for part in _parts(path.rpartition("/")[2])
        for word in (part, part.removesuffix("s"), f"{part}s", f"{part.removesuffix('y')}ies")
    )
    for tool in known:
        lines.extend(_tool(tool, handles))
    lines += [
        "",
        "governance:",
        "  - id: values-come-from-the-owner",
        "    kind: argument_provenance",
        '    tool: {name: "*"}',
        "    # self: [me@example.com]              # the principal's own addresses and accounts",
        '    # protected_paths: ["/etc/*", "*/.ssh/*"]',
        "  - id: only-what-was-asked",
        "    kind: intent",
        "    tool: {risk_class: [write, irreversible, external_side_effect, unknown]}",
    ]
    own = {tool.effect: tool.own for tool in known if tool.own}
    if own:
        lines += ["    lexicon:", "      en:", "        effects:"]
        for effect, said in own.items():
            shown = ", ".join(f"{key}: [{', '.join(map(_quoted, words))}]" for key, words in said.items())
            lines.append(f"          {_quoted(effect)}: {{{shown}}}  {GUESS}")
    lines.append("")
    return "\n".join(lines)


def _tool(tool: Tool, handles: frozenset[str]) -> Iterator[str]:
    yield f"  - match: {_quoted(tool.name)}"
    if tool.description:
        shown = "".join(one for one in " ".join(tool.description.split())[:120] if one.isprintable())
        yield f"    # {shown}"
    space = tool.words[0] if tool.words and ("." in tool.name or "__" in tool.name) else _space(tool)
    yield f"    namespace: {_quoted(space)}"
    yield f"    name: {_quoted(tool.name)}"
    if tool.reads:
        yield f"    risk_class: read_only  {GUESS}: '{tool.verb}' is a word for reading"
    elif tool.effect:
        risk = "irreversible" if tool.effect in _FINAL else "write" if tool.effect in _LOCAL else "external_side_effect"
        yield f"    risk_class: {risk}  {GUESS}"
        yield f"    effects: [{_quoted(tool.effect)}]  {GUESS}"
    else:
        yield "    risk_class: unknown"
        yield "    # effects: []  # nothing suggests what it does; a rule on intent refuses it"
    yield from _arguments(tool)
    if tool.reads:
        located = [key for key in _object(tool.arguments.get("properties")) if LOCATORS.search("_".join(_parts(key)))]
        if located:
            yield f"    locators: [{', '.join(map(_quoted, located))}]  {GUESS}"
    fields = _fields(tool, handles) if tool.reads else _made(tool)
    keys = {key: key.rpartition("/")[2].lower() for key in fields}
    if tool.reads:
        trusted = [key for key, label in fields.items() if label not in ("text", "member_text", "confidential", "self")]
        names = [key for key in trusted if keys[key] in NAMES or key in ("[]", "{}")]
        authors = [key for key in trusted if keys[key] in AUTHORS]
        if names:
            yield f"    names: [{', '.join(map(_quoted, names))}]  {GUESS}"
        if authors:
            yield f"    authors: [{', '.join(map(_quoted, authors))}]  {GUESS}"
    if fields:
        yield "    fields:"
        for key, label in fields.items():
            yield f"      {_quoted(key)}: {label}  {GUESS}"
    elif tool.reads:
        yield "    # fields: {}  # nothing is known of its results: all of them count as text"


def _space(tool: Tool) -> str:
    """Tools about one kind of things stand together: ids of what the user did not name are told apart from those he did."""
    end = next((at for at, word in enumerate(tool.words) if at > 1 and word in _PREPOSITIONS), len(tool.words))
    for nouns in (frozenset(tool.words[:end]) - {tool.verb}, tool.nouns):
        for words, space in _SPACES:
            if nouns & words or (tool.verb in words and not tool.reads):
                return space
    return next(
        (word.removesuffix("s") for word in tool.words if word in THINGS or word.removesuffix("s") in THINGS), "tools"
    )


def _arguments(tool: Tool) -> Iterator[str]:
    sinks: dict[str, str] = {}
    given = list(_leaves(tool.arguments, tool.arguments, "", 0))
    for path, one in given:
        sink = _sink(path, one, tool)
        key = path.rpartition("/")[2]
        # An inner key that stands in two places is told apart by its path.
        twice = sum(other.rpartition("/")[2] == key for other, _ in given) > 1
        sinks[path if twice else key] = sink
    if any(sinks.values()):
        yield "    arguments:"
    for key, sink in sinks.items():
        if sink:
            yield f"      {_quoted(key)}: {sink}  {GUESS}"
        else:
            yield f"      # {_quoted(key)}: ?  # nothing suggests what goes in there: only the user's own words pass"


def _sink(path: str, schema: Mapping[str, Any], tool: Tool) -> str:
    """What goes into an argument: by its last key, then by those around it, then by its description."""
    parts = _parts(path.rpartition("/")[2])
    words, around = frozenset(parts), frozenset(_parts(path))
    last = parts[-1] if parts else ""
    told = f"{schema.get('description') or ''} {schema.get('title') or ''}".lower()
    kind, form = schema.get("type"), schema.get("format")
    if form in ("uri", "url") or (words & URLS and kind not in ("boolean", "integer", "number")):
        return "url_fetch" if tool.reads else "url_post"
    if tool.reads:
        return "any"
    if words & (SECRETS | {"secret"}) or (last == "token" and not words & {"page", "next"}) or {"api", "key"} <= words:
        return "secret"
    pays = tool.effect in ("pay", "schedule_payment", "save_payee")
    known_id = last in ID or (last.endswith("id") and len(parts) == 1 and last not in ("paid", "grid", "bid", "valid"))
    if kind == "boolean" or "enum" in schema or "const" in schema:
        return "any"
    counted = not words & (PARTY | MAILBOX | {"account", "iban"}) or last in (
        "people",
        "guests",
        "participants",
        "attendees",
    )
    if last in ("number", "no", "num") and kind == "integer" and not words & {"page", "max", "min"}:
        return "object"
    if kind in ("integer", "number") and not known_id and counted:
        return "any"
    if "iban" in words or "iban" in told:
        return "payee"
    if words & {"from", "source", "debit"} and words & {"account", "card", "wallet"}:
        return "object"
    if pays and (around & (PARTY - {"owner"}) or words & {"account", "wallet", "address", "merchant"}):
        return "payee"
    if known_id:
        reaches = tool.effect in OUTWARD and tool.effect not in ("schedule", "ticket")
        return "address" if reaches and around & (PARTY - {"contact", "target", "owner"}) else "object"
    if form == "email" or (last in MAILBOX and last != "mail") or re.search(r"e-?mail address|phone number", told):
        return "address"
    if words & {"shipping", "delivery", "billing"} and "address" in words:
        return "address"
    if form in ("date", "date-time"):
        return "date"
    if last in ("filename", "filepath") or words & PATHS or {"file", "name"} <= words:
        return "path"
    if tool.effect == "run" and words & COMMANDS:
        return ""
    if words & (PARTY - {"destination", "target", "contact"}) and not (last in FREE and last not in ("name", "names")):
        return "address"
    if words & {"destination", "target", "contact"} and tool.effect in OUTWARD:
        return "address"
    if last in THINGS or (last in ("name", "names", "number", "code") and words & THINGS):
        return "object"
    if words & DATES and not words & (FREE - {"day"}):
        return "date"
    if last == "address":
        return "address" if tool.effect in ("send", "share", "invite", "save_contact") else "text"
    if words & FREE:
        return "text"
    if words & THINGS:
        return "object"
    return _by_description(told)


def _by_description(told: str) -> str:
    if re.search(r"\b(recipient|username|user name|e-?mail)\b", told):
        return "address"
    if re.search(r"\burl\b|\blink\b", told):
        return "url_post"
    if re.search(r"\b(id|identifier|uuid)\b", told):
        return "object"
    if re.search(r"\b(path|file ?name)\b", told):
        return "path"
    if re.search(r"\bdate\b|yyyy|iso 8601", told):
        return "date"
    if re.search(r"\b(text|message|content|title|description|name|note|comment)\b", told):
        return "text"
    return ""


# what comes back

_MAIL: Final = _set("email emails mail mails inbox mailbox gmail outlook")
_CHAT: Final = _set(
    "message messages channel channels chat chats dm dms slack conversation conversations thread threads inbox"
)
_FOLK: Final = _set(
    "contact contacts member members user users people person employee employees colleague colleagues directory staff team roster friend friends customer customers client clients patient patients "
    "doctor doctors participant participants"
)
_CLOSED: Final = _set(
    "member members channel team employee employees staff colleague colleagues roster participants users"
)
_BANK: Final = _set(
    "transaction transactions payment payments transfer transfers statement statements invoice invoices"
)
_PAYEE: Final = _set("payee payees beneficiary beneficiaries")
_SELF: Final = _set("iban me my myself profile self own whoami account")
_PLAIN: Final = _set(
    "page webpage website web url html article file document pdf readme text log logs content transcript link site"
)
_FILES: Final = _set("file files document documents drive folder folders directory docs")
_SCALARS: Final = _set("day date time id balance status price total count weekday datetime timezone")
_LINES: Final = _set(
    "review reviews comment comments message messages post posts line lines text texts note notes log logs feedback snippet snippets result results"
)
_USUAL: Final[Sequence[tuple[frozenset[str], Sequence[str]]]] = (
    (
        _MAIL,
        _row(
            "id id_ email_id message_id thread_id sender from to recipients cc bcc date timestamp subject body snippet content"
        ),
    ),
    (
        EVENTS,
        _row(
            "id id_ event_id title name summary patient customer doctor start_time end_time start end date organizer participants attendees description location"
        ),
    ),
    (_PAYEE, _row("id name iban account account_number")),
    (
        _BANK,
        _row("id sender recipient counterparty iban account amount date subject description reference recurring"),
    ),
    (
        _CHAT,
        _row("id message_id channel name sender from user author recipient date timestamp body text content message"),
    ),
    (_FOLK, _row("id name email phone username login handle title")),
    (
        _FILES,
        _row("id id_ file_id filename name title path owner shared_with created last_modified size url content"),
    ),
    (TICKETS, _row("id number key title name author assignee assignees status created updated url description body")),
)
_SPACES: Final[Sequence[tuple[frozenset[str], str]]] = (
    (_MAIL - {"inbox"} | {"reply", "forward"}, "mail"),
    (EVENTS, "calendar"),
    (_PAYEE | _BANK | MONEY | {"pay"}, "bank"),
    (TICKETS, "tickets"),
    (_CHAT, "chat"),
    (_FILES | DOCUMENTS, "files"),
    (_FOLK, "people"),
    (_set("web webpage website url"), "web"),
)
_OTHER: Final = _row(
    "id number name title customer supplier product company email phone url date status price description"
)


def _fields(tool: Tool, handles: frozenset[str]) -> dict[str, str]:
    """By the schema of the result where there is one, else by what such tools usually return."""
    nouns = tool.nouns
    output = _resolved(tool.result, tool.result)
    kind = output.get("type")
    about_user = "user" in nouns and bool(nouns & {"info", "information", "details", "data"})
    owner = not _object(tool.arguments.get("properties")) and bool(nouns & _SELF or about_user)
    # A list that the service writes itself, line by line; not what people wrote.
    enumerated = nouns & handles and nouns & {"all", "names"} and not nouns & (_LINES | _PLAIN | TEXTS)
    if enumerated and not output and "for" not in nouns:
        return {"": "system"}
    if kind in ("string", "integer", "number"):
        return {"": "self" if owner else "system" if nouns & _SCALARS or kind != "string" or enumerated else "text"}
    listed = _in_list(nouns)
    if output:
        declared = [(path, one) for path, one in _leaves(output, output, "", 0)]
        found = {
            key: label for path, one in declared for key, label in _label(path, one, tool, owner, handles, declared)
        }
        items = _resolved(output.get("items"), output)
        if items and not declared:
            return {"[]": listed}
        if output.get("additionalProperties") and not declared:
            if nouns & handles and not owner:
                reached = nouns & (MAILBOX | {"contact", "phone", "website"}) and not nouns & _LINES
                return {"{}": "system", "*": "system" if reached else "text"}
            return {key: label for key, label in _usual(tool, owner, handles).items() if key not in ("[]", "{}")}
        return found
    searches = "search" in (tool.verb, *nouns)
    if (
        not searches
        and nouns & _PLAIN
        and (
            tool.verb in ("read", "open", "fetch", "browse", "cat", "download", "scrape", "visit")
            or nouns & (_PLAIN - _FILES - {"text", "link"})
        )
    ):
        return {"": "text"}
    if owner and nouns & {"iban"}:
        return {"": "self"}
    if nouns & _SCALARS and not nouns & (_MAIL | EVENTS | _BANK | _FILES | _FOLK):
        return {"": "system"}
    return _usual(tool, owner, handles)


def _usual(tool: Tool, owner: bool, handles: frozenset[str]) -> dict[str, str]:
    keys = next((keys for words, keys in _USUAL if tool.nouns & words), _OTHER)
    declared = [(f"/{key}", _NO_SCHEMA) for key in keys]
    if owner:
        declared = [
            (f"/{key}", _NO_SCHEMA)
            for key in _row(
                "id name first_name last_name email phone phone_number iban account account_number bank_account_number address street city *password "
                "*passport_number *card_number *id_number ssn"
            )
        ]
    found = {key: label for path, one in declared for key, label in _label(path, one, tool, owner, handles, ())}
    found["*_id"] = "system"
    if tool.nouns & (handles | _FOLK) and not owner:
        found["[]"] = _in_list(tool.nouns)
        if tool.nouns & handles and not tool.nouns & (_MAIL | EVENTS | _BANK | _CHAT | _FILES | _FOLK):
            found["{}"] = "system"
    return found


_NO_SCHEMA: Final[Mapping[str, Any]] = {}


def _in_list(nouns: frozenset[str]) -> str:
    """Plain values in a list: what is listed says what they are."""
    if nouns & _PAYEE:
        return "payee"
    if nouns & _FOLK:
        return "{class: directory, roles: [user, member, people, everyone]}" if nouns & _CLOSED else "directory"
    if nouns & _LINES:
        return "text"
    return "label" if nouns & (_FILES | _MAIL | EVENTS) else "system"


def _label(
    path: str,
    schema: Mapping[str, Any],
    tool: Tool,
    owner: bool,
    handles: frozenset[str],
    declared: Sequence[tuple[str, Mapping[str, Any]]],
) -> Iterator[tuple[str, str]]:
    """(field, class) of a field, or nothing: it is text."""
    key = path.rpartition("/")[2]
    parts = _parts(key)
    name, nouns = "_".join(parts), tool.nouns
    label = _class(name, parts, schema, nouns, owner)
    if (
        name in TITLES
        and label == "label"
        and declared
        and not any(_parts(other)[-1:] == ["id"] for other, _ in declared)
    ):
        label = "system" if nouns & handles else label
    elif name in TITLES and label == "label" and nouns & handles and not nouns & (_MAIL | EVENTS | _FILES | _BANK):
        label = "system"
    if label:
        yield key, label


def _class(name: str, parts: Sequence[str], schema: Mapping[str, Any], nouns: frozenset[str], owner: bool) -> str:
    last = parts[-1] if parts else ""
    if CONFIDENTIAL.search(name) or name.endswith("id_number"):
        return "confidential"
    if owner and name not in TEXTS - {"location"}:
        return "self"
    if nouns & _PAYEE and name not in TEXTS:
        return "payee"
    if name in ("from_name", "sender_name"):
        return "label"
    if name in SENDERS or (name == "user" and nouns & _CHAT):
        if nouns & _CHAT and not nouns & (_MAIL - {"inbox"}):
            return "{class: directory, roles: [sender, user, author, member]}"
        word = (
            "sender"
            if name in ("from", "from_email", "from_address", "sent_by")
            else last
            if last != "by"
            else parts[0]
        )
        extra = ["reply", "respond"] if word == "sender" and nouns & _MAIL else []
        return f"{{class: system, roles: [{', '.join(dict.fromkeys([word, *extra]))}]}}"
    if name in RECEIVERS:
        words = (
            ["recipient", "everyone"] if name in ("to", "recipients", "recipient") else [name.removesuffix("s"), name]
        )
        if name in ("participants", "attendees", "guests", "invitees"):
            words = ["participant", "attendee", "invitee", "everyone"]
        return f"{{class: system, roles: [{', '.join(dict.fromkeys(words))}]}}"
    if last in ID or name in ("id", "number", "key") or (schema.get("format") in ("uuid",)):
        return "system"
    if nouns & _FOLK and not nouns & (_CHAT & {"message", "messages"}) and name not in TEXTS:
        known = name in TITLES or last in MAILBOX or last in ("login", "handle", "nickname")
        if known:
            return "{class: directory, roles: [user, member, people, everyone]}" if nouns & _CLOSED else "directory"
    if name in TEXTS or last in TEXTS:
        # What members of a closed circle write to each other may be looked up, and no more.
        return "member_text" if nouns & _CHAT and not nouns & (_MAIL - {"inbox"}) else "text"
    if name in TITLES or last in ("name", "title", "filename") or (name == "summary" and nouns & EVENTS):
        return "label"
    if name in SYSTEMS or last in ("url", "link", "amount", "status") or last in MAILBOX or WHEN.search(name):
        return "system"
    if schema.get("type") in ("integer", "number") or "enum" in schema or schema.get("format") in ("date", "date-time"):
        return "system"
    return ""


_MAKING: Final = _set(
    "create add make new schedule book reserve save write upload post publish generate open draft copy clone order buy register"
)


def _made(tool: Tool) -> dict[str, str]:
    """What a tool that makes something says of it."""
    if tool.verb not in _MAKING:
        return {}
    output = _resolved(tool.result, tool.result)
    keys: Iterable[str] = (path.rpartition("/")[2] for path, _ in _leaves(output, output, "", 0))
    if not output:
        keys = ("id", "id_", *(f"{noun}_id" for noun in sorted(tool.nouns & (THINGS | DOCUMENTS | EVENTS | TICKETS))))
    return {
        key: "created"
        for key in keys
        if (parts := _parts(key))
        and (parts[-1] in ID or parts[-1] in ("url", "link", "permalink", "path") or key == "number")
    }


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) and text.lower() not in _WORDS else json.dumps(text)


_WORDS: Final = frozenset({"on", "off", "yes", "no", "true", "false", "null", "y", "n"})
