"""The documentation as a site: `python -m docs.site FOLDER` writes its pages, `make docs` builds it."""
