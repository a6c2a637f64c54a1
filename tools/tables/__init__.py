"""The generated parts of the documentation, a module for what they are made of; see `make_tables.py`."""
