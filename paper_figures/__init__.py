"""Scripts that make the published figures and tables again."""
