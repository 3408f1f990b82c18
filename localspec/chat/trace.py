"""A trace of a reply: the proposer of each token, and the refused drafts."""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from localspec.chat.figures import source_name
from localspec.events import Draft, Event, Text
from localspec.models.detokenize import Detokenizer
from localspec.quantities import counted
from localspec.text import safe

Decode = Callable[[Sequence[int]], str]
CONTEXT = 4  # tokens before a draft that are decoded with it: some tokenizers drop the space before a first word


class Piece(NamedTuple):
    """The smallest part of a reply that can be displayed: one token, or several if a token ends within a character."""

    first: int  # token of the reply
    after: int
    text: str


class RefusedDraft(NamedTuple):
    """A refused subtree of a draft: the tokens and proposers of its likeliest path, and the number of its nodes."""

    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    drafted: int


@dataclass(frozen=True)
class TokenPlace:
    """The place of one token of a reply. Its decode step (`step`) produced the tokens `first` to `after - 1`.

    Steps count from 1; step 0 reads the prompt.
    """

    token: int
    source: str
    step: int
    first: int
    after: int
    drafted: int  # drafted tokens of the step
    refused: tuple[RefusedDraft, ...]  # at this place


class Trace:
    """A trace of one reply: its tokens, their proposers and all drafts. One thread adds events; any thread may read."""

    def __init__(self, prompt: str = "", decode: Decode = lambda _: "") -> None:
        self.prompt, self.decode = prompt, decode
        self.turn = 0  # its id in the history, if it is saved
        self.ended = self.untold = False  # untold: the server that answered does not report drafts
        self.tokens = array("I")
        self._sources: list[str] = []  # by token
        self._drafts: list[Draft] = []  # by step
        self._proposed: dict[tuple[str, ...], tuple[str, ...]] = {}  # the proposers of drafts, each kept once
        self._ends = array("I", [1])  # by step: the number of tokens after it; the prompt's step gives one
        self._corrected: list[bool] = []  # by step: whether another token was drafted in place of its last one

    def take(self, event: Event) -> None:
        """Add the tokens and drafts of an event."""
        if isinstance(event, Text):
            for draft in event.drafts:
                last = draft.path[-1]
                pairs = zip(_proposers(draft), draft.parents, strict=True)
                self._corrected.append(any(name and parent == last for name, parent in pairs))
                self._drafts.append(self._packed(draft))
                self._ends.append(self._ends[-1] + len(draft.path))
            self._sources += event.sources
            self.tokens.extend(event.tokens)

    def _packed(self, draft: Draft) -> Draft:
        """Return a copy that takes less memory: a chat keeps the drafts of all its replies."""
        sources = None if draft.sources is None else tuple(draft.sources)
        return Draft(
            array("I", draft.tokens), array("h", draft.parents),
            sources and self._proposed.setdefault(sources, sources),
            draft.probe, array("h", draft.path),
        )  # fmt: skip

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The number of decode steps; reading the prompt is not counted."""
        return len(self._ends) - 1

    def counts(self) -> dict[str, int]:
        """Count the tokens by proposer, the largest number first."""
        return dict(Counter(self._sources[: len(self.tokens)]).most_common())

    def source(self, token: int) -> str:
        """Return the proposer of a token: a drafter, or the target."""
        return self._sources[token]

    def corrected(self, token: int) -> bool:
        """Return whether another token was drafted in this token's place and refused."""
        step = bisect_right(self._ends, token)
        return 0 < step < len(self._ends) and token == self._ends[step] - 1 and self._corrected[step - 1]

    @property
    def corrections(self) -> int:
        """The number of tokens that the model picked in place of a drafted one."""
        return sum(self._corrected[: max(bisect_right(self._ends, len(self.tokens)) - 1, 0)])

    def place(self, token: int) -> TokenPlace:
        """Return the place of a token in the reply: its step, and the other tokens of that step."""
        step = bisect_right(self._ends, token)
        first = self._ends[step - 1] if step else 0
        if step == len(self._ends):  # a server's reply without drafts
            return TokenPlace(token, self.source(token), step, token, token + 1, 0, ())
        after = min(self._ends[step], len(self.tokens))
        if not step:
            return TokenPlace(token, self.source(token), 0, 0, after, 0, ())
        draft = self._drafts[step - 1]
        drafted = sum(map(bool, _proposers(draft)))
        refused = tuple(_refused_after(draft, token - first))
        return TokenPlace(token, self.source(token), step, first, after, drafted, refused)

    def texts(self, count: int, tokens: Sequence[int]) -> list[str]:
        """Decode `tokens` as if they followed the first `count` tokens of the reply. Return one text for each token."""
        pieces = Detokenizer(self.decode)
        for token in self.tokens[max(count - CONTEXT, 0) : count]:
            pieces.add(token)
        pieces.flush()
        texts = [pieces.add(token) for token in tokens]
        if texts:
            texts[-1] += pieces.flush()
        return texts


