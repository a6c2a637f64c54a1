"""The generated parts of the documentation, one module per source; see `make_tables.py`."""
