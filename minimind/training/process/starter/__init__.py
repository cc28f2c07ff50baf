"""Who has started this rank: each starter's variables, and the line that a person has typed."""
