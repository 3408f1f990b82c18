"""Compile the native library when a wheel or an editable install is built."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).parent / "localspec" / "native" / "build.py"


class NativeLibrary(BuildHookInterface):
    """A hook that adds the library: the wheel is then for one platform, and for every version of Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        spec = importlib.util.spec_from_file_location("localspec_native_build", BUILD)
        native = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(native)  # localspec itself cannot be imported: its dependencies are not installed
        try:
            target = native.wanted_target()
            if target is None:
                self.app.display_warning(f"localspec is built without its native library: {native.why_none()}")
            elif version == "editable":
                native.build(target)
            else:
                library = native.build(target, native.OBJECTS / target.name / target.library)
                build_data["force_include"][str(library)] = f"localspec/native/{target.library}"
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{target.wheel_tag}"
        except native.BuildFailed as failed:
            self.app.abort(str(failed))
