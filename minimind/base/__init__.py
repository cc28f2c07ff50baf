"""What everything stands on: errors, findings, files, hardware, the launcher, charts. Imports nothing of the rest."""