def _proposers(draft: Draft) -> list[str]:
    """Return the proposer of each node (drafted token) of a tree; empty for the root and for nodes marked as probes."""
    names = ["", *(draft.sources or ["drafter"] * len(draft.tokens))[1:]]
    probes = draft.probe or [False] * len(names)
    return ["" if probe else name for probe, name in zip(probes, names, strict=True)]


def _refused_after(draft: Draft, depth: int) -> Iterator[RefusedDraft]:
    """Yield each subtree that the model refused below the accepted node at this depth of the draft tree."""
    tokens, path, proposers = draft.tokens, draft.path, _proposers(draft)
    below: list[list[int]] = [[] for _ in tokens]
    for node, parent in enumerate(draft.parents):
        if proposers[node]:
            below[parent].append(node)
    accepted = tokens[path[depth + 1]] if depth + 1 < len(path) else None
    for node in below[path[depth]]:
        if node in path or tokens[node] == accepted:
            continue
        chain, size, heap = [node], 0, [node]
        while below[chain[-1]]:
            chain.append(below[chain[-1]][0])
        while heap:
            size += 1
            heap += below[heap.pop()]
        yield RefusedDraft(tuple(tokens[link] for link in chain), tuple(proposers[link] for link in chain), size)


class Pieces:
    """The decoded text of a reply, in pieces (`Piece`) of one or a few tokens. `grow` decodes the newest tokens."""

    def __init__(self, trace: Trace) -> None:
        self._trace, self._detokenizer = trace, Detokenizer(self._decode)
        self._added = 0  # tokens
        self._first, self._text = 0, ""  # of those that do not yet end with a whole character
        self.all: list[Piece] = []

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._trace.decode(tokens)  # the server may send it later

    @property
    def has_more(self) -> bool:
        """Return whether there is text that `grow` has not added yet."""
        open_end = self._trace.ended and self._first < self._added
        return self._added < len(self._trace.tokens) or open_end

    def grow(self) -> int:
        """Decode new tokens, and return the number of new pieces (`Piece`). Use this from one thread at a time."""
        count, trace = len(self.all), self._trace
        ended, end = trace.ended, len(trace.tokens)  # in this order
        for token in trace.tokens[self._added : end]:
            self._added += 1
            self._text += self._detokenizer.add(token)
            if self._text and not self._detokenizer.pending:
                self._close()
        if ended and self._first < self._added:
            self._text += self._detokenizer.flush()
            self._close()
        return len(self.all) - count

    def at(self, token: int) -> int:
        """Return the index in `all` of the `Piece` that contains a token, or of the last if it is not decoded yet."""
        return bisect_right(self.all, token, key=lambda piece: piece.first) - 1

    def _close(self) -> None:
        self.all.append(Piece(self._first, self._added, self._text))
        self._first, self._text = self._added, ""


UNTOLD = "A server answers, and servers do not report who proposed each token."
NO_TRACE = "This reply is from an earlier session; who proposed its tokens was not saved."


