"""The published figures and tables: ``python -m paper_figures``."""
