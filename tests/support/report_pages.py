"""What somebody reads off a page: its headline, each save's marks, each finding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "br", "rect", "path", "i"})


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """Yield it and all that is in it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child.walk()

    def all(self, tag: str, kind: str | None = None) -> list[Element]:
        """Return what has a tag, and a class where one is asked for."""
        return [each for each in self.walk() if each.tag == tag and (kind is None or kind in each.classes)]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {}, None)
        self.at = self.root

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(element)
        if tag not in {"meta", "br"}:
            self.at = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.children.append(Element(tag, {name: value or "" for name, value in attrs}, self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.tag == tag, f"</{tag}> ends <{self.at.tag}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.children.append(data)


def read(page: str) -> Element:
    """Read a page strictly: each element is ended by its own tag."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert reader.at is reader.root, f"<{reader.at.tag}> is not ended"
    return reader.root


def marks(page: Element) -> dict[str, set[str]]:
    """Return how the parts of each save are drawn, by its name."""
    rows = page.all("table", "map")[0].all("tbody")[0].all("tr")
    return {_name(row): {each.classes[0] for each in row.all("rect")} for row in rows}


def _name(row: Element) -> str:
    (heading,) = row.all("th", "name")
    return str(heading.children[0])


def findings(page: Element) -> list[tuple[str, str, str, str]]:
    """Return weight, code, save and place of each finding that is told one by one."""
    return [
        (kind.classes[1].removeprefix("s-"), kind.all("code")[0].text, row.all("th")[0].text, row.all("td")[0].text)
        for kind in page.all("div", "kind")
        for row in kind.all("tbody")[0].all("tr")
    ]
