"""Carries out the slash commands, such as `/model`, in the full-screen chat."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.chat.sampling import SHOW, parse_think, split
from localspec.errors import UsageMistake

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
    from localspec_tui.screens.chat import ChatScreen


async def _resume(chat: "ChatScreen", number: str) -> None:
    if not number:
        chat.action_conversations()
    elif number.isdecimal():
        await asyncio.to_thread(chat.conversations.check, int(number))
        chat.conversations.resume(int(number))
    else:
        raise UsageMistake(
            f"/resume needs the number of a conversation, not {number}; /resume without a number lists the "
            "conversations."
        )


async def _model(chat: "ChatScreen", name: str) -> None:
    if not name:
        chat.action_models()
    else:
        chat.models.switch(await asyncio.to_thread(_model_card, name, chat.models.at_a_server))


def _model_card(name: str, at_a_server: bool) -> "TargetCard":
    # Imported on this thread, so that typing does not wait for it.
    from localspec.chat.model_list import named_model, named_on_server

    return named_on_server(name) if at_a_server else named_model(name)


def _system(chat: "ChatScreen", text: str) -> None:
    if text:
        chat.settings.set_system(text)
    else:
        chat.action_system()


def _set(chat: "ChatScreen", rest: str) -> None:
    key, value = split(rest)
    if value:
        chat.settings.set_sampling({key: value})
    elif key:
        chat.settings.notify_sampling(key)
    else:
        chat.action_sampling()


def _think(chat: "ChatScreen", rest: str) -> None:
    word = parse_think(rest)
    if word == SHOW:
        chat.action_thoughts()
    elif word:
        chat.settings.think(word)
    else:
        chat.settings.notify_thinking()


async def _edit(chat: "ChatScreen", text: str) -> None:
    if text:
        await chat.turns.send_instead(text)
    else:
        chat.turns.edit()


COMMANDS: dict[str, Callable[["ChatScreen", str], Awaitable[None] | None]] = {
    "new": lambda chat, _: chat.action_new(),
    "resume": _resume,
    "model": _model,
    "system": _system,
    "set": _set,
    "think": _think,
    "again": lambda chat, _: chat.turns.again(),
    "edit": _edit,
    "title": lambda chat, title: chat.conversations.rename(title),
    "find": lambda chat, words: chat.action_find(words),
    "xray": lambda chat, _: chat.action_xray(),
    "phrases": lambda chat, words: chat.action_phrases(words),
    "race": lambda chat, prompt: chat.action_race(prompt),
    "help": lambda chat, _: chat.action_keys(),
    "quit": lambda chat, _: chat.app.exit(),
}
