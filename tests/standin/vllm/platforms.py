class _Platform:
    device_type = "stand-in"

    def is_cpu(self) -> bool:
        return True


current_platform = _Platform()
