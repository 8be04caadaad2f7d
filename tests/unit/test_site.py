"""The site of docs/: its drawings are what their source makes; it builds without a warning, and a browser shows it (slow)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.modules import module_of
from support.pages import DOCS, ROOT, name_examples


def test_drawings_are_what_their_source_makes():
    drawings = module_of(DOCS / "drawings.py")
    assert {file.stem for file in drawings.FOLDER.iterdir()} == set(drawings.DRAWINGS)
    for name, draw in drawings.DRAWINGS.items():
        assert (drawings.FOLDER / f"{name}.svg").read_text() == draw().svg(), "run: python docs/drawings.py"


def test_a_ring_of_the_drawing_ends_with_whole_sums():
    after = module_of(DOCS / "drawings.py")._after
    for rank in range(4):
        assert [chunk for chunk in range(4) if after(rank, chunk, 3) == ("sum", True)] == [rank]


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="sub/b.html#there">b</a> <a href="#here">up</a> <a href="http://x/y">'
    )
    (tmp_path / "sub" / "b.html").write_text('<a href="../index.html#gone"></a> <img src="no.svg"> <b id="there">')
    assert module_of(DOCS / "links.py").broken_links(tmp_path) == ["sub/b.html: ../index.html#gone", "sub/b.html: no.svg"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="needs Sphinx: pip install '.[docs]'")
    pytest.importorskip("furo", reason="needs furo: pip install '.[docs]'")
    for framework in ("torch", "tensorflow", "keras", "jax"):
        pytest.importorskip(framework)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", str(DOCS), str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_every_link_leads_somewhere(site):
    assert module_of(DOCS / "links.py").broken_links(site) == []


@pytest.mark.slow
def test_the_reference_has_signatures_and_sections(site):
    text = (site / "api" / "hvdlite.html").read_text()
    entry = text.partition('id="hvdlite.allreduce"')[2].partition('id="hvdlite.allreduce_"')[0]
    for part in ("prescale_factor", "Parameters", "Returns", "Raises"):
        assert part in entry


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(file.stem for file in name_examples.FOLDER.glob("*.py")))
def test_the_reference_shows_every_example(site, page):
    assert (site / "api" / f"{page}.html").read_text().count(">Example<") == len(name_examples.examples(page))


PHONE, DESK = 390, 1280


@pytest.mark.slow
@pytest.mark.parametrize("width", [DESK, PHONE])
@pytest.mark.parametrize("page", ["get_started", "concepts"])
def test_a_page_renders(site, tmp_path, page, width):
    """Text and drawings are there, and no column of the picture beyond the page's own has text: nothing sticks out."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs Chromium: apt install chromium")
    matplotlib_image = pytest.importorskip("matplotlib.image")
    picture = tmp_path / "page.png"
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    options += [f"--window-size={width},1400", f"--screenshot={picture}"]
    ended = subprocess.run([browser, *options, (site / f"{page}.html").as_uri()], capture_output=True, text=True, timeout=300)
    assert picture.exists(), ended.stderr
    pixels = matplotlib_image.imread(picture)[:, :, :3]
    assert pixels.shape[1] == width
    ink = pixels.min(axis=2) < 0.6
    assert 0.005 < ink.mean() < 0.5
    assert ink[:, -3:].mean() < 0.01  # the margin at the right is empty
    assert len(Path(picture).read_bytes()) > 20_000
