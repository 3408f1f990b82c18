"""What the slash commands of the chat do on the full screen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.chat.sampling import split
from localspec.chat.thinking import SHOW, asked
from localspec.errors import UsageMistake

if TYPE_CHECKING:
    from localspec.models.registry import TargetCard
    from localspec_tui.screens.chat import ChatScreen


async def obey(chat: "ChatScreen", name: str, rest: str) -> None:
    """Does what the command says. Raises UsageMistake where `rest` means nothing to it, LocalspecError."""
    await COMMANDS[name](chat, rest)


async def _new(chat: "ChatScreen", _: str) -> None:
    chat.action_new()


async def _resume(chat: "ChatScreen", number: str) -> None:
    if not number:
        chat.action_conversations()
    elif number.isdecimal():
        await asyncio.to_thread(chat.conversations.check, int(number))
        chat.conversations.resume(int(number))
    else:
        raise UsageMistake(f"/resume {number} means nothing; /help lists the commands.")


async def _model(chat: "ChatScreen", name: str) -> None:
    if not name:
        chat.action_models()
    else:
        chat.models.switch(await asyncio.to_thread(_named, name, chat.models.at_a_server))


def _named(name: str, at_a_server: bool) -> "TargetCard":
    from localspec.chat.model_list import named, named_there  # on this thread: nobody who types waits for it

    return named_there(name) if at_a_server else named(name)


async def _system(chat: "ChatScreen", text: str) -> None:
    if text:
        chat.settings.set_system(text)
    else:
        chat.action_system()


async def _set(chat: "ChatScreen", rest: str) -> None:
    key, value = split(rest)
    if value:
        chat.settings.set_sampling({key: value})
    elif key:
        chat.settings.notify_sampling(key)
    else:
        chat.action_sampling()


async def _think(chat: "ChatScreen", rest: str) -> None:
    word = asked(rest)
    if word == SHOW:
        chat.action_thoughts()
    elif word:
        chat.settings.think(word)
    else:
        chat.settings.notify_thinking()


async def _again(chat: "ChatScreen", _: str) -> None:
    await chat.sender.again()


async def _edit(chat: "ChatScreen", text: str) -> None:
    if text:
        await chat.sender.send_instead(text)
    else:
        chat.sender.edit()


async def _title(chat: "ChatScreen", title: str) -> None:
    chat.conversations.rename(title)


async def _find(chat: "ChatScreen", words: str) -> None:
    chat.action_find(words)


async def _xray(chat: "ChatScreen", _: str) -> None:
    chat.action_xray()


async def _phrases(chat: "ChatScreen", words: str) -> None:
    chat.action_phrases(words)


async def _race(chat: "ChatScreen", prompt: str) -> None:
    chat.action_race(prompt)


async def _help(chat: "ChatScreen", _: str) -> None:
    await chat.action_keys()


async def _quit(chat: "ChatScreen", _: str) -> None:
    chat.app.exit()


COMMANDS: dict[str, Callable[["ChatScreen", str], Awaitable[None]]] = {
    "new": _new,
    "resume": _resume,
    "model": _model,
    "system": _system,
    "set": _set,
    "think": _think,
    "again": _again,
    "edit": _edit,
    "title": _title,
    "find": _find,
    "xray": _xray,
    "phrases": _phrases,
    "race": _race,
    "help": _help,
    "quit": _quit,
}
