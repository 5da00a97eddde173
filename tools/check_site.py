"""Check the links and assets of the built site: they are there, and each page is linked.

``make docs`` runs it after the build: ``python -m tools.check_site build/site``.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOME = "docs/index.html"
_MADE_BY_SPHINX = {"search.html", "genindex.html", "py-modindex.html"}
_ASSETS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_NOT_LOADED = {"canonical", "search", "index", "next", "prev", "author"}


class _Page(HTMLParser):
    """The links, assets and places of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.assets: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def has(self, place: str) -> bool:
        """Return whether a link to a place leads there; the page itself is the place ''."""
        return not place or place in self.places

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag in _ASSETS and _ASSETS[tag] in given and given.get("rel") not in _NOT_LOADED:
            self.assets.add(given[_ASSETS[tag]])


def problems(site: Path) -> list[str]:
    """Return what is wrong with a site.

    Parameters
    ----------
    site : pathlib.Path
        The directory that Sphinx has built.

    Returns
    -------
    list of str
        A sentence for each problem, empty if there is none.
    """
    pages = {path.resolve(): _Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    found: list[str] = []
    linked: dict[Path, set[Path]] = {}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [
            f"{name} loads {asset} from elsewhere"
            for asset in sorted(page.assets)
            if urlsplit(asset).netloc
        ]
        linked[path] = set()
        for link in sorted(page.links | page.assets):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            linked[path].add(target)
            if not target.exists():
                found.append(f"{name}: {link} leads nowhere")
            elif target in pages and not pages[target].has(unquote(parts.fragment)):
                found.append(f"{name}: {link} has no such place")
    reached = _reached((site / HOME).resolve(), linked)
    unlinked = {str(path.relative_to(site.resolve())) for path in set(pages) - reached}
    found += [f"no link leads to {name}" for name in sorted(unlinked - _MADE_BY_SPHINX)]
    return found


def _reached(home: Path, linked: dict[Path, set[Path]]) -> set[Path]:
    reached, waiting = set(), [home]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for target in linked.get(page, ()) if target in linked]
    return reached


def main() -> int:
    """Print what is wrong with the site in the first argument.

    Returns
    -------
    int
        The exit code.
    """
    site = Path(sys.argv[1])
    found = problems(site)
    print("\n".join(found) or f"All links lead somewhere. Open {site / HOME}")  # noqa: T201
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
