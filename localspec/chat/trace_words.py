"""What a person reads of who proposed a reply, and of what was drafted beside it."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from localspec.chat.trace import Piece, Pieces, Place, Refused, Trace
from localspec.chat.wording import source_name
from localspec.quantities import counted
from localspec.text import safe

UNTOLD = "A server answers, and tells too little of who proposed what."
NOTHING_KEPT = (
    "This reply is from an earlier session, and who proposed its tokens is kept only as long as a session lasts."
)


def overview(trace: Trace) -> str:
    """How many tokens came, and in how many steps where that was told."""
    tokens, steps = len(trace.tokens), trace.steps
    if not steps:
        return counted(tokens, "token")
    return f"{counted(tokens, 'token')} in {counted(steps, 'step')}, {(tokens - 1) / steps:.1f} tokens/step"


def proposers(trace: Trace) -> Iterator[tuple[str, str]]:
    """Everybody who proposed tokens, and how many in words, the most first."""
    total = len(trace.tokens)
    for source, count in trace.counts().items():
        yield source, f"{source_name(source)} {count} ({count / total:.0%})"


def visible(text: str) -> str:
    """Safe, in one line, and in quotes: blanks count."""
    return '"' + safe(text).replace("\n", "⏎").replace("\t", "⇥") + '"'


def about(trace: Trace, piece: Piece) -> Iterator[str]:
    """Sentences on a piece of a reply: what it is, its step, and what was refused where it stands."""
    place = trace.place(piece.first)
    total, several = len(trace.tokens), piece.after - piece.first > 1
    which = f"tokens {piece.first + 1}–{piece.after} together" if several else f"token {piece.first + 1}"
    names = dict.fromkeys(source_name(trace.source(token)) for token in range(piece.first, piece.after))
    yield f"{visible(piece.text)}  {which} of {total}, by {', '.join(names)}"
    yield _step(trace, place)
    for token in range(piece.first, piece.after):
        found = trace.place(token)
        if found.refused:
            yield "drafted here and refused:"
            yield from (f"  {_refused(trace, token, one)}" for one in found.refused)
            return
    yield _why_nothing(place)


def _step(trace: Trace, place: Place) -> str:
    if not place.step:
        return "it came with the reading of the prompt"
    text = "".join(trace.texts(place.first, trace.tokens[place.first : place.after]))
    drafted = f", of {place.drafted} drafted" if place.drafted else ""
    return f"step {place.step} brought {counted(place.after - place.first, 'token')}{drafted}: {visible(text)}"


def _refused(trace: Trace, token: int, refused: Refused) -> str:
    text = "".join(trace.texts(token, refused.tokens))
    names = ", ".join(dict.fromkeys(map(source_name, refused.sources)))
    more = refused.drafted - len(refused.tokens)
    return f"{visible(text)}  {names}" + (f", and {counted(more, 'token')} beside it" if more else "")


def _why_nothing(place: Place) -> str:
    if not place.drafted:
        return "nothing was drafted in this step" if place.step else "nothing is drafted before a first token"
    if place.source == "target":
        return "all that was drafted before it was right, and nothing was drafted here"
    return "nothing else was drafted here"


def step_by_step(trace: Trace) -> Iterator[str]:
    """A whole reply in lines, for those who read it without a screen; steps without drafts that follow are one."""
    yield f"{overview(trace)}: {', '.join(words for _, words in proposers(trace))}"
    pieces = Pieces(trace)
    pieces.grow()

    def drafting_step(piece: Piece) -> int:
        place = trace.place(piece.first)
        return place.step if place.drafted else 0

    for _, group in groupby(pieces.all, drafting_step):
        said = [*group]
        step, last = (trace.place(piece.first).step for piece in (said[0], said[-1]))
        parts = groupby(said, lambda piece: source_name(trace.source(piece.after - 1)))
        line = ", ".join(f"{visible(''.join(piece.text for piece in some))} {name}" for name, some in parts)
        refused = [*_all_refused(trace, said)]
        steps = str(step) if step == last else f"{step} to {last}"
        yield f"{steps}: {line}" + (f"; refused: {'; '.join(refused)}" if refused else "")


def _all_refused(trace: Trace, pieces: Sequence[Piece]) -> Iterator[str]:
    for piece in pieces:
        for token in range(piece.first, piece.after):
            yield from (_refused(trace, token, one) for one in trace.place(token).refused)
