"""An engine that writes scripted replies, with the steps and at the moments that a test chooses, and a chat with it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clocks import PATIENCE
from textual.events import Key
from textual.keys import _character_to_key
from textual.pilot import Pilot

from localspec.chat.conversation import Conversation
from localspec.chat.start import StartedChat
from localspec.config import Settings
from localspec.decoding.exactness import Exactness
from localspec.engine.reply_settings import requested_sampling
from localspec.errors import UsageMistake
from localspec.events import Done, Event, Memory, Prefill, Statistics, Text
from localspec.models.registry import TargetCard
from localspec.store.store import Store
from localspec_tui.app import ChatApp
from localspec_tui.engine_thread import EngineThread
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.widgets.message_view import PromptView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.reply_view import ReplyView
from localspec_tui.widgets.status_line import LiveLine

NAMES = {"\n": "ctrl+j"}

Step = str | Event | threading.Event | Exception


class Thought(str):
    """A step whose text is a thought, not part of the answer."""

    __slots__ = ()


def statistics(tokens: int = 3, off_reason: str | None = None) -> Statistics:
    return Statistics(
        token_ids=tuple(range(tokens)), prompt_tokens=5, reused_tokens=0, prefill_seconds=0.1, first_token_seconds=0.1,
        decode_seconds=0.5, draft_seconds=0.1, verify_seconds=0.3, step_seconds=0.45, tokens_per_second=40.0, steps=2,
        acceptance_length=1.5, acceptance_by_depth=(0.5,), drafted=4, accepted=1, sources={"target": tokens},
        off_reason=off_reason, memory=Memory(1, 1, 1, 1),
    )  # fmt: skip


def so_far(tokens: int) -> Statistics:
    """Return the figures of an unfinished reply of `tokens` steps, each of one token and a tenth of a second."""
    speed, length = (10.0, 1.0) if tokens > 1 else (0.0, 0.0)
    return replace(statistics(tokens), tokens_per_second=speed, steps=tokens - 1, acceptance_length=length)


class ScriptedEngine:
    """An engine that answers each prompt with the next script: text, events, gates to wait for, and errors to raise.

    A script that ends without `Done` gets one.
    """

    context = 1024
    generation: Mapping[str, Any] = {"do_sample": False}

    def __init__(self, *scripts: Sequence[Step], device: str = "cpu") -> None:
        self.scripts = list(scripts)
        self.asked: list[list[Mapping[str, str]]] = []
        self.asked_with: list[tuple[Any, Any]] = []  # sampling and limits
        self.thought: list[bool | None] = []  # whether it was asked to think
        self.lent: list[bool] = []  # a core, and that it is given back
        self.switch: bool | None = None  # whether it thinks by default; None without a switch
        self.choice = SimpleNamespace(
            engine="native", dtype="fp32", quantize="none", device=device, drafter="phrases", nodes=8, pace=(), bits=0.0
        )
        self.costs, self.parameters = None, 760_652_800
        self.exactness = Exactness(True, 2)
        memory = Memory(2**28, 2**26, 2**20, 2**29)
        self.session = SimpleNamespace(statistics=None, so_far=None, memory=memory)
        self.said: list[bytes] = []  # by token id

    def ids(self, *pieces: str | bytes) -> tuple[int, ...]:
        """Return tokens for these pieces of text, which may be halves of characters."""
        self.said += (piece.encode() if isinstance(piece, str) else piece for piece in pieces)
        return tuple(range(len(self.said) - len(pieces), len(self.said)))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.said[one] for one in ids).decode(errors="replace")

    def count_tokens(self, text: str) -> int:
        return len(text)

    @property
    def freed_memory(self) -> tuple[str, int]:
        return "cpu", 0

    def sampling(self, settings: Settings) -> Any:
        return requested_sampling(
            replace(settings, seed=7 if settings.seed is None else settings.seed), self.generation
        )

    def thinking(self, settings: Settings, system: str | None = None) -> bool | None:
        """Switch thinking, as a chat template would, unless `switch` is None."""
        if self.switch is None and settings.think is not None:
            raise UsageMistake("The chat template of scripted has no switch for thinking.")
        return settings.think

    def thinks_by_itself(self, system: str | None = None) -> bool | None:
        return self.switch

    def lend_core(self, lent: bool) -> None:
        self.lent.append(lent)

    def chat(
        self, messages: Sequence[Mapping[str, str]], sampling: Any, limits: Any = None, think: bool | None = None
    ) -> Generator[Event]:
        self.asked.append(list(messages))
        self.thought.append(think)
        self.asked_with.append((sampling, limits))
        script = self.scripts.pop(0) if self.scripts else ["Well."]
        if script and isinstance(script[0], Exception):  # refused before anything happens, as a prompt too long is
            raise script[0]
        return self._events(script)

    def _events(self, script: Sequence[Step]) -> Generator[Event]:
        self.session.statistics = statistics()
        self.session.so_far = None
        yield Prefill(5, 5)
        said = thought = 0

        def so(now: Statistics) -> Statistics:
            return replace(now, reasoning_tokens=thought, reasoning_seconds=0.1 * thought)

        for step in script:
            match step:
                case str():
                    thinks = isinstance(step, Thought)
                    said, thought = said + 1, thought + thinks
                    self.session.so_far = so(so_far(said))
                    self.said.append(step.encode(errors="replace"))
                    text, reasoning = ("", str(step)) if thinks else (str(step), "")
                    ids, seconds = (len(self.said) - 1,), 0.1 * said
                    yield Text(text, ids, ("target",), seconds, said - 1, (), reasoning, int(thinks))
                case threading.Event():
                    assert step.wait(PATIENCE), "nobody opened the gate"
                case Exception():
                    raise step
                case _:
                    if isinstance(step, Done):
                        self.session.so_far = step.statistics
                    yield step
        if not (script and isinstance(script[-1], Done)):
            self.session.so_far = so(statistics(said))
            yield Done("stop", self.session.so_far)


class ScriptedChat:
    """The application with scripted engines. `models` has the result of loading each name: engine, gate or error."""

    def __init__(self, home: Path, *scripts: Sequence[Step], settings: Settings | None = None, **about: Any) -> None:
        self.settings = settings or Settings()
        self.engine = ScriptedEngine(*scripts)
        self.models: dict[str, Any] = {"scripted": self.engine}
        self.loaded: list[str] = []
        self.database = home / "localspec.db"
        self.notices: list[str] = []  # sent while opening
        self.opening_error: Exception | None = None
        self.may_open = threading.Event()
        self.may_open.set()
        self.resumed: int | None = None
        self.conversation: Conversation
        self.thread = EngineThread(self.settings, self._open, self._load)
        self.app = ChatApp(self.thread, self.settings, **about)
        self.app.animation_level = "none"  # what scrolls is there at once, however busy the machine is

    def _open(self, at_the_end: ExitStack, notice: Callable[[str], None]) -> StartedChat:
        assert self.may_open.wait(PATIENCE)
        if self.opening_error:
            raise self.opening_error
        store = at_the_end.enter_context(Store.open(self.database, notice))
        for sentence in self.notices:
            notice(sentence)
        history = store.history if self.settings.log else None
        self.conversation = Conversation(history, "scripted", self.settings.system, notice)
        if self.resumed is not None:
            found = store.history.read(self.resumed)
            assert found is not None
            self.conversation = Conversation.resume(history, found, "scripted", notice)
        return StartedChat(card("scripted"), store, self.conversation)

    def _load(self, settings: Settings, asked: TargetCard, *, store: Any, notice: Any, progress: Any) -> Any:
        self.loaded.append(asked.name)
        progress(f"loading {asked.name}")
        how = self.models[asked.name]
        for step in how if isinstance(how, list) else [how]:
            if isinstance(step, threading.Event):
                assert step.wait(PATIENCE), "nobody opened the gate"
            elif isinstance(step, Exception):
                raise step
            elif callable(step):
                step(notice, progress)
            else:
                return step
        raise AssertionError("a model's script ends in an engine or an error")

    def play(
        self,
        story: Callable[[Pilot[None]], Awaitable[None]],
        size: tuple[int, int] = (100, 30),
        ready: bool = True,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Run the application and the story in a loop that is closed before `then` happens; see `playing`."""

        async def run() -> None:
            async with self._running(size, ready) as pilot:
                await story(pilot)

        try:
            asyncio.run(run())
            then()
        finally:
            assert self.thread.close(PATIENCE)

    @asynccontextmanager
    async def playing(self, size: tuple[int, int] = (100, 30), ready: bool = True) -> AsyncGenerator[Pilot[None]]:
        """Run the application; `ready`: the block begins when the model is loaded."""
        try:
            async with self._running(size, ready) as pilot:
                yield pilot
        finally:
            assert self.thread.close(PATIENCE)

    @asynccontextmanager
    async def opened(
        self, size: tuple[int, int] = (100, 30), ready: bool = True
    ) -> AsyncGenerator[tuple["ScriptedChat", Pilot[None]]]:
        """Run the application as `playing` does, for a chat that is not prepared any further."""
        async with self.playing(size, ready) as pilot:
            yield self, pilot

    @asynccontextmanager
    async def _running(self, size: tuple[int, int], ready: bool) -> AsyncGenerator[Pilot[None]]:
        async with self.app.run_test(size=size, notifications=True) as pilot:
            if ready:
                await until(pilot, self.idle)
            yield pilot

    # -- what is so ---------------------------------------------------------------------------------------------------

    def idle(self) -> bool:
        """Return whether a model is loaded, and no reply is running or waiting."""
        screen = self.app._chat
        return screen.outbox.model_loaded and screen.outbox.empty

    def prompts(self) -> list[str]:
        return [view.source for view in self.app._chat.query(PromptView)]

    def replies(self) -> list[str]:
        return [view.source for view in self.app._chat.query(ReplyView)]

    @property
    def typed(self) -> str:
        return self.app._chat.query_one(Prompt).text

    @property
    def live(self) -> str:
        return str(self.app._chat.query_one(LiveLine).render())

    def screen_text(self) -> str:
        """Return the text of the screen, line by line."""
        width, height = self.app.size
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.ljust(width) for strip in strips[:height])

    def kept(self) -> list[tuple[str, str, str | None]]:
        """Return (prompt, reply, reason) of the newest conversation in the store."""
        with Store.open(self.database, print) as store:
            newest = store.history.latest()
            saved = store.history.read(newest) if newest else None
            return [(turn.prompt, turn.reply, turn.reason) for turn in saved.turns] if saved else []


def card(name: str) -> TargetCard:
    return TargetCard(name, Path("/models") / name, None, f"the {name} one")


def back(talk: ScriptedChat) -> Callable[[], bool]:
    """Return whether the chat's own screen is in front again."""
    return lambda: isinstance(talk.app.screen, ChatScreen)


async def say(pilot: Pilot[None], prompt: str) -> None:
    """Type a line and press Enter, faster than the screen is drawn."""
    driver = pilot.app._driver
    assert driver is not None
    for character in prompt:
        key = Key(NAMES.get(character, _character_to_key(character)), character)
        key.set_sender(pilot.app)
        driver.send_message(key)
    await pilot.press("enter")


async def talked(talk: ScriptedChat, pilot: Pilot[None], *prompts: str) -> None:
    """Send prompts one after the other, each after the answer to the one before."""
    for prompt in prompts:
        await say(pilot, prompt)
        await until(pilot, talk.idle)


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Run the application until the condition holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE
    while not condition():
        assert loop.time() < end, "it never came to pass"
        await pilot.pause(0.01)
    await pilot.pause()
