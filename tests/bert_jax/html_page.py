"""What the tests of pages look at."""

import json
import re
from html.parser import HTMLParser

_WITHOUT_END = {"meta", "input", "br"}


class Page(HTMLParser):
    """A page whose elements nest.

    Attributes:
        tags: (name, attributes) of each element, in order.
        links: what src and href name.
        rows: the texts of the cells of each row of a table.
        words: the pieces of text outside of styles and scripts.
        data: what the scripts of type application/json hold.
    """

    def __init__(self, content: str):
        super().__init__()
        self.open, self.tags, self.links, self.rows, self.words, self.data = [], [], [], [], [], []
        self.feed(content)
        self.close()
        assert not self.open

    @property
    def text(self) -> str:
        """All words, with single spaces between."""
        return re.sub(r"\s+", " ", " ".join(self.words))

    def count(self, name: str) -> int:
        """How many elements of a name there are."""
        return sum(name == tag for tag, _ in self.tags)

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in _WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        if self.open and self.open[-1] == "script" and self.tags[-1][1].get("type") == "application/json":
            self.data.append(json.loads(data))
        elif not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)
