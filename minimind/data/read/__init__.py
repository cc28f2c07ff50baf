"""Any file -> records with the line they start on."""
