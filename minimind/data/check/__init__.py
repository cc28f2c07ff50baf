"""What is in these files: `minimind check`."""
