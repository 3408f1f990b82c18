"""Prompts on their way to the model: the one that is being answered, and those that wait for their turn."""

from localspec.chat.attachments import GIVEN, Written


class Outbox:
    """At most one prompt is being answered. The text of files that were given goes before the next one."""

    def __init__(self, first: str | None, files: str) -> None:
        self.waiting = [Written(first)] if first else []
        self.files = files
        self.asked: Written | None = None
        self._given = ""  # of those files, what the one that is answered has

    @property
    def empty(self) -> bool:
        """Whether nothing is answered and nothing waits."""
        return self.asked is None and not self.waiting

    @property
    def typed(self) -> list[str]:
        """What waits, as it was typed."""
        return [one.typed for one in self.waiting]

    def take(self) -> Written:
        """The one that has waited longest is answered now."""
        self.asked = self.waiting.pop(0).behind(self.files, GIVEN)
        self._given, self.files = self.files, ""
        return self.asked

    def ended(self) -> Written | None:
        """The one that was answered, which no longer is."""
        asked, self.asked = self.asked, None
        return asked

    def refused(self) -> None:
        """The one that ended got no answer: the files that were given go before the next one."""
        self.files = self._given

    def drop_waiting(self) -> str:
        """What waits, which is answered no more."""
        dropped, self.waiting = self.typed, []
        return "\n\n".join(dropped)

    def unsent(self, begun: bool) -> list[str]:
        """What would be lost with this process; `begun`: what is being answered is in the history already."""
        return [*([] if begun or self.asked is None else [self.asked.typed]), *self.typed]
