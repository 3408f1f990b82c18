"""Facts from the environment that are not settings: directories, secrets, the terminal, and shared variables."""

import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

HOME = "LOCALSPEC_HOME"
ISA = "LOCALSPEC_ISA"
SERVE_KEY = "LOCALSPEC_SERVE_KEY"
SERVER_KEY = "LOCALSPEC_SERVER_KEY"
REAL_MODELS = "LOCALSPEC_REAL_MODELS"  # the directory of the models that tests use; tools/real_models.py
one_command = False  # whether this process was started for its command, so that its start counts as part of the command
TAB_DRIVER = "localspec_tui.tab:TabDriver"  # Textual's driver in a tab of a browser, by its own variable


def home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory that LOCALSPEC_HOME names, absolute, or None."""
    path = environ.get(HOME)
    return Path(os.path.expanduser(path)).absolute() if path else None


def instruction_set(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the instruction set that LOCALSPEC_ISA prescribes for the compiled library; None for the best of this
    CPU."""
    return environ.get(ISA) or None


def ollama_models(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of Ollama's models that OLLAMA_MODELS names; None if it is not set."""
    path = environ.get("OLLAMA_MODELS")
    return Path(path) if path else None


def serve_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of LOCALSPEC_SERVE_KEY for requests over TCP.

    The key is not a setting, because settings are displayed and the key is a secret.
    """
    return environ.get(SERVE_KEY) or None


def server_key(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the key of LOCALSPEC_SERVER_KEY for requests to a server. The key is a secret too."""
    return environ.get(SERVER_KEY) or None


def dumb_terminal(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether TERM says that the terminal cannot move its cursor."""
    return environ.get("TERM") == "dumb"


def in_a_tab(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a browser tab replaces the terminal (`localspec serve --ui`)."""
    return environ.get("TEXTUAL_DRIVER") == TAB_DRIVER


def inside_tmux(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal is a window of tmux, which has its own buffer for copying."""
    return bool(environ.get("TMUX"))


def in_screen(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal is a window of GNU screen, which sends reports that localspec did not request."""
    return bool(environ.get("STY"))


def terminal_kind(environ: Mapping[str, str] = os.environ) -> str:
    """Return the kind of terminal, from TERM."""
    return environ.get("TERM", "")


def light_background(environ: Mapping[str, str] = os.environ) -> bool | None:
    """Return whether the terminal's background is light, by COLORFGBG; None if the variable does not say."""
    ground = environ.get("COLORFGBG", "").rpartition(";")[2]
    return int(ground) in (7, *range(9, 16)) if ground.isdecimal() and int(ground) < 16 else None


def editor(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the command of the user's editor."""
    return environ.get("VISUAL") or environ.get("EDITOR") or None


def kernel_settings(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return, as NAME=value, the variables that make torch's libraries choose other kernels and so change the last bits
    of results."""
    names = ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
    return [f"{name}={environ[name]}" for name in names if environ.get(name)]


@dataclass(frozen=True)
class HubPlaces:
    """The settings that the Hugging Face client shares with other programs: cache, server and offline mode."""

    cache: Path
    """The common cache of models."""
    endpoint: str
    """The server."""
    offline: bool
    """Whether the user forbids any request."""


_AROUND = " \t\r\n'\""  # characters that files of variables leave around a value
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


def network_variables(ending: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for proxies and certificates that are set. If `ending` is `_proxy`, omit certificates."""
    names = [name for name in (*_PROXIES, "ssl_cert_file", "ssl_cert_dir") if name.endswith(ending)]
    if ending:
        names.remove("no_proxy")
    return {spelling: environ[spelling] for name in names for spelling in (name.upper(), name) if environ.get(spelling)}


def hub_places(environ: Mapping[str, str] = os.environ) -> HubPlaces:
    """Return the settings of the Hugging Face client by `environ`, which the client reads only once, when imported."""

    def place(*names: str, default: str) -> str:
        value = next((environ[name] for name in names if environ.get(name)), default)
        return os.path.expandvars(os.path.expanduser(value))

    home = place("HF_HOME", default=os.path.join(place("XDG_CACHE_HOME", default="~/.cache"), "huggingface"))
    cache = place("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", default=os.path.join(home, "hub"))
    offline = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return HubPlaces(
        Path(cache).absolute(),
        (environ.get("HF_ENDPOINT", "").strip(_AROUND).rstrip("/")) or "https://huggingface.co",
        offline.strip(_AROUND).upper() in ("1", "ON", "YES", "TRUE"),
    )


def quiet_hub(environ: MutableMapping[str, str] = os.environ) -> None:
    """Switch off telemetry, update checks and advice of the Hugging Face client before it is imported.

    White space around the client's variables is removed, and empty variables are deleted. Files are fetched over HTTP,
    where an interrupted download is resumed and localspec checks every byte. HF_HUB_DISABLE_XET=0 allows Xet.
    """
    for name in ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_UPDATE_CHECK", "HF_HUB_DISABLE_SYMLINKS_WARNING"):
        environ[name] = "1"
    environ.setdefault("HF_HUB_DISABLE_XET", "1")
    for name in ("HF_ENDPOINT", "HF_TOKEN", *_PROXIES, *map(str.upper, _PROXIES)):  # the client does not clean them
        if name in environ and not (value := environ[name].strip(_AROUND)):
            del environ[name]
        elif name in environ:
            environ[name] = value


def install_extra(extra: str) -> str:
    """Return the command that installs an optional part. It runs in the checkout, because localspec is not on PyPI."""
    return (
        f"run `uv tool install '.[{extra}]'`, or `pip install '.[{extra}]'` in its environment, in localspec's checkout"
    )
