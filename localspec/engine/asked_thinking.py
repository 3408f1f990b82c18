"""What was asked for, and what a chat template knows -> whether a model is told to think before it answers."""

from localspec.config import TYPED, Settings
from localspec.errors import UsageMistake
from localspec.models.chat_tokenizer import ChatTokenizer


def asked_thinking(settings: Settings, chat: ChatTokenizer, model: str, system: str | None = None) -> bool | None:
    """Whether it is told to think; None leaves that to its chat template.

    Raises UsageMistake where that was asked for of this very model and its template heeds it not, at all or beside this
    `system` prompt. What stands in config.toml is meant for those models that heed it.
    """
    if settings.think is None or chat.heeds_switch(system):
        return settings.think
    origin = settings.origins.get("think", "")
    if origin == TYPED:
        asked, remedy = f"/think {'on' if settings.think else 'off'}", "/think auto takes it back"
    elif origin.startswith("--"):
        asked, remedy = origin, "leave it out"
    else:
        return None
    if chat.switch is None:
        raise UsageMistake(
            f"{asked} has no effect, for the chat template of {model} has no switch for thinking; {remedy}."
        )
    raise UsageMistake(
        f"{asked} has no effect beside a system prompt, where the chat template of {model} has no switch for thinking; "
        f"{remedy}, or the system prompt."
    )
