"""A paragraph to which text is added: the lines that are whole stay as they were drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich._wrap import divide_line
from textual.content import Content, Span
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import _RenderCache
from textual.widgets._markdown import MarkdownParagraph


class Wrapped(NamedTuple):
    """A text without line ends, the columns it was wrapped in, and where each line but the first begins."""

    content: Content
    width: int
    breaks: list[int]

    @property
    def rows(self) -> int:
        """Its lines."""
        return len(self.breaks) + 1

    def instead(self, content: Content) -> tuple["Wrapped", int]:
        """Another text in as many columns, and how many of its first lines are the same as these.

        A line and the begin of the one after it follow from the words between them alone: so they stay where all that
        the line holds stays.
        """
        text = content.plain
        usual = self.width > 1 and not text[:1].isspace()  # no character is wider, and no word begins with a blank
        same = _same(self.content, content) if usual else 0
        stay = max(sum(one <= same for one in self.breaks) - 1, 0)
        while stay and not (text[self.breaks[stay - 1] - 1].isspace() and not text[self.breaks[stay - 1]].isspace()):
            stay -= 1  # within a word longer than a line
        kept = self.breaks[:stay]
        begin = kept[-1] if kept else 0
        more = divide_line(text[begin:], self.width)
        return Wrapped(content, self.width, [*kept, *(begin + one for one in more)]), stay


def _same(one: Content, other: Content) -> int:
    """How many characters at the beginning are the same, and look so."""
    same = len(one.plain)
    if not other.plain.startswith(one.plain):
        pairs = enumerate(zip(one.plain, other.plain, strict=False))
        same = next((at for at, (before, now) in pairs if before != now), min(same, len(other.plain)))
    changed = _until(one, same).symmetric_difference(_until(other, same))
    return min((span.start for span in changed), default=same)


def _until(content: Content, end: int) -> set[Span]:
    return {Span(span.start, min(span.end, end), span.style) for span in content.spans if span.start < end}


class GrowingParagraph(MarkdownParagraph):
    """Textual's own wraps and draws all of it whenever a word is added, and has the whole screen laid out."""

    _wrapped: Wrapped | None = None  # what is shown, or will be; None where Textual sees to it
    _how: tuple[object, ...] = ()  # it was drawn
    _whole = 0  # lines of those that were drawn last that are as they should be
    _stay: int | None = None  # while what comes after so many lines is all that is new

    def set_content(self, content: Content) -> None:
        if self._wrapped is None or self._wrapped.width != self.size.width or not _is_one_line(content):
            self._wrapped = None
            super().set_content(content)
            return
        self._content = content
        self._wrapped, stay = self._wrapped.instead(content)
        self._whole = min(self._whole, stay)
        with self._only_after(stay):
            self.update(content, layout=self._wrapped.rows != self.size.height)

    @contextmanager
    def _only_after(self, stay: int) -> Iterator[None]:
        self._stay = stay
        try:
            yield
        finally:
            self._stay = None

    def _set_dirty(self, *regions: Region) -> None:
        if not regions and self._stay is not None and self._wrapped is not None:
            rows = max(self._wrapped.rows, self.size.height)
            regions = (Region(0, self._stay, self._wrapped.width, rows - self._stay),)
        elif not regions:
            self._whole = 0
        super()._set_dirty(*regions)

    def _size_updated(self, size: Size, *others: Any, **named: Any) -> bool:
        """Where it becomes longer its first lines stay."""
        if self._wrapped is None or size.width != self._size.width:
            return super()._size_updated(size, *others, **named)
        with self._only_after(min(self._whole, size.height)):
            return super()._size_updated(size, *others, **named)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if self._wrapped is not None and width == self._wrapped.width:
            return self._wrapped.rows
        return super().get_content_height(container, viewport, width)

    def _render_content(self) -> None:
        content, size = self._render(), self.size
        selects = self.text_selection is not None or self.screen._selecting
        if not isinstance(content, Content) or not size.width or selects or not _is_one_line(content):
            self._wrapped = None
            super()._render_content()
            return
        how = self.visual_style, self.link_style
        wrapped, stay = self._wrapped, self._whole if how == self._how else 0
        if wrapped is None or wrapped.content is not content or wrapped.width != size.width:
            wrapped, stay = Wrapped(Content(), size.width, []).instead(content)
        stay = min(stay, len(wrapped.breaks))
        begin = wrapped.breaks[stay - 1] if stay else 0
        rest = content.divide([begin])[1] if begin else content
        lines = rest._wrap_and_format(size.width, align=self.styles.text_align, get_style=self._get_style)
        strips = self._render_cache.lines[:stay]
        for line in lines:
            line.x += begin
            strip = Strip(*line.to_strip(self.visual_style))
            strips.append(strip._apply_link_style(self.link_style) if rest.spans else strip)
        self._render_cache = _RenderCache(size, strips)
        self._dirty_regions.clear()
        self._wrapped, self._how, self._whole = wrapped, how, len(strips)


def _is_one_line(content: Content) -> bool:
    return "\n" not in content.plain and "\t" not in content.plain
