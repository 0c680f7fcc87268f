"""The tokenizer of the stand-in: nothing of it asks for one."""


def cached_tokenizer_from_config(model_config: object) -> None:
    return None
