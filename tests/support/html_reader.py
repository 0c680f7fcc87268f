"""What a browser would show and load of a page."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Tags, addresses and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).replace("\u00a0", " ").split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attributes if name in ("src", "href", "srcset")]
        if tag == "style":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.words.append(data)
