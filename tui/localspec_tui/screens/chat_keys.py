"""The keys of the chat, in the order in which the footer, the panel of keys and the palette show them."""

from textual.binding import Binding, BindingType

KEYS: list[BindingType] = [
    # What fits into a narrow footer comes first. What has a tooltip is in the palette too.
    Binding("escape", "stop", "Stop", tooltip="Stop the reply; what was said stays", id="chat.stop"),
    Binding("escape", "back", "Back to where one types", id="chat.back", show=False),
    Binding("f1", "keys", "Keys", tooltip="Show or hide all keys and commands", id="chat.help"),
    Binding("ctrl+q", "app.quit", "Quit", tooltip="Leave; what was said stays kept", id="app.quit"),
    Binding("ctrl+n", "new", "New", tooltip="Begin a new conversation", id="chat.new"),
    Binding("ctrl+r", "conversations", "Resume", tooltip="Go on with an earlier conversation", id="chat.resume"),
    Binding("ctrl+o", "models", "Model", tooltip="Let another model answer", id="chat.models"),
    Binding("f4", "panel", "Figures", tooltip="Show or hide the panel of figures", id="chat.panel"),
    Binding("ctrl+s", "system", "System", tooltip="Set the system prompt", id="chat.system"),
    Binding("f5", "again", "Again", tooltip="Another answer to the last prompt", id="chat.again"),
    Binding("f2", "edit", "Edit", tooltip="Change the last prompt, or the one in focus", id="chat.edit"),
    Binding("ctrl+t", "xray", "X-ray", tooltip="See who proposed each token of a reply", id="chat.xray"),
    Binding("ctrl+l", "copy", "Copy", tooltip="Copy the last reply, or the message in focus", id="chat.copy"),
    Binding("ctrl+f", "find", "Find", tooltip="Find words in this conversation", id="chat.find"),
    Binding("f3", "sampling", "Sampling", tooltip="Change how replies are sampled", id="chat.sampling"),
    Binding(
        "f9", "race", "Race", tooltip="Let the model race against itself without drafts", id="chat.race", show=False
    ),
    Binding("f8", "phrases", "Phrases", tooltip="See the phrases that are kept", id="chat.phrases", show=False),
    Binding("alt+up", "walk(-1)", "To the message above", id="chat.above", show=False),
    Binding("alt+down", "walk(1)", "To the message below", id="chat.below", show=False),
    Binding("alt+c", "code", "Code", tooltip="Copy the code of a reply by itself", id="chat.code", show=False),
    Binding("alt+t", "thoughts", "Thoughts", tooltip="Show or fold what was thought", id="chat.thoughts", show=False),
    Binding("ctrl+g", "editor", "Editor", tooltip="Write in your own editor", id="chat.editor", show=False),
    Binding("pageup", "page(-1)", "Scroll up", id="chat.page_up", show=False),
    Binding("end,ctrl+end", "end", "To the end of the conversation", id="chat.end", show=False),
    Binding("pagedown", "page(1)", "Scroll down", id="chat.page_down", show=False),
]
