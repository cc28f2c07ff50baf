"""What `minimind report` and `minimind watch` show of runs: read, folded, put on one page."""
