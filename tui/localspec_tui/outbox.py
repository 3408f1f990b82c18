"""Prompts on their way to the model: the one that is being answered, and those that wait for their turn."""

from localspec.chat.attachments import GIVEN, Written


class Outbox:
    """Prompts without a reply. At most one is under way; the text of files that were given goes before the next one."""

    def __init__(self, first: str | None, files: str) -> None:
        self.waiting = [Written(first)] if first else []
        self.files = files
        self.under_way: Written | None = None
        self.model_loaded = False
        self.to_be_shown = 1  # conversations that were requested; prompts wait until the last one is shown
        self._given = ""  # those files whose text goes with the prompt under way

    @property
    def empty(self) -> bool:
        """Return whether no prompt is under way and none waits."""
        return self.under_way is None and not self.waiting

    @property
    def ready(self) -> bool:
        """Return whether the next prompt could be answered now."""
        return self.model_loaded and self.under_way is None and not self.to_be_shown

    @property
    def typed(self) -> list[str]:
        """Return the waiting prompts, as they were typed."""
        return [one.typed for one in self.waiting]

    def take(self) -> Written:
        """Return the prompt that has waited longest; it is under way now."""
        self.under_way = self.waiting.pop(0).behind(self.files, GIVEN)
        self._given, self.files = self.files, ""
        return self.under_way

    def end(self) -> Written | None:
        """Return the prompt that was under way."""
        ended, self.under_way = self.under_way, None
        return ended

    def refuse(self) -> None:
        """Take back the given files, for the ended prompt got no reply: they go before the next one."""
        self.files = self._given

    def drop_waiting(self) -> str:
        """Return the waiting prompts as one text; they wait no more."""
        dropped, self.waiting = self.typed, []
        return "\n\n".join(dropped)

    def unsent(self, begun: bool) -> list[str]:
        """Return the prompts that this process would lose. `begun`: the one under way is in the history already."""
        return [*([] if begun or self.under_way is None else [self.under_way.typed]), *self.typed]
