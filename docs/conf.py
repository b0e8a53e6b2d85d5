"""How Sphinx builds the documentation: `make docs`."""

import importlib.metadata
import sys
from pathlib import Path

import django
from django.conf import settings

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

# The kit for Django can only be imported in a project.
settings.configure(
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "bide.contrib.django",
    ],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()

project = "bide"
author = "the bide authors"
copyright = "the bide authors; Apache License 2.0"
release = importlib.metadata.version("bide")

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "both_forms",  # docs/_ext/both_forms.py
    "docstrings",  # docs/_ext/docstrings.py, after Napoleon
    "sphinx_click",
    "shell",  # docs/_ext/shell.py, after sphinx-click
    "keywords",  # docs/_ext/keywords.py: words by which the search finds pages
    "llms",  # docs/_ext/llms.py: llms.txt, and the pages as Markdown
    "tables",  # docs/_ext/tables.py: tables generated from the code
]
exclude_patterns = ["_build", "_ext", "_static"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = ":not(.highlight-text) > div.highlight pre"  # what a program prints

default_role = "py:obj"  # `Queue.put` in a docstring becomes a link if it exists
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # "Returns: the outcome: its id" is a sentence, not a type

html_theme = "furo"
html_title = f"bide {release}"
html_static_path = ["_static"]
html_css_files = ["bide.css"]
html_show_sphinx = False
html_copy_source = False
