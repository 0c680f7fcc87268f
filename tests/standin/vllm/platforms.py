"""The device that the stand-in says it runs on."""

import os


class _Platform:
    """Processors, or as many accelerators as STANDIN_DEVICES says."""

    device_type = "stand-in"
    device_control_env_var = "CUDA_VISIBLE_DEVICES"

    def is_cpu(self) -> bool:
        return "STANDIN_DEVICES" not in os.environ

    def device_count(self) -> int:
        return int(os.environ["STANDIN_DEVICES"])

    def get_device_name(self, _: int) -> str:
        return "stand-in"


current_platform = _Platform()
