"""Checks a built site: every internal link leads to a file that is there, and to an anchor that this file has.

    python docs/links.py build/docs

It uses no network, and does not look at links to other sites. It prints each broken link with its page, and ends with 1 if
there is one.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """HTMLParser calls it."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


def broken_links(site: Path) -> list[str]:
    """A line for each link of the site that leads nowhere.

    Args:
        site: the folder of the HTML files.

    Returns:
        Lines ``PAGE: LINK``, in the order of pages and links; none if the site is whole.
    """
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target.is_file() or (target / "index.html").is_file()
            wanted = unquote(parts.fragment)
            if not there or (wanted and target in pages and wanted not in pages[target].anchors):
                broken.append(f"{path.relative_to(site.resolve())}: {link}")
    return broken


def main() -> int:
    """Prints the broken links of the site that the command line names."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html: build the site first (make docs)")
    broken = broken_links(site)
    print("\n".join([*broken, f"{len(broken)} broken link(s) in {site}"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
