"""What has come of a reply whose server died, and what of the same reply from elsewhere is still to come."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.events import Draft, Event, Prefill, Text
from localspec.serving.over_socket import Gone


class WhatCame:
    """Text, thoughts and tokens so far; then, as the same reply comes again, those that are left of them."""

    def __init__(self) -> None:
        self._text = self._reasoning = ""
        self._tokens = 0
        self._some = False
        self._first = 1  # token of the next text, if that is the first one: the prompt's step brought it

    def take(self, event: Event) -> None:
        """It has come."""
        if isinstance(event, Text):
            self._text, self._reasoning = self._text + event.text, self._reasoning + event.reasoning
            self._tokens, self._some = self._tokens + len(event.tokens), True

    def rest_of(self, event: Event) -> Event | None:
        """What of an event of the same reply has not come; None where all of it has. Raises Gone for another reply."""
        match event:
            case Prefill():
                return None if self._some else event  # what reads it would begin anew
            case Text() if self._text or self._reasoning or self._tokens:
                return self._rest_of(event)
        return event

    def _rest_of(self, event: Text) -> Text | None:
        for new, old in ((event.text, self._text), (event.reasoning, self._reasoning)):
            if not (old.startswith(new) or new.startswith(old)):
                raise Gone(
                    "The server was gone in the middle of the reply, and here it would be another one; ask again."
                )
        cut, first, self._first = min(self._tokens, len(event.tokens)), self._first, 0
        rest = replace(
            event,
            text=event.text[len(self._text) :],
            reasoning=event.reasoning[len(self._reasoning) :],
            tokens=event.tokens[cut:],
            sources=event.sources[cut:],
            drafts=_without(event.drafts, cut - first) if cut else event.drafts,
            reasoning_tokens=max(0, event.reasoning_tokens - cut),
        )
        self._text, self._reasoning = self._text[len(event.text) :], self._reasoning[len(event.reasoning) :]
        self._tokens -= cut
        return rest if rest.text or rest.reasoning or rest.tokens else None


def _without(drafts: Sequence[Draft], tokens: int) -> tuple[Draft, ...]:
    """The drafts without those that brought the first so many tokens; of one in between, its end."""
    rest, left = [], max(0, tokens)
    for draft in drafts:
        if left < len(draft.path):
            rest.append(_end_of(draft, left) if left else draft)
        left = max(0, left - len(draft.path))
    return tuple(rest)


def _end_of(draft: Draft, tokens: int) -> Draft:
    """The accepted chain after so many tokens."""
    path = draft.path[tokens:]
    return Draft(
        tokens=[draft.tokens[node] for node in path],
        parents=range(-1, len(path) - 1),
        sources=draft.sources and [draft.sources[node] for node in path],
        probe=None,
        path=range(len(path)),
    )
