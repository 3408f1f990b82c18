"""The full screen with a remote server: features that a server lacks say so."""

import pytest
from golden import wording
from serving.scripted_server import HELLO, said, scripted, stream
from tui.scripted_engine import ScriptedChat, say, until

from localspec.config import Settings
from localspec.serving.server_engine import NamedServer


@pytest.mark.slow
def test_a_chat_over_a_server(tmp_path):
    """The server answers; X-ray, a race and the list of models say why they cannot; an interrupted reply is saved."""
    with scripted(HELLO, stream(said("Half a"))) as server:
        settings = Settings(server=server.url)
        talk = ScriptedChat(tmp_path, settings=settings)
        behind = NamedServer(settings)
        talk.thread._opening = lambda at_the_end, notice: behind.start(
            None, at_the_end, notice, say_what_is_saved=False
        )
        talk.thread.model._loading = behind.load

        def screen() -> str:
            return " ".join(talk.screen_text().split())

        async def story(pilot):
            await say(pilot, "Hi")
            await until(pilot, talk.idle)
            assert talk.replies() == ["Hello."] and f"at 127.0.0.1:{server.port}" in screen()
            assert "tok/s" in talk.live and "GiB" not in talk.live
            await pilot.press("ctrl+t")
            await until(pilot, lambda: "do not report" in screen())
            await pilot.press("escape")
            await say(pilot, "/model other")
            await until(pilot, lambda: "has no model 'other'" in screen())
            await until(pilot, talk.idle)
            await say(pilot, "More")
            await until(pilot, lambda: wording("broke_off_in_the_middle") in screen())
            assert talk.replies() == ["Hello.", "Half a"]

        talk.play(story)
