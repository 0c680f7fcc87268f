"""What the stand-in raises at a request that it refuses."""


class VLLMClientError(Exception):
    pass
