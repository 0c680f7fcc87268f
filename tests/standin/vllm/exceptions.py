class VLLMClientError(Exception):
    pass