def overview(trace: Trace) -> str:
    """Return the number of tokens, and the number of steps if known, as text."""
    tokens, steps = len(trace.tokens), trace.steps
    if not steps:
        return counted(tokens, "token")
    all_tokens, all_steps, rate = counted(tokens, "token"), counted(steps, "step"), (tokens - 1) / steps
    return f"{all_tokens} in {all_steps}, {rate:.1f} tokens/step"


def proposers(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield all proposers of tokens, with counts in words, the largest number first."""
    total = len(trace.tokens)
    for source, count in trace.counts().items():
        proposer, share = source_name(source), count / total
        yield source, f"{proposer} {count} ({share:.0%})"


def visible(text: str) -> str:
    """Return a text made safe, in one line and in quotes, because spaces matter."""
    return '"' + safe(text).replace("\n", "⏎").replace("\t", "⇥") + '"'


def about(trace: Trace, piece: Piece) -> Iterator[str]:
    """Yield lines about a piece (one or a few tokens): its proposer, its step, and the refused drafts in its place."""
    place = trace.place(piece.first)
    total, several = len(trace.tokens), piece.after - piece.first > 1
    tokens = f"tokens {piece.first + 1}–{piece.after}" if several else f"token {piece.first + 1}"
    names = dict.fromkeys(source_name(trace.source(token)) for token in range(piece.first, piece.after))
    text, who = visible(piece.text), ", ".join(names)
    yield f"{text}  {tokens} of {total}, by {who}"
    yield _step(trace, place)
    for token in range(piece.first, piece.after):
        token_place = trace.place(token)
        if token_place.refused:
            yield "refused drafts in this place:"
            yield from (f"  {_refused(trace, token, draft)}" for draft in token_place.refused)
            return
    yield _why_no_draft(place)


def _step(trace: Trace, place: TokenPlace) -> str:
    if not place.step:
        return "first token: it comes from reading the prompt, so nothing was drafted"
    text = visible("".join(trace.texts(place.first, trace.tokens[place.first : place.after])))
    tokens, step = counted(place.after - place.first, "token"), place.step
    if place.drafted:
        return f"step {step} drafted {place.drafted} and gave {tokens}: {text}"
    return f"step {step} gave {tokens}: {text}"


def _refused(trace: Trace, token: int, refused: RefusedDraft) -> str:
    text = "".join(trace.texts(token, refused.tokens))
    names = ", ".join(dict.fromkeys(map(source_name, refused.sources)))
    others = refused.drafted - len(refused.tokens)
    words = f"{visible(text)}  {names}"
    return f"{words}, with {counted(others, 'token')} on other branches" if others else words


def _why_no_draft(place: TokenPlace) -> str:
    if not place.drafted:
        return "nothing was drafted in this step" if place.step else "nothing is drafted before the first token"
    if place.source == "target":
        return "every drafted token before this one was accepted, and nothing was drafted here"
    return "no other token was drafted here"


def step_by_step(trace: Trace) -> Iterator[str]:
    """Yield the trace of a whole reply in lines. Consecutive steps without drafts share a line."""
    yield f"{overview(trace)}: {', '.join(words for _, words in proposers(trace))}"
    pieces = Pieces(trace)
    pieces.grow()

    def drafting_step(piece: Piece) -> int:
        place = trace.place(piece.first)
        return place.step if place.drafted else 0

    for _, group in groupby(pieces.all, drafting_step):
        members = [*group]
        step, last = (trace.place(piece.first).step for piece in (members[0], members[-1]))
        parts = groupby(members, lambda piece: source_name(trace.source(piece.after - 1)))
        line = ", ".join(f"{visible(''.join(piece.text for piece in some))} {name}" for name, some in parts)
        tokens = (token for piece in members for token in range(piece.first, piece.after))
        refused = [_refused(trace, token, draft) for token in tokens for draft in trace.place(token).refused]
        steps = str(step) if step == last else f"{step} to {last}"
        yield f"{steps}: {line}" + (f"; refused drafts: {'; '.join(refused)}" if refused else "")
