"""The settings of the site: `make docs` makes HTML from the pages of docs/ and from the docstrings.

The site uses Sphinx, MyST and furo. Sphinx's autodoc imports the package, so signatures and docstrings are the code's. It reads
the docstrings' sections (Args, Returns, Raises) as they are. MyST reads the same Markdown that a repository's web page shows.
furo's pages suit a phone, and their search needs no server.
"""

import os
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from hvdlite._version import __version__  # noqa: E402 - after the path

project, author, release = "hvdlite", "the authors of hvdlite", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "reference"]
exclude_patterns = ["drawings"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

highlight_language = "none"  # a block without a language is output, a command or a drawing
default_role = "py:obj"  # a docstring's `name` is a link where the site has that name
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"hvdlite {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_copyright = False
html_copy_source = False
