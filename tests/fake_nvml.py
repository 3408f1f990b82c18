"""A stand-in for NVIDIA's management library: a driver with some number of GPUs, or a broken one."""

from typing import Any


class FakeNvml:
    """The library's functions that we call, with C's conventions: 0 is success, results go to pointers."""

    def __init__(self, version: str = "580.65.06", gpus: int = 1, broken: str = "") -> None:
        self.version, self.gpus, self.broken, self.open = version, gpus, broken, 0

    def nvmlInit_v2(self) -> int:
        if self.broken == "init":
            return 9  # NVML_ERROR_DRIVER_NOT_LOADED
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.gpus
        return 999 if self.broken == "count" else 0

    def nvmlSystemGetDriverVersion(self, version: Any, length: Any) -> int:
        assert length.value == len(version)
        version.value = self.version.encode()
        return 999 if self.broken == "version" else 0
